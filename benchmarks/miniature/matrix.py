"""Which cells a report needs, in the order in which they are worth having.

A cell of 4,096 problems takes about two minutes of one core, so not everything is crossed with everything. Each shape's
most accurate target (its top) has the whole of Table 1; lower levels the separate model and what is built in, on the
first task. Thresholds, caps, K and baselines are for `deep` pairs, on the first task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.miniature import cells as c
from benchmarks.miniature.cells import Cell
from benchmarks.miniature.family import MATCHED, Manifest, mechanism_of

TASKS = ("mini-math", "mini-code")
SEEDS = (0, 1, 2, 3, 4)
Pair = tuple[str, str, str, int]  # target, task, drafter, K


def matrix(manifest: Manifest, tasks: tuple[str, ...] = TASKS, quick: bool = False) -> list[Cell]:
    """All cells, each once: Table 1, thresholds; if not quick also lower levels, caps, K, baselines, seeds."""
    tops = _tops(manifest)
    deep = [pair for pair in _pairs(manifest, tops, tasks[:1]) if _is_deep(pair[2])]
    found = list(_table_1(manifest, tops, tasks))
    found += [Cell(*pair[:3], c.nsd(pair[3], theta)) for pair in deep for theta in c.THETAS]
    if not quick:
        lower = [name for name in manifest.targets if name not in tops]
        found += _table_1(manifest, lower, tasks[:1], few=True)
        first = [pair for pair in deep if pair[0] == tops[0]]
        found += [Cell(*pair[:3], c.nsd(pair[3], cap=cap)) for pair in first for cap in c.CAPS]
        found += [cell for pair in deep if pair[0] == tops[0] or mechanism_of(pair[2]).built_in for cell in _ks(pair)]
        found += [Cell(*pair[:3], arm) for pair in first for arm in c.relaxed(pair[3])]
        found += _seeds(manifest, tops, tasks[:1])
    return list(dict.fromkeys(found))


def _tops(manifest: Manifest) -> list[str]:
    """The last, most accurate target of each shape; names end in -level."""
    return list({name.rpartition("-")[0] or name: name for name in manifest.targets}.values())


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
    for target, task, drafter, k in _pairs(manifest, targets, tasks):
        if few and not _is_deep(drafter):
            continue
        yield Cell(target, task, drafter, c.sd(k))
        yield Cell(target, task, drafter, c.nsd(k))
        if mechanism_of(drafter).native_match:
            yield Cell(target, task, drafter, c.match(k))


def _ks(pair: Pair) -> Iterator[Cell]:
    """K and theta together: a quarter and half of the mechanism's K, beside its whole."""
    target, task, drafter, k = pair
    for fewer in sorted({max(k // 4, 1), max(k // 2, 1)} - {k}):
        yield Cell(target, task, drafter, c.sd(fewer))
        yield from (Cell(target, task, drafter, c.nsd(fewer, theta)) for theta in c.THETAS)


def _seeds(manifest: Manifest, tops: list[str], tasks: tuple[str, ...]) -> Iterator[Cell]:
    """The mechanism table under further seeds: each mechanism on the first top that has it, matched."""
    mechanisms: set[str] = set()
    for target in tops:
        for drafter in manifest.of(target):
            mechanism, _, variant = drafter.partition(":")
            if mechanism in mechanisms or variant != MATCHED:
                continue
            mechanisms.add(mechanism)
            one = replace(manifest, drafters={f"{target}/{drafter}": ""})
            for cell in _table_1(one, [target], tasks):
                if cell.arm not in (c.AR_COLD, c.AR_TOP_P):
                    yield from (replace(cell, seed=seed) for seed in SEEDS[1:])
