"""A target and a drafter of every mechanism with random weights, at any size: what a block costs, not how good."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsd.drafters import dflash, dspark, eagle3, mtp, nemotron
from nsd.drafters.base import Drafter
from nsd.drafters.block_shape import spread_layers
from nsd.nn import DecoderConfig, LowRank, Rope, Shapes, layer_shapes
from nsd.targets.base import Target
from nsd.targets.hf import HfTarget
from nsd.targets.hybrid import HybridTarget
from nsd.targets.nemotron import NemotronConfig, NemotronTarget


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of a target."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int


TINY = Size("tiny", 64, 8, 4, 2, 24, 160, 512)
MIDDLE = Size("20M", 256, 12, 8, 4, 32, 768, 16384)
SMALL = Size("135M", 576, 30, 9, 3, 64, 1536, 49152)
QWEN3_4B = Size("Qwen3-4B", 2560, 36, 32, 8, 128, 9728, 151936)

DRAFT_LAYERS, TAPPED, RANK, LORA_RANK = 5, 5, 256, 128


@dataclass(frozen=True, slots=True)
class RandomPair:
    """k is the mechanism's own; a block takes so many passes of the drafter, each of which reads `weights` numbers."""

    mechanism: str
    target: Target
    drafter: Drafter
    k: int
    passes: int
    weights: int


class Ids:
    """A tokenizer whose texts are its ids."""

    eos_token_id: int | None = None
    prefix: tuple[int, ...] = ()

    def encode(self, text: str) -> list[int]:
        """Ids separated by spaces."""
        return [int(part) for part in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        """Ids with spaces between them."""
        return " ".join(map(str, ids))

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The last message."""
        return self.encode(messages[-1]["content"])

    def token_text(self, token: int) -> str:
        """The id."""
        return str(token)


class Maker:
    """Makes pairs of one size; the plain target that three mechanisms share is made once."""

    def __init__(self, size: Size, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        self.size, self.folder, self.device, self.dtype = size, folder, device, dtype
        self._plain: HfTarget | None = None

    def pair(self, mechanism: str) -> RandomPair:
        """The pair of this mechanism."""
        return MECHANISMS[mechanism](self)

    @property
    def plain(self) -> HfTarget:
        """A Qwen3 of this size."""
        if self._plain is None:
            from transformers import Qwen3Config, Qwen3ForCausalLM

            config = Qwen3Config(**self._keys(), num_hidden_layers=self.size.layers)
            with self._defaults():
                model = Qwen3ForCausalLM(config)
            self._plain = HfTarget(model, Ids(), f"random {self.size.name}")
        return self._plain

    def dflash(self) -> RandomPair:
        """A block of 16: the anchor and 15 proposals; the target's embedding and head."""
        layers = {"num_hidden_layers": DRAFT_LAYERS, "num_target_layers": self.size.layers}
        nested = {"mask_token_id": self.size.vocab - 1, "target_layer_ids": self._layer_ids}
        config = {**self._json(), **layers, "block_size": 16, "dflash_config": nested}
        shapes = self._block_shapes()
        folder = self._written("dflash", {"architectures": ["DFlashDraftModel"], **config}, shapes)
        return RandomPair("dflash", self.plain, dflash.load(self.plain, folder), 15, 1, _count(shapes) + self._end)

    def dspark(self) -> RandomPair:
        """A block of 7 proposals with a vanilla sequential head of rank 256."""
        s = self.size
        rank = min(RANK, s.hidden // 2)
        config = {
            **self._json(), "num_hidden_layers": DRAFT_LAYERS, "num_target_layers": s.layers, "block_size": 7,
            "mask_token_id": s.vocab - 1, "target_layer_ids": self._layer_ids, "enable_confidence_head": False,
            "markov_rank": rank, "markov_head_type": "vanilla",
        }  # fmt: skip
        shapes = self._block_shapes() | {
            "embed_tokens.weight": (s.vocab, s.hidden),
            "lm_head.weight": (s.vocab, s.hidden),
            "markov_head.markov_w1.weight": (s.vocab, rank),
            "markov_head.markov_w2.weight": (s.vocab, rank),
        }
        folder = self._written("dspark", {"architectures": ["Qwen3DSparkModel"], **config}, shapes)
        looked_up = self._end + s.vocab * rank
        return RandomPair("dspark", self.plain, dspark.load(self.plain, folder), 7, 1, _count(shapes) - looked_up)

    def eagle3(self) -> RandomPair:
        """A chain of seven steps of one layer, five target layers, the full vocabulary."""
        s = self.size
        config = {
            **self._json(), "num_hidden_layers": 1, "draft_num_hidden_layers": 1, "num_target_layers": s.layers,
            "target_layer_ids": self._layer_ids, "ttt_length": 7,
        }  # fmt: skip
        shapes: Shapes = {
            "embed_tokens.weight": (s.vocab, s.hidden),
            "lm_head.weight": (s.vocab, s.hidden),
            "fc.weight": (s.hidden, TAPPED * s.hidden),
            "norm.weight": (s.hidden,),
            **layer_shapes(self._decoder(qk_norm=True, sources=2), "layers.0."),
        }
        folder = self._written("eagle3", {"architectures": ["Qwen3Eagle3Model"], **config}, shapes)
        return RandomPair("eagle3", self.plain, eagle3.load(self.plain, folder), 7, 7, _count(shapes) - self._end)

    def mtp(self) -> RandomPair:
        """Two steps of one gated layer beside a target of DeltaNet and attention layers, three to one."""
        from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

        s = self.size
        kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(s.layers)]
        linear = {
            "linear_num_key_heads": max(s.heads // 2, 1), "linear_num_value_heads": 2 * max(s.heads // 2, 1),
            "linear_key_head_dim": s.head_dim, "linear_value_head_dim": s.head_dim, "linear_conv_kernel_dim": 4,
        }  # fmt: skip
        rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
        extra = {"rope_parameters": rope, "layer_types": kinds, "num_hidden_layers": s.layers, **linear}
        text = Qwen3_5TextConfig(**(self._keys() | extra))
        with self._defaults():
            model = Qwen3_5ForCausalLM(text)
        target = HybridTarget(model, Ids(), f"random hybrid {s.name}")
        layer = self._decoder(qk_norm=True, gated=True)
        shapes: Shapes = {
            "mtp.fc.weight": (s.hidden, 2 * s.hidden),
            "mtp.norm.weight": (s.hidden,),
            "mtp.pre_fc_norm_hidden.weight": (s.hidden,),
            "mtp.pre_fc_norm_embedding.weight": (s.hidden,),
            **layer_shapes(layer, "mtp.layers.0."),
        }
        config = {**text.to_dict(), "architectures": ["Qwen3_5ForCausalLM"], "mtp_num_hidden_layers": 1}
        folder = self._written("mtp", config, shapes)
        return RandomPair("mtp", target, mtp.load(target, folder), 2, 2, _count(shapes) + self._end)

    def nemotron(self) -> RandomPair:
        """The target as its own drafter over blocks of 32, with low-rank additions."""
        s = self.size
        rope = Rope("yarn", 1e6, factor=16.0, original_context=16384, mscale=1.0, mscale_all_dim=1.0)
        decoder = self._decoder(layers=s.layers, rope=rope, eps=1e-5, query_beta=0.1, query_context=16384)
        config = NemotronConfig(decoder, s.vocab, s.vocab - 1, 32, True, 262144, frozenset())
        target = NemotronTarget(config, self._random(config.shapes), Ids(), f"random Nemotron {s.name}")
        rank = min(LORA_RANK, s.hidden // 4)
        pairs = self._random(nemotron.lora_shapes(decoder, rank))
        additions = [
            LowRank(down, up, 4.0)
            for down, up in zip(list(pairs.values())[::2], list(pairs.values())[1::2], strict=True)
        ]
        drafter = nemotron.NemotronDrafter(target, None, additions)
        return RandomPair("nemotron", target, drafter, 31, 1, drafter.parameters - self._end)

    @property
    def _end(self) -> int:
        """Numbers in an embedding or in a head."""
        return self.size.vocab * self.size.hidden

    @property
    def _layer_ids(self) -> list[int]:
        return spread_layers(self.size.layers, TAPPED)

    def _decoder(self, **extra: Any) -> DecoderConfig:
        s = self.size
        given = {"layers": 1, **extra}
        return DecoderConfig(
            hidden=s.hidden, heads=s.heads, kv_heads=s.kv_heads, head_dim=s.head_dim, intermediate=s.inner, **given
        )

    def _block_shapes(self) -> Shapes:
        """The backbone that DFlash and DSpark share."""
        hidden = self.size.hidden
        shapes: Shapes = {
            "fc.weight": (hidden, TAPPED * hidden),
            "hidden_norm.weight": (hidden,),
            "norm.weight": (hidden,),
        }
        for i in range(DRAFT_LAYERS):
            shapes |= layer_shapes(self._decoder(qk_norm=True), f"layers.{i}.")
        return shapes

    def _keys(self) -> dict[str, Any]:
        s = self.size
        return {
            "hidden_size": s.hidden, "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads,
            "head_dim": s.head_dim, "intermediate_size": s.inner, "vocab_size": s.vocab, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 40960, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None,
            "pad_token_id": None,
        }  # fmt: skip

    def _json(self) -> dict[str, Any]:
        return {**self._keys(), "model_type": "qwen3", "rope_theta": 1e6, "attention_bias": False}

    def _random(self, shapes: Shapes) -> dict[str, Tensor]:
        made = {}
        for name, shape in shapes.items():
            tensor = torch.empty(shape, device=self.device, dtype=self.dtype)
            made[name] = tensor.fill_(1.0) if len(shape) == 1 else tensor.normal_(0.0, 0.02)
        return made

    def _written(self, name: str, config: dict[str, Any], shapes: Shapes) -> str:
        """A checkpoint folder on disk, as the loaders want it."""
        from safetensors.torch import save_file

        folder = self.folder / self.size.name / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        save_file(self._random(shapes), folder / "model.safetensors")
        return str(folder)

    @contextmanager
    def _defaults(self) -> Iterator[None]:
        """Modules made here lie on the device, in the dtype, from the start."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with torch.device(self.device):
                yield
        finally:
            torch.set_default_dtype(before)


def _count(shapes: Shapes) -> int:
    return sum(prod(shape) for shape in shapes.values())


MECHANISMS: dict[str, Callable[[Maker], RandomPair]] = {
    "nemotron": Maker.nemotron,
    "dspark": Maker.dspark,
    "dflash": Maker.dflash,
    "eagle3": Maker.eagle3,
    "mtp": Maker.mtp,
}
"""Every mechanism, at the k it is published with."""
