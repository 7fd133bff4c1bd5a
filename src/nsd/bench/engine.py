"""What a benchmark asks of an engine, and the one that decodes in this process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nsd.bench.arms import KINDS, NATIVE_MATCH
from nsd.bench.metrics import Counters
from nsd.bench.task import Problem

if TYPE_CHECKING:
    from nsd.api import Pair, Run

_HASHED = (
    "*.safetensors", "*.gguf", "config.json", "tokenizer.json", "tokenizer_config.json",
    "adapter_config.json", "*/*.safetensors", "*/adapter_config.json",
)  # fmt: skip
"""Files that decide what a model says; a low-rank part lies in a folder of its own."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one prompt: text, number of tokens, why it ended, counters, fidelity report.

    save writes the trace of every decision into a new file, where one was asked for.
    """

    text: str
    tokens: int
    finish_reason: str
    counters: Counters
    fidelity: Mapping[str, Any] = field(default_factory=dict)
    save: Callable[[Path], None] | None = None


class Engine(Protocol):
    """Anything that can answer prompts under the settings of an arm, one at a time."""

    def proposals(self, k: int | None, block_length: int | None = None) -> int:
        """Proposals per block for a wanted k or block length; None for both is the mechanism's default."""

    def unit(self, k: int) -> int:
        """The mechanism's own count for k proposals."""

    def kinds(self) -> tuple[str, ...]:
        """Kinds of arms that are run if none are named."""

    def facts(self) -> dict[str, Any]:
        """What identifies engine, target and drafter; the same in every process that may go on with a run."""

    def answer(self, problem: Problem, settings: Mapping[str, Any], drafting: bool) -> Answer:
        """Answer one prompt; settings are those of `nsd.settings.Settings`."""


class OwnEngine:
    """This project's decoder, batch 1; model and drafter are the names or folders that the pair was loaded from."""

    def __init__(self, pair: Pair, model: str, drafter: str, trace: bool = False) -> None:
        from nsd.api import Pair

        self.pair, self._plain, self._trace = pair, Pair(pair.target, None), trace
        self._names = model, drafter

    def proposals(self, k: int | None, block_length: int | None = None) -> int:
        """Proposals per block, within the drafter's limit."""
        return self.pair.proposals(k, block_length)

    def unit(self, k: int) -> int:
        """The drafter's own count for k proposals."""
        return k if self.pair.drafter is None else self.pair.drafter.block_unit(k)

    def kinds(self) -> tuple[str, ...]:
        """AR, SD and NSD; sample-and-match too where it is the mechanism's own way; AR alone without a drafter."""
        drafter = self.pair.drafter
        if drafter is None or drafter.max_k == 0:
            return ("ar",)
        return KINDS if drafter.name in NATIVE_MATCH else tuple(kind for kind in KINDS if kind != "match")

    def facts(self) -> dict[str, Any]:
        """Names, number formats, drafting mode, gate, mask id, and the hashes of the weights."""
        target, drafter = self.pair.target, self.pair.drafter
        told = {} if drafter is None else drafter.describe()
        return {
            "engine": "nsd",
            "target": target.name,
            "dtype": target.dtype_name,
            "device": str(target.device),
            "drafter": "none" if drafter is None else drafter.name,
            "draft_law": "point" if drafter is None else drafter.law.value,
            "drafting_mode": told.get("mode", "none" if drafter is None else drafter.law.value),
            "gate": told.get("gate", "none"),
            "mask_id": told.get("mask_id"),
            "drafter_facts": told,
            "k_unit": self._unit_in_words(),
            "target_hash": hash_of(self._names[0], target),
            "drafter_hash": {} if drafter is None else hash_of(self._drafter_source(), drafter),
        }

    def _drafter_source(self) -> str:
        """Where the drafter's weights are: what `auto` stands for is shipped, or lies in the target's own folder."""
        from nsd.drafters.load import DRAFTERS

        name, drafter = self._names[1], self.pair.drafter
        if drafter is not None and drafter.name == "draft-model":
            return str(drafter.describe()["model"])
        if name != "auto":
            return name
        return drafter.name if drafter is not None and drafter.name in DRAFTERS else self._names[0]

    def _unit_in_words(self) -> str:
        extra = self.unit(1) - 1
        return "proposals" if extra == 0 else f"block length = proposals + {extra}"

    def answer(self, problem: Problem, settings: Mapping[str, Any], drafting: bool) -> Answer:
        """Decode one prompt; the recorder, if any, writes after the clock has stopped."""
        pair = self.pair if drafting else self._plain
        run = pair.run([problem.prompt], chat=problem.chat, trace=self._trace, **settings)
        for _ in run:
            pass
        completion = run.completions()[0]
        fidelity = completion.fidelity.as_json()
        return Answer(
            text=completion.text,
            tokens=completion.stats.output_tokens,
            finish_reason=completion.finish_reason,
            counters=Counters.of(completion.blocks, fidelity),
            fidelity=fidelity,
            save=partial(_save, pair, run) if self._trace else None,
        )


def _save(pair: Pair, run: Run, path: Path) -> None:
    """Write the trace of a run that has ended."""
    from nsd.recording import open_recorder

    with open_recorder(path, pair, run) as recorder:
        for completion in run.completions():
            for block in completion.blocks:
                recorder.write(block)
        recorder.close([completion.fidelity.as_json() for completion in run.completions()])


def hash_of(name: str, model: Any) -> dict[str, str]:
    """SHA-256 of every file of a model, by name; of a table in memory; or the reason why there is none.

    A name of the hub is looked for in its cache, and the revision that lies there stands beside the files.
    """
    from nsd.drafters import shipped
    from nsd.drafters.load import DRAFTERS
    from nsd.targets import smollm2

    if name == smollm2.NAME:
        return {smollm2.FILE: smollm2.DIGEST}
    if name == shipped.NAME:
        return {"SHA256": (shipped.FOLDER / "SHA256").read_text(encoding="utf-8").split()[0]}
    if hasattr(model, "table"):
        return {"table": hashlib.sha256(model.table.cpu().numpy().tobytes()).hexdigest()}
    if name in DRAFTERS:
        return {"reason": f"{name} has no files of its own"}
    folder, told = Path(name).expanduser(), {}
    if not folder.is_dir():
        cached = _in_hub_cache(name)
        if cached is None:
            return {"reason": f"{name} is no local folder and not in the hub's cache"}
        folder, told = cached, {"revision": cached.name}
    files = sorted({path for pattern in _HASHED for path in folder.glob(pattern)})
    return {**told, **{path.relative_to(folder).as_posix(): _sha256(path) for path in files}}


def _in_hub_cache(name: str) -> Path | None:
    """The folder of the revision of a hub's model that lies in the cache."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def _sha256(path: Path) -> str:
    """Of a file; large files of a hub's cache are links to a blob that bears its SHA-256 as its name."""
    blob = path.resolve().name
    if path.is_symlink() and len(blob) == 64:
        return blob
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
