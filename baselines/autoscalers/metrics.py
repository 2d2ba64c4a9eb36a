"""What several autoscalers are made of: metrics of a pool, their recent past, and the size by a ratio.

Requests outside, for which no worker is ready, count as ongoing and as waiting.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from kvgym.policies.hyperparameters import choice, fraction, hyperparameter, positive
from kvgym.policies.scaling import Autoscaler, PoolView
from kvgym.simulator.fleet import Fleet
from kvgym.simulator.system import Worker

CHUNK = 8192
"""Prompt tokens of a batch with which llm-d's calibration measures the speed of prefills."""

QUEUE_BUDGET, KV_BUDGET = 1.5, 0.8
"""Seconds of queued prompts, and share of the KV memory in use, that a worker may have by llm-d's token velocity."""


@lru_cache(maxsize=64)
def prefill_speed(worker: Worker) -> float:
    """Return the prompt tokens per second of an otherwise idle worker, in a batch of :data:`CHUNK` tokens."""
    return float(CHUNK / worker.batch_time(num_prefills=1, prefill_tokens=CHUNK, prefill_squares=CHUNK**2))


def token_velocity(queued: float, speed: float, kv: float, role: str = "mixed") -> float:
    """Return the workers by tokens: queued prompt tokens in seconds by a budget, or memory in use, the larger.

    Args:
        queued: prompt tokens that are queued.
        speed: prompt tokens per second of a worker.
        kv: share of the memory in use, summed over workers.
        role: a prefill worker counts only the first, a decode worker only the second.
    """
    parts = {"prefill": [queued / speed / QUEUE_BUDGET], "decode": [kv / KV_BUDGET]}
    return max(parts.get(role, [*parts["prefill"], *parts["decode"]]))


METRICS: dict[str, Callable[[PoolView], float]] = {
    "ongoing": lambda pool: float(pool.ongoing.sum() + pool.unrouted),
    "waiting": lambda pool: float(pool.waiting.sum() + pool.unrouted),
    "kv": lambda pool: float(pool.kv.sum() + (pool.unrouted > 0)),
    "saturation": lambda pool: float(np.maximum(pool.waiting / 5, pool.kv / 0.8).sum() + pool.unrouted / 5),
    "tokens": lambda pool: token_velocity(
        float(pool.prefill_tokens.sum()), prefill_speed(pool.worker), float(pool.kv.sum() + (pool.unrouted > 0)),
        pool.role,
    ),
}  # fmt: skip
"""What a pool has to do, summed over its ready workers.

``ongoing``: unfinished requests. ``waiting``: requests in queues. ``kv``: share of the KV memory in use.
``saturation``: of each worker the larger of its queue, relative to 5, and its memory in use, relative to 0.8, as the
utilisation detector of llm-d's router has it; its target is 1. ``tokens``: :func:`token_velocity`; its target is 1.
"""


def seconds(default: float) -> float:
    """Declare a hyperparameter that is a time."""
    found: float = hyperparameter(default, lambda x: 0 <= x <= 1e6, "seconds, 0 … 1e6")
    return found


class MetricRule(Autoscaler):
    """An autoscaler that compares a metric of the workers with a target."""

    metric: str = choice("ongoing", tuple(METRICS))
    """ongoing, waiting, kv, saturation or tokens."""
    target: float = positive(8.0)
    """value of the metric that a worker should have."""
    tolerance: float = fraction(0.1)
    """deviation of the ratio from 1 at which nothing changes."""

    @property
    def needs(self) -> frozenset[str]:
        """What it observes: tokens only by that metric."""
        return super().needs | ({"tokens"} if self.metric == "tokens" else set())

    def value_of(self, pool: PoolView) -> float:
        """Return the metric of a pool."""
        return METRICS[self.metric](pool)


class Recent:
    """Values of the last seconds."""

    def __init__(self) -> None:
        self._found: list[tuple[float, float]] = []

    def add(self, time: float, value: float, kept: float) -> None:
        """Add a value, and forget those from ``kept`` seconds before or earlier."""
        self._found = [*self.items(time - kept), (time, value)]

    def items(self, time: float) -> list[tuple[float, float]]:
        """Return time and value of those after a time."""
        return [item for item in self._found if item[0] > time]

    def after(self, time: float) -> list[float]:
        """Return the values after a time."""
        return [value for _, value in self.items(time)]

    def mean(self, time: float) -> float:
        """Return the mean of the values after a time."""
        return float(np.mean(self.after(time)))


def recent_of(fleet: Fleet) -> list[Recent]:
    """Return an empty past for each pool."""
    return [Recent() for _ in fleet.pools]


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
