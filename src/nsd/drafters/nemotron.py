"""Nemotron's linear self-speculation: the target fills in its own blanks.

A block is [anchor, mask, ..., mask]. One bidirectional pass over it, behind the target's cache, gives logits at every
mask; those at slot i are for the token at slot i itself. All slots are drawn independently given the prefix, so q is
the plain product of the returned rows. The cache belongs to the target: a draft reads it and leaves it as it was.

A block of 32 tokens is 31 proposals, and the bonus. Shorter blocks have fewer masks. An optional low-rank addition to
the output projections (`linear_spec_lora`) is used by drafts and by nothing else. Confidence thresholds, which would
make the draws depend on each other, are left out: this is the mechanism at threshold 0.

Native standard speculation draws y from p and keeps a draft equal to it: rule `sample-and-match`. Rule `sd` is the
ratio test with the same two passes; it accepts more.

Source: nvidia/Nemotron-Labs-Diffusion-8B modeling_nemotron_labs_diffusion.py, linear_spec_lora/adapter_config.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsd.drafters.base import Ask, Drafter, DraftSession
from nsd.drafters.drawing import Drawing, Pen
from nsd.errors import ConfigError, ModelError, PairMismatch
from nsd.nn import Decoder, DecoderConfig, LowRank, Shapes, Sight
from nsd.nn.checkpoint import open_checkpoint, read_json, required
from nsd.targets.base import Target, TargetSession
from nsd.targets.lean import LeanSession
from nsd.targets.nemotron import NemotronConfig, NemotronTarget
from nsd.targets.recognise import is_nemotron
from nsd.verification import Draft, DraftLaw

SHORTEST, LONGEST = 8, 32
"""Block lengths the mechanism is meant for; the config's block_size may lower the longest."""

LORA_FOLDER = "linear_spec_lora"
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Where the low-rank addition lies beside the weights, and its two files."""
LORA_SCALE = 4.0
"""What the released addition's product is multiplied by: alpha is so many times the rank."""

recognises = is_nemotron


class NemotronDraftSession(DraftSession):
    """Drafts beside a target session, from its cache. It has no state of its own."""

    def __init__(self, drafter: NemotronDrafter, session: LeanSession) -> None:
        self._drafter, self._session = drafter, session

    @torch.no_grad()
    def propose(self, asks: Sequence[Ask], u: Tensor) -> Draft:
        """One pass over [anchor, k masks] of every request that wants a draft: u [B, max k]."""
        drafter, cache = self._drafter, self._session.cache
        target, lengths = drafter.target, [ask.k for ask in asks]
        most = max(lengths, default=0)
        if most > drafter.max_k:
            name, limit = drafter.name, drafter.max_k
            raise ConfigError(f"k is {most}, wanted 0..{limit}: {name} drafts {limit} tokens a block; try -k {limit}")
        assert all(
            held == len(ask.prompt) + len(ask.output) - 1
            for held, ask in zip(cache.lengths, asks, strict=True)
            if ask.k
        ), "the cache holds all committed tokens but the anchor"
        drawing = Drawing(drafter.pen, asks, lengths, u)
        if most:
            counts = [k + 1 if k else 0 for k in lengths]
            ids = [token for ask in asks if ask.k for token in [ask.anchor, *[target.config.mask] * ask.k]]
            rows = cache.rows(counts, Sight.BLOCK)
            stream, _ = drafter.decoder.run(target.embed(ids), rows, cache, extra=drafter.lora)
            self.positions += len(ids)
            drawing.at_once(target.logits(drafter.decoder.normed(stream[rows.place > 0])))
        return drawing.draft()

    def commit(self, tokens: Sequence[Sequence[int]], taps: Tensor | None) -> None:
        """Nothing to learn: the target's cache has it."""

    def retain(self, requests: Sequence[int]) -> None:
        """Nothing to drop: the target's session drops its rows."""


class NemotronDrafter(Drafter):
    """The target as its own drafter; additions [layers] are the low-rank parts of its output projections, if any.

    block_length counts the anchor: block_length - 1 proposals are the default.
    """

    name = "nemotron"
    law = DraftLaw.SAMPLED
    max_k: int

    def __init__(
        self, target: NemotronTarget, block_length: int | None = None, additions: Sequence[LowRank] | None = None
    ) -> None:
        config = target.config
        longest = longest_draft(config, target.name)
        length = block_length_of(longest + 1 if block_length is None else block_length, config.block)
        self.target, self.default_k, self.max_k = target, length - 1, longest
        self.lora = additions is not None
        layers = target.decoder.layers
        if additions is not None:
            layers = tuple(layer.with_extra(extra) for layer, extra in zip(layers, additions, strict=True))
        self.decoder = Decoder(config.decoder, layers, target.decoder.norm, target.dtype)
        self.pen = Pen(False, target.vocab, target.absent, target.device)

    def open(self, prompts: Sequence[Sequence[int]], taps: Tensor | None, room: int) -> DraftSession:
        """Refused: there is nothing to draft from without the target's cache."""
        raise ConfigError(f"{self.name} drafts from the target's own cache, got none; call open_beside(session, ...)")

    def open_beside(
        self, session: TargetSession, prompts: Sequence[Sequence[int]], taps: Tensor | None, room: int
    ) -> NemotronDraftSession:
        """Start drafting from the cache of this target session."""
        if not isinstance(session, LeanSession) or session.target is not self.target:
            raise ConfigError(f"{self.name} drafts for {self.target.name} alone, got a session of another target")
        return NemotronDraftSession(self, session)

    def block_unit(self, k: int) -> int:
        """The block length for k proposals: the anchor counts."""
        return k + 1

    @property
    def parameters(self) -> int:
        """Numbers that a draft reads: the target's own, and the low-rank additions."""
        additions = [layer.o_extra for layer in self.decoder.layers if layer.o_extra is not None]
        return self.target.parameters + sum(extra.down.numel() + extra.up.numel() for extra in additions)

    def describe(self) -> dict[str, object]:
        """The common facts, the block, the mask id, and what belongs to the draft alone."""
        return {
            **super().describe(),
            "mechanism": "Nemotron linear self-speculation",
            "block_length": self.block_unit(self.default_k),
            "max_block_length": self.block_unit(self.max_k),
            "target_layers": list(self.taps),
            "mask_id": self.target.config.mask,
            "mask_id_excluded": not self.target.keep_mask_id,
            "parameters": self.parameters,
            "lora_parameters": self.parameters - self.target.parameters,
            "cache": "the target's, read only",
        }


def longest_draft(config: NemotronConfig, name: str) -> int:
    """Proposals of a block at most. Raises ModelError for a checkpoint that cannot draft."""
    if not config.bidirectional:
        raise ModelError(
            f"{name} was trained for another paradigm than bidirectional, so it cannot draft a block in one pass; "
            "take --drafter ngram"
        )
    return min(LONGEST, config.block) - 1


def load(
    target: Target, source: Any = None, block_length: int | None = None, lora: bool | None = None
) -> NemotronDrafter:
    """The drafter inside a loaded Nemotron target; source is the target's own folder or hub name (None = that one), or
    the folder of another low-rank addition.

    lora None uses linear_spec_lora where the target's folder has it, True wants it, False leaves it out. Raises
    PairMismatch for any other target.
    """
    source = target.name if source is None else str(source)
    addition = (Path(source) / ADAPTER).is_file()
    if isinstance(target, NemotronTarget):
        if _same(source, target):
            return NemotronDrafter(target, block_length, _additions(target, lora))
        if addition and lora is False:
            raise ConfigError(f"got lora=False and the addition in {source}, wanted one of the two; leave lora out")
        if addition:
            return NemotronDrafter(target, block_length, _additions_in(Path(source), target))
    if addition:
        raise PairMismatch(f"{source} adds to Nemotron models, got {target.name}; name its own model with --model")
    raise PairMismatch(
        f"{source} drafts for itself only, got {target.name} as the target; try --model {source} --drafter auto"
    )


def block_length_of(length: int, longest: int) -> int:
    """A block length that this mechanism takes, for a checkpoint trained on blocks of `longest` tokens."""
    longest = min(LONGEST, longest)
    shortest = min(SHORTEST, longest)
    if not shortest <= length <= longest:
        raise ConfigError(
            f"block length is {length}, wanted {shortest}..{longest} (anchor and masks); try --block-length {longest}"
        )
    return length


def lora_scale(config: Mapping[str, Any], where: str) -> float:
    """What the low-rank product is multiplied by. Raises ModelError for additions of any other kind or place."""
    modules = config.get("target_modules")
    named = {modules} if isinstance(modules, str) else set(modules or ())
    if named != {"o_proj"}:
        raise ModelError(
            f"{where} adds to {', '.join(sorted(named)) or 'nothing'}, wanted o_proj alone; leave this addition out"
        )
    other = [key for key in _OTHER_LORA if config.get(key) not in (None, False, [], {}, "none")]
    if other:
        raise ModelError(f"{where} sets {', '.join(other)}, wanted a plain low-rank addition; leave this one out")
    rank, alpha = required(config, "r", where), required(config, "lora_alpha", where)
    if rank < 1:
        raise ModelError(f"{where}: rank r is {rank}, wanted at least 1; fetch the folder again")
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


_OTHER_LORA = ("use_dora", "bias", "rank_pattern", "alpha_pattern", "layers_to_transform", "modules_to_save")


def lora_shapes(config: DecoderConfig, rank: int) -> Shapes:
    """Names and shapes of the tensors of a low-rank addition to every output projection."""
    shapes: Shapes = {}
    for layer in range(config.layers):
        name = f"base_model.model.encoder.layers.{layer}.self_attn.o_proj"
        shapes[f"{name}.lora_A.weight"] = (rank, config.heads * config.head_dim)
        shapes[f"{name}.lora_B.weight"] = (config.hidden, rank)
    return shapes


def _additions(target: NemotronTarget, wanted: bool | None) -> list[LowRank] | None:
    """The low-rank additions beside the target's weights, layer by layer; None without."""
    folder = None if target.folder is None else target.folder / LORA_FOLDER
    if wanted is False or (wanted is None and (folder is None or not folder.is_dir())):
        return None
    if folder is None or not folder.is_dir():
        raise ModelError(f"{target.name} has no {LORA_FOLDER} folder, wanted one; leave lora out to draft without")
    return _additions_in(folder, target)


def _additions_in(folder: Path, target: NemotronTarget) -> list[LowRank]:
    path = folder / ADAPTER
    settings = read_json(path, "the settings of a low-rank addition")
    scale, config = lora_scale(settings, str(path)), target.config.decoder
    shapes = lora_shapes(config, settings["r"])
    tensors = open_checkpoint(folder, settings).load(shapes, target.device, target.dtype)
    pairs = list(tensors[name] for name in shapes)
    return [LowRank(down, up, scale) for down, up in zip(pairs[::2], pairs[1::2], strict=True)]


def _same(source: str, target: NemotronTarget) -> bool:
    """Whether source names the checkpoint that the target was loaded from."""
    return source == target.name or (target.folder is not None and Path(source).resolve() == target.folder.resolve())
