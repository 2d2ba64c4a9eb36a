"""Recording of an episode for pictures and texts: a bounded history, and the current moment.

Pictures show only what the agent may observe: the tables read here hold a request from its arrival on, an output
length after the request has finished, and predictions as far as they are revealed. The number of future requests
is not shown either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np

from kvgym.envs.rendering.scene import (
    EVICTED,
    IN_QUEUE,
    RUNNING,
    SERVED,
    Choice,
    ClusterScene,
    Floats,
    Integers,
    Listed,
    Scene,
    Spans,
    WorkerScene,
)
from kvgym.errors import InformationError
from kvgym.simulator.tables import BUSY, FINISHED, UNKNOWN, WAITING, WORKER
from kvgym.simulator.view import RequestColumns, SystemView

MAX_SAMPLES = 1024
"""Upper limit of samples of a history; when it is full, neighbours are merged in pairs."""

MAX_GAPS = 65_536
"""Upper limit of recorded times between an eviction and the next start; beyond it, the earliest are dropped."""

GANTT_ROWS = 40
"""Upper limit of requests in the Gantt view of a picture."""

_PLACE = {name: k for k, name in enumerate(WORKER.names or ())}
_KV, _WAITING, _UNFINISHED = _PLACE["kv_allocated"], _PLACE["num_waiting"], _PLACE["outstanding_requests"]
_ENDED, _PHASE = _PLACE["last_batch_end"], _PLACE["phase"]
_ITERATION, _EVICTED = _PLACE["iteration"], _PLACE["total_evicted"]


class History:
    """Figures over time in bounded memory that keeps peaks.

    A sample represents ``stride`` consecutive moments: the time of the first, and the maximum of each figure.
    """

    def __init__(self, limit: int = MAX_SAMPLES) -> None:
        """Create an empty history; ``limit`` is even."""
        self.limit, self.stride = limit, 1
        self._taken = 0  # moments in the last sample
        self._rows: list[tuple[float, ...]] = []

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._rows)

    def add(self, time: float, *figures: float) -> None:
        """Add a moment; times must not decrease, and the number of figures must not change."""
        rows = self._rows
        if rows and self._taken < self.stride:
            rows[-1] = _larger(rows[-1], (time, *figures))
            self._taken += 1
            return
        if len(rows) == self.limit:
            rows[:] = [_larger(a, b) for a, b in zip(rows[::2], rows[1::2], strict=True)]
            self.stride *= 2
        rows.append((time, *figures))
        self._taken = 1

    def columns(self) -> Floats:
        """Return times in seconds and each of the figures, float64 (1 + figures, samples)."""
        return np.array(self._rows, np.float64).T


def _larger(first: tuple[float, ...], second: tuple[float, ...]) -> tuple[float, ...]:
    """Merge two neighbouring samples."""
    return (first[0], *map(max, first[1:], second[1:]))


class Recorder(ABC):
    """Records an episode of one or several workers.

    Args:
        simulation: ``workers``, ``problem``, ``requests`` and ``tracker`` of the episode, as a simulation has them.

    Attributes:
        history: memory in use, waiting and unfinished requests of every worker over time.
    """

    def __init__(self, simulation: Any) -> None:
        self.history = History()
        self._simulation = simulation
        self._time = -np.inf
        self._figures = [(0, 0, 0)] * len(simulation.workers)

    def take(self) -> None:
        """Record the current state; called after ``reset`` and after every step."""
        workers = self._simulation.workers.tolist()
        now, figures = self._clock(), [(w[_KV], w[_WAITING], w[_UNFINISHED]) for w in workers]
        # A worker that runs no batch has waited since the end of its last one.
        idle = [
            (w[_ENDED], k)
            for k, w in enumerate(workers)
            if w[_PHASE] != BUSY and self._time < w[_ENDED] < now
        ]
        for ended, k in sorted(idle):
            kv, waiting, unfinished = figures[k]
            later = self._arrived_after(ended, k)
            self._figures[k] = kv, waiting - later, unfinished - later
            self.history.add(ended, *chain.from_iterable(self._figures))
        self.history.add(now, *chain.from_iterable(figures))
        self._time, self._figures = now, figures

    @abstractmethod
    def scene(self, *, whole: bool = False) -> Scene:
        """Return what is drawn of the current moment, which later steps do not change.

        Args:
            whole: everything about the episode so far, for a summary: needs a call of :meth:`take` before.
        """

    @abstractmethod
    def _clock(self) -> float:
        """Return the current time, seconds."""

    def _arrived(self) -> Any:
        """Return the records of the requests that have arrived."""
        return self._simulation.requests[: self._simulation.tracker["next_arrival"].item(0)]

    def _arrived_after(self, time: float, worker: int) -> int:
        """Return the number of requests of a worker that arrived after a moment."""
        requests, count = self._arrived(), 0
        while count < len(requests) and requests["arrival_time"][-1 - count] > time:
            count += 1
        return int((requests["worker"][len(requests) - count :] == worker).sum())

    def _common(self, clock: float, *, with_history: bool) -> dict[str, Any]:
        """Return the fields that all scenes have; the history ends with the present."""
        simulation, arrived = self._simulation, self._arrived()
        done = arrived[arrived["status"] == FINISHED]
        latencies = done["finish_time"] - done["arrival_time"]
        present = [self._time, *chain.from_iterable(self._figures)]
        moments = np.zeros((len(present), 0))
        if with_history:
            moments = np.column_stack((self.history.columns(), present))
        return {
            "clock": clock,
            "num_arrived": len(arrived),
            "num_finished": len(done),
            "mean_latency": float(latencies.mean()) if len(done) else float("nan"),
            "workers": simulation.workers.copy(),
            "kv_capacity": simulation.problem["kv_capacity"].copy(),
            "time": moments[0],
            "kv": moments[1::3],
            "waiting": moments[2::3],
            "unfinished": moments[3::3],
        }


class ClusterRecorder(Recorder):
    """Records an episode of a cluster.

    Args:
        simulation: the cluster.
        look: returns the request to be routed.
    """

    def __init__(self, simulation: Any, look: Callable[[], Choice]) -> None:
        super().__init__(simulation)
        self._look = look

    def scene(self, *, whole: bool = False) -> ClusterScene:
        """Return the current moment; only a whole scene has the history."""
        choice = self._look()
        return ClusterScene(**self._common(choice.clock, with_history=whole), choice=choice)

    def _clock(self) -> float:
        """Return the current time; workers may be ahead of the last event of the cluster."""
        simulation = self._simulation
        latest = float(simulation.workers["last_batch_end"].max()) if simulation.pending is None else 0.0
        return max(float(simulation.tracker[0]["clock"]), latest, self._time)


class WorkerRecorder(Recorder):
    """Records an episode of one worker, and when its requests were evicted."""

    def __init__(self, simulation: Any) -> None:
        super().__init__(simulation)
        self._view = SystemView(simulation)
        count = len(simulation.requests)
        self._iteration = self._total = 0  # batches executed, and evictions, as last seen
        self._out = 0  # requests that were evicted and have not come back
        self._evictions = simulation.requests["num_evictions"].copy()  # of each request, as last seen
        self._left = np.full(count, np.nan)  # when it was evicted; NaN unless it is out
        self._resumed = np.zeros(count)  # when it last came back
        self._gaps: deque[tuple[int, float, float]] = deque(maxlen=MAX_GAPS)

    def take(self) -> None:
        """Record the current state; called after ``reset`` and after every step."""
        worker = self._simulation.workers.item(0)
        if self._out:
            self._close_gaps()
        if worker[_EVICTED] != self._total and len(self.history):
            self._open_gaps()
            self._close_gaps()
        super().take()
        self._iteration, self._total = worker[_ITERATION], worker[_EVICTED]

    def _open_gaps(self) -> None:
        """Open a gap for every request evicted since the last call."""
        requests, before = self._simulation.requests, self._time
        counts = requests["num_evictions"]
        # A request that was admitted and evicted again since the last call has one gap.
        new = np.flatnonzero((counts != self._evictions) & np.isnan(self._left))
        last = requests["last_token_time"][new]
        after_its_last_token = (requests["status"][new] != FINISHED) & (before < last)
        left = np.where(after_its_last_token, last, before)
        self._left[new] = np.maximum(left, np.fmax(requests["start_time"][new], self._resumed[new]))
        self._evictions = counts.copy()
        self._out += len(new)

    def _close_gaps(self) -> None:
        """Close the gap of every request that was admitted again."""
        requests = self._simulation.requests
        back = np.flatnonzero(~np.isnan(self._left) & (requests["status"] != WAITING))
        passed = max(self._view.iteration - self._iteration, 1)
        share = np.clip((requests["admit_iteration"][back] - self._iteration) / passed, 0.0, 1.0)
        self._resumed[back] = np.maximum(self._left[back], self._time + share * (self._clock() - self._time))
        self._gaps.extend(
            zip(back.tolist(), self._left[back].tolist(), self._resumed[back].tolist(), strict=True)
        )
        self._left[back] = np.nan
        self._out -= len(back)

    def _clock(self) -> float:
        return self._view.clock

    def scene(self, *, whole: bool = False) -> WorkerScene:
        """Return the current moment; a whole scene has the spans of all requests, others those of GANTT_ROWS."""
        view, arrived = self._view, self._arrived()
        active, queue = _listed(view.active), _listed(view.waiting)
        done = np.flatnonzero(arrived["status"] == FINISHED)
        latest = done[np.lexsort((done, arrived["finish_time"][done]))]
        rows = choose_rows(active.request_id, queue.request_id, latest, None if whole else GANTT_ROWS)
        common = self._common(view.clock, with_history=True)
        return WorkerScene(
            **common, active=active, queue=queue, rows=rows, spans=self._spans(rows, view.clock)
        )

    def _spans(self, rows: Integers, now: float) -> Spans:
        """Return the spans of requests until now."""
        requests = self._simulation.requests
        gaps: dict[int, list[tuple[float, float]]] = {i: [] for i in rows.tolist()}
        for i, left, right in self._gaps:
            if i in gaps:
                gaps[i].append((left, right))
        found: list[tuple[int, int, float, float]] = []
        for row, (i, out) in enumerate(gaps.items()):
            arrival, start = requests["arrival_time"].item(i), requests["start_time"].item(i)
            if not start <= now:
                found.append((row, IN_QUEUE, arrival, now))
                continue
            finished = requests["status"].item(i) == FINISHED
            end = requests["finish_time"].item(i) if finished else now
            kind = SERVED if finished else RUNNING
            found.append((row, IN_QUEUE, arrival, start))
            if not np.isnan(self._left[i]):
                out.append((float(self._left[i]), end))
            for left, right in out:
                found.append((row, kind, start, left))
                found.append((row, EVICTED, left, min(right, end)))
                start = min(right, end)
            found.append((row, kind, start, end))
        kept = np.array([span for span in found if span[3] > span[2]], np.float64).reshape(-1, 4)
        return Spans(kept[:, 0].astype(np.int64), kept[:, 1].astype(np.int64), kept[:, 2], kept[:, 3])


def choose_rows(active: Integers, waiting: Integers, finished: Integers, rows: int | None) -> Integers:
    """Return the requests of the Gantt view, in order of arrival.

    Active requests come first (at most 60 % of the rows), then the head of the queue (20 %), then the latest
    finished ones; remaining rows go to the head of the queue and to further active requests.

    Args:
        active: ids in order of activation.
        waiting: ids in queue order.
        finished: ids, the latest last.
        rows: upper limit of requests, None = all.
    """
    if rows is None:
        return np.sort(np.concatenate((active, waiting, finished)))
    num_active = min(len(active), rows * 3 // 5)
    num_waiting = min(len(waiting), rows // 5)
    num_finished = min(len(finished), rows - num_active - num_waiting)
    num_waiting = min(len(waiting), rows - num_active - num_finished)
    num_active = min(len(active), rows - num_waiting - num_finished)
    chosen = (
        active[len(active) - num_active :],
        waiting[:num_waiting],
        finished[len(finished) - num_finished :],
    )
    return np.sort(np.concatenate(chosen))


def _listed(columns: RequestColumns) -> Listed:
    """Return the drawn columns of requests; predictions are UNKNOWN if they are not revealed."""
    try:
        predicted = columns.predicted_output_len.astype(np.int64)
    except InformationError:
        predicted = np.full(len(columns), UNKNOWN, np.int64)
    return Listed(
        request_id=columns.request_id,
        arrival_time=columns.arrival_time,
        prompt_len=columns.prompt_len.astype(np.int64),
        predicted_len=predicted,
        num_output_tokens=columns.num_output_tokens.astype(np.int64),
        kv_tokens=columns.num_kv_tokens.astype(np.int64),
    )
