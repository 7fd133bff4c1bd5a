"""Memory told from config.json alone, against the bytes of the tensors of a loaded pair that is decoding."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.paper.__main__ import CONFIGS, SHAPES, config_of, names, shape_of
from nsd.api import Pair, load
from nsd.bench import dry
from nsd.bench.footprint import BYTES, Part, drafter_part, footprint, target_part
from nsd.decoding import Decoder
from nsd.drafters import dspark, eagle3, mtp
from nsd.drafters.load import read_config
from nsd.drafters.nemotron import load as nemotron_drafter
from nsd.errors import ConfigError, ModelError
from nsd.targets.load import load_target
from nsd.targets.nemotron import load as load_nemotron
from nsd.verification import Accounting
from tests.drafters_c import block_tools as tools
from tests.drafters_c import chain_tools as chains
from tests.drafters_c.hybrid_models import hybrid_target
from tests.drafters_c.nemotron_checkpoint import write_folder

PROMPT, NEW = 80, 150
BESIDE = ("rotary", "tokenizer", "_stairs", "absent", "pen", "plan", "mixers", "records", "_inputs", "_raw")
COPIES = ("_norms", "_final", "_head_norms")
NOT_COUNTED = (*BESIDE, *COPIES)
"""Tables, masks and records beside weights and caches; and copies of norms, per mille of a model of real size."""


def storages(thing: Any, seen: dict[int, int], visited: set[int]) -> None:
    """Bytes of every tensor storage under an object, each once."""
    if id(thing) in visited or isinstance(thing, str | bytes | int | float | type(None) | type | torch.dtype):
        return
    visited.add(id(thing))
    if isinstance(thing, torch.Tensor):
        seen[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    elif isinstance(thing, torch.nn.Module):
        for tensor in thing.parameters():
            storages(tensor, seen, visited)
    elif isinstance(thing, dict):
        for key, value in thing.items():
            if key not in NOT_COUNTED:
                storages(value, seen, visited)
    elif isinstance(thing, list | tuple):
        for value in thing:
            storages(value, seen, visited)
    else:
        for cell in getattr(thing, "__closure__", None) or ():
            storages(cell.cell_contents, seen, visited)
        inner = dict(getattr(thing, "__dict__", {}))
        if is_dataclass(thing):
            inner |= {f.name: getattr(thing, f.name) for f in fields(thing)}
        for key, value in inner.items():
            if key not in NOT_COUNTED:
                storages(value, seen, visited)


def bytes_of(*things: Any) -> int:
    seen: dict[int, int] = {}
    for thing in things:
        storages(thing, seen, set())
    return sum(seen.values())


def at_work(pair: Pair, vocab: int) -> Decoder:
    """The decoder of a pair in the middle of an answer."""
    prompt = [3 + i % (vocab - 20) for i in range(PROMPT)]
    run = pair.run([prompt], rule="nsd", max_new_tokens=NEW, ignore_eos=True, temperature=1.0)
    decoder = Decoder(pair.target, pair.drafter, run.requests, Accounting.OFF)
    decoder.start()
    for _ in range(3):
        decoder.step()
    return decoder


def nemotron(folder: Path) -> tuple[Pair, dict[str, Any], dict[str, Any], int]:
    target = load_nemotron(str(write_folder(folder, lora=True)), dtype="float32", device="cpu")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return Pair(target, nemotron_drafter(target)), config, config, 4


def nemotron_with_another(folder: Path) -> tuple[Pair, dict[str, Any], dict[str, Any], int]:
    """The addition lies in a folder of its own, and is named as the drafter."""
    target = load_nemotron(str(write_folder(folder, lora=True)), dtype="float32", device="cpu")
    addition = (folder / "linear_spec_lora").rename(folder.parent / "addition")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return Pair(target, nemotron_drafter(target, addition)), config, read_config(str(addition)), 0


def qwen3(folder: Path) -> tuple[Any, dict[str, Any]]:
    config = Qwen3Config(
        vocab_size=tools.VOCAB, hidden_size=tools.HIDDEN, num_hidden_layers=tools.TARGET_LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=40, tie_word_embeddings=False, pad_token_id=None,
        max_position_embeddings=512,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    from tests.drafters_c.nemotron_checkpoint import write_tokenizer

    write_tokenizer(folder, tools.VOCAB)
    target = load_target(str(folder), dtype="float32", device="cpu", engine="lean")
    return target, json.loads((folder / "config.json").read_text(encoding="utf-8"))


def with_dspark(folder: Path) -> tuple[Pair, dict[str, Any], dict[str, Any], int]:
    target, config = qwen3(folder / "target")
    made = tools.deepspec()
    return Pair(target, dspark.load(target, made.write(folder / "drafter"))), config, made.config, 0


def with_eagle3(folder: Path) -> tuple[Pair, dict[str, Any], dict[str, Any], int]:
    target, config = qwen3(folder / "target")
    made = chains.eagle_deepspec()
    return Pair(target, eagle3.load(target, made.write(folder / "drafter"))), config, made.config, 0


def with_mtp(folder: Path) -> tuple[Pair, dict[str, Any], dict[str, Any], int]:
    target = hybrid_target()
    made = chains.mtp_qwen()
    return Pair(target, mtp.load(target, made.write(folder))), made.config, made.config, 0


@pytest.mark.parametrize("build", [nemotron, nemotron_with_another, with_dspark, with_eagle3, with_mtp])
def test_memory_is_within_ten_percent_of_the_tensors(tmp_path: Path, build: Any) -> None:
    """Weights, drafter, caches: each from shapes alone, and all together, against what torch holds."""
    pair, config, drafter, rank = build(tmp_path / "pair")
    told = footprint(config, drafter, "float32", PROMPT + NEW + 1, 3, rank)
    decoder = at_work(pair, pair.target.vocab)
    caches = bytes_of(decoder.session.cache, getattr(decoder._drafting, "cache", None))
    inner = getattr(pair.target, "decoder", None)
    weights = bytes_of(pair.target.model) if inner is None else bytes_of(inner, pair.target.ends)
    alone = bytes_of(pair.drafter, pair.target) - bytes_of(pair.target)
    assert told.target == pytest.approx(weights, rel=0.02)
    assert told.drafter == pytest.approx(alone, rel=0.05)
    assert told.cache == pytest.approx(caches, rel=0.10)
    assert told.total == pytest.approx(weights + alone + caches, rel=0.10)


def test_quantised_weights_count_by_their_format() -> None:
    part = Part({"model.embed_tokens.weight": (10, 4), "model.layers.0.mlp.up_proj.weight": (8, 4)}, 16)
    assert part.numbers == 72 and part.looked_up == 0
    assert part.weights("float32") == 288 and part.weights("int8") == 72
    assert part.weights("int4") == 40 + 18  # the end in int8, the layer in 4.5 bits
    assert part.cache("bfloat16", 5) == 160 == part.cache("int8", 5)
    assert set(BYTES) > {"bfloat16", "int4"}


def test_published_sizes_come_out() -> None:
    """Parameters as their makers state them: 4.0, 8.2 and 14.8 billion; the 8B drafter's file of 4.74 GB."""
    billions = [target_part(shape_of(f"Qwen/Qwen3-{size}")).numbers / 1e9 for size in ("4B", "8B", "14B")]
    assert billions == pytest.approx([4.0, 8.2, 14.8], abs=0.05)
    drafter = drafter_part(shape_of("deepseek-ai/dspark_qwen3_8b_block7"), shape_of("Qwen/Qwen3-8B"))
    assert drafter.weights("bfloat16") / 1e9 == pytest.approx(4.74, abs=0.01)
    nemotron_8b = target_part(shape_of("nvidia/Nemotron-Labs-Diffusion-8B")).weights("bfloat16")
    assert nemotron_8b / 2**30 == pytest.approx(16, abs=0.5)


def request_of(**changes: Any) -> dict[str, Any]:
    """A request as the command line makes it."""
    plain: dict[str, Any] = {
        "tasks": ["toy"], "data_dir": None, "limit": None, "shard": [1, 1], "seeds": 1, "seed": 0,
        "model": "Qwen/Qwen3-4B", "drafter": "z-lab/Qwen3-4B-DFlash-b16", "draft": {}, "arms": None,
        "rule": {"rule": "nsd"}, "theta": [0.9, 0.95], "k": [], "block_length": [8, 16], "settings": {},
        "max_new_tokens": None, "trace": False,
        "where": {"dtype": "auto", "engine": "auto", "device": "cpu", "threads": None},
    }  # fmt: skip
    return plain | changes


def test_a_dry_run_says_what_would_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = dry.dry_run(request_of(), SHAPES, 1000.0)
    names_of_arms = [arm.name for arm in found.arms]
    each = [[f"sd-k{k}", f"nsd-theta0.9-k{k}", f"nsd-theta0.95-k{k}"] for k in (7, 15)]
    assert names_of_arms == ["ar", *each[0], *each[1]]
    assert found.answers == 7 * 48 and found.tasks["toy"]["data"].startswith("prompts sha256 ")
    assert "not at hand; shapes as stated in Qwen--Qwen3-4B.json" in found.target.where
    assert 0 < found.usual_s < found.longest_s
    slower = dry.dry_run(request_of(), SHAPES, 500.0)
    assert slower.usual_s == pytest.approx(2 * found.usual_s)
    # Plain decoding alone: every token reads the weights once.
    plain = dry.dry_run(request_of(arms=["ar"], block_length=[], max_new_tokens=100), SHAPES, 1000.0)
    assert plain.longest_s == pytest.approx(48 * 100 * plain.memory.target / (1e9 * 1000 * dry.SHARE))
    assert json.loads(json.dumps(found.as_json()))["memory_bytes"]["total"] == found.memory.total
    assert any(line.startswith("memory") and "GiB" in line for line in found.lines())


def test_a_named_addition_drafts_as_what_is_built_in(tmp_path: Path) -> None:
    """Wherever it lies, it has the same arms, native speculation among them."""
    folder = write_folder(tmp_path / "target", lora=True)
    inside = dry.dry_run(request_of(model=str(folder), drafter="auto", block_length=[]))
    addition = (folder / "linear_spec_lora").rename(tmp_path / "addition")
    named = dry.dry_run(request_of(model=str(folder), drafter=str(addition), block_length=[]))
    assert [arm.name for arm in named.arms] == [arm.name for arm in inside.arms]
    assert "match-k31" in [arm.name for arm in named.arms]
    assert named.memory == inside.memory


def test_a_dry_run_of_the_embedded_pair_needs_no_shapes() -> None:
    found = dry.dry_run(request_of(model="smollm2-135m", drafter="auto", block_length=[]))
    pair = load("smollm2-135m", "auto", dtype="float32")
    assert pair.drafter is not None and found.drafter_name == pair.drafter.name
    assert max(arm.k for arm in found.arms) == pair.drafter.default_k
    assert found.memory.target / 2 == pytest.approx(pair.target.parameters, rel=0.02)


def test_what_cannot_be_resolved_is_named() -> None:
    with pytest.raises(ModelError):
        dry.dry_run(request_of(model="nobody/nothing"), SHAPES)
    with pytest.raises(ConfigError, match="dtype is 'fp4'"):
        footprint(shape_of("Qwen/Qwen3-4B"), None, "fp4", 10, 1)
    with pytest.raises(ModelError, match="is no drafter that is known here"):
        drafter_part({"architectures": ["Something"]}, shape_of("Qwen/Qwen3-4B"))


def test_there_is_a_file_for_every_experiment() -> None:
    """30 main cells, the two mechanisms of Table 4 with five seeds, MTP on vLLM, the grid of Table 2."""
    values = {name: config_of(name)[1] for name in names()}
    main = [(v["model"], task) for name, v in values.items() if name.startswith("main-") for task in v["tasks"]]
    assert len(main) == len(set(main)) == 30
    assert all(v["seeds"] == 5 for name, v in values.items() if name.startswith("table4-"))
    assert {v["drafter"] for name, v in values.items() if name.startswith("table4-")} == {
        "z-lab/Qwen3-4B-DFlash-b16", "deepseek-ai/eagle3_qwen3_4b_ttt7"}  # fmt: skip
    assert any(v.get("engine") == "vllm" and v["k"] == "2" for v in values.values())
    grids = [v for name, v in values.items() if name.startswith("table2-")]
    assert all(v["theta"] == "0.85,0.9,0.925,0.95" and v["block_length"] == "8,16,24,32" for v in grids)
    assert all(v["temperature"] == 1.0 and v["top_p"] == 1.0 for v in values.values())
    assert len(list(CONFIGS.glob("*.toml"))) == len(values) == 14


@pytest.mark.parametrize("name", names())
def test_every_experiment_can_be_dry_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 14B pair needs less than the 48 GB of the paper's card."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    _, values = config_of(name)
    numbers = {"theta": float, "k": int, "block_length": int}
    lists = {key: [kind(x) for x in values[key].split(",")] if key in values else [] for key, kind in numbers.items()}
    where = {"dtype": values["dtype"], "engine": values.get("engine", "auto"), "device": "cpu", "threads": None}
    plain = {key: values[key] for key in ("model", "drafter", "max_new_tokens")}
    data = str(Path(__file__).parent / "fixtures")
    arms = values["arms"].split(",")
    found = dry.dry_run(
        request_of(
            **plain, **lists, where=where, arms=arms, data_dir=data, tasks=values["tasks"], seeds=values.get("seeds", 1)
        ),
        SHAPES,
    )
    assert 6 < found.memory.total / 2**30 < 36
    assert set(found.tasks) == set(values["tasks"])
    assert found.copies == (2 if where["engine"] == "vllm" else 1)
