"""Searches K, theta, cap and drafting mode for the fastest setting that keeps a limit, by successive halving.

All candidates answer the same first prompts, interleaved; those that break a limit and the slower half of the rest
stop, and the others go on with twice as many prompts. Exact speculation (SD) with every K is a candidate too: it keeps
every limit, so there is always an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nsd.bench import metrics
from nsd.bench.arms import Arm
from nsd.bench.engine import Engine
from nsd.bench.metrics import Counters
from nsd.bench.runner import Plan, Turn, settings_of
from nsd.bench.stats import mcnemar
from nsd.errors import ConfigError

CHANCE = 0.2
"""McNemar's p above which a lower score in an early round may be chance."""
FIRST_PROMPTS = 4
"""Prompts of the first round; each later round doubles them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the chosen setting may cost, None where it does not matter.

    max_deviation caps the deviation of every step, and is held by construction; mean_es is the largest mean ES over
    tested positions; score_drop how many points below SD the score may be; agreement a whole-sequence budget.
    """

    max_deviation: float | None = None
    mean_es: float | None = None
    score_drop: float | None = None
    agreement: float | None = None

    def __post_init__(self) -> None:
        given = {"max_deviation": self.max_deviation, "max_mean_es": self.mean_es, "min_agreement": self.agreement}
        for name, value in given.items():
            if value is not None and not 0 <= value <= 1:
                flag = "--" + name.replace("_", "-")
                raise ConfigError(f"{flag} is {value:g}, wanted a number in [0, 1]; try {flag} 0.05")
        if self.score_drop is not None and self.score_drop < 0:
            raise ConfigError(f"--max-score-drop is {self.score_drop:g}, wanted points >= 0; try --max-score-drop 1")
        if all(value is None for value in (*given.values(), self.score_drop)):
            raise ConfigError("no limit was given, wanted at least one; try --max-mean-es 0.02")


@dataclass(slots=True)
class Candidate:
    """A setting under test: its arm, drafting mode, what it has done, and why it was stopped (None: it was not)."""

    arm: Arm
    mode: str
    counters: Counters = field(default_factory=Counters)
    verdicts: list[bool] = field(default_factory=list)
    stopped: str | None = None

    @property
    def name(self) -> str:
        """The arm with its drafting mode."""
        return self.arm.name if self.mode == "default" else f"{self.arm.name}-{self.mode}"

    @property
    def answers(self) -> int:
        """How many prompts it has answered."""
        return len(self.verdicts)

    @property
    def rate(self) -> float:
        """Tokens per second over all it answered, prefill in."""
        return self.counters.stats.tokens_per_second or 0.0

    @property
    def score(self) -> float:
        """Percent of its answers that are right."""
        return 100 * sum(self.verdicts) / self.answers if self.answers else 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "mode": self.mode,
            "arm": self.arm.as_json(),
            "answers": self.answers,
            "tokens_per_second": self.rate,
            "tau": self.counters.stats.tau,
            "mean_ES": metrics.mean_ES(self.counters),
            "score": self.score,
            "stopped": self.stopped,
        }


@dataclass(frozen=True, slots=True)
class Found:
    """The chosen candidate, all of them, the rounds (prompts so far, candidates left), and the reason in words."""

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    rounds: tuple[tuple[int, int], ...]
    why: str

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "chosen": self.chosen.as_json(),
            "candidates": [c.as_json() for c in self.candidates],
            "rounds": [{"prompts": prompts, "left": left} for prompts, left in self.rounds],
            "why": self.why,
        }


def candidates_of(
    ks: Sequence[int], thetas: Sequence[float], caps: Sequence[float], modes: Sequence[str], limits: Limits
) -> list[Candidate]:
    """The grid, SD of each K and mode first. A limit on the deviation is a cap on every relaxed candidate."""
    found = []
    for mode in modes:
        for k in ks:
            found.append(Candidate(Arm(f"sd-k{k}", "sd", k, k, {"rule": "sd"}), mode))
            for theta in thetas:
                found += [Candidate(_relaxed(k, theta, cap, limits), mode) for cap in _caps(caps, limits)]
    return found


def _caps(caps: Sequence[float], limits: Limits) -> list[float | None]:
    most = limits.max_deviation
    kept = [cap for cap in caps if most is None or cap <= most]
    return list(dict.fromkeys([*kept, most]))


def _relaxed(k: int, theta: float, cap: float | None, limits: Limits) -> Arm:
    settings: dict[str, Any] = {"rule": "nsd", "theta": theta}
    if cap is not None:
        settings["max_deviation"] = cap
    if limits.agreement is not None:
        settings["agreement"] = limits.agreement
    return Arm(f"nsd-theta{theta:g}-k{k}{'' if cap is None else f'-cap{cap:g}'}", "nsd", k, k, settings)


def sweep(
    engines: Mapping[str, Engine],
    plan: Plan,
    candidates: Sequence[Candidate],
    limits: Limits,
    watch: Callable[[int, int, int], None] | None = None,
) -> Found:
    """Halve until one candidate is left or the plan's prompts are used up; engines by drafting mode.

    watch(prompts so far, prompts in all, candidates left) is called after every prompt.
    """
    turns = list(plan.turns())
    if not turns or not candidates:
        raise ConfigError("a sweep needs prompts and candidates, got none; try --suite toy -k 2,4 --theta 0.9,0.95")
    _warm_up(engines, plan, turns[0], candidates)
    live, rounds, used = list(candidates), [], 0
    for upto in _rounds(len(turns)):
        for turn in turns[used:upto]:
            start = turn.number % len(live)
            for candidate in (*live[start:], *live[:start]):
                _answer(engines[candidate.mode], plan, turn, candidate)
            if watch is not None:
                watch(turn.number + 1, len(turns), len(live))
        used = upto
        live = _halved(live, limits, last=used == len(turns))
        rounds.append((used, len(live)))
        if len(live) == 1:
            break
    chosen = max(live, key=lambda c: c.rate)
    return Found(chosen, tuple(candidates), tuple(rounds), _why(chosen, candidates, limits, rounds))


def _rounds(prompts: int) -> Iterator[int]:
    """Where rounds end: 4, 12, 28, ... prompts, and all of them."""
    size, end = FIRST_PROMPTS, FIRST_PROMPTS
    while end < prompts:
        yield end
        size *= 2
        end += size
    yield prompts


def _answer(engine: Engine, plan: Plan, turn: Turn, candidate: Candidate) -> None:
    answer = engine.answer(turn.problem, settings_of(plan, turn, candidate.arm), drafting=True)
    candidate.counters += answer.counters
    candidate.verdicts.append(turn.task.score(turn.problem, answer.text).correct)


def _warm_up(engines: Mapping[str, Engine], plan: Plan, turn: Turn, candidates: Sequence[Candidate]) -> None:
    for mode, engine in engines.items():
        arm = next((c.arm for c in candidates if c.mode == mode), None)
        if arm is not None:
            engine.answer(turn.problem, {**settings_of(plan, turn, arm), "max_new_tokens": 8}, drafting=True)


def _halved(live: list[Candidate], limits: Limits, last: bool) -> list[Candidate]:
    """Who goes on: within the limits, and of these the faster half; the fastest SD always, to compare scores with.

    At the end nobody is dropped for being slow.
    """
    exact = max((c for c in live if c.arm.kind == "sd"), key=lambda c: c.rate)
    within = []
    for candidate in live:
        candidate.stopped = _broken(candidate, exact, limits, last)
        if candidate.stopped is None:
            within.append(candidate)
    if last:
        return within
    ordered = sorted(within, key=lambda c: -c.rate)
    kept = ordered[: max(1, (len(ordered) + 1) // 2)]
    if exact not in kept and any(c.arm.kind == "nsd" for c in kept):
        kept.append(exact)
    for candidate in within:
        if candidate not in kept:
            candidate.stopped = f"slower than half of the rest after {candidate.answers} prompts"
    return kept


def _broken(candidate: Candidate, exact: Candidate, limits: Limits, last: bool) -> str | None:
    """Which limit a candidate breaks on what it has answered, None if none.

    Before the last round a lower score counts only where chance hardly explains it: of four prompts, one is 25 points.
    """
    if candidate.arm.kind == "sd":
        return None
    spent = metrics.mean_eps(candidate.counters)
    mean = spent if spent is not None else metrics.mean_ES(candidate.counters)
    if limits.mean_es is not None and (mean is None or mean > limits.mean_es):
        return (
            "its mean deviation is not known" if mean is None else f"mean deviation {mean:.4f} over {limits.mean_es:g}"
        )
    if limits.score_drop is not None and exact.score - candidate.score > limits.score_drop:
        pairs = list(zip(candidate.verdicts, exact.verdicts, strict=False))
        if not last and mcnemar(pairs.count((True, False)), pairs.count((False, True))) > CHANCE:
            return None
        return f"score {candidate.score:.1f}%, SD {exact.score:.1f}%: more than {limits.score_drop:g} points lower"
    return None


def _why(chosen: Candidate, candidates: Sequence[Candidate], limits: Limits, rounds: Sequence[tuple[int, int]]) -> str:
    """The choice in one paragraph."""
    exact = max((c for c in candidates if c.arm.kind == "sd"), key=lambda c: (c.answers, c.rate))
    broke = sum(c.stopped is not None and not c.stopped.startswith("slower") for c in candidates)
    given = {
        "deviation per step at most": limits.max_deviation,
        "mean deviation at most": limits.mean_es,
        "score at most so many points below SD:": limits.score_drop,
        "whole-sequence agreement at least": limits.agreement,
    }
    wanted = ", ".join(f"{name} {value:g}" for name, value in given.items() if value is not None)
    prompts = _counted(chosen.answers, "prompt")
    stats = chosen.counters.stats
    words = [
        f"Of {len(candidates)} settings, {chosen.name} was the fastest that keeps the limits ({wanted}): "
        f"{chosen.rate:.1f} tokens/s at tau {stats.tau or 1.0:.2f} on {prompts}, score "
        f"{chosen.score:.1f}%.",
    ]
    if chosen is not exact:
        words.append(
            f"Exact speculation at its best ({exact.name}) gave {exact.rate:.1f} tokens/s and {exact.score:.1f}% on "
            f"{exact.answers}."
        )
    settings, halvings = _counted(broke, "setting"), _counted(len(rounds), "round")
    words.append(f"{settings} broke a limit; the rest were slower, after {halvings} of halving.")
    if limits.agreement is not None:
        words.append(
            "A whole-sequence agreement leaves next to nothing to spend at each token, so this is practically SD; "
            "--max-deviation bounds single steps instead."
        )
    words.append("The sample is small: nsd bench with these settings measures speed and score with intervals.")
    return " ".join(words)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def as_toml(found: Found, pair: Mapping[str, Any]) -> str:
    """A configuration for --config: the chosen settings under the names of the command line, the reason as a comment.

    pair holds what the sweep was given: model, drafter, draft options, temperature.
    """
    arm = found.chosen.arm
    mode = found.chosen.mode
    draft = [
        *pair.get("draft", ()),
        *([] if mode == "default" else [f"greedy={'true' if mode == 'greedy' else 'false'}"]),
    ]
    values = {**{k: v for k, v in pair.items() if k != "draft"}, **arm.settings, "k": arm.k}
    lines = ["# " + line for line in _wrapped(found.why)]
    lines += [f"{name} = {_toml(value)}" for name, value in values.items() if value is not None]
    if draft:
        lines.append(f"draft = [{', '.join(_toml(text) for text in draft)}]")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _wrapped(text: str, width: int = 110) -> list[str]:
    from textwrap import wrap

    return wrap(text, width)
