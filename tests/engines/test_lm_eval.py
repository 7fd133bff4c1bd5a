"""The harness's own evaluator over tasks written here, offline, under plain decoding, standard speculation and NSD."""

import json
import subprocess
import sys

import pytest
import torch

pytest.importorskip("lm_eval", reason="lm-eval is not installed; pip install 'nucleus-speculative-decoding[lm-eval]'")

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

import nsd
from nsd.engines.lm_eval import NSDLM
from nsd.errors import ConfigError

GENERATIVE = """
task: tiny_generate
dataset_path: json
dataset_kwargs:
  data_files: {data}
output_type: generate_until
test_split: train
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: ["\\n"]
  do_sample: {do_sample}
  temperature: {temperature}
  max_gen_toks: 12
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    ignore_case: true
"""
CHOICE = """
task: tiny_choice
dataset_path: json
dataset_kwargs:
  data_files: {data}
output_type: multiple_choice
test_split: train
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""
DOCS = [
    {"question": "The capital of France is", "answer": "Paris", "choices": [" Paris", " Berlin"], "label": 0},
    {"question": "One plus one is", "answer": "two", "choices": [" green", " two"], "label": 1},
    {"question": "The opposite of hot is", "answer": "cold", "choices": [" cold", " wood"], "label": 0},
    {"question": "Fish live in", "answer": "water", "choices": [" the desert", " water"], "label": 1},
]


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """A folder of two tasks over one local file; what datasets writes stays in it too."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    data = tmp_path / "docs.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in DOCS), encoding="utf-8")
    (tmp_path / "generate.yaml").write_text(
        GENERATIVE.format(data=data, do_sample="true", temperature="1.0"), encoding="utf-8"
    )
    (tmp_path / "choice.yaml").write_text(CHOICE.format(data=data), encoding="utf-8")
    return tmp_path


def evaluate(tasks, names, **options):
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    return lm_eval.simple_evaluate(
        tasks=names, task_manager=manager, log_samples=True, bootstrap_iters=0, verbosity="ERROR", **options
    )


def texts(results, task="tiny_generate"):
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    return [sample["resps"][0][0] for sample in samples]


def test_generative_task_under_each_rule(tasks):
    found = {}
    for rule in ("ar", "sd", "nsd,theta=1.0"):
        results = evaluate(tasks, ["tiny_generate"], model="nsd", model_args=f"model=toy,drafter=ngram,rule={rule}")
        found[rule] = results["config"]["nsd"]
        assert len(texts(results)) == len(DOCS)
        assert all("\n" not in text for text in texts(results))
        assert results["results"]["tiny_generate"]["exact_match,none"] == 0.0
    assert found["ar"]["drafter"] is None and found["ar"]["stats"]["drafted"] == 0
    assert found["sd"]["sum_eps"] == 0.0 and found["sd"]["stats"]["rescued"] == 0
    assert found["nsd,theta=1.0"]["rule_numbers"]["theta"] == 1.0
    assert found["nsd,theta=1.0"]["stats"]["rescued"] > 0 and found["nsd,theta=1.0"]["sum_eps"] > 0


def test_texts_are_those_of_the_front_door():
    lm = NSDLM(model="toy", drafter="ngram", rule="nsd", theta=0.9, seed=3)
    settings = {"do_sample": True, "temperature": 0.8, "top_k": 40, "until": ["e"], "max_gen_toks": 30}
    found = lm.generate_until([_instance(doc["question"], settings) for doc in DOCS], disable_tqdm=True)
    pair = nsd.load("toy", "ngram")
    for key, (text, doc) in enumerate(zip(found, DOCS, strict=True)):
        request = lm._request(key, doc["question"], settings)
        assert request.key == key and request.sampling.top_k == 40
        run = pair.decode([request], nsd.Accounting.FULL)
        for _ in run:
            pass
        assert text == run.completions()[0].text
        assert "e" not in text
    alone = pair.generate(DOCS[0]["question"], rule="nsd", theta=0.9, seed=3, temperature=0.8, top_k=40, stop=("e",))
    assert found[0] == alone.text[: len(found[0])]


def test_batches_change_nothing_and_the_seed_does():
    settings = {"do_sample": True, "temperature": 1.0, "until": [], "max_gen_toks": 20}
    found = {}
    for size, seed in ((1, 0), (3, 0), (1, 1)):
        lm = NSDLM(model="toy", drafter="ngram", batch_size=size, seed=seed)
        found[size, seed] = lm.generate_until([_instance(d["question"], settings) for d in DOCS], disable_tqdm=True)
    assert found[1, 0] == found[3, 0] != found[1, 1]


def _instance(context, second):
    return Instance(request_type="generate_until", doc={}, arguments=(context, second), idx=0)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_loglikelihoods_are_the_targets(batch_size):
    lm = NSDLM(model="toy", rule="nsd", drafter="ngram", batch_size=batch_size)
    table = lm.target
    pairs = [("ab", "cde"), ("abcdef", "g"), ("x", "yz")]
    found = lm.loglikelihood([_instance(*pair) for pair in pairs], disable_tqdm=True)
    for (context, continuation), (score, greedy) in zip(pairs, found, strict=True):
        ids, total, best = list(context.encode()), 0.0, True
        for token in continuation.encode():
            _, scores = table.open([ids], 1)
            law = torch.log_softmax(scores.logits[0].double(), -1)
            total, best = total + float(law[token]), best and int(law.argmax()) == token
            ids.append(token)
        assert score == pytest.approx(total, abs=1e-4) and greedy == best
    rolling = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("abcd",), 0)], disable_tqdm=True)
    whole = lm._loglikelihood_tokens([(None, [lm.prefix_token_id], list(b"abcd"))], disable_tqdm=True)
    assert rolling[0] == pytest.approx(whole[0][0], abs=1e-4)


def test_long_texts_are_cut_to_the_context():
    lm = NSDLM(model="toy", rule="ar")
    lm.target.context = 8
    settings = {"until": [], "max_gen_toks": 3}
    assert lm._request(0, "abcdefghijk", settings).prompt == tuple(b"ghijk")
    context, continuation = lm._fitted(list(range(20)), [1, 2, 3])
    assert (len(context) + len(continuation), continuation) == (8, [1, 2, 3])


def test_a_rolling_text_is_scored_once_per_id_in_windows_of_the_context():
    lm = NSDLM(model="toy", rule="ar")
    lm.target.context = 8
    text = "the quick brown fox"
    ids = list(text.encode())
    found = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)], disable_tqdm=True)[0]
    # Windows of 7 ids: the first predicts 7 from the prefix on, each later one its 7 from one id of context on.
    total, before = 0.0, [lm.prefix_token_id]
    for start in range(0, len(ids), 7):
        window = ids[start : start + 7] if start + 7 <= len(ids) else ids[start:]
        context = before if start + 7 <= len(ids) else ids[len(ids) - 8 : start]
        for token in window:
            _, scores = lm.target.open([context[-7:]], 1)
            total += float(torch.log_softmax(scores.logits[0].float(), -1)[token])
            context = [*context, token]
        before = ids[start + 6 : start + 7]
    assert found == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "settings", "named"),
    [
        ({}, {"num_beams": 4}, "num_beams"),
        ({}, {"max_gen_toks": 100_000}, "max_gen_toks"),
        ({"batch_size": "auto"}, {}, "batch_size"),
        ({"rule": "nds"}, {}, "did you mean nsd"),
        ({"theta": 2.0}, {}, "theta"),
        ({"rule": "sd", "theta": 0.9}, {}, "theta"),
    ],
)
def test_what_cannot_be_honoured_is_named(arguments, settings, named):
    with pytest.raises(ConfigError, match=named):
        NSDLM(model="toy", drafter="ngram", **arguments).generate_until([_instance("a", settings)], disable_tqdm=True)


@pytest.mark.model
def test_smollm2_answers_multiple_choice_and_generates(tasks):
    data = tasks / "docs.jsonl"
    greedy = GENERATIVE.format(data=data, do_sample="false", temperature="0.0")
    (tasks / "generate.yaml").write_text(greedy.replace("tiny_generate", "tiny_greedy"), encoding="utf-8")
    found = {}
    for rule in ("ar", "nsd"):
        found[rule] = evaluate(
            tasks, ["tiny_choice", "tiny_greedy"], model="nsd", model_args={"rule": rule, "batch_size": 4}
        )
        assert found[rule]["results"]["tiny_choice"]["acc,none"] >= 0.75
    assert texts(found["ar"], "tiny_greedy") == texts(found["nsd"], "tiny_greedy")
    assert "Paris" in texts(found["ar"], "tiny_greedy")[0]
    assert found["nsd"]["config"]["nsd"]["stats"]["tau"] > 1


def test_the_command_line_knows_the_model(tasks):
    """Through the harness's own command, in a process of its own; without this module the name is unknown."""
    arguments = ["run", "--model", "nsd", "--model_args", "model=toy,drafter=ngram", "--tasks", "tiny_choice"]
    arguments += ["--include_path", str(tasks), "--batch_size", "2", "--output_path", str(tasks / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "nsd.engines.lm_eval", *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "tiny_choice" in done.stdout
    written = next((tasks / "out").rglob("results*.json"))
    assert json.loads(written.read_text())["config"]["nsd"]["rule"] == "nsd"
