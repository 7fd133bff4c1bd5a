"""What environment and requests ask of the vLLM plugin: resolved, refused by name, stamped. vLLM is not needed."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from nsd.engines.vllm.rows import stamp_of
from nsd.engines.vllm.settings import (
    EXACT,
    STAMP,
    Ask,
    BadField,
    Stamp,
    full_accounting,
    read_stamp,
    request_ask,
    server_default,
)
from nsd.engines.vllm.state import STATE, State, Stopped
from nsd.errors import ConfigError


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, None),
        ({"NSD_THETA": " "}, None),
        ({"NSD_THETA": "0.5"}, Ask("nsd", 0.5)),
        ({"NSD_RULE": "nsd"}, Ask("nsd", 0.95)),
        ({"NSD_RULE": "sd"}, EXACT),
        ({"NSD_RULE": "sd", "NSD_THETA": "0.5"}, EXACT),
        ({"NSD_MAX_DEVIATION": "0.1"}, Ask("nsd", 0.95, 0.1)),
        ({"NSD_THETA": "0"}, Ask("nsd", 0.0)),
    ],
)
def test_environment(environ: dict[str, str], wanted: Ask | None) -> None:
    assert server_default(environ) == wanted


def test_accounting() -> None:
    assert not full_accounting({}) and not full_accounting({"NSD_ACCOUNTING": "rescues"})
    assert full_accounting({"NSD_ACCOUNTING": "full"})
    with pytest.raises(BadField, match="NSD_ACCOUNTING is 'all', wanted 'rescues' or 'full'"):
        full_accounting({"NSD_ACCOUNTING": "all"})


@pytest.mark.parametrize(
    ("fields", "default", "wanted"),
    [
        ({}, None, EXACT),
        ({"other": 1}, None, EXACT),
        ({}, Ask("nsd", 0.9), Ask("nsd", 0.9)),
        ({"nsd_theta": 0.3}, None, Ask("nsd", 0.3)),
        ({"nsd_theta": 1}, EXACT, Ask("nsd", 1.0)),
        ({"nsd_theta": None}, Ask("nsd", 0.9), Ask("nsd", 0.9)),
        ({"nsd_theta": 0.3}, Ask("nsd", 0.9, 0.1), Ask("nsd", 0.3, 0.1)),
        ({"nsd_rule": "sd"}, Ask("nsd", 0.9), EXACT),
        ({"nsd_rule": "nsd"}, None, Ask("nsd", 0.95)),
        ({"nsd_max_deviation": 0.2}, Ask("nsd", 0.9), Ask("nsd", 0.9, 0.2)),
    ],
)
def test_request(fields: dict[str, Any], default: Ask | None, wanted: Ask) -> None:
    assert request_ask(fields, default) == wanted


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nsd_theta", 1.5),
        ("nsd_theta", -0.1),
        ("nsd_theta", float("nan")),
        ("nsd_theta", True),
        ("nsd_theta", "0.9"),
        ("nsd_theta", [0.9]),
        ("nsd_rule", "block"),
        ("nsd_rule", 1),
        ("nsd_max_deviation", 2),
        ("nsd_max_deviation", float("inf")),
        ("nsd_thetta", 0.9),
    ],
)
def test_bad_fields_are_named(field: str, value: Any) -> None:
    with pytest.raises(BadField) as caught:
        request_ask({field: value}, None)
    assert caught.value.field == field
    assert field in str(caught.value) and "wanted" in str(caught.value)


def test_a_bad_value_is_refused_even_beside_rule_sd() -> None:
    with pytest.raises(BadField, match="nsd_theta"):
        request_ask({"nsd_rule": "sd", "nsd_theta": 3}, None)


@pytest.mark.parametrize("environ", [{"NSD_THETA": "x"}, {"NSD_THETA": "1.1"}, {"NSD_RULE": "fly"}])
def test_bad_environment_is_named(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(environ))):
        server_default(environ)


def test_what_acts() -> None:
    assert Ask("nsd", 0.5).acts and Ask("nsd", 0.5, 0.1).acts
    assert not any(ask.acts for ask in (EXACT, Ask("nsd", 0.0), Ask("nsd", 0.5, 0.0), Ask("sd", 0.5)))


def test_a_stamp_survives_the_way_between_processes() -> None:
    stamp = Stamp(Ask("nsd", 0.5, 0.1), 2**62)
    assert read_stamp(json.loads(json.dumps({STAMP: stamp.plain()}))) == stamp
    assert read_stamp({}) is None and read_stamp(None) is None


def params(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"temperature": 1.0, "seed": None, "extra_args": None, **values})


def test_workers_read_the_stamp() -> None:
    plain = {STAMP: Stamp(Ask("nsd", 0.5), 5).plain()}
    drawn = stamp_of("a", params(extra_args=plain))
    assert drawn.ask == Ask("nsd", 0.5)
    assert drawn == stamp_of("a", params(extra_args=plain)), "ranks must agree"
    assert drawn.coin_seed != stamp_of("b", params(extra_args=plain)).coin_seed, "samples of one prompt share coins"
    assert stamp_of("a", params(extra_args=plain, seed=9)).coin_seed == 9
    assert stamp_of("a", params(extra_args=plain, temperature=0.0)).ask == EXACT


def test_unchecked_requests_end_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stamp_of("a", params()).ask == EXACT
    with pytest.raises(Stopped, match="front end"):
        stamp_of("a", params(extra_args={"nsd_theta": 0.5}))
    monkeypatch.setattr(STATE, "default", Ask("nsd", 0.9))
    with pytest.raises(Stopped, match="front end"):
        stamp_of("a", params())
    assert stamp_of("_warmup_0_", params()).ask == EXACT


def test_trouble_ends_who_asked_and_is_noted_for_others() -> None:
    with pytest.raises(Stopped, match="no hook"):
        State(default=Ask("nsd", 0.9)).trouble("no hook")
    quiet = State(default=EXACT)
    quiet.trouble("no hook")
    quiet.trouble("another")
    assert quiet.problem == "no hook"
