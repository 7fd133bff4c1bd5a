"""SGLang's own verification on a CPU: its registry, its Triton chain kernel, and the source of its `eagle_sample`.

`eagle_utils` itself needs CUDA packages to be imported. Its functions around the kernels are therefore taken from the
installed file as they are and run with plain stand-ins for what that file imports.
"""

import ast
import contextlib
import importlib
import importlib.util
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from nsd.engines.sglang import hooks, requests
from nsd.engines.vllm.settings import Ask

EAGLE = "sglang.srt.speculative.eagle_utils"
_TAKEN = ("eagle_sample", "_verify_coins", "_seeded_verify_coins", "_verify_uses_greedy")
_TAKEN += ("_can_use_sparse_uno_tree_target_sampling",)


def eagle_module(spec: SimpleNamespace) -> ModuleType:
    """A module of that name with SGLang's own `eagle_sample`; spec stands for its server arguments."""
    from sglang.kernels.ops.speculative.reject_sampling import chain_speculative_sampling_triton
    from sglang.kernels.ops.speculative.sampling import tree_speculative_sampling_target_only

    path = Path(importlib.util.find_spec("sglang").origin).parent / "srt/speculative/eagle_utils.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in _TAKEN]
    assert {node.name for node in body} == set(_TAKEN)
    module = ModuleType(EAGLE)
    annotations = ast.parse("from __future__ import annotations").body
    vars(module).update(
        torch=torch,
        partial=partial,
        get_spec=lambda: spec,
        sampling_softmax=lambda logits, temperatures: torch.softmax(logits / temperatures, -1),
        chain_speculative_sampling_triton=chain_speculative_sampling_triton,
        tree_speculative_sampling_target_only=tree_speculative_sampling_target_only,
        _is_cpu=False,  # SGLang verifies greedily on a CPU; what a GPU does is wanted here
        _is_hip=False,
        _is_xpu=False,
        _is_cuda=False,
    )
    exec(compile(ast.Module(annotations + body, []), str(path), "exec"), vars(module))
    return module


def _module(name: str, **values: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(values)
    return module


def stand_ins(spec: SimpleNamespace) -> dict[str, ModuleType]:
    """What `eagle_sample` imports while it runs, for one process without parallelism."""
    parallel = SimpleNamespace(tp_group=SimpleNamespace(world_size=1), attn_tp_group=SimpleNamespace(world_size=1))
    return {
        EAGLE: eagle_module(spec),
        "sglang.srt.layers.dp_attention": _module("dp_attention", is_dp_attention_enabled=lambda: False),
        "sglang.srt.runtime_context": _module("runtime_context", get_parallel=lambda: parallel, get_spec=lambda: spec),
        "sglang.srt.sampling.penaltylib.repetition_penalty": _module("penalty", apply_scaling_penalties=None),
        "sglang.srt.speculative.spec_utils": _module(
            "spec_utils",
            SIMULATE_ACC_LEN=0,
            SIMULATE_ACC_TOKEN_MODE="fixed",
            generate_simulated_accept_index=None,
        ),
        "sglang.srt.utils.async_probe": _module(
            "async_probe", maybe_detect_nan=lambda *_: None, sanitize_nan_logits=lambda *_: None
        ),
    }


@contextlib.contextmanager
def hooked(default: Ask | None, spec: SimpleNamespace | None = None):
    """SGLang with our hooks applied by its own registry; everything is put back afterwards."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    spec = spec or SimpleNamespace(
        speculative_use_rejection_sampling=True,
        speculative_use_block_verification=False,
        speculative_accept_threshold_single=1.0,
        speculative_accept_threshold_acc=1.0,
    )
    modules = stand_ins(spec)
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    stock = {target: _resolve(target) for target in (hook.target for hook in hooks.HOOKS)}
    try:
        HookRegistry.reset()
        requests.STATE.registered = False
        hooks.install()
        requests.STATE.default = default
        HookRegistry.apply_hooks()
        yield modules[EAGLE]
    finally:
        HookRegistry.reset()
        requests.STATE.registered, requests.STATE.default = False, None
        for target, original in stock.items():
            path, name = target.rsplit(".", 1)
            setattr(_resolve(path), name, original)
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _resolve(target: str) -> Any:
    import pkgutil

    return pkgutil.resolve_name(target)


def laws(batch: int, steps: int, vocab: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random p [B, steps + 1, V], q [B, steps, V], and candidates [B, steps + 1] drawn from q after an anchor."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.softmax(torch.randn(batch, steps + 1, vocab, generator=generator) * 2, -1)
    q = torch.softmax(p[:, :steps].log() * 0.5 + torch.randn(batch, steps, vocab, generator=generator), -1)
    drawn = torch.multinomial(q.reshape(-1, vocab), 1, generator=generator).reshape(batch, steps)
    return p, q, torch.cat([torch.zeros(batch, 1, dtype=torch.long), drawn], -1)


def kernel_arguments(p, q, candidates, seed: int) -> dict[str, Any]:
    """What the chain kernel takes, for chains of these drafts, with fresh coins."""
    batch, slots = candidates.shape
    generator = torch.Generator().manual_seed(seed)
    follow = torch.cat([torch.arange(1, slots), torch.tensor([-1])])
    return {
        "predicts": torch.zeros(batch * slots, dtype=torch.int32),
        "accept_index": torch.full((batch, slots), -1, dtype=torch.int32),
        "accept_token_num": torch.empty(batch, dtype=torch.int32),
        "candidates": candidates,
        "retrive_index": torch.arange(batch * slots).reshape(batch, slots),
        "retrive_next_token": follow.repeat(batch, 1),
        "retrive_next_sibling": torch.full((batch, slots), -1, dtype=torch.long),
        "uniform_samples": torch.rand(batch, slots, generator=generator),
        "uniform_samples_for_final_sampling": torch.rand(batch, generator=generator),
        "target_probs": p,
        "draft_probs": q,
        "threshold_single": 1.0,
        "threshold_acc": 1.0,
        "deterministic": True,
    }


def run_chain(arguments: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """SGLang's chain kernel as its callers find it -> accepted counts [B] and the tokens by slot [B, slots]."""
    from sglang.kernels.ops.speculative import reject_sampling

    reject_sampling.chain_speculative_sampling_triton(**arguments)
    return arguments["accept_token_num"], arguments["predicts"].reshape(arguments["candidates"].shape)
