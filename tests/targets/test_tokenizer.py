"""The adapter around a transformers tokenizer, on one that is built in memory."""

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from nsd.errors import ModelError
from nsd.targets.tokenizer import HfTokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }};{% endfor %}"
    "{% if add_generation_prompt %}answer:{% endif %}"
)


def byte_level(template=None):
    """Every byte a token, then <s> and </s>; <s> is put before a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(letters)} | {"<s>": 256, "</s>": 257}
    inner = Tokenizer(BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", chat_template=template)


@pytest.mark.parametrize("text", ["plain", "two  blanks , kept", "naïve €", "日本語", "🙂", " lead", ""])
def test_text_comes_back(text):
    tokenizer = HfTokenizer(byte_level())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_neither_added_nor_shown():
    tokenizer = HfTokenizer(byte_level())
    ids = tokenizer.encode("ab")
    assert 256 not in ids and tokenizer.prefix == [256]
    assert tokenizer.decode([256, *ids, 257]) == "ab"
    assert tokenizer.eos_token_id == 257


def test_half_a_character_is_a_replacement_sign():
    tokenizer = HfTokenizer(byte_level())
    ids = tokenizer.encode("a€")
    assert tokenizer.decode(ids[:-1]) == "a�"
    assert tokenizer.decode(ids) == "a€"


def test_chat_goes_through_the_template():
    tokenizer = HfTokenizer(byte_level(TEMPLATE))
    ids = tokenizer.chat([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(ids) == "user:hi;answer:"
    assert all(type(i) is int for i in ids)


def test_without_a_template_chat_is_an_error():
    with pytest.raises(ModelError, match=r"no chat template.*--chat"):
        HfTokenizer(byte_level()).chat([{"role": "user", "content": "hi"}])


def test_entries():
    tokenizer = HfTokenizer(byte_level())
    assert tokenizer.token_text(257) == "</s>"
    assert tokenizer.token_text(258) is None
