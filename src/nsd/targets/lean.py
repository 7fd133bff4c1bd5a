"""The lean target: Llama-like checkpoints on this project's own decoder, fused, with a preallocated cache.

Same laws as through transformers, to rounding, at a fraction of the host's work per layer; weights may be int8 or int4
(weight-only) or int8 with int8 activations (w8a8), which transformers' path has not. What its sessions do is shared by
every target built on `nsd.nn`.

Source: transformers src/transformers/models/{llama,mistral,ministral3,qwen2,qwen3}/modeling_*.py (which projections
have biases, which heads norms; tensor names).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsd.errors import ModelError
from nsd.nn import (
    Decoder,
    DecoderConfig,
    Dense,
    LayerWeights,
    Projection,
    Shapes,
    decoder_config,
    layer_shapes,
    layer_weights,
    rms_norm,
)
from nsd.nn.calibrate import calibrated, random_ids
from nsd.nn.checkpoint import open_checkpoint, read_json
from nsd.nn.onednn import W8A8, Table, packed
from nsd.nn.quantised import FORMS
from nsd.targets.base import FINAL_NORM, Scores, Target, TargetSession, Tokenizer
from nsd.targets.ledger import Ledger, check_prompts

KINDS: dict[str, dict[str, bool]] = {
    "llama": {},
    "mistral": {},
    "ministral3": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
}
"""Model types that run here, with what their configuration does not say of them."""

NO_LIMIT = 2**31 - 1


class LeanTarget(Target):
    """A dense decoder with its two ends: embedding and head are maps whose rows belong to ids, one map if tied.

    weights is the storage form of the projections ("dense", "int8", "int4", "w8a8"); folder is where transformers finds
    the same model, None for one made in memory.
    """

    def __init__(
        self,
        decoder: Decoder,
        embedding: Projection,
        head: Projection,
        tokenizer: Tokenizer,
        name: str,
        vocab: int,
        context: int = NO_LIMIT,
        eos: frozenset[int] = frozenset(),
        default_temperature: float = 1.0,
        dtype_reason: str = "as loaded",
        weights: str = "dense",
        folder: Path | None = None,
    ) -> None:
        self.decoder, self.tokenizer, self.name, self.folder = decoder, tokenizer, name, folder
        self.ends = embedding, head
        self.vocab, self.hidden, self.layers = vocab, decoder.config.hidden, decoder.config.layers
        self.context, self.eos, self.default_temperature = context, eos, default_temperature
        self.device, self.dtype, self.dtype_reason, self.weights = decoder.device, decoder.dtype, dtype_reason, weights
        self.absent = absent_ids(tokenizer, vocab, self.device, name)

    @property
    def dtype_name(self) -> str:
        """The number format as it is asked for: int8, int4 and w8a8 name their weights."""
        return super().dtype_name if self.weights == "dense" else self.weights

    @property
    def parameters(self) -> int:
        """How many numbers the model holds; tied ends count once."""
        embedding, head = self.ends
        return self.decoder.parameters + embedding.parameters + (0 if head is embedding else head.parameters)

    def open(self, prompts: Sequence[Sequence[int]], room: int, taps: Sequence[int] = ()) -> tuple[LeanSession, Scores]:
        """Prefill a ragged batch; see `Target.open`."""
        check_prompts(prompts, self.context)
        wrong = [tap for tap in taps if tap != FINAL_NORM and not 0 <= tap <= self.layers]
        if wrong:
            raise ModelError(f"got hidden-state tap {wrong[0]}, {self.name} has taps 0..{self.layers} and {FINAL_NORM}")
        session = LeanSession(self, len(prompts), max(map(len, prompts)) + room, tuple(taps))
        return session, session.prefill(prompts)

    def embed(self, ids: Sequence[int] | Tensor) -> Tensor:
        """Embeddings of ids [M], all requests one after another: [M, hidden]."""
        return self.ends[0].rows(torch.as_tensor(ids, dtype=torch.long, device=self.device))

    def logits(self, normed: Tensor) -> Tensor:
        """The head on states after the final norm: [n, hidden] -> [n, V]."""
        return self.ends[1](normed)

    def head_rows(self, ids: Tensor) -> Tensor:
        """Rows ids [n] of the head: [n, hidden]."""
        return self.ends[1].rows(ids)

    def without(self, skip: Sequence[int]) -> LeanTarget:
        """The same model without some of its layers; weights are shared, caches are its own."""
        d = self.decoder
        kept = [layer for i, layer in enumerate(d.layers) if i not in set(skip)]
        shorter = Decoder(replace(d.config, layers=len(kept)), kept, d.norm, d.dtype)
        name = f"{self.name} without {self.layers - len(kept)} of {self.layers} layers"
        embedding, head = self.ends
        return LeanTarget(
            shorter, embedding, head, self.tokenizer, name, self.vocab, self.context, self.eos,
            self.default_temperature, self.dtype_reason, self.weights,
        )  # fmt: skip

    def reference(self) -> Any | None:
        """The same checkpoint as a transformers model, read anew at every call; None for a model made in memory."""
        if self.folder is None:
            return None
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=self.dtype, local_files_only=True)
        return model.to(self.device).eval()


class LeanSession(TargetSession):
    """The cache of one batch. A drafter may read it too, and never adds to it."""

    def __init__(self, target: LeanTarget, batch: int, room: int, taps: tuple[int, ...]) -> None:
        self.target, self.taps = target, taps
        self.inner = [tap for tap in taps if tap != FINAL_NORM]
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

    def _run(self, inputs: Sequence[Sequence[int]], ends_only: bool) -> Scores:
        counts = self.ledger.feed(inputs, self.target.vocab)
        self.positions, self.calls = self.ledger.positions, self.ledger.calls
        rows = self.cache.rows(counts)  # outside of inference mode: what grows here is written to by anybody
        with torch.inference_mode():
            logits, tapped = self._pass([token for ids in inputs for token in ids], rows, counts if ends_only else None)
        self.cache.append(rows)
        # What leaves is copied out of inference mode, so that callers may do anything with it.
        wide = logits.clone() if logits.dtype in (torch.float32, torch.float64) else logits.float()
        return Scores(wide, None if tapped is None else tapped.clone())

    def _pass(self, ids: Sequence[int], rows: Any, ends: Sequence[int] | None) -> tuple[Tensor, Tensor | None]:
        target = self.target
        stream, tapped = target.decoder.run(target.embed(ids), rows, self.cache, self.inner)
        if ends is None:
            normed = target.decoder.normed(stream)
            return target.logits(normed), self._in_order(tapped, normed)
        last = torch.tensor(ends, device=target.device).cumsum(0) - 1
        if FINAL_NORM not in self.taps:
            return target.logits(target.decoder.normed(stream[last])), tapped
        normed = target.decoder.normed(stream)
        return target.logits(normed[last]), self._in_order(tapped, normed)

    def _in_order(self, tapped: Tensor | None, normed: Tensor) -> Tensor | None:
        """The taps as they were asked for, [M, n, hidden]: those of the layers are there, the final norm joins them."""
        if FINAL_NORM not in self.taps:
            return tapped
        layers = iter([] if tapped is None else tapped.unbind(1))
        return torch.stack([normed if tap == FINAL_NORM else next(layers) for tap in self.taps], 1)


def shape_of(config: Mapping[str, Any], where: str) -> DecoderConfig:
    """The decoder of a complete configuration. Raises ModelError for a model type or feature it does not have."""
    kind = config.get("model_type")
    if kind not in KINDS:
        raise ModelError(
            f"{where} is of type {kind}, the lean engine runs {', '.join(KINDS)}; take engine transformers"
        )
    if config.get("quantization_config"):
        raise ModelError(f"{where} is stored quantised, the lean engine reads float weights; take engine transformers")
    return decoder_config(config, where, **KINDS[kind])


def lean_target(
    folder: Path,
    config: Mapping[str, Any],
    tokenizer: Tokenizer,
    name: str,
    dtype: torch.dtype,
    weights: str,
    device: torch.device,
    reason: str,
) -> LeanTarget:
    """Load a folder of safetensors; config is complete, defaults filled in. Raises ModelError."""
    shape, vocab, tied = shape_of(config, name), int(config["vocab_size"]), bool(config.get("tie_word_embeddings"))
    checkpoint = open_checkpoint(folder, config)
    stored = dtype if weights == "dense" else torch.float32
    ignored = ["lm_head.weight"] * tied + [f"model.layers.{i}.self_attn.rotary_emb." for i in range(shape.layers)]
    tensors = checkpoint.load(tensor_shapes(shape, vocab, tied), device, stored, ignored)
    decoder, ends = assemble(shape, tensors, dtype, weights, tied)
    generation = folder / "generation_config.json"
    settings = read_json(generation, "generation settings") if generation.is_file() else {}
    own = getattr(tokenizer, "eos_token_id", None)
    return LeanTarget(
        decoder, *ends, tokenizer, name, vocab,
        context=config.get("max_position_embeddings") or NO_LIMIT,
        eos=ids_of(settings.get("eos_token_id")) | ids_of(config.get("eos_token_id")) | ids_of(own),
        default_temperature=_temperature(settings),
        dtype_reason=reason, weights=weights, folder=folder,
    )  # fmt: skip


def assemble(
    shape: DecoderConfig, tensors: dict[str, Tensor], dtype: torch.dtype, weights: str, tied: bool
) -> tuple[Decoder, tuple[Projection, Projection]]:
    """Decoder and ends from tensors named as transformers names them, which are used up on the way.

    int8 keeps one table for a tied embedding and head. int4 codes cannot be looked up by row and rounding the ends to
    four bits costs more of the law than all layers together, so there the ends are int8. A head that is laid out for
    its kernel (bfloat16, w8a8) has a plain table beside it, for the embedding it is tied to and for drafters: the
    vocabulary times hidden once more, in bytes or pairs of them.
    """
    table = Dense(tensors["model.embed_tokens.weight"])
    own = table if tied else Dense(tensors["lm_head.weight"])
    norm = tensors["model.norm.weight"]
    layers = _layers(shape, tensors)
    if weights == "w8a8":
        finished, stream = calibrated(shape, layers, table.rows(random_ids(len(table.weight))), dtype)
        peaks = rms_norm(stream, norm, shape.eps).abs().amax(0)
        embedding: Projection = FORMS["int8"](table)
        head: Projection = Table(embedding if tied else FORMS["int8"](own), W8A8.of(own, peaks))
    elif weights in FORMS:
        form, ends_form = FORMS[weights], FORMS["int8"]
        finished = [layer.mapped(form, dtype) for layer in layers]
        embedding = ends_form(table)
        head = embedding if tied else ends_form(own)
    else:
        finished = list(layers)
        embedding, product = table, packed(own)
        head = own if product is own else Table(own, product)
    return Decoder(shape, finished, norm.to(dtype), dtype), (head if tied else embedding, head)


def _layers(shape: DecoderConfig, tensors: dict[str, Tensor]) -> Iterator[LayerWeights]:
    """The layers one by one; their tensors are taken out."""
    for i in range(shape.layers):
        prefix = f"model.layers.{i}."
        layer = layer_weights(shape, tensors, prefix)
        for key in layer_shapes(shape, prefix):
            del tensors[key]
        yield layer


def tensor_shapes(shape: DecoderConfig, vocab: int, tied: bool) -> Shapes:
    """Names and shapes of all tensors of a checkpoint."""
    wanted: Shapes = {"model.embed_tokens.weight": (vocab, shape.hidden), "model.norm.weight": (shape.hidden,)}
    if not tied:
        wanted["lm_head.weight"] = (vocab, shape.hidden)
    for i in range(shape.layers):
        wanted |= layer_shapes(shape, f"model.layers.{i}.")
    return wanted


def _temperature(settings: Mapping[str, Any]) -> float:
    value = settings.get("temperature")
    return 1.0 if value is None else float(value)


def ids_of(value: int | Sequence[int] | None) -> frozenset[int]:
    """End-of-text ids, however a config writes them."""
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else value)


def absent_ids(tokenizer: Tokenizer, vocab: int, device: torch.device, name: str) -> Tensor | None:
    """Which ids have no tokenizer entry [V] bool; None if all have one. Raises ModelError if none has."""
    absent = torch.tensor([tokenizer.token_text(i) is None for i in range(vocab)])
    if absent.all():
        raise ModelError(f"the tokenizer of {name} has no entry for any of its {vocab} ids; fetch it again")
    return absent.to(device) if absent.any() else None
