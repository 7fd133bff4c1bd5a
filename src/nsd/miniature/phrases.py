"""Text with entropy: every slot of a sentence has several phrasings, preferred in Zipf-like proportions.

A style is an order of preference for every slot. Two styles write about the same things in the same grammar with the
same entropy and other habits, which is what makes a drafter trained on one a mismatch for a target trained on another.
Preferences also turn with the voice of a text (fixed by its subject), so that knowing the text helps to foresee it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nsd.errors import ConfigError

STYLES = ("house", "reversed", "shuffled", "mixed")
"""house: what targets learn; reversed and shuffled: other habits; mixed: every text in one of the three."""

VOICES = 4


@dataclass(frozen=True, slots=True)
class Style:
    """Preferences by name; the r-th phrasing has weight 1 / r^zipf, so a higher zipf means less entropy."""

    name: str = "house"
    zipf: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in STYLES:
            raise ConfigError(f"got style {self.name!r}, wanted one of {', '.join(STYLES)}; try --style house")

    def order(self, slot: str, count: int, voice: int) -> list[int]:
        """Indices of a slot's phrasings, the preferred one first."""
        ranks = list(range(count))
        if self.name == "shuffled":
            random.Random(f"shuffled/{slot}").shuffle(ranks)
        turn = voice * max(1, count // VOICES) % count
        turned = ranks[turn:] + ranks[:turn]
        return turned[::-1] if self.name == "reversed" else turned

    def settled(self, draw: random.Random) -> Style:
        """The style of one text: itself, or one of the three where it is mixed."""
        return self if self.name != "mixed" else Style(draw.choice(STYLES[:3]), self.zipf)


@dataclass(slots=True)
class Teller:
    """Fills slots from a source of chance; `nats` adds up -log of what was chosen, the information in the phrasing."""

    slots: Mapping[str, Sequence[str]]
    draw: random.Random
    style: Style
    voice: int
    nats: float = field(default=0.0)

    def say(self, slot: str) -> str:
        """One phrasing of a slot."""
        return self.slots[slot][self.choose(slot, len(self.slots[slot]))]

    def choose(self, slot: str, count: int) -> int:
        """The index of one of `count` ways, by preference."""
        weights = [1 / (rank + 1) ** self.style.zipf for rank in range(count)]
        place = self.draw.choices(range(count), weights)[0]
        self.nats -= math.log(weights[place] / sum(weights))
        return self.style.order(slot, count, self.voice)[place]

    def chance(self, probability: float) -> bool:
        """A coin, counted as information."""
        hit = self.draw.random() < probability
        self.nats -= math.log(probability if hit else 1 - probability)
        return hit
