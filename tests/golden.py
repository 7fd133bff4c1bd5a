"""Exact one-step cases, worked out in float64 by other code than this project's."""

import gzip
import json
from functools import cache
from pathlib import Path

import torch

from nsd.verification import Accounting, Draft, DraftLaw, Uniforms, verify


@cache
def cases(kind):
    """The "step" or the "cap" cases."""
    packed = Path(__file__).parent / "data" / "golden.json.gz"
    return json.loads(gzip.decompress(packed.read_bytes()))[kind]


def column(*values):
    return torch.tensor(values, dtype=torch.float64)


def laws_of(case):
    return column(case["p"]), column(case["q"])


def verdict_of(case, rule, accounting=Accounting.FULL):
    """One drafted token at the case's x and u; the bonus row repeats p."""
    p, q = laws_of(case)
    draft = Draft(torch.tensor([case["x"]]), (1,), DraftLaw.SAMPLED, q)
    uniforms = Uniforms(column(case["u"], 0.5), column(0.3, 0.3), column(0.6, 0.6))
    return verify(draft, torch.cat([p, p]), [rule], uniforms, accounting)
