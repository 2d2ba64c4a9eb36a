"""What is known of an optimum: a value that no schedule beats, and one that a schedule reaches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-9  # relative; figures that differ by less are one figure


@dataclass(frozen=True)
class Interval:
    """Where the best value of a metric lies that any schedule of these requests reaches.

    For a metric that should be small (latency, makespan), ``lower`` is the bound that no schedule beats and
    ``upper`` is what ``schedule`` reaches. For one that should be large (throughput, utilisation) it is the
    other way round: nothing beats ``upper``, and ``schedule`` reaches ``lower``.

    Attributes:
        metric: name of the metric, in its unit (:mod:`kvgym.metrics`).
        lower: no more than the optimum.
        upper: no less than the optimum.
        schedule: the schedule that reaches the end which is not a bound, if it is a list of moments: when each
            request starts, by request id; ``None`` where it is not known or is a run with evictions.
        method: how both ends were found, for people.
    """

    metric: str
    lower: float
    upper: float
    schedule: NDArray[np.int64] | NDArray[np.float64] | None
    method: str

    @property
    def gap(self) -> float:
        """How far the ends are apart, relative to the upper one."""
        if self.upper == self.lower:
            return 0.0
        return (self.upper - self.lower) / abs(self.upper) if self.upper else float("inf")

    @property
    def exact(self) -> bool:
        """Whether both ends are one figure: the optimum is known."""
        return self.gap <= TOLERANCE
