"""The saturation rules of llm-d's workload variant autoscaler, both versions: a limit on what workers hold.

Both are asked every 60 s. There the result passes through a Kubernetes autoscaler, which waits another 240 s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kvgym.policies.hyperparameters import positive, whole
from kvgym.policies.scaling import Autoscaler, AutoscalerInfo, PoolView, register_autoscaler
from kvgym.simulator.cluster.fleet_view import FleetView
from kvgym.simulator.fleet import Fleet

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


ROUNDING = 1e-9
"""Share of a worker that sizes by demand ignore, so that the last bit of a division does not add one."""

SHORT, MEDIUM = 100, 500
"""Output tokens from which a mean length is of the next class; observed capacities are kept by class."""

OBSERVED = 10
"""Observed capacities that are averaged."""


def capacity_step(demand: float, each: float, ready: int, starting: int, full: float, low: float) -> int:
    """Return the change of the size by the tokens that are wanted and those that a worker can hold.

    Args:
        demand: tokens in use and queued.
        each: tokens that a worker can hold.
        ready: number of ready workers.
        starting: number of workers that start.
        full: share of what all can hold from which there are too few.
        low: share below which there are too many.
    """
    lacking = demand / full / each - (ready + starting)
    if lacking > ROUNDING:
        return math.ceil(lacking - ROUNDING)
    return -max(0, math.floor(ready - demand / low / each + ROUNDING))


@register_autoscaler
class TokenCapacity(Autoscaler):
    """The second version: tokens in use and queued, by what a worker can hold.

    A worker can hold the smaller of 80 % of its memory and what it was seen to compute: its tokens in use while 5 or
    more requests waited, the mean of the last 10 such observations by class of output length; before the first,
    min(B · O / (I + O), S) · (I + O / 2) for prompts of I and outputs of O tokens, ``batch_tokens`` B and
    ``sequences`` S. With the median k of the workers and a demand of D tokens it adds
    ⌈(D / full − (ready + starting) k) / k⌉ workers, or takes away ⌊(ready · k − D / low) / k⌋. D counts a waiting
    request with its prompt, one outside also with its output, but not for prefill workers. Lengths are means over all
    requests so far, there over those that a scrape shows.

    Source: llm-d workload-variant-autoscaler, ``saturation_v2/analyzer.go``.
    """

    info = AutoscalerInfo(
        name="wva_v2", summary="tokens in use and queued by what a worker can hold, as llm-d", weight="full",
        needs=frozenset({"tokens"}),
    )  # fmt: skip
    interval = 60.0

    full: float = positive(0.85)
    """share of what all workers can hold from which one more is wanted."""
    low: float = positive(0.7)
    """share below which one fewer is wanted; at most ``full``."""
    batch_tokens: int = whole(8192)
    """most tokens of a batch."""
    sequences: int = whole(256)
    """most requests of a batch."""

    def reset(self, fleet: Fleet, seed: np.random.SeedSequence) -> None:
        """Forget lengths and observations."""
        super().reset(fleet, seed)
        self._arrivals = self._prompts = self._ends = self._outputs = 0
        self._observed: list[dict[int, list[float]]] = [{} for _ in fleet.pools]

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the sizes by demand."""
        self._arrivals, self._prompts = self._arrivals + view.arrivals, self._prompts + view.prompt_tokens
        self._ends, self._outputs = self._ends + view.completions, self._outputs + view.finished_tokens
        return [self._size(g, pool) for g, pool in enumerate(view.pools)]

    def _size(self, g: int, pool: PoolView) -> int:
        prompt, output = self._prompts / max(1, self._arrivals), self._outputs / max(1, self._ends)
        used = pool.kv * pool.worker.kv_capacity
        outside = prompt if pool.role == "prefill" else prompt + output
        demand = float((used + pool.waiting * prompt).sum() + pool.unrouted * outside)
        each = self._capacity(g, pool, used.tolist(), prompt, output)
        step = capacity_step(demand, each, pool.ready, pool.starting, self.full, min(self.low, self.full))
        return max(0, pool.target + step)

    def _capacity(self, g: int, pool: PoolView, used: list[float], prompt: float, output: float) -> float:
        """Return the tokens that a worker can hold: the median of the ready ones."""
        memory = FULL_KV * pool.worker.kv_capacity
        past = self._observed[g].setdefault((output >= SHORT) + (output >= MEDIUM), [])
        found = []
        for tokens, queue in zip(used, pool.waiting.tolist(), strict=True):
            seen = queue >= FULL_QUEUE and tokens > 0
            if seen:
                past[:] = [*past[1 - OBSERVED :], tokens]
            found.append(tokens if seen else self._expected(past, prompt, output, memory))
        found = found or [self._expected(past, prompt, output, memory)]
        return float(np.median(np.minimum(found, memory)))

    def _expected(self, past: list[float], prompt: float, output: float, memory: float) -> float:
        """Return what a worker that does not saturate now could compute: as observed, or by the limits of a batch."""
        if past:
            return float(np.mean(past))
        if output <= 0:
            return memory
        steady = min(self.batch_tokens * output / (prompt + output), self.sequences)
        return steady * (prompt + output / 2)
