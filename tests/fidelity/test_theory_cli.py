"""`nsd theory`: the figures, JSON, and one-line refusals."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from nsd.cli.theory import theory_app
from nsd.errors import ConfigError, LawError, NSDError


def invoke(*arguments):
    result = CliRunner().invoke(theory_app, list(arguments))
    if isinstance(result.exception, NSDError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def run(*arguments):
    return invoke(*arguments).stdout


def as_json(*arguments):
    found = json.loads(run(*arguments, "--json"))
    assert found["schema_version"] >= 1
    assert found["kind"] == f"theory {arguments[0]}"
    return found


def test_step():
    found = as_json("step", "--p", "0.5,0.25,0.25", "--q", "[0.5, 0.5, 0]", "--theta", "0.95", "--max-deviation", "0.1")
    wanted = {"R", "ES", "acceptance", "deviation", "tv", "emitted", "lam", "nucleus"}
    assert wanted <= set(found)
    assert (found["R"], found["ES"], found["lam"], found["deviation"]) == pytest.approx((0.25, 0.25, 0.4, 0.1))
    assert found["acceptance"] == pytest.approx(0.85)
    assert found["emitted"] == pytest.approx([0.5, 0.35, 0.15])
    assert found["nucleus"] == [0, 1, 2]


def test_step_with_a_point_mass_ties_and_other_rules():
    found = as_json("step", "--p", "0.4 0.4 0.2", "--point", "1", "--theta", "0.3", "--ties", "smallest")
    assert (found["nucleus"], found["ES"]) == ([0], 0)
    assert as_json("step", "--p", "0.4 0.4 0.2", "--point", "1", "--theta", "0.3")["nucleus"] == [0, 1]
    lenient = as_json("step", "--p", "0.5,0.5", "--q", "0.9,0.1", "--rule", "lenience", "--set", "l=0.8")
    assert lenient["deviation"] == pytest.approx(0.125)
    assert lenient["nucleus"] is None
    assert as_json("step", "--p", "1,0", "--q", "0,1", "--rule", "mentored", "--set", "a=inf")["a"] == "inf"


def test_text_output():
    assert "acceptance     1\n" in run("step", "--p", "0.5,0.25,0.25", "--q", "0.5,0.5,0")
    assert "agreement  0.968491" in run("agreement", "--epsilon", "0.001", "--tokens", "32")


def test_agreement_and_horizon():
    assert as_json("agreement", "--epsilon", "0.001", "--tokens", "32")["agreement"] == pytest.approx(0.96849, abs=1e-5)
    found = as_json("horizon", "--epsilon", "0.001", "--delta", "0.05")
    assert (found["horizon"], found["tokens"]) == (pytest.approx(51.27, abs=0.005), 51)
    assert as_json("horizon", "--epsilon", "0", "--delta", "0.05")["unlimited"] is True
    assert as_json("horizon", "--epsilon", "1", "--delta", "0.05")["tokens"] == 0
    assert as_json("horizon", "--epsilon", "0.1", "--delta", "0")["tokens"] == 0


def test_speedup():
    found = as_json("speedup", "--acceptance", "0.8", "-k", "7", "--draft", "0.1")
    assert found["tau"] == pytest.approx((1 - 0.8**8) / 0.2)
    assert found["speedup"] == pytest.approx(found["tau"] / 1.7)
    by_position = as_json("speedup", "--acceptance", "0.9,0.5", "--draft", "0.3", "--verify", "1.1", "--parallel")
    assert by_position["speedup"] == pytest.approx(2.35 / 1.4)


def test_one_acceptance_without_k_is_said_to_be_one_proposal():
    found = as_json("speedup", "--acceptance", "0.7")
    assert (found["k"], found["best_k"]) == (1, 4)
    assert "one proposal per block (-k 1)" in invoke("speedup", "--acceptance", "0.7").stderr
    assert invoke("speedup", "--acceptance", "0.7", "-k", "1").stderr == ""


@pytest.mark.parametrize(
    ("arguments", "nulls"),
    [
        (("step", "--p", "0.5,0.5", "--q", "0.9,0.1"), {"max_deviation"}),
        (("step", "--p", "0.5,0.5", "--q", "0.9,0.1", "--rule", "greedy"), {"kl_target", "nucleus"}),
        (("step", "--p", "0.5,0.5", "--point", "0", "--theta", "1"), {"kl_target", "max_deviation"}),
        (("speedup", "--acceptance", "0.9,0.5", "--verify", "0.5"), {"best_k", "break_even_acceptance"}),
        (("horizon", "--epsilon", "0", "--delta", "0.1"), {"horizon", "tokens"}),
        (("agreement", "--epsilon", "0.1", "--tokens", "3"), set()),
    ],
)
def test_every_null_has_a_reason(arguments, nulls):
    found = as_json(*arguments)
    assert {name for name, value in found.items() if value is None} == nulls == found["reasons"].keys()
    text = dict(line.split(maxsplit=1) for line in run(*arguments).splitlines())
    assert all(text[name] == f"- ({found['reasons'][name]})" for name in nulls)


def test_an_infinite_divergence_names_the_id():
    reasons = as_json("step", "--p", "0.5,0.3,0.2", "--point", "1", "--theta", "1")["reasons"]
    assert reasons["kl_target"] == "infinite: id 0 has target probability and is never emitted"


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        (("step", "--p", "0.5,0.4", "--q", "0.5,0.5"), LawError, "p sums to 0.9"),
        (("step", "--p", "1.5,-0.5", "--q", "0.5,0.5"), LawError, "negative at id 1"),
        (("step", "--p", "0.5,0.5", "--q", "0.5,0.3,0.2"), LawError, "2 entries"),
        (("step", "--p", "0.5,x", "--q", "0.5,0.5"), ConfigError, "wanted numbers"),
        (("step", "--p", "0.5,0.5"), ConfigError, "neither --q nor --point"),
        (("step", "--p", "0.5,0.5", "--q", "0.5,0.5", "--point", "0"), ConfigError, "both"),
        (("step", "--p", "1,0", "--q", "1,0", "--theta", "2"), ConfigError, "theta is 2"),
        (("step", "--p", "1,0", "--q", "1,0", "--rule", "ndd"), ConfigError, "did you mean nsd"),
        (("step", "--p", "1,0", "--q", "1,0", "--set", "theta"), ConfigError, "name=value"),
        (("horizon", "--epsilon", "2", "--delta", "0.1"), ConfigError, "epsilon is 2"),
        (("speedup", "--acceptance", "0.5,0.4", "-k", "-1"), ConfigError, "k is -1"),
        (("speedup", "--acceptance", ""), ConfigError, "acceptance is '', wanted numbers"),
        (("speedup", "--acceptance", "0.5,1.5"), ConfigError, "acceptance is 1.5"),
    ],
)
def test_refusals_are_one_line(arguments, kind, says):
    with pytest.raises(kind, match=says) as refusal:
        run(*arguments)
    assert "\n" not in str(refusal.value)


def test_plain_arithmetic_loads_no_tensor_library():
    script = "import sys, nsd.fidelity; nsd.fidelity.horizon(0.1, 0.1); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
