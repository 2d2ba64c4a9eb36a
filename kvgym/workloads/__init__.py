"""Workloads: arrivals, lengths, predictions, trace readers and named presets.

Start with :func:`make_workload` (a preset or a description) or :func:`read_trace` (a file); both produce a
:class:`RequestTable`. Names are imported on first use.
May import only :mod:`kvgym.utils` and :mod:`kvgym.errors`; may be imported from :mod:`kvgym.simulator` and above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgym.utils.lazy import lazy_names

if TYPE_CHECKING:
    from kvgym.workloads.adversarial import theorem_4_1_schedule, theorem_4_1_workload
    from kvgym.workloads.forecasts import Forecasts
    from kvgym.workloads.graphs import Parents
    from kvgym.workloads.hashes import BlockHashes
    from kvgym.workloads.instances import mcsf_instance
    from kvgym.workloads.mixtures import fit_lengths, fit_predictor, variance_explained
    from kvgym.workloads.pieces import pieces_of
    from kvgym.workloads.presets import describe_presets, preset_names
    from kvgym.workloads.spec import RequestClass, WorkloadSpec
    from kvgym.workloads.summary import summarise
    from kvgym.workloads.table import RequestTable
    from kvgym.workloads.traces import (
        Trace,
        load_trace,
        read_trace,
        register_trace_format,
        trace_formats,
        write_requests,
    )
    from kvgym.workloads.workload import Workload, make_workload
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "adversarial": "theorem_4_1_schedule theorem_4_1_workload",
            "mixtures": "fit_lengths fit_predictor variance_explained",
            "forecasts": "Forecasts",
            "graphs": "Parents",
            "hashes": "BlockHashes",
            "instances": "mcsf_instance",
            "pieces": "pieces_of",
            "presets": "describe_presets preset_names",
            "spec": "RequestClass WorkloadSpec",
            "summary": "summarise",
            "table": "RequestTable",
            "traces": "Trace load_trace read_trace register_trace_format trace_formats write_requests",
            "workload": "Workload make_workload",
        },
    )

__all__ = [
    "BlockHashes",
    "Forecasts",
    "Parents",
    "RequestClass",
    "RequestTable",
    "Trace",
    "Workload",
    "WorkloadSpec",
    "describe_presets",
    "fit_lengths",
    "fit_predictor",
    "load_trace",
    "make_workload",
    "mcsf_instance",
    "pieces_of",
    "preset_names",
    "read_trace",
    "register_trace_format",
    "summarise",
    "theorem_4_1_schedule",
    "theorem_4_1_workload",
    "trace_formats",
    "variance_explained",
    "write_requests",
]
