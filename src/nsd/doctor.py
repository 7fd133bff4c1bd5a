"""Checks an installation and a pair, and estimates from a short probe whether drafting can pay."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from nsd.api import Pair, load
from nsd.decoding import Decoder, Request
from nsd.errors import NSDError
from nsd.events import Block
from nsd.laws import Sampling
from nsd.rules import SD
from nsd.verification import Accounting

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "numpy")
_PROBE_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: what was looked at, whether it is well, what was seen, and what to do if it is not."""

    name: str
    ok: bool
    seen: str
    fix: str = ""


def examine(model: str, drafter: str, k: int | None = None, **where: Any) -> list[Check]:
    """All checks in order; a check that fails ends those that build on it."""
    checks = [Check("python", True, platform.python_version()), *_packages(), _hardware()]
    try:
        pair = load(model, None, **where)
        checks.append(
            Check("target", True, f"{pair.target.name}: {pair.target.layers} layers, {pair.target.vocab} ids")
        )
        checks.append(Check("dtype", True, f"{pair.target.dtype} - {pair.target.dtype_reason}"))
        padded = 0 if pair.target.absent is None else int(pair.target.absent.sum())
        checks.append(Check("padding ids", True, f"{padded} ids without a tokenizer entry; probability 0 in p and q"))
        pair = load(pair.target, drafter)
        checks += _drafter(pair, k)
        checks += _probe(pair, k)
    except NSDError as problem:
        checks.append(Check("pair", False, str(problem), "nsd list models; nsd list drafters"))
    return checks


def _packages() -> list[Check]:
    found = []
    for name in _PACKAGES:
        try:
            found.append(Check(name, True, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            found.append(Check(name, False, "not installed", f"pip install {name}"))
    return found


def _hardware() -> Check:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return Check("hardware", True, f"{torch.get_num_threads()} CPU threads, {gpu}")


def _drafter(pair: Pair, k: int | None) -> list[Check]:
    if pair.drafter is None:
        return [Check("drafter", True, "none: plain decoding")]
    facts = ", ".join(f"{name} {value}" for name, value in pair.drafter.describe().items())
    checks = [Check("drafter", True, facts)]
    if pair.drafter.law.value != "sampled":
        meaning = "every token kept only by the nucleus costs 1 - p(x)"
        checks.append(Check("draft law", True, f"{pair.drafter.law.value}: {meaning}; a cap keeps it bounded"))
    try:
        wanted = pair.proposals(k)
        checks.append(
            Check("k", True, f"{wanted} proposals a block, {pair.drafter.block_unit(wanted)} in its own unit")
        )
    except NSDError as problem:
        checks.append(Check("k", False, str(problem), f"-k {pair.drafter.max_k}"))
    return checks


def _probe(pair: Pair, k: int | None) -> list[Check]:
    """Time plain and drafted steps on a repetitive prompt; say how long accepted drafts must be to pay."""
    prompt = tuple(pair.target.tokenizer.encode("one two three four five six seven eight. " * 4))
    plain = _steps(Pair(pair.target, None), prompt, 0)
    if pair.drafter is None:
        return [Check("speed", True, f"{1 / _typical(plain, _total):.1f} tokens/s plain")]
    drafted = [block for block in _steps(pair, prompt, pair.proposals(k)) if block.drafted]
    if not drafted:
        return [Check("break-even", True, "the drafter proposed nothing on the probe text; no estimate")]
    needed = _typical(drafted, _total) / _typical(plain, _total)
    draft, score = (1e3 * _typical(drafted, part) for part in (_draft, _score))
    seen = (
        f"a block costs {needed:.2f} plain tokens (draft {draft:.1f} ms, target {score:.1f} ms against "
        f"{1e3 * _typical(plain, _total):.1f} ms): drafting pays where tau > {needed:.2f}"
    )
    return [Check("break-even", True, seen)]


def _steps(pair: Pair, prompt: tuple[int, ...], k: int) -> list[Block]:
    request = Request(prompt, SD(), Sampling(), k, _PROBE_TOKENS, ignore_eos=True)
    return [b for b in Decoder(pair.target, pair.drafter, [request], Accounting.OFF) if b.number > 1]


def _typical(blocks: list[Block], part: Callable[[Block], float]) -> float:
    return median(part(block) for block in blocks)


def _total(block: Block) -> float:
    return block.timing.total_s


def _draft(block: Block) -> float:
    return block.timing.draft_s


def _score(block: Block) -> float:
    return block.timing.score_s
