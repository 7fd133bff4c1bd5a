"""What became of the drafts of requests under NSD, counted on the device and fetched when somebody asks.

A step adds to a table that stays on the device; nothing waits for it. `fetch` is called by RPC, between steps, and only
then does a copy cross. Figures per request and in total:

    blocks    verified blocks
    tested    drafted tokens that were tested (up to the first rejection)
    ordinary  kept by the engine's exact test
    rescued   kept by the nucleus alone: the exact test would have turned them down
    measured  tested tokens whose ES was computed: all under a cap, with point masses, or with NSD_ACCOUNTING=full
    excess    sum of ES over measured tokens
    spent     sum of lam ES over them, the deviation in fact spent; its mean is the mean of rescued
    bound     tested tokens whose ES is an upper bound (sampled draft, law not available)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nsd.engines.relax import Decision
from nsd.engines.vllm.state import log

COLUMNS = ("blocks", "tested", "ordinary", "rescued", "measured", "excess", "spent", "bound")
_KEPT = 1024
_MANY = 4096


class Ledger:
    """Counts of one worker: a device table with a row per live request, and plain numbers for the finished ones."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.free: list[int] = []
        self.table: Tensor | None = None
        self.finished: OrderedDict[str, list[float]] = OrderedDict()
        self.totals = [0.0] * len(COLUMNS)
        self.alive: Callable[[str], bool] = lambda _: True
        self.told = False

    def rows_of(self, requests: Sequence[str], device: torch.device) -> list[int]:
        """The table row of each request; new requests get one. Waits for the device once in 4096 requests."""
        if len(self.rows) > _MANY:
            self.retire()
        for request in requests:
            if request not in self.rows:
                if not self.free:
                    self._grow(device)
                self.rows[request] = self.free.pop()
        return [self.rows[request] for request in requests]

    def _grow(self, device: torch.device) -> None:
        old = 0 if self.table is None else len(self.table)
        # Steps run in inference mode, `retire` does not, and both write here: an ordinary tensor allows it.
        with torch.inference_mode(False):
            more = torch.zeros(max(64, old), len(COLUMNS), dtype=torch.float64, device=device)
            self.table = more if self.table is None else torch.cat([self.table, more])
        self.free = list(range(len(self.table) - 1, old - 1, -1))

    def add(
        self, row: Tensor, place: Tensor, kept: Tensor, decision: Decision, passed: Tensor, acts: Tensor, bound: bool
    ) -> None:
        """Add one step: per draft its table row, its place in its block, how many of the block were kept [N each].

        passed says which would have passed the exact test, acts which belong to requests under NSD; bound says that
        drafts were sampled but their law was missing.
        """
        if bound and not self.told:
            self.told = True
            log.warning(
                "nsd: the law of sampled drafts is missing in a step; they count as point masses, ES is a bound"
            )
        tested = acts & (place <= kept)
        stands = acts & (place < kept)
        rescued = stands & decision.forced & ~passed
        spent, es = decision.spent, decision.es
        zero = torch.zeros_like(decision.lam)
        step = torch.stack(
            [
                (tested & (place == 0)).double(),
                tested.double(),
                (stands & ~rescued).double(),
                rescued.double(),
                zero if es is None else tested.double(),
                zero if es is None else torch.where(tested, es, 0.0),
                zero if spent is None else torch.where(tested, spent, 0.0),
                tested.double() if bound else zero,
            ],
            -1,
        )
        if self.table is not None:
            self.table.index_add_(0, row, step)

    def retire(self) -> list[list[float]]:
        """Copy the table, move requests that are gone to the finished ones; returns the table as it was."""
        values: list[list[float]] = [] if self.table is None else self.table.tolist()
        for request in [request for request in self.rows if not self.alive(request)]:
            row = self.rows.pop(request)
            self.finished[request] = values[row]
            self.totals = [a + b for a, b in zip(self.totals, values[row], strict=True)]
            if self.table is not None:
                self.table[row] = 0.0
            self.free.append(row)
            if len(self.finished) > _KEPT:
                self.finished.popitem(last=False)
        return values

    def fetch(self) -> dict[str, Any]:
        """Totals since the start, and the figures of live requests and of the last 1024 finished ones."""
        values = self.retire()
        live = {request: values[row] for request, row in self.rows.items()}
        totals = list(self.totals)
        for figures in live.values():
            totals = [a + b for a, b in zip(totals, figures, strict=True)]
        named = {request: dict(zip(COLUMNS, v, strict=True)) for request, v in {**self.finished, **live}.items()}
        return {"totals": dict(zip(COLUMNS, totals, strict=True)), "requests": named}


LEDGER = Ledger()
