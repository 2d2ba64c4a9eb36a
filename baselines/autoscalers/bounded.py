"""Autoscalers that at most double or halve the size at a time: Knative's as AIBrix has it, and AIBrix' own.

Each is defined in its class, with its source and the defaults there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kvgym.baselines.autoscalers.metrics import MetricRule, recent_of, seconds
from kvgym.policies.scaling import AutoscalerInfo, PoolView, register_autoscaler
from kvgym.simulator.cluster.fleet_view import FleetView
from kvgym.simulator.fleet import Fleet

WIDEST = 2.0
"""Factor by which the size may grow or shrink at a time."""


def bounded(size: int, workers: int) -> int:
    """Return a size between half and twice the present one."""
    return min(max(size, math.ceil(workers / WIDEST)), math.floor(max(1, workers) * WIDEST))


def panics(stable: float, recent: float) -> bool:
    """Return whether the load has grown so fast that the size must not shrink."""
    return recent > 2 * stable


@register_autoscaler
class KPA(MetricRule):
    """The Knative autoscaler as AIBrix has it: a mean over 180 s, and a panic mode by one over 60 s.

    It wants ⌈mean / target⌉ workers, within half and twice the present number, and nothing while the ratio is within
    ``tolerance`` of 1. While the mean of the last 60 s is more than twice the other, it takes that and never shrinks.

    Source: AIBrix, ``kpa.go``.
    """

    info = AutoscalerInfo(
        name="kpa", summary="a mean of a metric over 180 s, in a panic over 60 s, as Knative", weight="target"
    )
    interval = 15.0

    stable: float = seconds(180.0)
    """seconds of the mean."""
    panic: float = seconds(60.0)
    """seconds of the mean that shows a panic."""

    def reset(self, fleet: Fleet, seed: np.random.SeedSequence) -> None:
        """Forget the past."""
        super().reset(fleet, seed)
        self._values = recent_of(fleet)

    def size_of(self, workers: int, stable: float, recent: float) -> tuple[int, bool]:
        """Return the size, and whether there is a panic.

        Args:
            workers: the present size.
            stable: the mean of the metric, summed over the workers.
            recent: the same over the shorter time.
        """
        panic = panics(stable, recent)
        value = recent if panic else stable
        if workers > 0 and abs(value / workers / self.target - 1) <= self.tolerance:
            return workers, panic
        size = bounded(math.ceil(value / self.target), workers)
        return (max(size, workers) if panic else size), panic

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the sizes by the means."""
        found = []
        for pool, values in zip(view.pools, self._values, strict=True):
            values.add(view.time, self.value_of(pool), self.stable)
            means = (values.mean(view.time - span) for span in (self.stable, self.panic))
            found.append(self.size_of(pool.target, *means)[0])
        return found


@register_autoscaler
class APA(MetricRule):
    """AIBrix' own: ⌈n · use / target⌉ workers outside a band around the target, within n/2 and 2 n.

    It shrinks at most once in ``down`` seconds.

    Source: AIBrix, ``apa.go``.
    """

    info = AutoscalerInfo(
        name="apa",
        summary="a metric of the workers outside a band around its target, as AIBrix",
        weight="target",
    )
    interval = 15.0

    down: float = seconds(300.0)
    """seconds since the last change before it shrinks."""

    def reset(self, fleet: Fleet, seed: np.random.SeedSequence) -> None:
        """Forget the past."""
        super().reset(fleet, seed)
        self._changed = [0.0] * len(fleet.pools)

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the sizes."""
        return [self._size(view.time, g, pool) for g, pool in enumerate(view.pools)]

    def _size(self, time: float, g: int, pool: PoolView) -> int:
        use = self.value_of(pool) / max(1, pool.ready)
        if abs(use / self.target - 1) <= self.tolerance:
            return pool.target
        size = bounded(math.ceil(max(1, pool.ready) * use / self.target), pool.target)
        if size < pool.target and time < self._changed[g] + self.down:
            return pool.target
        if size != pool.target:
            self._changed[g] = time
        return size
