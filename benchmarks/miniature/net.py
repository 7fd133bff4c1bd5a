"""A dense decoder for training: the Qwen3 and Nemotron layouts, with the tensor names of their checkpoints.

Activations are bfloat16, weights float32 masters that are rounded once a pass: on one CPU core this is about twice as
fast as the same model of transformers under autocast. Attention is causal, or by a mask given with the positions.

Source: transformers src/transformers/models/qwen3/modeling_qwen3.py (arithmetic and names).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

PREFIX = {"qwen3": "model.", "nemotron": "encoder.", "qwen3_5": "model."}
HEAD = {"qwen3": "lm_head.weight", "nemotron": "diffusion_head.weight", "qwen3_5": "lm_head.weight"}
START = 0.02


class Net(nn.Module):
    """Weights by their names in the checkpoint, and a forward pass in one precision."""

    def __init__(self, config: dict[str, Any], layout: str, seed: int, precision: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.config, self.layout, self.precision = config, layout, precision
        self.heads, self.head_dim = config["num_attention_heads"], config["head_dim"]
        self.eps = config["rms_norm_eps"]
        generator = torch.Generator().manual_seed(seed)
        self.weights = nn.ParameterDict()
        for name, shape in self._shapes().items():
            self.weights[name.replace(".", "/")] = nn.Parameter(self._start(name, shape, generator))
        angles = torch.outer(torch.arange(config["max_position_embeddings"]), _frequencies(config))
        cos, sin = torch.cat((angles.cos(), angles.cos()), -1), torch.cat((-angles.sin(), angles.sin()), -1)
        self.angles = cos.to(precision), sin.to(precision)

    def tensors(self) -> dict[str, Tensor]:
        """The checkpoint."""
        return {name.replace("/", "."): weight.detach() for name, weight in self.weights.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take the weights of a checkpoint."""
        for name, weight in self.weights.items():
            weight.data.copy_(tensors[name.replace("/", ".")])

    def forward(self, ids: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """States after the final norm: ids [B, L] -> [B, L, H]; positions [L]; mask [.., L, L] bool, None = causal."""
        prefix = PREFIX[self.layout]
        x = self.embedded(ids)
        cos, sin = ((t[: ids.shape[1]] if positions is None else t[positions]).unsqueeze(1) for t in self.angles)
        for i in range(self.config["num_hidden_layers"]):
            x = self._layer(f"{prefix}layers.{i}.", x, cos, sin, mask)
        return self._norm(x, f"{prefix}norm.weight")

    def embedded(self, ids: Tensor) -> Tensor:
        """Embeddings: ids [B, L] -> [B, L, H]."""
        return functional.embedding(ids, self._weight(f"{PREFIX[self.layout]}embed_tokens.weight"))

    def logits(self, states: Tensor) -> Tensor:
        """The head on states [..., H] -> [..., V], in float32."""
        return functional.linear(states, self._weight(HEAD[self.layout])).float()

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return shapes(self.config, self.layout)

    def _start(self, name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * START

    def _layer(self, at: str, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self._mixer(at, self._norm(x, f"{at}input_layernorm.weight"), cos, sin, mask)
        y = self._norm(x, f"{at}post_attention_layernorm.weight")
        gate, up = (functional.linear(y, self._weight(f"{at}mlp.{n}_proj.weight")) for n in ("gate", "up"))
        return x + functional.linear(functional.silu(gate) * up, self._weight(f"{at}mlp.down_proj.weight"))

    def _mixer(self, at: str, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (self._by_head(t) for t in self._projected(x, *(f"{at}self_attn.{n}_proj.weight" for n in "qkv")))
        mixed = self._attention(at, q, k, v, cos, sin, mask)
        return functional.linear(mixed, self._weight(f"{at}self_attn.o_proj.weight"))

    def _attention(
        self, at: str, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None
    ) -> Tensor:
        """q, k, v [B, L, heads, D] before norms and rotation -> [B, L, heads * D]."""
        if self.layout != "nemotron":
            q, k = self._norm(q, f"{at}self_attn.q_norm.weight"), self._norm(k, f"{at}self_attn.k_norm.weight")
        q, k, v = (t.transpose(1, 2) for t in (_rotate(q, cos, sin), _rotate(k, cos, sin), v))
        return _attend(q, k, v, mask).transpose(1, 2).flatten(2)

    def _projected(self, x: Tensor, *names: str) -> tuple[Tensor, ...]:
        """Several projections of the same states in one product."""
        weights = [self._weight(name) for name in names]
        return torch.split(functional.linear(x, torch.cat(weights)), [len(weight) for weight in weights], -1)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return normed(x, self._weight(name), self.eps)

    def _weight(self, name: str) -> Tensor:
        return self._master(name).to(self.precision)

    def _master(self, name: str) -> Tensor:
        weight: Tensor = self.weights[name.replace(".", "/")]
        return weight


class _Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        summed = torch.promote_types(x.dtype, torch.float32)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=summed)
        scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_().to(x.dtype)
        unit = x * scale
        ctx.save_for_backward(unit, scale, weight)
        found: Tensor = unit * weight
        return found

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (grad,), (unit, scale, weight) = given, ctx.saved_tensors
        product = (grad * unit).flatten(0, -2)
        along = torch.mv(product, weight).view(scale.shape).mul_(-1 / len(weight))
        to_weight = product.sum(0) if ctx.needs_input_grad[1] else None
        return torch.addcmul(grad * weight, unit, along).mul_(scale), to_weight, None


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last dimension, of few passes over memory: less than half the time of torch's own."""
    found: Tensor = _Normed.apply(x, weight, eps)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return found


def shapes(config: dict[str, Any], layout: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of a checkpoint."""
    hidden, vocab, inner = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    width, prefix = config["num_attention_heads"] * config["head_dim"], PREFIX[layout]
    found: dict[str, tuple[int, ...]] = {
        f"{prefix}embed_tokens.weight": (vocab, hidden),
        f"{prefix}norm.weight": (hidden,),
    }
    for i in range(config["num_hidden_layers"]):
        at = f"{prefix}layers.{i}."
        found |= {f"{at}{n}_layernorm.weight": (hidden,) for n in ("input", "post_attention")}
        found |= {f"{at}self_attn.{n}_proj.weight": (width, hidden) for n in "qkv"}
        found |= {f"{at}self_attn.o_proj.weight": (hidden, width), f"{at}mlp.down_proj.weight": (hidden, inner)}
        found |= {f"{at}mlp.{n}_proj.weight": (inner, hidden) for n in ("gate", "up")}
        if layout != "nemotron":
            found |= {f"{at}self_attn.{n}_norm.weight": (config["head_dim"],) for n in "qk"}
    return found | {HEAD[layout]: (vocab, hidden)}


def _frequencies(config: dict[str, Any]) -> Tensor:
    size = int(config["head_dim"] * config["rope_parameters"].get("partial_rotary_factor", 1.0))
    theta: float = config["rope_parameters"]["rope_theta"]
    return torch.pow(theta, -torch.arange(0, size, 2) / size)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Plain attention: for a hundred positions its backward pass is several times faster than the fused one's."""
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2))
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return torch.matmul(
        (scores + torch.zeros(mask.shape, dtype=scores.dtype).masked_fill_(~mask, -torch.inf)).softmax(-1), v
    )


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate as many of the first dimensions as there are angles."""
    size = cos.shape[-1]
    first, second, rest = torch.split(x, [size // 2, size // 2, x.shape[-1] - size], -1)
    if not rest.shape[-1]:
        return x * cos + torch.cat((second, first), -1) * sin
    return torch.cat((x[..., :size] * cos + torch.cat((second, first), -1) * sin, rest), -1)
