"""The decoding loop: propose, score, verify, commit; once per step for the whole ragged batch.

Plain decoding is the same loop with nothing drafted. p is the target's law, q the law the drafts were drawn from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter

import torch
from torch import Tensor

from nsd.decoding.blocks import HostVerdict, kept_rows
from nsd.decoding.chance import Chance
from nsd.decoding.request import Request
from nsd.decoding.sequence import Sequence as Live
from nsd.drafters.base import Ask, Drafter, DraftSession
from nsd.errors import NonFiniteTarget, PromptError
from nsd.events import Block, Committed, FinishReason, Origin, Timing
from nsd.fidelity.budget import join
from nsd.laws import History, laws
from nsd.targets.base import Scores, Target, Tokenizer
from nsd.verification import Accounting, Caps, Draft, DraftLaw, verify


class Decoder:
    """Decodes one batch of requests; iterate over it for events, or call `step` until nothing is live."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        requests: Sequence[Request],
        accounting: Accounting = Accounting.RESCUES,
        trace: bool = False,
        trace_laws: int = 0,
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._accounting = accounting
        self._trace = trace
        self._trace_laws = trace_laws
        for request in requests:
            _fits(request, target)
        self.sequences = [Live(number, request, target) for number, request in enumerate(requests)]
        self._live = list(self.sequences)
        self._drafting: DraftSession | None = None
        self._prefill_taps: Tensor | None = None
        self._clock = _Clock()

    def __iter__(self) -> Iterator[Block]:
        """All events until every request has ended; leaving early marks the rest as interrupted."""
        try:
            yield from self.start()
            while self._live:
                yield from self.step()
        finally:
            for sequence in self._live:
                sequence.finish_reason = FinishReason.INTERRUPTED

    def start(self) -> list[Block]:
        """Prefill all prompts and draw the first token of each."""
        self._clock.start()
        self._started = perf_counter()
        taps = () if self._drafter is None else self._drafter.taps
        room = max(s.room for s in self._live) + 1
        self._clock.lap()
        self.session, scores = self._target.open([s.request.prompt for s in self._live], room, taps)
        self._prefill_taps = scores.taps
        self._clock.lap(self._target.device)
        draft, chance = self._nothing(), self._chance(0)
        return self._commit(draft, Scores(scores.logits), self._verify(draft, scores, chance))

    def step(self) -> list[Block]:
        """One block for every live request: propose, score, verify, commit."""
        self._clock.start()
        chance = self._chance(max(ask.k for ask in self._asks()))
        draft = self._propose(chance)
        scores = self._score(draft)
        verdict = self._verify(draft, scores, chance)
        return self._commit(draft, scores, verdict)

    def _propose(self, chance: Chance) -> Draft:
        """Ask the drafter for every live request's proposals."""
        draft = self._nothing()
        if self._drafter is not None:
            if self._drafting is None:
                self._drafting = self._open_drafter(self._drafter)
            draft = self._drafting.propose(self._asks(), chance.draft)
        self._clock.lap(self._target.device)
        return draft

    def _score(self, draft: Draft) -> Scores:
        """One target pass over each request's anchor and proposals."""
        inputs = [[s.output[-1], *drafted] for s, drafted in zip(self._live, _split(draft), strict=True)]
        scores = self.session.score(inputs)
        self._clock.lap(self._target.device)
        return scores

    def _verify(self, draft: Draft, scores: Scores, chance: Chance) -> HostVerdict:
        """Processed target laws, then the decision."""
        per_row = [s.sampling for s, n in zip(self._live, draft.lengths, strict=True) for _ in range(n + 1)]
        histories = self._histories(draft) if any(sampling.needs_history for sampling in per_row) else None
        p = laws(scores.logits, per_row, histories, self._target.absent)
        rules = [s.request.rule for s in self._live]
        uniforms = chance.verification(draft.lengths, p.device)
        try:
            verdict = verify(draft, p, rules, uniforms, self._accounting, self._caps(draft), self._trace)
        except NonFiniteTarget as problem:
            broken = self._live[problem.request]
            raise problem.at(broken.number, len(broken.output) + problem.place) from None
        on_host = HostVerdict.of(draft, verdict, uniforms, p, self._trace_laws)
        self._clock.lap()
        return on_host

    def _commit(self, draft: Draft, scores: Scores, verdict: HostVerdict) -> list[Block]:
        """Emit up to where each text ends, and roll the caches back to what was kept."""
        tokens = [verdict.tokens(b) for b in range(len(self._live))]
        positions = [len(s.output) for s in self._live]
        texts = [s.emit(ids) for s, ids in zip(self._live, tokens, strict=True)]
        logprobs = self._raw_logprobs(scores, draft, tokens)
        if positions[0]:
            self._roll_back(draft, scores, verdict, tokens)
        batch = [
            _Committing(b, s, verdict, positions[b], tokens[b], texts[b], logprobs[b]) for b, s in enumerate(self._live)
        ]
        self._retain([b for b, s in enumerate(self._live) if s.finish_reason is None])
        blocks = [one.block(self._target.tokenizer, len(batch)) for one in batch]
        self._clock.lap()
        timing, now = self._clock.timing(), perf_counter() - self._started
        return [replace(block, timing=timing, seconds_since_start=now) for block in blocks]

    def _roll_back(self, draft: Draft, scores: Scores, verdict: HostVerdict, tokens: list[list[int]]) -> None:
        """Keep the anchor and the accepted tokens in both caches; show the drafter what was committed."""
        self.session.keep([a + 1 for a in verdict.accepted])
        if self._drafting is not None:
            rows = None if scores.taps is None else kept_rows(draft.lengths, verdict.accepted)
            self._drafting.commit(tokens, None if scores.taps is None else scores.taps[rows])

    def _retain(self, live: list[int]) -> None:
        """Go on without the requests that have ended."""
        if len(live) == len(self._live):
            return
        if self._prefill_taps is not None and self._drafting is None:
            parts = torch.split(self._prefill_taps, [len(s.request.prompt) for s in self._live])
            self._prefill_taps = torch.cat([parts[b] for b in live]) if live else None
        self._live = [self._live[b] for b in live]
        if live:
            self.session.retain(live)
            if self._drafting is not None:
                self._drafting.retain(live)

    def _asks(self) -> list[Ask]:
        return [s.ask(0 if self._drafter is None else self._drafter.max_k) for s in self._live]

    def _chance(self, k: int) -> Chance:
        requests = [s.request for s in self._live]
        positions = [len(s.output) for s in self._live]
        blocks = [s.blocks for s in self._live]
        return Chance.of_step([r.seed for r in requests], [r.key for r in requests], positions, blocks, k)

    def _nothing(self) -> Draft:
        return Draft(
            torch.zeros(0, dtype=torch.long, device=self._target.device), (0,) * len(self._live), DraftLaw.POINT
        )

    def _open_drafter(self, drafter: Drafter) -> DraftSession:
        """Start drafting once the first token is out, for the requests that are still live."""
        taps, self._prefill_taps = self._prefill_taps, None
        room = max(s.room for s in self._live) + 1
        return drafter.open_beside(self.session, [s.request.prompt for s in self._live], taps, room)

    def _histories(self, draft: Draft) -> list[History]:
        """What every target row sees: prompt, output, and the proposals before it."""
        return [
            History(s.request.prompt, [*s.output, *drafted[:i]])
            for s, drafted in zip(self._live, _split(draft), strict=True)
            for i in range(len(drafted) + 1)
        ]

    def _caps(self, draft: Draft) -> Caps | None:
        """What requests with a whole-sequence budget may spend in this block."""
        parts = [s.allowance(length) for s, length in zip(self._live, draft.lengths, strict=True)]
        return join(parts, draft.lengths, str(draft.tokens.device))

    def _raw_logprobs(self, scores: Scores, draft: Draft, tokens: list[list[int]]) -> list[list[float] | None]:
        """log softmax of the unprocessed logits at the committed tokens, for the requests that asked for it."""
        found: list[list[float] | None] = []
        first = 0
        for s, ids, length in zip(self._live, tokens, draft.lengths, strict=True):
            row: list[float] | None = None
            if s.request.logprobs == "raw":
                raw = torch.log_softmax(scores.logits[first : first + len(ids)].float(), -1)
                row = raw.gather(-1, torch.tensor(ids, device=raw.device).unsqueeze(-1)).squeeze(-1).tolist()
            found.append(row)
            first += length + 1
        return found


@dataclass(frozen=True, slots=True)
class _Committing:
    """One request's share of a step, ready to become an event."""

    b: int
    sequence: Live
    verdict: HostVerdict
    position: int
    tokens: list[int]
    texts: list[str]
    raw: list[float] | None

    def block(self, tokenizer: Tokenizer, batch: int) -> Block:
        """The event, but for the time it took."""
        b, verdict, kept = self.b, self.verdict, len(self.texts)
        accepted = verdict.accepted[b]
        tested = verdict.tested(b, self.position, kept, self.sequence.request)
        if self.sequence.budget is not None:
            self.sequence.budget.settle(t.eps for t in tested if t.eps is not None)
        drawn = verdict.drawn(b, self.position, self.sequence.request.rule) if kept > accepted else None
        laws_p = [t.p for t in tested if t.origin is not Origin.REJECTED] + ([drawn.p] if drawn else [])
        logprobs: list[float | None] = [None] * kept
        if self.sequence.request.logprobs == "processed":
            logprobs = [math.log(p) for p in laws_p]
        elif self.raw is not None:
            logprobs = list(self.raw[:kept])
        committed = zip(self.tokens, verdict.origins(b), self.texts, logprobs, strict=False)
        rejected = [t.token for t in tested if t.origin is Origin.REJECTED]
        return Block(
            request=self.sequence.number,
            number=self.sequence.blocks - 1,
            position=self.position,
            drafted=tuple(verdict.proposals(b)),
            tested=tested,
            drawn=drawn,
            committed=tuple(Committed(*one) for one in committed),
            rejected_text=tokenizer.decode(rejected),
            guard=verdict.guard[b],
            invalid=verdict.invalid[b],
            finish_reason=self.sequence.finish_reason,
            timing=Timing(0.0, 0.0, 0.0, 0.0),
            batch=batch,
            seconds_since_start=0.0,
        )


class _Clock:
    """Laps of one step: draft, target pass, decision, the rest."""

    def start(self) -> None:
        self._marks = [perf_counter()]

    def lap(self, device: torch.device | None = None) -> None:
        """End a lap; given a GPU, only after its work is done, so that laps mean what they say."""
        if device is not None and device.type == "cuda":
            torch.cuda.synchronize(device)
        self._marks.append(perf_counter())

    def timing(self) -> Timing:
        """The four laps of the step."""
        draft, score, decide, commit = (b - a for a, b in pairwise(self._marks))
        return Timing(draft, score, decide, commit)


def _split(draft: Draft) -> list[list[int]]:
    """Proposals per request."""
    return [part.tolist() for part in torch.split(draft.tokens, list(draft.lengths))]


def _fits(request: Request, target: Target) -> None:
    if len(request.prompt) >= target.context:
        raise PromptError(
            f"the prompt has {len(request.prompt)} tokens, {target.name} takes at most {target.context - 1}; "
            "shorten it or take a model with a longer context"
        )
