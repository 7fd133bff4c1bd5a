"""A toy world that decodes for real: keyed uniforms, `verify`, events, ledger. Traces in these tests come from here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from nsd.events import Block, Committed, Drawn, FinishReason, Law, Origin, Tested, Timing
from nsd.fidelity import Budget, Ledger, guarantee_of, join, weight_factor_of
from nsd.laws import Purpose, draw, uniforms
from nsd.rules import Recovery, Rule, make_rule
from nsd.trace.record import Recorder
from nsd.trace.schema import Header, RequestInfo
from nsd.verification import Accounting, Branch, Draft, DraftLaw, Uniforms, Verdict, verify

ORIGINS = {Branch.RATIO: Origin.RATIO, Branch.RESCUED: Origin.RESCUED, Branch.REJECTED: Origin.REJECTED}
EOS = 0
TEXT = ["", " the", " cat", "<b>", " &amp;", "\n", " sat", '"', " on", "é", " a", " mat", ",", " and", " then", "."]


@dataclass(frozen=True)
class World:
    """p and q of every history, from a seed; texts of ids."""

    seed: int = 0
    vocab: int = 16
    noise: float = 1.2

    def p(self, history: list[int]) -> torch.Tensor:
        return self._row(history, 0.0)

    def q(self, history: list[int]) -> torch.Tensor:
        return self._row(history, self.noise)

    def _row(self, history: list[int], noise: float) -> torch.Tensor:
        rng = np.random.default_rng([self.seed, *history[-3:]])
        logits = rng.normal(size=self.vocab) * 1.6
        logits[EOS] -= 2.0
        logits += noise * rng.normal(size=self.vocab)
        return torch.softmax(torch.tensor(logits, dtype=torch.float32), -1)

    def text(self, token: int) -> str:
        return TEXT[token % len(TEXT)]


@dataclass
class Run:
    """One recorded run: what went into the recorder."""

    header: Header
    blocks: list[Block]
    fidelity: list[dict[str, object]]

    def record(self, path: Path) -> Path:
        with Recorder(path, self.header) as recorder:
            for block in self.blocks:
                recorder.write(block)
            recorder.close(self.fidelity)
        return path


def decode(
    rule: Rule | str = "nsd",
    law: DraftLaw = DraftLaw.SAMPLED,
    requests: int = 2,
    seed: int = 1,
    k: int = 4,
    tokens: int = 24,
    agreement: float | None = None,
    policy: str = "even",
    temper: float = 1.0,
    full_laws: int = 0,
    world: World | None = None,
) -> Run:
    """Decode a small batch. temper != 1 hands verification a q that the drafts were not drawn from."""
    world = World(seed) if world is None else world
    rule = make_rule(rule) if isinstance(rule, str) else rule
    live = [
        _Live(world, rule, law, number, seed + 17 * number, k, tokens, agreement, policy) for number in range(requests)
    ]
    blocks: list[Block] = []
    clock = 0.0
    while any(one.finish is None for one in live):
        clock += 0.01
        blocks += _step([one for one in live if one.finish is None], rule, law, temper, full_laws, clock)
    infos = tuple(
        RequestInfo(
            request=one.number,
            seed=one.seed,
            key=one.number,
            rule=rule.name,
            numbers={name: str(v) if v == float("inf") else v for name, v in rule.settings().items()},
            sampling={"temperature": 1.0},
            k=k,
            max_new_tokens=tokens,
            prompt="Once <upon> a time & so on",
            prompt_tokens=2,
            agreement=agreement,
            policy=None if agreement is None else policy,
        )
        for one in live
    )
    header = Header("toy", "toy-draft", law.value, infos, vocab=world.vocab, eos=(EOS,), logprobs="processed")
    return Run(header, blocks, [one.ledger.fidelity().as_json() for one in live])


class _Live:
    def __init__(
        self,
        world: World,
        rule: Rule,
        law: DraftLaw,
        number: int,
        seed: int,
        k: int,
        tokens: int,
        agreement: float | None,
        policy: str,
    ) -> None:
        self.world, self.number, self.seed, self.k, self.tokens = world, number, seed, k, tokens
        self.output: list[int] = []
        self.blocks = 0
        self.finish: FinishReason | None = None
        self.budget = None if agreement is None else Budget(agreement, tokens, k, policy)  # type: ignore[arg-type]
        self.ledger = Ledger(guarantee_of(rule, tokens, agreement=agreement), rule, law, Accounting.FULL)

    def history(self, drafted: list[int]) -> list[int]:
        return [7, 3 + self.number, *self.output, *drafted]

    def u(self, purpose: Purpose, place: int) -> float:
        block = self.blocks if purpose is Purpose.DRAFT else 0
        return float(uniforms(self.seed, self.number, len(self.output) + place, purpose, block))

    def propose(self, law: DraftLaw) -> tuple[list[int], list[torch.Tensor]]:
        length = max(min(self.k, self.tokens - len(self.output) - 1), 0) if self.blocks else 0
        drafted: list[int] = []
        rows: list[torch.Tensor] = []
        for place in range(length):
            q = self.world.q(self.history(drafted))
            u = torch.tensor([self.u(Purpose.DRAFT, place)], dtype=torch.float64)
            drafted.append(int(q.argmax()) if law is DraftLaw.POINT else int(draw(q.unsqueeze(0), u)))
            rows.append(q)
        return drafted, rows

    def cut(self, tokens: list[int]) -> int:
        for count, token in enumerate(tokens, start=1):
            if token == EOS:
                self.finish = FinishReason.EOS
                return count
            if len(self.output) + count == self.tokens:
                self.finish = FinishReason.LENGTH
                return count
        return len(tokens)


def _step(live: list[_Live], rule: Rule, law: DraftLaw, temper: float, full_laws: int, clock: float) -> list[Block]:
    proposals = [one.propose(law) for one in live]
    lengths = tuple(len(tokens) for tokens, _ in proposals)
    rows = [torch.softmax(row.log() / temper, -1) if temper != 1.0 else row for _, given in proposals for row in given]
    none = law is not DraftLaw.SAMPLED or not rows
    q = None if none else torch.stack(rows)
    ids = torch.tensor([token for tokens, _ in proposals for token in tokens], dtype=torch.long)
    draft = Draft(ids, lengths, law if rows else DraftLaw.POINT, q)
    p = torch.stack(
        [
            one.world.p(one.history(tokens[:i]))
            for one, (tokens, _) in zip(live, proposals, strict=True)
            for i in range(len(tokens) + 1)
        ]
    )
    columns = [
        torch.tensor(
            [one.u(kind, i) for one, n in zip(live, lengths, strict=True) for i in range(n + 1)], dtype=torch.float64
        )
        for kind in (Purpose.ACCEPT, Purpose.RESIDUAL, Purpose.TARGET)
    ]
    given = Uniforms(*columns)
    parts = [
        None if one.budget is None else one.budget.caps(n, len(one.output))
        for one, n in zip(live, lengths, strict=True)
    ]
    verdict = verify(draft, p, [rule] * len(live), given, Accounting.FULL, join(parts, lengths), trace=True)
    timing = Timing(0.001, 0.006, 0.002, 0.001)
    return [
        _block(b, one, draft, verdict, given, p, q, rule, timing, len(live), full_laws, clock)
        for b, one in enumerate(live)
    ]


def _block(
    b: int,
    one: _Live,
    draft: Draft,
    verdict: Verdict,
    given: Uniforms,
    p: torch.Tensor,
    q: torch.Tensor | None,
    rule: Rule,
    timing: Timing,
    batch: int,
    full_laws: int,
    clock: float,
) -> Block:
    start, length, accepted = sum(draft.lengths[:b]), draft.lengths[b], int(verdict.accepted[b])
    drafted = draft.tokens[start : start + length].tolist()
    position, row = len(one.output), start + b
    tokens = [*drafted[:accepted], int(verdict.final.token[b])]
    kept = one.cut(tokens)
    tested = tuple(
        _tested(start + i, row + i, position + i, drafted[i], verdict, given, rule, p, q, full_laws)
        for i in range(min(accepted + 1, length, kept))
    )
    ends = Origin.TARGET if not length else Origin.BONUS if bool(verdict.final.bonus[b]) else Origin.RECOVERED
    residual = ends is Origin.RECOVERED and rule.recovery is not Recovery.TARGET
    drawn = Drawn(
        position + accepted,
        tokens[-1],
        ends,
        float((given.residual if residual else given.target)[row + accepted]),
        *(float(getattr(verdict.final, name)[b]) for name in ("p_x", "mass", "weight", "below")),
    )
    origins = [*(t.origin for t in tested if t.origin is not Origin.REJECTED), ends]
    probabilities = [*(t.p for t in tested if t.origin is not Origin.REJECTED), drawn.p]
    committed = tuple(
        Committed(token, origin, one.world.text(token), float(np.log(prob)))
        for token, origin, prob in zip(tokens[:kept], origins, probabilities, strict=False)
    )
    rejected = [t.token for t in tested if t.origin is Origin.REJECTED]
    block = Block(
        request=one.number,
        number=one.blocks,
        position=position,
        drafted=tuple(drafted),
        tested=tested,
        drawn=drawn if kept > accepted else None,
        committed=committed,
        rejected_text="".join(one.world.text(token) for token in rejected),
        guard=bool(verdict.guard[b]),
        invalid=bool(verdict.invalid[b]),
        finish_reason=one.finish,
        timing=timing,
        batch=batch,
        seconds_since_start=clock,
    )
    one.output += tokens[:kept]
    one.blocks += 1
    if one.budget is not None:
        one.budget.settle(t.eps for t in tested if t.eps is not None)
    one.ledger.consume(block)
    return block


def _tested(
    at: int,
    row: int,
    position: int,
    token: int,
    verdict: Verdict,
    given: Uniforms,
    rule: Rule,
    p: torch.Tensor,
    q: torch.Tensor | None,
    full_laws: int,
) -> Tested:
    c = {name: float(getattr(verdict.columns, name)[at]) for name in verdict.columns.__slots__}
    origin = ORIGINS[Branch(int(verdict.branch[at]))]
    member = bool(c["member"])
    factor = None if origin is Origin.REJECTED else weight_factor_of(rule, c["p_x"], c["q_x"], c["lam"], member)
    names = ("mass", "R", "ES", "eps", "lam", "entropy_p", "entropy_q", "q_below", "q_mass", "p_below")
    return Tested(
        position=position,
        token=token,
        origin=origin,
        u=float(given.accept[row]),
        p=c["p_x"],
        q=c["q_x"],
        rank=int(c["rank"]),
        member=member,
        weight_factor=factor,
        p_law=_law(p[row], full_laws) if full_laws else None,
        q_law=_law(q[at], full_laws) if full_laws and q is not None else None,
        **{name: None if np.isnan(c[name]) else c[name] for name in names},
    )


def _law(row: torch.Tensor, count: int) -> Law:
    top = row.double().topk(min(count, len(row)))
    pairs = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    return Law(pairs, max(1.0 - sum(mass for _, mass in pairs), 0.0) if count < len(row) else 0.0)
