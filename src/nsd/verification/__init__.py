"""Verification: which drafted tokens stand, and what follows the first that does not."""

from nsd.verification.types import (
    Accounting,
    Branch,
    Caps,
    Columns,
    Draft,
    DraftLaw,
    Final,
    Uniforms,
    Verdict,
)
from nsd.verification.verify import verify

__all__ = ["Accounting", "Branch", "Caps", "Columns", "Draft", "DraftLaw", "Final", "Uniforms", "Verdict", "verify"]
