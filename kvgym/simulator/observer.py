"""Observers of a run: what every request did in every batch, under compiled policies too.

The tables hold the state of a run, not its history: the members of a batch are lost when the next one begins. A
:class:`Follower` reads the tables at every boundary, reconstructs what happened from the changes, and notifies an
:class:`Observer`. It never writes, so an observed run has the same bits as any other.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.simulator.tables import BUSY, FINISHED, ITERATION, UNKNOWN
from kvgym.utils.user_code import calling

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Transfer:
    """A request that leaves a prefill worker.

    Attributes:
        request_id: the request.
        worker: the decode worker it goes to; None if the run ended before one was chosen.
        ready_time: when its KV arrives, seconds, on shared links as expected now; NaN without a worker.
    """

    request_id: int
    worker: int | None
    ready_time: float


@dataclass(frozen=True, eq=False)
class Batch:
    """One iteration of a worker, and what each request did in it.

    Attributes:
        row: its row of the per-iteration log, dtype ITERATION, read-only.
        request_id: int64 (m,), the active requests, including paused ones.
        prefill_tokens: int64 (m,), tokens of prompt (or lost output) processed.
        decode_tokens: int64 (m,), 1 for a decode step, else 0.
        finished: int64, the requests that finished.
        transfers: the requests that leave for a decode worker; not those that the router moves.
        kv_tokens: memory in use after it, tokens of whole blocks.
        num_active: active requests after it.
        cut: whether an error ended the run during the batch; its row then ends there.
    """

    row: Any
    request_id: Ids
    prefill_tokens: Ids
    decode_tokens: Ids
    finished: Ids
    transfers: tuple[Transfer, ...]
    kv_tokens: int
    num_active: int
    cut: bool = False


def read_only(table: NDArray[Any]) -> NDArray[Any]:
    """Return a view of a table that observers cannot write to; it shows later changes."""
    view = table.view()
    view.setflags(write=False)
    return view


class Observer:
    """Callbacks for the events of a run; override those of interest.

    Times are seconds. Events come in order. A batch is reported when it has ended, so requests that joined a queue
    during the batch are reported before it. An exception ends the run: :func:`kvgym.simulate` raises a
    :class:`~kvgym.errors.UserCodeError`.
    """

    def began(self, requests: NDArray[Any]) -> None:
        """Called before all others, with the requests by id, dtype WORKLOAD, read-only.

        A row is right once its request joins.
        """

    def joined(self, time: float, worker: int, request_id: int) -> None:
        """Called when a request joins the queue of a worker: by arrival, by transfer or by a move."""

    def moved(self, time: float, source: int, target: int, request_id: int, was_active: bool) -> None:
        """Called when the router takes a request from a worker; ``joined`` follows when it joins the other's queue."""

    def decided(self, time: float, worker: int, admitted: Ids, evicted: Ids) -> None:
        """Called with the requests a worker has evicted and admitted, before its batch or wait."""

    def ran(self, batch: Batch) -> None:
        """Called with a batch that has ended."""

    def waited(self, time: float, worker: int, active: Ids, kv_tokens: int) -> None:
        """Called when a worker waits from ``time`` on, with its active requests and the memory in use."""

    def ended(self, time: float) -> None:
        """Called when the run is over: at its end, at its horizon or after an error."""


class Follower:
    """Reads a simulation at every boundary and notifies an observer of what has happened since.

    An event counts as reported just before the call: if the observer raises an error, :meth:`end` continues after it.

    Args:
        simulation: made with ``log=True``; between two updates it executes at most one decision.
        observer: the observer.
    """

    def __init__(self, simulation: Any, observer: Observer) -> None:
        self._simulation, self._observer = simulation, observer
        self._guard = calling(observer, "observer", "it")
        with self._guard:
            observer.began(read_only(simulation.workload))
        self._left = simulation.workload["prompt_len"].astype(
            np.int64
        )  # prefill of each request, as last seen
        self._made = np.zeros(len(self._left), np.int64)  # and its output tokens
        self._totals = [(0, 0, 0)] * len(simulation.workers)
        self._running: dict[int, tuple[float, Ids]] = {}  # start and members of the batch of a worker
        self._deciding: tuple[int, float, Ids] | None = None
        self._rows = self._arrivals = self._moves = 0
        self._travelling: list[tuple[float, int, int]] = []
        self._order = itertools.count()  # breaks ties: the first to leave arrives first

    def update(self) -> None:
        """Report what has happened; a worker is about to decide."""
        self._catch_up()
        simulation = self._simulation
        k, time = simulation.current, float(simulation.worker["clock"])
        self._report_moved(np.nextafter(time, np.inf))
        self._report_joined(time)
        self._deciding = k, time, self._active(k)

    def end(self) -> None:
        """Report what has happened, and that the run is over."""
        self._catch_up()
        clock = float(max(self._simulation.workers["clock"].max(), self._simulation.tracker[0]["clock"]))
        self._report_moved(np.inf)
        self._report_joined(clock)
        for k, (start, members) in sorted(self._running.items()):
            batch = self._cut(k, start, members, clock)
            with self._guard:
                self._observer.ran(batch)
        with self._guard:
            self._observer.ended(clock)

    def _active(self, k: int) -> Ids:
        count = int(self._simulation.workers["num_active"][k])
        ids: Ids = self._simulation.active["request_id"][k, :count].astype(np.int64)
        return ids

    def _catch_up(self) -> None:
        simulation = self._simulation
        rows = read_only(simulation.log[self._rows : int(simulation.tracker[0]["num_log"])])
        deciding, self._deciding = self._deciding, None
        if deciding is not None:
            self._report_decided(*deciding, rows)
        for row in rows:
            self._report_moved(float(row["end_time"]))
            self._report_joined(float(row["end_time"]))
            batch = self._batch(row)
            self._rows += 1
            with self._guard:
                self._observer.ran(batch)

    def _new_moves(self) -> NDArray[Any]:
        count = int(self._simulation.tracker[0]["num_moves"])
        moves: NDArray[Any] = self._simulation.moves[self._moves : count]
        return moves

    def _report_moved(self, before: float) -> None:
        """Report moves before a moment, and requests that joined a queue by then."""
        for move in self._new_moves():
            time, i = float(move["time"]), int(move["request_id"])
            if time >= before:
                return
            self._report_joined(time)
            self._moves += 1
            heapq.heappush(self._travelling, (float(move["ready_time"]), next(self._order), i))
            with self._guard:
                self._observer.moved(
                    time, int(move["source"]), int(move["target"]), i, bool(move["was_active"])
                )

    def _worker_of(self, i: int) -> int:
        """Return the worker of the queue that a request joins, before any move not yet reported."""
        for move in self._new_moves():
            if move["request_id"] == i:
                return int(move["source"])
        return int(self._simulation.requests["worker"][i])

    def _report_joined(self, until: float) -> None:
        """Report arrivals and the ends of transfers up to a moment, in order."""
        simulation, known = self._simulation, int(self._simulation.tracker[0]["next_arrival"])
        times, prompts = simulation.workload["arrival_time"], simulation.workload["prompt_len"]
        if simulation.system.transfer_link == "shared":
            self._follow_ends()
        while True:
            arrival = times[self._arrivals] if self._arrivals < known else math.inf
            ready = self._travelling[0][0] if self._travelling else math.inf
            if min(arrival, ready) > until or min(arrival, ready) == math.inf:
                return
            if ready <= arrival:
                i = heapq.heappop(self._travelling)[2]
            else:
                i, self._arrivals = self._arrivals, self._arrivals + 1
                self._left[i] = prompts[i]
            worker = self._worker_of(i)
            with self._guard:
                self._observer.joined(float(min(arrival, ready)), worker, i)

    def _follow_ends(self) -> None:
        """Take the present ends of transfers, which those that share their links have changed."""
        ready = self._simulation.requests["ready_time"]
        overwritten = set(self._new_moves()["request_id"].tolist())
        for j, (_, order, i) in enumerate(self._travelling):
            if i not in overwritten and not math.isnan(ready[i]):
                self._travelling[j] = float(ready[i]), order, i
        heapq.heapify(self._travelling)

    def _report_decided(self, k: int, time: float, before: Ids, rows: Any) -> None:
        """Report the decision of worker ``k``, unless it was refused; ``rows`` are new in the log."""
        simulation, w = self._simulation, self._simulation.workers[k]
        now = int(w["decisions"]), int(w["total_admitted"]), int(w["total_evicted"])
        then, self._totals[k] = self._totals[k], now
        if now[0] == then[0]:
            return
        admitted = simulation.admit[k, : now[1] - then[1]].astype(np.int64)
        evicted = before[simulation.evict[k, : now[2] - then[2]]]
        self._left[evicted] = simulation.requests["num_prefill_left"][evicted]
        if len(simulation.prefix) > 0:
            self._left[admitted] = simulation.prefix["to_prefill"][admitted]  # less what they found
        members = np.concatenate([before[~np.isin(before, evicted)] if len(evicted) else before, admitted])
        runs = w["phase"] == BUSY or bool((rows["worker"] == k).any())
        if runs:
            self._running[k] = time, members
        with self._guard:
            self._observer.decided(time, k, admitted, evicted)
            if not runs:
                self._observer.waited(time, k, members, int(w["kv_allocated"]))

    def _batch(self, row: Any) -> Batch:
        """Return the batch of a log row, with what its members did in it."""
        simulation, k = self._simulation, int(row["worker"])
        _, members = self._running.pop(k)
        w = simulation.workers[k]
        slots = simulation.active[k, : int(w["num_active"])]
        here = np.isin(members, slots["request_id"])  # in the order of the slots, which is kept
        gone = members[~here]
        finished = simulation.requests["status"][gone] == FINISHED
        left, made = self._left[members], self._made[members]
        left_after, made_after = np.zeros(len(members), np.int64), made + (left == 0)
        left_after[here] = slots["num_prefill_left"]
        made_after[here] = slots["num_output_tokens"]
        left_after[~here] = np.where(finished, 0, simulation.requests["num_prefill_left"][gone])
        self._left[members], self._made[members] = left_after, made_after
        self._made[gone] = simulation.requests["num_output_tokens"][gone]
        moves = self._new_moves()
        taken = moves["request_id"][moves["source"] == k]
        end = float(row["end_time"])
        transfers = tuple(self._transfer(i, end) for i in gone[~finished & ~np.isin(gone, taken)].tolist())
        return Batch(
            row=row,
            request_id=members,
            prefill_tokens=left - left_after,
            decode_tokens=np.where(left == 0, made_after - made, 0),
            finished=gone[finished],
            transfers=transfers,
            kv_tokens=int(w["kv_allocated"]),
            num_active=len(slots),
        )

    def _transfer(self, i: int, start: float) -> Transfer:
        r, p = self._simulation.requests[i], self._simulation.problem[0]
        if math.isnan(r["ready_time"]):
            return Transfer(i, None, math.nan)
        ready = float(r["ready_time"])
        if i in self._new_moves()["request_id"]:  # has overwritten it
            ready = start + float(p["transfer_latency"]) + float(p["transfer_time"]) * int(r["num_kv_tokens"])
        heapq.heappush(self._travelling, (ready, next(self._order), i))
        return Transfer(i, self._worker_of(i), ready)

    def _cut(self, k: int, start: float, members: Ids, end: float) -> Batch:
        """Return a batch that was running when the run ended, with the tokens planned for its members."""
        simulation, w = self._simulation, self._simulation.workers[k]
        slots = simulation.active[k, : len(members)]
        given = np.maximum(slots["num_prefill_left"], 1).astype(np.int64)
        if simulation.decision["explicit"][k]:
            given = np.where(slots["planned"] == UNKNOWN, given, slots["planned"])
        prefills = slots["num_prefill_left"] > 0
        row = np.zeros(1, ITERATION)
        row["start_time"], row["end_time"], row["worker"] = start, end, k
        row["num_active"], row["num_waiting"], row["kv_tokens"] = (
            w["batch_active"], w["batch_waiting"], w["batch_kv"],
        )  # fmt: skip
        for name in ("num_prefills", "prefill_tokens", "num_decodes"):
            row[name] = simulation.load[name][k]
        none = np.zeros(0, np.int64)
        tokens = np.where(prefills, given, 0), np.where(prefills, 0, given)
        return Batch(row[0], members, *tokens, none, (), int(w["kv_allocated"]), len(members), cut=True)
