"""Row arithmetic whose result depends on the row alone, never on how many rows stand beside it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_CHUNK = 128


def row_sum(rows: Tensor) -> Tensor:
    """Sum each row in float64 from float32 (or wider) chunks: [N, V] -> [N].

    A single long row would be split over threads by a plain sum and differ in its last bits from the same row in a
    batch; chunks of 128 are always summed whole.
    """
    whole = rows.shape[-1] // _CHUNK * _CHUNK
    total: Tensor = rows[:, :whole].reshape(len(rows), whole // _CHUNK, _CHUNK).sum(-1).sum(-1, dtype=torch.float64)
    if whole < rows.shape[-1]:
        total = total + rows[:, whole:].sum(-1, dtype=torch.float64)
    return total


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Rows at ascending indices: [M, ...], [n] -> [n, ...]; a view, not a copy, where they are the first n.

    Only a CPU is asked: elsewhere the answer would cost a wait for the device.
    """
    n = len(index)
    if n and rows.device.type == "cpu" and int(index[-1]) == n - 1:
        return rows[:n]
    return rows[index]


def entries(rows: Tensor, limit: Tensor | float) -> tuple[Tensor, Tensor]:
    """Row and id of the entries above a number, or not below their row's own [N], in order: [N, V] -> [m], [m].

    On a CPU NumPy finds them several times faster than torch.
    """
    if rows.device.type != "cpu":
        found = rows >= limit.unsqueeze(-1) if isinstance(limit, Tensor) else rows > limit
        row, column = found.nonzero(as_tuple=True)
        return row, column
    values = rows.numpy(force=True)
    at = np.flatnonzero(values >= limit.numpy(force=True)[:, None] if isinstance(limit, Tensor) else values > limit)
    return torch.from_numpy(at // rows.shape[-1]), torch.from_numpy(at % rows.shape[-1])


def descending(rows: Tensor) -> Tensor:
    """Each row from its largest entry to its smallest: [N, V] -> [N, V]."""
    if rows.device.type != "cpu":
        return rows.sort(-1, descending=True).values
    return torch.from_numpy(-np.sort(-rows.numpy(force=True), axis=-1))


def mass_where(rows: Tensor, comparison: Tensor) -> Tensor:
    """Sum of the entries whose 0/1 mask is 1: rows [N, V], mask [N, V] in the rows' dtype (overwritten) -> [N]."""
    return row_sum(comparison.mul_(rows))


def greater(rows: Tensor, column: Tensor) -> Tensor:
    """0/1 mask rows > column in the rows' own dtype (several times cheaper than a bool mask): [N, V]."""
    return torch.gt(rows, column, out=torch.empty_like(rows))


def sum_by_row(row: Tensor, value: Tensor, n: int) -> Tensor:
    """Sum of the values that belong to each of n rows, one after another in float64: [m], [m] -> [n]."""
    return torch.bincount(row, weights=value.double(), minlength=n).double()  # of nothing it counts in integers


def entropy(law: Tensor) -> Tensor:
    """Shannon entropy of each law in nats: [N, V] -> [N]; 0 log 0 = 0."""
    return -row_sum(torch.xlogy(law, law))


def argmax(law: Tensor) -> Tensor:
    """The most probable id of each row, the lowest id among equals: [N, V] -> [N]."""
    return law.argmax(-1)


def one_hot(ids: Tensor, like: Tensor) -> Tensor:
    """Point masses at ids [N], shaped and typed as like [N, V]."""
    return torch.zeros_like(like).scatter_(-1, ids.unsqueeze(-1), 1.0)
