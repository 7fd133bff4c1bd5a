"""Nemotron-Labs-Diffusion as a target: one dense decoder that reads causally here and drafts in `drafters/nemotron.py`.

A pre-norm decoder with grouped-query attention, YaRN positions, the Llama-4 query scale, an untied head, no biases. The
mask id is a blank to fill in, never text: it counts as an absent id, so it has probability 0 in every law made from
this target, in plain decoding too, unless it is kept on purpose.

Source: nvidia/Nemotron-Labs-Diffusion-8B modeling_nemotron_labs_diffusion.py, configuration_nemotron_labs_diffusion.py
(tensor names, config keys, causal reading).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nsd.errors import ModelError
from nsd.nn import Decoder, DecoderConfig, Shapes, decoder_config, layer_shapes, layer_weights
from nsd.nn.checkpoint import Checkpoint, open_checkpoint, read_json, required
from nsd.targets.base import FINAL_NORM, Scores, Target, TargetSession, Tokenizer
from nsd.targets.dtypes import choose_device, choose_dtype
from nsd.targets.ledger import Ledger, check_prompts
from nsd.targets.recognise import is_nemotron

recognises = is_nemotron


@dataclass(frozen=True, slots=True)
class NemotronConfig:
    """A parsed config.json: vocab ids, of which mask is the blank; block tokens that a draft was trained on.

    The block counts its anchor. bidirectional is False for training stages whose block cannot be drafted in one pass;
    context is the longest sequence.
    """

    decoder: DecoderConfig
    vocab: int
    mask: int
    block: int
    bidirectional: bool
    context: int
    eos: frozenset[int]

    @classmethod
    def of(cls, config: Mapping[str, Any], where: str) -> NemotronConfig:
        """Read and check. Raises ModelError for missing keys, a mask id outside the vocabulary, a block of one."""
        vocab, mask, block = (required(config, key, where) for key in ("vocab_size", "mask_token_id", "block_size"))
        if not 0 <= mask < vocab:
            raise ModelError(f"{where}: mask_token_id is {mask}, wanted an id in 0..{vocab - 1}; check the config")
        if block < 2:
            raise ModelError(f"{where}: block_size is {block}, wanted an anchor and at least one mask (>= 2)")
        if config.get("tie_word_embeddings"):
            raise ModelError(f"{where}: tied embeddings, wanted a head of its own (diffusion_head); not supported")
        return cls(
            decoder=decoder_config(config, where),
            vocab=vocab,
            mask=mask,
            block=block,
            bidirectional=config.get("dlm_paradigm", "bidirectional") == "bidirectional",
            context=config.get("max_position_embeddings") or 2**31 - 1,
            eos=_ids(config.get("eos_token_id")),
        )

    @property
    def shapes(self) -> Shapes:
        """Names and shapes of all tensors of the checkpoint."""
        ends: Shapes = {
            "encoder.embed_tokens.weight": (self.vocab, self.decoder.hidden),
            "encoder.norm.weight": (self.decoder.hidden,),
            "diffusion_head.weight": (self.vocab, self.decoder.hidden),
        }
        for layer in range(self.decoder.layers):
            ends |= layer_shapes(self.decoder, f"encoder.layers.{layer}.")
        return ends


class NemotronTarget(Target):
    """The loaded model. decoder, embedding [V, hidden] and head [V, hidden] are what its drafter uses too.

    keep_mask_id leaves the mask id among the ids that can be drawn, as the released generation code does. folder is
    where the checkpoint lies, None for one made in memory.
    """

    def __init__(
        self,
        config: NemotronConfig,
        tensors: Mapping[str, Tensor],
        tokenizer: Tokenizer,
        name: str,
        dtype_reason: str = "as loaded",
        keep_mask_id: bool = False,
        folder: Path | None = None,
    ) -> None:
        self.config, self.tokenizer, self.name, self.folder = config, tokenizer, name, folder
        layers = [layer_weights(config.decoder, tensors, f"encoder.layers.{i}.") for i in range(config.decoder.layers)]
        self.embedding, self.head = tensors["encoder.embed_tokens.weight"], tensors["diffusion_head.weight"]
        self.device, self.dtype, self.dtype_reason = self.embedding.device, self.embedding.dtype, dtype_reason
        self.decoder = Decoder(config.decoder, layers, tensors["encoder.norm.weight"], self.dtype)
        self.vocab, self.hidden, self.layers = config.vocab, config.decoder.hidden, config.decoder.layers
        self.context, self.default_temperature = config.context, 1.0
        own = getattr(tokenizer, "eos_token_id", None)
        self.eos = config.eos | _ids(own)
        self.keep_mask_id = keep_mask_id
        self.absent = self._absent()

    @property
    def parameters(self) -> int:
        """How many numbers the model holds."""
        return self.decoder.parameters + self.embedding.numel() + self.head.numel()

    def open(
        self, prompts: Sequence[Sequence[int]], room: int, taps: Sequence[int] = ()
    ) -> tuple[NemotronSession, Scores]:
        """Prefill a ragged batch; see `Target.open`."""
        check_prompts(prompts, self.context)
        wrong = [tap for tap in taps if tap != FINAL_NORM and not 0 <= tap <= self.layers]
        if wrong:
            raise ModelError(f"got hidden-state tap {wrong[0]}, {self.name} has taps 0..{self.layers} and {FINAL_NORM}")
        session = NemotronSession(self, len(prompts), max(map(len, prompts)) + room, tuple(taps))
        return session, session.prefill(prompts)

    def embed(self, ids: Sequence[int]) -> Tensor:
        """Embeddings of ids, all requests one after another: [M, hidden]."""
        return self.embedding[torch.tensor(ids, dtype=torch.long, device=self.device)]

    def logits(self, normed: Tensor) -> Tensor:
        """The head on states after the final norm: [n, hidden] -> [n, V]."""
        return functional.linear(normed, self.head)

    def _absent(self) -> Tensor | None:
        absent = torch.tensor([self.tokenizer.token_text(i) is None for i in range(self.vocab)])
        if absent.all():
            raise ModelError(
                f"the tokenizer of {self.name} has no entry for any of its {self.vocab} ids; fetch it again"
            )
        absent[self.config.mask] = not self.keep_mask_id
        return absent.to(self.device) if absent.any() else None


class NemotronSession(TargetSession):
    """The cache of one batch. Its drafter reads it too, and never adds to it."""

    def __init__(self, target: NemotronTarget, batch: int, room: int, taps: tuple[int, ...]) -> None:
        self.target, self.taps = target, taps
        self.cache = target.decoder.cache(batch, room)
        self.ledger = Ledger(batch)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Scores:
        """The first pass: logits at each prompt's end only, taps at all positions. There is nothing to roll back."""
        scores = self._run(prompts, ends_only=True)
        self.ledger.settle()
        self.cache.keep_all()
        return scores

    def score(self, inputs: Sequence[Sequence[int]]) -> Scores:
        """One causal pass over new tokens; see `TargetSession.score`."""
        return self._run(inputs, ends_only=False)

    def keep(self, counts: Sequence[int]) -> None:
        """Roll back to the first counts[b] inputs since the last keep, by lengths alone."""
        self.ledger.keep(counts)
        self.cache.keep(counts)

    def retain(self, requests: Sequence[int]) -> None:
        """Go on with these requests only."""
        self.ledger.retain(requests)
        self.cache.retain(requests)

    @torch.no_grad()
    def _run(self, inputs: Sequence[Sequence[int]], ends_only: bool) -> Scores:
        target = self.target
        counts = self.ledger.feed(inputs, target.vocab)
        self.positions, self.calls = self.ledger.positions, self.ledger.calls
        rows = self.cache.rows(counts)
        inner = [tap for tap in self.taps if tap != FINAL_NORM]
        stream, tapped = target.decoder.run(
            target.embed([token for ids in inputs for token in ids]), rows, self.cache, inner
        )
        self.cache.append(rows)
        normed = target.decoder.normed(stream) if FINAL_NORM in self.taps or not ends_only else None
        if not ends_only:
            assert normed is not None
            return Scores(target.logits(normed), self._in_order(tapped, normed))
        ends = torch.tensor(counts, device=target.device).cumsum(0) - 1
        last = target.decoder.normed(stream[ends]) if normed is None else normed[ends]
        return Scores(target.logits(last), self._in_order(tapped, normed))

    def _in_order(self, tapped: Tensor | None, normed: Tensor | None) -> Tensor | None:
        """The taps as they were asked for, [M, n, hidden]: those of the layers are there, the final norm joins them."""
        if FINAL_NORM not in self.taps:
            return tapped
        assert normed is not None
        layers = iter([] if tapped is None else tapped.unbind(1))
        return torch.stack([normed if tap == FINAL_NORM else next(layers) for tap in self.taps], 1)


def load(
    source: str,
    dtype: str = "auto",
    device: str = "auto",
    revision: str | None = None,
    tokenizer: Tokenizer | None = None,
    keep_mask_id: bool = False,
) -> NemotronTarget:
    """Load a folder or hub name: safetensors and the tokenizer's own files, no code of the checkpoint."""
    checkpoint = open_checkpoint(source, revision=revision)
    config = NemotronConfig.of(checkpoint.config, checkpoint.where)
    where = choose_device(device)
    chosen, reason = choose_dtype(dtype, where)
    if tokenizer is None:
        tokenizer = _tokenizer(checkpoint)
    tensors = checkpoint.load(config.shapes, where, chosen)
    generation = _generation(checkpoint.folder)
    config = replace(config, eos=config.eos | _ids(generation.get("eos_token_id")))
    target = NemotronTarget(config, tensors, tokenizer, source, reason, keep_mask_id, checkpoint.folder)
    target.default_temperature = float(generation.get("temperature") or 1.0)
    return target


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The fast tokenizer beside the weights. AutoTokenizer would ask the config for a class, and that one is code."""
    from transformers import PreTrainedTokenizerFast

    from nsd.targets.tokenizer import HfTokenizer

    try:
        return HfTokenizer(PreTrainedTokenizerFast.from_pretrained(str(checkpoint.folder)))
    except (OSError, ValueError) as problem:
        reason = str(problem).splitlines()[0]
        raise ModelError(f"{checkpoint.folder} has no readable tokenizer ({reason}), wanted tokenizer.json") from None


def _generation(folder: Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    return read_json(path, "generation settings") if path.is_file() else {}


def _ids(value: int | Sequence[int] | None) -> frozenset[int]:
    """End-of-text ids, however a config writes them."""
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else value)
