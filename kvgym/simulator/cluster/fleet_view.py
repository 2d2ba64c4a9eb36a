"""What an autoscaler observes of a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.simulator.cluster.knowing import Seen, last_scrape
from kvgym.simulator.cluster.members import DOWN, DRAINS, STARTING, UP, Members
from kvgym.simulator.fleet import Pool
from kvgym.simulator.system import Worker
from kvgym.simulator.tables import FINISHED, WAITING
from kvgym.workloads.classes import KnownRates


class Ahead(NamedTuple):
    """What is to come.

    Attributes:
        rates: of all arrivals over time.
        prompt_len: mean prompt of all requests, tokens.
        output_len: mean output, tokens.
    """

    rates: KnownRates
    prompt_len: float
    output_len: float


@dataclass(frozen=True)
class PoolView:
    """A pool now. Arrays have an element for each ready worker.

    Attributes:
        settings: the pool's settings.
        worker: what is known of each of its workers beforehand: role, KV memory and batch times.
        target: its present target.
        ready: number of ready workers.
        starting: number of workers that start.
        draining: number of workers that drain.
        failed: number of places that are being repaired.
        ready_in: seconds until each starting worker is ready, the shortest first.
        waiting: int64, requests in the queue.
        active: int64, active requests.
        ongoing: int64, unfinished requests, those on their way to the worker included.
        kv: float64, share of the KV memory in use, in whole blocks.
        unrouted: requests outside that this pool could serve: no place of its role takes requests.
        prefill_tokens: int64, prompt tokens that the worker's requests still have to process; needs ``"tokens"``, empty
            without.
    """

    settings: Pool
    worker: Worker
    target: int
    ready: int
    starting: int
    draining: int
    failed: int
    ready_in: tuple[float, ...]
    waiting: NDArray[np.int64]
    active: NDArray[np.int64]
    ongoing: NDArray[np.int64]
    kv: NDArray[np.float64]
    unrouted: int
    prefill_tokens: NDArray[np.int64]

    @property
    def role(self) -> str:
        """``"mixed"``, ``"prefill"`` or ``"decode"``."""
        return self.worker.role


class FleetView:
    """A fleet when its autoscaler is asked; read-only.

    With scrapes (:class:`~kvgym.simulator.knowledge.Knowledge`) the figures of workers and all counts are those of the
    last one that has arrived. States of workers, and requests outside, are always present.

    Attributes:
        time: seconds since the start of the run.
        pools: the pools, in order.
        interval: seconds since the last question.
        arrivals: requests that have arrived since then.
        prompt_tokens: their prompt tokens.
        completions: requests that finished since then.
        output_tokens: output tokens generated since then.
        finished_tokens: output tokens of the requests that finished since then; needs ``"tokens"``, 0 without.
        ahead: all arrivals, those to come included; needs ``"arrivals_ahead"``, None without.
    """

    def __init__(
        self,
        simulation: Any,
        members: Members,
        before: Counts,
        needs: frozenset[str] = frozenset(),
        ahead: Ahead | None = None,
    ) -> None:
        """Read a :class:`~kvgym.simulator.cluster.simulation.ClusterSimulation`.

        Args:
            simulation: the run.
            members: its places.
            before: the counts at the last question.
            needs: what the autoscaler needs, of :data:`~kvgym.policies.scaling.AUTOSCALER_NEEDS`.
            ahead: all arrivals.
        """
        tokens, self._seen = "tokens" in needs, last_scrape(simulation)
        self._now = counts_of(simulation, tokens, self._seen)
        self.ahead = ahead if "arrivals_ahead" in needs else None
        self.time = self._now.time
        self.interval = self.time - before.time
        self.arrivals = self._now.arrivals - before.arrivals
        self._times = simulation.workload["arrival_time"][: self._now.arrivals]
        self._first, self._workload, self._requests = (
            before.arrivals,
            simulation.workload,
            simulation.requests,
        )
        self.prompt_tokens = int(
            simulation.workload["prompt_len"][before.arrivals : self._now.arrivals].sum(dtype=np.int64)
        )
        self.completions = self._now.completions - before.completions
        self.output_tokens = self._now.output_tokens - before.output_tokens
        self.finished_tokens = self._now.finished_tokens - before.finished_tokens
        self.pools = tuple(
            _pool(simulation, members, g, self._seen, tokens) for g in range(len(members.fleet.pools))
        )

    @property
    def counts(self) -> Counts:
        """The counters now, for the next view."""
        return self._now

    def rate(self, seconds: float) -> float:
        """Return the arrivals per second over the last ``seconds``, or since the start if that is less."""
        now = min(self.time, self._seen.time)
        span = min(seconds, now)
        if span <= 0:
            return 0.0
        return float((len(self._times) - np.searchsorted(self._times, now - span, side="right")) / span)

    def first_tokens(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """Return how the requests that have arrived since the last question fare; only while the question lasts.

        Returns:
            Of each request the seconds until its first token, or its age without one, (n,); its target, inf = none,
            (n,); and whether it has had its first token, (n,).
        """
        rows = slice(self._first, self._now.arrivals)
        token = self._requests["first_token_time"][rows]
        there = ~np.isnan(token)
        seconds = np.where(there, token, self.time) - self._times[rows]
        return seconds, self._workload["ttft_slo"][rows].copy(), there


@dataclass(frozen=True)
class Counts:
    """Counters of a run at a time.

    Attributes:
        time: s.
        arrivals: requests that have arrived.
        completions: requests that have finished.
        output_tokens: output tokens generated.
        finished_tokens: output tokens of the requests that have finished; 0 if they were not counted.
    """

    time: float = 0.0
    arrivals: int = 0
    completions: int = 0
    output_tokens: int = 0
    finished_tokens: int = 0


def counts_of(simulation: Any, tokens: bool = False, seen: Seen | None = None) -> Counts:
    """Return the counters of a simulation, with ``tokens`` also those that take a pass over all requests.

    Args:
        simulation: the run.
        tokens: whether to count these.
        seen: the last scrape; None = as they are now.
    """
    time, arrived = float(simulation.tracker[0]["clock"]), arrivals_of(simulation)
    until, workers = (np.inf, simulation.workers) if seen is None else (seen.time, seen.workers)
    if until < time:
        arrival = simulation.workload["arrival_time"][:arrived]
        arrived = int(np.searchsorted(arrival, until, side="right"))
    finished = 0
    if tokens:
        rows = simulation.requests[: int(simulation.tracker[0]["next_arrival"])]
        ended = (rows["status"] == FINISHED) & (rows["finish_time"] <= until)
        finished = int(rows["num_output_tokens"][ended].sum(dtype=np.int64))
    return Counts(
        time,
        arrived,
        int(workers["total_finished"].sum()),
        int(workers["total_output_tokens"].sum()),
        finished,
    )


def arrivals_of(simulation: Any) -> int:
    """Return how many requests have arrived by now, those outside included."""
    tracker = simulation.tracker[0]
    taken = int(tracker["next_arrival"])
    if simulation.system.sessions != "open":
        return taken
    arrival = simulation.workload["arrival_time"]
    return max(taken, int(np.searchsorted(arrival, float(tracker["clock"]), side="right")))


def _pool(simulation: Any, members: Members, g: int, seen: Seen, tokens: bool) -> PoolView:
    mine, state = members.pool_of == g, members.state
    up = np.flatnonzero(mine & (state == UP))
    workers = seen.workers[up]
    worker = simulation.system.workers[int(np.argmax(mine))]
    time = float(simulation.tracker[0]["clock"])
    starting = np.sort(members.places["ready_at"][mine & (state == STARTING)]) - time
    capacity = simulation.problem["kv_capacity"][up]
    unrouted = 0
    if worker.role != "decode" and simulation.fleet_tracker["open_first"][0] == 0:
        unrouted = arrivals_of(simulation) - int(simulation.tracker[0]["next_arrival"])
        unrouted += int(np.isfinite(simulation.trips["since"]).sum())
    return PoolView(
        settings=members.fleet.pools[g],
        worker=worker,
        target=members.target[g],
        ready=len(up),
        starting=len(starting),
        draining=int((mine & (state == DRAINS)).sum()),
        failed=int((mine & (state == DOWN)).sum()),
        ready_in=tuple(starting.tolist()),
        waiting=workers["num_waiting"].copy(),
        active=workers["num_active"].copy(),
        ongoing=workers["outstanding_requests"].copy(),
        kv=workers["kv_allocated"] / capacity,
        unrouted=unrouted,
        prefill_tokens=_prefill_tokens(simulation, up, seen) if tokens else np.zeros(0, np.int64),
    )


def _prefill_tokens(simulation: Any, places: NDArray[np.int64], seen: Seen) -> NDArray[np.int64]:
    """Return the prompt tokens that the requests at each of some places still have to process."""
    if seen.backlog is not None:
        return seen.backlog[places]
    arrived = simulation.requests[: int(simulation.tracker[0]["next_arrival"])]
    waiting = np.flatnonzero(arrived["status"] == WAITING)
    left = np.bincount(
        arrived["worker"][waiting], arrived["num_prefill_left"][waiting], minlength=len(simulation.workers)
    )
    counts = simulation.workers["num_active"]
    active = [simulation.active[k]["num_prefill_left"][: counts[k]].sum() for k in places.tolist()]
    return np.asarray(left[places] + np.array(active, np.float64), np.int64)


def wanted(answer: Sequence[int]) -> tuple[int, ...]:
    """Return an autoscaler's answer as whole numbers.

    Raises:
        TypeError: it is not a sequence of whole numbers.
    """
    if isinstance(answer, str):
        raise TypeError
    return tuple(np.asarray([item.__index__() for item in answer], np.int64).tolist())
