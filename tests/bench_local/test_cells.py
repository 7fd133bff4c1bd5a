"""Which cells are measured, in which order, and what has to stand beside each."""

import pytest

from benchmarks.local.cells import CAPS, TEMPERATURES, ar, chosen, fitting, goal_cells, llama, nsd, sd, transformers
from nsd.errors import ConfigError


def test_nucleus_cells_stand_beside_standard_ones_on_the_same_drafts():
    assert nsd("int8", 3, 0.7).partner() == sd("int8", 3, 0.7)
    assert nsd("int8", 3, 0.7, "0.6").partner() == sd("int8", 3, 0.7, "0.6")
    assert nsd("int8", 3, 0.7, cap=0.1).partner() == sd("int8", 3, 0.7)
    assert sd("int8", 3, 0.7).partner() is None
    assert llama(1, 0.7).baseline() == transformers(0.7).baseline() == ar("bfloat16", 0.7)


def test_names_tell_cells_apart():
    cells = chosen(["all"], ("int8", "bfloat16", "int4"), TEMPERATURES, range(1, 7))
    assert len({cell.name for cell in cells}) == len(cells) == len(set(cells))


def test_every_set_of_goal_cells_holds_its_own_partners():
    cells = goal_cells(("int8", "bfloat16", "int4"), TEMPERATURES)
    assert all(cell.partner() in cells for cell in cells if cell.rule == "nsd")
    assert all(cell.baseline() in cells for cell in cells)
    assert {cell.engine for cell in goal_cells((), (1.0,))} == {"transformers", "llama.cpp"}


def test_the_curve_holds_sharper_greedy_and_capped_arms():
    cells = chosen(["curve"], ("int8",), (1.0,), ())
    assert {cell.cap for cell in cells} == {None, *CAPS}
    assert {cell.draft for cell in cells} == {"same", "0.8", "0.6", "greedy"}


def test_unknown_sets_are_refused():
    with pytest.raises(ConfigError, match="wanted goals, k, curve or all"):
        chosen(["goal"], ("int8",), (1.0,), ())


def test_a_budget_is_spent_by_priority_and_never_splits_a_pair():
    cells = [ar("int8", 1.0), nsd("int8", 3, 1.0), llama(1, 1.0), nsd("int8", 4, 1.0)]
    seconds = dict.fromkeys([*cells, sd("int8", 3, 1.0), sd("int8", 4, 1.0), ar("bfloat16", 1.0)], 10.0)
    assert fitting(cells, seconds, 30) == [ar("int8", 1.0), sd("int8", 3, 1.0), nsd("int8", 3, 1.0)]
    assert fitting(cells, seconds, 49) == fitting(cells, seconds, 30)
    assert fitting(cells, seconds, 50)[3:] == [ar("bfloat16", 1.0), llama(1, 1.0)]
    del seconds[llama(1, 1.0)], seconds[ar("bfloat16", 1.0)]  # measured already: free of cost
    assert len(fitting(cells, seconds, 50)) == 7
