"""The goals, what was reached, and for a missed one the arithmetic that shows where the limit lies.

    tokens/s of a rule = tau / block,    block = draft + verify + decision + rest    (ms)
    speed-up           = tau * plain / block,    plain = the time of a token in plain decoding

so a goal G needs tau >= G block / plain at this cost, or block <= tau plain / G at this tau; and with drafting,
decision and everything else free of cost the speed-up would still be at most tau * plain / verify.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.local.cells import DTYPES, GOAL_K, TEMPERATURES, Cell
from benchmarks.local.rows import Row, speed_up
from benchmarks.local.samples import Store
from nsd.bench.stats import Estimate


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that is wanted, by temperature; at_most turns the comparison round."""

    figure: str
    wanted: dict[float, float]
    at_most: bool = False


TAU_SD = Goal(f"tau of SD at K={GOAL_K}", {1.0: 1.85, 0.7: 1.95})
TAU_NSD = Goal(f"tau of NSD at K={GOAL_K}", {1.0: 3.0, 0.7: 2.55})
OVER_PLAIN = {
    "int8": Goal("int8: NSD over the same loop's plain decoding", {1.0: 2.3, 0.7: 1.9}),
    "bfloat16": Goal("bfloat16: NSD over the same loop's plain decoding", {1.0: 2.8, 0.7: 2.3}),
}
OVER_SD = Goal("NSD over SD, best K each", {1.0: 1.6, 0.7: 1.35})
OVER_TRANSFORMERS = Goal("best NSD over transformers generate (bfloat16)", {1.0: 5.0, 0.7: 4.5})
OVER_ANYBODY = Goal("best NSD over the best plain decoding of anybody", {1.0: 1.5, 0.7: 1.3})
DECISION = Goal("decision and accounting, share of a block", {1.0: 0.05, 0.7: 0.05}, at_most=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One goal at one temperature: value None where its cells were not measured; cells say what was compared."""

    figure: str
    temperature: float
    wanted: float
    at_most: bool
    value: float | None
    low: float | None
    high: float | None
    cells: tuple[str, ...]
    note: str

    @property
    def verdict(self) -> str:
        """reached, missed, or not measured."""
        if self.value is None:
            return "not measured"
        return "reached" if (self.value <= self.wanted if self.at_most else self.value >= self.wanted) else "missed"


def outcomes(rows: Sequence[Row], store: Store) -> list[Outcome]:
    """All goals at all temperatures that rows speak of."""
    found = []
    for temperature in TEMPERATURES:
        here = [row for row in rows if row.cell.temperature == temperature]
        if here:
            found += _at(temperature, here, store)
    return found


def _at(t: float, rows: list[Row], store: Store) -> list[Outcome]:
    found = [_tau(TAU_SD, t, rows, "sd"), _tau(TAU_NSD, t, rows, "nsd")]
    for dtype, goal in OVER_PLAIN.items():
        fast, slow = best(rows, "nsd", dtype), best(rows, "ar", dtype)
        found.append(_over(goal, t, fast, slow, store))
    for dtype in DTYPES:
        fast, slow = best(rows, "nsd", dtype), best(rows, "sd", dtype)
        found.append(_over(Goal(f"{dtype}: {OVER_SD.figure}", OVER_SD.wanted), t, fast, slow, store))
    fastest = best(rows, "nsd")
    theirs = next((row for row in rows if row.cell.engine == "transformers"), None)
    found.append(_over(OVER_TRANSFORMERS, t, fastest, theirs, store))
    others = any(row.cell.engine != "nsd" for row in rows)
    found.append(_over(OVER_ANYBODY, t, fastest, best_plain(rows) if others else None, store))
    for dtype in DTYPES:
        row = best(rows, "nsd", dtype)
        share = None if row is None else row.decision_share
        name = () if row is None else (row.cell.name,)
        wanted = DECISION.wanted[t]
        found.append(Outcome(f"{dtype}: {DECISION.figure}", t, wanted, True, share, None, None, name, ""))
    return found


def best(rows: Sequence[Row], rule: str, dtype: str | None = None) -> Row | None:
    """The fastest row of this project's loop under a rule as the goals mean it; None without any."""
    ours = [r for r in rows if r.cell.engine == "nsd" and r.cell.rule == rule and r.cell.headline]
    ours = [r for r in ours if dtype in (None, r.cell.dtype)]
    return max(ours, key=_speed, default=None)


def best_plain(rows: Sequence[Row]) -> Row | None:
    """The fastest plain decoding, whoever's it is."""
    return max((r for r in rows if r.cell.plain), key=_speed, default=None)


def _speed(row: Row) -> float:
    assert row.rate.value is not None
    return row.rate.value


def _tau(goal: Goal, t: float, rows: Sequence[Row], rule: str) -> Outcome:
    """tau at the goals' K: of the int8 target if it was measured, else of another."""
    those = {r.cell.dtype: r for r in rows if (r.cell.rule, r.cell.k, r.cell.headline) == (rule, GOAL_K, True)}
    row = next((those[dtype] for dtype in DTYPES if dtype in those), None)
    if row is None:
        return Outcome(goal.figure, t, goal.wanted[t], False, None, None, None, (), "")
    found, note = row.tau, "" if row.kept_by_depth == () else f"kept by depth: {_shares(row.kept_by_depth)}"
    return Outcome(goal.figure, t, goal.wanted[t], False, found.value, found.low, found.high, (row.cell.name,), note)


def _over(goal: Goal, t: float, fast: Row | None, slow: Row | None, store: Store) -> Outcome:
    if fast is None or slow is None:
        return Outcome(goal.figure, t, goal.wanted[t], False, None, None, None, (), "")
    found = speed_up(fast.cell, slow.cell, store)
    notes = []
    if found.value is not None and found.value < goal.wanted[t]:
        notes.append(limit(goal.wanted[t], fast, slow))
    if fast.decode_rate is not None and slow.decode_rate is not None:
        decode = speed_up(fast.cell, slow.cell, store, decode_only=True)
        notes.append(f"without prefills {_x(decode)}")
    if set(fast.sessions) != set(slow.sessions):
        notes.append("measured in different sessions, so not interleaved")
    names = (fast.cell.name, slow.cell.name)
    return Outcome(goal.figure, t, goal.wanted[t], False, found.value, found.low, found.high, names, "; ".join(notes))


def limit(wanted: float, fast: Row, slow: Row) -> str:
    """The arithmetic of a missed speed-up: what tau or what block would reach it, and whether free drafting could."""
    assert fast.ms is not None and fast.tau.value is not None and slow.rate.value is not None
    block, tau = sum(fast.ms.values()), fast.tau.value
    own = slow.decode_rate.value if slow.decode_rate is not None else None
    step = 1e3 / (own or slow.rate.value)
    if slow.ms is not None:
        step = sum(slow.ms.values()) / (slow.tau.value or 1.0)
    parts = " + ".join(f"{name} {ms:.2f}" for name, ms in fast.ms.items())
    reach = tau * step / fast.ms["verify"]
    verb = "could still reach it" if reach >= wanted else "would not reach it"
    return (
        f"block = {parts} = {block:.2f} ms, tau {tau:.2f}, {slow.cell.name} takes {step:.2f} ms a token: "
        f"{tau:.2f} x {step:.2f} / {block:.2f} = {tau * step / block:.2f}x; "
        f"{wanted:g}x needs tau {wanted * block / step:.2f} at this block or a block of {tau * step / wanted:.2f} ms "
        f"at this tau; with verification alone {reach:.2f}x ({verb}); kept by depth {_shares(fast.kept_by_depth)}"
    )


def lost(rows: Sequence[Row]) -> list[str]:
    """Sentences for every temperature at which somebody's plain decoding beats our best NSD, or is close behind."""
    found = []
    for t in sorted({row.cell.temperature for row in rows}, reverse=True):
        here = [row for row in rows if row.cell.temperature == t]
        ours, theirs = best(here, "nsd"), best_plain(here)
        if ours is None or theirs is None:
            continue
        fast, plain = _speed(ours), _speed(theirs)
        if plain >= fast:
            found.append(
                f"At T={t:g} plain decoding wins: {theirs.cell.name} makes {plain:.0f} tokens/s, "
                f"the best NSD ({ours.cell.name}) {fast:.0f}."
            )
        slower = [r for r in here if r.cell.rule == "nsd" and r.cell.headline and _speed(r) <= plain]
        if slower and plain < fast:
            names = ", ".join(f"{r.cell.name} ({_speed(r):.0f})" for r in slower)
            found.append(f"At T={t:g} {theirs.cell.name} ({plain:.0f} tokens/s) beats these NSD arms: {names}.")
    return found


def default_ks(rows: Sequence[Row]) -> list[tuple[str, int, str]]:
    """For each format the K at which NSD was fastest, over all temperatures (geometric mean), and the rates by K."""
    found = []
    for dtype in DTYPES:
        rates: dict[int, list[float]] = {}
        for row in rows:
            c: Cell = row.cell
            if (
                c.engine == "nsd"
                and c.rule == "nsd"
                and c.headline
                and c.dtype == dtype
                and row.decode_rate is not None
            ):
                rates.setdefault(c.k, []).append(row.decode_rate.value or 0.0)
        most = max(map(len, rates.values()), default=0)
        means = {k: _geometric(seen) for k, seen in sorted(rates.items()) if len(seen) == most}
        if len(means) > 1:
            chosen = max(means, key=means.__getitem__)
            found.append((dtype, chosen, ", ".join(f"K={k} {rate:.0f}" for k, rate in means.items())))
    return found


def _geometric(values: Sequence[float]) -> float:
    product = 1.0
    for value in values:
        product *= value
    return float(product ** (1 / len(values)))


def _shares(kept: Sequence[float]) -> str:
    return " ".join(f"{share:.2f}" for share in kept)


def _x(found: Estimate) -> str:
    return "-" if found.value is None else f"{found.value:.2f}x"
