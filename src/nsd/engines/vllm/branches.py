"""What is certain about each branch of the engine: the table of `nsd vllm check`.

exact         the deviation of a step is known exactly: TV(emitted, p) = lam ES of the p that vLLM samples from
upper bound   it is at most the figure that the ledger shows
not certified nothing was shown about it here
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["exact", "upper bound", "not certified"]
_KERNELS, _V2, _CORE = "tests_vllm/kernels/test_v1_kernels.py", "tests_vllm/kernels/test_v2_kernels.py", "tests/engines"


@dataclass(frozen=True)
class BranchFact:
    """One branch: what it is, what is certain, why, and the test that shows it."""

    branch: str
    verdict: Verdict
    why: str
    test: str


BRANCHES = (
    BranchFact(
        "greedy request", "exact", "never forced: vLLM's own argmax test", f"{_KERNELS}::test_greedy_rows_are_untouched"
    ),
    BranchFact(
        "sampled, draft law there (draft_sample_method probabilistic)",
        "exact",
        "emitted law against nsd.fidelity by chi-square, with and without a cap",
        f"{_KERNELS}::test_emitted_law",
    ),
    BranchFact(
        "sampled, point mass (ngram, suffix, greedy drafting)",
        "exact",
        "ES = 1 - p(x) in the nucleus",
        f"{_KERNELS}::test_emitted_law_of_point_masses",
    ),
    BranchFact(
        "sampled draft whose law is missing in a step",
        "upper bound",
        "taken for a point mass: the cap holds, ES is a bound",
        f"{_CORE}/test_relax.py::test_missing_law_is_a_bound",
    ),
    BranchFact(
        "padded or placeholder id (-1)",
        "exact",
        "never accepted for a request under NSD",
        f"{_KERNELS}::test_never_accepted",
    ),
    BranchFact(
        "grammar, allowed ids, bad words, min_tokens",
        "exact",
        "p(x) = 0 is never forced",
        f"{_KERNELS}::test_never_accepted",
    ),
    BranchFact(
        "penalties, temperature, top-k, top-p",
        "exact",
        "S and ES are of the processed law, the one that is sampled from",
        f"{_KERNELS}::test_processed_law_decides",
    ),
    BranchFact(
        "theta 0, rule sd, cap 0",
        "exact",
        "vLLM's own functions with its own arguments",
        f"{_KERNELS}::test_theta_zero_changes_no_bit",
    ),
    BranchFact(
        "V2 kernel", "exact", "vLLM's kernel under Triton's interpreter, by chi-square", f"{_V2}::test_emitted_law"
    ),
    BranchFact(
        "V2 runner on a GPU, end to end", "not certified", "no GPU in the tests; the kernel is the one tested", "none"
    ),
    BranchFact(
        "tensor parallel",
        "exact",
        "by construction: equal rows and stamps give equal decisions, whatever rank computes them; no group was run",
        f"{_CORE}/test_relax.py::test_ranks_agree",
    ),
    BranchFact(
        "asynchronous scheduling",
        "exact",
        "by construction: positions are read on the device; vLLM switches it off on CPUs, so no engine was run with it",
        f"{_CORE}/test_vllm_branches.py::test_positions_are_those_of_the_device",
    ),
    BranchFact(
        "whole sequences",
        "not certified",
        "without a cap nothing bounds a sequence: docs/fidelity.md",
        "tests/fidelity",
    ),
)
