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

PREFIX = {"qwen3": "model.", "nemotron": "encoder."}
HEAD = {"qwen3": "lm_head.weight", "nemotron": "diffusion_head.weight"}
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
        for name, shape in shapes(config, layout).items():
            start = torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * START
            self.weights[name.replace(".", "/")] = nn.Parameter(start)
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
        x = functional.embedding(ids, self._weight(f"{prefix}embed_tokens.weight"))
        cos, sin = ((t[: ids.shape[1]] if positions is None else t[positions]).unsqueeze(1) for t in self.angles)
        for i in range(self.config["num_hidden_layers"]):
            at = f"{prefix}layers.{i}."
            x = x + self._attention(at, self._norm(x, f"{at}input_layernorm.weight"), cos, sin, mask)
            y = self._norm(x, f"{at}post_attention_layernorm.weight")
            gate, up = (functional.linear(y, self._weight(f"{at}mlp.{n}_proj.weight")) for n in ("gate", "up"))
            x = x + functional.linear(functional.silu(gate) * up, self._weight(f"{at}mlp.down_proj.weight"))
        return self._norm(x, f"{prefix}norm.weight")

    def logits(self, states: Tensor) -> Tensor:
        """The head on states [..., H] -> [..., V], in float32."""
        return functional.linear(states, self._weight(HEAD[self.layout])).float()

    def _attention(self, at: str, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        joint = torch.cat([self._weight(f"{at}self_attn.{n}_proj.weight") for n in "qkv"])
        joined = functional.linear(x, joint)
        q, k, v = joined.view(*x.shape[:2], 3, self.heads, self.head_dim).unbind(2)
        if self.layout == "qwen3":
            q, k = self._norm(q, f"{at}self_attn.q_norm.weight"), self._norm(k, f"{at}self_attn.k_norm.weight")
        q, k, v = (t.transpose(1, 2) for t in (_rotate(q, cos, sin), _rotate(k, cos, sin), v))
        mixed = _attend(q, k, v, mask)
        return functional.linear(mixed.transpose(1, 2).flatten(2), self._weight(f"{at}self_attn.o_proj.weight"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self._weight(name), self.eps)

    def _weight(self, name: str) -> Tensor:
        weight: Tensor = self.weights[name.replace(".", "/")]
        return weight.to(self.precision)


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
        if layout == "qwen3":
            found |= {f"{at}self_attn.{n}_norm.weight": (config["head_dim"],) for n in "qk"}
    return found | {HEAD[layout]: (vocab, hidden)}


def _frequencies(config: dict[str, Any]) -> Tensor:
    size = config["head_dim"]
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
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((second, first), -1) * sin
