"""Any causal language model of transformers as a target: one forward for the whole ragged batch.

Inputs are padded on the right; every row has its own positions and mask; the head computes the rows that are asked for
and no others. Where all rows share one length (one request, or a prefill) the model makes its own mask, which costs
nothing for a single token.

Uses of transformers (>= 5.19): a causal model's `forward(input_ids, attention_mask, position_ids, cache or
past_key_values, use_cache)`, `get_output_embeddings`, `config`, `generation_config`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nsd.errors import ModelError
from nsd.targets.base import Scores, Target, TargetSession, Tokenizer
from nsd.targets.cache import SLACK, RaggedCache
from nsd.targets.ledger import Ledger, check_prompts
from nsd.targets.masks import build, spans
from nsd.targets.support import require_masks, require_supported, self_test
from nsd.targets.taps import Reader, layer_list, stack

NO_LIMIT = 2**31 - 1
"""Context of a model whose configuration states none."""


class HfTarget(Target):
    """A loaded model with its tokenizer. The model is put into evaluation mode; nothing else of it changes.

    Raises ModelError for a model whose state cannot be rolled back, with the reason.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        name: str | None = None,
        dtype_reason: str = "as loaded",
        check: bool = True,
    ) -> None:
        config = model.config
        text = config.get_text_config(decoder=True)
        self.name = name or getattr(config, "_name_or_path", "") or config.model_type
        self.require_supported(model)
        self.additive = require_masks(config, self.name) == "eager"
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.hidden, self.layers, self.context = text.hidden_size, text.num_hidden_layers, _context(text)
        self.device, self.dtype, self.dtype_reason = model.device, model.dtype, dtype_reason
        self.eos = _eos(model, tokenizer)
        self.default_temperature = _temperature(model)
        self.spans = spans(text)
        self.cache_name = "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"
        self.vocab = text.vocab_size
        self.absent: Tensor | None = None
        found = layer_list(model, self.layers)
        self.reader = Reader(model, _head(model), None if found is None else found[1])
        if check:
            self.vocab = self_test(self)
        self.absent = _absent(tokenizer, self.vocab, self.device)

    def require_supported(self, model: Any) -> None:
        """Refuse a model whose state this target cannot roll back. Raises ModelError."""
        require_supported(model.config, type(model), self.name)

    def open(self, prompts: Sequence[Sequence[int]], room: int, taps: Sequence[int] = ()) -> tuple[HfSession, Scores]:
        """Prefill a ragged batch; see `Target.open`."""
        check_prompts(prompts, self.context)
        self.reader.check(taps, self.name)
        session = self.new_session(len(prompts), max(map(len, prompts)) + room + SLACK, tuple(taps))
        return session, session.prefill(prompts)

    def reference(self) -> Any | None:
        """The model itself."""
        return self.model

    def embed(self, ids: Sequence[int] | Tensor) -> Tensor:
        """Embeddings of ids [M], without the scaling that some models add: [M, hidden]."""
        at = torch.as_tensor(ids, dtype=torch.long, device=self.device)
        return nn.functional.embedding(at, self.model.get_input_embeddings().weight)

    def logits(self, normed: Tensor) -> Tensor:
        """The head on states after the final norm: [n, hidden] -> [n, V]."""
        result: Tensor = self._own_head()(normed)
        return result

    def head_rows(self, ids: Tensor) -> Tensor:
        """Rows ids [n] of the head: [n, hidden]."""
        weight: Tensor = self._own_head().weight
        return weight.detach()[ids]

    def _own_head(self) -> Any:
        head = _head(self.model)
        if head is None:
            raise ModelError(f"{self.name} lends no head, wanted a target with one; take another drafter")
        return head

    def new_session(self, batch: int, capacity: int, taps: tuple[int, ...]) -> HfSession:
        """An empty session."""
        return HfSession(self, RaggedCache(capacity), batch, taps, inference=True)


class HfSession(TargetSession):
    """The cache of one batch on a transformers model.

    inference runs passes in torch's inference mode, which spares a fifth of the host's work for each layer; what leaves
    the session is copied out of it, so that callers may do anything with it.
    """

    def __init__(
        self, target: HfTarget, cache: RaggedCache, batch: int, taps: tuple[int, ...], inference: bool = False
    ) -> None:
        self.target, self.cache, self.taps, self.inference = target, cache, taps, inference
        self.ledger = Ledger(batch)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Scores:
        """The first pass: logits at each prompt's end only, taps at all positions. There is nothing to roll back."""
        scores = self._run(prompts, ends_only=True)
        self.ledger.settle()
        return scores

    def score(self, inputs: Sequence[Sequence[int]]) -> Scores:
        """One pass over new tokens; see `TargetSession.score`."""
        return self._run(inputs, ends_only=False)

    def keep(self, counts: Sequence[int]) -> None:
        """Roll back to the first counts[b] inputs since the last keep, by lengths alone."""
        self.ledger.keep(counts)

    def retain(self, requests: Sequence[int]) -> None:
        """Go on with these requests only."""
        self.ledger.retain(requests)
        self.cache.retain(requests, self.target.device)

    def _run(self, inputs: Sequence[Sequence[int]], ends_only: bool) -> Scores:
        if not self.inference:
            with torch.no_grad():
                return self._pass(inputs, ends_only)
        with torch.inference_mode():
            inside = self._pass(inputs, ends_only)
        return Scores(inside.logits.clone(), None if inside.taps is None else inside.taps.clone())

    def _pass(self, inputs: Sequence[Sequence[int]], ends_only: bool) -> Scores:
        target, device = self.target, self.target.device
        start = list(self.ledger.lengths)
        counts = self.ledger.feed(inputs, target.vocab)
        self.positions, self.calls = self.ledger.positions, self.ledger.calls
        width = max(counts)
        self.cache.begin(start, width, device)
        ids = torch.tensor([[*x, *[0] * (width - len(x))] for x in inputs], device=device)
        positions, mask = self._placement(start, width)
        real = _real_rows(counts, width, device)
        wanted = _last_rows(counts, width, device) if ends_only else real
        with target.reader.reading(self.taps, wanted) as kept:
            output = target.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions.clamp(max=target.context - 1),
                use_cache=True,
                **{target.cache_name: self.cache},
            )
        return Scores(_picked(output.logits, wanted, ids.shape), stack(kept, self.taps, real))

    def _placement(self, start: list[int], width: int) -> tuple[Tensor, Any]:
        """Positions [1 or B, n] and masks; None leaves the mask to the model, right where rows share a start."""
        offset = self.cache.plan.offset
        if offset is not None:
            return torch.arange(offset, offset + width, device=self.target.device).unsqueeze(0), None
        assert self.cache.plan.slots is not None
        positions = self.cache.plan.slots
        additive = self.target.dtype if self.target.additive else None
        return positions, build(self.target.spans, positions, self.cache.plan.extent, additive)


def _real_rows(counts: list[int], width: int, device: torch.device) -> Tensor | None:
    """Indices of the inputs among the padded B * width rows; None where nothing is padded."""
    if min(counts) == width:
        return None
    rows = [b * width + i for b, n in enumerate(counts) for i in range(n)]
    return torch.tensor(rows, device=device)


def _last_rows(counts: list[int], width: int, device: torch.device) -> Tensor | None:
    if width == 1:
        return None
    return torch.tensor([b * width + n - 1 for b, n in enumerate(counts)], device=device)


def _picked(logits: Tensor, wanted: Tensor | None, shape: torch.Size) -> Tensor:
    """Logits [M, V] of the wanted rows, whether the head was a module that the hook reached or not."""
    flat = logits.flatten(0, 1)
    if wanted is None or logits.shape[:2] != shape or len(wanted) == len(flat):
        return flat
    return flat.index_select(0, wanted.to(flat.device))


def _head(model: Any) -> nn.Module | None:
    head = model.get_output_embeddings()
    return head if isinstance(head, nn.Module) else None


def _context(config: Any) -> int:
    for field in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = getattr(config, field, None)
        if isinstance(value, int):
            return value
    return NO_LIMIT


def _eos(model: Any, tokenizer: Tokenizer) -> frozenset[int]:
    """Every id that the generation config, the config or the tokenizer calls the end of a text."""
    found: set[int] = set()
    for source in (getattr(model, "generation_config", None), model.config, tokenizer):
        value = getattr(source, "eos_token_id", None)
        if value is not None:
            found.update([value] if isinstance(value, int) else value)
    return frozenset(found)


def _temperature(model: Any) -> float:
    value = getattr(getattr(model, "generation_config", None), "temperature", None)
    return 1.0 if value is None else float(value)


def _absent(tokenizer: Tokenizer, vocab: int, device: torch.device) -> Tensor | None:
    absent = torch.tensor([tokenizer.token_text(i) is None for i in range(vocab)])
    if absent.all():
        raise ModelError(
            f"the tokenizer has no entry for any of the model's {vocab} ids; load the model's own tokenizer"
        )
    return absent.to(device) if absent.any() else None
