"""Targets: the models that decoding speaks for."""

from nsd.targets.base import FINAL_NORM, Scores, Target, TargetSession, Tokenizer

__all__ = ["FINAL_NORM", "Scores", "Target", "TargetSession", "Tokenizer"]
