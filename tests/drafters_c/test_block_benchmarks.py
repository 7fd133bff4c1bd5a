"""The two block benchmarks run through every mechanism on tiny models."""

import pytest

from benchmarks import drafters, gpu_blocks
from benchmarks.random_pairs import MECHANISMS

NAMES = {"nemotron": 31, "dspark": 7, "dflash": 15, "eagle3": 7, "mtp": 2}


def run(main, capsys, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["benchmark.py", *arguments])
    main()
    return capsys.readouterr().out.splitlines()


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.filterwarnings("ignore")  # transformers says that its fast DeltaNet kernels are not installed
def test_drafters_prints_a_row_for_every_mechanism_and_the_cost_of_taps(capsys, monkeypatch):
    lines = run(drafters.main, capsys, monkeypatch, "--quick", "--threads", "1")
    assert lines[0].startswith("# ") and "torch" in lines[1]
    rows = [cells(line) for line in lines if line.startswith("| tiny")]
    assert {row[1]: int(row[2]) for row in rows[:-1]} == NAMES and set(NAMES) == set(MECHANISMS)
    assert all(float(x) > 0 for row in rows[:-1] for x in (row[4], row[6], row[7], row[8]))
    assert rows[-1][1] == "5 layers" and rows[-1][-1].endswith("%")


@pytest.mark.filterwarnings("ignore")
def test_gpu_blocks_takes_the_same_path_on_a_tiny_model(capsys, monkeypatch):
    lines = run(gpu_blocks.main, capsys, monkeypatch, "--tiny", "--prompt", "12", "--blocks", "2")
    rows = [cells(line) for line in lines if line.startswith("| ") and "mechanism" not in line]
    assert [(row[0], row[2]) for row in rows] == [(name, batch) for name in MECHANISMS for batch in ("1", "8")]
    assert all(float(x) > 0 for row in rows for x in row[3:7])


def test_gpu_blocks_says_what_to_type_where_there_is_no_gpu(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="--tiny"):
        run(gpu_blocks.main, capsys, monkeypatch)
