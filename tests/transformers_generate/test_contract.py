"""Outputs, streams and stopping criteria as in plain generation; what cannot be honoured is refused by name."""

from functools import partial

import pytest
import torch
import transformers as tr

import nsd
from nsd.errors import ConfigError, ModelError, PairMismatch
from nsd.transformers.handed import REFUSED, kept_by_generate
from tests.transformers_generate.pairs import CUSTOM, MASK, PADDED, PROMPT, cut, llama, new

GREEDY = {"do_sample": False, "max_new_tokens": 16}


def test_scores_and_logits_equal_those_of_plain_generation():
    model = llama()
    asked = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    options = {**GREEDY, **asked, "attention_mask": MASK, "repetition_penalty": 1.2, "eos_token_id": [13, 5]}
    theirs = model.generate(PADDED, **options)
    ours = model.generate(PADDED, **options, **CUSTOM, assistant_model=cut(model, 3))
    assert torch.equal(ours.sequences, theirs.sequences)
    assert len(ours.scores) == len(ours.logits) == len(theirs.scores)
    ended = 0
    for t in range(len(ours.scores)):
        for b, completion in enumerate(ours.completions):
            if t < len(completion.token_ids):
                torch.testing.assert_close(ours.scores[t][b], theirs.scores[t][b], rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(ours.logits[t][b], theirs.logits[t][b], rtol=1e-4, atol=1e-4)
            else:
                ended += 1
                assert int(ours.scores[t][b].isfinite().sum()) == 1 and ours.scores[t][b, 0] == 0
    assert ended
    assert isinstance(ours, tr.generation.GenerateDecoderOnlyOutput)
    assert ours.completions[1].fidelity.as_json()
    transitions = model.compute_transition_scores(ours.sequences, ours.scores, normalize_logits=True)
    assert transitions.shape == (3, len(ours.scores)) and transitions.isfinite().all()


def test_scores_are_left_out_unless_asked_for():
    model = llama()
    plain = model.generate(PROMPT, **GREEDY, **CUSTOM, assistant_model=cut(model, 3), return_dict_in_generate=True)
    assert plain.scores is None and plain.logits is None and plain.cache is None


class Ends(tr.StoppingCriteria):
    """Ends a row after so many of its tokens that are multiples of three."""

    def __init__(self, prompt: int, count: int) -> None:
        self.prompt, self.count = prompt, count

    def __call__(self, input_ids, scores, **_):
        return (input_ids[:, self.prompt :] % 3 == 0).sum(-1) >= self.count


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_stopping_criterion_ends_inside_a_block(count):
    model = llama()
    options = {**GREEDY, "stopping_criteria": tr.StoppingCriteriaList([Ends(PROMPT.shape[1], count)])}
    theirs = model.generate(PROMPT, **options)
    ours = model.generate(PROMPT, **options, **CUSTOM, assistant_model=model, k=8)  # every draft stands
    assert torch.equal(ours, theirs)
    assert ours.shape[1] < PROMPT.shape[1] + 16


def test_max_time_ends_the_run():
    model = llama()
    ours = model.generate(PROMPT, **{**GREEDY, "max_new_tokens": 200}, **CUSTOM, assistant_model=model, max_time=0.0)
    assert ours.shape[1] == PROMPT.shape[1] + 1


def test_stop_strings_are_given_as_a_criterion():
    """transformers looks for the tokenizer of stop_strings in vain under any callable; the message is its own."""
    model = llama()
    with pytest.raises(ValueError, match="tokenizer"):
        model.generate(PROMPT, **GREEDY, **CUSTOM, assistant_model=model, stop_strings=["a"], tokenizer=object())


class Columns:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.put_values, self.ended = [], 0

    def put(self, value) -> None:
        self.put_values.append(value)

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("prompt", [PROMPT, PADDED])
def test_a_streamer_sees_the_columns_of_plain_generation(prompt):
    model = llama()
    streams = []
    for custom in ({}, {**CUSTOM, "assistant_model": cut(model, 3)}):
        streamer = Columns()
        result = model.generate(prompt, **GREEDY, **custom, streamer=streamer, eos_token_id=[13, 5], pad_token_id=0)
        assert streamer.ended == 1
        streams.append([value.tolist() for value in streamer.put_values])
        assert torch.stack(streamer.put_values[1:], -1).tolist() == new(result, prompt)
    assert streams[0] == streams[1]


def test_streaming_begins_before_the_end():
    model = llama()
    seen = []

    class Counting(Columns):
        def put(self, value) -> None:
            seen.append(len(passes))

    passes = []
    hook = model.register_forward_hook(lambda *_: passes.append(1))
    model.generate(PROMPT, **GREEDY, **CUSTOM, assistant_model=cut(model, 3), streamer=Counting())
    hook.remove()
    assert len(set(seen)) > 3


BAD = {
    "num_beams": {"num_beams": 2},
    "penalty_alpha": {"penalty_alpha": 0.6, "top_k": 4},
    "dola_layers": {"dola_layers": "low"},
    "guidance_scale": {"guidance_scale": 1.5},
    "assistant_ensemble_weight": {"assistant_ensemble_weight": 0.5},
    "output_attentions": {"output_attentions": True},
    "output_hidden_states": {"output_hidden_states": True},
    "use_cache": {"use_cache": False},
    "cache_implementation": {"cache_implementation": "static"},
    "prefill_chunk_size": {"prefill_chunk_size": 2},
    "use_mtp": {"use_mtp": True},
    "assistant_early_exit": {"assistant_early_exit": 1},
    "constraints": {"force_words_ids": [[3]], "num_beams": 2},
    "num_beam_groups": {"num_beam_groups": 2, "num_beams": 2, "diversity_penalty": 0.5},
    "speculation_type": {"speculation_type": "dflash"},
}


@pytest.mark.parametrize("name", BAD)
def test_options_that_cannot_be_honoured_are_named(name):
    assert set(BAD) == set(REFUSED)
    model = llama()
    config = tr.GenerationConfig(**{**GREEDY, **BAD[name], "pad_token_id": 0})
    with pytest.raises(ConfigError) as caught:
        CUSTOM["custom_generate"](
            model, PROMPT, tr.LogitsProcessorList(), tr.StoppingCriteriaList(), config, assistant_model=model
        )
    assert str(caught.value).split()[0] in ({name, "num_beams"} if "beam" in name else {name})


@pytest.mark.parametrize("options", [BAD["num_beams"], BAD["penalty_alpha"], BAD["use_cache"], BAD["dola_layers"]])
def test_refusals_come_through_generate(options):
    model = llama()
    with pytest.raises(ConfigError, match="cannot honour"):
        model.generate(PROMPT, **{**GREEDY, **options}, **CUSTOM, assistant_model=cut(model, 3))


def _several_inputs():
    model = llama()
    cache = tr.DynamicCache()
    model(PROMPT[:, :3], past_key_values=cache)
    embeds = model.get_input_embeddings()(PROMPT)
    return {
        "cache": {"input_ids": PROMPT, "past_key_values": cache},
        "position_ids": {"input_ids": PROMPT, "position_ids": torch.arange(6).unsqueeze(0) + 3},
        "inputs_embeds": {"inputs_embeds": embeds},
    }


@pytest.mark.parametrize("name", ["cache", "position_ids", "inputs_embeds"])
def test_inputs_beyond_ids_and_mask_are_named(name):
    with pytest.raises(ConfigError, match=name):
        llama().generate(**_several_inputs()[name], **GREEDY, **CUSTOM, assistant_model=llama(2))


def test_drafts_come_from_one_source():
    model = llama()
    for options in ({}, {"assistant_model": llama(2), "prompt_lookup_num_tokens": 3}):
        with pytest.raises(ConfigError, match="to draft with"):
            model.generate(PROMPT, **GREEDY, **CUSTOM, **options)
    with pytest.raises(ConfigError, match="drafter is a Llama"):
        model.generate(PROMPT, **GREEDY, **CUSTOM, drafter=model)
    with pytest.raises(PairMismatch, match="48 ids"):
        model.generate(PROMPT, **GREEDY, **CUSTOM, assistant_model=llama(2, vocab_size=40))


def test_rule_numbers_are_checked():
    model = llama()
    run = partial(model.generate, PROMPT, **GREEDY, **CUSTOM, assistant_model=llama(2))
    with pytest.raises(ConfigError, match="theta"):
        run(theta=1.5)
    with pytest.raises(ConfigError, match="did you mean nsd"):
        run(rule="nds")
    with pytest.raises(ConfigError, match="whole rule"):
        run(rule=nsd.NSD(0.5), theta=0.9)
    with pytest.raises(ValueError, match="thta"):  # transformers names arguments that nobody takes
        run(thta=0.9)


def test_encoder_decoders_and_unknown_attention_are_refused():
    config = tr.T5Config(
        vocab_size=48, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    with pytest.raises(ModelError, match="encoder-decoder"):
        tr.T5ForConditionalGeneration(config).generate(PROMPT, **GREEDY, **CUSTOM, prompt_lookup_num_tokens=2)
    model = llama()
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ModelError, match="attn_implementation"):
        model.generate(PROMPT, **GREEDY, **CUSTOM, prompt_lookup_num_tokens=2)


def test_rows_that_may_end_apart_need_a_padding_id():
    model = llama()
    model.generation_config.pad_token_id = model.generation_config.eos_token_id = None
    ends = tr.StoppingCriteriaList([Ends(5, 2)])
    with pytest.raises(ConfigError, match="pad_token_id"):
        model.generate(PADDED, **GREEDY, **CUSTOM, assistant_model=llama(2), stopping_criteria=ends)


def test_stateful_processors_are_refused():
    model = llama()
    mark = {"watermarking_config": tr.SynthIDTextWatermarkingConfig(ngram_len=3, keys=[1, 2, 3])}
    with pytest.raises(ConfigError, match="SynthID"):
        model.generate(PROMPT, do_sample=True, max_new_tokens=4, **CUSTOM, assistant_model=llama(2), **mark)


def test_models_keep_their_mode_and_their_settings():
    model, small = llama(), llama(2)
    model.train()
    before = model.generation_config.to_dict()
    model.generate(PROMPT, **GREEDY, **CUSTOM, assistant_model=small)
    assert model.training and not small.training and model.generation_config.to_dict() == before


def test_the_assistant_is_found_in_the_running_call_and_nowhere_else():
    """transformers drops assistant_model for callables; if a release passes it on, this way round is not needed."""
    assert kept_by_generate() == {}
    model, small = llama(), llama(2)
    bound = partial(nsd.transformers.generate, assistant_model=small)
    ours = model.generate(PROMPT, **GREEDY, custom_generate=bound)
    assert torch.equal(ours, model.generate(PROMPT, **GREEDY))


@pytest.mark.parametrize(("where", "k"), [("call", 6), ("assistant", 3), ("k", 2), ("nowhere", 4)])
def test_how_many_are_drafted(where, k):
    model = llama()
    small = cut(model, 3)
    options = {"return_dict_in_generate": True}
    if where == "call":
        options["num_assistant_tokens"] = 6
    if where == "assistant":
        small.generation_config.num_assistant_tokens = 3
    if where == "k":
        options |= {"k": 2, "num_assistant_tokens": 6}
    result = model.generate(PROMPT, **GREEDY, **CUSTOM, assistant_model=small, **options)
    assert max(len(block.drafted) for block in result.completions[0].blocks) == k
