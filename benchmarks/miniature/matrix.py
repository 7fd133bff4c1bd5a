"""Which cells a report needs, in the order in which they are worth having.

A cell of 4,096 problems takes minutes of one core, so not everything is crossed with everything. Each shape's most
accurate target (its top) has the whole of Table 1; lower levels the separate model and what is built in, on the first
task. Thresholds are for `deep` pairs, and last of all for every pair of the first top on every task and for lower
levels; caps, fading thresholds and baselines for the deep ones of the first top, K also for what is built in. Cells of
the MAIN groups take all problems, the others may take fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from benchmarks.miniature import cells as c
from benchmarks.miniature.cells import Arm, Cell
from benchmarks.miniature.family import MATCHED, Manifest, mechanism_of, tops

TASKS = ("mini-math", "mini-code")
SEEDS = (0, 1, 2, 3, 4)
MAIN = ("table 1", "thresholds")
"""Groups whose cells take all problems."""

Pair = tuple[str, str, str, int]  # target, task, drafter, K


@dataclass(frozen=True, slots=True)
class Wanted:
    """A cell, and the group that it belongs to."""

    cell: Cell
    group: str


def matrix(manifest: Manifest, tasks: tuple[str, ...] = TASKS, quick: bool = False) -> list[Wanted]:
    """All cells, each once, in the first group that has it; a quick run has the first three groups."""
    best = tops(manifest.targets)
    first, others = tasks[:1], tasks[1:]
    deep = [pair for pair in _pairs(manifest, best, first) if _is_deep(pair[2])]
    mine = [pair for pair in deep if pair[0] == best[0] or mechanism_of(pair[2]).built_in]
    wide = [*_pairs(manifest, best[:1], others), *_pairs(manifest, best[:1], first), *deep]
    lower = [name for name in manifest.targets if name not in best]
    under = [pair for pair in _pairs(manifest, lower, first) if _is_deep(pair[2])]
    groups: list[tuple[str, Iterable[Cell]]] = [
        ("table 1", _table_1(manifest, best, first)),
        ("thresholds", _of(mine, lambda k: [c.nsd(k, theta) for theta in c.THETAS])),
        ("second task", _table_1(manifest, best, others)),
    ]
    if not quick:
        only = [pair for pair in deep if pair[0] == best[0]]
        groups += [
            ("caps", _of(only, lambda k: [*(c.nsd(k, cap=cap) for cap in c.CAPS), *c.fadings(k)])),
            ("lower levels", _table_1(manifest, lower, first, few=True)),
            ("seeds", _seeds(manifest, best, first)),
            ("block lengths", (cell for pair in mine for cell in _ks(pair))),
            ("baselines", _of(only, lambda k: c.relaxed(k))),
            ("other thresholds", _of(wide, lambda k: [c.nsd(k, theta) for theta in c.THETAS])),
            ("thresholds of lower levels", _of(under, lambda k: [c.nsd(k, theta) for theta in c.THETAS])),
        ]
    found: dict[Cell, Wanted] = {}
    for group, cells in groups:
        for cell in cells:
            found.setdefault(cell, Wanted(cell, group))
    return list(found.values())


def _of(pairs: list[Pair], arms: Callable[[int], Iterable[Arm]]) -> Iterator[Cell]:
    """Cells of these ways of decoding for each pair."""
    for target, task, drafter, k in pairs:
        yield from (Cell(target, task, drafter, arm) for arm in arms(k))


def _is_deep(drafter: str) -> bool:
    """The separate model in both variants, and what is part of its target."""
    return drafter.startswith("draft-model") or mechanism_of(drafter).built_in


def _pairs(manifest: Manifest, targets: list[str], tasks: tuple[str, ...]) -> Iterator[Pair]:
    for target in targets:
        for drafter in manifest.of(target):
            for task in tasks:
                yield target, task, drafter, mechanism_of(drafter).k


def _table_1(manifest: Manifest, targets: list[str], tasks: tuple[str, ...], few: bool = False) -> Iterator[Cell]:
    """Plain decoding at temperature 1, at 0 and with top-p; SD, native SD and NSD at the default threshold."""
    for target in targets:
        for task in tasks:
            yield from (Cell(target, task, None, arm) for arm in (c.AR, c.AR_COLD, c.AR_TOP_P))
        for one, task, drafter, k in _pairs(manifest, [target], tasks):
            if few and not _is_deep(drafter):
                continue
            yield Cell(one, task, drafter, c.sd(k))
            yield Cell(one, task, drafter, c.nsd(k))
            if mechanism_of(drafter).native_match:
                yield Cell(one, task, drafter, c.match(k))


def _ks(pair: Pair) -> Iterator[Cell]:
    """K and theta together: a quarter and half of the mechanism's K, beside its whole."""
    target, task, drafter, k = pair
    for fewer in sorted({max(k // 4, 1), max(k // 2, 1)} - {k}):
        yield Cell(target, task, drafter, c.sd(fewer))
        yield from (Cell(target, task, drafter, c.nsd(fewer, theta)) for theta in c.THETAS)


def _seeds(manifest: Manifest, best: list[str], tasks: tuple[str, ...]) -> Iterator[Cell]:
    """The mechanism table under further seeds: each mechanism on the first top that has it, matched."""
    mechanisms: set[str] = set()
    for target in best:
        for drafter in manifest.of(target):
            mechanism, _, variant = drafter.partition(":")
            if mechanism in mechanisms or variant != MATCHED:
                continue
            mechanisms.add(mechanism)
            one = replace(manifest, drafters={f"{target}/{drafter}": ""})
            for cell in _table_1(one, [target], tasks):
                if cell.arm not in (c.AR_COLD, c.AR_TOP_P):
                    yield from (replace(cell, seed=seed) for seed in SEEDS[1:])
