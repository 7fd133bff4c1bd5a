"""Decoding: requests in, events out; propose, score, verify, commit."""

from nsd.decoding.completion import Completion
from nsd.decoding.loop import Decoder
from nsd.decoding.request import Request
from nsd.decoding.stats import Stats

__all__ = ["Completion", "Decoder", "Request", "Stats"]
