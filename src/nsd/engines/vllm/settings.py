"""What a server's environment and a request's fields ask for, checked once where they come in.

Environment, the default of every request: NSD_RULE (nsd or sd), NSD_THETA, NSD_MAX_DEVIATION. A request says the same
in `SamplingParams.extra_args`, over HTTP in `vllm_xargs`: nsd_rule, nsd_theta, nsd_max_deviation. theta = 0, rule sd
and a cap of 0 each mean the exact test.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nsd.errors import ConfigError

DEFAULT_THETA = 0.95
ACCOUNTING = "NSD_ACCOUNTING"
LEVELS = ("rescues", "full")
FIELDS = ("nsd_rule", "nsd_theta", "nsd_max_deviation")
STAMP = "nsd_admitted"


class BadField(ConfigError):
    """A field of a request, or of the environment, that cannot be used; knows the field's name and its value."""

    def __init__(self, field: str, value: object, wanted: str) -> None:
        self.field, self.value = field, value
        super().__init__(f"{field} is {value!r}, wanted {wanted}")


@dataclass(frozen=True)
class Ask:
    """How the drafts of one request are tested: rule "sd" or "nsd", theta in [0, 1], cap in [0, 1] or None."""

    rule: str = "sd"
    theta: float = 0.0
    max_deviation: float | None = None

    @property
    def acts(self) -> bool:
        """Whether any draft can stand that the exact test would turn down."""
        return self.rule == "nsd" and self.theta > 0 and self.max_deviation != 0

    def __str__(self) -> str:
        if self.rule == "sd":
            return "rule sd (exact)"
        cap = "no cap" if self.max_deviation is None else f"cap {self.max_deviation:g}"
        return f"rule nsd, theta {self.theta:g}, {cap}"


EXACT = Ask()


def server_default(environ: Mapping[str, str] | None = None) -> Ask | None:
    """What the environment asks for; None if it asks for nothing. Numbers may be blank, which is the same as unset."""
    environ = os.environ if environ is None else environ
    given: dict[str, Any] = {}
    for field in FIELDS:
        text = environ.get(field.upper(), "").strip()
        if text:
            given[field] = text if field == "nsd_rule" else _number_from(field.upper(), text)
    return _resolve(given, None, str.upper) if given else None


def full_accounting(environ: Mapping[str, str] | None = None) -> bool:
    """Whether ES shall be computed at every tested draft, also where no cap needs it (NSD_ACCOUNTING=full).

    Without it ("rescues", the default) a cap and point masses still have their ES, which is free for the latter; the
    deviation of other requests is estimated by the share of rescued drafts, whose mean it is.
    """
    level = (os.environ if environ is None else environ).get(ACCOUNTING, "").strip() or LEVELS[0]
    if level not in LEVELS:
        raise BadField(ACCOUNTING, level, "'rescues' or 'full'")
    return level == "full"


def request_ask(extra_args: Mapping[str, Any] | None, default: Ask | None) -> Ask:
    """What one request asks for: its own fields, else the server's default, else the exact test.

    A request that names theta or a cap but no rule means nsd. Raises BadField for values and names that cannot be used.
    """
    given = {key: value for key, value in (extra_args or {}).items() if key.startswith("nsd_") and value is not None}
    for key, value in given.items():
        if key not in FIELDS:
            close = difflib.get_close_matches(key, FIELDS, n=1)
            known = f"{close[0]}, which is the nearest field" if close else f"one of {', '.join(FIELDS)}"
            raise BadField(key, value, known)
    return _resolve(given, default, str) if given else default or EXACT


def _resolve(given: Mapping[str, Any], default: Ask | None, spell: Any) -> Ask:
    """An Ask from the fields given; spell writes a field's name as its giver wrote it (a plain str method)."""
    rule = given.get("nsd_rule")
    if rule is not None and rule not in ("sd", "nsd"):
        raise BadField(spell("nsd_rule"), rule, "'nsd' or 'sd'")
    theta = _unit(spell("nsd_theta"), given.get("nsd_theta"))
    cap = _unit(spell("nsd_max_deviation"), given.get("nsd_max_deviation"))
    if rule == "sd":
        return EXACT
    relaxed = default if default is not None and default.rule == "nsd" else Ask("nsd", DEFAULT_THETA)
    return Ask(
        "nsd",
        relaxed.theta if theta is None else theta,
        relaxed.max_deviation if cap is None else cap,
    )


def _unit(field: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise BadField(field, value, "a number in [0, 1]")
    return float(value)


def _number_from(field: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadField(field, text, "a number in [0, 1]") from None


@dataclass(frozen=True)
class Stamp:
    """What the front end writes into an admitted request: the resolved ask, and the seed of the cap's coins.

    Every worker reads the same stamp, so all ranks test alike. A request's own seed is the coin's seed; for one without
    a seed, one is drawn at admission and stands here.
    """

    ask: Ask
    coin_seed: int

    def plain(self) -> dict[str, Any]:
        """As plain values, which survive the way from process to process."""
        return {**asdict(self.ask), "coin_seed": self.coin_seed}


def read_stamp(extra_args: Mapping[str, Any] | None) -> Stamp | None:
    """The stamp of an admitted request, or None if it carries none."""
    plain = (extra_args or {}).get(STAMP)
    if not isinstance(plain, Mapping):
        return None
    return Stamp(Ask(plain["rule"], plain["theta"], plain["max_deviation"]), plain["coin_seed"])
