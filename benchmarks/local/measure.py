"""Runs cells: prompt by prompt, all cells in a rotating order, every answer kept at once.

Decoding is `Pair.run`, once per prompt, batch 1. What is not speed (log p, entropy) is computed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

import nsd
from benchmarks.local.cells import GREEDY, SAME, THETA, Cell
from benchmarks.local.peers import Absent, Generate, Llama
from benchmarks.local.samples import Sample, Score, Store
from benchmarks.local.sharper import Sharper
from nsd.api import Pair
from nsd.decoding import Completion
from nsd.laws import Sampling, entropy, laws
from nsd.targets.base import Target

MODEL = "smollm2-135m"
PROBE_TOKENS = 32

Say = Callable[[str], None]


@dataclass(slots=True)
class Bench:
    """Loaded targets, drafters and peers, each loaded when first needed; skipped names peers with the reason."""

    prompts: Sequence[str]
    limit: int
    threads: int
    accounting: str
    skipped: dict[str, str] = field(default_factory=dict)
    _targets: dict[str, Target] = field(default_factory=dict)
    _pairs: dict[tuple[str, str], Pair] = field(default_factory=dict)
    _generate: Generate | None = None
    _llama: Llama | None = None

    def target(self, dtype: str) -> Target:
        """The embedded model in this format."""
        if dtype not in self._targets:
            self._targets[dtype] = nsd.load(MODEL, None, dtype=dtype, threads=self.threads).target
        return self._targets[dtype]

    def pair(self, cell: Cell) -> Pair:
        """Target and drafter of a cell of our own."""
        key = (cell.dtype, "none" if cell.plain else cell.draft)
        if key not in self._pairs:
            target = self.target(cell.dtype)
            if cell.plain:
                self._pairs[key] = Pair(target, None)
            elif cell.draft in (SAME, GREEDY):
                self._pairs[key] = nsd.load(target, "auto", draft={"greedy": True} if cell.draft == GREEDY else None)
            else:
                inner = nsd.load(target, "auto").drafter
                assert inner is not None, f"a drafter is shipped for {MODEL}"
                self._pairs[key] = Pair(target, Sharper(inner, float(cell.draft)))
        return self._pairs[key]

    def usable(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells that can run here; why others cannot is noted."""
        found = []
        for cell in cells:
            try:
                if cell.engine == "llama.cpp" and self._llama is None:
                    self._llama = Llama()
                found.append(cell)
            except Absent as reason:
                self.skipped[cell.name] = str(reason)
        return found

    def run(self, cell: Cell, index: int, session: int, limit: int | None = None) -> Sample:
        """One answer; index chooses prompt and seed."""
        prompt, seed = self.prompts[index % len(self.prompts)], index
        limit = self.limit if limit is None else limit
        if cell.engine == "nsd":
            return Sample.of(cell.name, index, session, self._ours(cell, prompt, seed, limit))
        ids = self.prompt_ids(prompt)
        first: float | None
        if cell.engine == "transformers":
            if self._generate is None:
                self._generate = Generate(self.target(cell.dtype))
            found, seconds, first = self._generate.answer(ids, cell.temperature, limit, seed)
        else:
            assert self._llama is not None and cell.threads is not None
            found, seconds, first = self._llama.answer(ids, cell.temperature, limit, seed, cell.threads)
        decode = None if first is None else seconds - first
        finish = "length" if len(found) >= limit else "eos"
        return Sample(cell.name, index, session, found, finish, seconds, decode, committed=len(found) - 1)

    def _ours(self, cell: Cell, prompt: str, seed: int, limit: int) -> Completion:
        asked: dict[str, Any] = {"temperature": cell.temperature, "max_new_tokens": limit, "seed": seed, "rule": "sd"}
        if cell.rule == "nsd":
            asked |= {"rule": "nsd", "theta": THETA, "max_deviation": cell.cap}
        k = None if cell.plain else cell.k
        return self.pair(cell).generate(prompt, chat=True, k=k, accounting=self.accounting, **asked)

    def prompt_ids(self, prompt: str) -> list[int]:
        """Ids of a prompt in the chat template."""
        return self.target("bfloat16").tokenizer.chat([{"role": "user", "content": prompt}])

    def close(self) -> None:
        """End the peers."""
        if self._llama is not None:
            self._llama.close()


def probe(bench: Bench, cells: Sequence[Cell], prompts: int) -> dict[Cell, float]:
    """Warm every cell up, and guess from it what so many whole answers would take: seconds by cell."""
    expected = {}
    for cell in cells:
        bench.run(cell, 0, -1, 8)
        sample = bench.run(cell, 1, -1, PROBE_TOKENS)
        expected[cell] = prompts * bench.limit * sample.seconds / len(sample.ids)
    return expected


def measure(
    bench: Bench, cells: Sequence[Cell], store: Store, session: int, prompts: int, tokens: int, say: Say
) -> None:
    """Answer prompt after prompt with all cells in turn, until every cell has enough prompts and tokens.

    What is in the store already is not measured again.
    """
    names, index, started = [cell.name for cell in cells], 0, perf_counter()
    while not store.enough(names, prompts, tokens):
        turn = index % len(cells)
        for cell in (*cells[turn:], *cells[:turn]):
            if (cell.name, index) not in store.samples:
                store.add(bench.run(cell, index, session))
        index += 1
        if index % 4 == 0:
            least = min(sum(len(s.ids) for s in store.of(name)) for name in names)
            say(f"{index} prompts, at least {least} tokens a cell, {perf_counter() - started:.0f} s")


def score_all(bench: Bench, cells: Iterable[Cell], store: Store, say: Say) -> None:
    """Read every answer by the law of the arm's own weights (somebody else's by the bfloat16 ones)."""
    for cell in cells:
        target = bench.target(cell.dtype if cell.engine == "nsd" else "bfloat16")
        missing = [s for s in store.of(cell.name) if (s.cell, s.index) not in store.scores]
        for sample in missing:
            prompt = bench.prompt_ids(bench.prompts[sample.index % len(bench.prompts)])
            log_p, spread = score(target, prompt, sample.ids, cell.temperature)
            store.add(Score(cell.name, sample.index, log_p, spread))
        if missing:
            say(f"scored {cell.name}")


def score(target: Target, prompt: Sequence[int], ids: Sequence[int], temperature: float) -> tuple[float, float]:
    """Sum of log p(token) and of the entropies of p over an answer, in nats, at this temperature."""
    session, scores = target.open([prompt], len(ids) + 1)
    rows = scores.logits
    if len(ids) > 1:
        rows = torch.cat([rows, session.score([list(ids[:-1])]).logits])
    p = laws(rows, [Sampling(temperature=temperature)] * len(ids), None, target.absent)
    chosen = p.gather(-1, torch.tensor(ids).unsqueeze(-1)).double().clamp_min(torch.finfo(torch.float32).tiny)
    return float(chosen.log().sum()), float(entropy(p).sum())
