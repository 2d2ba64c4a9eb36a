"""Autoscalers of current platforms, which react to what the workers have to do now.

Each is defined in its class, with its source and the platform's defaults.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kvgym.baselines.autoscalers.metrics import (
    METRICS,
    MetricRule,
    recent_of,
    seconds,
    size_by_ratio,
)
from kvgym.policies.hyperparameters import choice, positive
from kvgym.policies.scaling import Autoscaler, AutoscalerInfo, PoolView, register_autoscaler
from kvgym.simulator.cluster.fleet_view import FleetView
from kvgym.simulator.fleet import Fleet


@register_autoscaler
class HPA(MetricRule):
    """The Horizontal Pod Autoscaler of Kubernetes on a metric of the workers.

    It wants ⌈n · value / target⌉ workers, with the mean value over the n ready ones; nothing changes while the ratio
    is within ``tolerance`` of 1. For growth, workers that start count with a value of 0. It takes the least of the
    recommendations of the last ``up`` seconds to grow and the most of the last ``down`` seconds to shrink, and in 15 s
    adds at most as many workers as there are, or 4.

    Source: Kubernetes documentation, "Horizontal Pod Autoscaling", with its defaults; the arithmetic of its default
    policies is from that text.
    """

    info = AutoscalerInfo(
        name="hpa", summary="a metric of the workers at its target, as Kubernetes' HPA", weight="target"
    )
    interval = 15.0

    up: float = seconds(0.0)
    """seconds over which the least recommendation counts to grow."""
    down: float = seconds(300.0)
    """seconds over which the most counts to shrink."""

    def reset(self, fleet: Fleet, seed: np.random.SeedSequence) -> None:
        """Forget the recommendations."""
        super().reset(fleet, seed)
        self._wanted = recent_of(fleet)
        self._first: list[tuple[float, int]] = []  # before the first, the size at that time was recommended

    def size_of(self, pool: PoolView) -> int:
        """Return the size that the metric asks for now."""
        value, current = self.value_of(pool), pool.target
        if value <= pool.ready * self.target or pool.starting == 0:
            return size_by_ratio(current, pool.ready, value, self.target, self.tolerance)
        # Those that start have a value of 0, which does not turn growth around.
        whole = pool.ready + pool.starting
        return max(current, size_by_ratio(current, whole, value, self.target, self.tolerance))

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the stabilised sizes."""
        if not self._first:
            self._first = [(view.time, pool.target) for pool in view.pools]
        return [self._stable(view.time, g, pool) for g, pool in enumerate(view.pools)]

    def _stable(self, time: float, g: int, pool: PoolView) -> int:
        wanted, (start, first) = self._wanted[g], self._first[g]
        up, down = (np.nextafter(time - span, -np.inf) for span in (self.up, self.down))  # both ends included
        wanted.add(time, self.size_of(pool), time - min(up, down))
        least, most = int(min(wanted.after(up))), int(max(wanted.after(down)))
        if time < start + self.down:
            most = max(most, first)
        size = min(max(pool.target, least), most)
        return min(size, pool.target + max(pool.target, 4))


@register_autoscaler
class KEDA(HPA):
    """A threshold of the sum of a metric, as KEDA hands it to Kubernetes: ⌈Σ metric / threshold⌉, every 30 s.

    KEDA gives the sum of its trigger to the Horizontal Pod Autoscaler as an average value, so the size does not depend
    on the workers that are ready. Windows and limits of that are those of ``hpa``. With ``metric=tokens,target=1`` it
    is llm-d's token-aware scaling: seconds of queued prompts by 1.5, or memory in use by 0.8, the larger.

    Source: KEDA documentation, "Scaling Deployments": pollingInterval 30 s, metricType AverageValue; llm-d's guide
    "Token-Aware Autoscaling".
    """

    info = AutoscalerInfo(
        name="keda", summary="the sum of a metric by a threshold for a worker, as KEDA", weight="target"
    )
    interval = 30.0

    metric: str = choice("waiting", tuple(METRICS))
    """ongoing, waiting, kv, saturation or tokens."""
    target: float = positive(0.5)
    """threshold of the metric for a worker."""

    def size_of(self, pool: PoolView) -> int:
        """Return the sum by the threshold; within the tolerance nothing changes."""
        return size_by_ratio(pool.target, pool.target, self.value_of(pool), self.target, self.tolerance)


@register_autoscaler
class Ray(Autoscaler):
    """Ongoing requests for each worker, as Ray Serve: ⌈n · (mean of ongoing requests / target) / n⌉ with delays.

    The ongoing requests are averaged over ``look_back`` seconds. The size changes when the same direction has been
    wanted for ``up`` seconds to grow, or ``down`` seconds to shrink; ``factor`` multiplies each change.

    Source: Ray Serve, ``autoscaling_policy.py`` and ``config.py``; the default target of 2 and the delays are its
    documentation's.
    """

    info = AutoscalerInfo(
        name="ray", summary="ongoing requests for each worker at a target, as Ray Serve", weight="target"
    )
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
        self._ongoing = recent_of(fleet)
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
        self._ongoing[g].add(time, METRICS["ongoing"](pool), self.look_back)
        size = self.size_of(pool, self._ongoing[g].mean(time - self.look_back))
        direction = int(np.sign(size - pool.target))
        if direction != self._since[g][0]:
            self._since[g] = direction, time
        wait = self.up if direction > 0 else self.down
        if direction == 0 or time < self._since[g][1] + wait:
            return pool.target
        self._since[g] = 0, time
        return size
