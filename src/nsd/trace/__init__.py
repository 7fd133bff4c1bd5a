"""Traces of decoding: record, read, audit, view, analyze, convert. None of these needs a tensor library."""

from nsd.trace.audit import Audit, audit
from nsd.trace.read import read_trace
from nsd.trace.record import Recorder
from nsd.trace.schema import Footer, Header, RequestInfo, RequestTotals, Trace
from nsd.trace.standing import Finding

__all__ = [
    "Audit",
    "Finding",
    "Footer",
    "Header",
    "Recorder",
    "RequestInfo",
    "RequestTotals",
    "Trace",
    "audit",
    "read_trace",
]
