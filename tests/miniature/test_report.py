"""Cells go on after a kill, and every number of the document is a plain sum over stored rows."""

import random
from dataclasses import replace

import pytest

from benchmarks.miniature.cells import AR, AR_TOP_P, THETAS, Cell, match, nsd, relaxed, sd
from benchmarks.miniature.changes import change_of, joint, mean_change
from benchmarks.miniature.claims import FAILS, HOLDS, OPEN, claims, verdict_of
from benchmarks.miniature.evaluate import SUMS
from benchmarks.miniature.family import by_level, tops
from benchmarks.miniature.lessons import at_equal_calls, correlation, lessons
from benchmarks.miniature.numbers import Book, Measured
from benchmarks.miniature.report import About, report
from nsd.bench.stats import Estimate

PAIR = ("toy", "mini-math", "draft-model:matched")


def fake(arm, n=300, seed=0, chance=0.5, blocks=40):
    """Rows of a cell that was never decoded."""
    draw = random.Random(f"{arm}/{seed}")
    rows = []
    for index in range(n):
        drafted, rejected = draw.randint(60, 90), draw.randint(3, 9)
        sums = [
            float(drafted),
            float(rejected),
            2.0,
            9.5,
            1.25,
            0.75,
            rejected / 2,
            float(rejected - 1),
            1.0,
            2.0,
            1.0,
            1.0,
        ]
        rows.append(
            {
                "index": index, "id": f"p{index}", "correct": draw.random() < chance, "nll": draw.gauss(30, 3),
                "text": "", "finish": "eos", "seconds": 0.01, "output_tokens": 81, "prefill_tokens_out": 1,
                "blocks": blocks if arm.k else 80, "content": sums, "phrasing": [2 * value for value in sums],
            }
        )  # fmt: skip
    return Measured(Cell(*PAIR[:2], PAIR[2] if arm.k else None, arm), rows)


@pytest.fixture
def book():
    arms = (sd(6), *(nsd(6, theta) for theta in THETAS), *(nsd(3, theta) for theta in THETAS), sd(3), match(6))
    caps = (nsd(6, cap=0.1), *relaxed(6))
    measured = [fake(arm, chance=0.6 if arm == sd(6) else 0.4) for arm in (AR, AR_TOP_P, *arms, *caps)]
    return Book([m if m.cell.arm.k != 6 or m.cell.arm == sd(6) else fake(m.cell.arm, blocks=20) for m in measured])


def cells_of(text, title, first):
    """The row that begins with `first` in the first table after a title, by column."""
    part = text.split(title, 1)[1]
    lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("|")]
    head = lines[0]
    return dict(zip(head, next(line for line in lines if first in line), strict=True))


def test_cells_of_the_document_are_sums_over_rows(book):
    text = report(book, About("Run for a test.", {}, 0))
    for arm in (sd(6), nsd(6, 0.8)):
        rows = book.cells[Cell(*PAIR, arm)].rows
        shown = cells_of(text, "## Thresholds", f"{arm.speaks}, K=6")
        assert shown["score"].split()[0] == f"{100 * sum(r['correct'] for r in rows) / len(rows):.1f}"
        assert shown["calls/token"] == f"{sum(r['blocks'] for r in rows) / (80 * len(rows)):.4f}"
        tested = sum(r["content"][0] + r["phrasing"][0] for r in rows)
        assert shown["mean ES"] == f"{3 * 1.25 * len(rows) / tested:.4f}"
        assert shown["mean R"] == f"{3 * 9.5 * len(rows) / tested:.4f}"
        assert shown["spent"] == f"{3 * 0.75 * len(rows) / tested:.4f}"
        assert shown["ES content"] == f"{1.25 * len(rows) / sum(r['content'][0] for r in rows):.4f}"
    base, relaxed_rows = (book.cells[Cell(*PAIR, arm)].rows for arm in (sd(6), nsd(6, 0.8)))
    less = 100 * (sum(r["correct"] for r in relaxed_rows) - sum(r["correct"] for r in base)) / len(base)
    assert cells_of(text, "## Thresholds", "NSD 0.8, K=6")["- SD"].split()[0] == f"{less:.1f}"


def test_the_rejected_in_the_nucleus_are_counted_over_all_rejected(book):
    rows = book.cells[Cell(*PAIR, sd(6))].rows
    wanted = sum(r["content"][6] + r["phrasing"][6] for r in rows) / sum(
        r["content"][1] + r["phrasing"][1] for r in rows
    )
    shown = cells_of(report(book, About("", {}, 0)), "## Where SD rejects", ", ".join(PAIR))
    assert shown["rejected, in .95 nucleus"] == f"{wanted:.3f}"
    assert SUMS[6] == "rejected_in_95"


def test_what_was_not_measured_is_said():
    few = Book([fake(AR), fake(sd(6))])
    text = report(few, About("Run for a test.", {}, 123))
    assert "123 cells of the full plan are **not measured**" in text
    assert text.count("Not measured in this run.") >= 4
    assert "Nothing has been measured yet." in report(Book([]), About("", {}, 5))


def test_verdicts_follow_the_intervals():
    def e(low, high):
        return Estimate((low + high) / 2, low, high, 100)

    assert verdict_of([e(0.1, 0.2), e(0.3, 0.4)], 0) == HOLDS
    assert verdict_of([e(0.1, 0.2), e(-0.3, 0.4)], 0) == OPEN
    assert verdict_of([e(0.1, 0.2), e(-0.3, -0.1)], 0) == FAILS
    assert verdict_of([e(-0.2, -0.1)], 0, falls=True) == HOLDS
    assert verdict_of([Estimate(0.1, None, None, 3)], 0) == verdict_of([], 0) == OPEN


def test_claims_see_what_was_put_into_the_rows(book):
    found = {claim.paper: claim for claim in claims(book)}
    kept = [claim.verdict for paper, claim in found.items() if paper.startswith(("NSD keeps", "(no claim"))]
    assert kept == [FAILS, FAILS]  # 0.4 against 0.6
    longer = next(claim for paper, claim in found.items() if "accepted length is above" in paper)
    assert longer.verdict == HOLDS  # 20 blocks against 40
    assert len({claim.verdict for claim in found.values()} - {HOLDS, FAILS, OPEN}) == 0


def test_lessons_name_the_sign_and_the_price(book):
    text = lessons(book)
    assert "NSD at 0.95 **lowers the score** in 1 of 1 pairs.\n  - toy, mini-math, draft-model:matched: -" in text
    assert "50% of calls saved (n 300)" in text  # 20 blocks against 40
    assert "**A drafter that has the target's own habits**: whether any theta is cheap cannot be told" in text
    assert "has other habits**: cannot be told; no pair was measured." in text
    assert "no mechanism was measured in both variants" in text
    assert lessons(Book([])) == ""


def graded(arm, right, blocks, es, n=4000, drafter=PAIR[2]):
    """Rows of which the first `right` are right; blocks and ES at content tokens are those of every row."""
    rows = [
        {
            "index": i, "id": f"p{i}", "correct": i < right, "nll": 30.0, "text": "", "finish": "eos", "seconds": 0.01,
            "output_tokens": 81, "prefill_tokens_out": 1, "blocks": blocks,
            "content": [10.0, 0, 0, 0, 10 * es, *[0.0] * 7], "phrasing": [10.0, 0, 0, 0, 0.1 * blocks, *[0.0] * 7],
        }
        for i in range(n)
    ]  # fmt: skip
    return Measured(Cell(*PAIR[:2], drafter, arm), rows)


def test_the_rule_of_thumb_is_the_highest_threshold_before_one_that_loses():
    right = dict(zip(THETAS, (3000, 3000, 3000, 2700, 2500), strict=True))
    cells = [graded(sd(6), 3000, 40, 0.0)]
    cells += [graded(nsd(6, t), right[t], 38 - i, (3000 - right[t]) / 1e4) for i, t in enumerate(THETAS)]
    cells += [graded(nsd(6, cap=cap), 3000, 35, 0.0) for cap in (0.02, 0.05)]
    other = "draft-model:mismatched"
    cells += [graded(sd(6), 3000, 40, 0.0, drafter=other), graded(nsd(6), 2000, 30, 0.05, drafter=other)]
    text = lessons(Book(cells))
    assert "theta up to 0.9 is cheap (there: 1 pair); the score is lowered at theta 0.95 in 1 of 1, at 0.99 in" in text
    assert cells_of(text, "### Rule of thumb", "0.5")["the same pairs at 0.95"].startswith("-7.5 [")
    row = cells_of(text, "### Rule of thumb", "0.95")
    assert row["mean change, points"].startswith("-7.5 [") and row["calls saved"] == "12%"  # 38 - 3 blocks of 40
    assert "the two do not overlap" in text  # ES of cells that keep: 0; of cells that lose: 0.03 and more
    # 35 blocks are those of theta 0.95, which has 300 right answers fewer
    assert "surely better in 2 of 2 settings" in text and "NSD 0.95, cap 0.02" in text
    assert "other habits change it by -17.5 more" in text  # -25 against -7.5
    assert "cannot be told from 6 cells" in text
    lost = [graded(sd(6), 3000, 40, 0.0), *(graded(nsd(6, theta), 2800, 30, 0.01) for theta in THETAS)]
    assert "no measured theta is cheap; the score is lowered at theta 0.5 in 1 of 1" in lessons(Book(lost))


def test_a_pair_is_judged_jointly_and_the_mean_by_problem():
    cells = [graded(sd(6), 3000, 40, 0.0), graded(nsd(6), 2980, 30, 0.0)]
    alone = change_of(Book(cells), PAIR)
    assert alone.sign() == "lowered" and alone.sign(joint(1)) == "lowered"
    assert joint(1) == pytest.approx(1) and joint(100) > 1.7
    other = "draft-model:mismatched"  # gains what the first one loses, on other problems
    cells += [graded(sd(6), 3000, 40, 0.0, drafter=other), graded(nsd(6), 3020, 30, 0.0, drafter=other)]
    book = Book(cells)
    mean = mean_change([change_of(book, PAIR), change_of(book, (*PAIR[:2], other))])
    assert mean.value == pytest.approx(0) and mean.low == pytest.approx(-mean.high)
    # 40 of 4,000 problems change by a half either way, 3,960 not at all
    assert mean.high == pytest.approx(1.96 * (40 * 0.25 / 4000 / 4000) ** 0.5, rel=1e-3)


@pytest.mark.parametrize(("es", "said"), [(0.021, True), (0.03, False)])
def test_nearly_the_same_deviation_may_raise_and_lower(es, said):
    other = "draft-model:mismatched"
    cells = [graded(sd(6), 3000, 40, 0.0), graded(nsd(6), 3100, 30, 0.02)]
    cells += [graded(sd(6), 3000, 40, 0.0, drafter=other), graded(nsd(6), 2900, 30, es, drafter=other)]
    assert ("not in which direction" in lessons(Book(cells))) == said
    assert "not in which direction" not in lessons(Book(cells[:2]))


def test_the_mean_over_pairs_uses_every_problem_of_every_pair():
    other = "draft-model:mismatched"
    cells = [graded(sd(6), 3000, 40, 0.0), graded(nsd(6), 2960, 30, 0.0)]  # -1 point of 4,000
    cells += [graded(sd(6), 48, 40, 0.0, n=64, drafter=other), graded(nsd(6), 49, 30, 0.0, n=64, drafter=other)]
    book = Book(cells)
    both = [change_of(book, PAIR), change_of(book, (*PAIR[:2], other))]
    mean = mean_change(both)
    assert mean.value == pytest.approx((-0.01 + 1 / 64) / 2)
    # Each pair alone, independent but for the 64 problems that they share: on those the first does not change.
    spread = sum(x * (1 - x) / n for x, n in ((0.01, 4000), (1 / 64, 64))) / 4
    assert mean.high - mean.value == pytest.approx(1.96 * spread**0.5, rel=0.02)
    few = Book([graded(sd(6), 2, 40, 0.0, n=4), graded(nsd(6), 2, 30, 0.0, n=4)])
    assert mean_change([change_of(few, PAIR)]).low is None and "theta up to" not in lessons(few)


def test_lower_levels_stand_beside_the_rule_and_not_in_it():
    """A weak target that gains much changes neither the rule nor what is said of the paper's mean."""
    high = [graded(sd(6), 3000, 40, 0.0), graded(nsd(6), 3000, 30, 0.0)]
    low = [graded(sd(6), 1000, 40, 0.0), graded(nsd(6), 1800, 30, 0.0)]
    named = [(high, "toy-high"), (low, "toy-low")]
    book = Book([Measured(replace(m.cell, target=name), m.rows) for cells, name in named for m in cells])
    text = lessons(book)
    assert "theta up to 0.95 is cheap (there: 1 pair)" in text
    assert "**A target that is still weak**: +20.0 [" in text and "(mean over 1 pair of lower levels)" in text
    assert cells_of(text, "### Rule of thumb", "matched")["mean change, points"].startswith("+0.0")
    kept = next(c for c in claims(book) if c.paper.startswith("NSD keeps the task's score"))
    assert kept.verdict == HOLDS and "over 1 pairs of the most accurate targets: +0.0" in kept.ours


def test_pairs_of_two_tasks_are_independent():
    cells = [graded(sd(6), 3000, 40, 0.0), graded(nsd(6), 2960, 30, 0.0)]
    alike = [Measured(replace(m.cell, target="x"), m.rows) for m in cells]
    apart = [Measured(replace(m.cell, task="mini-code"), m.rows) for m in cells]
    book = Book([*cells, *alike, *apart])
    one, same, far = (change_of(book, pair) for pair in (PAIR, ("x", *PAIR[1:]), (PAIR[0], "mini-code", PAIR[2])))
    width = {n: mean_change(c).high - mean_change(c).value for n, c in enumerate(([one], [one, same], [one, far]))}
    assert width[1] == pytest.approx(width[0]) and width[2] == pytest.approx(width[0] / 2**0.5)


def test_a_correlation_has_an_interval_and_needs_cells():
    r, low, high = correlation([1, 2, 3, 4, 5, 6, 7, 8], [1, 2.1, 2.9, 4, 5.2, 5.9, 7, 8])
    assert r > 0.99 and 0.9 < low < r < high <= 1
    assert correlation([1, 1, 1, 1], [1, 2, 3, 4]) == (0.0, -1.0, 1.0)


def test_equal_calls_are_found_between_two_thresholds():
    plain = [graded(sd(6), 3000, 40, 0), graded(nsd(6), 2600, 20, 0)]
    found = at_equal_calls(graded(nsd(6, cap=0.1), 3000, 30, 0), plain)
    assert found.value == pytest.approx(0.05) and found.low > 0  # half of 400 answers of 4,000
    assert at_equal_calls(graded(nsd(6, cap=0.1), 3000, 41, 0), plain) is None


def test_the_shape_of_table_1_comes_first_and_names_what_was_reached(book):
    text = report(book, About("Run for a test.", {}, 0))
    assert text.index("## The shape of Table 1") < text.index("## Claims")
    shown = cells_of(text, "## The shape of Table 1", "separate model, matched, K=6")
    assert shown["over SD"] == "2.00" and shown["n"] == "300" and shown["τ of NSD"] == "4.00"
    cells = [Measured(replace(m.cell, target="x-low"), m.rows) for m in book.cells.values()]
    text = report(Book(cells), About("", {"x-low": {"parameters": "3", "training": "", "accuracy": 0.61}}, 0))
    assert "x-low 61% (aim 50%)" in text


def test_a_drafter_of_several_targets_shows_what_level_and_size_change(book):
    assert "No kind of drafter was measured on more than one target." in report(book, About("", {}, 0))
    cells = [Measured(replace(m.cell, target="x-7m"), m.rows) for m in book.cells.values()]
    text = report(Book([*book.cells.values(), *cells]), About("", {"x-7m": {"parameters": "7"}}, 0))
    shown = cells_of(text, "## Levels and sizes", "x-7m")
    assert shown["parameters"] == "7" and shown["NSD over SD"] == "2.00" and shown["τ of SD"] == "2.00"


def test_thresholds_stand_beside_the_skill_of_their_target():
    """Levels in their order, a dash where nothing was measured, no row for fewer than three thresholds."""
    plain = replace(graded(sd(6), 3200, 81, 0.0).cell, drafter=None, arm=AR)
    cells = [
        graded(sd(6), 3000, 40, 0.0),
        *(graded(nsd(6, t), r, 30, 0.0) for t, r in ((0.5, 3040), (0.9, 3000), (0.99, 2600))),
    ]
    cells.append(Measured(plain, cells[0].rows))
    low = [Measured(replace(m.cell, target="toy-low"), m.rows) for m in cells]
    high = [Measured(replace(m.cell, target="toy-high"), m.rows) for m in cells]
    text = report(Book([*high, *low, *(m for m in cells if m.cell.arm.theta != 0.5)]), About("", {}, 0))
    part = text.split("NSD less SD in points, by threshold:")[1].split("## Thresholds")[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| mini-math")]
    assert [row[2] for row in rows] == ["toy-low", "toy-high"]
    assert [value.split(" ")[0] for value in rows[0][3:]] == ["75.0", "+1.0", "-", "+0.0", "-", "-10.0"]


def test_the_short_table_has_the_highest_level_though_it_was_measured_first(book):
    levels = [Measured(replace(m.cell, target=t), m.rows) for t in ("x-high", "x-low") for m in book.cells.values()]
    text = report(Book(levels), About("", {}, 0))
    short = text.split("## The shape of Table 1")[1].split("## Claims")[0]
    assert "| x-high |" in short and "| x-low |" not in short
    shown = text.split("## Levels and sizes")[1].split("## Thresholds")[0]
    assert 0 < shown.index("| x-low |") < shown.index("| x-high |")


def test_the_top_of_a_shape_is_its_highest_level_in_whatever_order_cells_were_measured():
    found = ["b-high", "a-middle", "b-low", "a-low", "tiny", "b-middle"]
    assert by_level(found) == ["b-low", "b-middle", "b-high", "a-low", "a-middle", "tiny"]
    assert tops(found) == ["b-high", "a-middle", "tiny"]
