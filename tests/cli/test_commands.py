"""The command line as a user meets it: products on stdout, talk on stderr, one line and exit code 2 for bad input."""

import io
import json
import os
import signal
import subprocess
import sys

import pytest

from nsd.cli import main

TOY = ("--model", "toy", "--threads", "1")


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def nsd(capsys, monkeypatch):
    def run(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "argv", ["nsd", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return Result(stop.value.code or 0, captured.out, captured.err)

    return run


def test_generate_puts_the_text_alone_on_stdout(nsd):
    seen = nsd("generate", "abc abc", *TOY, "--max-new-tokens", "20")
    data = json.loads(nsd("generate", "abc abc", *TOY, "--max-new-tokens", "20", "--json").out)
    assert seen.code == 0
    assert seen.out == data["text"] + "\n"
    assert "seed 0" in seen.err
    assert "lossy" in seen.err and "--rule sd is exact" in seen.err
    assert "tau" in seen.err
    assert "\x1b[" not in seen.out


def test_generate_json_has_every_promised_key(nsd):
    data = json.loads(nsd("generate", "abc abc", *TOY, "--json", "--seed", "7").out)
    assert data["schema_version"] == 1
    top = {
        "text", "token_ids", "finish_reason", "rule", "theta", "drafter", "draft_law", "k", "temperature",
        "seed", "stats",
    }  # fmt: skip
    assert top <= data.keys()
    stats = {
        "output_tokens", "prefill_tokens_out", "blocks", "tau", "tau_per_request", "drafted", "tested", "accepted",
        "by_ratio", "rescued", "rejected", "recovered", "bonus", "tokens_per_second", "ttft_s", "calls_per_token",
        "verify_ms_per_token", "draft_ms_per_token", "verify_share", "mean_R", "mean_ES", "max_ES", "guards",
    }  # fmt: skip
    assert stats <= data["stats"].keys()
    assert data["seed"] == 7
    assert data["draft_law"] == "point"
    assert {"guarantee", "ledger", "weight", "expected_rescues"} <= data["fidelity"].keys()


def test_standard_input_is_a_prompt(nsd):
    piped = nsd("generate", *TOY, "--json", stdin=b"abc abc")
    given = nsd("generate", "abc abc", *TOY, "--json")
    assert json.loads(piped.out)["token_ids"] == json.loads(given.out)["token_ids"]


def test_theta_at_temperature_0_is_said_to_have_no_effect(nsd):
    seen = nsd("generate", "abc", *TOY, "--temperature", "0", "--theta", "0.9")
    assert "theta has no effect at temperature 0" in seen.err
    assert "no effect" not in nsd("generate", "abc", *TOY, "--temperature", "0").err


def test_a_budget_says_beforehand_how_little_it_buys(nsd):
    seen = nsd("generate", "abc abc abc", *TOY, "--agreement", "0.95")
    assert "at most 0.0513 rescued tokens" in seen.err


def test_compare_prints_arms_and_json(nsd):
    seen = nsd("compare", "abc abc abc", *TOY, "--repeats", "2", "--max-new-tokens", "16")
    assert all(word in seen.out for word in ("AR", "SD", "NSD", "tau", "target calls per token", "mean ES"))
    data = json.loads(nsd("compare", "abc abc", *TOY, "--repeats", "2", "--max-new-tokens", "16", "--json").out)
    assert [arm["name"] for arm in data["arms"]] == ["ar", "sd", "nsd"]
    assert {"nsd_over_ar", "nsd_over_sd", "sd_over_ar", "ar_over_transformers"} == data["speedup"].keys()
    assert data["speedup"]["ar_over_transformers"] is None and data["reasons"]["ar_over_transformers"]
    assert data["order"] == [["ar", "sd", "nsd"], ["sd", "nsd", "ar"]]
    ar = data["arms"][0]["stats"]
    assert ar["tau"] == 1.0 and ar["drafted"] == 0


def test_lists_name_what_there_is(nsd):
    rules = json.loads(nsd("list", "rules", "--json").out)["rules"]
    assert {"sd", "nsd", "sample-and-match", "greedy", "typical", "cascade", "mentored"} <= {r["name"] for r in rules}
    assert "ngram" in nsd("list", "drafters").out
    assert "smollm2-135m" in nsd("list", "models").out


def test_doctor_checks_the_pair(nsd):
    data = json.loads(nsd("doctor", *TOY, "--json").out)
    assert data["ok"]
    assert {"target", "drafter", "draft law", "k", "dtype"} <= {check["name"] for check in data["checks"]}
    bad = nsd("doctor", *TOY, "--drafter", "ngrm")
    assert bad.code == 1
    assert "did you mean ngram" in bad.out


BAD_INPUT = [
    (("generate", "x", "--rule", "nsdd"), "did you mean nsd"),
    (("generate", "x", *TOY, "--drafter", "ngrma"), "did you mean ngram"),
    (("generate", "x", "--theta", "1.5"), "theta is 1.5, wanted a number in [0, 1]"),
    (("generate", "x", "--theta", "nan"), "theta is nan"),
    (("generate", "x", "--theta", "abc"), "--theta"),
    (("generate", "x", "-k", "-1"), "k is -1"),
    (("generate", "x", "--temperature", "-1"), "temperature is -1"),
    (("generate", "x", "--top-p", "0"), "top_p is 0"),
    (("generate", "x", "--max-deviation", "-0.1"), "max_deviation is -0.1"),
    (("generate", "x", "--rule", "typical", "--max-deviation", "0.1"), "typical has no max_deviation"),
    (("generate", "x", "--agreement", "2"), "agreement is 2"),
    (("generate", "x", "--set", "l"), "--set got 'l'"),
    (("generate", "x", "--rule", "lenience", "--set", "l=7"), "l is 7"),
    (("generate", "", *TOY), "the prompt is empty"),
    (("generate", "   ", *TOY), "the prompt is empty"),
    (("generate", "x", "--max-new-tokens", "0"), "max_new_tokens is 0"),
    (("generate", "x" * 5000, *TOY), "takes at most 4095"),
    (("generate", "x", "--model", "/no/such/folder"), "/no/such/folder"),
    (("generate", "x", "--bogus"), "bogus"),
    (("generate", "x", "--seed", "-3"), "seed is -3"),
    (("compare", "x", *TOY, "--repeats", "0"), "repeats is 0"),
    (("frobnicate",), "frobnicate"),
    (("audit", "/no/such/trace"), "/no/such/trace"),
    (("theory", "step", "--p", "0.5,0.6", "--q", "0.5,0.5", "--theta", "0.9"), "1.1"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD_INPUT, ids=[said for _, said in BAD_INPUT])
def test_bad_input_is_one_line_and_exit_code_2(nsd, arguments, said):
    seen = nsd(*arguments)
    assert seen.code == 2
    assert seen.out == ""
    complaint = [line for line in seen.err.splitlines() if line.startswith("nsd: ")]
    assert len(complaint) == 1 and said in complaint[0]
    assert "Traceback" not in seen.err


def test_input_that_is_not_utf8_is_refused(nsd):
    seen = nsd("generate", *TOY, stdin=b"abc\xff")
    assert seen.code == 2
    assert "byte 0xff at offset 3" in seen.err


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["nsd", "--debug", "generate", "x", "--theta", "2"])
    with pytest.raises(ValueError, match="theta"):
        main()


def test_a_trace_is_recorded_audited_and_viewed(nsd, tmp_path):
    trace, page = tmp_path / "run.jsonl", tmp_path / "run.html"
    settings = ("--rule", "nsd", "--theta", "0.9", "--max-deviation", "0.2")
    assert nsd("generate", "abc abc abc", *TOY, *settings, "--trace", str(trace)).code == 0
    assert nsd("audit", str(trace)).code == 0
    assert json.loads(nsd("audit", str(trace), "--json").out)["kind"] == "audit"
    assert nsd("view", str(trace), "-o", str(page)).code == 0
    assert "<html" in page.read_text()
    # An existing file is never overwritten.
    assert nsd("generate", "abc", *TOY, "--trace", str(trace)).code == 2


def test_help_and_import_load_no_tensor_library():
    program = (
        "import sys, nsd, nsd.cli\n"
        "sys.argv = ['nsd', '--help']\n"
        "try: nsd.cli.main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "generate" in done.stdout


def test_ctrl_c_leaves_the_partial_text_and_exits_130():
    command = [
        sys.executable,
        "-u",
        "-m",
        "nsd",
        "generate",
        "abc",
        *TOY,
        "--max-new-tokens",
        "4000",
        "--drafter",
        "none",
    ]
    # A shell's background job starts with SIGINT ignored and hands that on; a user at a terminal does not.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    first = process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    rest, talk = process.communicate(timeout=60)
    assert len(first) == 20
    assert process.returncode == 130
    assert b"Traceback" not in talk
    assert b"tau" in talk
    assert rest.endswith(b"\n")


def test_a_closed_pipe_ends_with_its_own_code():
    command = [sys.executable, "-m", "nsd", "generate", "abc", *TOY, "--max-new-tokens", "4000", "--drafter", "none"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(5)
    process.stdout.close()
    talk = process.stderr.read()
    assert process.wait(timeout=60) == 141
    assert b"Traceback" not in talk


def test_a_full_disk_is_one_line():
    command = f"{sys.executable} -m nsd generate abc {' '.join(TOY)} > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "No space left" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("--theta", "0"), False),
        (("--max-deviation", "0"), False),
        (("--rule", "sd"), False),
        (("--drafter", "none"), False),
        (("-k", "0"), False),
        (("--theta", "0.5"), True),
        (("--max-deviation", "0.1"), True),
    ],
)
def test_lossy_is_said_where_it_is_so_and_nowhere_else(nsd, settings, said):
    seen = nsd("generate", "abc abc abc", *TOY, *settings)
    assert ("is lossy" in seen.err) == said
    if settings == ("--max-deviation", "0.1"):
        assert "at most 0.1" in seen.err


def test_infinite_numbers_are_text_in_json(nsd):
    data = json.loads(nsd("generate", "abc", *TOY, "--max-deviation", "inf", "--json").out)
    assert data["rule_numbers"]["max_deviation"] == "inf"


def test_an_argument_that_is_not_utf8_is_refused(nsd):
    seen = nsd("generate", "abc\udcff", *TOY)
    assert seen.code == 2
    assert "not UTF-8" in seen.err


def test_the_untempered_nucleus_is_reachable(nsd):
    seen = nsd("generate", "abc abc", *TOY, "--rule", "cold-nucleus", "--temperature", "0")
    assert seen.code == 0
    assert "lossy against greedy" in seen.err
    assert nsd("generate", "abc", *TOY, "--rule", "cold-nucleus").code == 2


def test_drafter_options_reach_the_drafter(nsd):
    data = json.loads(
        nsd("generate", "abc abc", *TOY, "--drafter", "draft-model", "--draft", "source=toy", "--json").out
    )
    assert data["draft_law"] == "sampled"
    greedy = ("--drafter", "draft-model", "--draft", "source=toy", "--draft", "greedy=true", "--json")
    assert json.loads(nsd("generate", "abc abc", *TOY, *greedy).out)["draft_law"] == "point"
    assert nsd("generate", "abc", *TOY, "--draft", "max_n").code == 2


def test_a_configuration_file_gives_defaults_that_flags_override(nsd, tmp_path):
    path = tmp_path / "fast.toml"
    path.write_text('theta = 0.5\nk = 2\nmodel = "toy"\n')
    data = json.loads(nsd("--config", str(path), "generate", "abc", "--json").out)
    assert (data["theta"], data["k"], data["model"]) == (0.5, 2, "toy")
    assert json.loads(nsd("generate", "abc", f"--config={path}", "--theta", "0.6", "--json").out)["theta"] == 0.6
    assert nsd("--config", str(tmp_path / "none.toml"), "generate", "abc").code == 2
