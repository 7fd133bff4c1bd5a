"""The rules table says what the rules do, and docs/rules.md is the table."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch

from nsd.errors import ConfigError
from nsd.fidelity import guarantee_of
from nsd.rules import RULES
from nsd.rules.table import REGENERATE, page, rows

ROWS = {row.name: row for row in rows()}
PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def random_laws(n, vocab=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(3 * torch.rand(n, vocab, generator=generator, dtype=torch.float64)).square().softmax(-1) for _ in range(2)]


def test_the_page_is_fresh():
    assert PAGE.read_text(encoding="utf-8") == page(), f"docs/rules.md is stale; type: {REGENERATE}"


def test_every_rule_has_a_row_with_its_numbers():
    assert list(ROWS) == list(RULES)
    for name, row in ROWS.items():
        numbers = fields(RULES[name])
        assert [(n.name, n.default) for n in row.numbers] == [(f.name, f.default) for f in numbers]
        assert all(n.wanted for n in row.numbers)
        assert all((row.summary, row.formula, row.after_failure, row.law, row.source))


@pytest.mark.parametrize("name", RULES)
def test_the_column_on_caps_is_what_a_budget_meets(name):
    try:
        guarantee_of(RULES[name](), 32, agreement=0.9)
        capped = True
    except ConfigError:
        capped = False
    assert ROWS[name].capped == capped


@pytest.mark.parametrize("name", RULES)
def test_the_emitted_law_is_the_one_in_the_table(name):
    p, q = random_laws(50, seed=1)
    rule = RULES[name]()
    a = rule.acceptance_of_all(p, q)
    kept = q * a
    failed = 1 - kept.sum(-1, keepdim=True)
    left = (p - q).clamp_min(0)
    argmax = torch.nn.functional.one_hot(p.argmax(-1), p.shape[-1])
    laws = {
        "p": lambda: p,
        "pi": lambda: rule.surrogate(p, q),
        "q a + (1 - sum q a) p": lambda: kept + failed * p,
        "q a, and the rest on argmax p": lambda: kept + failed * argmax,
        "q a + (1 - sum q a) (p-q)+ / R; TV = the extra accepted mass": lambda: (
            kept + failed * left / left.sum(-1, keepdim=True)
        ),
    }
    emitted = rule.emitted(p, q)
    torch.testing.assert_close(emitted, laws[ROWS[name].law](), rtol=0, atol=1e-12)
    if "extra accepted mass" in ROWS[name].law:
        extra = kept.sum(-1) - torch.minimum(p, q).sum(-1)
        torch.testing.assert_close((emitted - p).abs().sum(-1) / 2, extra, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_the_column_on_the_ratio_test_holds(name):
    p, q = random_laws(200, seed=2)
    at_least_standard = bool((RULES[name]().acceptance_of_all(p, q) >= (p / q).clamp_max(1) - 1e-12).all())
    assert at_least_standard == ROWS[name].keeps_ratio


def test_where_the_two_tie_forms_differ_as_the_page_says():
    p = torch.full((1, 20), 0.05, dtype=torch.float64)
    nsd = RULES["nsd"]
    assert [int(nsd(ties=form).whole_set(p).sum()) for form in ("all", "smallest")] == [20, 19]
    assert "20 tokens of probability 0.05" in page()
