"""At temperature 0 the text is transformers' own, whatever drafts, whatever the rule, in every shape of batch."""

import pytest
import torch
import transformers as tr

from nsd.targets.smollm2 import smollm2_folder
from tests.transformers_generate.pairs import CUSTOM, MASK, PADDED, PROMPT, cut, llama, new, pair_of

GREEDY = {"do_sample": False, "max_new_tokens": 24}


@pytest.mark.parametrize("family", ["llama", "llama-eager", "qwen3", "mistral", "gemma3", "gpt2"])
@pytest.mark.parametrize("prompt", [[5, 6, 7, 8, 9, 10], [11], [3, 14, 15, 9, 2, 6, 5, 3, 5]])
def test_same_ids_as_assisted_and_plain_generation(family, prompt):
    model, small = pair_of(family)
    ids = torch.tensor([prompt])
    ours = model.generate(ids, **GREEDY, **CUSTOM, assistant_model=small, theta=0.95)
    assert torch.equal(ours, model.generate(ids, **GREEDY))
    if family not in ("mistral", "gemma3"):  # transformers refuses to roll back their windows without a recording
        assert torch.equal(ours, model.generate(ids, **GREEDY, assistant_model=small))


@pytest.mark.parametrize("rule", [{}, {"rule": "sd"}, {"rule": "nsd", "theta": 0.5, "max_deviation": 0.1}])
@pytest.mark.parametrize("k", [1, 4, 9])
def test_rule_and_block_size_change_nothing(rule, k):
    model = llama()
    ours = model.generate(PROMPT, **GREEDY, **CUSTOM, assistant_model=cut(model, 3), k=k, **rule)
    assert torch.equal(ours, model.generate(PROMPT, **GREEDY))


def test_prompt_lookup_is_honoured():
    model = llama()
    prompt = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6]])
    asked = {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 3, "return_dict_in_generate": True}
    ours = model.generate(prompt, **GREEDY, **CUSTOM, **asked)
    theirs = model.generate(prompt, **GREEDY, prompt_lookup_num_tokens=3)
    assert torch.equal(ours.sequences, theirs)
    drafted = [len(block.drafted) for block in ours.completions[0].blocks]
    assert max(drafted) == 3


def _allowed(row, ids):
    """Even rows may use even ids, odd rows odd ones: the processor must know the row."""
    return list(range(row % 2, 48, 2))


PROCESSED = {
    "plain": {},
    "repetition": {"repetition_penalty": 1.4},
    "min_new_tokens": {"min_new_tokens": 7, "eos_token_id": [7, 37]},
    "bad_words": {"bad_words_ids": [[37], [5, 7]]},
    "no_repeat": {"no_repeat_ngram_size": 2},
    "prefix_fn": {"prefix_allowed_tokens_fn": _allowed},
    "forced_eos": {"forced_eos_token_id": 2},
    "encoder_penalty": {"encoder_repetition_penalty": 1.5},
    "exponential": {"exponential_decay_length_penalty": (3, 1.3)},
    "begin": {"begin_suppress_tokens": [21, 1]},
    "renormalised": {"renormalize_logits": True, "suppress_tokens": [37]},
}


@pytest.mark.parametrize("name", PROCESSED)
def test_ragged_batch_equals_plain_batch(name):
    model = llama()
    options = {**GREEDY, **PROCESSED[name], "attention_mask": MASK}
    theirs = model.generate(PADDED, **options)
    ours = model.generate(PADDED, **options, **CUSTOM, assistant_model=cut(model, 3))
    assert torch.equal(ours, theirs)
    if name != "plain":
        assert not torch.equal(theirs, model.generate(PADDED, **GREEDY, attention_mask=MASK))


def test_rows_end_apart_and_are_padded():
    model = llama()
    options = {**GREEDY, "attention_mask": MASK, "eos_token_id": [37, 5], "pad_token_id": 0}
    theirs = model.generate(PADDED, **options)
    ours = model.generate(PADDED, **options, **CUSTOM, assistant_model=cut(model, 3))
    assert torch.equal(ours, theirs)
    assert len({row.index(0) if 0 in row else len(row) for row in new(ours, PADDED)}) > 1


def test_mask_is_inferred_from_padding_and_right_padding_is_left_out():
    model = llama()
    small = cut(model, 3)
    assert torch.equal(
        model.generate(PADDED, **GREEDY, **CUSTOM, assistant_model=small), model.generate(PADDED, **GREEDY)
    )
    right = torch.tensor([[5, 6, 7, 0, 0]])
    ours = model.generate(right, **GREEDY, **CUSTOM, assistant_model=small, attention_mask=(right != 0).long())
    alone = model.generate(right[:, :3], **GREEDY)
    assert new(ours, right) == new(alone, right[:, :3])


@pytest.mark.model
def test_smollm2_with_a_cut_copy_of_itself():
    folder = smollm2_folder()
    tokenizer = tr.AutoTokenizer.from_pretrained(folder)
    model = tr.AutoModelForCausalLM.from_pretrained(folder)
    small = cut(model, 20)
    for text in ("The capital of France is", "def add(a, b):\n", "1, 2, 3, 4,"):
        inputs = tokenizer(text, return_tensors="pt")
        options = {"do_sample": False, "max_new_tokens": 12}
        ours = model.generate(**inputs, **options, **CUSTOM, assistant_model=small, theta=0.95, k=3)
        assert torch.equal(ours, model.generate(**inputs, **options)), text
        assert torch.equal(ours, model.generate(**inputs, **options, assistant_model=small)), text
    texts = ["Once upon a time, there was", "Water is"]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    stop = tr.StoppingCriteriaList([tr.StopStringCriteria(tokenizer, ["."])])
    options = {"do_sample": False, "max_new_tokens": 16, "stopping_criteria": stop}
    ours = model.generate(**inputs, **options, **CUSTOM, assistant_model=small)
    assert torch.equal(ours, model.generate(**inputs, **options))
    assert any("." in text for text in tokenizer.batch_decode(ours, skip_special_tokens=True))
