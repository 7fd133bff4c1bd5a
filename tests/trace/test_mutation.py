"""The audit by mutation, at 20 places of every field: with the hashes untouched, then with the hashes made anew."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsd.trace.document import MEANING, Checked
from tests.trace.mutation import Body, Place, at, bodies, broken, caught, changed, other, places, sealed, with_hashes

PLACES = 20
Loaded = list[tuple[list[Body], list[str]]]
Spots = dict[str, list[Place]]

LEVEL = {f"{kind.__name__}.{name}": level for kind, entry in MEANING.items() for name, (level, _) in entry.items()}
LAWS, MATCH = 4, 6
"""Which of the traces records whole laws, and which is of a rule without a ratio test."""
NESTED = {"Header.requests", "Footer.requests", "Block.tested", "Block.drawn", "Block.committed", "Block.timing"}
NESTED |= {"Tested.p_law", "Tested.q_law"}
"""Fields that hold other records; their own fields are mutated one by one."""


@pytest.fixture(scope="module")
def loaded(files: dict[str, Path]) -> Loaded:
    return [bodies(path.read_bytes()) for path in files.values()]


@pytest.fixture(scope="module")
def spots(loaded: Loaded) -> Spots:
    found: Spots = defaultdict(list)
    for i, (lines, _) in enumerate(loaded):
        for name, number, path in places(lines):
            found[name].append((i, number, path))
    return found


def by_field(spots: Spots) -> Spots:
    """The entries of a free-form mapping count as one field."""
    found: Spots = defaultdict(list)
    for name, all_places in spots.items():
        found[top(name)] += all_places
    return found


def chosen(spots: list[Place], name: str) -> list[Place]:
    return random.Random(name).sample(spots, min(PLACES, len(spots)))


def test_every_field_of_the_schema_is_mutated(spots: Spots) -> None:
    seen = {".".join(name.split(".")[:2]) for name in spots}
    empty = {"Header.block_length", "Header.dtype", "Header.device", "Header.versions", "Header.revision"}
    empty |= {"Header.machine", "Header.created"}
    assert seen | NESTED | empty == set(LEVEL)


def test_with_the_hash_untouched_every_field_is_caught(loaded: Loaded, spots: Spots) -> None:
    missed = []
    for name, all_places in by_field(spots).items():
        for i, number, path in chosen(all_places, name):
            lines, hashes = loaded[i]
            mutant = changed(lines, number, path, other(at(lines[number], path)))
            if not broken(with_hashes(mutant, hashes)):
                missed.append((name, i, number, path))
    assert not missed


def top(name: str) -> str:
    return ".".join(name.split(".")[:2])


def test_with_the_hash_remade_every_determined_field_is_caught(loaded: Loaded, spots: Spots) -> None:
    missed = []
    for name, all_places in spots.items():
        if LEVEL[top(name)] is not Checked.ALWAYS:
            continue
        for i, number, path in chosen(all_places, name):
            lines, _ = loaded[i]
            if not caught(sealed(changed(lines, number, path, other(at(lines[number], path))))):
                missed.append((name, i, number, path, at(lines[number], path)))
    assert not missed


def test_fields_listed_as_not_rederivable_are_listed_honestly(loaded: Loaded, spots: Spots) -> None:
    """Changing one of them, hash re-made, goes unnoticed (whole laws would determine some, so those are left out)."""
    for name, all_places in spots.items():
        if LEVEL[top(name)] is not Checked.NEVER:
            continue
        without_laws = [place for place in all_places if place[0] != LAWS]
        for i, number, path in chosen(without_laws, name)[:5]:
            lines, _ = loaded[i]
            assert not caught(sealed(changed(lines, number, path, other(at(lines[number], path))))), (name, i, path)


def flipped_p(t: Body) -> float:
    """A p at which the ratio test goes the other way."""
    product: float = t["u"] * t["q"]
    return 0.5 * product if product < t["p"] else 0.5 * (product + 1)


def flipped_q(t: Body) -> float:
    p, u = t["p"], max(t["u"], 1e-6)
    return float(2 * p / u if u * t["q"] < p else 0.5 * p / u)


def across(t: Body) -> float:
    """A mass on the other side of every threshold used here (0.95 and 0.8)."""
    return 0.999 if t["mass"] < 0.9 else 0.1


def beside(t: Body, below: str = "q_below", width: str = "q") -> float:
    """A start that moves the draw's interval away from its uniform."""
    return float(t[below] + t[width] + 1e-3)


TESTED: dict[str, tuple[Callable[[Body], bool], Callable[[Body], Any]]] = {
    "p": (lambda t: True, flipped_p),
    "q": (lambda t: True, flipped_q),
    "mass": (lambda t: True, across),
    "rank": (lambda t: True, lambda t: 1 if t["rank"] > 1 else 2),
    "R": (lambda t: True, lambda t: max(t["q"] - t["p"], 0) - 0.01),
    "q_below": (lambda t: True, beside),
    "q_mass": (lambda t: True, lambda t: t["q_mass"] * 1.01),
    "p_below": (lambda t: t["origin"] == "ratio", lambda t: beside(t, "p_below", "p")),
    "origin": (lambda t: True, lambda t: "ratio" if t["origin"] != "ratio" else "rejected"),
}
DRAWN: dict[str, tuple[Callable[[Body], bool], Callable[[Body], Any]]] = {
    "p": (lambda d: d["origin"] != "recovered", lambda d: d["p"] * 1.01),
    "weight": (lambda d: True, lambda d: d["p"] * 1.01 + 1e-3),
    "below": (lambda d: True, lambda d: beside(d, "below", "weight")),
}


@pytest.mark.parametrize("name", TESTED)
def test_a_tested_field_is_caught_where_it_alters_a_recomputed_value(loaded: Loaded, spots: Spots, name: str) -> None:
    ratio_rules = [place for place in spots[f"Tested.{name}"] if name not in ("p", "q") or place[0] != MATCH]
    check(loaded, ratio_rules, name, *TESTED[name])


@pytest.mark.parametrize("name", DRAWN)
def test_a_drawn_field_is_caught_where_it_alters_a_recomputed_value(loaded: Loaded, spots: Spots, name: str) -> None:
    check(loaded, spots[f"Drawn.{name}"], name, *DRAWN[name])


def check(
    loaded: Loaded, all_places: list[Place], name: str, applies: Callable[[Body], bool], change: Callable[[Body], Any]
) -> None:
    fitting = [place for place in all_places if applies(at(loaded[place[0]][0][place[1]], place[2][:-1]))]
    assert len(fitting) >= PLACES
    missed = []
    for i, number, path in random.Random(name).sample(fitting, PLACES):
        lines, _ = loaded[i]
        record = at(lines[number], path[:-1])
        if not caught(sealed(changed(lines, number, path, change(record)))):
            missed.append((i, number, path, record))
    assert not missed


HEADER = {
    "draft_law": ("nsd", (), "point"),
    "eos": ("nsd", (), [1]),
    "rule": ("nsd", ("requests", 0), "sd"),
    "numbers": ("nsd", ("requests", 0), {"theta": 0.01, "ties": "all"}),
    "k": ("nsd", ("requests", 0), 1),
    "max_new_tokens": ("capped", ("requests", 0), 5),
    "seed": ("nsd", ("requests", 1), 1),
    "key": ("nsd", ("requests", 1), 0),
    "agreement": ("budget", ("requests", 0), 0.6),
    "policy": ("budget", ("requests", 0), "greedy"),
}


@pytest.mark.parametrize("name", HEADER)
def test_a_setting_that_the_blocks_contradict_is_caught(files: dict[str, Path], name: str) -> None:
    trace, path, value = HEADER[name]
    lines, _ = bodies(files[trace].read_bytes())
    assert at(lines[0], (*path, name)) != value
    assert caught(sealed(changed(lines, 0, (*path, name), value)))


def test_the_cap_and_every_number_of_the_fidelity_report_are_caught(files: dict[str, Path]) -> None:
    unchecked = {"schema", "guarantee_basis", "ES_is"}
    for name in ("nsd", "capped", "budget", "sd"):
        lines, _ = bodies(files[name].read_bytes())
        last = len(lines) - 1
        for field, number, path in places(lines):
            key = field.removeprefix("RequestTotals.fidelity.")
            if number == last and key != field and key.split(".")[0] not in {*unchecked, "reasons"}:
                value = at(lines[number], path)
                assert caught(sealed(changed(lines, number, path, other(value)))), (name, key, value)
    lines, _ = bodies(files["capped"].read_bytes())
    assert caught(sealed(changed(lines, 0, ("requests", 0, "numbers", "max_deviation"), 0.2)))


def test_timings_of_a_shared_step_agree(files: dict[str, Path]) -> None:
    lines, _ = bodies(files["nsd"].read_bytes())
    for name in ("draft_s", "score_s", "decide_s", "commit_s"):
        assert caught(sealed(changed(lines, 1, ("timing", name), 1.0)))
    assert caught(sealed(changed(lines, 1, ("seconds_since_start",), 0.5)))
    assert caught(sealed(changed(lines, 1, ("committed", 0, "logprob"), -0.1)))


@pytest.mark.parametrize("name", ["mass", "rank", "R", "ES", "entropy_p", "entropy_q", "q_below", "p", "q"])
def test_whole_laws_determine_every_number(files: dict[str, Path], name: str) -> None:
    lines, _ = bodies(files["laws"].read_bytes())
    found = [(n, path) for field, n, path in places(lines) if field == f"Tested.{name}"]
    for number, path in random.Random(name).sample(found, PLACES):
        value = at(lines[number], path)
        assert caught(sealed(changed(lines, number, path, other(value)))), (number, path, value)


def test_a_changed_law_is_caught(files: dict[str, Path]) -> None:
    lines, _ = bodies(files["laws"].read_bytes())
    for field, value in (("p_law", 0.9), ("q_law", 0.9)):
        found = [(n, path) for name, n, path in places(lines) if name == "Law.rest" and field in path]
        for number, path in found[:PLACES]:
            assert caught(sealed(changed(lines, number, path, value)))
            pairs = at(lines[number], (*path[:-1], "top"))
            moved = [[pairs[1][0], pairs[0][1]], [pairs[0][0], pairs[1][1]], *pairs[2:]]
            if abs(pairs[0][1] - pairs[1][1]) > 1e-3:
                touched = changed(lines, number, (*path[:-1], "top"), moved)
                token = at(lines[number], path[:-2])["token"]
                assert caught(sealed(touched)) or token not in (pairs[0][0], pairs[1][0])
