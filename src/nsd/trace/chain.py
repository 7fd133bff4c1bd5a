"""The running hash: each line of a trace carries the SHA-256 of everything before it and of itself.

It detects corruption (a flipped bit, a lost or swapped line). It does not stop a forger, who can compute it anew.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from nsd.trace.codec import dumps

START = "0" * 64
_SEALED = re.compile(r'^(\{.*),"sha256":"([0-9a-f]{64})"\}$', re.DOTALL)


def link(chain: str, body: str) -> str:
    """The hash after one more line: sha256 of the hash before it and the line's own JSON."""
    return hashlib.sha256(f"{chain}\n{body}".encode()).hexdigest()


def seal(kind: str, value: Any, chain: str) -> tuple[str, str]:
    """One line (without its end) for a header, block or footer, and the hash after it."""
    body = f'{{"kind":"{kind}",{dumps(value)[1:]}'
    chain = link(chain, body)
    return f'{body[:-1]},"sha256":"{chain}"}}', chain


def open_line(line: str) -> tuple[str, str] | None:
    """A line's own JSON and the hash that it carries; None if it carries none."""
    found = _SEALED.match(line)
    return (found[1] + "}", found[2]) if found else None
