"""Reached and missed goals, and the arithmetic of a missed one."""

import json

import pytest

from benchmarks.local import page
from benchmarks.local.cells import CAPS, ar, llama, nsd, sd, transformers
from benchmarks.local.curve import free, panels_of
from benchmarks.local.goals import default_ks, limit, lost, outcomes
from benchmarks.local.samples import Store

from .worlds import fill, valid

FACTS = {
    "created": "2026-11-30T07:00+00:00",
    "load": 0.1,
    "versions": {"torch": "2.13.0"},
    "hardware": {"cpu": "a CPU", "cores": 2, "threads": 2},
    "revision": "0123456789abcdef",
    "command": ["python", "-m", "benchmarks.local"],
}
CELLS = (
    ar("int8", 1.0),
    sd("int8", 3, 1.0),
    nsd("int8", 3, 1.0),
    ar("bfloat16", 1.0),
    transformers(1.0),
    llama(1, 1.0),
)


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    store.begin(FACTS, {"theta": 0.95})
    for cell, tau, ms in zip(CELLS, (1, 1, 3, 1, 1, 1), (9.0, 10.0, 10.0, 20.0, 25.0, 3.0), strict=True):
        fill(store, cell, tau, ms, es=0.3 if cell.rule == "nsd" else 0.0)
    return store


def test_verdicts(store):
    found = {one.figure: one for one in outcomes(valid(store, *CELLS), store)}
    assert found["tau of NSD at K=3"].verdict == "reached"
    assert found["tau of SD at K=3"].verdict == "missed"
    assert found["int8: NSD over the same loop's plain decoding"].verdict == "reached"
    assert found["int8: NSD over SD, best K each"].value == pytest.approx(1.0 / 0.34)
    assert found["best NSD over transformers generate (bfloat16)"].value == pytest.approx(2.485 / 0.34)
    beaten = found["best NSD over the best plain decoding of anybody"]
    assert beaten.verdict == "missed" and beaten.cells[1] == "llama.cpp Q4_1 1 threads T=1"
    share = found["int8: decision and accounting, share of a block"]
    assert (share.value, share.verdict) == (pytest.approx(0.05), "reached")
    assert found["bfloat16: NSD over the same loop's plain decoding"].verdict == "not measured"


def test_a_missed_goal_shows_its_arithmetic(store):
    rows = valid(store, *CELLS)
    said = limit(3.0, rows[2], rows[0])
    assert "draft 1.00 + verify 8.00 + decision 0.50 + rest 0.50 = 10.00 ms" in said
    assert "3.00 x 9.00 / 10.00 = 2.70x; 3x needs tau 3.33 at this block or a block of 9.00 ms" in said
    assert "with verification alone 3.37x (could still reach it)" in said
    assert "would not reach it" in limit(3.4, rows[2], rows[0])


def test_the_page_says_where_plain_decoding_wins(store):
    rows = valid(store, *CELLS)
    (sentence,) = lost(rows)
    assert sentence.startswith("At T=1 plain decoding wins: llama.cpp Q4_1 1 threads T=1 makes 326 tokens/s")
    assert lost(rows[:5]) == []


def test_the_default_k_is_the_fastest(store):
    for k, tau in ((4, 3), (5, 1)):
        fill(store, sd("int8", k, 1.0), 1, 10.0)
        fill(store, nsd("int8", k, 1.0), tau, 9.0, es=0.3)
    rows = valid(store, *CELLS, nsd("int8", 4, 1.0), nsd("int8", 5, 1.0))
    assert default_ks(rows) == [("int8", 4, "K=3 300, K=4 333, K=5 111")]


def test_page_and_document(store, tmp_path):
    for cap in CAPS:
        fill(store, nsd("int8", 3, 1.0, cap=cap), 1, 10.0, es=0.3)
    rows = valid(store, *CELLS, *(nsd("int8", 3, 1.0, cap=cap) for cap in CAPS))
    assert [len(arms) for arms in panels_of(rows).values()] == [2 + len(CAPS)]
    files = page.write(tmp_path / "page", rows, {"int4 ar T=1": "left out"}, store, quick=False)
    text = files[0].read_text(encoding="utf-8")
    assert "**missed**" in text and "plain decoding wins" in text and "- int4 ar T=1: left out" in text
    assert "| int8 nsd K=3 T=1 | 40 | 4000 |" in text and "-5.00 (-3.00 [-3.00, -3.00])" in text
    document = json.loads(files[1].read_text(encoding="utf-8"))
    assert len(document["rows"]) == len(rows) and document["sessions"][0]["revision"] == FACTS["revision"]
    assert files[2].read_text(encoding="utf-8").count("cap 0.05") == 1
    again = page.write(tmp_path / "page", rows, {}, store, quick=True)
    assert "none of its figures is one to quote" in again[0].read_text(encoding="utf-8")
    assert "not measured" in text
    aside = page.write(tmp_path / "page", rows, {}, store, quick=False, name="curve")
    assert [path.name for path in aside] == ["curve.md", "curve.json", "curve.svg"]
    text = aside[0].read_text(encoding="utf-8")
    assert text.startswith("# smollm2-135m on this machine: curve")
    assert "(curve.svg)" in text and "not measured" not in text and "**missed**" in text


def test_nobody_is_beaten_where_nobody_else_was_measured(store):
    rows = [row for row in valid(store, *CELLS) if row.cell.engine == "nsd"]
    found = {one.figure: one for one in outcomes(rows, store)}
    assert found["best NSD over the best plain decoding of anybody"].value is None


def test_labels_of_a_picture_stay_apart():
    assert free(5.0, [1.0, 9.0], 1.0) == 5.0
    assert free(5.0, [5.0, 5.5, 4.2], 1.0) == 6.5
    assert free(5.0, [5.0, 5.0], 0.0) == 5.0
