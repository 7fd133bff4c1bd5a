"""A transformers tokenizer behind the few calls that this project needs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from nsd.errors import ModelError


class HfTokenizer:
    """Adapter to the `Tokenizer` protocol.

    `eos_token_id` is the tokenizer's own end of text; `prefix` what it puts before every text (a begin-of-text id in
    many models), which `encode` leaves out and `chat` has from the template.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.inner = tokenizer
        self.eos_token_id: int | None = tokenizer.eos_token_id
        self.texts: dict[int, str] = {i: text for text, i in tokenizer.get_vocab().items()}

    @cached_property
    def prefix(self) -> list[int]:
        """Special ids that the tokenizer puts before a text."""
        plain = self.encode("a")
        full = list(self.inner.encode("a", add_special_tokens=True))
        for i in range(len(full) - len(plain) + 1):
            if full[i : i + len(plain)] == plain:
                return full[:i]
        return []

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens added."""
        return list(self.inner.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out, bytes that form no character as U+FFFD."""
        text: str = self.inner.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Ids of a chat by the model's template, ready for the assistant's answer.

        Templates that can ask a model to think first are told not to: published drafters are trained on plain answers.
        """
        if not getattr(self.inner, "chat_template", None):
            raise ModelError("this model has no chat template, wanted an instruction-tuned model; drop --chat")
        ids = self.inner.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=True, return_dict=False, enable_thinking=False
        )
        return [int(i) for i in ids]

    def token_text(self, token: int) -> str | None:
        """The vocabulary entry of an id, None where there is none."""
        return self.texts.get(token)
