"""Times the parts of one block apart: draft, target pass, decision, roll-back. Medians; a GPU is waited for."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from time import perf_counter

import torch
import transformers
from torch import Tensor

import nsd
from benchmarks.random_pairs import RandomPair
from nsd.drafters.base import Ask
from nsd.laws import Sampling, laws
from nsd.rules import NSD
from nsd.targets.base import Target
from nsd.verification import Accounting, Uniforms, verify


@dataclass(frozen=True, slots=True)
class Laps:
    """Median seconds per block, whole batch. The drafter proposes and learns; the target verifies and keeps."""

    propose: float
    verify: float
    decide: float
    keep: float
    learn: float

    @property
    def draft(self) -> float:
        """All that the drafter takes."""
        return self.propose + self.learn


def header(dtype: torch.dtype, device: torch.device) -> str:
    """Machine, date, versions, command: two comment lines above a table."""
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return (
        f"# {datetime.now(UTC):%Y-%m-%d}, {machine}, {torch.get_num_threads()} CPU threads, {dtype}\n"
        f"# nsd {nsd.__version__}, torch {torch.__version__}, transformers {transformers.__version__}: "
        f"python -m {' '.join([_module(), *sys.argv[1:]])}"
    )


def _module() -> str:
    return "benchmarks." + sys.argv[0].replace("\\", "/").rpartition("/")[2].removesuffix(".py")


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 (a device file, not a path of ours)
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def measure(pair: RandomPair, batch: int, prompt: int, blocks: int, warm: int = 2) -> Laps:
    """Decode a batch of random prompts for so many blocks under NSD."""
    target, drafter, k = pair.target, pair.drafter, pair.k
    g = torch.Generator().manual_seed(0)
    prompts = torch.randint(target.vocab - 1, (batch, prompt), generator=g).tolist()
    outputs = torch.randint(target.vocab - 1, (batch, 1), generator=g).tolist()
    room = (blocks + warm + 1) * (k + 1)
    session, scores = target.open(prompts, room, drafter.taps)
    drafting = drafter.open_beside(session, prompts, scores.taps, room)
    rules, sampling = [NSD()] * batch, Sampling()
    seen: list[tuple[float, ...]] = []
    for _ in range(blocks + warm):
        u = torch.rand(4, batch, k + 1, generator=g, dtype=torch.float64)
        asks = [Ask(k, o[-1], p, o, sampling) for p, o in zip(prompts, outputs, strict=True)]
        marks = [_now(target)]
        draft = drafting.propose(asks, u[0])
        marks.append(_now(target))
        tokens = [part.tolist() for part in torch.split(draft.tokens, list(draft.lengths))]
        scores = session.score([[o[-1], *x] for o, x in zip(outputs, tokens, strict=True)])
        marks.append(_now(target))
        p = laws(scores.logits, [sampling] * len(scores.logits), None, target.absent)
        verdict = verify(draft, p, rules, _uniforms(u, draft.lengths, p), Accounting.OFF)
        accepted, final = verdict.accepted.tolist(), verdict.final.token.tolist()
        marks.append(_now(target))
        session.keep([a + 1 for a in accepted])
        marks.append(_now(target))
        committed = [[*x[:a], y] for x, a, y in zip(tokens, accepted, final, strict=True)]
        drafting.commit(committed, _kept(scores.taps, draft.lengths, accepted))
        marks.append(_now(target))
        outputs = [[*o, *new] for o, new in zip(outputs, committed, strict=True)]
        seen.append(tuple(b - a for a, b in pairwise(marks)))
    return Laps(*(median(column) for column in zip(*seen[warm:], strict=True)))


def _uniforms(u: Tensor, lengths: tuple[int, ...], p: Tensor) -> Uniforms:
    used = torch.arange(u.shape[-1]) <= torch.tensor(lengths).unsqueeze(-1)
    accept, residual, drawn = (u[i][used].to(p.device) for i in (1, 2, 3))
    return Uniforms(accept, residual, drawn)


def _kept(taps: Tensor | None, lengths: tuple[int, ...], accepted: list[int]) -> Tensor | None:
    if taps is None:
        return None
    parts = torch.split(taps, [n + 1 for n in lengths])
    return torch.cat([part[: a + 1] for part, a in zip(parts, accepted, strict=True)])


def plain_step(target: Target, batch: int, prompt: int, steps: int, warm: int = 2) -> float:
    """Median seconds of a target pass over one token for each request: what plain decoding costs."""
    return median(pass_times(target, [()], batch, prompt, 1, steps + warm)[0][warm:])


def pass_times(
    target: Target, taps: list[tuple[int, ...]], batch: int, prompt: int, width: int, steps: int
) -> list[list[float]]:
    """Seconds of target passes over `width` tokens for each request: by what is tapped, in turns, step by step."""
    g = torch.Generator().manual_seed(1)
    prompts = torch.randint(target.vocab - 1, (batch, prompt), generator=g).tolist()
    inputs = torch.randint(target.vocab - 1, (batch, width), generator=g).tolist()
    sessions = [target.open(prompts, width + 1, wanted)[0] for wanted in taps]
    seen: list[list[float]] = [[] for _ in taps]
    for step in range(steps):
        for i in range(len(taps)) if step % 2 else reversed(range(len(taps))):
            started = _now(target)
            sessions[i].score(inputs)
            seen[i].append(_now(target) - started)
            sessions[i].keep([0] * batch)
    return seen


def bandwidth(device: torch.device, dtype: torch.dtype, megabytes: int) -> float:
    """Bytes per second at which one row is multiplied with weights too many for any cache; the best of five rounds."""
    width, rows = 1024, 4096
    size = torch.empty(0, dtype=dtype).element_size()
    weights = [
        torch.ones(rows, width, device=device, dtype=dtype)
        for _ in range(max(megabytes * 2**20 // (rows * width * size), 1))
    ]
    x = torch.ones(1, width, device=device, dtype=dtype)
    times = []
    for _ in range(6):
        _wait(device)
        started = perf_counter()
        for weight in weights:
            torch.nn.functional.linear(x, weight)
        _wait(device)
        times.append(perf_counter() - started)
    return len(weights) * rows * width * size / min(times[1:])


def _now(target: Target) -> float:
    _wait(target.device)
    return perf_counter()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
