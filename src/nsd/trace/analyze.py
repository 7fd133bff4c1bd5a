"""What traces say about rejections and rescues, beside the paper's figures where the two can be compared.

Populations, once and for all:

rejection              the first rejected token of a block in a run of standard speculation (rule sd)
additional acceptance  a token that NSD emitted although its ratio test failed (rule nsd, rescued)

Source: arXiv 2610.07822, sections 1 and 4.4, for the figures compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from nsd.events import Block, Origin, Tested
from nsd.trace.schema import RequestInfo, Trace
from nsd.trace.statistics import CONFIDENCE, Estimate, mean, share

SCHEMA = 1
NUCLEUS = 0.95
CORES = (0.5, 0.8, 0.9)

PAPER = {
    "rejections_in_nucleus": 0.526,
    "rejections_in_top_ten": 0.815,
    "rescued_in_top_five": 0.941,
    "draft_entropy": 0.865,
    "target_entropy": 1.101,
    "higher_target_entropy": 0.7030,
}
"""Figures of the paper for populations that are defined alike here."""

PAPER_CORE = 0.8665
"""Share of additional acceptances in the paper's core, which it does not define: shown, never compared."""

PAPER_VERIFYING = (0.571, 0.781)
"""Range over models of the share of wall time that standard speculation spends verifying."""

_NOT_TRACED = "no position of this population was recorded with rank and mass"
_NO_SD = "no trace of standard speculation (rule sd) rejects a token; record one with --rule sd"
_NO_NSD = "no trace of rule nsd has a token that only the nucleus kept"


@dataclass(frozen=True, slots=True)
class Place:
    """One place of a block, from 0: acceptance among tested, R and ES there."""

    place: int
    rule: str
    acceptance: Estimate
    R: Estimate
    ES: Estimate


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one rule: target passes after the prefill per token they emit, and the share of their time in verification."""

    rule: str
    calls_per_token: float | None
    tau: float | None
    verifying: float | None
    paper_verifying: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything `nsd analyze` knows: shares and means by name, places of a block, speed by rule."""

    estimates: dict[str, Estimate]
    core: float
    cores: dict[str, Estimate]
    places: tuple[Place, ...]
    speeds: tuple[Speed, ...]
    ranks: dict[str, list[int]]
    entropies: list[tuple[float, float]]

    def as_json(self) -> dict[str, Any]:
        """Plain values; schema is the version of this form."""
        return {
            "schema": SCHEMA,
            "populations": {
                "rejection": "first rejected token of a block under rule sd",
                "additional_acceptance": "token emitted under rule nsd whose ratio test failed",
            },
            "confidence": CONFIDENCE,
            "intervals": "Wilson for shares, Student for means; tokens of one text are not independent",
            "estimates": {name: asdict(estimate) for name, estimate in self.estimates.items()},
            "core": {
                "definition": f"mass above the token below {self.core}",
                "share": asdict(self.cores[f"{self.core:g}"]),
                "others": {name: asdict(estimate) for name, estimate in self.cores.items()},
                "paper_undefined_core": PAPER_CORE,
                "compared": False,
            },
            "places": [asdict(place) for place in self.places],
            "speed": [asdict(speed) for speed in self.speeds],
        }


@dataclass(frozen=True, slots=True)
class _Seen:
    """One tested token with where it comes from."""

    t: Tested
    info: RequestInfo
    law: str
    place: int


def analyze(traces: Sequence[Trace], core: float = CORES[0]) -> Analysis:
    """Analyze traces together; core is the nucleus threshold that counts as the core."""
    seen = [one for trace in traces for one in _tested(trace)]
    rejected = [s for s in seen if s.info.rule == "sd" and s.t.origin is Origin.REJECTED]
    rescued = [s for s in seen if s.info.rule == "nsd" and s.t.origin is Origin.RESCUED]
    estimates = {**_of_rejections(rejected), **_of_rescues(rescued)}
    levels = sorted({core, *CORES})
    cores = {f"{level:g}": _in_core(rescued, level) for level in levels}
    ranks = {
        "rejections": [s.t.rank for s in rejected if s.t.rank is not None],
        "additional acceptances": [s.t.rank for s in rescued if s.t.rank is not None],
    }
    pairs = [(s.t.entropy_q, s.t.entropy_p) for s in rescued if s.law == "sampled"]
    return Analysis(
        estimates=estimates,
        core=core,
        cores=cores,
        places=tuple(_places(seen)),
        speeds=tuple(_speeds(traces)),
        ranks=ranks,
        entropies=[(q, p) for q, p in pairs if q is not None and p is not None],
    )


def _tested(trace: Trace) -> Iterable[_Seen]:
    for block in trace.blocks:
        info = trace.header.request(block.request)
        for place, t in enumerate(block.tested):
            yield _Seen(t, info, trace.header.draft_law, place)


def _rank(s: _Seen) -> float | None:
    return s.t.rank


def _share(population: Sequence[_Seen], of: Callable[[_Seen], float | None], most: float, empty: str) -> Estimate:
    """Share of a population whose value is at most `most`."""
    values = [value for s in population if (value := of(s)) is not None]
    return share([value <= most for value in values], _NOT_TRACED if population else empty)


def _in_core(rescued: Sequence[_Seen], level: float) -> Estimate:
    inside = [s.t.mass < level for s in rescued if s.t.mass is not None]
    return share(inside, _NOT_TRACED if rescued else _NO_NSD)


def _of_rejections(rejected: list[_Seen]) -> dict[str, Estimate]:
    inside = [s.t.p > 0 and s.t.mass < NUCLEUS for s in rejected if s.t.mass is not None]
    found = {
        "rejections_in_nucleus": share(inside, _NOT_TRACED if rejected else _NO_SD),
        "rejections_in_top_ten": _share(rejected, _rank, 10, _NO_SD),
    }
    return {name: _beside(name, value, rejected) for name, value in found.items()}


def _of_rescues(rescued: list[_Seen]) -> dict[str, Estimate]:
    drawn = [s for s in rescued if s.law == "sampled"]
    point = "the draft is a point mass, so its entropy is 0 by construction"
    empty = point if rescued and not drawn else _NO_NSD
    known = [(s.t.entropy_q, s.t.entropy_p) for s in drawn]
    pairs = [(q, p) for q, p in known if q is not None and p is not None]
    entropies = [s.t.entropy_p for s in rescued if s.t.entropy_p is not None]
    found = {
        "rescued_in_top_five": _share(rescued, _rank, 5, _NO_NSD),
        "draft_entropy": mean([q for q, _ in pairs], empty),
        "target_entropy": mean(entropies, _NO_NSD if not rescued else _NOT_TRACED),
        "higher_target_entropy": share([p > q for q, p in pairs], empty),
    }
    return {name: _beside(name, value, rescued) for name, value in found.items()}


def _beside(name: str, value: Estimate, population: list[_Seen]) -> Estimate:
    """The paper's figure beside an estimate, if the settings are the paper's."""
    if value.value is None:
        return value
    why = next((reason for s in population if (reason := _differs(s)) is not None), None)
    return replace(value, paper=PAPER[name] if why is None else None, not_compared=why)


def _differs(s: _Seen) -> str | None:
    """Why a token was not recorded under the paper's setting: temperature 1, no truncation, q sampled, theta 0.95."""
    sampling = s.info.sampling
    if sampling.get("temperature") != 1:
        return f"temperature {sampling.get('temperature')}, the paper's is 1"
    off: dict[str, tuple[float, ...]] = {"top_p": (1,), "top_k": (0,), "min_p": (0,), "repetition_penalty": (1,)}
    for name, values in off.items():
        if sampling.get(name, values[0]) not in values:
            return f"{name} {sampling[name]}, the paper's target is not truncated or penalised"
    if s.law != "sampled":
        return f"the draft's law is {s.law}, the paper's drafts are sampled"
    if s.info.rule == "nsd" and s.info.numbers.get("theta") != NUCLEUS:
        return f"theta {s.info.numbers.get('theta')}, the paper's is {NUCLEUS}"
    capped = s.info.cap is not None or s.info.agreement is not None
    return "a cap or a budget was on, the paper has none" if capped else None


def _places(seen: list[_Seen]) -> Iterable[Place]:
    unknown = "not recorded at this place"
    for rule, place in sorted({(s.info.rule, s.place) for s in seen}):
        here = [s.t for s in seen if (s.info.rule, s.place) == (rule, place)]
        yield Place(
            place=place,
            rule=rule,
            acceptance=share([t.origin is not Origin.REJECTED for t in here], unknown),
            R=mean([t.R for t in here if t.R is not None], unknown),
            ES=mean([t.ES for t in here if t.ES is not None], unknown),
        )


def _speeds(traces: Sequence[Trace]) -> Iterable[Speed]:
    blocks: dict[str, list[Block]] = {}
    for trace in traces:
        for block in trace.blocks:
            if block.number > 0:
                blocks.setdefault(trace.header.request(block.request).rule, []).append(block)
    for rule, those in sorted(blocks.items()):
        emitted = sum(len(block.committed) for block in those)
        total = sum(block.timing.total_s / block.batch for block in those)
        verifying = sum((block.timing.score_s + block.timing.decide_s) / block.batch for block in those)
        yield Speed(
            rule=rule,
            calls_per_token=len(those) / emitted if emitted else None,
            tau=emitted / len(those),
            verifying=verifying / total if total > 0 else None,
            paper_verifying=PAPER_VERIFYING if rule == "sd" else None,
        )
