"""The audit of a block's order: what it must be whatever its numbers are."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nsd.events import Block, FinishReason, Origin
from nsd.trace.standing import ACCEPTED, FINE, Finding, Standing, claims


def check_order(s: Standing, block: Block, here: str) -> Iterator[Finding]:
    """Consecutive, cut where it ends, committing what it decided, with times that can be."""
    yield from _order(s, block, here)
    yield from _finish(s, block, here)
    yield from _logprobs(s, block, here)


def _order(s: Standing, block: Block, here: str) -> Iterator[Finding]:
    """What every block must be whatever the numbers: consecutive, cut where it ends, committing what it decided."""
    accepted = [t for t in block.tested if t.origin in ACCEPTED]
    ends = block.drawn
    emitted = [(t.token, t.origin) for t in accepted] + ([(ends.token, ends.origin)] if ends else [])
    positions = [t.position for t in block.tested]
    rejects = any(t.origin is Origin.REJECTED for t in block.tested)
    wanted_end = _final_origin(block, len(accepted), rejects)
    room = s.info.max_new_tokens - block.position
    yield from claims(
        here,
        ("finish_reason", s.finish, s.finish is None, "no block after the end"),
        ("number", block.number, block.number == s.number, s.number),
        ("position", block.position, block.position == s.position, s.position),
        (
            "drafted",
            len(block.drafted),
            len(block.drafted) <= max(min(s.info.k, room - 1), 0),
            f"at most k = {s.info.k}",
        ),
        ("drafted", len(block.drafted), block.number > 0 or not block.drafted, "nothing in the prefill"),
        ("tested", [t.token for t in block.tested], _is_prefix(block), f"the first of {list(block.drafted)}"),
        ("tested", positions, positions == list(range(block.position, block.position + len(positions))), "in order"),
        (
            "origin",
            "a token after the rejected one",
            not any(t.origin not in ACCEPTED for t in block.tested[:-1]),
            "none",
        ),
        ("drawn", ends and ends.origin.value, ends is None or ends.origin is wanted_end, wanted_end.value),
        ("drawn", None, ends is not None or (block.finish_reason is not None and not rejects), "a final token"),
        (
            "drawn",
            ends and ends.position,
            ends is None or ends.position == block.position + len(accepted),
            "the next position",
        ),
        ("drawn", "a bonus", ends is None or rejects or len(block.tested) == len(block.drafted), "all drafts tested"),
        ("committed", [(c.token, c.origin.value) for c in block.committed], _emits(block, emitted), f"{emitted}"),
        ("guard", True, not (block.guard or block.invalid) or rejects or ends is None, "only after a rejection"),
        ("invalid", True, not (block.guard and block.invalid), "not guard and invalid at once"),
        ("batch", block.batch, 1 <= block.batch <= len(s.header.requests), "the requests that shared the step"),
        ("seconds_since_start", block.seconds_since_start, block.seconds_since_start >= s.seconds, "never backwards"),
        ("timing", block.timing, _is_timing(block), "seconds, none negative"),
    )


def _final_origin(block: Block, accepted: int, rejects: bool) -> Origin:
    if rejects:
        return Origin.RECOVERED
    return Origin.BONUS if block.drafted else Origin.TARGET


def _is_prefix(block: Block) -> bool:
    return tuple(t.token for t in block.tested) == block.drafted[: len(block.tested)]


def _emits(block: Block, emitted: list[tuple[int, Origin]]) -> bool:
    return bool(emitted) and [(c.token, c.origin) for c in block.committed] == emitted


def _is_timing(block: Block) -> bool:
    t = block.timing
    return all(0 <= lap < math.inf for lap in (t.draft_s, t.score_s, t.decide_s, t.commit_s))


def _logprobs(s: Standing, block: Block, here: str) -> Iterator[Finding]:
    """Where logprobs are of the law that verification used, they are log p of each committed token."""
    if s.header.logprobs != "processed":
        return
    known = [t.p for t in block.tested if t.origin in ACCEPTED] + ([block.drawn.p] if block.drawn else [])
    for place, (c, p) in enumerate(zip(block.committed, known, strict=False)):
        if c.logprob is not None and p > 0:
            log = math.log(p)
            yield from claims(
                f"{here}, token {place}", ("logprob", c.logprob, abs(c.logprob - log) <= FINE, f"{log:.9g}")
            )


def _finish(s: Standing, block: Block, here: str) -> Iterator[Finding]:
    reason, after = block.finish_reason, block.position + len(block.committed)
    last = block.committed[-1].token if block.committed else None
    full = after >= s.info.max_new_tokens
    yield from claims(
        here,
        ("finish_reason", None, reason is not None or not full, f"an end at {s.info.max_new_tokens} tokens"),
        ("position", after, after <= s.info.max_new_tokens, f"at most {s.info.max_new_tokens} tokens"),
        (
            "finish_reason",
            "eos",
            reason is not FinishReason.EOS or not s.header.eos or last in s.header.eos,
            "eos last",
        ),
    )
