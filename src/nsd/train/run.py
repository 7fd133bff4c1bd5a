"""One run from prompts to an exported drafter. Every stage leaves files behind and is passed over if they are there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsd.errors import ConfigError
from nsd.targets.base import Target
from nsd.train.blocks import ANCHORS
from nsd.train.corpus import Corpus, draft_vocabulary
from nsd.train.curve import draw_curve
from nsd.train.evaluate import Examiner, Figures
from nsd.train.export import Origin
from nsd.train.export_kinds import export_student
from nsd.train.guard import Guard, digest, read_excluded
from nsd.train.kinds import (
    BLOCKS,
    KINDS,
    LAYERS,
    RANKED,
    WHOLE,
    block_of,
    depths_of,
    drawn_ids,
    ends,
    mask_id,
    new_student,
    target_ends,
)
from nsd.train.plan import PLAN, Plan, load
from nsd.train.prompts import HeldOut, built_in_held_out, read_texts, responses_of, set_aside
from nsd.train.schedule import CROSS_ENTROPY, SHARES, Schedule, Stage, depth_shares, stages, stages_of
from nsd.train.student import Student
from nsd.train.text import ShardPlan
from nsd.train.trainer import LABELS, LOG, Progress, Trainer
from nsd.train.warm import file_digest, named
from nsd.train.writing import HELD_OUT, SAMPLED_SHARE, TRAINING, Reopen, Source, Writer, write_all

TEXT_SHARE = 0.45
"""Share of a budget in minutes that goes into writing text."""

WATCHED_ROWS = 32
"""Held-out rows looked at during training; all of them at the end."""

_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Options:
    """What a user asks for. text_tokens and steps are worked out from budget_minutes where that is given.

    kind is one of `nsd.train.kinds.KINDS`; layers are the drafter's, block its proposals (0 = as usual for the
    kind); anchors (blocks of a text in one step) and rank belong to block drafters, width to a separate model (0 = half
    of the target's). text is another run of the same target whose text is used; one_turn ends every chat with its first
    answer. init is a run or export to start from; depth_shares are shares of time for depths 1, 2, ...; warm_up_share
    is that of cross-entropy alone. labels "target" has the target's law learned along the text, "text" the text itself.
    """

    model: str
    out: Path
    prompts: Path | None = None
    exclude: tuple[Path, ...] = ()
    seed: int = 0
    budget_minutes: float | None = None
    text_tokens: int = 500_000
    steps: int = 2_500
    workers: int = 1
    max_disk: float = 8.0
    temperatures: tuple[float, ...] = (1.0, 0.7)
    draft_vocab: int = 8192
    rows: int = 128
    positions: int = 288
    batch: int = 8
    peak: float = 1.5e-3
    kind: str = "eagle3"
    layers: int = 0
    block: int = 0
    anchors: int = ANCHORS
    rank: int = 64
    width: int = 0
    text: Path | None = None
    one_turn: bool = False
    init: Path | None = None
    depth_shares: tuple[float, ...] = tuple(SHARES.values())
    warm_up_share: float = CROSS_ENTROPY
    labels: str = LABELS[0]
    dtype: str = "auto"
    device: str = "auto"


class Watcher:
    """Told what happens; the command line prints it."""

    def note(self, line: str) -> None:
        """A fact worth a line."""

    def text(self, done: int, count: int, seconds_left: float) -> None:
        """A shard of text was written."""

    def step(self, progress: Progress) -> None:
        """A training step was made."""


def train(options: Options, target: Target, watcher: Watcher) -> list[Figures]:
    """Train a drafter for a target -> held-out figures of the result, by temperature. Raises one-line errors."""
    options.out.mkdir(parents=True, exist_ok=True)
    own, held_out, responses = _prompts(options)
    excluded = [text for path in options.exclude for text in read_excluded(path)]
    guard = Guard([*held_out.prompts, *excluded])
    guard.require_clean([f"{prompt}\n{responses.get(prompt, '')}" for prompt in own], str(options.prompts))
    taps = default_taps(target.layers)
    stored = options.out if options.text is None else options.text
    writer = Writer.open(target, taps, stored)
    plan = _plan(options, target, writer, Apart(held_out, responses), watcher)
    if options.text is None:
        reopen = Reopen(options.model, options.dtype, options.device)
        source = Source(tuple(own), plan.sampled_share, responses)
        write_all(writer, _shard(plan), plan.shards, source, reopen, options.workers, watcher.text)
    corpus = _corpus(stored / TRAINING, plan.shards, guard, target, watcher)
    return _train(options, plan, target, corpus, Corpus.open(stored / HELD_OUT), watcher)


def _shard(plan: Plan) -> ShardPlan:
    return ShardPlan(plan.rows, plan.positions, plan.temperatures, plan.taps, plan.seed, plan.one_turn)


def default_taps(layers: int) -> tuple[int, ...]:
    """Inputs of an early, a middle and the last layer; a list that began with 1 would be read as outputs elsewhere."""
    early = layers // 6
    return tuple(sorted({2 if early == 1 else early, layers * 4 // 7, layers - 1}))


@dataclass(frozen=True, slots=True)
class Apart:
    """Held-out prompts, and the answers given beside prompts of the file."""

    held_out: HeldOut
    responses: Mapping[str, str]


def _prompts(options: Options) -> tuple[list[str], HeldOut, dict[str, str]]:
    """Training prompts, held-out ones, and given answers by their prompts. Raises ConfigError."""
    if options.labels not in LABELS:
        raise ConfigError(f"--labels is '{options.labels}', wanted {' or '.join(LABELS)}; leave it out for target")
    if options.labels == "text" and set(options.temperatures) != {1.0}:
        given = ",".join(f"{t:g}" for t in options.temperatures)
        raise ConfigError(f"--labels text learns the text as it stands, got --temperatures {given}, wanted 1")
    if options.prompts is None:
        return [], built_in_held_out(), {}
    texts = read_texts(options.prompts)
    own, held_out = set_aside([prompt for prompt, _ in texts])
    return own, held_out, responses_of(texts, options.prompts)


def _plan(options: Options, target: Target, writer: Writer, apart: Apart, watcher: Watcher) -> Plan:
    """The stored plan, or a new one; the held-out text is written first, and is what speeds are measured on."""
    held_out = apart.held_out
    if (old := load(options.out)) is not None:
        _require_same(old, options, target, held_out)
        if options.text is None:
            writer.held_out(_held_out_shard(old, held_out), held_out, apart.responses)
        watcher.note(f"going on with {options.out / PLAN}: {old.shards} shards, {old.schedule.steps} steps")
        return old
    draft = _draft(options, target, writer, held_out)
    some = torch.arange(draft.draft_vocab)
    new_student(target, draft, some, 0, options.init)  # refuses wrong weights before any text is written
    begun = time.perf_counter()
    if options.text is None:
        writer.held_out(_held_out_shard(draft, held_out), held_out, apart.responses)
    plan = _sized(draft, options, target, writer, time.perf_counter() - begun)
    needed = plan.shards * _shard(plan).bytes(target.hidden) / _GIGA
    if options.text is None and needed > options.max_disk:
        raise ConfigError(
            f"{plan.shards} shards of text take {needed:.1f} GB, allowed are {options.max_disk:g}; "
            "lower --text-tokens or raise --max-disk"
        )
    plan.save(options.out)
    watcher.note(
        f"plan: {plan.shards} shards of {plan.rows} x {plan.positions} positions ({needed:.1f} GB on disk), "
        f"{plan.schedule.steps} steps"
    )
    return plan


def _draft(options: Options, target: Target, writer: Writer, held_out: HeldOut) -> Plan:
    """The plan before text and steps are sized."""
    kind = options.kind
    if kind not in KINDS:
        raise ConfigError(f"--kind is '{kind}', wanted one of {', '.join(KINDS)}")
    if kind == "mtp" and options.layers > 1:
        raise ConfigError(f"--layers is {options.layers}, but --kind mtp has one layer that is run again; leave it out")
    if kind == "nemotron" and options.layers:
        raise ConfigError(f"--layers is {options.layers}, but --kind nemotron runs the target's own; leave it out")
    if options.width % 8:
        raise ConfigError(f"--width is {options.width}, wanted a multiple of 8 (heads need even sizes); try 128")
    block = block_of(kind, options.block, target)
    shares = depths_of(kind, block, depth_shares(options.depth_shares))
    plan = Plan(
        target=target.name,
        dtype=str(target.dtype).removeprefix("torch."),
        seed=options.seed,
        taps=default_taps(target.layers),
        temperatures=options.temperatures,
        rows=options.rows,
        positions=options.positions,
        shards=1,
        sampled_share=SAMPLED_SHARE if writer.frame.chat else 0.0,
        draft_vocab=target.vocab if kind in WHOLE else min(options.draft_vocab, target.vocab),
        batch=options.batch,
        peak=options.peak,
        stages=stages_of(options.steps, shares),
        held_out_digest=held_out.digest,
        prompts_digest=None if options.prompts is None else digest(options.prompts),
        excluded_digests=tuple(digest(path) for path in options.exclude),
        budget_minutes=options.budget_minutes,
        layers=options.layers or LAYERS[kind],
        warm_up_share=1.0 if options.labels == "text" else options.warm_up_share,
        init=None if options.init is None else named(options.init),
        init_digest=None if options.init is None else file_digest(options.init),
        kind=kind,
        block=block,
        rank=options.rank if kind in RANKED else 0,
        width=options.width if kind == "draft-model" else 0,
        one_turn=options.one_turn,
        labels=options.labels,
        anchors=options.anchors,
    )
    return plan if options.text is None else _with_text(plan, options.text)


def _with_text(plan: Plan, folder: Path) -> Plan:
    """The plan over another run's text. Raises ConfigError where that text is of another target or other prompts."""
    other = load(folder)
    if other is None:
        raise ConfigError(f"{folder} holds no {PLAN}, wanted a run whose text is written; check --text")
    for name in ("target", "dtype", "taps", "held_out_digest", "prompts_digest"):
        mine, theirs = getattr(plan, name), getattr(other, name)
        if mine != theirs:
            raise ConfigError(
                f"the text in {folder} was written with {name} {theirs}, got {mine}; take the same model and prompts"
            )
    taken = ("temperatures", "rows", "positions", "sampled_share", "one_turn", "shards")
    return replace(plan, **{name: getattr(other, name) for name in taken})


def _held_out_shard(plan: Plan, held_out: HeldOut) -> ShardPlan:
    rows = len(held_out.prompts) * len(plan.temperatures)
    return replace(_shard(plan), rows=min(rows, plan.rows))


def _require_same(plan: Plan, options: Options, target: Target, held_out: HeldOut) -> None:
    """Refuse to go on where the options would make another plan."""
    checks: Sequence[tuple[str, Any, Any]] = (
        ("target", plan.target, target.name),
        ("seed", plan.seed, options.seed),
        ("kind", plan.kind, options.kind),
        ("held-out prompts", plan.held_out_digest, held_out.digest),
        ("layers", plan.layers, options.layers or LAYERS[plan.kind]),
        ("block", plan.block, block_of(plan.kind, options.block, target)),
        ("rank", plan.rank, options.rank if plan.kind in RANKED else 0),
        ("width", plan.width, options.width if plan.kind == "draft-model" else 0),
        ("anchors", plan.anchors, options.anchors),
        ("weights to start from", plan.init_digest, None if options.init is None else file_digest(options.init)),
        ("labels", plan.labels, options.labels),
        ("prompts file", plan.prompts_digest, None if options.prompts is None else digest(options.prompts)),
        ("excluded files", plan.excluded_digests, tuple(digest(path) for path in options.exclude)),
    )
    if options.text is None:
        checks = [*checks, ("temperatures", plan.temperatures, options.temperatures)]
    for name, stored, given in checks:
        if stored != given:
            raise ConfigError(
                f"{options.out / PLAN} was made with {name} {stored}, got {given}; give --out a new folder"
            )


def _sized(plan: Plan, options: Options, target: Target, writer: Writer, seconds: float) -> Plan:
    """Shards and steps: as asked, or from minutes and measured speeds."""
    each = plan.rows * (plan.positions - len(writer.frame.head))
    changed: dict[str, Any] = {"shards": max(round(options.text_tokens / each), 1)}
    if options.text is not None:
        changed = {}
    if options.budget_minutes is not None:
        held = Corpus.open(writer.folder / HELD_OUT)
        speed = len(held.rows) * (plan.positions - len(writer.frame.head)) / max(seconds, 1e-9)
        budget = options.budget_minutes * 60
        if options.text is None:
            changed["shards"] = max(int(budget * TEXT_SHARE * speed * options.workers / each), 1)
            budget *= 1 - TEXT_SHARE
        shares = depths_of(plan.kind, plan.block, depth_shares(options.depth_shares))
        changed["stages"] = stages(budget, probe(plan, target, held, shares), shares)
    return replace(plan, **changed)


def probe(plan: Plan, target: Target, corpus: Corpus, shares: Iterable[int] = SHARES) -> dict[int, float]:
    """Seconds of one training step for each number of depths, on held-out rows, with weights that are thrown away."""
    costs = {}
    for depths in shares:
        schedule = Schedule((Stage(depths, 100, 1.0),), plan.peak)
        student, ids = _student(plan, target, corpus, None)
        trainer = Trainer(student, ends(target, ids), corpus, schedule, plan.seed, plan.batch)
        trainer.advance()
        begun = time.perf_counter()
        trainer.advance()
        trainer.advance()
        costs[depths] = (time.perf_counter() - begun) / 2
    return costs


def _student(plan: Plan, target: Target, corpus: Corpus, init: Path | None) -> tuple[Student, Tensor]:
    """The drafter before its first step, and the ids of its vocabulary, which follow from the training text."""
    tokens = corpus.sampled_tokens()
    ids = draft_vocabulary(tokens, target.vocab, plan.draft_vocab, sorted(target.eos))
    ids = drawn_ids(plan.kind, target, ids)
    mask = mask_id(target, tokens) if plan.kind in BLOCKS else 0
    return new_student(target, plan, ids, mask, init), ids


def _corpus(folder: Path, count: int, guard: Guard, target: Target, watcher: Watcher) -> Corpus:
    """The training text without the rows that the guard refuses."""
    refused = guard.refused(Corpus.open(folder, count), target.tokenizer)
    corpus = Corpus.open(folder, count, refused)
    watcher.note(
        f"text: {len(corpus.rows)} chats, {len(corpus.sampled_tokens()):,} sampled tokens; "
        f"{corpus.refused} chats refused (shared text with held-out prompts or excluded files)"
    )
    return corpus


def _train(
    options: Options, plan: Plan, target: Target, corpus: Corpus, held_out: Corpus, watcher: Watcher
) -> list[Figures]:
    folder = options.out
    net, ids = _student(plan, target, corpus, options.init)
    watcher.note(f"draft vocabulary: {len(ids)} ids cover {coverage(held_out, ids):.1%} of held-out tokens")
    borrowed = ends(target, ids)
    trainer = Trainer(net, borrowed, corpus, plan.schedule, plan.seed, plan.batch, plan.labels)
    if trainer.resume(folder):
        watcher.note(f"resumed at step {trainer.step}")
    _, head = target_ends(target)
    said = head if target.absent is None else head[~target.absent]
    some = range(min(len(held_out.rows), WATCHED_ROWS))
    examiner = Examiner(held_out, some, said, borrowed)
    trainer.run(folder, examiner, watcher.step)
    figures = Examiner(held_out, range(len(held_out.rows)), said, borrowed)(net)
    origin = Origin(ids, target.vocab, borrowed.head, plan.taps, target.context, plan.target)
    made = export_student(net, origin, target, folder)
    watcher.note(f"written: {' and '.join(str(place) for place in made)}; use as --drafter")
    draw_curve(folder / LOG, folder / "curve.svg")
    (folder / "figures.json").write_text(json.dumps([asdict(f) for f in figures], indent=2) + "\n", encoding="utf-8")
    return figures


def coverage(corpus: Corpus, ids: Tensor) -> float:
    """Share of a corpus's sampled tokens that a draft vocabulary holds."""
    return float(torch.isin(torch.from_numpy(corpus.sampled_tokens()).long(), ids).float().mean())
