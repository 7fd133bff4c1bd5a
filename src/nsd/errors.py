"""Every error a user can meet. Each message says what was got, what was wanted and what to type next."""

from __future__ import annotations


class NSDError(Exception):
    """Base of all errors raised on purpose; the command line prints one line and exits with 2."""


class ConfigError(NSDError, ValueError):
    """A setting is unknown, out of range, or contradicts another."""


class LawError(NSDError, ValueError):
    """A probability law is negative, does not sum to one, or has the wrong shape."""


class NonFiniteTarget(NSDError, FloatingPointError):
    """The target produced a row of logits without a finite law; nothing can be verified against it.

    request and place say where: in the batch that was verified, and from the start of its block.
    """

    def __init__(self, request: int, place: int, position: int | None = None) -> None:
        self.request, self.place = request, place
        where = f"place {place} of its block" if position is None else f"output position {position}"
        super().__init__(
            f"the target gave no finite law for request {request} at {where}, wanted finite logits; "
            "try --dtype float32, and nsd doctor to check the model"
        )

    def at(self, request: int, position: int) -> NonFiniteTarget:
        """The same, in the numbers of whole requests and their outputs."""
        return NonFiniteTarget(request, self.place, position)


class NoClosedForm(NSDError):
    """The emitted law of this rule has no closed form; nothing is estimated in its place."""


class ModelError(NSDError):
    """A model, checkpoint or tokenizer cannot be loaded or cannot be used here."""


class PairMismatch(NSDError):
    """Target and drafter do not share one vocabulary."""


class PromptError(NSDError, ValueError):
    """The prompt is empty, undecodable, or longer than the context."""


class TraceError(NSDError):
    """A trace cannot be read or does not follow its schema."""
