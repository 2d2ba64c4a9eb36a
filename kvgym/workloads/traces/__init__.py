"""Readers of request traces, a writer of kvgym's own format, and synthetic samples.

A file becomes a :class:`Trace`; a workload replays its rows or draws lengths from them.
May import ``base``, ``lengths``, ``limits`` and ``table`` of :mod:`kvgym.workloads`; may be imported from
:mod:`kvgym.workloads.workload` and above.
"""

from __future__ import annotations

from kvgym.workloads.traces.reader import load_trace, read_trace, register_trace_format, trace_formats
from kvgym.workloads.traces.sample import write_sample_trace
from kvgym.workloads.traces.trace import Trace
from kvgym.workloads.traces.writer import write_requests

__all__ = [
    "Trace",
    "load_trace",
    "read_trace",
    "register_trace_format",
    "trace_formats",
    "write_requests",
    "write_sample_trace",
]
