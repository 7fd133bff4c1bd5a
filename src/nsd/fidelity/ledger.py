"""What a completion spent, and what can be said of it: four words, each with one meaning.

guarantee          promised before decoding, the same for all prompts
ledger             Q = prod (1 - eps_t), sum and max of eps_t: what was spent; not a probability for this text
weight             W = prod min(1, p(y)/pi(y)); its mean over completions estimates the agreement without bias
expected_rescues   sum of eps_t: the expected number of tokens that only the set kept

eps_t = TV(emitted law, p) at tested positions, 0 at bonus and plain target draws. Every tested position up to the cut
is charged, whether its token passed the ratio test, was rescued, or was rejected.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from nsd.events import Block, Origin, Tested
from nsd.fidelity.guarantee import WRONG_LAW, Guarantee, is_exact
from nsd.rules import Evidence, Need, RatioOrSet, Recovery, Rule
from nsd.verification import Accounting, DraftLaw

SCHEMA = 1
WINDOWS = (8, 32, 128)
"""Window lengths at which the windowed guarantee is printed."""


def weight_factor(p: float, q: float, lam: float, member: bool) -> float:
    """min(1, p(x)/pi(x)) of an accepted x under a ratio-or-set rule, pi the emitted law; q = 1 for a point mass.

    pi(x) = p + lam (q - p) for x in S with q > p, and pi(x) <= p(x) for all other x. A replacement has factor 1.
    """
    return p / (p + lam * (q - p)) if member and q > p else 1.0


def weight_factor_of(
    rule: Rule, p: float, q: float, lam: float | None, member: bool | None, temperature: float = 1.0
) -> float | None:
    """The same for any rule, None where pi(x) cannot be had from these numbers.

    Rules that widen the ratio test and replace from the residual have pi(x) = q a(x) wherever q > p.
    """
    if is_exact(rule, temperature) or (_replaces_from_residual(rule) and q <= p):
        return 1.0
    if isinstance(rule, RatioOrSet):
        if member is None or (member and lam is None):
            return None
        return weight_factor(p, q, 0.0 if lam is None else lam, member)
    if not _replaces_from_residual(rule) or rule.needs != Need.NOTHING:
        return None
    column = torch.tensor([[p], [q]], dtype=torch.float64)
    accepted = float(rule.acceptance(Evidence(torch.zeros(1, dtype=torch.long), column[0], column[1])))
    return min(1.0, p / (q * accepted)) if accepted > 0 else 1.0


def _replaces_from_residual(rule: Rule) -> bool:
    """Whether the deviation equals the extra accepted mass, and replacements are never over-emitted."""
    return rule.widens_ratio and rule.recovery is Recovery.RESIDUAL


@dataclass(frozen=True, slots=True)
class Fidelity:
    """What every completion carries. None where a value was not computed; `reasons` says why, by name.

    Q, sum_eps, max_eps the ledger; mean_ES and max_ES over tested positions, ES_is what they are: "exact",
    "upper bound" (a draft of unknown law) or "estimated by the rescue rate"; tested and rescued are counts.
    """

    guarantee: Guarantee
    Q: float | None
    sum_eps: float | None
    max_eps: float | None
    weight: float | None
    expected_rescues: float | None
    mean_ES: float | None
    max_ES: float | None
    ES_is: str | None
    tested: int
    rescued: int
    reasons: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Plain values for JSON; the windowed guarantee at a few lengths."""
        windows = {str(w): self.guarantee.windowed(w) for w in WINDOWS}
        return {
            "schema": SCHEMA,
            "guarantee": self.guarantee.value,
            "guarantee_basis": self.guarantee.basis,
            "guarantee_window": None if self.guarantee.value is None else windows,
            "ledger": {"Q": self.Q, "sum_eps": self.sum_eps, "max_eps": self.max_eps},
            "weight": self.weight,
            "expected_rescues": self.expected_rescues,
            "mean_ES": self.mean_ES,
            "max_ES": self.max_ES,
            "ES_is": self.ES_is,
            "tested": self.tested,
            "rescued": self.rescued,
            "reasons": self.reasons,
        }


class Ledger:
    """One request's account, filled by the decoding loop in the order of the text, up to the cut."""

    def __init__(
        self,
        guarantee: Guarantee,
        rule: Rule,
        law: DraftLaw,
        accounting: Accounting,
        temperature: float = 1.0,
        law_is_right: bool = True,
    ) -> None:
        """law_is_right=False declares that q was not the law of the draw: eps, ES and weight then mean nothing."""
        self.guarantee = guarantee
        self.Q = 1.0
        self._rule, self._law, self._accounting = rule, law, accounting
        self._law_is_right = law_is_right
        self._exact = is_exact(rule, temperature)
        self._tested = self._rescued = 0
        self._sum = self._max = self._sum_es = self._max_es = 0.0
        self._weight = 1.0
        self._reasons: dict[str, str] = {}
        self._open_account()

    def charge(self, tested: Tested) -> None:
        """Charge one tested position."""
        self._tested += 1
        self._rescued += tested.origin is Origin.RESCUED
        eps = 0.0 if self._exact and tested.eps is None else tested.eps
        es = 0.0 if self._exact and tested.ES is None else tested.ES
        if eps is None:
            self._miss("ledger", f"not computed at accounting level {self._accounting.value}")
        else:
            self.Q *= 1.0 - eps
            self._sum += eps
            self._max = max(self._max, eps)
        if es is None:
            self._miss("ES", f"not computed at accounting level {self._accounting.value}")
        else:
            self._sum_es += es
            self._max_es = max(self._max_es, es)
        self._weigh(tested)

    def consume(self, block: Block) -> None:
        """Charge a whole block and take note of its guards."""
        for tested in block.tested:
            self.charge(tested)
        if block.guard:
            self.void(f"guard: a residual without mass was replaced by the target's law in block {block.number}")
        if block.invalid:
            self.void(f"a row of q was not finite in block {block.number}")

    def void(self, reason: str) -> None:
        """Something happened that the theory does not cover: guarantee and weight are null from here on."""
        self.guarantee = self.guarantee.void(reason)
        self._miss("weight", reason)

    def fidelity(self) -> Fidelity:
        """The account as it stands."""
        reasons = dict(self._reasons)
        if self.guarantee.reason is not None:
            reasons["guarantee"] = self.guarantee.reason
        spent = "ledger" not in reasons
        mean, highest, kind = self._deviation(reasons)
        counted = spent and (self._exact or _replaces_from_residual(self._rule))
        if spent and not counted:
            reasons["expected_rescues"] = f"for rule {self._rule.name} the deviation is not the extra accepted mass"
        elif not spent:
            reasons["expected_rescues"] = reasons["ledger"]
        reasons.pop("ES", None)
        return Fidelity(
            guarantee=self.guarantee,
            Q=self.Q if spent else None,
            sum_eps=self._sum if spent else None,
            max_eps=self._max if spent else None,
            weight=None if "weight" in reasons else self._weight,
            expected_rescues=self._sum if counted else None,
            mean_ES=mean,
            max_ES=highest,
            ES_is=kind,
            tested=self._tested,
            rescued=self._rescued,
            reasons=reasons,
        )

    def _open_account(self) -> None:
        """What is known from the start not to be known at the end."""
        if not self._law_is_right:
            self.void(WRONG_LAW)
            for name in ("ledger", "ES"):
                self._miss(name, WRONG_LAW)
        elif self._exact:
            return
        if self._law is DraftLaw.UNKNOWN:
            self._miss("weight", "the draft's law is unknown, so the emitted law is too")

    def _weigh(self, tested: Tested) -> None:
        if self._exact:
            return
        factor = tested.weight_factor
        if tested.origin is Origin.REJECTED:
            factor = 1.0 if _replaces_from_residual(self._rule) else None
        if factor is None:
            self._miss("weight", self._why_no_weight())
        else:
            self._weight *= factor

    def _why_no_weight(self) -> str:
        if not _replaces_from_residual(self._rule):
            return f"the emitted law of rule {self._rule.name} needs whole rows"
        return f"membership of every accepted token is not computed at accounting level {self._accounting.value}"

    def _deviation(self, reasons: dict[str, str]) -> tuple[float | None, float | None, str | None]:
        """mean ES, max ES and what they are; fills in the reasons where they are null."""
        if self._tested == 0:
            reasons["mean_ES"] = reasons["max_ES"] = "no position was tested"
            return None, None, None
        if "ES" not in reasons:
            kind = "upper bound" if self._law is DraftLaw.UNKNOWN and not self._exact else "exact"
            return self._sum_es / self._tested, self._max_es, kind
        reasons["max_ES"] = reasons["ES"]
        estimable = (
            self._law_is_right and self._accounting is not Accounting.OFF and _replaces_from_residual(self._rule)
        )
        if estimable:
            return self._rescued / self._tested, None, "estimated by the rescue rate"
        reasons["mean_ES"] = reasons["ES"]
        return None, None, None

    def _miss(self, name: str, reason: str) -> None:
        self._reasons.setdefault(name, reason)
