"""docs/results/miniature.md: tables from rows, the paper's figures beside ours, and a verdict a claim.

A table shows the cells that were measured and a dash for the others; nothing is filled in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.miniature import cells as c
from benchmarks.miniature.cells import AR, AR_COLD, AR_TOP_P, Arm, Cell, match, nsd, sd
from benchmarks.miniature.changes import Change, change_of, points
from benchmarks.miniature.claims import claims
from benchmarks.miniature.family import LEVELS, MECHANISMS, TARGETS, by_level, mechanism_of, tops
from benchmarks.miniature.lessons import lessons
from benchmarks.miniature.matrix import SEEDS
from benchmarks.miniature.numbers import Book, Measured, estimate, mcnemar, paired
from nsd.bench.document import markdown_table
from nsd.bench.stats import Estimate

NONE = "-"


@dataclass(frozen=True, slots=True)
class About:
    """What a report says of its run: a line on what was run, facts of the models, and how many cells are still open."""

    ran: str
    facts: Mapping[str, Any]
    open_cells: int


def report(book: Book, about: About) -> str:
    """The whole document in Markdown."""
    parts = [
        "# The paper in miniature",
        "Made by `python -m benchmarks.miniature`; every number below is recomputed from stored rows, one a problem.",
        about.ran,
        _state(book, about),
        _shape(book, about.facts),
        "## Claims",
        _claims(book),
        lessons(book),
        "## Models",
        _models(about.facts),
        "## Table 1: score, speed-up and accepted length",
        _HOW,
        *(_table_1(book, target) for target in by_level(book.targets)),
        "## Levels and sizes",
        _levels(book, about.facts),
        _thetas_by_level(book),
        "## Thresholds",
        *_by_pair(book, _thetas),
        "## Caps on one step's deviation, and thresholds that fall with confidence",
        *_by_pair(book, _caps),
        "## Block length and threshold",
        *_by_pair(book, _grid),
        "## Relaxed baselines",
        *_by_pair(book, _baselines),
        "## Seeds",
        *_by_pair(book, _seeds),
        "## Where SD rejects and NSD rescues",
        _analysis(book),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


ENOUGH = 4000
"""Problems a cell from which a difference of a point can be told."""


def _state(book: Book, about: About) -> str:
    """How much there is, and what is missing of the full plan."""
    sizes = [len(m.rows) for m in book.cells.values()]
    if not sizes:
        return "Nothing has been measured yet."
    enough = sum(size >= ENOUGH for size in sizes)
    said = [f"{len(sizes)} cells are measured, with {min(sizes):,} to {max(sizes):,} problems a cell."]
    if enough < len(sizes):
        said.append(
            f"**{len(sizes) - enough} of them have fewer than the {ENOUGH:,} that a difference of a point needs**: "
            "read scores by their intervals."
        )
    if about.open_cells:
        said.append(
            f"{about.open_cells} cells of the full plan are **not measured** and show as a dash or are left out."
        )
    shapes = {target.rpartition("-")[0] for target in book.targets}
    if absent := [name for name in TARGETS if name not in shapes]:
        said.append(f"Shapes of the full plan that are not in this run: {', '.join(absent)}.")
    drafted = {(target, drafter.partition(":")[0]) for target, _, drafter in book.pairs}
    lacking = sorted(
        {mechanism for plan in TARGETS.values() for mechanism in plan.mechanisms} - {kind for _, kind in drafted}
    )
    if lacking:
        said.append(f"Mechanisms without a cell: {', '.join(lacking)}.")
    return " ".join(said)


def _shape(book: Book, facts: Mapping[str, Any]) -> str:
    """Table 1 in short: the most accurate target of each shape on the first task."""
    rows = []
    best, order = tops(book.targets), by_level(book.targets)
    for target, task, drafter in sorted(book.pairs, key=lambda pair: order.index(pair[0])):
        k = mechanism_of(drafter).k
        base, relaxed = (book.get(Cell(target, task, drafter, arm)) for arm in (sd(k), nsd(k)))
        plain = book.get(Cell(target, task, None, AR))
        if base is None or relaxed is None or target not in best or task != book.tasks(target)[0]:
            continue
        mechanism, _, variant = drafter.partition(":")
        scores = [NONE if m is None else f"{100 * m.accuracy.fraction:.1f}" for m in (plain, base, relaxed)]
        saved = base.calls.fraction / relaxed.calls.fraction
        rows.append([
            target, f"{MECHANISMS[mechanism].title}, {variant}, K={k}", f"{min(len(base.rows), len(relaxed.rows)):,}",
            *scores, points(paired(relaxed, base, lambda m: m.accuracy)), f"{base.tau.fraction:.2f}",
            f"{relaxed.tau.fraction:.2f}", f"{relaxed.tau.fraction:.2f}", f"{saved:.2f}",
        ])  # fmt: skip
    if not rows:
        return ""
    head = [
        "target", "mechanism", "n", "AR", "SD", "NSD", "NSD - SD", "τ of SD", "τ of NSD", "speed-up over AR", "over SD"
    ]  # fmt: skip
    aside = "; ".join(_reached(target, facts) for target in best if _reached(target, facts))
    return "\n\n".join(
        part
        for part in (
            "## The shape of Table 1",
            "Percent of mini-math solved at temperature 1, theta 0.95; speed-ups in target calls. All arms, tasks and "
            "intervals follow below. " + (f"Reached in validation: {aside}." if aside else ""),
            markdown_table(head, [*rows, *_PAPER]),
        )
        if part
    )


_PAPER = (
    ["the paper, Qwen3-8B", "DSpark, K=7", NONE, NONE, NONE, NONE, NONE, "5.41", "6.69", NONE, NONE],
    ["the paper, Nemotron-8B", "linear self-speculation", NONE, NONE, NONE, NONE, NONE, "4.98", "11.82", NONE, NONE],
    ["the paper, mean of 30", "both", NONE, NONE, NONE, NONE, "+0.40", NONE, NONE, "4.23 (time)", "1.85 (time)"],
)


def _reached(target: str, facts: Mapping[str, Any]) -> str:
    """What a target reached beside what its level aims at."""
    level, fact = target.rpartition("-")[2], facts.get(target, {})
    if level not in LEVELS or "accuracy" not in fact:
        return ""
    return f"{target} {100 * fact['accuracy']:.0f}% (aim {100 * LEVELS[level]:.0f}%)"


def _claims(book: Book) -> str:
    rows = [[claim.paper, claim.figure, f"**{claim.verdict}**", claim.ours] for claim in claims(book)]
    if not rows:
        return "No pair was measured."
    return f"{_OF_THESE}\n\n{markdown_table(['claim', 'the paper', 'here', 'our figures (95% intervals)'], rows)}"


_OF_THESE = (
    "A verdict speaks of these models alone; Models says how long each was trained. A drafter trained for few minutes "
    "is mostly turned down far out in the target's tail, where no rule rescues."
)


def _models(facts: Mapping[str, Any]) -> str:
    rows = [[name, *(str(one.get(key, NONE)) for key in ("parameters", "training"))] for name, one in facts.items()]
    return markdown_table(["model", "parameters", "training"], rows)


_HOW = (
    "Scores are percent of problems solved, with 95% bootstrap intervals over problems; differences are paired. The "
    "speed-up is in target calls: tokens a verification pass over plain decoding's one. Tokens a second are of this "
    "program at batch 128, where Python's share dominates; they rank nothing but are shown."
)


def _table_1(book: Book, target: str) -> str:
    rows = []
    for task in book.tasks(target):
        plain = book.get(Cell(target, task, None, AR))
        for arm in (AR, AR_COLD, AR_TOP_P):
            if (m := book.get(Cell(target, task, None, arm))) is not None:
                rows.append([task, NONE, arm.speaks, *_main(m, plain, None)])
        for drafter in (d for t, k, d in book.pairs if (t, k) == (target, task)):
            k = mechanism_of(drafter).k
            base = book.get(Cell(target, task, drafter, sd(k)))
            for arm in (sd(k), match(k), nsd(k)):
                if (m := book.get(Cell(target, task, drafter, arm))) is not None:
                    rows.append([task, drafter, f"{arm.speaks}, K={k}", *_main(m, plain, base)])
    head = ["task", "drafter", "way", "n", "score", "- AR", "- SD", "McNemar p", "speed-up in calls", "τ", "tokens/s"]
    return f"### {target}\n\n" + markdown_table(head, rows)


def _levels(book: Book, facts: Mapping[str, Any]) -> str:
    """One kind of drafter on several targets: what the target's skill and size change."""
    by_drafter: dict[tuple[str, str], list[Change]] = {}
    for target, task, drafter in book.pairs:
        change = change_of(book, (target, task, drafter))
        if change is not None:
            by_drafter.setdefault((task, drafter), []).append(change)
    rows = []
    for (task, drafter), changes in by_drafter.items():
        mine = {change.pair[0]: change for change in changes}
        for target in by_level(mine) if len(mine) > 1 else ():
            change = mine[target]
            plain = book.get(Cell(target, task, None, AR))
            rows.append([
                task, drafter, target, str(facts.get(target, {}).get("parameters", NONE)), f"{change.n:,}",
                NONE if plain is None else f"{100 * plain.accuracy.fraction:.1f}", points(change.score),
                *(f"{m.tau.fraction:.2f}" for m in (change.base, change.relaxed)), f"{1 / (1 - change.saved):.2f}",
                _number(change.relaxed.value("ES", "tested")),
            ])  # fmt: skip
    if not rows:
        return "No kind of drafter was measured on more than one target."
    head = [
        "task", "drafter", "target", "parameters", "n", "AR, %", "NSD - SD, points", "τ of SD", "τ of NSD",
        "NSD over SD", "mean ES",
    ]  # fmt: skip
    said = (
        f"NSD at theta {c.DEFAULT_THETA:g}; the speed-up is in target calls. The separate model is the same checkpoint "
        "beside every target; heads, blocks and what is built in are each target's own."
    )
    return f"{said}\n\n{markdown_table(head, rows)}"


FEWEST_THETAS = 3
"""Thresholds below which a pair has no row among the levels."""


def _thetas_by_level(book: Book) -> str:
    """One row a pair that was measured at several thresholds: whether a better target wants another one."""
    rows = []
    order = by_level(book.targets)
    for target, task, drafter in sorted(book.pairs, key=lambda pair: (pair[1], pair[2], order.index(pair[0]))):
        plain = book.get(Cell(target, task, None, AR))
        changes = [change_of(book, (target, task, drafter), theta) for theta in c.THETAS]
        if plain is None or sum(change is not None for change in changes) < FEWEST_THETAS:
            continue
        said = [NONE if change is None else points(change.score) for change in changes]
        rows.append([task, drafter, target, f"{100 * plain.accuracy.fraction:.1f}", *said])
    if not rows:
        return ""
    head = ["task", "drafter", "target", "AR, %", *(f"theta {theta:g}" for theta in c.THETAS)]
    return f"NSD less SD in points, by threshold:\n\n{markdown_table(head, rows)}"


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"


def _main(m: Measured, plain: Measured | None, base: Measured | None) -> list[str]:
    against = [_points(m, other) if other is not None and other is not m else NONE for other in (plain, base)]
    p = f"{mcnemar(m, base):.2g}" if base is not None and base is not m else NONE
    drafted = m.cell.arm.k > 0
    speeds = [_text(estimate(m.tau), 2), f"{m.tau.fraction:.2f}"] if drafted else ["1", "1"]
    return [f"{len(m.rows):,}", score(m), *against, p, *speeds, f"{m.speed.fraction:,.0f}"]


def _by_pair(book: Book, make: Any) -> list[str]:
    """One table for each pair that has something to show."""
    found = []
    for target, task, drafter in book.pairs:
        rows = make(book, target, task, drafter, mechanism_of(drafter).k)
        if len(rows) > 1:
            head = [
                "way",
                "n",
                "score",
                "- SD",
                "calls/token",
                "τ",
                "mean R",
                "mean ES",
                "ES content",
                "ES phrasing",
                "spent",
            ]
            found.append(f"### {target}, {task}, {drafter}\n\n" + markdown_table(head, rows))
    return found or ["Not measured in this run."]


def _line(m: Measured, base: Measured | None) -> list[str]:
    values = [("R", "all"), ("ES", "all"), ("ES", "content"), ("ES", "phrasing"), ("eps", "all")]
    found = [m.value(name, "tested", kind) for name, kind in values]
    less = _points(m, base) if base is not None and base is not m else NONE
    name = f"{m.cell.arm.speaks}, K={m.cell.arm.k}"
    numbers = [f"{m.calls.fraction:.4f}", f"{m.tau.fraction:.2f}", *map(_number, found)]
    return [name, f"{len(m.rows):,}", score(m), less, *numbers]


def _lines(book: Book, cell: Cell, arms: Iterable[Arm]) -> list[list[str]]:
    base = book.get(Cell(cell.target, cell.task, cell.drafter, cell.arm, cell.seed))
    cells = (Cell(cell.target, cell.task, cell.drafter, arm, cell.seed) for arm in (cell.arm, *arms))
    return [_line(m, base) for m in map(book.get, cells) if m is not None]


def _thetas(book: Book, target: str, task: str, drafter: str, k: int) -> list[list[str]]:
    return _lines(book, Cell(target, task, drafter, sd(k)), (nsd(k, theta) for theta in c.THETAS))


def _caps(book: Book, target: str, task: str, drafter: str, k: int) -> list[list[str]]:
    arms = [*(nsd(k, cap=cap) for cap in c.CAPS), *c.fadings(k)]
    if not any(book.get(Cell(target, task, drafter, arm)) for arm in arms):
        return []
    return _lines(book, Cell(target, task, drafter, sd(k)), [*arms, nsd(k)])


def _grid(book: Book, target: str, task: str, drafter: str, k: int) -> list[list[str]]:
    rows = []
    for fewer in sorted({max(k // 4, 1), max(k // 2, 1)} - {k}):
        rows += _lines(book, Cell(target, task, drafter, sd(fewer)), (nsd(fewer, theta) for theta in c.THETAS))
    return rows


def _baselines(book: Book, target: str, task: str, drafter: str, k: int) -> list[list[str]]:
    arms = c.relaxed(k)
    if not any(book.get(Cell(target, task, drafter, arm)) for arm in arms):
        return []
    return _lines(book, Cell(target, task, drafter, sd(k)), [nsd(k), *arms])


def _seeds(book: Book, target: str, task: str, drafter: str, k: int) -> list[list[str]]:
    rows = []
    for seed in SEEDS:
        if seed and book.get(Cell(target, task, drafter, sd(k), seed)) is None:
            continue
        for row in _lines(book, Cell(target, task, drafter, sd(k), seed), [match(k), nsd(k)]):
            rows.append([f"seed {seed}: {row[0]}", *row[1:]])
    return rows if any(not row[0].startswith("seed 0") for row in rows) else []


_OF_SD = (
    ("rejected_in_95", "rejected", "all"),
    ("rejected_top10", "rejected", "all"),
    ("rejected", "tested", "content"),
    ("rejected", "tested", "phrasing"),
)
_OF_NSD = (
    ("rescued_top5", "rescued", "all"),
    ("rescued_entropy_q", "rescued", "all"),
    ("rescued_entropy_p", "rescued", "all"),
    ("rescued_entropy_p_higher", "rescued", "all"),
)


def _value(m: Measured | None, above: str, below: str, kind: str) -> float | None:
    return None if m is None else m.value(above, below, kind)


def _analysis(book: Book) -> str:
    rows = []
    for target, task, drafter in book.pairs:
        k = mechanism_of(drafter).k
        base, relaxed = (book.get(Cell(target, task, drafter, arm)) for arm in (sd(k), nsd(k)))
        values = [
            *(_value(base, *names) for names in _OF_SD),
            *(_value(relaxed, *names) for names in _OF_NSD),
        ]
        rows.append([f"{target}, {task}, {drafter}", *(NONE if v is None else f"{v:.3f}" for v in values)])
    paper = ["the paper", "0.526", "0.815", NONE, NONE, "0.941", "0.865", "1.101", "0.703"]
    head = [
        "pair", "rejected, in .95 nucleus", "rejected, top 10", "rejected a content token", "a phrasing token",
        "rescued, top 5", "draft entropy", "target entropy", "target's higher",
    ]  # fmt: skip
    return markdown_table(head, [*rows, paper]) if rows else "No pair was measured."


def score(m: Measured) -> str:
    """Percent right, with its interval."""
    return _text(estimate(m.accuracy), 1, 100)


def _points(m: Measured, other: Measured) -> str:
    return _text(paired(m, other, lambda one: one.accuracy), 1, 100)


def _text(e: Estimate, digits: int, scale: float = 1.0) -> str:
    if e.value is None:
        return NONE
    if e.low is None or e.high is None:
        return f"{scale * e.value:.{digits}f}"
    return f"{scale * e.value:.{digits}f} [{scale * e.low:.{digits}f}, {scale * e.high:.{digits}f}]"
