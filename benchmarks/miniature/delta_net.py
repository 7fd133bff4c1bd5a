"""The Qwen3.5 layout for training: Gated DeltaNet layers beside gated attention, and an MTP head.

As in `net`, activations are bfloat16 and weights float32 masters. The recurrence of a DeltaNet layer,

    S_t = a_t S_t-1 + k_t (beta_t (v_t - a_t S_t-1^T k_t))^T,    o_t = S_t^T q_t,    a_t = exp(g_t),

is computed in float32, in short chunks: inside a chunk one triangular system for all writes at once, between chunks two
small products that take a chunk's first state to the next one's.

Source: transformers src/transformers/models/qwen3_5/modeling_qwen3_5.py (arithmetic and names); vllm-project/vllm
vllm/model_executor/models/qwen3_5_mtp.py (the head); Yang et al., "Gated Delta Networks" (arXiv 2412.06464), section
3.3; fla-org/flash-linear-attention fla/layers/gated_deltanet.py (start of the decays).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.miniature.net import PREFIX, Net, normed, shapes

CHUNK = 16
"""Positions per chunk: for heads this small the fastest of 8, 16 and 32."""

TINY = 1e-6
"""Added to the squared length of keys and queries before they are normalised."""

DECAYS = (1.0, 16.0)
STEPS = (1e-3, 1e-1)
"""Where -g = exp(A_log) softplus(dt_bias) starts: each head draws both factors, the second one in its logarithm."""

LAYOUT = "qwen3_5"


class DeltaNet(Net):
    """Weights by their names in the checkpoint, those of the MTP head among them as mtp.*."""

    def __init__(self, config: dict[str, Any], seed: int, precision: torch.dtype = torch.bfloat16) -> None:
        self.key_heads, self.value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        self.sizes = config["linear_key_head_dim"], config["linear_value_head_dim"]
        super().__init__(config, LAYOUT, seed, precision)

    def ahead(self, states: Tensor, tokens: Tensor) -> Tensor:
        """The head's states after its norm: states [B, L, H] and the ids [B, L] of the tokens that follow them."""
        read = self._norm(self.embedded(tokens), "mtp.pre_fc_norm_embedding.weight")
        both = torch.cat((read, self._norm(states, "mtp.pre_fc_norm_hidden.weight")), -1)
        x = functional.linear(both, self._weight("mtp.fc.weight"))
        cos, sin = (t[: tokens.shape[1]].unsqueeze(1) for t in self.angles)
        return self._norm(self._layer("mtp.layers.0.", x, cos, sin, None), "mtp.norm.weight")

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        plain, hidden = shapes(self.config, self.layout), self.config["hidden_size"]
        found: dict[str, tuple[int, ...]] = {}
        for i, kind in enumerate(self.config["layer_types"]):
            at = f"{PREFIX[self.layout]}layers.{i}."
            layer = {name: shape for name, shape in plain.items() if name.startswith(at)}
            plain = {name: shape for name, shape in plain.items() if name not in layer}
            found |= self._gated(layer) if kind == "full_attention" else self._linear(at, layer)
        first = f"{PREFIX[self.layout]}layers.{self.config['layer_types'].index('full_attention')}."
        head = {f"mtp.layers.0.{n.removeprefix(first)}": s for n, s in found.items() if n.startswith(first)}
        norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        head |= {"mtp.fc.weight": (hidden, 2 * hidden)} | {f"mtp.{n}.weight": (hidden,) for n in norms}
        return plain | found | head

    def _gated(self, layer: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Tensors of a layer whose query projection makes gates as well: of each head the query, then the gate."""
        return {n: (2 * s[0], *s[1:]) if n.endswith(".q_proj.weight") else s for n, s in layer.items()}

    def _linear(self, at: str, layer: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Tensors of a layer whose attention gives way to a DeltaNet mixer."""
        hidden, values = self.config["hidden_size"], self.value_heads * self.sizes[1]
        mixed = 2 * self.key_heads * self.sizes[0] + values
        rows = {"qkv": mixed, "z": values, "b": self.value_heads, "a": self.value_heads}
        inner: dict[str, tuple[int, ...]] = {f"in_proj_{n}.weight": (count, hidden) for n, count in rows.items()}
        inner |= {"conv1d.weight": (mixed, 1, self.config["linear_conv_kernel_dim"]), "norm.weight": self.sizes[1:]}
        inner |= {"A_log": (self.value_heads,), "dt_bias": (self.value_heads,), "out_proj.weight": (hidden, values)}
        kept = {name: shape for name, shape in layer.items() if ".self_attn." not in name}
        return {f"{at}linear_attn.{name}": shape for name, shape in inner.items()} | kept

    def _start(self, name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        def between(low: float, high: float) -> Tensor:
            return torch.rand(shape, generator=generator) * (high - low) + low

        if name.endswith(".A_log"):
            return between(*DECAYS).log()
        if name.endswith(".dt_bias"):
            return between(*(math.log(step) for step in STEPS)).exp().expm1().log()
        if name.endswith(".conv1d.weight"):
            return between(-1.0, 1.0) / math.sqrt(shape[-1])
        if len(shape) == 1 and not name.endswith("linear_attn.norm.weight"):
            return torch.zeros(shape)
        return super()._start(name, shape, generator)

    def _mixer(self, at: str, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        if f"{at}linear_attn.A_log".replace(".", "/") in self.weights:
            return self._delta(f"{at}linear_attn.", x)
        both, k, v = self._projected(x, *(f"{at}self_attn.{n}_proj.weight" for n in "qkv"))
        q, gate = self._by_head(both).chunk(2, -1)
        mixed = self._attention(at, q, self._by_head(k), self._by_head(v), cos, sin, mask)
        return functional.linear(mixed * gate.flatten(2).sigmoid(), self._weight(f"{at}self_attn.o_proj.weight"))

    def _delta(self, at: str, x: Tensor) -> Tensor:
        mixed, z, b, a = self._projected(x, *(f"{at}in_proj_{n}.weight" for n in ("qkv", "z", "b", "a")))
        mixed = functional.silu(convolved(mixed, self._weight(f"{at}conv1d.weight")))
        key, value = self.sizes
        q, k, v = torch.split(mixed, [self.key_heads * key, self.key_heads * key, self.value_heads * value], -1)
        ones = q.new_ones(key)
        q, k = (normed(t.view(*t.shape[:2], -1, key), ones, TINY / key).float() for t in (q, k))
        if self.key_heads != self.value_heads:
            q, k = (t.repeat_interleave(self.value_heads // self.key_heads, 2) for t in (q, k))
        rate, bias = (self._master(f"{at}{n}") for n in ("A_log", "dt_bias"))
        decay = -rate.exp() * functional.softplus(a.float() + bias)
        read = chunked(q / key, k * key**-0.5, v.view(*v.shape[:2], -1, value).float(), decay, b.float().sigmoid())
        read = normed(read.to(self.precision), self._weight(f"{at}norm.weight"), self.eps).flatten(2)
        return functional.linear(read * functional.silu(z), self._weight(f"{at}out_proj.weight"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        """Weights of these norms are stored as offsets from 1."""
        return normed(x, (self._master(name) + 1).to(self.precision), self.eps)


class _Convolved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _slide(x, weight)[:, : x.shape[1]].contiguous()

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, Tensor]:
        grad, (x, weight) = given[0].contiguous(), ctx.saved_tensors  # torch's products of two layouts are slow
        taps, length = weight.shape[-1], x.shape[1]
        pairs = ((grad[:, s:], x[:, : max(length - s, 0)]) for s in reversed(range(taps)))
        to_weight = [(late * early).sum((0, 1)) for late, early in pairs]
        return _slide(grad, weight.flip(-1))[:, taps - 1 :].contiguous(), torch.stack(to_weight, -1).unsqueeze(1)


def _slide(x: Tensor, weight: Tensor) -> Tensor:
    """All overlaps: [B, L, C] -> [B, L + taps - 1, C]."""
    return functional.conv1d(x.transpose(1, 2), weight, padding=weight.shape[-1] - 1, groups=len(weight)).transpose(
        1, 2
    )


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """A causal convolution of each channel by itself: x [B, L, C], weight [C, 1, taps] -> [B, L, C].

    The backward pass is our own: for weights of four taps torch's takes longer by half.
    """
    found: Tensor = _Convolved.apply(x, weight)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return found


def chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, size: int = CHUNK) -> Tensor:
    """The gated delta rule from a state of zeros: q, k [B, L, h, K], v [B, L, h, V], g, beta [B, L, h] -> [B, L, h, V].

    Queries and keys come normalised and scaled; g <= 0. With G the sums of g inside a chunk and S its first state, the
    writes U solve (I + A) U = beta (V - exp(G) K S), where A_ij = beta_i exp(G_i - G_j) k_i.k_j for j < i.
    """
    batch, length, heads, values = v.shape
    count = -(-length // size)

    def cut(x: Tensor) -> Tensor:  # [chunks, B, h, size, n], so that the chunks of one step lie together
        x = functional.pad(x, (0, 0, 0, 0, 0, count * size - length)) if length % size else x
        return x.reshape(batch, count, size, heads, -1).permute(1, 0, 3, 2, 4).flatten(0, 2)

    q, k, v, g, beta = (cut(x) for x in (q, k, v, g.unsqueeze(-1), beta.unsqueeze(-1)))
    g = g.cumsum(1)
    causal = torch.ones(size, size, dtype=torch.bool).tril()
    between = (g - g.mT).masked_fill(~causal, -torch.inf).exp()  # masked first: above the diagonal exp overflows
    since, until = g.exp(), (g[:, -1:] - g).exp()
    one = torch.eye(size, dtype=k.dtype).expand(len(k), -1, -1)
    inverse = torch.linalg.solve_triangular((k @ k.mT) * between * beta, one, upper=False, unitriangular=True)
    wanted, held = inverse @ (v * beta), inverse @ (k * (beta * since))
    state, states, writes = q.new_zeros(batch * heads, k.shape[-1], values), [], []
    whole, keys = since[:, -1:], (k * until).mT
    by_chunk = (x.unflatten(0, (count, -1)).unbind() for x in (wanted, held, whole, keys))
    for want, hold, keep, key in zip(*by_chunk, strict=True):
        states.append(state)
        writes.append(torch.baddbmm(want, hold, state, alpha=-1))
        state = torch.baddbmm(state * keep, key, writes[-1])
    read = torch.baddbmm(((q @ k.mT) * between) @ torch.cat(writes), q * since, torch.cat(states))
    return read.view(count, batch, heads, size, values).permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length]
