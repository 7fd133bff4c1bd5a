"""vLLM as a benchmark's engine, against a stand-in for `vllm.LLM` that keeps account of everything it is asked.

The real one is in tests_vllm/bench.
"""

from __future__ import annotations

import json
import random
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import typer
from typer.testing import CliRunner

from nsd.bench import vllm_engine
from nsd.bench.bundle import RunWriter, read_run
from nsd.bench.metrics import values
from nsd.bench.report import report_of
from nsd.bench.results import results_of
from nsd.bench.runner import Plan, run
from nsd.bench.vllm_engine import VllmEngine, VllmError, extra_args, stats_of
from nsd.cli import bench as cli
from nsd.cli.bench import plan_of
from nsd.errors import ConfigError
from tests.bench.fake import SESSION, FakeTask
from tests.bench.test_footprint import request_of

WHERE = {"dtype": "bfloat16", "engine": "vllm", "device": "cpu", "threads": None}


class Tokenizer:
    """Letters as ids, and a template."""

    eos_token_id, chat_template = 0, "yes"

    def get_vocab(self) -> dict[str, int]:
        return {chr(i): i for i in range(128)}

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [ord(letter) for letter in text]

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> list[int]:
        return self.encode("user: " + messages[-1]["content"])


class Stand:
    """An engine: options it was made with, requests it got, what it said, and the plugin's counts."""

    made: ClassVar[list[Stand]] = []
    problem: ClassVar[str | None] = None

    def __init__(self, **options: Any) -> None:
        self.options, self.asked = options, []
        self.k = options.get("speculative_config", {}).get("num_speculative_tokens", 0)
        self.totals = dict.fromkeys(vllm_engine.COUNTED, 0.0)
        Stand.made.append(self)

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer()

    def collective_rpc(self, method: str) -> list[dict[str, Any]]:
        if method == "nsd_status":
            return [{"problem": Stand.problem}]
        assert method == "nsd_metrics"
        return [{"totals": dict(self.totals), "requests": {}}]

    def generate(self, prompt: dict[str, Any], params: dict[str, Any], use_tqdm: bool) -> list[Any]:
        args = params["extra_args"] or {}
        theta = args.get("nsd_theta", 0.0)
        rng = random.Random(f"{params['seed']}/{theta}/{self.k}")
        accepted = [rng.choices(range(self.k + 1), range(1, self.k + 2))[0] for _ in range(rng.randint(2, 5))]
        drafted = [self.k] * len(accepted)
        tokens = 1 + sum(a + 1 for a in accepted)
        if not self.k:
            tokens, accepted, drafted = rng.randint(3, 9), [], []
        rescued = sum(accepted) // 3 if args.get("nsd_rule") == "nsd" else 0
        if rescued or args.get("nsd_rule") == "nsd":
            self.totals["rescued"] += rescued
            self.totals["tested"] += sum(accepted)
        verdict = "right" if rng.random() < 0.6 else "wrong"
        self.asked.append((prompt["prompt_token_ids"], params, accepted, rescued, tokens))
        steps = SimpleNamespace(per_step_accepted=accepted, per_step_drafted=drafted) if self.k else None
        text = SimpleNamespace(
            text=f"theta {theta} {verdict}", token_ids=[7] * tokens, finish_reason="length", spec_decode_metrics=steps
        )
        speed = 1 + self.k / 3 + theta
        times = SimpleNamespace(first_token_latency=0.05, first_token_ts=10.0, last_token_ts=10 + 0.01 * tokens / speed)
        return [SimpleNamespace(outputs=[text], metrics=times)]


@pytest.fixture(autouse=True)
def no_engines() -> None:
    Stand.made, Stand.problem = [], None


def engine(drafter: str = "ngram", **draft: Any) -> VllmEngine:
    return VllmEngine("smollm2-135m", drafter, draft, WHERE, make=Stand)


def plan_for(made: VllmEngine, count: int = 6, **changes: Any) -> Plan:
    task = FakeTask("maths")
    request = request_of(block_length=[], where=WHERE, **{"theta": [0.5, 0.95], "k": [2, 4]} | changes)
    request["settings"] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "accounting": "full"}
    task.origin = lambda data: {}  # type: ignore[method-assign]  # a made-up task has no file
    return plan_of(request, made, [(task, task.problems(count))])


def finished(tmp_path: Path, made: VllmEngine) -> Any:
    wanted = plan_for(made)
    made.share = len({arm.k for arm in wanted.arms})
    with RunWriter(tmp_path, "one", wanted.config(made.facts()), SESSION) as bundle:
        assert run(wanted, made, bundle).complete
    return read_run(tmp_path / "one")


def test_a_run_has_one_engine_for_each_k_and_tells_arms_apart_by_request(tmp_path: Path) -> None:
    stored = finished(tmp_path, engine())
    assert {e.k for e in Stand.made} == {0, 2, 4} and len(Stand.made) == 3
    for one in Stand.made:
        assert one.options["enable_prefix_caching"] is False and one.options["max_num_seqs"] == 1
        assert one.options["gpu_memory_utilization"] == pytest.approx(0.3)
        args = [params["extra_args"] for _, params, *_ in one.asked]
        if one.k == 0:
            assert args == [None] * len(args) and "speculative_config" not in one.options
            continue
        lookup = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
        assert one.options["speculative_config"] == {**lookup, "num_speculative_tokens": one.k}
        assert one.options["per_request_spec_decode_metrics"] == "detailed"
        wanted = [{"nsd_rule": "sd"}] + [{"nsd_rule": "nsd", "nsd_theta": theta} for theta in (0.5, 0.95)]
        assert [args.count(each) for each in wanted] == [7, 7, 7]  # six problems and the warm-up
    seeds = {params["seed"] for _, params, *_ in Stand.made[0].asked}
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert all(ids == Tokenizer().encode("user: question " + chr(ids[-1])) for ids, *_ in Stand.made[0].asked)
    facts = stored.manifest["config"]["engine"]
    assert facts["engine"] == "vllm" and facts["draft_law"] == "point" and facts["drafting_mode"] == "greedy"


def test_metrics_are_what_the_requests_say(tmp_path: Path) -> None:
    """Recomputed from what the stand-in was asked and answered, the warm-up left out."""
    model = results_of([finished(tmp_path, engine())]).models[0]
    for arm in model.arms:
        one = next(e for e in Stand.made if e.k == arm.k)
        wanted = extra_args({**arm.settings}) if arm.k else None
        asked = [a for a in one.asked if a[1]["extra_args"] == wanted and a[1]["max_tokens"] > 8]
        tokens, accepted = sum(a[4] for a in asked), sum(sum(a[2]) for a in asked)
        blocks = sum(len(a[2]) for a in asked) or tokens - len(asked)
        tested = accepted + sum(step < arm.k for a in asked for step in a[2])
        got = values(model.row(arm).counters)
        assert got["tau"] == pytest.approx((tokens - len(asked)) / blocks)
        assert got["calls_per_token"] == pytest.approx(blocks / (tokens - len(asked)))
        assert got["acceptance"] == (pytest.approx(accepted / tested) if tested else None)
        assert got["rescue_rate"] == (pytest.approx(sum(a[3] for a in asked) / tested) if tested else None)
        assert got["mean_ES"] == (got["rescue_rate"] if arm.kind == "nsd" else None)
        assert got["guarantee"] == (None if arm.kind == "nsd" else 1.0) and got["ttft_ms"] == pytest.approx(50)
        assert got["tokens_per_second"] and got["decode_tokens_per_second"]
        unknown = (
            "verify_ms_per_token",
            "verify_share",
            "draft_ms_per_token",
            "mean_R",
            "mean_Q",
            "inter_token_p50_ms",
        )
        assert [got[name] for name in unknown] == [None] * len(unknown)


def test_a_report_of_it_stands(tmp_path: Path) -> None:
    text = report_of([finished(tmp_path, engine())], with_paper=True).markdown()
    assert "smollm2-135m + ngram" in text and "engine, dtype, device | vllm, bfloat16, cpu" in text


@pytest.mark.parametrize("seed", range(40))
def test_steps_become_counters(seed: int) -> None:
    """Against a plain simulation: every token of every step written out, the list cut at the end of the text."""
    rng = random.Random(seed)
    k = rng.randint(1, 5)
    accepted = [rng.randint(0, k) for _ in range(rng.randint(1, 6))]
    written = [
        (step, place, "end" if place == a else "kept") for step, a in enumerate(accepted) for place in range(a + 1)
    ]
    cut = rng.randint(0, min(3, len(written) - 1))
    left = written[: len(written) - cut]
    stats = stats_of(1 + len(left), accepted, [k] * len(accepted), 0)
    ends = [(step, place) for step, place, kind in left if kind == "end"]
    rejected = sum(place < k for _, place in ends)
    assert stats.accepted == sum(kind == "kept" for *_, kind in left)
    assert (stats.recovered, stats.rejected, stats.bonus) == (rejected, rejected, len(ends) - rejected)
    assert stats.tested == stats.accepted + rejected
    assert stats.blocks == len({step for step, *_ in left})
    assert stats.output_tokens == 1 + stats.accepted + stats.recovered + stats.bonus
    assert stats.tau == pytest.approx(len(left) / stats.blocks)
    assert sum(size * count for size, count in stats.histogram.items()) == len(left)


def test_steps_without_a_draft_count_as_blocks() -> None:
    stats = stats_of(10, [2, 0], [4, 4], 1)
    assert (stats.blocks, stats.bonus, stats.accepted, stats.rescued) == (2 + 5, 5, 2, 1)
    plain = stats_of(5, [], [], 0)
    assert (plain.blocks, plain.bonus, plain.tau) == (4, 4, 1.0)
    assert stats_of(1, [], [], 0).tau is None


def test_drafters_become_vllms_methods(tmp_path: Path) -> None:
    inside = {"model_type": "qwen3_5", "text_config": {"mtp_num_hidden_layers": 1, "num_hidden_layers": 2}}
    folder = tmp_path / "mtp"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(inside), encoding="utf-8")
    for name in ("auto", "mtp"):
        made = VllmEngine(str(folder), name, {"greedy": name == "mtp"}, WHERE, make=Stand)
        law = "greedy" if name == "mtp" else "probabilistic"
        assert made.speculative(2) == {"method": "mtp", "draft_sample_method": law, "num_speculative_tokens": 2}
        assert made.facts()["drafting_mode"] == ("greedy" if name == "mtp" else "sampled")
    drafter = tmp_path / "eagle"
    drafter.mkdir()
    (drafter / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle3"]}), encoding="utf-8")
    found = engine(str(drafter)).speculative(3)
    assert (found["method"], found["model"], found["num_speculative_tokens"]) == ("eagle3", str(drafter), 3)
    assert engine("none").kinds() == ("ar",) and engine("none").proposals(None) == 0


def test_a_worker_without_the_hooks_is_refused() -> None:
    Stand.problem = "the hooks of the V1 runner are not in place"
    made = engine()
    settings = {"rule": "nsd", "theta": 0.9, "k": 3, "max_new_tokens": 4, "seed": 1}
    with pytest.raises(VllmError, match=r"nsd is not active in vLLM \(the hooks of the V1 runner"):
        made.answer(FakeTask("maths").problems(1)[0], settings, drafting=True)

    class Bare(Stand):
        def collective_rpc(self, method: str) -> list[dict[str, Any]]:
            raise AttributeError(f"no {method} here")

    bare = VllmEngine("smollm2-135m", "ngram", {}, WHERE, make=Bare)
    with pytest.raises(VllmError, match=r"do not know nsd \(no nsd_status here"):
        bare.answer(FakeTask("maths").problems(1)[0], settings, drafting=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "typical"}, "engine vllm has sd and nsd"),
        ({"rule": "nsd", "theta": 0.9, "ties": "smallest"}, "keeps all ties"),
        ({"rule": "nsd", "theta": 0.9, "agreement": 0.9}, "has no agreement"),
    ],
)
def test_what_the_plugin_has_not_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        extra_args(settings)


def test_other_mistakes_are_one_line() -> None:
    with pytest.raises(ConfigError, match="engine vllm has no drafter layer-skip"):
        engine("layer-skip")
    with pytest.raises(ConfigError, match="--draft got threshold"):
        engine("ngram", threshold=0.5)
    with pytest.raises(ConfigError, match="engine vllm counts proposals; try -k 8"):
        engine().proposals(None, 8)
    quantised = VllmEngine("smollm2-135m", "ngram", {}, {**WHERE, "dtype": "int8"}, make=Stand)
    with pytest.raises(ConfigError, match="wanted a float format"):
        quantised.answer(FakeTask("maths").problems(1)[0], {"rule": "sd", "max_new_tokens": 1, "seed": 0}, False)


def test_the_command_line_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_engine, "_llm", lambda: Stand)
    monkeypatch.setattr(vllm_engine, "_sampling_params", lambda: dict)
    monkeypatch.setattr(vllm_engine, "vllm_version", lambda: "0.32.0")
    app = typer.Typer()
    app.command()(cli.bench)
    app.command()(cli.report)
    common = ["--suite", "toy", "--engine", "vllm", "--drafter", "ngram", "--limit", "5", "--runs", str(tmp_path)]
    result = CliRunner().invoke(app, ["bench", *common, "--name", "served", "-k", "3"])
    assert result.exit_code == 0, result.output
    stored = read_run(tmp_path / "served")
    assert {r["arm"] for r in stored.records} == {"ar", "sd-k3", "nsd-theta0.95-k3"}
    assert stored.manifest["config"]["engine"]["vllm"] == "0.32.0"
    refused = CliRunner().invoke(app, ["bench", *common, "--trace"])
    assert isinstance(refused.exception, ConfigError) and "--trace with engine vllm" in str(refused.exception)


def test_without_vllm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(VllmError, match="wanted it for --engine vllm"):
        vllm_engine.vllm_version()
    with pytest.raises(VllmError, match="wanted it for --engine vllm"):
        vllm_engine._llm()
