"""A metric of another package: end-to-end latency per output token. docs/own-metric.md explains it."""

from __future__ import annotations

import numpy as np

import kvgym
from kvgym.metrics.compute import counted_requests


@kvgym.register_metric(
    "acme_normalized_latency",
    "mean end-to-end latency per output token, of finished requests",
    unit="s",
    lower_is_better=True,
    finished_only=True,
)
def normalized_latency(result: kvgym.SimulationResult) -> float:
    """Return the mean over the finished requests that count, seconds; NaN if there are none."""
    latency = result.requests["finish_time"] - result.table.arrival_time  # NaN: not finished
    each = (latency / result.table.output_len)[counted_requests(result) & np.isfinite(latency)]
    return float(each.mean()) if len(each) else float("nan")
