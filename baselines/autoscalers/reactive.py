"""Autoscalers of current platforms, which react to what the workers have to do now.

Each is defined in its class, with its source and the platform's defaults. Requests outside, for which no worker is
ready, count as ongoing and as waiting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from kvgym.policies.hyperparameters import choice, fraction, hyperparameter, positive
from kvgym.policies.scaling import Autoscaler, AutoscalerInfo, PoolView, register_autoscaler
from kvgym.simulator.cluster.fleet_view import FleetView
from kvgym.simulator.fleet import Fleet

METRICS: dict[str, Callable[[PoolView], float]] = {
    "ongoing": lambda pool: float(pool.ongoing.sum() + pool.unrouted),
    "waiting": lambda pool: float(pool.waiting.sum() + pool.unrouted),
    "kv": lambda pool: float(pool.kv.sum() + (pool.unrouted > 0)),
    "saturation": lambda pool: float(np.maximum(pool.waiting / 5, pool.kv / 0.8).sum() + pool.unrouted / 5),
}
"""What a pool has to do, summed over its ready workers.

``ongoing``: unfinished requests. ``waiting``: requests in queues. ``kv``: share of the KV memory in use.
``saturation``: of each worker the larger of its queue, relative to 5, and its memory in use, relative to 0.8, as the
utilisation detector of llm-d's router has it; its target is 1.
"""


def seconds(default: float) -> float:
    """Declare a hyperparameter that is a time."""
    found: float = hyperparameter(default, lambda x: 0 <= x <= 1e6, "seconds, 0 … 1e6")
    return found


def size_by_ratio(current: int, workers: int, value: float, target: float, tolerance: float) -> int:
    """Return the size at which a metric per worker would meet its target.

    Args:
        current: the present size.
        workers: workers that the value is from.
        value: sum of the metric over them.
        target: the metric of a worker that is wanted.
        tolerance: deviation of the ratio of both from 1 at which the size stays.
    """
    if workers > 0 and abs(value / workers / target - 1) <= tolerance:
        return current
    return math.ceil(value / target)


class _Window:
    """Recommendations of the last seconds; before the first of them, the size at that time was recommended."""

    def __init__(self) -> None:
        self._found: list[tuple[float, int]] = []
        self.first: tuple[float, int] | None = None

    def add(self, time: float, size: int, kept: float) -> None:
        """Add a recommendation, and forget those older than ``kept`` seconds."""
        self._found = [*(item for item in self._found if item[0] >= time - kept), (time, size)]

    def since(self, time: float) -> list[int]:
        """Return the recommendations since a time."""
        return [size for at, size in self._found if at >= time]


@register_autoscaler
class HPA(Autoscaler):
    """The Horizontal Pod Autoscaler of Kubernetes on a metric of the workers.

    It wants ⌈n · value / target⌉ workers, with the mean value over the n ready ones; nothing changes while the ratio
    is within ``tolerance`` of 1. For growth, workers that start count with a value of 0. It takes the least of the
    recommendations of the last ``up`` seconds to grow and the most of the last ``down`` seconds to shrink, and in 15 s
    adds at most as many workers as there are, or 4.

    Source: Kubernetes documentation, "Horizontal Pod Autoscaling", with its defaults; the arithmetic of its default
    policies is from that text.
    """

    info = AutoscalerInfo(name="hpa", summary="a metric of the workers at its target, as Kubernetes' HPA")
    interval = 15.0

    metric: str = choice("ongoing", tuple(METRICS))
    """ongoing, waiting, kv or saturation."""
    target: float = positive(8.0)
    """value of the metric that a worker should have."""
    tolerance: float = fraction(0.1)
    """deviation of the ratio from 1 at which nothing changes."""
    up: float = seconds(0.0)
    """seconds over which the least recommendation counts to grow."""
    down: float = seconds(300.0)
    """seconds over which the most counts to shrink."""

    def reset(self, fleet: Fleet, seed: np.random.SeedSequence) -> None:
        """Forget the recommendations."""
        super().reset(fleet, seed)
        self._windows = [_Window() for _ in fleet.pools]

    def size_of(self, pool: PoolView) -> int:
        """Return the size that the metric asks for now."""
        value, current = METRICS[self.metric](pool), pool.target
        if value <= pool.ready * self.target or pool.starting == 0:
            return size_by_ratio(current, pool.ready, value, self.target, self.tolerance)
        whole = (
            pool.ready + pool.starting
        )  # those that start have a value of 0, which does not turn growth around
        return max(current, size_by_ratio(current, whole, value, self.target, self.tolerance))

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the stabilised sizes."""
        return [
            self._stable(view.time, pool, window)
            for pool, window in zip(view.pools, self._windows, strict=True)
        ]

    def _stable(self, time: float, pool: PoolView, window: _Window) -> int:
        window.first = window.first or (time, pool.target)
        window.add(time, self.size_of(pool), max(self.up, self.down))
        least, most = min(window.since(time - self.up)), max(window.since(time - self.down))
        if time < window.first[0] + self.down:
            most = max(most, window.first[1])
        size = min(max(pool.target, least), most)
        return min(size, pool.target + max(pool.target, 4))


@register_autoscaler
class KEDA(HPA):
    """A threshold of the sum of a metric, as KEDA hands it to Kubernetes: ⌈Σ metric / threshold⌉, every 30 s.

    KEDA gives the sum of its trigger to the Horizontal Pod Autoscaler as an average value, so the size does not depend
    on the workers that are ready. Windows and limits of that are those of ``hpa``.

    Source: KEDA documentation, "Scaling Deployments": pollingInterval 30 s, metricType AverageValue.
    """

    info = AutoscalerInfo(name="keda", summary="the sum of a metric by a threshold for a worker, as KEDA")
    interval = 30.0

    metric: str = choice("waiting", tuple(METRICS))
    """ongoing, waiting, kv or saturation."""
    target: float = positive(0.5)
    """threshold of the metric for a worker."""

    def size_of(self, pool: PoolView) -> int:
        """Return the sum by the threshold; within the tolerance nothing changes."""
        return size_by_ratio(
            pool.target, pool.target, METRICS[self.metric](pool), self.target, self.tolerance
        )


@register_autoscaler
class Ray(Autoscaler):
    """Ongoing requests for each worker, as Ray Serve: ⌈n · (mean of ongoing requests / target) / n⌉ with delays.

    The ongoing requests are averaged over ``look_back`` seconds. The size changes when the same direction has been
    wanted for ``up`` seconds to grow, or ``down`` seconds to shrink; ``factor`` multiplies each change.

    Source: Ray Serve, ``autoscaling_policy.py`` and ``config.py``; the default target of 2 and the delays are its
    documentation's.
    """

    info = AutoscalerInfo(name="ray", summary="ongoing requests for each worker at a target, as Ray Serve")
    interval = 10.0

    target: float = positive(2.0)
    """ongoing requests that a worker should have."""
    factor: float = positive(1.0)
    """factor on each change of the size."""
    up: float = seconds(30.0)
    """seconds for which growth must have been wanted."""
    down: float = seconds(600.0)
    """seconds for which a smaller size must have been wanted."""
    look_back: float = seconds(30.0)
    """seconds over which ongoing requests are averaged."""

    def reset(self, fleet: Fleet, seed: np.random.SeedSequence) -> None:
        """Forget the past."""
        super().reset(fleet, seed)
        self._ongoing: list[list[tuple[float, float]]] = [[] for _ in fleet.pools]
        self._since = [(0, 0.0)] * len(fleet.pools)  # direction wanted, and since when

    def size_of(self, pool: PoolView, ongoing: float) -> int:
        """Return the size that a mean of ongoing requests asks for.

        Args:
            pool: the pool.
            ongoing: the mean, over all workers together.
        """
        workers = max(1, pool.target)
        return math.ceil(workers + self.factor * (ongoing / self.target - workers))

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the targets after the delays."""
        return [self._delayed(view.time, g, pool) for g, pool in enumerate(view.pools)]

    def _delayed(self, time: float, g: int, pool: PoolView) -> int:
        recent = [item for item in self._ongoing[g] if item[0] > time - self.look_back]
        self._ongoing[g] = [*recent, (time, METRICS["ongoing"](pool))]
        size = self.size_of(pool, float(np.mean([value for _, value in self._ongoing[g]])))
        direction = int(np.sign(size - pool.target))
        if direction != self._since[g][0]:
            self._since[g] = direction, time
        wait = self.up if direction > 0 else self.down
        if direction == 0 or time < self._since[g][1] + wait:
            return pool.target
        self._since[g] = 0, time
        return size
