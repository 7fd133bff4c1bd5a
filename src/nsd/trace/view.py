"""One page for one trace: the text with the state of every token, and on focus the numbers that decided it.

The page is self-contained: its style and script are inside, it loads nothing, and every text is escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

from nsd.events import Block, Drawn, Origin, Tested
from nsd.trace.schema import RequestInfo, Trace

STATES = {
    Origin.RATIO: ("accepted by ratio", "passed the standard test u q < p"),
    Origin.RESCUED: ("kept only by the set", "failed the standard test, kept because the target finds it plausible"),
    Origin.RECOVERED: ("replacement", "drawn after a rejection"),
    Origin.BONUS: ("bonus", "drawn from the target after a fully accepted draft"),
    Origin.REJECTED: ("rejected", "drafted, tested and turned down"),
    Origin.TARGET: ("drawn from the target", "nothing was drafted here"),
}
"""Label and meaning of each token state."""

_TESTED_FIELDS = {
    "p": "p(x), target",
    "q": "q(x), draft",
    "u": "u, accept uniform",
    "rank": "rank by p",
    "mass": "mass above x",
    "R": "R, standard rejection",
    "ES": "ES, excess in the set",
    "lam": "λ, share of it allowed",
    "eps": "ε = λ ES, spent",
    "weight_factor": "min(1, p/π)",
    "entropy_p": "entropy of p, nats",
    "entropy_q": "entropy of q, nats",
}
_DRAWN_FIELDS = {
    "p": "p(x), target",
    "u": "u, its uniform",
    "mass": "mass of the law drawn from",
    "weight": "mass of x in it",
    "below": "mass of smaller ids",
}


@dataclass(slots=True)
class _Ledger:
    """What a request has spent so far."""

    Q: float = 1.0
    spent: float = 0.0
    rescued: int = 0
    steps: list[tuple[int, float, int]] = field(default_factory=list)

    def charge(self, t: Tested) -> None:
        self.Q *= 1 - (t.eps or 0.0)
        self.spent += t.eps or 0.0
        self.rescued += t.origin is Origin.RESCUED
        self.steps.append((t.position, self.spent, self.rescued))

    def now(self) -> dict[str, Any]:
        return {"Q": self.Q, "spent": self.spent, "rescued": self.rescued}


def page(trace: Trace) -> str:
    """The whole page."""
    details: list[dict[str, Any]] = []
    sections = [_section(trace, info, details) for info in trace.header.requests]
    parts = {
        "title": escape(f"{trace.header.target} · {_rules(trace)}"),
        "heading": escape(trace.header.target),
        "facts": _facts(trace),
        "legend": _legend(trace),
        "sections": "".join(sections),
        "data": _safe_json(details),
        "footnote": _footnote(trace),
    }
    template = files("nsd.trace").joinpath("view.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _safe_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _rules(trace: Trace) -> str:
    return ", ".join(sorted({_rule(info) for info in trace.header.requests}))


def _rule(info: RequestInfo) -> str:
    numbers = (f"{_SYMBOLS.get(name, name)} {value}" for name, value in info.numbers.items() if value is not None)
    return " ".join([info.rule, *numbers])


_SYMBOLS = {"theta": "θ", "max_deviation": "cap"}


def _facts(trace: Trace) -> str:
    header, first = trace.header, trace.header.requests[0]
    committed = sum(len(block.committed) for block in trace.blocks)
    facts = {
        "rule": _rules(trace),
        "drafter": f"{header.drafter} ({header.draft_law} q)",
        "k": f"{max(info.k for info in header.requests)} {header.k_unit}",
        "temperature": first.sampling.get("temperature", "not recorded"),
        "seed": ", ".join(str(info.seed) for info in header.requests),
        "tokens": committed,
        "recorded": header.created or "time not recorded",
    }
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>" for name, value in facts.items())


def _legend(trace: Trace) -> str:
    counts = dict.fromkeys(STATES, 0)
    for block in trace.blocks:
        for origin in (*(t.origin for t in block.tested), *([block.drawn.origin] if block.drawn else [])):
            counts[origin] += 1
    return "".join(
        f'<button type="button" class="key" data-state="{origin.value}" aria-pressed="false" title="{escape(meaning)}">'
        f'<span class="tok {origin.value}" aria-hidden="true">{escape(label)}</span>'
        f'<span class="count" data-count="{origin.value}">{counts[origin]}</span>'
        f'<span class="sr"> tokens {escape(label)}: {escape(meaning)}</span></button>'
        for origin, (label, meaning) in STATES.items()
    )


def _section(trace: Trace, info: RequestInfo, details: list[dict[str, Any]]) -> str:
    ledger = _Ledger()
    blocks, rows = [], []
    for block in trace.of(info.request):
        blocks.append(_block(info, block, ledger, details))
        rows.append(_row(block, ledger))
    title = f"Request {info.request}" if len(trace.header.requests) > 1 else "Text"
    prompt = (
        "" if info.prompt is None else f'<p class="prompt"><span class="sr">Prompt: </span>{escape(info.prompt)}</p>'
    )
    return (
        f'<section aria-labelledby="r{info.request}"><h2 id="r{info.request}">{title}</h2>{prompt}'
        f'<div class="text" role="listbox" aria-label="Tokens of request {info.request}; arrow keys move between them">'
        f"{''.join(blocks)}</div>{_chart(info, ledger)}{_table(rows)}</section>"
    )


def _block(info: RequestInfo, block: Block, ledger: _Ledger, details: list[dict[str, Any]]) -> str:
    tokens = "".join(_tokens(info, block, ledger, details))
    untested = len(block.drafted) - len(block.tested)
    rest = f'<span class="untested" title="{untested} drafts behind it were not tested">{"·" * untested}</span>'
    label = f"block {block.number}: {block.accepted} of {len(block.drafted)} drafts accepted"
    attributes = f'role="group" aria-label="{label}" data-request="{block.request}" data-block="{block.number}"'
    edge = f'<span class="edge" title="{label}" aria-hidden="true">{block.number}</span>'
    return f'<span class="block" {attributes}>{edge}{tokens}{rest if untested else ""}</span>'


def _tokens(info: RequestInfo, block: Block, ledger: _Ledger, details: list[dict[str, Any]]) -> Iterator[str]:
    """Tested and final tokens in the order of the text; the rejected one stands before its replacement."""
    texts = iter(block.committed)
    entries: list[Tested | Drawn] = [*block.tested, *([block.drawn] if block.drawn else [])]
    for place, entry in enumerate(entries):
        rejected = entry.origin is Origin.REJECTED
        committed = None if rejected else next(texts, None)
        text = block.rejected_text if rejected else "" if committed is None else committed.text
        if isinstance(entry, Tested):
            ledger.charge(entry)
        label, _ = STATES[entry.origin]
        detail = _detail(info, block, entry, place, text) | {"state": label, "ledger": ledger.now()}
        details.append(detail)
        summary = ", ".join(f"{key} {value:.4g}" for key, value in _spoken(entry).items())
        inner = _visible(text, breaks=not rejected)
        spoken = f"{escape(_quoted(text))}, {label}, {summary}"
        attributes = f'role="option" aria-selected="false" tabindex="-1" data-i="{len(details) - 1}"'
        yield f'<span class="tok {entry.origin.value}" {attributes} aria-label="{spoken}">{inner}</span>'


def _spoken(entry: Tested | Drawn) -> dict[str, float]:
    values = {"p": entry.p, "u": entry.u}
    if isinstance(entry, Tested):
        values |= {key: value for key, value in (("q", entry.q), ("ES", entry.ES)) if value is not None}
    return {key: value for key, value in values.items() if value == value}


def _quoted(text: str) -> str:
    return "no text" if not text else f"“{text}”".replace("\n", "line break")


def _visible(text: str, breaks: bool) -> str:
    """Text as HTML; a line break is marked, and breaks the line unless the token was struck."""
    if not text:
        return '<span class="empty"></span>'
    return escape(text).replace("\n", '<span class="nl"></span>' + "\n" * breaks)


def _detail(info: RequestInfo, block: Block, entry: Tested | Drawn, place: int, text: str) -> dict[str, Any]:
    names = _TESTED_FIELDS if isinstance(entry, Tested) else _DRAWN_FIELDS
    values = [[name, label, _finite(getattr(entry, name))] for name, label in names.items()]
    return {
        "origin": entry.origin.value,
        "text": text,
        "token": entry.token,
        "request": block.request,
        "block": block.number,
        "position": entry.position,
        "place": place,
        "why": _why(info, block, entry),
        "values": values,
        "member": entry.member if isinstance(entry, Tested) else None,
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value


def _why(info: RequestInfo, block: Block, entry: Tested | Drawn) -> str:
    """One sentence: why this token stands or fell."""
    if isinstance(entry, Drawn):
        return _why_drawn(info, block, entry)
    product = entry.u * entry.q
    sign = "<" if product < entry.p else "≥"
    test = f"u q = {product:.4g} {sign} p = {entry.p:.4g}: the ratio test {'passes' if sign == '<' else 'fails'}."
    if entry.origin is Origin.RATIO:
        return test if sign == "<" else f"{info.rule} accepts it."
    if entry.origin is Origin.REJECTED and not entry.member:
        return (
            f"{test} It is not in the set, so it is replaced." if "theta" in info.numbers else f"{test} It is replaced."
        )
    if entry.member and entry.mass is not None and "theta" in info.numbers:
        sign = "<" if entry.mass < float(info.numbers["theta"]) else "≥"
        nucleus = f"Mass above it {entry.mass:.4g} {sign} θ = {info.numbers['theta']}: it is in the nucleus"
        if entry.lam == 1.0 and entry.origin is Origin.RESCUED:
            return f"{test} {nucleus}, so it is kept."
        fate = "still" if entry.origin is Origin.RESCUED else "no longer"
        return f"{test} {nucleus}; u is {fate} within the share λ = {entry.lam or 0.0:.4g} that the allowance leaves."
    return f"{test} Rule {info.rule} {'keeps' if entry.origin is Origin.RESCUED else 'rejects'} it."


def _why_drawn(info: RequestInfo, block: Block, entry: Drawn) -> str:
    if block.guard or block.invalid:
        return "The residual had no mass or q was not finite, so it was drawn from the target's law."
    if entry.origin is Origin.RECOVERED:
        return (
            "Drawn in the place of the rejected token, from the residual (p-q)+."
            if info.rule in _RESIDUAL
            else ("Emitted in the place of the rejected token.")
        )
    if entry.origin is Origin.BONUS:
        return "Every draft of the block was accepted; this one is drawn from the target's law."
    return "Drawn from the target's law; nothing was drafted."


_RESIDUAL = ("sd", "nsd", "topk", "floor", "relative", "lenience", "lossy-epsilon", "ensemble")


def _row(block: Block, ledger: _Ledger) -> str:
    timing = block.timing
    cells = [
        block.number,
        len(block.drafted),
        len(block.tested),
        block.accepted,
        len(block.committed),
        "" if block.drawn is None else STATES[block.drawn.origin][0],
        f"{ledger.spent:.4f}",
        f"{ledger.Q:.4f}",
        ledger.rescued,
        *(f"{1e3 * lap:.2f}" for lap in (timing.draft_s, timing.score_s, timing.decide_s)),
    ]
    inner = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
    return f'<tr data-row="{block.request}:{block.number}">{inner}</tr>'


_HEADINGS = (
    "block", "drafted", "tested", "accepted", "emitted", "ends with", "Σε so far", "Π(1-ε)", "rescued so far",
    "draft ms", "target ms", "decide ms",
)  # fmt: skip


def _table(rows: list[str]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in _HEADINGS)
    return (
        f"<details><summary>Block by block</summary><div class='scroll'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _chart(info: RequestInfo, ledger: _Ledger) -> str:
    """The running ledger: expected rescues (sum of eps) as an area, rescues that happened as steps."""
    if not ledger.steps:
        return ""
    width, height, pad = 720.0, 110.0, 6.0
    last = max(ledger.steps[-1][0], 1)
    top = max(ledger.spent, float(ledger.rescued), 1e-9)

    def x(position: int) -> float:
        return pad + (width - 2 * pad) * position / last

    def y(value: float) -> float:
        return height - pad - (height - 2 * pad) * value / top

    expected = " ".join(f"L{x(t):.1f} {y(spent):.1f}" for t, spent, _ in ledger.steps)
    happened = f"M{x(0):.1f} {y(0):.1f} " + " ".join(f"H{x(t):.1f} V{y(count):.1f}" for t, _, count in ledger.steps)
    label = f"{ledger.spent:.4g} rescues expected (Σε), {ledger.rescued} happened, Π(1-ε) = {ledger.Q:.4g}"
    return (
        f'<figure class="ledger"><figcaption><b>Ledger</b> <span>{label}</span></figcaption>'
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{label}" preserveAspectRatio="none" '
        f'data-request="{info.request}" data-last="{last}" data-pad="{pad}" data-width="{width}">'
        f'<path class="area" d="M{x(0):.1f} {y(0):.1f} {expected} L{x(last):.1f} {y(0):.1f} Z"/>'
        f'<path class="line" d="M{x(0):.1f} {y(0):.1f} {expected}"/><path class="steps" d="{happened}"/>'
        f'<line class="cursor" x1="-9" x2="-9" y1="0" y2="{height:.0f}"/></svg>'
        f'<div class="chartkey"><span class="k1">expected, Σε</span><span class="k2">happened</span></div></figure>'
    )


def _footnote(trace: Trace) -> str:
    header = trace.header
    versions = ", ".join(f"{name} {version}" for name, version in sorted(header.versions.items()))
    facts = [versions, header.machine, header.dtype, f"revision {header.revision[:12]}" if header.revision else None]
    state = "" if trace.footer is not None else " Recording was interrupted; what is shown is what was written."
    return escape(" · ".join(fact for fact in facts if fact) + state)
