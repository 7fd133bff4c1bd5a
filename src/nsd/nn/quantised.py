"""Weight-only quantised projections by torch's own CPU kernels: int8 with a scale per row, int4 in groups of 32.

Activations stay bfloat16, for which the kernels are made. A pass of one token is bound by reading weights, so a half
or a quarter of the bytes is most of the gain; the int8 kernel takes four rows at a time, so a fifth costs another read.

Uses of torch (>= 2.9): `_weight_int8pack_mm(x, weight, scales)`, `_convert_weight_to_int4pack_for_cpu(weight, tiles)`,
`_weight_int4pack_mm_for_cpu(x, packed, group, scales and zeros)`, whose value of a code c is (c - 8) scale + zero.
Source: pytorch aten/src/ATen/native/LinearAlgebra.cpp, aten/src/ATen/native/cpu/int4mm_kernel.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from nsd.errors import ModelError
from nsd.nn.weights import Dense, Projection

GROUP = 32
"""Inputs that share a scale in int4."""
UNPACKED = 48
"""Rows from which an int8 weight is widened for one plain product, which reads it once."""


@dataclass(frozen=True, slots=True)
class Int8:
    """weight [out, in] int8 times scale [out]; bias [out] or None."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None = None

    @classmethod
    def of(cls, dense: Dense) -> Int8:
        """Quantise symmetrically: the largest entry of each row becomes 127. Codes are taken with the stored scale."""
        wide = dense.weight.float()
        scale = (wide.abs().amax(1) / 127).clamp_min(1e-12).bfloat16()
        codes = (wide / scale.float().unsqueeze(-1)).round().clamp(-127, 127).to(torch.int8)
        return cls(codes, scale, _bias(dense))

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to rows."""
        if x.shape[0] >= UNPACKED:
            y = functional.linear(x, self.weight.to(x.dtype)).mul_(self.scale)
        else:
            y = torch._weight_int8pack_mm(x, self.weight, self.scale)
        return y if self.bias is None else y + self.bias

    def part(self, first: int, last: int) -> Int8:
        """Outputs first..last - 1 only."""
        bias = None if self.bias is None else self.bias[first:last]
        return Int8(self.weight[first:last], self.scale[first:last], bias)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ids [n] of the matrix: [n, in] bfloat16."""
        return self.weight[ids].to(self.scale.dtype) * self.scale[ids].unsqueeze(-1)

    @property
    def parameters(self) -> int:
        """How many weights it stands for."""
        return self.weight.numel() + (0 if self.bias is None else self.bias.numel())


@dataclass(frozen=True, slots=True)
class Int4:
    """packed codes of [out, in], levels [in / 32, out, 2] scale and zero of each group; first and last cut outputs."""

    packed: Tensor
    levels: Tensor
    first: int
    last: int
    bias: Tensor | None = None

    @classmethod
    def of(cls, dense: Dense) -> Int4:
        """Quantise each group to 16 levels from its least to its largest entry. Raises ModelError if sizes forbid."""
        outputs, inputs = dense.weight.shape
        if inputs % GROUP or outputs % 16:
            raise ModelError(
                f"int4 wants inputs in multiples of {GROUP} and outputs of 16, a weight has {inputs} and {outputs}; "
                "take --dtype int8"
            )
        groups = torch.unflatten(dense.weight.float(), 1, (-1, GROUP))
        low, high = groups.amin(-1), groups.amax(-1)
        scale = ((high - low) / 15).clamp_min(1e-12).bfloat16()
        zero = (low + 8 * scale.float()).bfloat16()
        codes = (groups - zero.float().unsqueeze(-1)) / scale.float().unsqueeze(-1) + 8
        codes = codes.round().clamp(0, 15).to(torch.int32).flatten(1)
        levels = torch.stack((scale, zero), -1).transpose(0, 1).contiguous()
        return cls(torch._convert_weight_to_int4pack_for_cpu(codes, 1), levels, 0, outputs, _bias(dense))

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to rows."""
        y = torch._weight_int4pack_mm_for_cpu(x, self.packed, GROUP, self.levels)
        if self.last - self.first != y.shape[-1]:
            y = y[:, self.first : self.last]
        return y if self.bias is None else y + self.bias

    def part(self, first: int, last: int) -> Int4:
        """Outputs first..last - 1 only. Packed codes cannot be cut, so all are computed."""
        bias = None if self.bias is None else self.bias[first:last]
        return Int4(self.packed, self.levels, self.first + first, self.first + last, bias)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ids [n] of the matrix, read out by applying it to unit vectors: [n, in] bfloat16."""
        inputs = self.levels.shape[0] * GROUP
        unit = torch.eye(inputs, dtype=self.levels.dtype)
        return torch._weight_int4pack_mm_for_cpu(unit, self.packed, GROUP, self.levels)[:, ids + self.first].T

    @property
    def parameters(self) -> int:
        """How many weights it stands for."""
        inputs = self.levels.shape[0] * GROUP
        return (self.last - self.first) * inputs + (0 if self.bias is None else self.bias.numel())


FORMS: dict[str, Callable[[Dense], Projection]] = {"int8": Int8.of, "int4": Int4.of}


def _bias(dense: Dense) -> Tensor | None:
    return None if dense.bias is None else dense.bias.bfloat16()
