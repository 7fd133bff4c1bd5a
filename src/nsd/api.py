"""The front door: load a target with a drafter, generate, stream.

pair = nsd.load("smollm2-135m")
answer = pair.generate("Write a haiku about the sea.", chat=True, rule="nsd", theta=0.95)
print(answer.text, answer.stats.tau, answer.fidelity)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, overload

from nsd.decoding import Completion, Decoder, Request
from nsd.drafters.base import Drafter
from nsd.errors import ConfigError, PromptError
from nsd.events import Block
from nsd.fidelity.guarantee import guarantee_of
from nsd.fidelity.ledger import Ledger
from nsd.laws import Sampling
from nsd.rules import SD, Rule, make_rule
from nsd.settings import Settings, settings_from
from nsd.targets.base import Target
from nsd.verification import Accounting, DraftLaw

Prompt = str | Sequence[int]
DEFAULT_MODEL = "smollm2-135m"
DEFAULT_DRAFTER = "auto"


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and the drafter that proposes for it (None: plain decoding)."""

    target: Target
    drafter: Drafter | None

    @overload
    def generate(self, prompts: str, *, chat: bool = ..., **settings: Any) -> Completion: ...
    @overload
    def generate(
        self, prompts: Sequence[int] | Sequence[str] | Sequence[Sequence[int]], *, chat: bool = ..., **settings: Any
    ) -> Any: ...

    def generate(self, prompts: Any, *, chat: bool = False, **settings: Any) -> Any:
        """Complete one prompt (text or token ids) -> Completion, or several in one ragged batch -> list of them.

        Settings are those of `nsd.settings.Settings`, by keyword; rule may also be a Rule. chat wraps each text as a
        user's message in the model's chat template.
        """
        batch, several = _as_prompts(prompts)
        run = self.run(batch, chat=chat, **settings)
        for _ in run:
            pass
        return run.completions() if several else run.completions()[0]

    def stream(self, prompt: Prompt, *, chat: bool = False, **settings: Any) -> Iterator[str]:
        """Pieces of text as they are committed; the first comes before the second target pass."""
        for block in self.run([prompt], chat=chat, **settings):
            if block.text:
                yield block.text

    def run(self, prompts: Sequence[Prompt], *, chat: bool = False, **settings: Any) -> Run:
        """Prepare a batch; iterate over it for events, then read `completions`."""
        rule, wanted = _rule_and_settings(settings)
        requests = [
            _request(key, self._ids(prompt, chat), wanted, rule, self._temperature(wanted), self._k(wanted))
            for key, prompt in enumerate(prompts)
        ]
        return self.decode(requests, Accounting(wanted.accounting), wanted.trace, wanted.trace_laws)

    def decode(
        self, requests: Sequence[Request], accounting: Accounting, trace: bool = False, trace_laws: int = 0
    ) -> Run:
        """Prepare a batch of ready requests, each with settings of its own."""
        if not requests:
            raise PromptError("no prompt was given, wanted at least one; try nsd generate 'Once upon a time'")
        return Run(self, list(requests), accounting, trace, trace_laws)

    def _temperature(self, settings: Settings) -> float:
        return self.target.default_temperature if settings.temperature is None else settings.temperature

    def _k(self, settings: Settings) -> int:
        return self.proposals(settings.k, settings.block_length)

    def proposals(self, k: int | None, block_length: int | None = None) -> int:
        """Proposals per block for a wanted k, or for a block length in the mechanism's own unit.

        None is the drafter's default; more than its limit is refused.
        """
        if self.drafter is None:
            return 0
        if block_length is not None:
            if k is not None:
                raise ConfigError(f"got k {k} and block length {block_length}, wanted one of them; drop --block-length")
            k = block_length - self.drafter.block_unit(0)
            if k < 0:
                least = self.drafter.block_unit(0)
                raise ConfigError(
                    f"block length is {block_length}, {self.drafter.name} needs at least {least}; try -k 4"
                )
        limit = self.drafter.max_k
        if k is not None and limit is not None and k > limit:
            raise ConfigError(f"k is {k}, {self.drafter.name} drafts at most {limit} a block; try -k {limit}")
        return self.drafter.default_k if k is None else k

    def _ids(self, prompt: Any, chat: bool) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            if chat:
                raise ConfigError("chat needs a text prompt, got token ids; give text or drop chat")
            return _token_ids(prompt)
        if not prompt.strip():
            raise PromptError("the prompt is empty, wanted some text; try nsd generate 'Once upon a time'")
        tokenizer = self.target.tokenizer
        if chat:
            return tuple(tokenizer.chat([{"role": "user", "content": prompt}]))
        return (*tokenizer.prefix, *tokenizer.encode(prompt))


class Run:
    """One batch being decoded: an iterator of events, and the completions of what has been decoded so far."""

    def __init__(
        self, pair: Pair, requests: list[Request], accounting: Accounting, trace: bool, trace_laws: int
    ) -> None:
        self.requests = requests
        self.accounting = accounting
        law = DraftLaw.POINT if pair.drafter is None else pair.drafter.law
        void = None if pair.drafter is None else pair.drafter.void
        self._ledgers = [_ledger(request, law, accounting, void) for request in requests]
        self._blocks: list[list[Block]] = [[] for _ in requests]
        self._events = iter(Decoder(pair.target, pair.drafter, requests, accounting, trace, trace_laws))

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Block:
        block = next(self._events)
        self._blocks[block.request].append(block)
        self._ledgers[block.request].consume(block)
        return block

    def completions(self) -> list[Completion]:
        """A completion for each request; those not ended yet are marked interrupted."""
        together = zip(self.requests, self._blocks, self._ledgers, strict=True)
        return [Completion.of(request, blocks, ledger.fidelity()) for request, blocks, ledger in together]


def rule_from(settings: Settings) -> Rule:
    """The rule that settings name."""
    named = {"theta": settings.theta, "ties": settings.ties, "max_deviation": settings.max_deviation}
    given = {name: value for name, value in named.items() if value is not None}
    twice = given.keys() & settings.rule_numbers.keys()
    if twice:
        raise ConfigError(f"{min(twice)} is given twice, wanted once; drop one of them")
    return make_rule(settings.rule, **given, **settings.rule_numbers)


def _ledger(request: Request, law: DraftLaw, accounting: Accounting, void: str | None) -> Ledger:
    temperature = request.sampling.temperature
    if request.k == 0:
        # Nothing is ever tested, so whatever the rule, every token is the target's own draw.
        return Ledger(guarantee_of(SD(), request.max_new_tokens), SD(), law, accounting, temperature)
    guarantee = guarantee_of(request.rule, request.max_new_tokens, temperature, request.agreement, void)
    return Ledger(guarantee, request.rule, law, accounting, temperature)


def _rule_and_settings(given: Mapping[str, Any]) -> tuple[Rule, Settings]:
    """The rule and the other settings; a Rule that is given whole leaves no numbers to be named beside it."""
    rule = given.get("rule", Settings.model_fields["rule"].default)
    if isinstance(rule, Rule):
        beside = [name for name in _RULE_NUMBERS if given.get(name)]
        if beside:
            raise ConfigError(f"got a whole rule and {beside[0]} beside it, wanted one; put {beside[0]} into {rule}")
        return rule, settings_from({name: value for name, value in given.items() if name != "rule"})
    if not isinstance(rule, str):
        raise ConfigError(f"rule is {rule!r}, wanted a name or a Rule such as nsd.NSD(0.9); see nsd list rules")
    settings = settings_from(given)
    return rule_from(settings), settings


_RULE_NUMBERS = ("theta", "ties", "max_deviation", "rule_numbers")


def _request(key: int, prompt: tuple[int, ...], settings: Settings, rule: Rule, temperature: float, k: int) -> Request:
    sampling = Sampling(
        temperature=temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        repetition_penalty=settings.repetition_penalty,
        presence_penalty=settings.presence_penalty,
        frequency_penalty=settings.frequency_penalty,
        banned=settings.banned,
        processors=settings.processors,
    )
    return Request(
        prompt=prompt,
        rule=rule,
        sampling=sampling,
        k=k,
        max_new_tokens=settings.max_new_tokens,
        stop=settings.stop,
        seed=settings.seed,
        key=key,
        ignore_eos=settings.ignore_eos,
        logprobs=settings.logprobs,
        agreement=settings.agreement,
        policy=settings.policy,
    )


def check_settings(given: Mapping[str, Any]) -> None:
    """Refuse settings that no model could be asked for: names, ranges, contradictions."""
    rule, settings = _rule_and_settings(given)
    temperature = 1.0 if settings.temperature is None else settings.temperature
    _request(0, (0,), settings, rule, temperature, settings.k or 0)


def load(
    model: Any = DEFAULT_MODEL,
    drafter: Any = DEFAULT_DRAFTER,
    *,
    dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    engine: str = "auto",
    draft: Mapping[str, Any] | None = None,
) -> Pair:
    """Load a pair: the target by built-in name, hub name, folder or object; the drafter by name, folder or object.

    engine "auto" runs Llama-like targets on this project's own decoder ("lean") on a CPU, and all others through
    "transformers". draft holds options of the drafter, such as {"greedy": True}.
    """
    from nsd.drafters.load import load_drafter
    from nsd.targets.load import load_target

    options: dict[str, Any] = {"dtype": dtype, "device": device, "threads": threads, "engine": engine}
    target = model if isinstance(model, Target) else load_target(model, **options)
    if drafter is None or isinstance(drafter, Drafter):
        return Pair(target, drafter)
    return Pair(target, load_drafter(drafter, target, **(draft or {})))


def _as_prompts(prompts: Any) -> tuple[list[Any], bool]:
    """Prompts as a list, and whether several were given: a text or a flat list of ids is one prompt."""
    plain = prompts.tolist() if hasattr(prompts, "tolist") else prompts
    if isinstance(plain, str):
        return [plain], False
    if isinstance(plain, bytes | Mapping) or not isinstance(plain, Sequence):
        raise PromptError(f"the prompt is a {type(prompts).__name__}, wanted text, token ids, or a list of those")
    several = not plain or isinstance(plain[0], str) or hasattr(plain[0], "__len__")
    return (list(plain), True) if several else ([plain], False)


def _token_ids(prompt: Any) -> tuple[int, ...]:
    """Token ids as plain integers; anything else is named."""
    plain = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    try:
        if isinstance(plain, bytes | Mapping) or any(isinstance(token, bool) for token in plain):
            raise TypeError
        return tuple(index(token) for token in plain)
    except TypeError:
        raise PromptError(f"the prompt is {prompt!r:.60}, wanted text or a list of token ids") from None
