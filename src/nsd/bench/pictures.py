"""The figures of a report, drawn from its results."""

from __future__ import annotations

from nsd.bench.figures import Point, Series, bars, plot
from nsd.bench.metrics import acceptance_by_position, draft_ms_per_token, mean_ES, verify_ms_per_token
from nsd.bench.results import Model, estimate

_COLOURS = {"ar": 0, "sd": 1, "nsd": 2, "match": 3}
_NAMES = {"ar": "AR", "sd": "SD", "match": "sample-and-match", "nsd": "NSD"}
_RANK_EDGES = ((1, 1), (2, 2), (3, 5), (6, 10), (11, 100), (101, None))


def of_model(m: Model) -> list[tuple[str, str]]:
    """Caption and SVG of each figure that a model's results have data for."""
    prompts = m.row(m.arms[0]).prompts
    return [
        (f"Speed against score, over all tasks (n = {prompts}); lines are 95% intervals of the speed-up.", pareto(m)),
        ("τ against K.", tau_by_k(m)),
        ("Share accepted of tested proposals, by place in the block.", by_position(m)),
        ("Drafting and verification per token.", time_per_token(m)),
        ("Mean ES by θ.", es_by_theta(m)),
        ("Rank by p of rejected tokens, and of tokens that only the set kept; in percent of each.", ranks(m)),
    ]


def pareto(m: Model) -> str:
    """Speed-up over AR (without AR: over SD of the same K) against score, every arm, with θ and K as labels."""
    base = next((kind for kind in ("ar", "sd") if any(arm.kind == kind for arm in m.arms)), None)
    if base is None or all(arm.kind == base for arm in m.arms):
        return ""
    groups: dict[str, list[Point]] = {}
    ks = {arm.k for arm in m.arms if arm.k}
    for arm in m.arms:
        row = m.row(arm)
        over = row.over[base].prefill_in if base in row.over else None
        if arm.kind != base and over is None:
            continue
        spread = estimate(over)
        theta = f"θ={arm.theta:g}" if arm.theta is not None else arm.kind.upper()
        label = theta + (f" K={arm.k}" if arm.k and len(ks) > 1 else "")
        value, strong = 1.0 if over is None else over.value, arm in m.main
        point = Point(value, 100 * row.score.value, label, spread.low, spread.high, strong)
        groups.setdefault(arm.kind, []).append(point)
    series = [Series(_NAMES[kind], points, joined=False, colour=_COLOURS[kind]) for kind, points in groups.items()]
    return plot(
        series, "speed-up over AR" if base == "ar" else "speed-up over SD of the same K", "score, %", zero=False
    )


def tau_by_k(m: Model) -> str:
    """tau against K, a line for SD and for each θ; nothing where all arms have one K."""
    lines: dict[str, list[Point]] = {}
    for arm in sorted(m.arms, key=lambda a: a.k):
        tau = m.row(arm).tau
        if arm.k and tau is not None:
            name = f"θ={arm.theta:g}" if arm.theta is not None else arm.kind.upper()
            lines.setdefault(name, []).append(Point(arm.k, tau.value))
    ticks = sorted({p.x for points in lines.values() for p in points})
    if len(ticks) < 2:
        return ""
    return plot([Series(name, points) for name, points in lines.items()], "K, proposals", "τ", x_ticks=ticks)


def by_position(m: Model) -> str:
    """Acceptance at each place of the block, headline arms."""
    series = [
        Series(
            arm.title,
            [Point(i + 1, v) for i, v in enumerate(acceptance_by_position(m.row(arm).counters))],
            colour=_COLOURS[arm.kind],
        )
        for arm in m.main
        if arm.k
    ]
    most = max((len(s.points) for s in series), default=0)
    every = max(1, most // 12)
    return plot(
        series, "place in the block", "accepted of tested", x_ticks=[float(i) for i in range(1, most + 1, every)]
    )


def time_per_token(m: Model) -> str:
    """Milliseconds per token after the first, headline arms: drafting and verification."""
    groups = []
    for arm in m.main:
        counters = m.row(arm).counters
        draft, verify = draft_ms_per_token(counters), verify_ms_per_token(counters)
        if verify is not None:
            groups.append((arm.title, [("verification", verify), ("drafting", draft or 0.0)]))
    return bars(groups, "ms")


def es_by_theta(m: Model) -> str:
    """Mean ES against θ, a line for each K; nothing where there is one θ."""
    lines: dict[str, list[Point]] = {}
    for arm in sorted((a for a in m.arms if a.theta is not None), key=lambda a: a.theta or 0.0):
        value = mean_ES(m.row(arm).counters)
        if value is not None:
            lines.setdefault(f"K={arm.k}", []).append(Point(arm.theta or 0.0, value))
    ticks = sorted({p.x for points in lines.values() for p in points})
    if len(ticks) < 2:
        return ""
    return plot([Series(name, points) for name, points in lines.items()], "θ", "mean ES", x_ticks=ticks)


def ranks(m: Model) -> str:
    """Ranks by p in ranges, headline arms: of what was rejected and of what only the set kept, in percent."""
    counted = {f"{arm.title}, rejected": m.row(arm).counters.rejected_ranks for arm in m.main if arm.k}
    counted |= {f"{arm.title}, kept": m.row(arm).counters.rescued_ranks for arm in m.main if arm.kind == "nsd"}
    groups = []
    for low, high in _RANK_EDGES:
        label = f"{low}" if low == high else f"over {low - 1}" if high is None else f"{low}-{high}"
        for name, found in counted.items():
            if found:
                inside = sum(n for rank, n in found.items() if low <= rank and (high is None or rank <= high))
                groups.append((f"rank {label}", [(name, 100 * inside / found.total())]))
    return bars(groups, "%")
