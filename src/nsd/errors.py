"""Every error a user can meet. Each message says what was got, what was wanted and what to type next."""

from __future__ import annotations


class NSDError(Exception):
    """Base of all errors raised on purpose; the command line prints one line and exits with 2."""


class ConfigError(NSDError, ValueError):
    """A setting is unknown, out of range, or contradicts another."""


class LawError(NSDError, ValueError):
    """A probability law is negative, does not sum to one, or has the wrong shape."""


class NonFiniteTarget(NSDError, FloatingPointError):
    """The target produced a row of logits without a finite law; nothing can be verified against it."""


class NoClosedForm(NSDError, NotImplementedError):
    """The emitted law of this rule has no closed form; nothing is estimated in its place."""


class ModelError(NSDError):
    """A model, checkpoint or tokenizer cannot be loaded or cannot be used here."""


class PairMismatch(NSDError):
    """Target and drafter do not share one vocabulary."""


class PromptError(NSDError, ValueError):
    """The prompt is empty, undecodable, or longer than the context."""


class TraceError(NSDError):
    """A trace cannot be read or does not follow its schema."""
