"""Metrics: what a run is measured by. ``compute`` defines the standard ones, ``catalogue`` their units and directions.

``attainment``, ``fairness`` and ``jobs`` are the parts that need more than a column of times.
May import :mod:`kvgym.policies` and what is below it; may be imported from :mod:`kvgym.theory` and above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgym.utils.lazy import lazy_names

if TYPE_CHECKING:
    from kvgym.metrics.attainment import slo_met
    from kvgym.metrics.catalogue import (
        LATENCIES,
        METRICS,
        SCALARS,
        STANDARD_METRICS,
        Metric,
        MetricInfo,
        metric_info,
        metric_names,
        register_metric,
    )
    from kvgym.metrics.compute import WORKER_METRICS, compute_metrics, counted_requests, worker_metrics
    from kvgym.metrics.measured import STATISTICS
    from kvgym.metrics.streaming import Streamed, stream
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "attainment": "slo_met",
            "catalogue": "LATENCIES METRICS SCALARS STANDARD_METRICS Metric MetricInfo metric_info metric_names "
            "register_metric",
            "compute": "WORKER_METRICS compute_metrics counted_requests worker_metrics",
            "measured": "STATISTICS",
            "streaming": "Streamed stream",
        },
    )

__all__ = [
    "LATENCIES",
    "METRICS",
    "SCALARS",
    "STANDARD_METRICS",
    "STATISTICS",
    "WORKER_METRICS",
    "Metric",
    "MetricInfo",
    "Streamed",
    "compute_metrics",
    "counted_requests",
    "metric_info",
    "metric_names",
    "register_metric",
    "slo_met",
    "stream",
    "worker_metrics",
]
