"""Figures of a row from answers made by hand, and the refusal of rows that tell half of it."""

from dataclasses import fields, replace

import pytest

from benchmarks.local.cells import ar, llama, nsd, sd, transformers
from benchmarks.local.rows import InvalidRow, require_whole, row_of, rows_of, speed_up
from benchmarks.local.samples import Store

from .worlds import fill, valid

PLAIN, SD, NSD = ar("int8", 1.0), sd("int8", 3, 1.0), nsd("int8", 3, 1.0)


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    fill(store, PLAIN, 1, 9.0)
    fill(store, SD, 1, 10.0)
    fill(store, NSD, 3, 10.0, es=0.25)
    return store


def test_figures(store):
    plain, standard, row = valid(store, PLAIN, SD, NSD)
    assert row.tau.value == 3 and row.sd_tau == 1 and standard.sd_tau == standard.tau.value and plain.sd_tau is None
    assert row.rate.value == pytest.approx(100 / 0.34) and row.decode_rate.value == pytest.approx(99 / 0.33)
    assert (row.ES, row.spent, row.ES_is) == (0.25, 0.25, "exact")
    assert row.ms == {"draft": 1.0, "verify": 8.0, "decision": 0.5, "rest": 0.5}
    assert row.decision_share == pytest.approx(0.05)
    assert row.kept_by_depth == (1.0, 16 / 33, 0.0)
    assert row.log_p.value == pytest.approx(-4.5) and row.delta["log p"].value == pytest.approx(-2.5)
    # Two different ids (one for prompt 7), and two kinds of pairs.
    assert row.distinct[0].value == pytest.approx((39 * 2 + 1) / 4000)
    assert row.distinct[1].value == pytest.approx((39 * 2 + 1) / 3960)
    assert (row.length.value, row.prompts, row.tokens) == (100, 40, 4000)


def test_intervals_are_paired(store):
    faster = speed_up(NSD, PLAIN, store)
    assert faster.value == pytest.approx((99 * 0.009 + 0.01) / 0.34)
    assert faster.low == pytest.approx(faster.value) and faster.high == pytest.approx(faster.value)
    assert speed_up(NSD, PLAIN, store, decode_only=True).value == pytest.approx(2.7)


def test_a_cap_is_told_by_what_was_spent(store):
    capped = nsd("int8", 3, 1.0, cap=0.1)
    fill(store, capped, 3, 10.0, es=0.25)
    (row,) = valid(store, capped)
    assert (row.ES, row.spent) == (0.25, pytest.approx(0.1))


def test_without_full_accounting_the_cost_is_called_an_estimate(store):
    for key, sample in list(store.samples.items()):
        store.samples[key] = replace(sample, evaluated=0, sum_ES=0.0, sum_eps=0.0)
    row = row_of(NSD, store)
    assert row.ES == pytest.approx(1 / 3) and row.ES_is == "estimated by the rescue rate"


@pytest.mark.parametrize("lacking", ["sd_tau", "ES", "spent", "ms", "decision_share", "decode_rate"])
def test_a_row_without_what_belongs_beside_a_speed_is_refused(store, lacking):
    row = row_of(NSD, store)
    require_whole(row)
    with pytest.raises(InvalidRow, match=lacking):
        require_whole(replace(row, **{lacking: None}))


@pytest.mark.parametrize("lacking", ["log_p", "entropy", "length", "tau", "rate"])
def test_a_row_whose_figure_is_no_number_is_refused(store, lacking):
    row = row_of(NSD, store)
    with pytest.raises(InvalidRow, match=lacking):
        require_whole(replace(row, **{lacking: replace(row.rate, value=float("nan"))}))


def test_nucleus_rows_need_their_partner_and_plain_decoding(tmp_path):
    store = Store(tmp_path)
    fill(store, NSD, 3, 10.0, es=0.25)
    rows, refused = rows_of([NSD], store, 32, 3000)
    assert not rows and "sd_tau" in refused[NSD.name] and "difference in distinct-2" in refused[NSD.name]


def test_a_row_of_too_few_prompts_or_without_scores_is_refused(tmp_path, store):
    few = Store(tmp_path / "few")
    fill(few, PLAIN, 1, 9.0, prompts=31)
    with pytest.raises(InvalidRow, match="31 prompts and 3100 tokens, wanted 32 and 3000"):
        require_whole(row_of(PLAIN, few))
    store.scores.pop((PLAIN.name, 3))
    with pytest.raises(InvalidRow, match="no scores"):
        row_of(PLAIN, store)
    with pytest.raises(InvalidRow, match="no samples"):
        row_of(ar("int4", 1.0), store)


def test_peers_need_no_blocks_but_all_the_rest(store):
    for cell in (ar("bfloat16", 1.0), transformers(1.0), llama(1, 1.0)):
        fill(store, cell, 1, 20.0)
    theirs, other = valid(store, transformers(1.0), llama(1, 1.0))
    assert theirs.decode_rate is None and theirs.ms is None and theirs.tau.value == 1
    assert other.decode_rate.value == pytest.approx(50)
    assert set(theirs.as_json()) == {"name"} | {f.name for f in fields(theirs)}
