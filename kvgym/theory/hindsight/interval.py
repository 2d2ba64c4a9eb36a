"""An optimum known as an interval: a value that no schedule beats, and one that a schedule reaches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-9  # relative; values that differ by less are equal


@dataclass(frozen=True)
class Interval:
    """The best value of a metric that any schedule of these requests reaches, between two ends.

    For a metric to minimise (latency, makespan), no schedule beats ``lower`` and ``schedule`` reaches ``upper``. For a
    metric to maximise (throughput, utilisation), nothing beats ``upper`` and ``schedule`` reaches ``lower``.

    Attributes:
        metric: name of the metric, in its unit (:mod:`kvgym.metrics`).
        lower: no more than the optimum.
        upper: no less than the optimum.
        schedule: the start time of each request, by request id, in the schedule that reaches its end of the interval;
            ``None`` where it is not known or is a run with evictions.
        method: how both ends were found, as text.
    """

    metric: str
    lower: float
    upper: float
    schedule: NDArray[np.int64] | NDArray[np.float64] | None
    method: str

    @property
    def gap(self) -> float:
        """Distance of the ends, relative to the upper one."""
        if self.upper == self.lower:
            return 0.0
        return (self.upper - self.lower) / abs(self.upper) if self.upper else float("inf")

    @property
    def exact(self) -> bool:
        """Whether both ends are equal, so that the optimum is known."""
        return self.gap <= TOLERANCE
