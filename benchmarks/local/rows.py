"""From answers to rows: every figure of a cell with its interval, and the refusal of rows that tell half of it.

Rates and taus are fractions of totals; intervals are 95% paired bootstraps over prompts. What a rule costs in quality
is the difference from plain decoding of the same weights on the same prompts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.local.cells import Cell
from benchmarks.local.samples import FEWEST_PROMPTS, FEWEST_TOKENS, Sample, Score, Store
from nsd.bench.stats import Estimate, Totals, difference, fraction, ratio
from nsd.errors import NSDError

PARTS = ("draft", "verify", "decision", "rest")
Count = Callable[[Sample, Score], tuple[float, float]]


class InvalidRow(NSDError):
    """A row without all that has to stand beside a speed."""


@dataclass(frozen=True, slots=True)
class Row:
    """One cell's figures; None where a cell cannot have it (peers have no blocks, plain decoding drafts nothing).

    rate counts the prefill, decode_rate does not; sd_tau is standard speculation's on the same drafts; spent is the
    deviation really spent (mean ES unless capped); log_p and entropy in nats a token; distinct 1 to 3 the share of
    different n-grams inside an answer; delta their paired differences from plain decoding; ms medians a block.
    """

    cell: Cell
    prompts: int
    tokens: int
    sessions: tuple[int, ...]
    rate: Estimate
    decode_rate: Estimate | None
    tau: Estimate
    sd_tau: float | None
    ES: float | None
    ES_is: str | None
    spent: float | None
    log_p: Estimate
    entropy: Estimate
    distinct: tuple[Estimate, Estimate, Estimate]
    length: Estimate
    delta: dict[str, Estimate]
    ms: dict[str, float] | None
    decision_share: float | None
    kept_by_depth: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        found = asdict(self)
        return {"name": self.cell.name, **found}


def require_whole(row: Row, prompts: int = FEWEST_PROMPTS, tokens: int = FEWEST_TOKENS) -> None:
    """Refuse a row that lacks a figure or was measured on too little. Raises InvalidRow."""
    lacking = [name for name in ("rate", "tau", "log_p", "entropy", "length") if _empty(getattr(row, name))]
    lacking += [f"distinct-{n + 1}" for n, found in enumerate(row.distinct) if _empty(found)]
    if row.cell.engine == "nsd":
        lacking += [name for name in ("ms", "decision_share", "decode_rate") if getattr(row, name) is None]
    if not row.cell.plain:
        lacking += [name for name in ("sd_tau", "ES", "spent") if getattr(row, name) is None]
    if not row.cell.plain or row.cell.engine != "nsd":
        lacking += [f"difference in {name}" for name in _QUALITY if name not in row.delta]
    if lacking:
        raise InvalidRow(f"{row.cell.name} lacks {', '.join(lacking)}; measure it with its partner and plain decoding")
    if row.prompts < prompts or row.tokens < tokens:
        raise InvalidRow(
            f"{row.cell.name} has {row.prompts} prompts and {row.tokens} tokens, wanted {prompts} and {tokens}; "
            "run the same command again, it goes on where it was"
        )


def rows_of(cells: Sequence[Cell], store: Store, prompts: int, tokens: int) -> tuple[list[Row], dict[str, str]]:
    """The valid rows, and the others by name with the reason."""
    found, refused = [], {}
    for cell in cells:
        try:
            row = row_of(cell, store)
            require_whole(row, prompts, tokens)
            found.append(row)
        except InvalidRow as reason:
            refused[cell.name] = str(reason)
    return found, refused


def row_of(cell: Cell, store: Store) -> Row:
    """One cell's row. Raises InvalidRow for one without samples or scores."""
    mine = store.of(cell.name)
    if not mine or any((s.cell, s.index) not in store.scores for s in mine):
        raise InvalidRow(f"{cell.name} has no {'scores' if mine else 'samples'} yet")
    plain, partner = store.of(cell.baseline().name), cell.partner()
    beside = store.of(partner.name) if partner else mine if cell.rule == "sd" else []
    laps = np.array([lap for s in mine for lap in s.laps], dtype=np.float64)
    tested, evaluated = sum(s.tested for s in mine), sum(s.evaluated for s in mine)
    exact = evaluated == tested > 0
    rescued = sum(s.rescued for s in mine) / tested if tested else None
    return Row(
        cell=cell,
        prompts=len(mine),
        tokens=sum(len(s.ids) for s in mine),
        sessions=tuple(sorted({s.session for s in mine})),
        rate=_fraction(mine, store, _rate),
        decode_rate=None if any(s.decode_s is None for s in mine) else _fraction(mine, store, _decode_rate),
        tau=_fraction(mine, store, _tau),
        sd_tau=_fraction(beside, store, _tau).value if beside else None,
        ES=None if cell.plain else sum(s.sum_ES for s in mine) / evaluated if exact else rescued,
        ES_is=None if cell.plain else "exact" if exact else "estimated by the rescue rate",
        spent=None if cell.plain else sum(s.sum_eps for s in mine) / evaluated if exact else rescued,
        log_p=_fraction(mine, store, _QUALITY["log p"]),
        entropy=_fraction(mine, store, _QUALITY["entropy"]),
        distinct=(_distinct(mine, store, 1), _distinct(mine, store, 2), _distinct(mine, store, 3)),
        length=_fraction(mine, store, _QUALITY["length"]),
        delta={name: _difference(mine, plain, store, count) for name, count in _QUALITY.items()} if plain else {},
        ms={part: median(laps[:, i]) / 1e3 for i, part in enumerate(PARTS)} if len(laps) else None,
        decision_share=float(laps[:, 2].sum() / laps.sum()) if len(laps) else None,
        kept_by_depth=_kept(mine),
    )


def speed_up(fast: Cell, slow: Cell, store: Store, decode_only: bool = False) -> Estimate:
    """Ratio of tokens per second on the prompts that both answered."""
    mine, other = _common(store.of(fast.name), store.of(slow.name))
    count = _decode_rate if decode_only else _rate
    return ratio(_totals(mine, store, count), _totals(other, store, count)).estimate()


def _rate(s: Sample, _: Score) -> tuple[float, float]:
    return len(s.ids), s.seconds


def _decode_rate(s: Sample, _: Score) -> tuple[float, float]:
    return max(len(s.ids) - 1, 0), s.decode_s or 0.0


def _tau(s: Sample, _: Score) -> tuple[float, float]:
    return s.committed, len(s.laps) if s.laps else s.committed


def _ngrams(n: int) -> Count:
    def count(s: Sample, _: Score) -> tuple[float, float]:
        grams = [tuple(s.ids[i : i + n]) for i in range(len(s.ids) - n + 1)]
        return len(Counter(grams)), len(grams)

    return count


_QUALITY: Mapping[str, Count] = {
    "log p": lambda s, score: (score.log_p, len(s.ids)),
    "entropy": lambda s, score: (score.entropy, len(s.ids)),
    "distinct-1": _ngrams(1),
    "distinct-2": _ngrams(2),
    "distinct-3": _ngrams(3),
    "length": lambda s, _: (len(s.ids), 1),
}


def _totals(samples: Sequence[Sample], store: Store, count: Count) -> Totals:
    both = [count(s, store.scores.get((s.cell, s.index), Score(s.cell, s.index, 0.0, 0.0))) for s in samples]
    above, below = (np.array(column, dtype=np.float64) for column in zip(*both, strict=True))
    return Totals(above, below)


def _fraction(samples: Sequence[Sample], store: Store, count: Count) -> Estimate:
    return fraction(_totals(samples, store, count)).estimate()


def _distinct(samples: Sequence[Sample], store: Store, n: int) -> Estimate:
    return _fraction(samples, store, _QUALITY[f"distinct-{n}"])


def _difference(mine: Sequence[Sample], plain: Sequence[Sample], store: Store, count: Count) -> Estimate:
    one, other = _common(mine, plain)
    return difference(_totals(one, store, count), _totals(other, store, count)).estimate()


def _common(one: Sequence[Sample], other: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """The samples of both on the prompts that both have. Raises InvalidRow if there are none."""
    shared = {s.index for s in one} & {s.index for s in other}
    if not shared:
        raise InvalidRow("two cells have no prompt in common; run the same command again")
    return [s for s in one if s.index in shared], [s for s in other if s.index in shared]


def _kept(samples: Sequence[Sample]) -> tuple[float, ...]:
    """Share of tested drafts that were kept, by depth."""
    deepest = max((len(s.tested_at) for s in samples), default=0)
    found = []
    for depth in range(deepest):
        those = [s for s in samples if len(s.tested_at) > depth]
        tested, kept = sum(s.tested_at[depth] for s in those), sum(s.accepted_at[depth] for s in those)
        found.append(kept / tested if tested else 0.0)
    return tuple(found)


def _empty(found: Estimate) -> bool:
    """No value, or one that is not a number."""
    return found.value is None or not np.isfinite(found.value)
