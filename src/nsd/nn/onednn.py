"""Projections by oneDNN's kernels for weights laid out once: bfloat16, and int8 weights times int8 activations (w8a8).

A plain bfloat16 product lays its weight out anew at every call, which takes as long as the product; `Packed` does so
once. The result is the same.

`W8A8` rounds activations to 255 levels as well, and the product of codes costs the same for one row as for eight, which
is what verification needs: int8 weight-only kernels take four times as long for eight rows as for one.

Each row has a scale of its own, never the tensor: with one scale for all rows the law at a position would depend on the
tokens drafted behind it and on the neighbours in the batch, and speculation would no longer draw from the law that
plain decoding draws from. Products of codes are summed as whole numbers, so a row of the result has the same bits
whatever stands beside it.

Inputs with a few large channels would leave little of the levels to the others. Those channels are laid down several
times, each copy with its share (`Spread`): the product is the same, the largest entry of a row is not.

Uses of torch (>= 2.9): `mkldnn::_reorder_linear_weight`, `mkldnn::_linear_pointwise`, `onednn::qlinear_prepack`,
`onednn::qlinear_pointwise`. Source: pytorch aten/src/ATen/native/mkldnn/Linear.cpp,
aten/src/ATen/native/quantized/cpu/qlinear.cpp; Xiao et al., "SmoothQuant" (arXiv 2211.10438) for the problem;
Zhao et al., "Outlier Channel Splitting" (arXiv 1901.09504) for the copies.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from nsd.nn.weights import Dense, LayerWeights, Projection

LEVELS = 127
"""Largest code on either side of zero, of weights and activations."""
ZERO = 128
"""The code of 0: activations are stored unsigned, which the kernel wants without AMX."""
COPIES = 64
"""Columns that a spread input is longer by: a multiple of the kernel's step, so that little is padded."""
TINY = 1e-20
"""Least scale of a weight's row, so that a row of zeros has one."""
_HALF = torch.tensor(ZERO + 0.5)


@cache
def packs_bfloat16() -> bool:
    """Whether bfloat16 weights can be laid out once on this CPU with this torch."""
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        weight, x = torch.eye(16, dtype=torch.bfloat16), torch.ones(2, 16, dtype=torch.bfloat16)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        y = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        return torch.equal(y, x) and torch.equal(packed.to_dense(), weight)
    except (AttributeError, RuntimeError):  # no such operator, or none for this CPU
        return False


@cache
def lacks_w8a8() -> str | None:
    """Why w8a8 cannot be computed here, None if it can: the kernel is there and counts the largest codes exactly.

    CPUs without VNNI add pairs of products in 16 bits and cut them off.
    """
    weight = torch.full((16, 64), LEVELS, dtype=torch.int8)
    weight[::2] = -LEVELS
    codes = torch.full((2, 64), ZERO + LEVELS, dtype=torch.uint8)
    codes[1] = ZERO - LEVELS
    exact = (codes.double() - ZERO) @ weight.double().T
    try:
        packed = torch.ops.onednn.qlinear_prepack(weight, None)
        found = _product(codes, packed, torch.ones(16), torch.zeros(16, dtype=torch.int32))
    except (AttributeError, RuntimeError):  # no such operator, or none for this CPU
        return f"torch {torch.__version__} has no onednn::qlinear_pointwise for this CPU"
    if not torch.equal(found.double(), exact):
        return "this CPU's int8 products are not exact (it has no VNNI)"
    return None


def packed(projection: Projection) -> Projection:
    """The same map in the fastest form with the same numbers: bfloat16 on a CPU laid out once, all else as it is."""
    if isinstance(projection, Dense):
        weight = projection.weight
        if weight.dtype is torch.bfloat16 and weight.device.type == "cpu" and packs_bfloat16():
            return Packed.of(projection)
    return projection


def packed_layer(layer: LayerWeights) -> LayerWeights:
    """The layer with its projections `packed`; itself if that changes none."""
    plain = (layer.qkv, layer.o, layer.gate_up, layer.down)
    laid = [packed(p) for p in plain]
    return layer if all(a is b for a, b in zip(plain, laid, strict=True)) else layer.with_projections(*laid)


@dataclass(frozen=True, slots=True)
class Packed:
    """A bfloat16 map whose weight [out, in] lies as the kernel reads it; the plain one is not kept."""

    weight: Tensor
    bias: Tensor | None = None

    @classmethod
    def of(cls, dense: Dense) -> Packed:
        """Lay a weight out."""
        return cls(torch.ops.mkldnn._reorder_linear_weight(dense.weight, None), dense.bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to rows."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return y

    def part(self, first: int, last: int) -> Projection:
        """Outputs first..last - 1 only, laid out anew."""
        return packed(Dense(self.weight.to_dense(), self.bias).part(first, last))

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ids [n] of the weight: [n, in]."""
        return self.weight.to_dense()[ids]

    @property
    def parameters(self) -> int:
        """How many numbers it holds."""
        return self.weight.numel() + (0 if self.bias is None else self.bias.numel())


@dataclass(frozen=True, slots=True)
class Table:
    """Two forms of one matrix: looked up in one, applied in the other. For ends that are tied, or lent to drafters."""

    table: Projection
    product: Projection

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to rows."""
        return self.product(x)

    def part(self, first: int, last: int) -> Projection:
        """Outputs first..last - 1 only."""
        return self.product.part(first, last)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ids [n] of the matrix: [n, in]."""
        return self.table.rows(ids)

    @property
    def parameters(self) -> int:
        """How many numbers the matrix has."""
        return self.table.parameters


@dataclass(frozen=True, slots=True)
class Spread:
    """Inputs with copies: column j of longer rows is input source[j] times share[j], shares of an input sum to 1."""

    source: Tensor
    share: Tensor

    @classmethod
    def of(cls, peaks: Tensor, copies: int = COPIES) -> Spread:
        """Give copies to the inputs with the largest share left; peaks [in] is how large each input gets."""
        sizes = peaks.tolist()
        counts = [1] * len(sizes)
        heap = [(-size, i) for i, size in enumerate(sizes)]
        heapq.heapify(heap)
        for _ in range(copies):
            _, i = heap[0]
            counts[i] += 1
            heapq.heapreplace(heap, (-sizes[i] / counts[i], i))
        source = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(counts))
        return cls(source, 1 / torch.tensor(counts, dtype=torch.float32)[source])


@dataclass(frozen=True, slots=True)
class W8A8:
    """Codes of [out, in] laid out for the kernel, scale [out] (over 127) and zero [out]; first and last cut outputs."""

    packed: Tensor
    scale: Tensor
    zero: Tensor
    inputs: int
    first: int
    last: int
    spread: Spread | None = None
    bias: Tensor | None = None

    @classmethod
    def of(cls, dense: Dense, peaks: Tensor | None = None) -> W8A8:
        """Quantise symmetrically, each row to 127. With peaks [in], large inputs are spread over copies."""
        wide = dense.weight.float()
        outputs, inputs = wide.shape
        scale = (wide.abs().amax(1) / LEVELS).clamp_min(TINY)
        codes = (wide / scale.unsqueeze(-1)).round().to(torch.int8)
        spread = None if peaks is None else Spread.of(peaks)
        if spread is not None:
            codes = codes[:, spread.source]
        bias = None if dense.bias is None else dense.bias.bfloat16()
        laid = torch.ops.onednn.qlinear_prepack(codes, None)
        return cls(laid, scale / LEVELS, torch.zeros(outputs, dtype=torch.int32), inputs, 0, outputs, spread, bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to rows: the result is of x's dtype."""
        y = self._product(x, x.dtype)
        if self.last - self.first != y.shape[-1]:
            y = y[:, self.first : self.last]
        return y if self.bias is None else y + self.bias

    def _product(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """All outputs without the bias, rounded to dtype once."""
        if self.spread is not None:
            x = x.index_select(-1, self.spread.source) * self.spread.share
        peak = x.abs().amax(-1, keepdim=True).float()
        # Half a level above, so that cutting the digits off, as the cast does, rounds to the nearest. A row of zeros
        # gets codes without a meaning, and its peak of 0 makes a row of zeros of their product.
        codes = torch.addcdiv(_HALF, x, peak, value=LEVELS).to(torch.uint8)
        y = _product(codes, self.packed, self.scale, self.zero)
        return torch.mul(y, peak, out=torch.empty_like(y, dtype=dtype))

    def part(self, first: int, last: int) -> W8A8:
        """Outputs first..last - 1 only. What is laid out cannot be cut, so all are computed."""
        bias = None if self.bias is None else self.bias[first:last]
        first, last = self.first + first, self.first + last
        return W8A8(self.packed, self.scale, self.zero, self.inputs, first, last, self.spread, bias)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ids [n] of the matrix, read out by applying it to unit vectors: [n, in] bfloat16."""
        unit = torch.eye(self.inputs)
        return self._product(unit, torch.bfloat16)[:, ids + self.first].T

    @property
    def parameters(self) -> int:
        """How many weights it stands for, copies not counted."""
        return (self.last - self.first) * self.inputs + (0 if self.bias is None else self.bias.numel())


def _product(codes: Tensor, packed: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Codes [M, in] less their zero, times packed codes, times the scale of each output: [M, out] float32."""
    y: Tensor = torch.ops.onednn.qlinear_pointwise(
        codes, 1.0, ZERO, packed, scale, zero, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return y
