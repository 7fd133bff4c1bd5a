"""Statistics of decoding: additive counters fed by events, and every metric with its formula.

All counters count up to the cut (end of text, stop string, length) and add up over blocks, requests and runs. Seconds
of a step that several requests shared are divided among them, so that they add up too.

    accepted = by_ratio + rescued            tested = accepted + rejected
    output_tokens = prefill_tokens_out + accepted + recovered + bonus
    tau = (accepted + recovered + bonus) / blocks      (the first token, drawn at the prefill, stands outside)

Plain decoding is a run of blocks with nothing drafted: each token counts as a bonus, and tau = 1.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from nsd.events import Block, Origin


@dataclass(slots=True)
class Stats:
    """Counters of one request, or of many added together.

    requests with at least one block count in sum_tau; evaluated is at how many tested positions R, ES and eps (the
    deviation spent) were computed, ES_is what the fidelity report calls its ES; histogram counts blocks by tokens
    committed; tested_at and accepted_at count by block position.
    """

    requests: int = 0
    output_tokens: int = 0
    prefill_tokens_out: int = 0
    blocks: int = 0
    drafted: int = 0
    tested: int = 0
    by_ratio: int = 0
    rescued: int = 0
    rejected: int = 0
    recovered: int = 0
    bonus: int = 0
    guards: int = 0
    invalid_drafts: int = 0
    sum_R: float = 0.0
    sum_ES: float = 0.0
    max_ES: float = 0.0
    sum_eps: float = 0.0
    max_eps: float = 0.0
    evaluated: int = 0
    ES_is: str | None = None
    sum_tau: float = 0.0
    requests_with_blocks: int = 0
    target_calls: float = 0.0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    score_s: float = 0.0
    decide_s: float = 0.0
    commit_s: float = 0.0
    ttft_sum_s: float = 0.0
    histogram: Counter[int] = field(default_factory=Counter)
    tested_at: Counter[int] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, blocks: list[Block]) -> Stats:
        """The statistics of one request from all its events."""
        stats = cls(requests=1)
        for block in blocks:
            stats.count(block)
        if stats.blocks:
            stats.requests_with_blocks, stats.sum_tau = (
                1,
                (stats.accepted + stats.recovered + stats.bonus) / stats.blocks,
            )
        return stats

    def count(self, block: Block) -> None:
        """Add one event."""
        self.output_tokens += len(block.committed)
        self.guards += block.guard
        self.invalid_drafts += block.invalid
        if block.number == 0:
            self.prefill_tokens_out += len(block.committed)
            self.prefill_s += block.timing.total_s / block.batch
            self.ttft_sum_s += block.seconds_since_start
        else:
            self._count_step(block)
        self.target_calls += 1 / block.batch

    def _count_step(self, block: Block) -> None:
        self.blocks += 1
        self.drafted += len(block.drafted)
        self.histogram[len(block.committed)] += 1
        for place, t in enumerate(block.tested):
            self.tested += 1
            self.tested_at[place] += 1
            self.accepted_at[place] += t.origin is not Origin.REJECTED
            self.by_ratio += t.origin is Origin.RATIO
            self.rescued += t.origin is Origin.RESCUED
            self.rejected += t.origin is Origin.REJECTED
            if t.R is not None and t.ES is not None:
                self.evaluated += 1
                self.sum_R += t.R
                self.sum_ES += t.ES
                self.max_ES = max(self.max_ES, t.ES)
                eps = t.ES if t.eps is None else t.eps
                self.sum_eps += eps
                self.max_eps = max(self.max_eps, eps)
        if block.drawn is not None:
            self.recovered += block.drawn.origin is Origin.RECOVERED
            self.bonus += block.drawn.origin is not Origin.RECOVERED
        self.draft_s += block.timing.draft_s / block.batch
        self.score_s += block.timing.score_s / block.batch
        self.decide_s += block.timing.decide_s / block.batch
        self.commit_s += block.timing.commit_s / block.batch

    def __add__(self, other: Stats) -> Stats:
        total = Stats()
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if f.name == "ES_is":
                total.ES_is = mine if mine == theirs or not other.tested else theirs if not self.tested else MIXED
            else:
                setattr(total, f.name, max(mine, theirs) if f.name.startswith("max_") else mine + theirs)
        return total

    @property
    def accepted(self) -> int:
        """by_ratio + rescued."""
        return self.by_ratio + self.rescued

    @property
    def decode_s(self) -> float:
        """Seconds of all steps after the prefill: draft + target pass + decision + the rest."""
        return self.draft_s + self.score_s + self.decide_s + self.commit_s

    @property
    def tau(self) -> float | None:
        """Mean accepted length, block-weighted: (accepted + recovered + bonus) / blocks."""
        return _ratio(self.accepted + self.recovered + self.bonus, self.blocks)

    @property
    def tau_per_request(self) -> float | None:
        """The mean over requests of each request's tau."""
        return _ratio(self.sum_tau, self.requests_with_blocks)

    @property
    def tokens_per_second(self) -> float | None:
        """output_tokens / (prefill + decode seconds)."""
        return _ratio(self.output_tokens, self.prefill_s + self.decode_s)

    @property
    def decode_tokens_per_second(self) -> float | None:
        """(output_tokens - prefill_tokens_out) / decode seconds."""
        return _ratio(self.output_tokens - self.prefill_tokens_out, self.decode_s)

    @property
    def ttft_s(self) -> float | None:
        """Mean seconds from the start to a request's first token."""
        return _ratio(self.ttft_sum_s, self.requests)

    @property
    def calls_per_token(self) -> float | None:
        """Verification passes per token: blocks / (output_tokens - prefill_tokens_out)."""
        return _ratio(self.blocks, self.output_tokens - self.prefill_tokens_out)

    @property
    def verify_ms_per_token(self) -> float | None:
        """Milliseconds of target passes and decisions per token after the first."""
        return _ratio(1e3 * (self.score_s + self.decide_s), self.output_tokens - self.prefill_tokens_out)

    @property
    def draft_ms_per_token(self) -> float | None:
        """Milliseconds of drafting per token after the first."""
        return _ratio(1e3 * self.draft_s, self.output_tokens - self.prefill_tokens_out)

    @property
    def verify_share(self) -> float | None:
        """Share of the decode seconds spent in target passes and decisions."""
        return _ratio(self.score_s + self.decide_s, self.decode_s)

    @property
    def mean_R(self) -> float | None:
        """Mean rejection probability of the standard test over the positions where it was computed."""
        return _ratio(self.sum_R, self.evaluated)

    @property
    def mean_ES(self) -> float | None:
        """Mean deviation without a cap over the positions where it was computed."""
        return _ratio(self.sum_ES, self.evaluated)

    @property
    def mean_eps(self) -> float | None:
        """Mean deviation spent over the positions where it was computed; mean_ES unless a cap or a budget acts."""
        return _ratio(self.sum_eps, self.evaluated)

    @property
    def rescue_rate(self) -> float | None:
        """rescued / tested; its expectation is the mean deviation spent."""
        return _ratio(self.rescued, self.tested)

    def as_json(self) -> dict[str, Any]:
        """Counters and metrics by name; where a value is null, `reasons` says why under its name."""
        whole = self.tested > 0 and self.evaluated == self.tested
        exact = whole and self.ES_is not in (None, MIXED, ESTIMATED)
        values = {
            **{name: getattr(self, name) for name in _METRICS},
            "mean_R": self.mean_R if whole else None,
            "mean_ES": self.mean_ES if exact else self.rescue_rate if self.ES_is == ESTIMATED else None,
            "max_ES": self.max_ES if exact else None,
            "mean_eps": self.mean_eps if exact else None,
            "max_eps": self.max_eps if exact else None,
        }
        return {
            **{name: getattr(self, name) for name in _COUNTERS},
            "accepted": self.accepted,
            **values,
            "mean_ES_kind": self.ES_is,
            "reasons": {name: self._reason(name) for name, value in values.items() if value is None},
            "histogram": {str(size): self.histogram[size] for size in sorted(self.histogram)},
            "tested_at": [self.tested_at[i] for i in range(len(self.tested_at))],
            "accepted_at": [self.accepted_at[i] for i in range(len(self.tested_at))],
        }

    def _reason(self, name: str) -> str:
        """Why a metric has no value."""
        if name in _PER_BLOCK:
            return "the text ended with its first token"
        if not self.tested:
            return "no position was tested"
        if self.ES_is == MIXED:
            return "its parts are of different kinds"
        return "not computed at this accounting level"


ESTIMATED = "estimated by the rescue rate"
MIXED = "mixed"

_PER_BLOCK = (
    "tau",
    "tau_per_request",
    "calls_per_token",
    "verify_ms_per_token",
    "draft_ms_per_token",
    "verify_share",
    "decode_tokens_per_second",
)
_COUNTERS = (
    "requests",
    "output_tokens",
    "prefill_tokens_out",
    "blocks",
    "drafted",
    "tested",
    "by_ratio",
    "rescued",
    "rejected",
    "recovered",
    "bonus",
    "guards",
    "invalid_drafts",
    "target_calls",
    "prefill_s",
    "draft_s",
    "score_s",
    "decide_s",
    "commit_s",
)
_METRICS = (
    "tau",
    "tau_per_request",
    "tokens_per_second",
    "decode_tokens_per_second",
    "ttft_s",
    "calls_per_token",
    "verify_ms_per_token",
    "draft_ms_per_token",
    "verify_share",
    "rescue_rate",
)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
