"""Models that cannot be a target are refused by name, with the reason."""

import pytest
import torch
import transformers as tr

from nsd.errors import ModelError
from nsd.targets.hf import HfTarget
from nsd.targets.support import require_supported
from nsd.targets.toy import LetterTokenizer
from tests.targets.zoo import BASE, FAMILIES, VOCAB, model_of


@pytest.mark.parametrize(
    ("config", "model_class", "reason"),
    [
        (tr.MambaConfig(), tr.MambaForCausalLM, "rolled back"),
        (tr.Mamba2Config(), tr.Mamba2ForCausalLM, "rolled back"),
        (tr.RwkvConfig(), tr.RwkvForCausalLM, "recurrent state"),
        (tr.RecurrentGemmaConfig(), tr.RecurrentGemmaForCausalLM, "rolled back"),
        (tr.Qwen3NextConfig(num_hidden_layers=4), tr.Qwen3NextForCausalLM, "linear_attention"),
        (tr.JambaConfig(), tr.JambaForCausalLM, "rolled back"),
        (tr.Lfm2Config(layer_types=["conv", "full_attention"], num_hidden_layers=2), tr.Lfm2ForCausalLM, "conv"),
        (tr.T5Config(), tr.T5ForConditionalGeneration, "encoder-decoder"),
    ],
    ids=lambda x: getattr(x, "model_type", ""),
)
def test_known_families_are_refused_by_configuration(config, model_class, reason):
    with pytest.raises(ModelError, match=f"^some-name \\({config.model_type}\\).*{reason}") as caught:
        require_supported(config, model_class, "some-name")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_attention_models_pass(family):
    config = FAMILIES[family]()
    require_supported(config, type(None), family)


def test_a_loaded_mamba_is_refused():
    model = model_of(tr.MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=4))
    with pytest.raises(ModelError, match=r"mamba.*rolled back"):
        HfTarget(model, LetterTokenizer(VOCAB))


def test_a_model_that_ignores_masks_of_rows_fails_its_probe():
    """GPT-Neo places its causal mask by tensor sizes, so rows of different lengths would come out wrong."""
    model = model_of(
        tr.GPTNeoConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=4,
            max_position_embeddings=64,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    with pytest.raises(ModelError, match="ragged batch"):
        HfTarget(model, LetterTokenizer(VOCAB), "neo")


def test_a_model_that_takes_no_mask_of_rows_is_refused():
    model = model_of(
        tr.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2)
    )
    with pytest.raises(ModelError, match="a length for each request"):
        HfTarget(model, LetterTokenizer(VOCAB), "bloom")


def test_a_model_that_ignores_the_cache_is_refused():
    model = model_of(FAMILIES["llama"]())
    plain = model.forward

    def forward(input_ids=None, use_cache=None, **_):
        return plain(input_ids=input_ids, use_cache=False)

    model.forward = forward
    with pytest.raises(ModelError, match="does not use the cache"):
        HfTarget(model, LetterTokenizer(VOCAB), "stubborn")


def test_attention_without_masks_of_rows_is_refused():
    model = model_of(FAMILIES["llama"]())
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ModelError, match="attn_implementation='sdpa'"):
        HfTarget(model, LetterTokenizer(VOCAB), "flash")


def test_facts_come_from_the_model_and_its_tokenizer():
    model = model_of(tr.LlamaConfig(**BASE))
    model.generation_config.eos_token_id = [2, 5]
    model.generation_config.temperature = 0.6
    tokenizer = LetterTokenizer(VOCAB - 3)
    tokenizer.eos_token_id = 7
    target = HfTarget(model, tokenizer, "facts")
    assert target.eos == {2, 5, 7}
    assert target.default_temperature == 0.6
    assert target.absent.nonzero().flatten().tolist() == [VOCAB - 3, VOCAB - 2, VOCAB - 1]
    assert (target.vocab, target.hidden, target.layers, target.context) == (VOCAB, 32, 4, 256)
    assert (target.dtype, target.device) == (torch.float32, torch.device("cpu"))
    plain = HfTarget(model_of(tr.LlamaConfig(**BASE)), LetterTokenizer(VOCAB), "plain")
    assert plain.absent is None and plain.default_temperature == 1.0


def test_a_tokenizer_without_any_of_the_ids_is_refused():
    class Empty:
        def token_text(self, token):
            return None

    with pytest.raises(ModelError, match="no entry for any"):
        HfTarget(model_of(FAMILIES["llama"]()), Empty(), "odd")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_not_mistaken_for_a_wrong_mask(dtype):
    for family in ("llama", "gemma2", "mistral"):
        target = HfTarget(model_of(FAMILIES[family]()).to(dtype), LetterTokenizer(VOCAB), family)
        session, scores = target.open([[1, 2, 3], [4]], 4)
        assert scores.logits.dtype == dtype
        assert session.score([[1], [2, 3]]).logits.isfinite().all()
