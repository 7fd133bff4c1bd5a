"""Per-request settings through SGLang's own `eagle_sample`, and everything that must stop instead of going on."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nsd.engines.sglang import hooks, requests
from nsd.engines.vllm.settings import Ask
from tests_vllm.sglang.world import EAGLE, hooked, laws

ROOT = Path(__file__).parents[2]


def batch_of(fields, p, drafted, seeds=None):
    """A ScheduleBatch as far as `eagle_sample` looks at it, its verify input, and logits of the laws p."""
    batch = len(fields)
    info = SimpleNamespace(
        acc_additive_penalties=None,
        acc_scaling_penalties=None,
        logit_bias=None,
        is_all_greedy=False,
        has_watermark_candidates=False,
        temperatures=torch.ones(batch, 1),
        need_top_k_sampling=False,
        need_top_p_sampling=False,
        sampling_seed=seeds,
    )
    schedule = SimpleNamespace(
        device=torch.device("cpu"),
        forward_mode=SimpleNamespace(is_idle=lambda: False),
        seq_lens=torch.full((batch,), 10),
        sampling_info=info,
        reqs=[SimpleNamespace(sampling_params=SimpleNamespace(custom_params=given)) for given in fields],
    )
    slots = drafted.shape[1]
    follow = torch.cat([torch.arange(1, slots), torch.tensor([-1])])
    verify = SimpleNamespace(
        draft_token=drafted.reshape(-1),
        draft_token_num=slots,
        max_tree_depth=slots,
        tree_topk=1,
        retrieve_index=torch.arange(batch * slots).reshape(batch, slots),
        retrieve_next_token=follow.repeat(batch, 1),
        retrieve_next_sibling=torch.full((batch, slots), -1),
        draft_probs=None,
    )
    return verify, schedule, SimpleNamespace(next_token_logits=p.log().reshape(batch * slots, -1))


def sample(module, fields, p, q, drafted, seed=0, **changes):
    verify, schedule, output = batch_of(fields, p, drafted)
    verify.draft_probs = q
    vars(verify).update(changes)
    torch.manual_seed(seed)
    predict, lengths, index = module.eagle_sample(verify, schedule, output)
    return predict.reshape(drafted.shape), lengths, index


FIELDS = [None, {"nsd_theta": 1.0}, {"nsd_rule": "sd"}, {"mine": 3}, {"nsd_theta": 0.0}, {"nsd_theta": 1.0, "mine": 1}]


def test_requests_of_one_batch_have_their_own_theta():
    p, q, drafted = laws(6, 4, 40, seed=20)
    with hooked(None) as module:
        stock = sample(module, [None] * 6, p, q, drafted)
    with hooked(Ask("sd")) as module:
        found = sample(module, FIELDS, p, q, drafted)
    strict = [0, 2, 3, 4]
    for before, after in zip(stock, found, strict=True):
        assert torch.equal(before[strict], after[strict])
    assert found[1][[1, 5]].tolist() == [5, 5]
    assert stock[1][[1, 5]].tolist() != [5, 5]


def test_the_server_default_holds_where_a_request_says_nothing():
    p, q, drafted = laws(6, 4, 40, seed=21)
    with hooked(Ask("nsd", 1.0)) as module:
        found = sample(module, FIELDS, p, q, drafted)[1].tolist()
    with hooked(None) as module:
        stock = sample(module, [None] * 6, p, q, drafted)[1].tolist()
    assert [found[b] for b in (0, 1, 3, 5)] == [5] * 4
    assert [found[b] for b in (2, 4)] == [stock[b] for b in (2, 4)]


def test_a_batch_that_asks_for_nothing_is_untouched():
    p, q, drafted = laws(3, 2, 20, seed=22)
    with hooked(Ask("sd")) as module:
        asked = sample(module, [None, {"nsd_theta": 0}, {"nsd_rule": "sd"}], p, q, drafted, tree_topk=4)
    with hooked(None) as module:
        stock = sample(module, [None] * 3, p, q, drafted)
    assert all(torch.equal(a, b) for a, b in zip(asked, stock, strict=True))


def test_padded_rows_are_exact():
    asked = requests.tensors([Ask("nsd", 0.9), Ask("sd")], 4, torch.device("cpu"))
    assert asked.theta.tolist() == [0.9, 0.0, 0.0, 0.0] and asked.eps is None
    capped = requests.tensors([Ask("nsd", 0.9, 0.1), Ask("nsd", 0.5)], 3, torch.device("cpu"))
    assert capped.eps.tolist() == [0.1, float("inf"), float("inf")]


def test_a_cap_of_a_seeded_batch_is_keyed():
    p, q, drafted = laws(2, 2, 20, seed=23)
    seen = []
    with hooked(Ask("nsd", 0.9, 0.05)) as module:
        verify, schedule, output = batch_of([None, None], p, drafted)
        schedule.sampling_info.sampling_seed = torch.tensor([5, 6])
        stock = vars(module)["_seeded_verify_coins"]
        vars(module)["_seeded_verify_coins"] = lambda **_: (seen.append(requests._NOW.get()), stock)[1] and _coins(2, 3)
        verify.draft_probs = q
        module.eagle_sample(verify, schedule, output)
    assert seen[0][0].seeds.tolist() == [5, 6] and seen[0][0].positions.tolist() == [10, 10]


def _coins(batch, slots):
    return torch.full((batch, slots), 0.5), torch.full((batch,), 0.5)


@pytest.mark.parametrize("topk", [4, -1])  # NGRAM says -1: its trees have no fixed breadth
def test_trees_stop_the_scheduler(topk):
    p, q, drafted = laws(2, 2, 20, seed=24)
    with hooked(Ask("nsd", 0.9)) as module, pytest.raises(RuntimeError, match="eagle-topk 1"):
        sample(module, [None, None], p, q, drafted, tree_topk=topk)


def test_an_unhooked_kernel_stops_the_scheduler():
    from sglang.srt.plugins.hook_registry import HookRegistry

    p, q, drafted = laws(2, 2, 20, seed=25)
    with hooked(Ask("nsd", 0.9)) as module:
        HookRegistry._patched.discard(hooks.HOOKS[0].target)
        with pytest.raises(RuntimeError, match="not in place"):
            sample(module, [None, None], p, q, drafted)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"nsd_theta": 2}, "nsd_theta is 2"),
        ({"nsd_theta": "0.9"}, "nsd_theta"),
        ({"nsd_rule": "typical"}, "nsd_rule"),
        ({"nsd_max_deviation": -1}, "nsd_max_deviation"),
        ({"nsd_thta": 0.9}, "nsd_theta, which is the nearest field"),
    ],
)
def test_bad_fields_are_refused_with_the_other_parameters(fields, named):
    from sglang.srt.sampling.sampling_params import SamplingParams

    with hooked(Ask("sd")):
        with pytest.raises(ValueError, match=named):
            SamplingParams(custom_params=fields).verify(1000)
        SamplingParams(custom_params={"nsd_theta": 0.9, "mine": [1]}).verify(1000)


def test_hook_map_says_what_is_missing():
    with hooked(None) as module:
        assert [status for _, _, status in hooks.hook_map()] == ["ok"] * 4
        stock = module.eagle_sample
        module.eagle_sample = lambda spec_input, batch: None
        assert hooks.missing(hooks.HOOKS[2]) == f"{EAGLE}.eagle_sample takes no verify_input"
        del module.eagle_sample
        assert "has no" in hooks.missing(hooks.HOOKS[2])
        module.eagle_sample = stock


def entry_point() -> str:
    """The plugin as the distribution declares it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared: str = project["entry-points"]["sglang.srt.plugins"]["nsd"]
    return declared


SERVER = """
import sys
from types import SimpleNamespace
from tests_vllm.sglang.world import stand_ins
import sglang.version
sys.modules.update(stand_ins(SimpleNamespace()))
{break_it}
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.plugins.hook_registry import HookRegistry
sys.stdout.write(f"serving with {{len(HookRegistry._patched)}} hooks")
"""


@pytest.mark.parametrize(
    ("environ", "break_it", "result"),
    [
        ({}, "sglang.version.__version__ = '0.6.0'", "serving with 0 hooks"),
        ({"NSD_THETA": "0.9"}, "", "serving with 4 hooks"),
        ({"NSD_RULE": "sd"}, "", "serving with 4 hooks"),
        ({"NSD_THETA": "0.9"}, "sglang.version.__version__ = '0.6.0'", "sglang is 0.6.0, wanted 0.5.23"),
        ({"NSD_THETA": "1.9"}, "", "NSD_THETA is 1.9"),
        (
            {"NSD_THETA": "0.9"},
            "import sglang.kernels.ops.speculative.sampling as s; del s.tree_speculative_sampling_target_only",
            "sglang has no",
        ),
    ],
)
def test_plugin_loads_or_stops_the_process(tmp_path, environ, break_it, result):
    """Through SGLang's own loader and the entry point, in a process of its own."""
    info = tmp_path / "nsd_plugin_under_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nsd-plugin-under-test\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\nnsd = {entry_point()}\n")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("NSD_")}
    path = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "src"), clean.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SERVER.format(break_it=break_it)],
        env={**clean, **environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if result.startswith("serving"):
        assert (done.returncode, done.stdout) == (0, result), done.stderr[-1500:]
        if environ:
            assert "nsd active (kernel-tested only" in done.stderr
    else:
        assert done.returncode == 1 and "serving" not in done.stdout
        assert result in done.stderr
