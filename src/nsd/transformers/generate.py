"""The callable for `custom_generate`: one call of transformers' `generate`, decoded by this project's loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from nsd.api import Pair
from nsd.decoding import Request
from nsd.drafters.base import Drafter
from nsd.errors import ConfigError
from nsd.rules import Rule, make_rule
from nsd.transformers.collect import Call, Collector
from nsd.transformers.handed import check_config, check_inputs, check_processors, kept_by_generate, shown
from nsd.transformers.models import choose_drafter, target_around, wanted_k
from nsd.transformers.output import padding
from nsd.transformers.processing import sampling_of
from nsd.transformers.taped import Taped
from nsd.verification import Accounting


def generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    assistant_model: Any = None,
    drafter: Drafter | None = None,
    rule: str | Rule = "nsd",
    theta: float | None = None,
    max_deviation: float | None = None,
    agreement: float | None = None,
    k: int | None = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    accounting: str = "rescues",
    **model_arguments: Any,
) -> Any:
    """Called by `model.generate(..., custom_generate=nsd.transformers.generate)` -> what `generate` returns.

    Drafts come from assistant_model, from prompt_lookup_num_tokens, or from a drafter of this project. rule with its
    numbers theta and max_deviation, agreement, k proposals a block and accounting are those of `Pair.generate`; chance
    comes from seed, else from generator, else from torch's global one. do_sample=False is temperature 0, where every
    rule gives the plain greedy text. Raises ConfigError or ModelError naming what cannot be honoured.
    """
    kept = kept_by_generate()
    if kept.get("synced_gpus"):
        raise ConfigError("synced_gpus is on, which NSD cannot honour: processes take different passes; turn it off")
    check_inputs(model, input_ids, model_arguments)
    check_config(generation_config)
    check_processors(logits_processor)
    assistant = kept.get("assistant_model") if assistant_model is None else assistant_model
    chosen = _rule(rule, theta, max_deviation)
    call = Call(input_ids, logits_processor, stopping_criteria, generation_config)
    rows = call.rows(shown(input_ids, model_arguments.get("attention_mask")))
    if len(rows) > 1 and any(not hasattr(criterion, "max_length") for criterion in stopping_criteria):
        padding(call.pad)
    with _evaluating(model, assistant):
        target = target_around(model)
        tape = Taped(target) if any(call.wants) else None
        pair = Pair(tape or target, choose_drafter(target, assistant, drafter, generation_config))
        length = generation_config.max_length or target.context
        drawn = _seed(seed, generator)
        proposals = pair.proposals(wanted_k(k, assistant, generation_config))
        requests = [
            Request(
                prompt=row.prompt,
                rule=chosen,
                sampling=sampling_of(logits_processor, bool(generation_config.do_sample), row),
                k=proposals,
                max_new_tokens=length - input_ids.shape[1],
                seed=drawn,
                key=row.number,
                ignore_eos=True,  # the end of text is one of the stopping criteria
                agreement=agreement,
                until=call.ends(row),
            )
            for row in rows
        ]
        run = pair.decode(requests, Accounting(accounting))
        collector = Collector(call, rows, tape, kept.get("streamer"))
        for block in run:
            collector.take(block)
    return collector.result(run)


def _rule(rule: str | Rule, theta: float | None, max_deviation: float | None) -> Rule:
    if not isinstance(rule, Rule):
        return make_rule(rule, theta=theta, max_deviation=max_deviation)
    if theta is not None or max_deviation is not None:
        raise ConfigError(f"got a whole rule and theta or max_deviation beside it, wanted one; put them into {rule}")
    return rule


def _seed(seed: int | None, generator: torch.Generator | None) -> int:
    """The seed given, or one drawn from a generator, so that torch.manual_seed fixes a run as it does elsewhere."""
    if seed is not None:
        return seed
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device))


@contextmanager
def _evaluating(*models: Any) -> Iterator[None]:
    """Evaluation mode for the call, and each model's own mode afterwards."""
    modes = [(model, model.training) for model in models if model is not None]
    try:
        yield
    finally:
        for model, training in modes:
            model.train(training)
