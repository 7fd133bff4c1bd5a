"""Every number of a benchmark, as a formula over counters that add up: over answers, seeds, shards and runs.

`Counters` holds the sums; `METRICS` the formulas. Words: blocks are target passes after the prefill; tokens are those
committed up to the cut, the token that ends the text included; the prefill's token stands outside tau.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from math import floor, log
from typing import Any

from nsd.decoding.stats import ESTIMATED, MIXED, Stats
from nsd.events import Block, Origin

BIN = 1.02
"""Ratio of neighbouring edges of the time histograms: a quantile is exact to 1%."""
_SMALLEST_S = 1e-7


@dataclass(slots=True)
class Counters:
    """Sums over answers.

    stats as in decoding; pace counts tokens after the first by the time of their block divided by its tokens, gaps
    counts blocks by their whole time (logarithmic bins); rejected_ranks and rescued_ranks count ranks by p, from 1, of
    rejected tokens and of those that only the set kept, where they were computed (full accounting); Q, weight and spent
    sum the ledger of fidelity over the answers where it is known; guarantee is the smallest promised, None if any
    answer has none.
    """

    stats: Stats = field(default_factory=Stats)
    pace: Counter[int] = field(default_factory=Counter)
    gaps: Counter[int] = field(default_factory=Counter)
    rejected_ranks: Counter[int] = field(default_factory=Counter)
    rescued_ranks: Counter[int] = field(default_factory=Counter)
    sum_Q: float = 0.0
    with_Q: int = 0
    sum_weight: float = 0.0
    with_weight: int = 0
    sum_spent: float = 0.0
    max_spent: float = 0.0
    guarantee: float | None = 1.0

    @classmethod
    def of(cls, blocks: Iterable[Block], fidelity: Mapping[str, Any]) -> Counters:
        """The counters of one answer from its events and its fidelity report."""
        events = list(blocks)
        found = cls(stats=Stats.of(events), guarantee=fidelity["guarantee"])
        found.stats.ES_is = fidelity["ES_is"]
        for block in events:
            if block.number > 0 and block.committed:
                seconds = block.timing.total_s / block.batch
                found.gaps[bin_of(seconds)] += 1
                found.pace[bin_of(seconds / len(block.committed))] += len(block.committed)
            for t in block.tested:
                if t.rank is not None and t.origin in (Origin.REJECTED, Origin.RESCUED):
                    ranks = found.rejected_ranks if t.origin is Origin.REJECTED else found.rescued_ranks
                    ranks[t.rank] += 1
        ledger = fidelity["ledger"]
        if ledger["Q"] is not None:
            found.sum_Q, found.with_Q = ledger["Q"], 1
            found.sum_spent = found.max_spent = ledger["sum_eps"]
        if fidelity["weight"] is not None:
            found.sum_weight, found.with_weight = fidelity["weight"], 1
        return found

    def __add__(self, other: Counters) -> Counters:
        guarantees = (self.guarantee, other.guarantee)
        return Counters(
            self.stats + other.stats,
            self.pace + other.pace,
            self.gaps + other.gaps,
            self.rejected_ranks + other.rejected_ranks,
            self.rescued_ranks + other.rescued_ranks,
            self.sum_Q + other.sum_Q,
            self.with_Q + other.with_Q,
            self.sum_weight + other.sum_weight,
            self.with_weight + other.with_weight,
            self.sum_spent + other.sum_spent,
            max(self.max_spent, other.max_spent),
            None if None in guarantees else min(g for g in guarantees if g is not None),
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` restores the same counters."""
        return {**_plain(self), "stats": _plain(self.stats)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Counters:
        """The counters that `as_json` wrote."""
        found: Counters = _restored(cls, {**raw, "stats": _restored(Stats, raw["stats"])})
        return found


def _plain(counted: Counters | Stats) -> dict[str, Any]:
    values = {f.name: getattr(counted, f.name) for f in fields(counted)}
    return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}


def _restored(kind: Any, raw: Mapping[str, Any]) -> Any:
    counts = {f.name for f in fields(kind) if f.default_factory is Counter}
    return kind(**{n: Counter({int(k): c for k, c in v.items()}) if n in counts else v for n, v in raw.items()})


def bin_of(seconds: float) -> int:
    """The bin of a time: floor(log(seconds / 0.1 us) / log 1.02)."""
    return floor(log(max(seconds, _SMALLEST_S) / _SMALLEST_S) / log(BIN))


def quantile(bins: Counter[int], share: float) -> float | None:
    """The time at or below which this share of the counts lies, in seconds: the geometric middle of its bin."""
    total, below = sum(bins.values()), 0
    for number in sorted(bins):
        below += bins[number]
        if below >= share * total:
            return float(_SMALLEST_S * BIN ** (number + 0.5))
    return None


def total(counters: Iterable[Counters]) -> Counters:
    """All of them together."""
    return sum(counters, Counters())


@dataclass(frozen=True, slots=True)
class Metric:
    """One number: what it is called, its unit, how many digits are shown, and the formula that gives it."""

    title: str
    unit: str
    digits: int
    of: Callable[[Counters], float | None]

    @property
    def formula(self) -> str:
        """The formula in words."""
        return " ".join((self.of.__doc__ or "").split())


def tokens_per_second(c: Counters) -> float | None:
    """output tokens / (prefill + decode seconds)."""
    return c.stats.tokens_per_second


def decode_tokens_per_second(c: Counters) -> float | None:
    """(output tokens - tokens of the prefill) / decode seconds."""
    return c.stats.decode_tokens_per_second


def tau(c: Counters) -> float | None:
    """(accepted + recovered + bonus tokens) / blocks: every block counts alike."""
    return c.stats.tau


def tau_per_request(c: Counters) -> float | None:
    """Mean over answers of each answer's own tau."""
    return c.stats.tau_per_request


def calls_per_token(c: Counters) -> float | None:
    """blocks / (output tokens - tokens of the prefill)."""
    return c.stats.calls_per_token


def verify_ms_per_token(c: Counters) -> float | None:
    """1000 (target pass + decision seconds) / (output tokens - tokens of the prefill)."""
    return c.stats.verify_ms_per_token if _phases(c) else None


def target_ms_per_call(c: Counters) -> float | None:
    """1000 target pass seconds / blocks."""
    return _ratio(1e3 * c.stats.score_s, c.stats.blocks) if _phases(c) else None


def verify_share(c: Counters) -> float | None:
    """(target pass + decision seconds) / decode seconds."""
    return c.stats.verify_share if _phases(c) else None


def verify_share_of_wall(c: Counters) -> float | None:
    """(target pass + decision seconds) / (prefill + decode seconds)."""
    spent = c.stats.score_s + c.stats.decide_s
    return _ratio(spent, c.stats.prefill_s + c.stats.decode_s) if _phases(c) else None


def draft_ms_per_token(c: Counters) -> float | None:
    """1000 drafting seconds / (output tokens - tokens of the prefill); none where nothing was drafted."""
    return c.stats.draft_ms_per_token if _phases(c) and c.stats.drafted else None


def draft_ms_per_block(c: Counters) -> float | None:
    """1000 drafting seconds / blocks; none where nothing was drafted."""
    return _ratio(1e3 * c.stats.draft_s, c.stats.blocks) if _phases(c) and c.stats.drafted else None


def ttft_ms(c: Counters) -> float | None:
    """1000 sum of seconds from the start to the first token / answers."""
    return _ratio(1e3 * c.stats.ttft_sum_s, c.stats.requests)


def inter_token_p50_ms(c: Counters) -> float | None:
    """Median over tokens after the first of (time of the token's block / tokens of that block)."""
    return _ms(quantile(c.pace, 0.5))


def inter_token_p95_ms(c: Counters) -> float | None:
    """95% quantile over tokens after the first of (time of the token's block / tokens of that block)."""
    return _ms(quantile(c.pace, 0.95))


def gap_p50_ms(c: Counters) -> float | None:
    """Median time of a block: what a reader of the stream waits between arrivals."""
    return _ms(quantile(c.gaps, 0.5))


def gap_p95_ms(c: Counters) -> float | None:
    """95% quantile of the time of a block."""
    return _ms(quantile(c.gaps, 0.95))


def acceptance(c: Counters) -> float | None:
    """accepted / tested proposals."""
    return _ratio(c.stats.accepted, c.stats.tested)


def rescue_rate(c: Counters) -> float | None:
    """tokens kept only by the set / tested proposals."""
    return c.stats.rescue_rate


def mean_ES(c: Counters) -> float | None:
    """sum of ES / tested positions, if it was computed at all of them; the rescue rate where ES is estimated by it."""
    if c.stats.ES_is == ESTIMATED:
        return c.stats.rescue_rate
    return c.stats.mean_ES if _whole(c) else None


def max_ES(c: Counters) -> float | None:
    """Largest ES of a tested position, if it was computed at all of them."""
    return c.stats.max_ES if _whole(c) else None


def mean_R(c: Counters) -> float | None:
    """sum of R / tested positions, R the rejection probability of the standard test, if computed at all of them."""
    return c.stats.mean_R if c.stats.tested and c.stats.evaluated == c.stats.tested else None


def mean_eps(c: Counters) -> float | None:
    """sum of deviation spent / tested positions, if it was computed at all of them; below mean ES where a cap acts."""
    return c.stats.mean_eps if _whole(c) else None


def mean_Q(c: Counters) -> float | None:
    """Mean over answers of the ledger's Q = prod(1 - eps)."""
    return _ratio(c.sum_Q, c.with_Q)


def mean_weight(c: Counters) -> float | None:
    """Mean over answers of W = prod min(1, p/pi): estimates without bias how often answers agree."""
    return _ratio(c.sum_weight, c.with_weight)


def mean_spent(c: Counters) -> float | None:
    """Mean over answers of the sum of deviation spent: the expected number of tokens that only the set kept."""
    return _ratio(c.sum_spent, c.with_Q)


def rejected_in_top_ten(c: Counters) -> float | None:
    """rejected proposals of rank 10 or better by p / rejected proposals, where ranks were computed."""
    return _within(c.rejected_ranks, 10)


def rescued_in_top_five(c: Counters) -> float | None:
    """tokens kept only by the set of rank 5 or better by p / tokens kept only by the set, where ranks were computed."""
    return _within(c.rescued_ranks, 5)


def guarantee(c: Counters) -> float | None:
    """Smallest guarantee of an answer; none if any has none."""
    return c.guarantee if c.stats.requests else None


METRICS: dict[str, Metric] = {
    "tokens_per_second": Metric("tokens/s, prefill in", "1/s", 1, tokens_per_second),
    "decode_tokens_per_second": Metric("tokens/s, decode only", "1/s", 1, decode_tokens_per_second),
    "tau": Metric("tau, by block", "tokens", 2, tau),
    "tau_per_request": Metric("tau, mean of answers", "tokens", 2, tau_per_request),
    "acceptance": Metric("accepted of tested", "", 3, acceptance),
    "calls_per_token": Metric("target calls per token", "", 4, calls_per_token),
    "verify_ms_per_token": Metric("verification per token", "ms", 2, verify_ms_per_token),
    "target_ms_per_call": Metric("target pass per call", "ms", 2, target_ms_per_call),
    "verify_share": Metric("verification's share of decoding", "", 3, verify_share),
    "verify_share_of_wall": Metric("verification's share of wall time", "", 3, verify_share_of_wall),
    "draft_ms_per_token": Metric("drafting per token", "ms", 2, draft_ms_per_token),
    "draft_ms_per_block": Metric("drafting per block", "ms", 2, draft_ms_per_block),
    "ttft_ms": Metric("time to first token", "ms", 1, ttft_ms),
    "inter_token_p50_ms": Metric("inter-token time, p50", "ms", 2, inter_token_p50_ms),
    "inter_token_p95_ms": Metric("inter-token time, p95", "ms", 2, inter_token_p95_ms),
    "gap_p50_ms": Metric("time between arrivals, p50", "ms", 2, gap_p50_ms),
    "gap_p95_ms": Metric("time between arrivals, p95", "ms", 2, gap_p95_ms),
    "rescue_rate": Metric("kept only by the set, of tested", "", 4, rescue_rate),
    "rejected_in_top_ten": Metric("rejected, in the target's top 10", "", 3, rejected_in_top_ten),
    "rescued_in_top_five": Metric("kept only by the set, in the top 5", "", 3, rescued_in_top_five),
    "mean_R": Metric("mean R", "", 4, mean_R),
    "mean_ES": Metric("mean ES", "", 4, mean_ES),
    "max_ES": Metric("max ES", "", 3, max_ES),
    "mean_eps": Metric("mean deviation spent", "", 4, mean_eps),
    "mean_spent": Metric("deviation spent per answer", "", 3, mean_spent),
    "mean_Q": Metric("ledger Q, mean", "", 4, mean_Q),
    "mean_weight": Metric("weight, mean", "", 4, mean_weight),
    "guarantee": Metric("guarantee, smallest", "", 4, guarantee),
}
"""Every metric by name, in the order of a table."""


def values(counters: Counters) -> dict[str, float | None]:
    """All metrics of some counters."""
    return {name: metric.of(counters) for name, metric in METRICS.items()}


def acceptance_by_position(c: Counters) -> list[float]:
    """accepted / tested at each place of a block, from the first."""
    return [c.stats.accepted_at[i] / c.stats.tested_at[i] for i in sorted(c.stats.tested_at)]


def histogram(c: Counters) -> dict[int, int]:
    """Blocks by the number of tokens they committed."""
    return {size: c.stats.histogram[size] for size in sorted(c.stats.histogram)}


def _within(ranks: Counter[int], last: int) -> float | None:
    return _ratio(sum(count for rank, count in ranks.items() if rank <= last), ranks.total())


def _whole(c: Counters) -> bool:
    """Whether ES was computed, exactly or as a bound, at every tested position."""
    return c.stats.tested > 0 and c.stats.evaluated == c.stats.tested and c.stats.ES_is not in (None, MIXED, ESTIMATED)


def _phases(c: Counters) -> bool:
    """Whether the engine told drafting, target pass and decision apart; no pass takes no time."""
    return c.stats.score_s > 0


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
