"""One answer of one cell, as it is kept: JSON lines that are only added to, so that a run that was killed goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nsd.decoding import Completion
from nsd.errors import ConfigError

FEWEST_PROMPTS = 32
FEWEST_TOKENS = 3000


@dataclass(frozen=True, slots=True)
class Sample:
    """What one prompt took under one cell.

    index names prompt and seed; session the run of the program; seconds include the prefill, decode_s does not (None
    where a peer does not tell). laps: microseconds of [draft, target pass, decision, rest] of each block. committed
    counts the tokens of blocks; tested_at and accepted_at count by depth.
    """

    cell: str
    index: int
    session: int
    ids: list[int]
    finish: str
    seconds: float
    decode_s: float | None
    laps: list[list[int]] = field(default_factory=list)
    committed: int = 0
    tested: int = 0
    rescued: int = 0
    evaluated: int = 0
    sum_ES: float = 0.0
    sum_eps: float = 0.0
    ES_is: str | None = None
    tested_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, cell: str, index: int, session: int, answer: Completion) -> Sample:
        """From an answer of this project's loop."""
        s = answer.stats
        steps = [block.timing for block in answer.blocks if block.number]
        depths = range(len(s.tested_at))
        return cls(
            cell=cell,
            index=index,
            session=session,
            ids=list(answer.token_ids),
            finish=answer.finish_reason,
            seconds=s.prefill_s + s.decode_s,
            decode_s=s.decode_s,
            laps=[[round(1e6 * x) for x in (t.draft_s, t.score_s, t.decide_s, t.commit_s)] for t in steps],
            committed=s.accepted + s.recovered + s.bonus,
            tested=s.tested,
            rescued=s.rescued,
            evaluated=s.evaluated,
            sum_ES=s.sum_ES,
            sum_eps=s.sum_eps,
            ES_is=s.ES_is,
            tested_at=[s.tested_at[i] for i in depths],
            accepted_at=[s.accepted_at[i] for i in depths],
        )


@dataclass(frozen=True, slots=True)
class Score:
    """An answer under the target's law at the arm's temperature: log p and entropy in nats, summed over its tokens."""

    cell: str
    index: int
    log_p: float
    entropy: float


class Store:
    """The folder of a measurement: samples.jsonl, scores.jsonl, sessions.json."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.samples = {(s.cell, s.index): s for s in (Sample(**raw) for raw in self._lines("samples"))}
        self.scores = {(s.cell, s.index): s for s in (Score(**raw) for raw in self._lines("scores"))}
        path = folder / "sessions.json"
        self.sessions: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []

    def begin(self, facts: dict[str, Any], fixed: dict[str, Any]) -> int:
        """A further session -> its number. Raises ConfigError if it would mix what must not be mixed."""
        for name, value in fixed.items():
            if self.sessions and self.sessions[0]["fixed"][name] != value:
                was = self.sessions[0]["fixed"][name]
                raise ConfigError(f"{self.folder} was measured with {name} {was}, got {value}; give another --out")
        self.sessions.append({**facts, "fixed": fixed, "skipped": {}})
        self.save_sessions()
        return len(self.sessions) - 1

    def save_sessions(self) -> None:
        """Write what is known of all sessions."""
        text = json.dumps(self.sessions, indent=1, ensure_ascii=False)
        (self.folder / "sessions.json").write_text(text + "\n", encoding="utf-8")

    def add(self, entry: Sample | Score) -> None:
        """Keep one answer or its score, at once."""
        kind = "samples" if isinstance(entry, Sample) else "scores"
        with (self.folder / f"{kind}.jsonl").open("a", encoding="utf-8") as out:
            out.write(json.dumps(asdict(entry)) + "\n")
        if isinstance(entry, Sample):
            self.samples[entry.cell, entry.index] = entry
        else:
            self.scores[entry.cell, entry.index] = entry

    def of(self, cell: str) -> list[Sample]:
        """The samples of one cell, by index."""
        return sorted((s for (name, _), s in self.samples.items() if name == cell), key=lambda s: s.index)

    def enough(self, cells: Iterable[str], prompts: int, tokens: int) -> bool:
        """Whether every cell has so many prompts and tokens."""
        return all(
            len(mine) >= prompts and sum(len(s.ids) for s in mine) >= tokens for mine in (self.of(c) for c in cells)
        )

    def _lines(self, kind: str) -> list[dict[str, Any]]:
        """What was kept; the last line of a run that was killed may be half a line, which is cut off."""
        path = self.folder / f"{kind}.jsonl"
        if not path.is_file():
            return []
        text = path.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):
            text = text[: text.rfind("\n") + 1]
            path.write_text(text, encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]
