"""The real path against exact laws. Seeds are fixed; false-alarm rates are stated and shared out by Bonferroni."""

import numpy as np
import pytest
import torch
from scipy import stats

from nsd.decoding import Decoder, Request
from nsd.drafters.draft_model import ModelDrafter
from nsd.events import Origin
from nsd.laws import Sampling, laws
from nsd.rules import NSD, RULES, SD
from nsd.targets.toy import TableTarget
from nsd.verification import Accounting

FALSE_ALARM = 1e-6
TARGET = TableTarget(vocab=6, order=1, seed=11, sharpness=1.2)
DRAFT = TARGET.near(noise=1.0, seed=5)
BATCH = 250


def blocks_of(rule, count, k=2, length=3, start=(0,)):
    """Events of `count` independent requests of the same prompt."""
    found = []
    for first in range(0, count, BATCH):
        requests = [
            Request(start, rule, Sampling(), k, length, seed=17, key=first + i, ignore_eos=True) for i in range(BATCH)
        ]
        found += list(Decoder(TARGET, ModelDrafter(DRAFT, "near", default_k=k), requests, Accounting.FULL))
    return found


def law_after(model, token):
    return laws(model.logits_after([token]).unsqueeze(0), [Sampling()])


@pytest.mark.parametrize("rule", [SD(), NSD(0.7), NSD(0.9, max_deviation=0.1), RULES["lenience"](), RULES["cascade"]()])
def test_emitted_frequencies_follow_the_exact_law_at_the_first_tested_position(rule):
    blocks = blocks_of(rule, 5000)
    first = {b.request: b for b in blocks if b.number == 1}
    # Requests of different batches share numbers; count every block 1 by its anchor instead.
    counts = np.zeros((6, 6))
    anchors = {}
    for b in blocks:
        if b.number == 0:
            anchors[b.request] = b.committed[0].token
        elif b.number == 1:
            counts[anchors[b.request], b.committed[0].token] += 1
    assert first and counts.sum() == 5000
    for anchor in range(6):
        p, q = law_after(TARGET, anchor), law_after(DRAFT, anchor)
        expected = rule.emitted(p, q)[0].numpy() * counts[anchor].sum()
        used = expected > 5
        observed = np.append(counts[anchor][used], counts[anchor][~used].sum())
        wanted = np.append(expected[used], expected[~used].sum())
        keep = wanted > 0
        p_value = stats.chisquare(observed[keep], wanted[keep] * observed[keep].sum() / wanted[keep].sum()).pvalue
        assert p_value > FALSE_ALARM / (5 * 6)


def test_rescues_are_as_frequent_as_the_mean_excess():
    # With the same x and u, {SD rejects, NSD accepts} is exactly the event of a rescue.
    blocks = blocks_of(NSD(0.8), 6000, k=3, length=8)
    tested = [t for b in blocks for t in b.tested]
    rescued = sum(t.origin is Origin.RESCUED for t in tested)
    expected = sum(t.ES for t in tested)
    variance = sum(t.ES * (1 - t.ES) for t in tested)
    z = stats.norm.isf(FALSE_ALARM / 2)
    assert len(tested) > 10_000
    assert abs(rescued - expected) <= z * variance**0.5 + 1


def test_the_replacement_does_not_depend_on_which_token_was_rejected():
    blocks = blocks_of(SD(), 12_000, k=1, length=3)
    anchors = {}
    tables = {}
    for b in blocks:
        if b.number == 0:
            anchors[b.request] = b.committed[0].token
        elif b.tested and b.tested[0].origin is Origin.REJECTED:
            table = tables.setdefault(anchors[b.request], np.zeros((6, 6)))
            table[b.tested[0].token, b.committed[0].token] += 1
    checked = 0
    for table in tables.values():
        kept = table[table.sum(1) > 30][:, table.sum(0) > 30]
        if min(kept.shape, default=0) >= 2:
            checked += 1
            assert stats.chi2_contingency(kept).pvalue > FALSE_ALARM / 6
    assert checked >= 2


def test_acceptance_is_one_minus_rejection_plus_excess():
    blocks = blocks_of(NSD(0.8), 3000, k=2, length=6)
    tested = [t for b in blocks for t in b.tested]
    accepted = sum(t.origin is not Origin.REJECTED for t in tested)
    chance = torch.tensor([1 - t.R + t.ES for t in tested], dtype=torch.float64)
    z = stats.norm.isf(FALSE_ALARM / 2)
    assert abs(accepted - chance.sum()) <= z * (chance * (1 - chance)).sum().sqrt() + 1
