"""Small targets without weights to fetch: a table of laws, and a tiny random transformer. For tests and documentation.

`TableTarget`'s law is a function of the last n tokens, so everything that can be said about sequences can be computed
exactly beside it.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nsd.errors import ConfigError, ModelError, PromptError
from nsd.targets.base import FINAL_NORM, Scores, Target, TargetSession, Tokenizer
from nsd.targets.ledger import Ledger, check_prompts

if TYPE_CHECKING:
    from nsd.targets.hf import HfTarget

EOS_BYTE = 256
_ROWS = 4096
"""Contexts told apart at most; more share rows."""


class ByteTokenizer:
    """UTF-8 bytes as ids 0..255, and an end of text."""

    eos_token_id = EOS_BYTE
    prefix: Sequence[int] = ()

    def encode(self, text: str) -> list[int]:
        """The bytes of a text."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """The text of bytes; a broken character is U+FFFD."""
        return bytes(i for i in ids if i < EOS_BYTE).decode(errors="replace")

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """One line for each message, and the assistant's name."""
        return self.encode("".join(f"{m['role']}: {m['content']}\n" for m in messages) + "assistant: ")

    def token_text(self, token: int) -> str | None:
        """A name for each id: the character of a byte, as Latin-1 has it."""
        if token == EOS_BYTE:
            return "<eos>"
        return chr(token) if 0 <= token < EOS_BYTE else None


class LetterTokenizer:
    """Ids 0, 1, 2, ... as a, b, c, ...; for vocabularies of at most 62."""

    prefix: Sequence[int] = ()

    def __init__(self, vocab: int) -> None:
        letters = string.ascii_letters + string.digits
        if not 1 <= vocab <= len(letters):
            raise ConfigError(f"got a vocabulary of {vocab} letters, wanted 1..{len(letters)}; use ByteTokenizer")
        self.letters = letters[:vocab]

    def encode(self, text: str) -> list[int]:
        """Places of the letters."""
        wrong = sorted(set(text) - set(self.letters))
        if wrong:
            raise PromptError(f"got {wrong[0]!r} in the prompt, wanted letters of {self.letters!r}")
        return [self.letters.index(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        """Letters at the places."""
        return "".join(self.letters[i] for i in ids)

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The contents, run together."""
        return self.encode("".join(m["content"] for m in messages))

    def token_text(self, token: int) -> str | None:
        """The letter of an id."""
        return self.letters[token] if 0 <= token < len(self.letters) else None


class TableTarget(Target):
    """A language model from a seeded table: the last `order` tokens choose a row of logits.

    table [rows, V] is sharpness * standard normal. Hidden states for taps: the one-hot of a position's token times
    i + 1 for tap i, the logits themselves for FINAL_NORM (H = V, 2 layers).
    """

    def __init__(
        self,
        vocab: int = 8,
        order: int = 1,
        seed: int = 0,
        sharpness: float = 2.0,
        eos: Sequence[int] = (),
        context: int = 4096,
        dtype: torch.dtype = torch.float64,
        tokenizer: Tokenizer | None = None,
        name: str = "table",
    ) -> None:
        self.name, self.vocab, self.order, self.context, self.eos = name, vocab, order, context, frozenset(eos)
        self.hidden, self.layers, self.absent = vocab, 2, None
        self.device, self.dtype, self.dtype_reason = torch.device("cpu"), dtype, "as asked"
        self.default_temperature = 1.0
        self.tokenizer = tokenizer or (LetterTokenizer(vocab) if vocab <= EOS_BYTE else ByteTokenizer())
        rows = min(vocab**order, _ROWS)
        noise = torch.randn(rows, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        self.table = (sharpness * noise).to(dtype)

    @classmethod
    def over_bytes(cls, seed: int = 0, order: int = 2, sharpness: float = 3.0) -> TableTarget:
        """Laws over bytes that nearly always stay with lower-case letters and blanks."""
        target = cls(257, order, seed, sharpness, (EOS_BYTE,), name="toy", dtype=torch.float32)
        usual = list((string.ascii_lowercase + " ").encode())
        rare = torch.full((target.vocab,), -30.0)
        rare[usual], rare[EOS_BYTE] = 0.0, -4.0
        target.table += rare
        return target

    def near(self, noise: float, seed: int) -> TableTarget:
        """A model with similar laws over the same tokens, as a drafter: normal noise on every logit."""
        other = TableTarget.__new__(TableTarget)
        other.__dict__.update(self.__dict__, name=f"{self.name} near {noise:g}")
        generator = torch.Generator().manual_seed(seed)
        other.table = self.table + noise * torch.randn(self.table.shape, generator=generator, dtype=self.dtype)
        return other

    def logits_after(self, tokens: Sequence[int]) -> Tensor:
        """Logits [V] of the next token after these; a text shorter than the order counts from its start."""
        row = 0
        for token in tokens[-self.order :] if self.order else ():
            row = row * self.vocab + token
        return self.table[row % len(self.table)]

    def open(
        self, prompts: Sequence[Sequence[int]], room: int, taps: Sequence[int] = ()
    ) -> tuple[TableSession, Scores]:
        """Prefill; see `Target.open`."""
        check_prompts(prompts, self.context)
        if any(tap != FINAL_NORM and not 0 <= tap <= self.layers for tap in taps):
            raise ModelError(
                f"got hidden-state taps {list(taps)}, {self.name} has taps 0..{self.layers} and {FINAL_NORM}"
            )
        session = TableSession(self, len(prompts), tuple(taps))
        scores = session.score(prompts)
        session.ledger.settle()
        ends = torch.tensor([len(prompt) for prompt in prompts]).cumsum(0) - 1
        return session, Scores(scores.logits[ends], scores.taps)


class TableSession(TargetSession):
    """The tokens of one batch; the same books as a session with a cache keeps."""

    def __init__(self, target: TableTarget, batch: int, taps: tuple[int, ...]) -> None:
        self.target, self.taps = target, taps
        self.tokens: list[list[int]] = [[] for _ in range(batch)]
        self.ledger = Ledger(batch)

    def score(self, inputs: Sequence[Sequence[int]]) -> Scores:
        """One pass over new tokens; see `TargetSession.score`."""
        self.ledger.feed(inputs, self.target.vocab)
        self.positions, self.calls = self.ledger.positions, self.ledger.calls
        rows = []
        for mine, new in zip(self.tokens, inputs, strict=True):
            for token in new:
                mine.append(token)
                rows.append(self.target.logits_after(mine))
        logits = torch.stack(rows)
        return Scores(logits, self._states([token for new in inputs for token in new], logits))

    def _states(self, tokens: list[int], logits: Tensor) -> Tensor | None:
        if not self.taps:
            return None
        hot = torch.nn.functional.one_hot(torch.tensor(tokens), self.target.vocab).to(logits)
        return torch.stack([logits if tap == FINAL_NORM else hot * (tap + 1) for tap in self.taps], 1)

    def keep(self, counts: Sequence[int]) -> None:
        """Roll back to the first counts[b] inputs since the last keep."""
        self.ledger.keep(counts)
        for mine, length in zip(self.tokens, self.ledger.lengths, strict=True):
            del mine[length:]

    def retain(self, requests: Sequence[int]) -> None:
        """Go on with these requests only."""
        self.ledger.retain(requests)
        self.tokens = [self.tokens[b] for b in requests]


def tiny_llama(
    seed: int = 0, vocab: int = 257, layers: int = 4, hidden: int = 32, context: int = 512, scale: float = 0.3
) -> HfTarget:
    """A random float32 Llama over bytes, built in memory; `scale` of the weights sets how sharp its laws are."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from nsd.targets.hf import HfTarget

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=EOS_BYTE if vocab > EOS_BYTE else None,
    )
    generator = torch.Generator().manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, scale, generator=generator)
    tokenizer = ByteTokenizer() if vocab > EOS_BYTE else LetterTokenizer(vocab)
    return HfTarget(model, tokenizer, f"tiny-llama-{seed}", "built in float32")
