"""The OpenAI server end to end, with the openai client: streams, concurrent requests, a cancelled one, bad fields.

`nsd vllm serve` starts it with NSD as the default; requests change that by `vllm_xargs`.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests_vllm import models
from tests_vllm.engines import PLUGIN, PROMPTS, SECONDS, end, environment

pytestmark = pytest.mark.xdist_group("server")

K = 4
THETAS = (0.0, 0.5, 0.95, 1.0)
BAD: tuple[dict[str, Any], ...] = (
    {"nsd_theta": 1.5},
    {"nsd_theta": "high"},
    {"nsd_rule": "nucleus"},
    {"nsd_max_deviation": -1},
    {"nsd_thetta": 0.5},
)


@dataclass(frozen=True)
class Server:
    """Where it listens, and its log."""

    port: int
    log: Path

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=SECONDS
        )

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            text: str = answer.read().decode("utf-8")
        return text

    def counters(self) -> dict[str, float]:
        """Sums over labels, by name."""
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(self.get("/metrics")):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums


@pytest.fixture(scope="module")
def server(workplace: Path) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "nsd", "vllm", "serve", str(models.target()), "--theta", "0.95"]
    command += ["--drafter", str(models.first_layers()), "-k", str(K), "--enforce-eager", "--dtype", "bfloat16"]
    command += ["--served-model-name", "smol", "--max-model-len", "512", "--max-num-seqs", "24"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--per-request-spec-decode-metrics", "summary"]
    found = Server(port, workplace / "server.log")
    asked = PLUGIN | {"NSD_METRICS_SECONDS": "0.5", "NSD_ACCOUNTING": "full"}
    with found.log.open("w", encoding="utf-8") as sink:
        process = subprocess.Popen(
            command, env=environment(asked), stdout=sink, stderr=sink, cwd=workplace, start_new_session=True
        )
    try:
        _await(found, process)
        yield found
    finally:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        end(process)


def _await(server: Server, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            server.get("/health")
        except OSError:
            time.sleep(1)
        else:
            return
    pytest.fail(f"the server did not start: {server.log.read_text('utf-8')[-6000:]}")


def _complete(server: Server, number: int, **fields: Any) -> Any:
    return server.client.completions.create(
        model="smol",
        prompt=PROMPTS[number % len(PROMPTS)],
        max_tokens=32,
        temperature=1.0,
        seed=number,
        extra_body={"ignore_eos": True, "vllm_xargs": fields},
    )


def _tau(answer: Any) -> float:
    told: float = answer.model_extra["metrics"]["speculative_decoding"]["mean_acceptance_length"]
    return told


def test_a_stream_arrives_in_pieces(server: Server) -> None:
    pieces = server.client.chat.completions.create(
        model="smol",
        messages=[{"role": "user", "content": "Tell me about bicycles."}],
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"vllm_xargs": {"nsd_theta": 0.95}},
    )
    seen = list(pieces)
    text = "".join(piece.choices[0].delta.content or "" for piece in seen if piece.choices)
    assert len(text) > 20
    assert sum(bool(piece.choices) for piece in seen) > 3
    assert seen[-1].usage is not None and 0 < seen[-1].usage.completion_tokens <= 32


def test_sixteen_requests_keep_their_own_thetas_beside_a_cancelled_and_a_bad_one(server: Server) -> None:
    def cancelled() -> int:
        stream = server.client.completions.create(
            model="smol", prompt=PROMPTS[0], max_tokens=400, stream=True, extra_body={"ignore_eos": True}
        )
        pieces = 0
        for _ in stream:
            pieces += 1
            if pieces == 3:
                stream.close()
                break
        return pieces

    def refused() -> int:
        with pytest.raises(openai.BadRequestError) as problem:
            _complete(server, 0, nsd_theta=-0.1)
        assert "nsd_theta" in str(problem.value)
        return problem.value.status_code

    with ThreadPoolExecutor(18) as pool:
        gone, bad = pool.submit(cancelled), pool.submit(refused)
        answers = list(pool.map(lambda i: _complete(server, i, nsd_theta=THETAS[i // 4]), range(16)))
    assert gone.result() == 3 and bad.result() == 400
    assert all(answer.usage.completion_tokens == 32 for answer in answers)
    taus = [sum(map(_tau, answers[i : i + 4])) / 4 for i in range(0, 16, 4)]
    assert taus[0] < taus[2] < taus[3], taus
    assert taus[0] + 0.5 < taus[2], taus
    _idle(server)


def _idle(server: Server) -> None:
    """Wait until nothing runs: a cancelled request must not go on."""
    end = time.monotonic() + 30
    while server.counters()["vllm:num_requests_running"]:
        assert time.monotonic() < end, "a request is still running"
        time.sleep(0.5)


@pytest.mark.parametrize("fields", BAD, ids=lambda fields: next(iter(fields)))
def test_a_bad_field_gets_400_by_name_and_the_server_lives_on(server: Server, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        _complete(server, 0, **fields)
    assert refused.value.status_code == 400
    assert next(iter(fields)) in str(refused.value)
    assert server.get("/health") == ""
    assert _complete(server, 0, nsd_theta=1.0).usage.completion_tokens == 32


def test_the_servers_default_and_a_request_that_declines_it(server: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        declining = pool.map(lambda i: _tau(_complete(server, i, nsd_rule="sd")), range(4))
        default = sum(pool.map(lambda i: _tau(_complete(server, i)), range(4))) / 4
        declined = sum(declining) / 4
    assert declined + 0.5 < default, (declined, default)


def test_counters_tell_rescued_from_ordinary(server: Server) -> None:
    before = _settled(server)
    _complete(server, 1, nsd_rule="sd")
    exact = _settled(server)
    _complete(server, 1, nsd_theta=0.95)
    relaxed = _settled(server)
    nsd = ("nsd:tested_total", "nsd:ordinary_total", "nsd:rescued_total", "nsd:excess_total", "nsd:spent_total")
    assert all(before[name] == exact[name] for name in nsd), "an exact request is none of NSD's"
    assert all(exact[name] < relaxed[name] for name in nsd if name != "nsd:ordinary_total"), (exact, relaxed)
    assert relaxed["nsd:spent_total"] <= relaxed["nsd:excess_total"] + 1e-9
    name = "vllm:spec_decode_num_accepted_tokens_total"
    kept = sum(relaxed[f"nsd:{kind}_total"] - exact[f"nsd:{kind}_total"] for kind in ("ordinary", "rescued"))
    assert before[name] <= exact[name] < relaxed[name]
    # vLLM does not count drafts beyond the token limit, at most K of the last step.
    assert relaxed[name] - exact[name] <= kept <= relaxed[name] - exact[name] + K


def _settled(server: Server) -> dict[str, float]:
    """The counters once two fetches of the plugin have passed without a change."""
    _idle(server)
    seen: list[dict[str, float]] = []
    end = time.monotonic() + 30
    while time.monotonic() < end:
        now = {k: v for k, v in server.counters().items() if k.startswith("nsd:") or "spec_decode" in k}
        if len(seen) >= 4 and seen[-1] == seen[-2] == seen[-3] == now:
            break
        seen.append(now)
        time.sleep(0.5)
    return seen[-1]


def test_the_log_says_what_is_active(server: Server) -> None:
    log = server.log.read_text("utf-8", errors="replace")
    assert "nsd active: default rule nsd, theta 0.95" in log
