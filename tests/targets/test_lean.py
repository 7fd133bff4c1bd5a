"""The lean target against transformers' own modules: logits, sessions, taps, layers left out, and how it is chosen."""

import random

import pytest
import torch
import transformers as tr
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from nsd.drafters.layer_skip import skipped_target
from nsd.errors import ConfigError, ModelError
from nsd.targets.base import FINAL_NORM
from nsd.targets.hf import HfTarget
from nsd.targets.lean import LeanTarget, assemble, shape_of
from nsd.targets.load import load_target
from nsd.targets.toy import LetterTokenizer
from tests.targets.test_layer_skip import by_hand
from tests.targets.zoo import BASE, VOCAB, model_of, plain_logits

SCALED = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8,
    "mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
CASES = {
    "llama": lambda: tr.LlamaConfig(**BASE),
    "llama-tied": lambda: tr.LlamaConfig(**BASE, tie_word_embeddings=True),
    "llama-biased": lambda: tr.LlamaConfig(**BASE, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3),
    "mistral": lambda: tr.MistralConfig(**BASE, sliding_window=None),
    "ministral3": lambda: tr.Ministral3Config(**BASE, sliding_window=None, rope_parameters=SCALED),
    "qwen2-tied": lambda: tr.Qwen2Config(**BASE, use_sliding_window=False, tie_word_embeddings=True),
    "qwen3": lambda: tr.Qwen3Config(**BASE, head_dim=12),
}


def both(name: str, weights: str = "dense", dtype: torch.dtype = torch.float32) -> tuple[HfTarget, LeanTarget]:
    """One random model behind transformers and behind the lean decoder; biases and norms away from 0 and 1."""
    model = model_of(CASES[name](), seed=len(name))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.normal_(0.5, 0.2, generator=generator)
    theirs = HfTarget(model, LetterTokenizer(VOCAB), name, check=False)
    config = model.config.to_dict()
    tensors = {key: tensor.detach().to(dtype) for key, tensor in model.state_dict().items()}
    decoder, ends = assemble(shape_of(config, name), tensors, dtype, weights, config["tie_word_embeddings"])
    return theirs, LeanTarget(decoder, *ends, LetterTokenizer(VOCAB), name, VOCAB, context=256, weights=weights)


@pytest.fixture(scope="module", params=CASES)
def pair(request):
    return both(request.param)


def tokens(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(n)]


def agree(theirs, logits, histories, inputs):
    """The logits after each new token of each request are those of a plain forward."""
    rows = [
        plain_logits(theirs, [*history, *new])[len(history) :]
        for history, new in zip(histories, inputs, strict=True)
        if new
    ]
    torch.testing.assert_close(logits, torch.cat(rows), atol=1e-5, rtol=1e-5)


def test_ragged_batch_any_history(pair):
    theirs, lean = pair
    rng = random.Random(7)
    histories = [tokens(rng, n) for n in (9, 1, 4, 6)]
    session, scores = lean.open(histories, room=12)
    expected = torch.stack([plain_logits(theirs, h)[-1] for h in histories])
    torch.testing.assert_close(scores.logits, expected, atol=1e-5, rtol=1e-5)
    fed, calls = sum(map(len, histories)), 1
    for step in range(10):
        pending = [[] for _ in histories]
        for _ in range(rng.choice((1, 1, 2, 3))):
            inputs = [tokens(rng, rng.randrange(0, 5)) for _ in histories]
            inputs[rng.randrange(len(inputs))] = tokens(rng, 2)
            logits = session.score(inputs).logits
            agree(theirs, logits, [h + p for h, p in zip(histories, pending, strict=True)], inputs)
            pending = [p + new for p, new in zip(pending, inputs, strict=True)]
            fed, calls = fed + sum(map(len, inputs)), calls + 1
        counts = [rng.randint(0, len(p)) for p in pending]
        session.keep(counts)
        histories = [h + p[:c] for h, p, c in zip(histories, pending, counts, strict=True)]
        if step in (4, 7):
            staying = sorted(rng.sample(range(len(histories)), len(histories) - 1))
            session.retain(staying)
            histories = [histories[b] for b in staying]
        assert session.ledger.lengths == session.cache.lengths == [len(h) for h in histories]
    assert (session.positions, session.calls) == (fed, calls), "a position was fed twice"


def test_one_request_blocks_of_every_length_and_rollback(pair):
    """Short blocks take their mask from one made in advance, long ones make their own; the cache grows on the way."""
    theirs, lean = pair
    rng = random.Random(11)
    history = tokens(rng, 7)
    session, _ = lean.open([history], room=3)
    for length in (1, 2, 5, 31, 32, 33, 40, 3):
        new = tokens(rng, length)
        first = session.score([new]).logits
        agree(theirs, first, [history], [new])
        session.keep([0])
        session.score([tokens(rng, 4)])
        session.keep([0])
        assert torch.equal(session.score([new]).logits, first), "rolled back to the bit"
        kept = rng.randint(0, length)
        session.keep([kept])
        history = history + new[:kept]


def test_equal_lengths_in_a_batch(pair):
    theirs, lean = pair
    rng = random.Random(2)
    histories = [tokens(rng, 5) for _ in range(3)]
    session, _ = lean.open(histories, room=9)
    for length in (1, 4, 2):
        inputs = [tokens(rng, length) for _ in range(3)]
        agree(theirs, session.score(inputs).logits, histories, inputs)
        session.keep([length] * 3)
        histories = [h + new for h, new in zip(histories, inputs, strict=True)]


def test_taps_are_those_of_transformers(pair):
    theirs, lean = pair
    taps, prompts, inputs = (2, 0, FINAL_NORM, lean.layers), [[1, 2, 3, 4, 5], [9, 10, 11]], [[1, 2], [3, 4, 5]]
    opened = [target.open(prompts, 10, taps) for target in (lean, theirs)]
    torch.testing.assert_close(opened[0][1].taps, opened[1][1].taps, atol=1e-5, rtol=1e-5)
    later = [session.score(inputs) for session, _ in opened]
    torch.testing.assert_close(later[0].taps, later[1].taps, atol=1e-5, rtol=1e-5)
    assert lean.open(prompts, 4)[1].taps is None
    with pytest.raises(ModelError, match=r"taps 0\.\.4 and -1"):
        lean.open(prompts, 4, (5,))


def test_ends_are_those_of_transformers(pair):
    theirs, lean = pair
    ids, states = torch.tensor([3, 0, 7]), torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    for name, given in (("embed", ids), ("head_rows", ids), ("logits", states)):
        torch.testing.assert_close(getattr(lean, name)(given), getattr(theirs, name)(given))
    tied = theirs.model.config.tie_word_embeddings
    assert (lean.ends[0] is lean.ends[1]) == tied
    assert lean.parameters == sum(p.numel() for p in theirs.model.parameters()), "tied ends count once"


def test_layers_left_out(pair):
    theirs, lean = pair
    skipped = skipped_target(lean, (1, 2))
    ids = [1, 2, 3, 4, 5, 6]
    expected = by_hand(theirs, ids, (1, 2))[-1:]
    torch.testing.assert_close(skipped.open([ids], 4)[1].logits, expected, atol=1e-5, rtol=1e-5)
    assert skipped.decoder.layers[0] is lean.decoder.layers[0], "shared weights"
    with pytest.raises(ConfigError, match="layer 9"):
        skipped_target(lean, (9,))


def test_what_leaves_a_session_is_an_ordinary_tensor():
    session, scores = both("llama")[1].open([[1, 2, 3], [4]], 0, (2,))
    for got in (scores, session.score([[1], [2, 3]])):
        got.logits[0, 0] = 0.0
        weight = torch.ones(32, requires_grad=True)
        (got.taps * weight).sum().backward()
        assert weight.grad.isfinite().all()


def test_bfloat16_gives_float32_logits_near_those_of_float32():
    """Mean total variation below 0.05 a position, for weights eight times as large as those of a trained model."""
    _, exact = both("qwen3")
    _, rounded = both("qwen3", dtype=torch.bfloat16)
    p, q = (target.open([list(range(20))], 1)[1].logits for target in (exact, rounded))
    assert q.dtype == torch.float32 and rounded.dtype_name == "bfloat16"
    assert 0 < 0.5 * (p.softmax(-1) - q.softmax(-1)).abs().sum(-1).mean() < 0.05


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lean")
    model_of(CASES["llama-tied"]()).save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    tr.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(folder)
    return folder


def test_a_folder_loads_on_either_engine(saved):
    lean, theirs = (load_target(saved, "float32", "cpu", engine=e) for e in ("auto", "transformers"))
    assert isinstance(lean, LeanTarget) and isinstance(theirs, HfTarget)
    for fact in ("vocab", "layers", "hidden", "context", "eos", "default_temperature", "dtype", "dtype_name"):
        assert getattr(lean, fact) == getattr(theirs, fact), fact
    ids = [[5, 6, 7, 8], [9]]
    torch.testing.assert_close(lean.open(ids, 1)[1].logits, theirs.open(ids, 1)[1].logits, atol=1e-5, rtol=1e-5)
    model = lean.reference()
    torch.testing.assert_close(model(torch.tensor(ids[:1])).logits[0, -1], lean.open(ids, 1)[1].logits[0])
    assert theirs.reference() is theirs.model and both("llama")[1].reference() is None


def test_other_architectures_run_through_transformers(tmp_path, saved):
    for path in saved.glob("tokenizer*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    model_of(tr.MistralConfig(**BASE, sliding_window=5)).save_pretrained(tmp_path)
    assert isinstance(load_target(tmp_path, "float32", "cpu"), HfTarget)
    with pytest.raises(ModelError, match="sliding-window"):
        load_target(tmp_path, "float32", "cpu", engine="lean")
    with pytest.raises(ModelError, match="sliding-window"):
        load_target(tmp_path, "int8", "cpu")
    with pytest.raises(ModelError, match=r"of type gpt2.*engine transformers"):
        shape_of(tr.GPT2Config().to_dict(), "some-name")
    with pytest.raises(ModelError, match="stored quantised"):
        shape_of({**tr.LlamaConfig().to_dict(), "quantization_config": {"bits": 4}}, "some-name")


@pytest.mark.parametrize(
    ("keywords", "part"),
    [
        ({"engine": "steam"}, "got engine 'steam', wanted auto, lean, transformers"),
        ({"dtype": "int8", "engine": "transformers"}, "try --engine lean"),
        ({"dtype": "int5"}, "int8, int4, w8a8; try --dtype auto"),
    ],
)
def test_settings_out_of_range(saved, keywords, part):
    with pytest.raises(ConfigError) as error:
        load_target(saved, **{"device": "cpu", **keywords})
    assert part in str(error.value) and "\n" not in str(error.value)
