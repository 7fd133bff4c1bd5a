"""Held-out figures: how much of q stands, depth by depth, and what tau that would give.

Chains start at every position of the target's own text and follow it, so a depth's figure does not depend on what an
earlier draft happened to be. In decoding they follow accepted drafts instead; taus here are estimates for that reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from nsd.laws import threshold
from nsd.train.corpus import Batch, Corpus
from nsd.train.losses import CHUNK, logits
from nsd.train.student import Ends, Student
from nsd.train.text import ANSWERED

DEPTHS = 6
"""Depths that are looked at, if the drafter has as many."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one temperature: 1 - TV by depth, NSD's acceptance by depth, and taus for 3 and 4 proposals (or as many as
    there are)."""

    temperature: float
    kept: tuple[float, ...]
    nucleus: tuple[float, ...]
    tau_sd: dict[int, float]
    tau_nsd: dict[int, float]
    chains: int


def edges(final: Tensor, lse: Tensor, cold: Tensor, head: Tensor, theta: float) -> Tensor:
    """The smallest p inside the nucleus at each position: final [N, H], whole head [V, H] -> [N]."""
    found = []
    for first in range(0, len(final), CHUNK):
        rows = slice(first, first + CHUNK)
        z = functional.linear(final[rows].to(head.dtype), head).float() * cold[rows, None]
        found.append(threshold((z - lse[rows, None]).exp_(), theta))
    return torch.cat(found)


class Examiner:
    """Examines a drafter on the same held-out rows again and again; nuclei are found once.

    head [n, H] has the rows of all ids that the target can say, ends those of the draft vocabulary.
    """

    def __init__(
        self,
        corpus: Corpus,
        numbers: Sequence[int],
        head: Tensor,
        ends: Ends,
        theta: float = 0.95,
        rows: int = 8,
    ) -> None:
        self.corpus, self.ends = corpus, ends
        by_cold: dict[float, list[int]] = {}
        for number in numbers:
            shard, row = corpus.rows[number]
            by_cold.setdefault(float(corpus.shards[shard].temperatures[row]), []).append(number)
        self.groups = {
            temperature: [mine[i : i + rows] for i in range(0, len(mine), rows)]
            for temperature, mine in sorted(by_cold.items(), reverse=True)
        }
        self.edges = {
            tuple(group): self._edges(corpus.batch(group), head, theta)
            for groups in self.groups.values()
            for group in groups
        }

    @staticmethod
    @torch.no_grad()
    def _edges(batch: Batch, head: Tensor, theta: float) -> Tensor:
        cold = batch.cold[:, None].expand_as(batch.lse).flatten()
        return edges(batch.final.flatten(0, 1), batch.lse.flatten(), cold, head, theta)

    @torch.no_grad()
    def __call__(self, net: Student) -> list[Figures]:
        """Figures by temperature, highest first."""
        return [self._figures(net, temperature, groups) for temperature, groups in self.groups.items()]

    def _figures(self, net: Student, temperature: float, groups: list[list[int]]) -> Figures:
        depths = min(DEPTHS, net.limit or DEPTHS)
        sums = torch.zeros(2, depths, dtype=torch.float64)
        counts = torch.zeros(depths, dtype=torch.float64)
        runs: dict[int, list[Tensor]] = {3: [], 4: []}
        for group in groups:
            kept, nucleus = self._acceptance(net, self.corpus.batch(group), self.edges[tuple(group)], depths)
            for depth in range(depths):
                good = ~kept[depth].isnan()
                counts[depth] += int(good.sum())
                sums[0, depth] += float(kept[depth][good].sum())
                sums[1, depth] += float(nucleus[depth][good].sum())
            for k, parts in runs.items():
                whole = ~kept[min(k, depths) - 1].isnan()
                both = torch.stack((kept[:k, whole], nucleus[:k, whole]))
                parts.append(1 + both.cumprod(1).sum(1))
        means = sums / counts.clamp_min(1)
        taus = {k: torch.cat(parts, 1).mean(1).tolist() for k, parts in runs.items()}
        return Figures(
            temperature=temperature,
            kept=tuple(means[0].tolist()),
            nucleus=tuple(means[1].tolist()),
            tau_sd={k: tau[0] for k, tau in taus.items()},
            tau_nsd={k: tau[1] for k, tau in taus.items()},
            chains=int(counts[0]),
        )

    def _acceptance(self, net: Student, batch: Batch, edge: Tensor, depths: int) -> tuple[Tensor, Tensor]:
        """Acceptance of SD and NSD of every chain and depth, nan where there is none: [depths, B, T] each."""
        size = batch.lse.shape
        cold = batch.cold[:, None].expand_as(batch.lse).flatten()
        p = self.ends.law(batch.final.flatten(0, 1), batch.lse.flatten(), cold)
        head, own, gain = net.lent(self.ends.head), net.map(), net.gain().exp()
        kept = torch.full((depths, *size), torch.nan)
        nucleus = kept.clone()
        for depth, part in enumerate(net.rows(batch, self.ends.embedding, depths, ANSWERED, None)):
            for first in range(0, len(part.at), CHUNK):
                rows = slice(first, first + CHUNK)
                at = part.at[rows]
                read = None if part.read is None else part.read[rows]
                z = logits(part.states[rows], head, read, own)
                law = torch.softmax(z * (gain * cold[at, None]), -1)
                want = p[at + depth + 1].float()
                least = torch.minimum(law, want)
                inside = want >= edge[at + depth + 1, None]
                kept[depth].view(-1)[at] = least.sum(-1)
                nucleus[depth].view(-1)[at] = torch.where(inside, law, least).sum(-1)
        return kept, nucleus
