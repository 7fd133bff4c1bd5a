"""`nsd list`: readable in 80 columns, complete, and the same in JSON."""

import json

import pytest
from typer.testing import CliRunner

from nsd.cli.main import app
from nsd.drafters.load import DRAFTERS, KINDS
from nsd.rules.table import rows
from nsd.targets.load import MODELS


def shown(*arguments):
    result = CliRunner().invoke(app, ["list", *arguments], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_rules_show_retention_and_what_follows_a_failure_within_80_columns():
    text = shown("rules")
    assert max(map(len, text.splitlines())) <= 80
    blocks = {}
    for line in text.splitlines():
        if not line.startswith(" "):
            name, _, rest = line.partition(" ")
            blocks[name] = [rest]
        else:
            blocks[name].append(line)
    assert list(blocks) == [row.name for row in rows()]
    for row in rows():
        lines = [line.strip() for line in blocks[row.name]]
        facts = dict(part.split(": ") for part in lines[1].split("  "))
        holds = {"lossless": row.lossless, "keeps u < p/q": row.keeps_ratio, "needs q": row.needs_q}
        assert facts == {name: "yes" if v else "no" for name, v in (holds | {"capped": row.capped}).items()}
        assert lines[0] == row.formula
        assert lines[2] == f"after failure: {row.after_failure}"
        assert lines[3:] == [str(number) for number in row.numbers]


def test_rules_in_json_have_every_column():
    found = json.loads(shown("rules", "--json"))["rules"]
    assert {"keeps_ratio", "needs_q", "after_failure", "capped", "lossless"} <= found[0].keys()


@pytest.mark.parametrize("as_json", [False, True])
def test_drafters_have_auto_among_them(as_json):
    if as_json:
        names = [entry["name"] for entry in json.loads(shown("drafters", "--json"))["drafters"]]
    else:
        names = [line.split()[0] for line in shown("drafters").splitlines()[1:] if not line.startswith(" ")]
    assert names == [*DRAFTERS, "auto", *(kind.name for kind in KINDS)]


def test_models_are_those_that_load_by_name():
    found = json.loads(shown("models", "--json"))["models"]
    assert {entry["name"]: entry["doc"] for entry in found} == {name: entry.doc for name, entry in MODELS.items()}
