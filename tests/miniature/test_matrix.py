"""The matrix of cells, and runs of it that were killed: what is there stays, what is missing is made."""

import json
import re
from dataclasses import replace

import pytest

from benchmarks.miniature import evaluate
from benchmarks.miniature.cells import THETAS, Cell, nsd, sd
from benchmarks.miniature.evaluate import Work, answer, read_rows
from benchmarks.miniature.family import Manifest
from benchmarks.miniature.matrix import TASKS, matrix
from benchmarks.miniature.stages import Scale, measure, stored, write_report
from nsd.api import load
from tests.miniature.models import written


def test_the_matrix_has_what_the_paper_has():
    names = ("draft-model:matched", "draft-model:mismatched", "eagle3:matched", "nemotron:matched", "dflash:mismatched")
    drafters = {f"{t}/{name}": "x" for t in ("t-low", "t-high") for name in (*names, "mtp:matched")}
    second = Manifest({"t-high": "x", "s-high": "x"}, {**drafters, "s-high/eagle3:matched": "x"}, {})
    of_second = {
        one.cell.arm.theta for one in matrix(second) if (one.cell.target, one.cell.arm.rule) == ("s-high", "nsd")
    }
    assert of_second == {0.95}  # thresholds of heads are for the first top alone
    wanted = matrix(Manifest({"t-low": "x", "t-high": "x"}, drafters, {}))
    cells = [one.cell for one in wanted]
    assert len(cells) == len(set(cells)) == len({cell.key for cell in cells})
    assert {cell.seed for cell in cells} == {0, 1, 2, 3, 4}
    for drafter in {name.partition("/")[2] for name in drafters}:
        mine = [cell for cell in cells if cell.drafter == drafter and cell.target == "t-high"]
        deep = drafter.startswith(("draft", "nemotron", "mtp"))
        assert {cell.task for cell in mine} == {"mini-math", "mini-code"}
        assert {(cell.task, cell.arm.theta) for cell in mine} >= {(t, e) for t in TASKS for e in THETAS}
        assert any(cell.arm.rule == "fading-nsd" for cell in mine) == deep
        native = drafter.startswith(("nemotron", "dflash"))
        assert any(cell.arm.rule == "sample-and-match" for cell in mine) == native
        assert (len({dict(cell.arm.numbers).get("max_deviation") for cell in mine}) >= 4) == deep
        assert ({"lenience", "typical", "topk"} <= {cell.arm.rule for cell in mine}) == deep
        assert ({cell.seed for cell in mine} == set(range(5))) == drafter.endswith(":matched")
        lower = {c.arm.theta for c in cells if (c.target, c.drafter, c.arm.rule) == ("t-low", drafter, "nsd")}
        assert lower == (set(THETAS) if deep else set())
    assert {cell.arm.k for cell in cells if cell.drafter == "mtp:matched"} == {1, 2}
    plain = {(cell.arm.temperature, cell.arm.top_p) for cell in cells if cell.drafter is None}
    assert plain == {(1, 1), (0, 1), (1, 0.95)}
    assert {cell.target for cell in cells} == {"t-low", "t-high"}
    groups = list(dict.fromkeys(one.group for one in wanted))
    assert groups[:4] == ["table 1", "thresholds", "second task", "caps"]
    scale = Scale(count=4096, others=512)
    assert {scale.of(one) for one in wanted if one.group in groups[:2]} == {4096}
    assert {scale.of(one) for one in wanted if one.group not in groups[:2]} == {512}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Random models, batches of four, short answers."""
    from nsd.bench.tasks.mini_math import MiniMath

    monkeypatch.setattr(evaluate, "BATCH", 4)
    monkeypatch.setattr(MiniMath, "max_new_tokens", 12)
    target, draft = (str(written(name, tmp_path / name)) for name in ("tiny-qwen3", "tiny-draft"))
    return Manifest({"tiny": target}, {"tiny/draft-model:matched": draft}, {}), tmp_path / "run"


def test_a_killed_cell_goes_on_where_it_was(folder, tmp_path):
    manifest, _ = folder
    pair = load(manifest.targets["tiny"], manifest.drafters["tiny/draft-model:matched"], dtype="float32")
    cell = Cell("tiny", "mini-math", "draft-model:matched", nsd(3))
    whole = [timeless(row) for row in answer(Work(cell, pair, 10, tmp_path / "whole.jsonl"))]
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    for name, kept in (("between", lines[:4]), ("within", [*lines[:5]]), ("in a line", [*lines[:6], lines[6][:25]])):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(kept))
        assert [timeless(row) for row in answer(Work(cell, pair, 10, path))] == whole
        assert [timeless(row) for row in read_rows(path)] == whole


def timeless(row):
    return {name: value for name, value in row.items() if name != "seconds"}


def test_a_killed_run_of_the_matrix_goes_on_and_reports(folder, tmp_path):
    manifest, run = folder
    scale = Scale(count=4, tasks=("mini-math",))

    class Killed(BaseException):
        pass

    def watch(line):
        told.append(line)
        if sum(one.startswith("done: ") for one in told) == 4:
            raise Killed

    told = []

    with pytest.raises(Killed):
        measure(manifest, run, scale, True, None, watch)
    half = {path.name: path.read_bytes() for path in (run / "cells").glob("*.jsonl")}
    assert len(half) == 4
    told = []
    measure(manifest, run, scale, True, None, told.append)
    assert all((run / "cells" / name).read_bytes() == content for name, content in half.items())
    cells = [one.cell for one in matrix(manifest, ("mini-math",), quick=True)]
    assert told[0].startswith(f"{len(cells) - 4} cells to measure") and re.search(r"about \d+ min left of all", told[1])
    assert {m.cell for m in stored(run)} == set(cells)
    write_report(manifest, run, scale, tmp_path / "out.md", "Run for a test.")
    text = (tmp_path / "out.md").read_text()
    row = next(m for m in stored(run) if m.cell.arm == sd(6))
    assert f"{sum(r['blocks'] for r in row.rows) / sum(r['output_tokens'] - 1 for r in row.rows):.4f}" in text
    planned = len(matrix(manifest, ("mini-math",)))
    assert f"{planned - len(cells)} cells of the full plan are **not measured**" in text
    more = replace(scale, count=8)  # cells with half of their rows are shown, so they are not among the missing
    write_report(manifest, run, more, tmp_path / "more.md", "Run for a test.")
    assert (tmp_path / "more.md").read_text() == text
    again = []
    measure(manifest, run, scale, True, None, again.append)
    assert again == ["0 cells to measure, about 0 min"]


def test_minutes_end_a_run_early(folder):
    manifest, run = folder
    told = []
    measure(manifest, run, Scale(count=4, tasks=("mini-math",)), True, 1e-9, told.append)
    assert "cells left after" in told[-1]


def test_a_manifest_moves_with_its_folder(tmp_path):
    Manifest({"t": str(tmp_path / "a" / "t")}, {"t/x:matched": str(tmp_path / "a" / "d")}, {"t": {}}).write(
        tmp_path / "a"
    )
    assert json.loads((tmp_path / "a" / "manifest.json").read_text())["targets"] == {"t": "t"}
    (tmp_path / "a").rename(tmp_path / "b")
    assert Manifest.read(tmp_path / "b").targets == {"t": str(tmp_path / "b" / "t")}
