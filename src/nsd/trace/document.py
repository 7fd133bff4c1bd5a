"""The schema as a table, made from the dataclasses, with what an audit can say of each field.

`python -m nsd.trace.document FILE` puts the tables between the marks of a Markdown file.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

from nsd.events import Block, Committed, Drawn, Law, Tested, Timing
from nsd.trace.schema import Footer, Header, RequestInfo, RequestTotals

BEGIN, END = "<!-- schema: begin (made by python -m nsd.trace.document) -->", "<!-- schema: end -->"


class Checked(Enum):
    """What an audit notices when a field was changed and the running hash was made anew."""

    ALWAYS = "yes"
    PARTLY = "where it alters a recomputed value"
    NEVER = "no"


A, P, N = Checked.ALWAYS, Checked.PARTLY, Checked.NEVER

MEANING: dict[Any, dict[str, tuple[Checked, str]]] = {
    Header: {
        "target": (N, "name of the target"),
        "drafter": (N, "name of the drafter"),
        "draft_law": (P, "how proposals came about: sampled, point, unknown"),
        "requests": (A, "the requests, below"),
        "accounting": (N, "level of accounting: off, rescues, full"),
        "k_unit": (N, "what k counts"),
        "block_length": (N, "k in the mechanism's own unit"),
        "vocab": (N, "ids of the target; bounds entropies"),
        "eos": (P, "ids that end a text"),
        "logprobs": (N, "what `logprob` is: processed, raw or none"),
        "dtype": (N, "number format of the target"),
        "device": (N, "where the target ran"),
        "versions": (N, "nsd, python, torch, transformers"),
        "revision": (N, "revision of the source"),
        "machine": (N, "system and processor"),
        "created": (N, "when recording began"),
        "format": (A, "the word nsd-trace"),
        "version": (A, "version of header, footer and line format"),
        "events": (A, "version of the events"),
    },
    RequestInfo: {
        "request": (A, "its number in the blocks"),
        "seed": (A, "seed of its uniforms"),
        "rule": (P, "verification rule"),
        "numbers": (P, "the rule's numbers: theta, ties, max_deviation, ..."),
        "sampling": (N, "temperature, top_k, top_p, ... of both laws"),
        "k": (P, "proposals per block at most"),
        "max_new_tokens": (P, "tokens at most"),
        "key": (A, "names its stream of uniforms under the seed"),
        "prompt": (N, "text of the prompt"),
        "prompt_tokens": (N, "tokens of the prompt"),
        "agreement": (P, "whole-sequence budget, 1 - delta"),
        "policy": (P, "how the budget is placed: even, greedy, front"),
    },
    Block: {
        "request": (A, "which request"),
        "number": (A, "block of that request, 0 the prefill"),
        "position": (A, "output position of its first token"),
        "drafted": (P, "all proposals; those behind a rejection leave no other mark"),
        "tested": (A, "tested proposals, below"),
        "drawn": (A, "the final token, below; none if the text ended before it"),
        "committed": (A, "emitted tokens, below"),
        "rejected_text": (N, "text of the rejected proposal"),
        "guard": (A, "the residual had no finite mass and p was drawn from"),
        "invalid": (A, "q was not finite at the rejection and p was drawn from"),
        "finish_reason": (A, "why the text ended here"),
        "timing": (P, "seconds of the step, below"),
        "batch": (A, "requests that shared the step"),
        "seconds_since_start": (P, "when the step ended; never falls, and equal within a step"),
    },
    Tested: {
        "position": (A, "output position, from 0"),
        "token": (A, "id of the proposal x"),
        "origin": (A, "ratio, rescued or rejected; decided again"),
        "u": (A, "accept uniform; recomputed from its key"),
        "p": (P, "p(x)"),
        "q": (P, "q(x); null where q was not finite"),
        "mass": (P, "target mass strictly above x (before x in the prefix form)"),
        "rank": (P, "place of x by p, from 1"),
        "R": (P, "rejection probability of the standard test; equals the residual's mass at a rejection"),
        "ES": (A, "excess in the set; the deviation of other rules"),
        "eps": (A, "lam ES, the deviation spent"),
        "lam": (A, "the cap's coefficient"),
        "member": (A, "whether x is in the set"),
        "weight_factor": (A, "min(1, p/pi) of an accepted x"),
        "entropy_p": (N, "entropy of p in nats"),
        "entropy_q": (N, "entropy of q in nats"),
        "q_below": (
            P,
            "mass of q on smaller ids; u' q_mass must fall in [q_below, q_below + q), u' the draft's uniform",
        ),
        "q_mass": (P, "mass of q in all, 1 but for rounding"),
        "p_below": (P, "mass of p on smaller ids, where a rule compares x with the target's own draw"),
        "p_law": (P, "p itself: most probable ids and the rest"),
        "q_law": (P, "q itself"),
    },
    Drawn: {
        "position": (A, "output position"),
        "token": (A, "id of the final token"),
        "origin": (A, "recovered, bonus or target"),
        "u": (A, "its uniform; recomputed from its key"),
        "p": (P, "its target probability"),
        "mass": (A, "total of the law drawn from: 1, or R for a residual"),
        "weight": (P, "its mass in that law"),
        "below": (P, "mass of smaller ids in that law; u mass must fall in [below, below + weight)"),
    },
    Committed: {
        "token": (A, "id"),
        "origin": (A, "as decided"),
        "text": (N, "text that it adds"),
        "logprob": (P, "log p where logprobs is processed"),
    },
    Timing: {
        "draft_s": (P, "seconds of drafting; equal for all requests of a step"),
        "score_s": (P, "seconds of the target pass"),
        "decide_s": (P, "seconds of the decision"),
        "commit_s": (P, "seconds of the rest"),
    },
    Law: {
        "top": (P, "(id, probability), falling"),
        "rest": (P, "mass of all other ids"),
    },
    Footer: {
        "requests": (A, "totals by request, below"),
        "blocks": (A, "block lines in all"),
        "seconds": (N, "seconds of recording"),
    },
    RequestTotals: {
        "request": (A, "which request"),
        "blocks": (A, "its blocks, the prefill included"),
        "output_tokens": (A, "tokens emitted"),
        "drafted": (A, "proposals"),
        "tested": (A, "tested proposals"),
        "by_ratio": (A, "accepted by the ratio test"),
        "rescued": (A, "kept only by the set"),
        "rejected": (A, "rejected"),
        "recovered": (A, "replacements"),
        "bonus": (A, "bonus tokens"),
        "target": (A, "tokens drawn with nothing drafted"),
        "guards": (A, "blocks with a guard"),
        "invalid": (A, "blocks with a q that was not finite"),
        "finish_reason": (A, "eos, stop, length or interrupted"),
        "fidelity": (P, "guarantee, ledger, weight, expected rescues, ES; its words and reasons are not checked"),
    },
}
"""Every field of every record: whether an audit notices a change, and what the field is."""


def tables() -> str:
    """The schema in Markdown: one table for each kind of record."""
    parts = []
    for kind, meaning in MEANING.items():
        head = "| field | type | meaning | changed, hash re-made: noticed |\n| --- | --- | --- | --- |"
        parts.append(f"### {kind.__name__}\n\n{head}")
        for f in fields(kind):
            checked, words = meaning[f.name]
            kind_of = str(f.type).replace("|", "\\|")
            parts[-1] += f"\n| `{f.name}` | `{kind_of}` | {words} | {checked.value} |"
    return "\n\n".join(parts)


def unchecked() -> str:
    """The fields that no recorded value determines, as one Markdown list."""
    lines = []
    for kind, meaning in MEANING.items():
        names = [f"`{name}`" for name, (checked, _) in meaning.items() if checked is Checked.NEVER]
        if names:
            lines.append(f"- {kind.__name__}: {', '.join(names)}")
    return "\n".join(lines)


def document() -> str:
    """What stands between the marks."""
    return f"{BEGIN}\n\n{tables()}\n\n### Fields that cannot be re-derived\n\n{unchecked()}\n\n{END}"


def renewed(text: str) -> str:
    """A Markdown text with the part between the marks made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + document() + after


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
