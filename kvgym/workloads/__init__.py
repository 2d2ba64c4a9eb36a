"""Workloads: arrivals, lengths, predictions, trace readers and named presets.

Start with :func:`make_workload` (a preset or a description) or :func:`read_trace` (a file); both end in a
:class:`RequestTable`. Names are imported on first use, so that reading the table's contract costs nothing.
May import only :mod:`kvgym.registry`, :mod:`kvgym.seeding`, :mod:`kvgym.specs` and :mod:`kvgym.errors`; may be imported
from :mod:`kvgym.simulator` and above.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvgym.workloads.adversarial import theorem_4_1_schedule, theorem_4_1_workload
    from kvgym.workloads.instances import mcsf_instance
    from kvgym.workloads.presets import describe_presets, preset_names
    from kvgym.workloads.spec import RequestClass, WorkloadSpec
    from kvgym.workloads.table import RequestTable
    from kvgym.workloads.traces import Trace, load_trace, read_trace, trace_formats, write_requests
    from kvgym.workloads.workload import Workload, make_workload

_HOME = {
    "RequestClass": "spec",
    "RequestTable": "table",
    "Trace": "traces",
    "Workload": "workload",
    "WorkloadSpec": "spec",
    "describe_presets": "presets",
    "load_trace": "traces",
    "make_workload": "workload",
    "mcsf_instance": "instances",
    "preset_names": "presets",
    "read_trace": "traces",
    "theorem_4_1_schedule": "adversarial",
    "theorem_4_1_workload": "adversarial",
    "trace_formats": "traces",
    "write_requests": "traces",
}

__all__ = [
    "RequestClass",
    "RequestTable",
    "Trace",
    "Workload",
    "WorkloadSpec",
    "describe_presets",
    "load_trace",
    "make_workload",
    "mcsf_instance",
    "preset_names",
    "read_trace",
    "theorem_4_1_schedule",
    "theorem_4_1_workload",
    "trace_formats",
    "write_requests",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
