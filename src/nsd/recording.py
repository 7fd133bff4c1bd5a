"""Opens a trace for a run: writes down what was known before the first token."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from nsd.api import Pair, Run
from nsd.decoding import Request
from nsd.errors import TraceError
from nsd.trace import Header, Recorder, RequestInfo
from nsd.trace.record import surroundings


def open_recorder(path: Path, pair: Pair, run: Run) -> Recorder:
    """A recorder whose header describes this run; pass every event to its `write`.

    A rule that decides on another law than the one asked for is refused: no audit could tell its decisions from faults.
    """
    for request in run.requests:
        if request.rule.untempered:
            raise TraceError(
                f"rule {request.rule.name} cannot be audited, wanted another; drop --trace or take --rule nsd"
            )
    header = Header(
        target=pair.target.name,
        drafter="none" if pair.drafter is None else pair.drafter.name,
        draft_law="point" if pair.drafter is None else pair.drafter.law.value,
        requests=tuple(_info(number, request, pair) for number, request in enumerate(run.requests)),
        accounting=run.accounting.value,
        vocab=pair.target.vocab,
        eos=tuple(sorted(pair.target.eos)),
        logprobs=_shared([request.logprobs for request in run.requests]),
        dtype=pair.target.dtype_name,
        device=str(pair.target.device),
        **surroundings(),
    )
    return Recorder(path, header)


def _shared(values: list[str | None]) -> str | None:
    """The one value that all requests have, "mixed" if they differ."""
    return values[0] if len(set(values)) == 1 else "mixed"


def _info(number: int, request: Request, pair: Pair) -> RequestInfo:
    sampling = {f.name: getattr(request.sampling, f.name) for f in fields(request.sampling)}
    sampling["processors"] = len(request.sampling.processors)
    return RequestInfo(
        request=number,
        seed=request.seed,
        key=request.key,
        rule=request.rule.name,
        numbers=request.rule.settings(),
        sampling=sampling,
        k=request.k,
        max_new_tokens=request.max_new_tokens,
        prompt=pair.target.tokenizer.decode(list(request.prompt)),
        prompt_tokens=len(request.prompt),
        agreement=request.agreement,
        policy=request.policy if request.agreement is not None else None,
    )
