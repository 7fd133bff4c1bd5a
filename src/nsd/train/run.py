"""One run from prompts to an exported drafter. Every stage leaves files behind and is passed over if they are there."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsd.errors import ConfigError, ModelError
from nsd.nn import DecoderConfig, decoder_config, layer_shapes
from nsd.targets.base import Target
from nsd.train.corpus import Corpus, draft_vocabulary
from nsd.train.curve import draw_curve
from nsd.train.evaluate import Examiner, Figures
from nsd.train.export import Origin, export
from nsd.train.guard import Guard, digest, read_excluded
from nsd.train.net import DraftLayer, draft_config
from nsd.train.plan import PLAN, Plan, load
from nsd.train.prompts import HeldOut, built_in_held_out, read_prompts, set_aside
from nsd.train.schedule import SHARES, Schedule, Stage, stages, stages_of
from nsd.train.text import ShardPlan
from nsd.train.trainer import LOG, Ends, Progress, Trainer
from nsd.train.writing import HELD_OUT, SAMPLED_SHARE, TRAINING, Reopen, Source, Writer, write_all

TEXT_SHARE = 0.45
"""Share of a budget in minutes that goes into writing text."""

WATCHED_ROWS = 32
"""Held-out rows looked at during training; all of them at the end."""

_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Options:
    """What a user asks for. text_tokens and steps are worked out from budget_minutes where that is given."""

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
    own, held_out = _prompts(options)
    excluded = [text for path in options.exclude for text in read_excluded(path)]
    guard = Guard([*held_out.prompts, *excluded])
    guard.require_clean(own, str(options.prompts))
    taps = default_taps(target.layers)
    writer = Writer.open(target, taps, options.out)
    plan = _plan(options, target, writer, held_out, watcher)
    shard = ShardPlan(plan.rows, plan.positions, plan.temperatures, plan.taps, plan.seed)
    reopen = Reopen(options.model, options.dtype, options.device)
    write_all(writer, shard, plan.shards, Source(tuple(own), plan.sampled_share), reopen, options.workers, watcher.text)
    corpus = _corpus(options.out / TRAINING, plan.shards, guard, target, watcher)
    return _train(options, plan, target, corpus, Corpus.open(options.out / HELD_OUT), watcher)


def default_taps(layers: int) -> tuple[int, ...]:
    """Inputs of an early, a middle and the last layer; a list that began with 1 would be read as outputs elsewhere."""
    early = layers // 6
    return (2 if early == 1 else early, layers * 4 // 7, layers - 1)


def _prompts(options: Options) -> tuple[list[str], HeldOut]:
    if options.prompts is None:
        return [], built_in_held_out()
    return set_aside(read_prompts(options.prompts))


def _plan(options: Options, target: Target, writer: Writer, held_out: HeldOut, watcher: Watcher) -> Plan:
    """The stored plan, or a new one; the held-out text is written first, and is what speeds are measured on."""
    if (old := load(options.out)) is not None:
        _require_same(old, options, target, held_out)
        writer.held_out(_held_out_shard(old, held_out), held_out)
        watcher.note(f"going on with {options.out / PLAN}: {old.shards} shards, {old.schedule.steps} steps")
        return old
    draft = Plan(
        target=target.name,
        dtype=str(target.dtype).removeprefix("torch."),
        seed=options.seed,
        taps=default_taps(target.layers),
        temperatures=options.temperatures,
        rows=options.rows,
        positions=options.positions,
        shards=1,
        sampled_share=SAMPLED_SHARE,
        draft_vocab=min(options.draft_vocab, target.vocab),
        batch=options.batch,
        peak=options.peak,
        stages=stages_of(options.steps),
        held_out_digest=held_out.digest,
        prompts_digest=None if options.prompts is None else digest(options.prompts),
        excluded_digests=tuple(digest(path) for path in options.exclude),
        budget_minutes=options.budget_minutes,
    )
    begun = time.perf_counter()
    writer.held_out(_held_out_shard(draft, held_out), held_out)
    plan = _sized(draft, options, target, writer, time.perf_counter() - begun)
    shard = ShardPlan(plan.rows, plan.positions, plan.temperatures, plan.taps, plan.seed)
    needed = plan.shards * shard.bytes(target.hidden) / _GIGA
    if needed > options.max_disk:
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


def _held_out_shard(plan: Plan, held_out: HeldOut) -> ShardPlan:
    rows = len(held_out.prompts) * len(plan.temperatures)
    return ShardPlan(min(rows, plan.rows), plan.positions, plan.temperatures, plan.taps, plan.seed)


def _require_same(plan: Plan, options: Options, target: Target, held_out: HeldOut) -> None:
    """Refuse to go on where the options would make another plan."""
    checks: Sequence[tuple[str, Any, Any]] = (
        ("target", plan.target, target.name),
        ("seed", plan.seed, options.seed),
        ("temperatures", plan.temperatures, options.temperatures),
        ("held-out prompts", plan.held_out_digest, held_out.digest),
        ("excluded files", plan.excluded_digests, tuple(digest(path) for path in options.exclude)),
    )
    for name, stored, given in checks:
        if stored != given:
            raise ConfigError(
                f"{options.out / PLAN} was made with {name} {stored}, got {given}; give --out a new folder"
            )


def _sized(plan: Plan, options: Options, target: Target, writer: Writer, seconds: float) -> Plan:
    """Shards and steps: as asked, or from minutes and measured speeds."""
    each = plan.rows * (plan.positions - len(writer.frame.head))
    changed: dict[str, Any] = {"shards": max(round(options.text_tokens / each), 1)}
    if options.budget_minutes is not None:
        held = Corpus.open(options.out / HELD_OUT)
        speed = len(held.rows) * (plan.positions - len(writer.frame.head)) / max(seconds, 1e-9)
        budget = options.budget_minutes * 60
        changed["shards"] = max(int(budget * TEXT_SHARE * speed * options.workers / each), 1)
        costs = probe(plan, target, held)
        changed["stages"] = stages(budget * (1 - TEXT_SHARE), costs)
    return Plan(**{**asdict(plan), "stages": plan.stages, **changed})


def probe(plan: Plan, target: Target, corpus: Corpus) -> dict[int, float]:
    """Seconds of one training step for each number of depths, on held-out rows, with weights that are thrown away."""
    ids = draft_vocabulary(corpus.sampled_tokens(), target.vocab, plan.draft_vocab, sorted(target.eos))
    costs = {}
    for depths in SHARES:
        schedule = Schedule((Stage(depths, 100, 1.0),), plan.peak)
        trainer = Trainer(new_net(target, plan.taps), ends(target, ids), corpus, schedule, plan.seed, plan.batch)
        trainer.advance()
        begun = time.perf_counter()
        trainer.advance()
        trainer.advance()
        costs[depths] = (time.perf_counter() - begun) / 2
    return costs


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
    ids = draft_vocabulary(corpus.sampled_tokens(), target.vocab, plan.draft_vocab, sorted(target.eos))
    watcher.note(f"draft vocabulary: {len(ids)} ids cover {coverage(held_out, ids):.1%} of held-out tokens")
    borrowed, net = ends(target, ids), new_net(target, plan.taps)
    trainer = Trainer(net, borrowed, corpus, plan.schedule, plan.seed, plan.batch)
    if trainer.resume(folder):
        watcher.note(f"resumed at step {trainer.step}")
    embedding, head = target_ends(target)
    some = range(min(len(held_out.rows), WATCHED_ROWS))
    examiner = Examiner(held_out, some, head, ids, embedding)
    trainer.run(folder, examiner, watcher.step)
    figures = Examiner(held_out, range(len(held_out.rows)), head, ids, embedding)(net)
    export(net, Origin(ids, target.vocab, borrowed.head, plan.taps, target.context, plan.target), folder)
    draw_curve(folder / LOG, folder / "curve.svg")
    (folder / "figures.json").write_text(json.dumps([asdict(f) for f in figures], indent=2) + "\n", encoding="utf-8")
    return figures


def coverage(corpus: Corpus, ids: Tensor) -> float:
    """Share of a corpus's sampled tokens that a draft vocabulary holds."""
    return float(torch.isin(torch.from_numpy(corpus.sampled_tokens()).long(), ids).float().mean())


def target_ends(target: Target) -> tuple[Tensor, Tensor]:
    """Embedding and head [V, H] of a target. Raises ModelError for one that lends none."""
    model: Any = getattr(target, "model", None)  # a transformers module, where the target is built on one
    if model is None or not hasattr(model, "get_input_embeddings"):
        raise ModelError(f"{target.name} lends no embedding and head, wanted a transformers model as the target")
    return model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach()


def ends(target: Target, ids: Tensor) -> Ends:
    """What the drafter borrows of a target for its vocabulary."""
    embedding, head = target_ends(target)
    return Ends(embedding, head[ids].contiguous())


def new_net(target: Target, taps: Sequence[int]) -> DraftLayer:
    """A drafter before its first step: the target's last layer, or noise where that is of another kind."""
    model: Any = target.model if hasattr(target, "model") else None
    config = _decoder(target, model)
    net = DraftLayer(draft_config(config), len(taps))
    weights: Mapping[str, Tensor] = {name.removeprefix("model."): t for name, t in model.state_dict().items()}
    prefix = f"layers.{target.layers - 1}."
    last = {n.removeprefix(prefix): t.detach().float() for n, t in weights.items() if n.startswith(prefix)}
    if "norm.weight" in weights and all(name in last for name in layer_shapes(config, "")):
        net.start_from(last, weights["norm.weight"].detach().float())
    else:
        net.start_from_noise()
    return net


def _decoder(target: Target, model: Any) -> DecoderConfig:
    if model is None:
        raise ModelError(f"{target.name} is no transformers model, wanted one; nsd train --model FOLDER")
    text = model.config.get_text_config(decoder=True)
    return decoder_config(text.to_dict(), target.name, qk_norm=text.model_type == "qwen3")
