"""Autoscalers that change the size by bounded steps: Knative's as AIBrix has it, AIBrix' own, and llm-d's first.

Each is defined in its class, with its source and the defaults there. Requests outside count as ongoing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kvgym.baselines.autoscalers.reactive import METRICS, seconds
from kvgym.policies.hyperparameters import choice, fraction, positive
from kvgym.policies.scaling import Autoscaler, AutoscalerInfo, PoolView, register_autoscaler
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
class KPA(Autoscaler):
    """The Knative autoscaler as AIBrix has it: a mean over 180 s, and a panic mode by one over 60 s.

    It wants ⌈mean / target⌉ workers, within half and twice the present number, and nothing while the ratio is within
    ``tolerance`` of 1. While the mean of the last 60 s is more than twice the other, it takes that and never shrinks.

    Source: AIBrix, ``kpa.go``.
    """

    info = AutoscalerInfo(
        name="kpa", summary="a mean of a metric over 180 s, in a panic over 60 s, as Knative"
    )
    interval = 15.0

    metric: str = choice("ongoing", tuple(METRICS))
    """ongoing, waiting, kv or saturation."""
    target: float = positive(8.0)
    """value of the metric that a worker should have."""
    tolerance: float = fraction(0.1)
    """deviation of the ratio from 1 at which nothing changes."""
    stable: float = seconds(180.0)
    """seconds of the mean."""
    panic: float = seconds(60.0)
    """seconds of the mean that shows a panic."""

    def reset(self, fleet: Fleet, seed: np.random.SeedSequence) -> None:
        """Forget the past."""
        super().reset(fleet, seed)
        self._values: list[list[tuple[float, float]]] = [[] for _ in fleet.pools]

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
            values.append((view.time, METRICS[self.metric](pool)))
            values[:] = [item for item in values if item[0] > view.time - self.stable]
            recent = [value for at, value in values if at > view.time - self.panic]
            means = float(np.mean([value for _, value in values])), float(np.mean(recent))
            found.append(self.size_of(pool.target, *means)[0])
        return found


@register_autoscaler
class APA(Autoscaler):
    """AIBrix' own: ⌈n · use / target⌉ workers outside a band around the target, within n/2 and 2 n.

    It shrinks at most once in ``down`` seconds.

    Source: AIBrix, ``apa.go``.
    """

    info = AutoscalerInfo(
        name="apa", summary="a metric of the workers outside a band around its target, as AIBrix"
    )
    interval = 15.0

    metric: str = choice("ongoing", tuple(METRICS))
    """ongoing, waiting, kv or saturation."""
    target: float = positive(8.0)
    """value of the metric that a worker should have."""
    band: float = fraction(0.1)
    """deviation of the ratio from 1 at which nothing changes."""
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
        use = METRICS[self.metric](pool) / max(1, pool.ready)
        if abs(use / self.target - 1) <= self.band:
            return pool.target
        size = bounded(math.ceil(max(1, pool.ready) * use / self.target), pool.target)
        if size < pool.target and time < self._changed[g] + self.down:
            return pool.target
        if size != pool.target:
            self._changed[g] = time
        return size


FULL_KV, FULL_QUEUE = 0.8, 5.0
"""Use of the memory and waiting requests from which a worker is saturated."""
SPARE_KV, SPARE_QUEUE = 0.1, 3.0
"""Mean distances from these that the free workers should keep."""


def saturation_step(kv: Sequence[float], queue: Sequence[float]) -> int:
    """Return the change of the size that the workers ask for: 1, 0 or -1.

    Args:
        kv: share of the memory in use of each ready worker.
        queue: waiting requests of each.
    """
    free = [(k, q) for k, q in zip(kv, queue, strict=True) if k < FULL_KV and q < FULL_QUEUE]
    n = len(free)
    if n == 0:
        return 1
    used, waiting = sum(k for k, _ in free), sum(q for _, q in free)

    def spare(workers: int) -> bool:
        return FULL_KV - used / workers >= SPARE_KV and FULL_QUEUE - waiting / workers >= SPARE_QUEUE

    if not spare(n):
        return 1
    return -1 if n >= 2 and spare(n - 1) else 0


@register_autoscaler
class WVA(Autoscaler):
    """The saturation rule of llm-d's workload variant autoscaler, first version: a worker more or fewer at a time.

    Free workers have less than 80 % of their memory in use and fewer than 5 waiting requests. One more is wanted where
    their mean distance from these is less than 10 % or 3 requests, or none is free; one fewer where the others could
    carry their load and keep both distances. Nothing changes while workers start or drain.

    Source: llm-d workload-variant-autoscaler, ``saturation/analyzer.go``; every 60 s. There the result passes through
    a Kubernetes autoscaler, which waits another 240 s.
    """

    info = AutoscalerInfo(
        name="wva_v1", summary="a worker more or fewer by memory and queues of free ones, as llm-d"
    )
    interval = 60.0

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the present size, changed by one at most."""
        return [
            pool.target
            if pool.starting or pool.draining or pool.ready != pool.target
            else pool.target + saturation_step(pool.kv.tolist(), pool.waiting.tolist())
            for pool in view.pools
        ]
