"""The kinds of drafters that can be trained: how each begins. What is written of each is `nsd.train.export`'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsd.drafters.nemotron import longest_draft
from nsd.errors import ConfigError, ModelError
from nsd.nn import DecoderConfig, decoder_config, layer_shapes
from nsd.targets.base import Target
from nsd.targets.nemotron import NemotronTarget
from nsd.train.blank_net import blank_student, nemotron_of
from nsd.train.block_net import BlockStudent, block_config
from nsd.train.blocks import Blocks
from nsd.train.model_net import ModelStudent, model_config
from nsd.train.mtp_net import QWEN, SPECULATORS, MtpLayer
from nsd.train.net import DraftLayer, draft_config
from nsd.train.plan import Plan
from nsd.train.student import Ends, Student
from nsd.train.warm import Warm, read_warm, require_fit

KINDS = ("eagle3", "dspark", "dflash", "mtp", "nemotron", "draft-model")
BLOCKS = ("dspark", "dflash", "nemotron")
WHOLE = ("mtp", "nemotron", "draft-model")
"""Kinds that draft the whole vocabulary."""
RANKED = ("dspark", "nemotron")
"""Kinds with a rank: of the Markov head, of the low-rank addition."""
LAYERS = {"eagle3": 1, "dspark": 2, "dflash": 2, "mtp": 1, "nemotron": 0, "draft-model": 2}
"""Layers where none are asked for; Nemotron's are the target's own."""
BLOCK = 7
"""Proposals of a block where none are asked for and the target does not say."""

_HYBRID = "qwen3_5"
_OTHER_NORMS = (_HYBRID, "qwen3_next", "gemma")
"""Model types whose norms are stored differently, so that their layers are no start for a plain one."""


def depths_of(kind: str, block: int, shares: Mapping[int, float]) -> dict[int, float]:
    """Shares of time by depths: blocks are always trained whole, a separate model's law knows no depths."""
    if kind in BLOCKS:
        return {block: 1.0}
    return {1: 1.0} if kind == "draft-model" else dict(shares)


def block_of(kind: str, asked: int, target: Target) -> int:
    """Proposals of a block: as asked, or (0) what the target fills in, or as usual; 0 for kinds without blocks."""
    if kind not in BLOCKS:
        return 0
    if kind == "nemotron":
        return asked or longest_draft(nemotron_of(target).config, target.name)
    return asked or BLOCK


def drawn_ids(kind: str, target: Target, ids: Tensor) -> Tensor:
    """The draft vocabulary [n] without ids that the target never says; a separate model keeps its rows for them."""
    return ids if kind == "draft-model" or target.absent is None else ids[~target.absent[ids]]


def mask_id(target: Target, tokens: np.ndarray[Any, Any]) -> int:
    """The id of an empty slot: the target's own blank, one without a tokenizer entry or called mask, the rarest one."""
    if isinstance(target, NemotronTarget):
        return target.config.mask
    if target.absent is not None:
        return int(target.absent.nonzero()[-1])
    named = [i for i in range(target.vocab) if "mask" in (target.tokenizer.token_text(i) or "").lower()]
    counts = np.bincount(tokens, minlength=target.vocab)
    least = [i for i in (named or range(target.vocab)) if i not in target.eos]
    return min(least, key=lambda i: (int(counts[i]), -i))


def target_ends(target: Target) -> tuple[Tensor, Tensor]:
    """Embedding and head [V, H] of a target. Raises ModelError for one that lends none."""
    if isinstance(target, NemotronTarget):
        every = torch.arange(target.vocab)
        return target.embed(every), target.head_rows(every)
    model: Any = getattr(target, "model", None)  # a transformers module, where the target is built on one
    if model is None or not hasattr(model, "get_input_embeddings"):
        raise ModelError(f"{target.name} lends no embedding and head, wanted a transformers model as the target")
    return model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach()


def ends(target: Target, ids: Tensor) -> Ends:
    """What the drafter borrows of a target for its vocabulary."""
    embedding, head = target_ends(target)
    silent = None if target.absent is None else target.absent[ids]
    return Ends(embedding, head[ids].contiguous(), ids, silent if silent is not None and silent.any() else None)


def new_net(target: Target, taps: Sequence[int], layers: int = 1, init: Path | None = None) -> DraftLayer:
    """An EAGLE-3 drafter before its first step; see `new_student`."""
    net = _eagle(target, len(taps), layers)
    if init is not None:
        _start_warm(net, read_warm(init, target_ends(target)[1]), taps, torch.arange(0))
    return net


def new_student(target: Target, plan: Plan, ids: Tensor, mask: int, init: Path | None = None) -> Student:
    """A drafter before its first step: another run's weights, the target's last layers, or noise where they are of
    another kind. ids [n] are the draft vocabulary. Raises ModelError for weights of another shape."""
    student = _fresh(target, plan, ids, mask)
    if isinstance(student, Blocks):
        student.anchors = plan.anchors
    if init is not None:
        _start_warm(student, read_warm(init, target_ends(target)[1]), plan.taps, ids)
    return student


def _fresh(target: Target, plan: Plan, ids: Tensor, mask: int) -> Student:
    if plan.kind == "eagle3":
        return _eagle(target, len(plan.taps), plan.layers)
    if plan.kind == "nemotron":
        return blank_student(target, plan.block, plan.rank)
    if plan.kind in BLOCKS:
        config = block_config(_decoder(target), plan.layers)
        block = BlockStudent(plan.kind, config, len(plan.taps), plan.block, mask, (target.vocab, len(ids)), plan.rank)
        block.start_from(_last_layers(target, replace(config, qk_norm=False), plan.layers), _final_norm(target))
        return block
    if plan.kind == "mtp":
        return _mtp(target)
    if plan.kind == "draft-model":
        target_ends(target)  # its text is no text of a transformers model otherwise
        text = _model(target).config.get_text_config(decoder=True)
        width = plan.width or max(target.hidden // 16 * 8, 8)
        return ModelStudent(model_config(text, target.vocab, plan.layers, width, sorted(target.eos)))
    raise ConfigError(f"--kind is '{plan.kind}', wanted one of {', '.join(KINDS)}")


def _eagle(target: Target, taps: int, layers: int) -> DraftLayer:
    config = _decoder(target)
    net = DraftLayer(draft_config(config, layers), taps)
    last, norm = _last_layers(target, config, 1), _final_norm(target)
    if last is not None and norm is not None:
        net.start_from(last[0], norm)
    else:
        net.start_from_noise()
    return net


def _mtp(target: Target) -> MtpLayer:
    """In the target's own form: Qwen3.5's (gated queries, norms as 1 + w), else the plain layer."""
    config, hybrid = _decoder(target), _kind(target).startswith(_HYBRID)
    if hybrid:
        config = replace(config, gated=True, zero_centred=True, qk_norm=True)
    net = MtpLayer(config, QWEN if hybrid else SPECULATORS)
    norm = _model(target).state_dict().get("model.norm.weight")
    if norm is None:
        raise ModelError(f"{target.name} has no model.norm.weight, wanted a Llama, Qwen3 or Qwen3.5 layout")
    found = _attention_layers(target, net.config)
    net.start_from(found[-1] if found else None, norm.detach().float())
    return net


def _model(target: Target) -> Any:
    model: Any = getattr(target, "model", None)
    if model is None:
        other = "take --kind nemotron" if isinstance(target, NemotronTarget) else "nsd train --model FOLDER"
        raise ModelError(f"{target.name} is no transformers model, wanted one; {other}")
    return model


def _kind(target: Target) -> str:
    return str(_model(target).config.get_text_config(decoder=True).model_type)


def _decoder(target: Target) -> DecoderConfig:
    text = _model(target).config.get_text_config(decoder=True)
    return decoder_config(text.to_dict(), target.name, qk_norm=text.model_type == "qwen3")


def _attention_layers(target: Target, config: DecoderConfig) -> list[dict[str, Tensor]]:
    """Layers of the target, in order, that have exactly the tensors of this shape (further ones are not looked at)."""
    weights = {name.removeprefix("model."): t for name, t in _model(target).state_dict().items()}
    found = []
    for number in range(target.layers):
        prefix = f"layers.{number}."
        layer = {n.removeprefix(prefix): t.detach().float() for n, t in weights.items() if n.startswith(prefix)}
        if all(n in layer and tuple(layer[n].shape) == shape for n, shape in layer_shapes(config, "").items()):
            found.append(layer)
    return found


def _last_layers(target: Target, config: DecoderConfig, count: int) -> list[dict[str, Tensor]] | None:
    """The target's last layers, the first repeated if there are fewer; None where they are of another kind."""
    if _kind(target).startswith(_OTHER_NORMS):
        return None
    found = _attention_layers(target, replace(config, sources=1))[-count:]
    return [found[0]] * (count - len(found)) + found if found else None


def _final_norm(target: Target) -> Tensor | None:
    norm = _model(target).state_dict().get("model.norm.weight")
    return None if norm is None or _kind(target).startswith(_OTHER_NORMS) else norm.detach().float()


def _start_warm(student: Student, warm: Warm, taps: Sequence[int], ids: Tensor) -> None:
    """Take another run's weights over; rows of the draft vocabulary by their ids, those of new ids begin at zero."""
    tensors = dict(warm.tensors)
    for name in student.by_id:
        if name in tensors:
            if warm.ids is None or len(warm.ids) != len(tensors[name]):
                raise ModelError(f"{warm.path} does not say which ids {name} is for; start from a float32 folder")
            whole = tensors[name].new_zeros(int(max(warm.ids.max(), ids.max())) + 1, tensors[name].shape[1])
            whole[warm.ids] = tensors[name]
            tensors[name] = whole[ids]
    further: tuple[str, ...] = ()
    if isinstance(student, DraftLayer):
        further = tuple(name for name, _ in student.layers[1:])
    elif isinstance(student, BlockStudent):
        further = ("log_gain",)
    require_fit(replace(warm, tensors=tensors), student.tensors(), tuple(taps), further)
    student.load({**student.tensors(), **tensors})
