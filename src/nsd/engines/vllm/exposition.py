"""Prometheus counters in the server's process, fed from the workers' ledger a few times a minute.

    nsd:blocks_total, nsd:tested_total, nsd:ordinary_total, nsd:rescued_total, nsd:measured_total, nsd:excess_total,
    nsd:spent_total, nsd:bound_total      as `metrics` describes them, over all requests under NSD
    nsd:requests_total   admitted requests under NSD

They stand on /metrics beside vLLM's own, whose acceptance counters go on counting every accepted token. The variable
NSD_METRICS_SECONDS (5) is the time between two fetches; an idle server fetches nothing. With several API server
processes only the first one fetches.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from nsd.engines.vllm.metrics import COLUMNS
from nsd.engines.vllm.state import STATE, log

Everywhere = Callable[[Any, str], Awaitable[list[Any]]]
_ABOUT = {
    "blocks": "Verified blocks of requests under NSD.",
    "tested": "Drafted tokens that were tested.",
    "ordinary": "Drafted tokens kept by the exact test.",
    "rescued": "Drafted tokens kept by the nucleus alone.",
    "measured": "Tested drafted tokens whose ES was computed.",
    "excess": "Sum of the one-step excess ES over measured tokens.",
    "spent": "Sum of the one-step deviation in fact spent over measured tokens.",
    "bound": "Tested tokens whose ES is an upper bound.",
}


_QUIET = 60
"""So many fetches without news, and the server counts as idle."""
_TASKS: set[asyncio.Task[None]] = set()
"""A task that nobody refers to may vanish."""


class Counters:
    """The counters, and what they were last raised to."""

    def __init__(self) -> None:
        from prometheus_client import Counter

        self.by_name = {name: Counter(f"nsd:{name}", _ABOUT[name]) for name in COLUMNS}
        self.requests = Counter("nsd:requests", "Admitted requests under NSD.")
        self.last = dict.fromkeys(COLUMNS, 0.0)
        self.admitted = 0

    def raise_to(self, totals: dict[str, float]) -> bool:
        """Raise the counters to these totals; says whether any of them moved."""
        moved = False
        for name, value in totals.items():
            if value > self.last[name]:
                self.by_name[name].inc(value - self.last[name])
                self.last[name], moved = value, True
        if STATE.admitted > self.admitted:
            self.requests.inc(STATE.admitted - self.admitted)
            self.admitted = STATE.admitted
        return moved


def summed(answers: list[Any]) -> dict[str, float]:
    """Totals over engines: workers of one engine count the same drafts, so each engine's largest answer is taken."""
    by_engine: dict[Any, dict[str, float]] = {}
    for answer in answers:
        known = by_engine.get(answer["engine"])
        if known is None or answer["totals"]["tested"] > known["tested"]:
            by_engine[answer["engine"]] = answer["totals"]
    return {name: sum(totals[name] for totals in by_engine.values()) for name in COLUMNS}


def keep_counting(engine: Any, everywhere: Everywhere) -> None:
    """Start the task that feeds the counters, once per process, on the loop that runs now."""
    if STATE.problem is not None or int(getattr(engine.engine_core, "client_index", 0)) > 0 or _TASKS:
        return
    _TASKS.add(asyncio.get_running_loop().create_task(_count(engine, everywhere)))


async def _count(engine: Any, everywhere: Everywhere) -> None:
    seconds = float(os.environ.get("NSD_METRICS_SECONDS", "5"))
    counters = Counters()
    quiet = _QUIET
    while True:
        await asyncio.sleep(seconds)
        quiet = 0 if counters.admitted != STATE.admitted else quiet + 1
        if quiet >= _QUIET:
            continue
        try:
            if counters.raise_to(summed(await everywhere(engine, "nsd_metrics"))):
                quiet = 0
        except Exception as problem:
            log.warning("nsd: metrics are no longer counted: %s", problem)
            return
