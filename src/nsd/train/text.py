"""The target writes its own training text; hidden states are stored while it does, so nothing is computed twice.

Text comes in shards: a rectangle of rows that advance together. Every row is a chat. A user's turn is a prompt, or is
sampled from the chat template itself. The answer is sampled at the row's temperature, or is given beside the prompt and
then read as if it had been sampled. When it ends, another turn follows, so that no row ever idles. Shard i depends on
the seed and i alone, whoever writes it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsd.train.chat import Frame
from nsd.train.prompts import Given
from nsd.train.stepper import Stepper

FORCED, ASKED, ANSWERED = 0, 1, 2
"""How a token came about: given, sampled as a user's turn, sampled as an answer (or given as one)."""

USER_TEMPERATURE = 0.9
LONGEST_TURN = 40
"""Tokens of a sampled user turn at most."""

PromptSource = Callable[[int, random.Random], str | Given | None]
"""(row, chance) -> the next user turn, with its answer where that is given; None to have the turn sampled."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """rows chats of `positions` tokens; temperatures are dealt out row by row; inputs of `taps` are stored.

    one_turn: after its first answer a row is filled up with its last token, and nothing more of it is trained on.
    """

    rows: int
    positions: int
    temperatures: tuple[float, ...]
    taps: tuple[int, ...]
    seed: int
    one_turn: bool = False

    def bytes(self, hidden: int) -> int:
        """What one shard takes on disk: states in 16 bits, tokens, log-sum-exp and kinds."""
        return self.rows * self.positions * ((len(self.taps) + 1) * hidden * 2 + 9)


@dataclass(slots=True)
class Row:
    """One chat on its way: forced ids still to come, then those of a given answer; who speaks, whether all is said."""

    temperature: float
    forced: list[int] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    speaker: int = ANSWERED
    spoken: int = 0
    over: bool = False


class Chats:
    """Decides for every row what comes next."""

    def __init__(
        self,
        frame: Frame,
        plan: ShardPlan,
        encode: Callable[[str], list[int]],
        eos: Sequence[int],
        source: PromptSource,
        chance: random.Random,
    ) -> None:
        self.frame, self.encode, self.eos, self.source, self.chance = frame, encode, set(eos), source, chance
        dealt, self.one_turn = plan.temperatures, plan.one_turn
        self.rows = [Row(dealt[i % len(dealt)]) for i in range(plan.rows)]
        for number in range(plan.rows):
            self._turn(number)

    def draw_temperatures(self) -> Tensor:
        """The temperature at which each row draws now: [B]."""
        return torch.tensor([USER_TEMPERATURE if row.speaker == ASKED else row.temperature for row in self.rows])

    def next(self, drawn: Sequence[int]) -> tuple[list[int], list[int]]:
        """The token of every row, forced or drawn, and how it came about."""
        tokens, kinds = [], []
        for number, (row, token) in enumerate(zip(self.rows, drawn, strict=True)):
            if row.over:
                tokens.append(min(self.eos))
                kinds.append(FORCED)
                continue
            if row.forced:
                tokens.append(row.forced.pop(0))
                kinds.append(FORCED)
                continue
            row.spoken += 1
            if row.told:
                token = row.told.pop(0)
            tokens.append(token)
            kinds.append(row.speaker)
            if row.speaker == ASKED:
                ended = token == self.frame.user_end or token in self.eos
                if ended or row.spoken >= LONGEST_TURN:
                    row.forced, row.speaker, row.spoken = list(self.frame.ask[int(ended) :]), ANSWERED, 0
            elif token in self.eos and self.one_turn:
                row.over = True
            elif token in self.eos:
                row.forced = list((self.frame.again or self.frame.head)[1 if self.frame.again else 0 :])
                self._turn(number)
        return tokens, kinds

    def _turn(self, number: int) -> None:
        """Begin a user's turn."""
        row, prompt = self.rows[number], self.source(number, self.chance)
        row.spoken, row.told = 0, []
        if isinstance(prompt, Given):
            end = self.frame.again[0] if self.frame.again else min(self.eos)
            row.told, prompt = [*self.encode(prompt.response), end], prompt.prompt
        if prompt is None and self.frame.user_end is not None:
            row.speaker = ASKED
            return
        row.forced += [*self.encode(prompt or ""), *self.frame.ask]
        row.speaker = ANSWERED


def write_shard(
    folder: Path, index: int, plan: ShardPlan, stepper: Stepper, chats: Chats, generator: torch.Generator
) -> None:
    """Write one shard: tokens [T + 1, B], kinds [T, B] of tokens 1.., states [T, B, n + 1, H], lse [T, B], temps [B].

    The files appear under their names only when the shard is whole. lse is that of logits / T at the row's T.
    """
    prefix, shape = chats.frame.head, (plan.positions, plan.rows)
    tokens, kinds = np.zeros((plan.positions + 1, plan.rows), np.int32), np.zeros(shape, np.uint8)
    lse = np.zeros(shape, np.float32)
    if prefix:
        start = len(prefix)
        logits, before = stepper.start(prefix, plan.rows, plan.positions - start)
        tokens[:start] = np.array(prefix, np.int32)[:, None]
    else:  # every row begins with a token of its own
        start = 1
        tokens[0], _ = chats.next([0] * plan.rows)
        logits, before = stepper.begin(torch.from_numpy(tokens[0]).long(), plan.positions - start)
        before = before.unsqueeze(0)
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{index:04d}.part"
    size = (*shape, *before.shape[-2:])
    states = np.memmap(place, np.uint16, "w+", shape=size)
    states[:start] = bits(before) if before.dim() == 4 else bits(before)[:, None]
    temperatures = torch.tensor([row.temperature for row in chats.rows])
    for position in range(start - 1, plan.positions):
        if position >= start:
            logits, now = stepper.step(torch.from_numpy(tokens[position]).long())
            states[position] = bits(now)
        drawn, row_lse = draw(logits, chats.draw_temperatures(), temperatures, generator)
        tokens[position + 1], kinds[position] = chats.next(drawn)
        lse[position] = row_lse
    states.flush()
    np.savez(folder / f"{index:04d}.npz", tokens=tokens, kinds=kinds, lse=lse, temperatures=temperatures.numpy())
    meta = {"index": index, "shape": size, **asdict(plan)}
    place.rename(folder / f"{index:04d}.states")
    (folder / f"{index:04d}.json").write_text(json.dumps(meta), encoding="utf-8")


def draw(
    logits: Tensor, drawing: Tensor, stored: Tensor, generator: torch.Generator
) -> tuple[list[int], np.ndarray[Any, np.dtype[np.float32]]]:
    """Inverse-distribution draws at temperatures `drawing` [B], and log-sum-exp at temperatures `stored` [B]."""
    with torch.inference_mode():
        wide = logits.float()
        top = wide.amax(-1, keepdim=True)
        wide = wide - top
        mass = (wide / drawing.unsqueeze(-1)).exp_()
        running = mass.cumsum(-1)
        total = running[:, -1]
        lse = total.log()
        other = (drawing != stored).nonzero().squeeze(-1)
        if len(other):
            lse[other] = (wide[other] / stored[other].unsqueeze(-1)).exp_().sum(-1).log()
        u = torch.rand(len(logits), generator=generator)
        ids = torch.searchsorted(running, (u * total).unsqueeze(-1), right=True).squeeze(-1)
        ids.clamp_(max=logits.shape[-1] - 1)
        return ids.tolist(), (lse + top.squeeze(-1) / stored).numpy()


def bits(states: Tensor) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """bfloat16 values as 16-bit words, for numpy."""
    return states.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
