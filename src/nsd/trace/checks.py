"""The audit of one request, block by block: uniforms, draws, decisions, ledger."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nsd.events import Block, Drawn, Origin, Tested
from nsd.trace import philox
from nsd.trace.evidence import mismatches
from nsd.trace.order import check_order
from nsd.trace.redecide import (
    ARGMAX_RECOVERY,
    EXACT_RULES,
    KNOWN_RULES,
    RIM,
    SET_RULES,
    SURROGATE_RECOVERY,
    TARGET_RECOVERY,
    Allowance,
    accepts,
    member,
    number,
    passes_ratio,
    weight_factor,
)
from nsd.trace.standing import ACCEPTED, FINE, Finding, Standing, claims, is_exact

SUMS = 1e-4
"""Laws sum to 1, and the masses of (q-p)+ and (p-q)+ agree, to this: a float32 softmax of 50,000 ids is off by 2e-5."""
POLICIES = ("greedy", "even", "front")
_UNSPENT = 1e-12
"""What a budget keeps back against rounding, relative to its promise."""


def check_block(s: Standing, block: Block) -> Iterator[Finding]:
    """Everything wrong with the next block of a request; moves the standing on."""
    here = f"request {block.request}, block {block.number}"
    yield from check_order(s, block, here)
    allowance, caps = _allowances(s, block)
    for t, cap in zip(block.tested, caps, strict=False):
        at = f"{here}, position {t.position}"
        s.counts["tested"] += 1
        yield from _uniform(s, t, philox.ACCEPT, at)
        if block.invalid and t.origin is Origin.REJECTED:
            continue
        yield from _proposal(s, block, t, at)
        yield from _evidence(s, t, at)
        yield from _decision(s, block, t, allowance, cap, at)
    if block.drawn is not None:
        yield from _draw(s, block, block.drawn, f"{here}, position {block.drawn.position}")
    s.position = block.position + len(block.committed)
    s.number, s.seconds, s.finish = block.number + 1, block.seconds_since_start, block.finish_reason


def _allowances(s: Standing, block: Block) -> tuple[Allowance, list[float]]:
    """Floor and caps of a block, from the policy and the ledger before it alone."""
    cap = 1.0 if s.info.cap is None else s.info.cap
    length = len(block.drafted)
    if s.info.agreement is None:
        return Allowance(0.0), [cap] * length
    left = min(1.0, s.info.agreement * (1 + _UNSPENT) / s.kept) if s.kept > 0 else 1.0
    remaining = max(s.info.max_new_tokens - block.position, 1)
    if s.info.policy == "even":
        places = [1 - left ** (1 / remaining)] * length
    elif s.info.policy == "front":
        blocks = math.ceil(remaining / (max(s.info.k, length) + 1))
        places = [1 - left ** (1 / blocks)] + [0.0] * length if blocks > 1 else [1.0] * length
    else:
        places = [1.0] * length
    return Allowance(left), [min(cap, place) for place in places[:length]]


def _uniform(s: Standing, t: Tested | Drawn, purpose: int, at: str) -> Iterator[Finding]:
    own = philox.uniform(s.info.seed, s.info.key, t.position, purpose)
    yield from claims(at, ("u", t.u, t.u == own, f"{own!r}, keyed by seed {s.info.seed}"))


def _proposal(s: Standing, block: Block, t: Tested, at: str) -> Iterator[Finding]:
    """The proposal falls where its own uniform points in q; a point mass has q = 1 and no chance."""
    yield from claims(at, ("p", t.p, -0.0 <= t.p <= 1 + SUMS, "a probability"))
    if s.header.draft_law != "sampled":
        values = {"q": t.q, "q_below": 1.0 if t.q_below is None else 1.0 + t.q_below, "q_mass": t.q_mass or 1.0}
        for name, value in values.items():
            yield from claims(at, (name, getattr(t, name), value == 1.0, "that of a point mass at x"))
        return
    yield from claims(at, ("q", t.q, 0 < t.q <= 1 + SUMS, "a probability above 0, the token was drawn from q"))
    if t.q_below is None:
        s.counts["draws_unchecked"] += 1
        return
    u = philox.uniform(s.info.seed, s.info.key, t.position, philox.DRAFT, block.number)
    total, slack = (1.0, SUMS) if t.q_mass is None else (t.q_mass, FINE)
    aim = u * total
    s.counts["draws"] += 1
    yield from claims(
        at,
        ("q_mass", t.q_mass, abs(total - 1) <= SUMS, "1, the mass of a law"),
        ("q_below", t.q_below, -FINE <= t.q_below <= total - t.q + slack, f"room for q in {total:.6f}"),
        (
            "q_below",
            f"[{t.q_below:.6f}, {t.q_below + t.q:.6f})",
            t.q_below - slack <= aim < t.q_below + t.q + slack,
            f"an interval with {aim:.6f}: q the law of the draw",
        ),
    )


def _evidence(s: Standing, t: Tested, at: str) -> Iterator[Finding]:
    """Mass, rank, entropies and R must be possible together with p and q."""
    over = max(t.q - t.p, 0.0)
    if t.mass is not None:
        prefix = s.info.numbers.get("ties") == "smallest"
        yield from claims(at, ("mass", t.mass, -FINE <= t.mass <= 1 - t.p + SUMS, f"at most 1 - p = {1 - t.p:.6f}"))
        if t.rank is not None:
            least = (t.rank - 1) * t.p * (1 - RIM)
            top = t.rank > 1 or prefix or t.mass <= FINE
            yield from claims(
                at,
                ("rank", t.rank, t.rank >= 1 and t.mass >= least, f"one that mass {t.mass:.6f} above x allows"),
                ("mass", t.mass, top, "0 at rank 1"),
                ("rank", t.rank, t.mass > 0 or t.rank == 1, "1 with no mass above"),
            )
    if t.R is not None:
        point = s.header.draft_law != "sampled"
        yield from claims(
            at,
            ("R", t.R, over - SUMS <= t.R <= 1 + SUMS, f"between (q-p)+ = {over:.6f} and 1"),
            ("R", t.R, not point or abs(t.R - (1 - t.p)) <= SUMS, f"1 - p = {1 - t.p:.6f}, a point mass"),
        )
    for name, got in (("entropy_p", t.entropy_p), ("entropy_q", t.entropy_q)):
        most = math.log(s.header.vocab) + SUMS if s.header.vocab else math.inf
        yield from claims(at, (name, got, got is None or -SUMS <= got <= most, "an entropy in nats"))
    for name, got, wanted in mismatches(s.info.rule, s.info.numbers, t):
        yield Finding(at, name, got, wanted)


def _decision(s: Standing, block: Block, t: Tested, allowance: Allowance, cap: float, at: str) -> Iterator[Finding]:
    """Membership, deviation, allowance, branch and weight of one tested proposal."""
    rule, numbers = s.info.rule, s.info.numbers
    own = member(rule, numbers, t)
    inside = bool(t.member) if own is None else own
    if t.member is not None:
        yield from claims(at, ("member", t.member, own is None or t.member == own, f"{own}, from p and the mass above"))
    yield from _deviation(s, t, inside, at)
    lam = 1.0
    if t.ES is None:
        s.counts["deviation_unchecked"] += 1
    elif s.capped:
        eps, lam = allowance.spend(min(t.ES, 1.0), cap)
        yield from _spent(t, eps, lam, at)
    else:
        yield from _spent(t, t.ES, 1.0, at)
    _charge(s, t)
    yield from _branch(s, block, t, own, lam, at)
    yield from _weight(s, t, lam, inside, at)


def _deviation(s: Standing, t: Tested, inside: bool, at: str) -> Iterator[Finding]:
    """ES against what p, q, R and membership allow; exact where they settle it."""
    if t.ES is None or t.R is None:
        return
    rule, over = s.info.rule, max(t.q - t.p, 0.0)
    least, most = 0.0, 1.0
    if rule in EXACT_RULES:
        most = 0.0
    elif rule in SET_RULES:
        most = t.R if inside else t.R - over
        least = over if inside else 0.0
        if s.header.draft_law != "sampled":
            least = most = 1 - t.p if inside else 0.0
    elif rule == "ensemble":
        least = most = (1 - number(s.info.numbers, "w")) * t.R
    elif rule == "lossy-epsilon":
        most = number(s.info.numbers, "epsilon")
    yield from claims(at, ("ES", t.ES, least - SUMS <= t.ES <= most + SUMS, f"in [{least:.6f}, {most:.6f}]"))


def _spent(t: Tested, eps: float, lam: float, at: str) -> Iterator[Finding]:
    if t.eps is not None:
        yield from claims(at, ("eps", t.eps, abs(t.eps - eps) <= FINE, f"{eps:.9g} = lam ES, from ES and the ledger"))
    if t.lam is not None:
        fine = FINE if t.ES is not None and t.ES <= 1 else RIM
        yield from claims(at, ("lam", t.lam, abs(t.lam - lam) <= fine, f"{lam:.9g}, from ES and the ledger"))


def _charge(s: Standing, t: Tested) -> None:
    eps = 0.0 if t.eps is None else t.eps
    s.kept *= 1 - eps
    s.spent += eps
    s.largest = max(s.largest, eps)
    s.sum_es += t.ES or 0.0
    s.max_es = max(s.max_es, t.ES or 0.0)


def _branch(s: Standing, block: Block, t: Tested, own: bool | None, lam: float, at: str) -> Iterator[Finding]:
    """The decision, taken again."""
    rule = s.info.rule
    if rule == "sample-and-match" and t.p_below is not None:
        decision = _own_draw(s, t, t.p_below)
    else:
        decision = accepts(rule, s.info.numbers, t, lam, own, block.drawn)
    accepted = t.origin in ACCEPTED
    if decision is None:
        s.counts["not_redecided"] += 1
    else:
        s.counts["redecided"] += 1
        yield from claims(at, ("origin", t.origin.value, decision == accepted, "accepted" if decision else "rejected"))
    if accepted and rule in KNOWN_RULES:
        ratio = rule in EXACT_RULES or passes_ratio(t)
        wanted = Origin.RATIO if ratio else Origin.RESCUED
        yield from claims(at, ("origin", t.origin.value, t.origin is wanted, wanted.value))


def _own_draw(s: Standing, t: Tested, below: float) -> bool | None:
    """Whether plain decoding's own draw from p is x; None within rounding of the edge."""
    u = philox.uniform(s.info.seed, s.info.key, t.position, philox.TARGET)
    if below + SUMS <= u < below + t.p - SUMS:
        return True
    return None if below - SUMS <= u < below + t.p + SUMS else False


def _weight(s: Standing, t: Tested, lam: float, inside: bool, at: str) -> Iterator[Finding]:
    if t.origin not in ACCEPTED:
        yield from claims(at, ("weight_factor", t.weight_factor, t.weight_factor is None, "none at a rejected token"))
        return
    wanted = 1.0 if is_exact(s.info) else weight_factor(s.info.rule, s.info.numbers, t, lam, inside)
    if wanted is None or t.p <= 0:
        s.weight = None
        return
    s.weight = None if s.weight is None else s.weight * wanted
    got = t.weight_factor
    if got is not None:
        yield from claims(at, ("weight_factor", got, abs(got - wanted) <= FINE, f"{wanted:.9g} = min(1, p/pi)"))


def _draw(s: Standing, block: Block, d: Drawn, at: str) -> Iterator[Finding]:
    """The final token: its uniform, the law it came from, and that it falls where the uniform points."""
    rule = s.info.rule
    recovered = d.origin is Origin.RECOVERED
    if rule in KNOWN_RULES:
        residual = recovered and rule not in TARGET_RECOVERY
        yield from _uniform(s, d, philox.RESIDUAL if residual else philox.TARGET, at)
    yield from claims(at, ("p", d.p, 0 < d.p <= 1 + SUMS or rule in SURROGATE_RECOVERY, "a probability above 0"))
    if d.mass is None or d.weight is None or d.below is None:
        s.counts["draws_unchecked"] += 1
        return
    s.counts["draws"] += 1
    aim, slack = d.u * d.mass, FINE * max(d.mass, FINE)
    span = f"[{d.below:.6f}, {d.below + d.weight:.6f})"
    yield from claims(
        at,
        ("weight", d.weight, d.weight > 0, "above 0"),
        ("below", d.below, -FINE <= d.below <= d.mass - d.weight + slack, f"room for the token in {d.mass:.6f}"),
        ("below", span, d.below - slack <= aim < d.below + d.weight + slack, f"an interval with u mass = {aim:.6f}"),
    )
    from_p = not recovered or block.guard or block.invalid or rule in TARGET_RECOVERY
    yield from _of_target(d, at) if from_p else _residual(s, block, d, at)


def _of_target(d: Drawn, at: str) -> Iterator[Finding]:
    yield from claims(
        at,
        ("mass", d.mass, abs((d.mass or 0) - 1) <= SUMS, "1, the law is p"),
        ("weight", d.weight, d.weight == d.p, f"p = {d.p!r}"),
    )


def _residual(s: Standing, block: Block, d: Drawn, at: str) -> Iterator[Finding]:
    """A replacement: from (p-q)+, whose mass is R; or the argmax; a surrogate's residual is not recorded."""
    t, rule, mass, weight = block.tested[-1], s.info.rule, d.mass or 0.0, d.weight or 0.0
    if rule in KNOWN_RULES:
        yield from claims(at, ("token", d.token, d.token != t.token, "another token than the rejected one"))
    if rule in ARGMAX_RECOVERY:
        exact = (mass, weight, d.below) == (1.0, 1.0, 0.0)
        yield from claims(
            at,
            ("mass", (mass, weight, d.below), exact, "(1, 1, 0), the law is the argmax"),
            ("p", d.p, d.p >= t.p, "the largest probability"),
        )
    elif rule in KNOWN_RULES - SURROGATE_RECOVERY:
        point = s.header.draft_law != "sampled"
        yield from claims(
            at,
            ("mass", mass, t.R is None or abs(mass - t.R) <= SUMS, f"R = {t.R}, the mass of the residual"),
            ("weight", weight, weight == d.p if point else weight <= d.p, f"(p-q)+, at most p = {d.p!r}"),
        )
