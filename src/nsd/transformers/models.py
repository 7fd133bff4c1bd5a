"""Live transformers models as target and drafter, and how many proposals a call asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from nsd.drafters.base import Drafter
from nsd.drafters.draft_model import ModelDrafter
from nsd.drafters.ngram import NGramDrafter
from nsd.errors import ConfigError, ModelError, PairMismatch
from nsd.targets.hf import HfTarget
from nsd.targets.hybrid import HybridTarget, is_hybrid

_TESTED: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""Width of the logits of models that have passed the self-test, which later calls need not repeat."""

_UNSET_K = 20
"""`num_assistant_tokens` of a generation config in which nobody has set it."""


class IdsOnly:
    """A tokenizer for callers that see ids alone: no id has a text, and every id exists."""

    prefix: Sequence[int] = ()
    eos_token_id: int | None = None

    def encode(self, text: str) -> list[int]:
        """Nothing can be read."""
        raise ModelError("generate knows no tokenizer, wanted token ids; encode the text first")

    def decode(self, ids: Sequence[int]) -> str:
        """No text."""
        return ""

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Nothing can be read."""
        raise ModelError("generate knows no tokenizer, wanted token ids; apply the chat template first")

    def token_text(self, token: int) -> str | None:
        """A name that tells ids apart."""
        return f"<{token}>"


def target_around(model: Any) -> HfTarget:
    """A loaded model as a target; its self-test is run once in its life."""
    kind = HybridTarget if is_hybrid(model.config) else HfTarget
    width = _TESTED.get(model)
    target = kind(model, IdsOnly(), check=width is None)
    target.vocab = _TESTED[model] = target.vocab if width is None else width
    return target


def choose_drafter(target: HfTarget, assistant: Any, drafter: Drafter | None, config: Any) -> Drafter:
    """The one source of drafts that the call names. Raises ConfigError for none or several, PairMismatch."""
    lookup = config.prompt_lookup_num_tokens
    given = {"assistant_model": assistant, "drafter": drafter, "prompt_lookup_num_tokens": lookup}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        got = " and ".join(named) or "nothing"
        raise ConfigError(f"got {got} to draft with, wanted one of {', '.join(given)}; or drop custom_generate")
    if lookup is not None:
        return NGramDrafter(config.max_matching_ngram_size or 2, 1, lookup, target.device)
    if drafter is not None:
        if not isinstance(drafter, Drafter):
            raise ConfigError(
                f"drafter is a {type(drafter).__name__}, wanted one of nsd.load; a model is assistant_model="
            )
        return drafter
    ours, theirs = (m.config.get_text_config().vocab_size for m in (target.model, assistant))
    if ours != theirs:
        raise PairMismatch(
            f"the model has {ours} ids and assistant_model {theirs}, wanted one tokenizer; take an assistant made for "
            "this model, or prompt_lookup_num_tokens, which needs none"
        )
    small = target_around(assistant)
    return ModelDrafter(small, small.name, vocab=target.vocab)


def wanted_k(k: int | None, assistant: Any, config: Any) -> int | None:
    """Proposals a block: k, or num_assistant_tokens where somebody has set it; None for the drafter's default."""
    if k is not None:
        return k
    sources = [config] if assistant is None else [assistant.generation_config, config]
    values = [getattr(source, "num_assistant_tokens", None) for source in sources]
    return next((value for value in values if value not in (None, _UNSET_K)), None)
