"""`nsd theory`: exact one-step quantities, sequence bounds and the speed model, without a model."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from nsd.cli import options as o
from nsd.cli.console import emit_json, note
from nsd.errors import ConfigError

theory_app = typer.Typer(no_args_is_help=True, help="What the theory says, computed: one step, sequences, speed.")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@theory_app.command()
def step(
    p: Annotated[str, typer.Option("--p", help="Target law: numbers separated by commas or spaces.")],
    q: Annotated[str | None, typer.Option("--q", help="Draft law, the one drafts are really drawn from.")] = None,
    point: Annotated[int | None, typer.Option("--point", help="Instead of --q: the id of a point-mass draft.")] = None,
    theta: Annotated[
        float | None, typer.Option("--theta", help="Nucleus threshold in [0, 1]; 0.95 if not given.")
    ] = None,
    rule: Annotated[str, typer.Option("--rule", help="Verification rule (nsd list rules).")] = "nsd",
    max_deviation: Annotated[float | None, typer.Option("--max-deviation", help="Cap on the deviation.")] = None,
    ties: Annotated[str | None, typer.Option("--ties", help="all (mass form) or smallest (shortest prefix).")] = None,
    numbers: o.RuleNumbers = None,
    as_json: AsJson = False,
) -> None:
    """R, ES, acceptance, deviation and the exact emitted law of one position."""
    from nsd.fidelity.step import one_step
    from nsd.rules import make_rule

    given: dict[str, Any] = {"theta": theta, "max_deviation": max_deviation, "ties": ties} | o.rule_numbers(numbers)
    chosen = make_rule(rule, **given)
    if (q is None) == (point is None):
        got = "neither --q nor --point" if q is None else "both --q and --point"
        raise ConfigError(f"got {got}, wanted one law of the draft; try --q 0.6,0.4,0 or --point 0")
    result = one_step(_floats(p, "p"), _floats(q, "q") if q is not None else point, chosen)
    values: dict[str, Any] = {name: getattr(result, name) for name in result.__slots__}
    off = {name: "off" for name, value in chosen.settings().items() if value is None}
    _show("theory step", {"rule": chosen.name} | chosen.settings() | values, as_json, off | result.reasons)


@theory_app.command()
def agreement(
    epsilon: Annotated[float, typer.Option("--epsilon", help="Bound on every one-step deviation.")],
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens after a shared prefix.")],
    as_json: AsJson = False,
) -> None:
    """(1 - epsilon)^tokens: how probably a sequence agrees with the target's own, at least."""
    from nsd.fidelity.sequence import agreement as agreement_of

    _show(
        "theory agreement", {"epsilon": epsilon, "tokens": tokens, "agreement": agreement_of(epsilon, tokens)}, as_json
    )


@theory_app.command()
def horizon(
    epsilon: Annotated[float, typer.Option("--epsilon", help="Bound on every one-step deviation.")],
    delta: Annotated[float, typer.Option("--delta", help="Disagreement allowed over the sequence.")],
    as_json: AsJson = False,
) -> None:
    """Tokens for which agreement stays at 1 - delta or above. It prescribes no block size."""
    from nsd.fidelity.sequence import horizon as horizon_of

    length = horizon_of(epsilon, delta)
    unlimited = math.isinf(length)
    values = {
        "epsilon": epsilon,
        "delta": delta,
        "horizon": None if unlimited else length,
        "tokens": None if unlimited else math.floor(length),
        "unlimited": unlimited,
    }
    why = "no length is too long" if unlimited else ""
    _show("theory horizon", values, as_json, {"horizon": why, "tokens": why} if unlimited else {})


@theory_app.command()
def speedup(
    acceptance: Annotated[str, typer.Option("--acceptance", help="One number, or one per position.")],
    k: Annotated[int | None, typer.Option("-k", help="Proposals per block.")] = None,
    draft: Annotated[float, typer.Option("--draft", help="Drafting cost in plain target steps.")] = 0.1,
    verify: Annotated[float, typer.Option("--verify", help="Cost of one verification in plain target steps.")] = 1.0,
    parallel: Annotated[bool, typer.Option("--parallel", help="--draft is paid per block, not per proposal.")] = False,
    as_json: AsJson = False,
) -> None:
    """tau, wall-time factor and break-even from acceptance by position, K, draft and verify costs."""
    from nsd.fidelity.speed import speedup as speedup_of

    given = _floats(acceptance, "acceptance")
    if len(given) == 1 and k is None:
        note("one acceptance and no -k: reckoned with one proposal per block (-k 1)")
        k = 1
    model = speedup_of(given[0] if len(given) == 1 else given, k, draft, verify, parallel)
    values: dict[str, Any] = {name: getattr(model, name) for name in model.__slots__}
    asked = {"acceptance": given, "draft": draft, "verify": verify, "parallel": parallel}
    _show("theory speedup", asked | values, as_json, model.reasons)


def _floats(text: str, name: str) -> list[float]:
    parts = text.strip().strip("[]").replace(",", " ").split()
    try:
        if parts:
            return [float(part) for part in parts]
        raise ValueError
    except ValueError:
        raise ConfigError(f"--{name} is '{text}', wanted numbers; try --{name} 0.5,0.3,0.2") from None


def _show(command: str, values: dict[str, Any], as_json: bool, reasons: dict[str, str] | None = None) -> None:
    """Values by name; what is None has its reason beside it, in JSON under `reasons`."""
    reasons = reasons or {}
    if as_json:
        emit_json(command, {name: _finite(value) for name, value in values.items()} | {"reasons": reasons})
        return
    values = {name: value for name, value in values.items() if name != "reasons"}
    width = max(len(name) for name in values)
    for name, value in values.items():
        why = f" ({reasons[name]})" if name in reasons else ""
        typer.echo(f"{name:<{width}}  {_text(value)}{why}")


def _finite(value: Any) -> Any:
    """JSON has no infinity; a number of a rule that is infinite is written as a word."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return " ".join(_text(part) for part in value) or "none"
    return str(value)
