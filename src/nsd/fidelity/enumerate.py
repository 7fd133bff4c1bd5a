"""Exact sequence laws on toy worlds, by following every path of the decoder.

Nothing is sampled. A path is what a decoder could have done up to a token: what was emitted, where its block stands,
what the ledger holds. Acceptance, replacement and the share of the excess that may be spent come from the rules and the
allowance that real decoding uses; the enumeration only multiplies probabilities. All worlds advance together.

This is the test that a ledger cannot replace: it compares 1 - TV of the sequence laws with what was promised.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from nsd.errors import ConfigError
from nsd.fidelity.budget import Policy, factor_left, place_caps
from nsd.fidelity.worlds import DrafterKind, World, random_worlds
from nsd.laws import excess_masses_in, one_hot, row_sum
from nsd.rules import Evidence, Need, RatioOrSet, Rule
from nsd.verification import Branch, Caps
from nsd.verification.allowance import spend
from nsd.verification.layout import Layout


@dataclass(frozen=True, slots=True)
class SequenceLaw:
    """What came out, per world.

    emitted and target [W, V^T] laws of whole sequences; agreement [W] = 1 - TV between them; lowest_Q [W] the smallest
    Q over paths; mean_weight [W] = E[W]; mean_agreed_over_Q [W] = E[1_A / Q], 1 in theory; rescues and spent [W] the
    expected number of rescued tokens and the expected sum of eps; calls [W] expected target passes; kernel_excess the
    largest TV(next-token law, p) - eps over all decoder states of all worlds (<= 0 in theory).
    """

    emitted: Tensor
    target: Tensor
    agreement: Tensor
    lowest_Q: Tensor
    mean_Q: Tensor
    mean_weight: Tensor
    mean_agreed_over_Q: Tensor
    rescues: Tensor
    spent: Tensor
    calls: Tensor
    kernel_excess: float


@dataclass(frozen=True, slots=True)
class Paths:
    """Columns [n] of paths that emitted the same number of tokens.

    world; history; start the history at the block's beginning; place in the block (k = bonus); chance of the path; Q
    and weight so far; es [n, k] of the block's positions so far, their caps [n, k] and the block's floor.
    """

    world: Tensor
    history: Tensor
    start: Tensor
    place: Tensor
    chance: Tensor
    Q: Tensor
    weight: Tensor
    es: Tensor
    caps: Tensor
    floor: Tensor

    def at(self, index: Tensor) -> Paths:
        """Some of them."""
        return Paths(*(getattr(self, f.name)[index] for f in fields(self)))

    @classmethod
    def joined(cls, parts: list[Paths]) -> Paths:
        """All of several."""
        return cls(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(cls)))


@dataclass(frozen=True, slots=True)
class Proposals:
    """Every (path, drafted id) pair of one level, [m]: row is the path; length the tokens emitted before.

    x the drafted id; chance of drafting it; p and q [m, V] as verification sees them; inside [m, V] the set; R, ES.
    """

    paths: Paths
    length: int
    row: Tensor
    x: Tensor
    chance: Tensor
    p: Tensor
    q: Tensor
    inside: Tensor
    R: Tensor
    ES: Tensor


class Enumeration:
    """All paths of one decoder over toy worlds: a rule with or without cap, and a budget or none.

    `allowed` and `charges` are what a policy decides; the ones here are those of real decoding.
    """

    def __init__(self, world: World, rule: Rule, agreement: float | None = None, policy: Policy = "even") -> None:
        """agreement = 1 - delta of a whole-sequence budget under `policy`."""
        if agreement is not None and not isinstance(rule, RatioOrSet):
            raise ConfigError(f"rule {rule.name} cannot keep a budget; take a ratio-or-set rule such as nsd")
        self.world, self.rule = world, rule
        self.agreement, self.policy = agreement, policy
        self._calls, self._rescues, self._spent = (torch.zeros(world.count, dtype=torch.float64) for _ in range(3))
        self._kernel_excess = -1.0

    def run(self) -> SequenceLaw:
        """Follow every path to its end."""
        paths = self._opened(self._beginning(), 0)
        for length in range(self.world.tokens):
            paths = self._advance(paths, length)
        return self._summary(paths)

    def allowed(self, proposals: Proposals) -> tuple[Tensor, Tensor]:
        """eps and lam of every proposal, by the allowance of real decoding: [m], [m]."""
        paths, m, k = proposals.paths, len(proposals.row), self.world.k
        if self.agreement is None and self.rule.max_deviation is None:
            return proposals.ES, torch.ones_like(proposals.ES)
        here = paths.place[proposals.row].unsqueeze(-1)
        es = paths.es[proposals.row].scatter(-1, here, proposals.ES.unsqueeze(-1))
        layout = Layout.of((k,) * m, es.device)
        caps = Caps(paths.caps[proposals.row].flatten(), paths.floor[proposals.row])
        eps, lam = (column.view(m, k).gather(-1, here).squeeze(-1) for column in spend(es.flatten(), caps, layout))
        return eps, lam

    def charges(self, branch: Branch) -> bool:
        """Whether the ledger is charged when a proposal ends so: always."""
        return True

    def proposals(self, paths: Paths, length: int) -> Proposals:
        """What can be drafted on these paths, with everything that verification will see."""
        p = self.world.target[length][paths.world, paths.history]
        law = self.world.draft_laws(paths.world, length, paths.history, paths.start, paths.place)
        row, x = law.nonzero(as_tuple=True)
        q = one_hot(x, law[row]) if self.world.kind is DrafterKind.UNKNOWN else law[row]
        chance, p = law[row, x], p[row]
        if isinstance(self.rule, RatioOrSet):
            inside = self.rule.whole_set(p)
            R, ES = excess_masses_in(p, q, inside)
        else:
            inside = torch.zeros_like(p, dtype=torch.bool)
            R, _ = excess_masses_in(p, q, inside)
            ES = torch.zeros_like(R) if self.rule.lossless else row_sum((self.rule.emitted(p, q) - p).abs()) / 2
        return Proposals(paths, length, row, x, chance, p, q, inside, R, ES)

    def _beginning(self) -> Paths:
        worlds, k = self.world.count, self.world.k
        zeros, ones = torch.zeros(worlds, dtype=torch.long), torch.ones(worlds, dtype=torch.float64)
        blank = torch.zeros(worlds, k, dtype=torch.float64)
        return Paths(torch.arange(worlds), zeros, zeros, zeros, ones, ones, ones, blank, blank, ones)

    def _opened(self, paths: Paths, length: int) -> Paths:
        """Begin a block on every path that stands at place 0: a target call, and caps from the ledger alone."""
        fresh = (paths.place == 0).nonzero().squeeze(-1)
        self._calls.index_add_(0, paths.world[fresh], paths.chance[fresh])
        start, es, caps, floor = paths.start.clone(), paths.es.clone(), paths.caps.clone(), paths.floor.clone()
        start[fresh], es[fresh] = paths.history[fresh], 0.0
        caps[fresh], floor[fresh] = self._block_caps(paths.Q[fresh], length)
        return Paths(
            paths.world, paths.history, start, paths.place, paths.chance, paths.Q, paths.weight, es, caps, floor
        )

    def _block_caps(self, spent: Tensor, length: int) -> tuple[Tensor, Tensor]:
        cap = 1.0 if self.rule.max_deviation is None else float(self.rule.max_deviation)
        if self.agreement is None:
            return torch.full((len(spent), self.world.k), cap, dtype=torch.float64), torch.zeros_like(spent)
        left = factor_left(self.agreement, spent.numpy())
        remaining = torch.full_like(spent, self.world.tokens - length).numpy()
        caps = torch.from_numpy(place_caps(self.policy, left, remaining, self.world.k).copy())
        return caps.clamp_max(cap), torch.from_numpy(left)

    def _advance(self, paths: Paths, length: int) -> Paths:
        """Every path grown by one token."""
        drafted = paths.place < self.world.k
        children = [self._plain(paths.at((~drafted).nonzero().squeeze(-1)), length)]
        if bool(drafted.any()):
            children += self._tested(paths.at(drafted.nonzero().squeeze(-1)), length)
        grown = Paths.joined(children)
        grown = grown.at((grown.chance > 0).nonzero().squeeze(-1))
        return self._opened(grown, length + 1) if length + 1 < self.world.tokens else grown

    def _plain(self, paths: Paths, length: int) -> Paths:
        """A bonus, or a token without a draft: p itself, nothing spent."""
        p = self.world.target[length][paths.world, paths.history]
        row, y = p.nonzero(as_tuple=True)
        return self._grow(paths.at(row), y, p[row, y], ends_block=True)

    def _tested(self, paths: Paths, length: int) -> list[Paths]:
        """A tested position: accepted by ratio, rescued, or rejected and replaced."""
        d = self.proposals(paths, length)
        eps, lam = self.allowed(d)
        by_ratio, accepted = self._acceptance(d, lam)
        replaced = self._replacement(d)
        pi = self._kernel(d, accepted, replaced)
        factor = torch.where(pi > 0, self.world.target[length][paths.world, paths.history] / pi, 1.0).clamp_max(1.0)
        self._account(d, eps, accepted - by_ratio, pi)
        es = paths.es[d.row].scatter(-1, paths.place[d.row].unsqueeze(-1), d.ES.unsqueeze(-1))
        grown = []
        for branch, share in ((Branch.RATIO, by_ratio), (Branch.RESCUED, accepted - by_ratio)):
            spent = eps if self.charges(branch) else torch.zeros_like(eps)
            grown.append(self._grow(paths.at(d.row), d.x, d.chance * share, False, spent, factor[d.row, d.x], es))
        pair, y = replaced.nonzero(as_tuple=True)
        row = d.row[pair]
        spent = eps[pair] if self.charges(Branch.REJECTED) else torch.zeros_like(eps[pair])
        share = (d.chance * (1.0 - accepted))[pair] * replaced[pair, y]
        grown.append(self._grow(paths.at(row), y, share, True, spent, factor[row, y]))
        return grown

    def _acceptance(self, d: Proposals, lam: Tensor) -> tuple[Tensor, Tensor]:
        """Chances over u that x passes the ratio test, and that it is accepted: [m], [m]."""
        p_x, q_x = (rows.gather(-1, d.x.unsqueeze(-1)).squeeze(-1) for rows in (d.p, d.q))
        if isinstance(self.rule, RatioOrSet):
            member = d.inside.gather(-1, d.x.unsqueeze(-1)).squeeze(-1)
            accepted = self.rule.acceptance(Evidence(d.x, p_x, q_x, member=member, lam=lam)).where(p_x > 0, 0.0)
        else:
            accepted = self.rule.acceptance_of_all(d.p, d.q).gather(-1, d.x.unsqueeze(-1)).squeeze(-1)
        by_ratio = accepted if self.rule.lossless else torch.minimum(accepted, (p_x / q_x).clamp_max(1.0))
        return by_ratio, accepted

    def _replacement(self, d: Proposals) -> Tensor:
        """The law of the token after x was rejected: [m, V]."""
        if Need.TARGET_DRAW in self.rule.needs:
            others = d.p.scatter(-1, d.x.unsqueeze(-1), 0.0)
            return (others / others.sum(-1, keepdim=True)).nan_to_num(nan=0.0)
        return self.rule.recovered(d.p, d.q)

    def _kernel(self, d: Proposals, accepted: Tensor, replaced: Tensor) -> Tensor:
        """The law of the emitted token given the decoder's state before the draft: [n, V]."""
        mass = (d.chance * (1.0 - accepted)).unsqueeze(-1) * replaced
        mass = mass.scatter_add(-1, d.x.unsqueeze(-1), (d.chance * accepted).unsqueeze(-1))
        return mass.new_zeros(len(d.paths.world), self.world.vocab).index_add_(0, d.row, mass)

    def _account(self, d: Proposals, eps: Tensor, rescued: Tensor, pi: Tensor) -> None:
        paths = d.paths
        expected = torch.zeros_like(paths.chance).index_add_(0, d.row, d.chance * eps)
        rescues = torch.zeros_like(paths.chance).index_add_(0, d.row, d.chance * rescued)
        self._spent.index_add_(0, paths.world, paths.chance * expected)
        self._rescues.index_add_(0, paths.world, paths.chance * rescues)
        p = self.world.target[d.length][paths.world, paths.history]
        excess = (pi - p).abs().sum(-1) / 2 - expected
        self._kernel_excess = max(self._kernel_excess, float(excess.max()))

    def _grow(
        self,
        paths: Paths,
        y: Tensor,
        share: Tensor,
        ends_block: bool,
        eps: Tensor | None = None,
        factor: Tensor | None = None,
        es: Tensor | None = None,
    ) -> Paths:
        """Paths with y appended."""
        return Paths(
            world=paths.world,
            history=paths.history * self.world.vocab + y,
            start=paths.start,
            place=torch.zeros_like(paths.place) if ends_block else paths.place + 1,
            chance=paths.chance * share,
            Q=paths.Q if eps is None else paths.Q * (1.0 - eps),
            weight=paths.weight if factor is None else paths.weight * factor,
            es=paths.es if es is None else es,
            caps=paths.caps,
            floor=paths.floor,
        )

    def _summary(self, paths: Paths) -> SequenceLaw:
        worlds, sequences = self.world.count, self.world.vocab**self.world.tokens
        at = paths.world * sequences + paths.history
        emitted = torch.zeros(worlds * sequences, dtype=torch.float64).index_add_(0, at, paths.chance)
        emitted, target = emitted.view(worlds, sequences), self.world.target_sequences()

        def mean(column: Tensor) -> Tensor:
            return torch.zeros(worlds, dtype=torch.float64).index_add_(0, paths.world, paths.chance * column)

        lowest = torch.ones(worlds, dtype=torch.float64).scatter_reduce_(0, paths.world, paths.Q, "amin")
        return SequenceLaw(
            emitted=emitted,
            target=target,
            agreement=torch.minimum(emitted, target).sum(-1),
            lowest_Q=lowest,
            mean_Q=mean(paths.Q),
            mean_weight=mean(paths.weight),
            mean_agreed_over_Q=mean(paths.weight / paths.Q),
            rescues=self._rescues,
            spent=self._spent,
            calls=self._calls,
            kernel_excess=self._kernel_excess,
        )


__all__ = ["DrafterKind", "Enumeration", "Paths", "Proposals", "SequenceLaw", "World", "random_worlds"]
