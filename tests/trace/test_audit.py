"""Clean traces pass, dishonest ones do not, and the audit stands on its own feet."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nsd.errors import TraceError
from nsd.events import Origin
from nsd.fidelity.budget import place_caps
from nsd.laws import Purpose, uniforms
from nsd.rules import RULES, RatioOrSet, make_rule
from nsd.trace.audit import SCOPE, audit
from nsd.trace.philox import ACCEPT, DRAFT, RESIDUAL, TARGET, uniform
from nsd.trace.read import parse, read_trace
from nsd.trace.record import lines
from nsd.trace.schema import Trace
from nsd.verification import DraftLaw
from tests.trace.mutation import Body, bodies, sealed
from tests.trace.world import decode


def recorded(run: object, folder: Path) -> Trace:
    return read_trace(run.record(folder / "t.jsonl"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(50))
def test_clean_traces_pass(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    rule = make_rule("nsd", theta=rng.choice([0.0, 0.3, 0.8, 0.95, 1.0]), ties=rng.choice(["all", "smallest"]))
    if seed % 3 == 0:
        rule = replace(rule, max_deviation=rng.choice([0.0, 0.01, 0.1, 0.5]))  # type: ignore[type-var]
    budget = {"agreement": rng.choice([0.5, 0.95]), "policy": rng.choice(["even", "greedy", "front"])}
    law = rng.choice(list(DraftLaw))
    run = decode(
        rule, law, seed=seed, k=rng.choice([1, 3, 6]), full_laws=rng.choice([0, 5, 16]), **budget if seed % 2 else {}
    )
    result = audit(recorded(run, tmp_path))
    assert result.findings == ()
    assert result.exit_code == 0
    assert result.counts["tested"] == result.counts["redecided"]


@pytest.mark.parametrize("law", DraftLaw)
@pytest.mark.parametrize("name", [name for name, kind in RULES.items() if not kind.untempered])
def test_every_rule_leaves_a_clean_trace(name: str, law: DraftLaw, tmp_path: Path) -> None:
    for seed in range(2):
        result = audit(read_trace(decode(name, law, seed=seed).record(tmp_path / f"{seed}.jsonl")))
        assert result.findings == ()
        settled = result.counts.get("redecided", 0) / max(result.counts["tested"], 1)
        assert settled == 1 or name in ("relative", "relaxed-topk", "cascade")
        assert settled > 0.3


@pytest.mark.parametrize("name", RULES)
def test_a_flipped_decision_is_caught_under_every_rule(name: str, tmp_path: Path) -> None:
    """The whole block is rewritten as if x had been rejected (or accepted), hash re-made."""
    trace = recorded(decode(name, seed=3, full_laws=16), tmp_path)
    before = audit(trace).counts.get("not_redecided", 0)
    for i, block in enumerate(trace.blocks):
        if len(block.tested) < 2 or block.tested[0].origin is Origin.REJECTED:
            continue
        t = replace(block.tested[0], origin=Origin.REJECTED, weight_factor=None)
        assert block.drawn is not None or block.finish_reason is not None
        drawn = block.drawn and replace(block.drawn, position=t.position, origin=Origin.RECOVERED)
        committed = (replace(block.committed[-1], origin=Origin.RECOVERED),)
        flipped = replace(block, tested=(t,), drawn=drawn, committed=committed)
        forged = replace(trace, blocks=(*trace.blocks[:i], flipped, *trace.blocks[i + 1 :]))
        result = audit(parse("".join(line + "\n" for line in lines(forged)).encode()))
        assert not result.clean
        wrong = {finding.field for finding in result.findings if f"block {block.number}, position" in finding.place}
        assert "origin" in wrong or before
        break


def test_a_q_that_was_not_drawn_from_is_caught(tmp_path: Path) -> None:
    caught = []
    for seed in range(10):
        result = audit(read_trace(decode("nsd", seed=seed, temper=1.5).record(tmp_path / f"{seed}.jsonl")))
        caught.append(any(finding.field == "q_below" for finding in result.findings))
    assert all(caught)


@pytest.mark.parametrize("lost", [1, 2, 5])
def test_a_truncated_tail_is_caught(files: dict[str, Path], lost: int) -> None:
    whole = files["nsd"].read_bytes()
    cut = b"".join(whole.splitlines(keepends=True)[:-lost])
    result = audit(parse(cut))
    assert result.exit_code == 1
    assert any(finding.field == "footer" for finding in result.findings)
    torn = audit(parse(whole[:-40]))
    assert {"footer", "line"} <= {finding.field for finding in torn.findings}
    kept = audit(parse(cut), unfinished=True)
    assert kept.clean
    assert any("no footer" in note for note in kept.notes)


def test_a_tail_cut_out_before_the_footer_is_caught_with_the_hash_remade(files: dict[str, Path]) -> None:
    found, _ = bodies(files["nsd"].read_bytes())
    for lost in (1, 3):
        result = audit(parse(sealed([*found[: -1 - lost], found[-1]])))
        assert {finding.field for finding in result.findings} >= {"blocks", "output_tokens"}


def test_a_swapped_or_lost_line_breaks_the_hash(files: dict[str, Path]) -> None:
    rows = files["sd"].read_bytes().splitlines(keepends=True)
    swapped = b"".join([*rows[:2], rows[3], rows[2], *rows[4:]])
    lost = b"".join([*rows[:4], *rows[5:]])
    for data in (swapped, lost):
        result = audit(parse(data))
        assert any(finding.field == "sha256" for finding in result.findings)
        assert result.exit_code == 1


def charge(lines_of: list[Body], when: str) -> list[Body]:
    """A policy that looks right: charge only where a rescue happened, or only where the ratio test failed."""
    forged = copy.deepcopy(lines_of)
    for line in forged[1:-1]:
        for t in line["tested"]:
            failed = t["u"] * t["q"] >= t["p"]
            if not (failed if when == "failed" else t["origin"] == "rescued"):
                t["eps"], t["lam"] = 0.0, 0.0 if t["ES"] > 0 else 1.0
    for totals in forged[-1]["requests"]:
        totals["fidelity"] = {}
    return forged


@pytest.mark.parametrize("when", ["rescued", "failed"])
@pytest.mark.parametrize("name", ["capped", "budget"])
def test_charging_only_some_positions_is_caught(files: dict[str, Path], name: str, when: str) -> None:
    found, _ = bodies(files[name].read_bytes())
    result = audit(parse(sealed(charge(found, when))))
    assert {"eps", "lam"} <= {finding.field for finding in result.findings}


def test_a_guarantee_beside_a_guard_is_caught(files: dict[str, Path]) -> None:
    found, _ = bodies(files["capped"].read_bytes())
    line = next(line for line in found if line["kind"] == "block" and line["drawn"]["origin"] == "recovered")
    line["guard"] = True
    line["drawn"] |= {"mass": 1.0, "weight": line["drawn"]["p"], "below": 0.0}
    found[-1]["requests"][line["request"]]["guards"] = 1
    result = audit(parse(sealed(found)))
    assert any(finding.field == "guarantee" and "null" in finding.wanted for finding in result.findings)
    assert result.counts["guards"] == 1


def test_the_verdict_says_what_it_does_not_show(traces: dict[str, Trace]) -> None:
    document = audit(traces["nsd"]).as_json()
    assert document["verdict"] == "clean"
    assert document["scope"] == list(SCOPE)
    assert "executes neither caches nor kernels" in SCOPE[0]
    assert "not a forger" in SCOPE[1]
    json.dumps(document, allow_nan=False)


def test_unreadable_files_are_told_apart_from_violated_ones(tmp_path: Path) -> None:
    wrong = {
        "empty": b"",
        "binary": bytes(range(256)) + b"\n",
        "text": b"hello\n",
        "json": b'{"a": 1}\n',
        "no header": b'{"kind":"footer","requests":[],"blocks":0,"seconds":0.0}\n',
        "other version": b'{"kind":"header","format":"nsd-trace","version":99,"events":1}\n',
        "wrong type": b'{"kind":"header","format":"nsd-trace","version":1,"events":1,"target":5}\n',
    }
    for name, data in wrong.items():
        with pytest.raises(TraceError, match="wanted") as problem:
            parse(data, name)
        assert "\n" not in str(problem.value)
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "missing.jsonl")


def test_the_audit_imports_nothing_of_the_decoder() -> None:
    code = (
        "import sys, nsd.trace, nsd.trace.audit, nsd.trace.view, nsd.trace.analyze\n"
        "wrong = [m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'scipy', 'transformers')"
        " or m.startswith(('nsd.laws', 'nsd.rules', 'nsd.verification', 'nsd.decoding', 'nsd.fidelity'))]\n"
        "print(wrong)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_uniforms_are_the_decoders_to_the_last_bit() -> None:
    rng = random.Random(0)
    names = {DRAFT: Purpose.DRAFT, ACCEPT: Purpose.ACCEPT, RESIDUAL: Purpose.RESIDUAL, TARGET: Purpose.TARGET}
    for _ in range(300):
        seed, key, position, block = rng.getrandbits(64), rng.getrandbits(20), rng.getrandbits(16), rng.getrandbits(12)
        purpose = rng.choice(list(names))
        assert uniform(seed, key, position, purpose, block) == float(
            uniforms(seed, key, position, names[purpose], block)
        )


def test_philox_gives_the_published_words() -> None:
    """Known answers of the authors' reference for Philox-4x32-10."""
    from nsd.trace.philox import words

    full = 2**32 - 1
    assert words((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert words((full,) * 4, (full,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    digits = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert words(*digits) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@pytest.mark.parametrize("policy", ["even", "greedy", "front"])
def test_a_policys_places_are_the_budgets(policy: str, tmp_path: Path) -> None:
    """The audit's own caps against the ones that decoding uses, over random ledgers."""
    from nsd.trace.checks import _allowances
    from nsd.trace.standing import Standing

    trace = recorded(decode("nsd", agreement=0.5, policy=policy, seed=2), tmp_path)
    rng = random.Random(policy)
    for block in trace.blocks:
        if not block.drafted:
            continue
        info = trace.header.request(block.request)
        kept = rng.uniform(0.5, 1.0)
        allowance, caps = _allowances(Standing(trace.header, info, kept=kept), block)
        left = min(1.0, 0.5 * (1 + 1e-12) / kept)
        remaining = float(max(info.max_new_tokens - block.position, 1))
        wanted = place_caps(policy, np.array([left]), np.array([remaining]), info.k)[0, : len(block.drafted)]  # type: ignore[arg-type]
        assert allowance.floor == pytest.approx(left, abs=1e-15)
        assert caps == pytest.approx(wanted.tolist(), abs=1e-14)


@pytest.mark.parametrize("name", [name for name, kind in RULES.items() if issubclass(kind, RatioOrSet)])
def test_sets_from_whole_laws_are_the_rules_sets(name: str) -> None:
    from nsd.trace.evidence import chosen

    torch.manual_seed(0)
    rule = make_rule(name)
    assert isinstance(rule, RatioOrSet)
    for _ in range(100):
        p = torch.softmax(torch.randn(1, 12, dtype=torch.float64) * 2, -1)
        found = chosen(name, rule.settings(), dict(enumerate(p[0].tolist())))
        if found is not None:
            assert found == set(rule.whole_set(p)[0].nonzero().squeeze(-1).tolist())
