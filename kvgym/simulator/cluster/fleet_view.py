"""What an autoscaler observes of a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.simulator.cluster.members import DRAINS, STARTING, UP, Members
from kvgym.simulator.fleet import Pool


@dataclass(frozen=True)
class PoolView:
    """A pool now. Arrays have an element for each ready worker.

    Attributes:
        settings: the pool's settings.
        role: ``"mixed"``, ``"prefill"`` or ``"decode"``.
        target: its present target.
        ready: number of ready workers.
        starting: number of workers that start.
        draining: number of workers that drain.
        ready_in: seconds until each starting worker is ready, the shortest first.
        waiting: int64, requests in the queue.
        active: int64, active requests.
        ongoing: int64, unfinished requests, those on their way to the worker included.
        kv: float64, share of the KV memory in use, in whole blocks.
        unrouted: requests outside that this pool could serve: no place of its role takes requests.
    """

    settings: Pool
    role: str
    target: int
    ready: int
    starting: int
    draining: int
    ready_in: tuple[float, ...]
    waiting: NDArray[np.int64]
    active: NDArray[np.int64]
    ongoing: NDArray[np.int64]
    kv: NDArray[np.float64]
    unrouted: int


class FleetView:
    """A fleet when its autoscaler is asked; read-only, and exact.

    Attributes:
        time: seconds since the start of the run.
        pools: the pools, in order.
        interval: seconds since the last question.
        arrivals: requests that have arrived since then.
        prompt_tokens: their prompt tokens.
        completions: requests that finished since then.
        output_tokens: output tokens generated since then.
    """

    def __init__(self, simulation: Any, members: Members, before: Counts) -> None:
        """Read a :class:`~kvgym.simulator.cluster.simulation.ClusterSimulation`; ``before``: the last question."""
        self._now = counts_of(simulation)
        self.time = self._now.time
        self.interval = self.time - before.time
        self.arrivals = self._now.arrivals - before.arrivals
        self._times = simulation.workload["arrival_time"][: self._now.arrivals]
        self.prompt_tokens = int(
            simulation.workload["prompt_len"][before.arrivals : self._now.arrivals].sum(dtype=np.int64)
        )
        self.completions = self._now.completions - before.completions
        self.output_tokens = self._now.output_tokens - before.output_tokens
        self.pools = tuple(_pool(simulation, members, g, self._now) for g in range(len(members.fleet.pools)))

    @property
    def counts(self) -> Counts:
        """The counters now, for the next view."""
        return self._now

    def rate(self, seconds: float) -> float:
        """Return the arrivals per second over the last ``seconds``, or since the start if that is less."""
        span = min(seconds, self.time)
        if span <= 0:
            return 0.0
        return float((len(self._times) - np.searchsorted(self._times, self.time - span, side="right")) / span)


@dataclass(frozen=True)
class Counts:
    """Counters of a run at a time.

    Attributes:
        time: s.
        arrivals: requests that have arrived.
        completions: requests that have finished.
        output_tokens: output tokens generated.
    """

    time: float = 0.0
    arrivals: int = 0
    completions: int = 0
    output_tokens: int = 0


def counts_of(simulation: Any) -> Counts:
    """Return the counters of a simulation now."""
    tracker, workers = simulation.tracker[0], simulation.workers
    time, taken = float(tracker["clock"]), int(tracker["next_arrival"])
    arrival = simulation.workload["arrival_time"]
    more = 0
    if simulation.system.sessions == "open":
        more = max(0, int(np.searchsorted(arrival, time, side="right")) - taken)
    return Counts(
        time, taken + more, int(workers["total_finished"].sum()), int(workers["total_output_tokens"].sum())
    )


def _pool(simulation: Any, members: Members, g: int, now: Counts) -> PoolView:
    mine, state = members.pool_of == g, members.state
    up = np.flatnonzero(mine & (state == UP))
    workers = simulation.workers[up]
    role = simulation.system.workers[int(np.argmax(mine))].role
    starting = np.sort(members.places["ready_at"][mine & (state == STARTING)]) - now.time
    capacity = simulation.problem["kv_capacity"][up]
    unrouted = 0
    if role != "decode" and simulation.fleet_tracker["open_first"][0] == 0:
        unrouted = now.arrivals - int(simulation.tracker[0]["next_arrival"])
    return PoolView(
        settings=members.fleet.pools[g],
        role=role,
        target=members.target[g],
        ready=len(up),
        starting=len(starting),
        draining=int((mine & (state == DRAINS)).sum()),
        ready_in=tuple(starting.tolist()),
        waiting=workers["num_waiting"].copy(),
        active=workers["num_active"].copy(),
        ongoing=workers["outstanding_requests"].copy(),
        kv=workers["kv_allocated"] / capacity,
        unrouted=unrouted,
    )


def wanted(answer: Sequence[int]) -> tuple[int, ...]:
    """Return an autoscaler's answer as whole numbers.

    Raises:
        TypeError: it is not a sequence of whole numbers.
    """
    if isinstance(answer, str):
        raise TypeError
    return tuple(np.asarray([item.__index__() for item in answer], np.int64).tolist())
