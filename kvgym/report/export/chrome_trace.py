"""Traces of runs: workers as processes, requests as tracks with slices, memory and queue as counters.

docs/exports.md explains how to read them. A track belongs to one request at a time, from its arrival at the worker
until it leaves, and is then reused: there are as many tracks as requests present at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.report.export.trace_file import TraceFile, nanoseconds
from kvgym.simulator.observer import Batch, Ids, Observer
from kvgym.simulator.system import System
from kvgym.utils.arguments import explained
from kvgym.workloads.table import RequestTable

QUEUED, PREFILL, DECODE, PAUSED, EVICTED, TRANSFER = (
    "queued", "prefill", "decode", "paused", "evicted", "transfer",
)  # fmt: skip
"""States of a request; names of slices."""


COUNTERS = {"KV": "tokens", "waiting": "requests", "active": "requests", "cached": "tokens"}
"""Counters of a worker, with their units. ``cached`` is there only with a prefix cache: memory in it that is not in use
while a batch runs.
"""


@dataclass
class _Stay:
    """A request at a worker; times in nanoseconds."""

    worker: int
    track: int
    start: int
    state: str
    since: int
    tokens: int = 0  # in this state
    evictions: int = 0
    # Written when the request leaves: viewers need the enclosing slice first.
    done: list[tuple[str, int, int, int]] = field(default_factory=list)


class _Counter:
    """A counter of a worker; writes changes only, and the last of several values at one moment."""

    def __init__(self, write: Callable[[int, int], None]) -> None:
        self._write = write
        self._time, self._value, self._written = 0, -1, -1

    def set(self, time: int, value: int) -> None:
        if time > self._time:
            self.flush()
        self._time, self._value = time, value

    def flush(self) -> None:
        if self._value != self._written:
            self._write(self._time, self._value)
            self._written = self._value


class ChromeTrace(Observer):
    """Observer that writes a run into a trace file.

    Args:
        file: open; the caller closes it.
        system: the workers.
        table: the requests.
    """

    @explained
    def __init__(self, file: TraceFile, system: System, table: RequestTable) -> None:
        self._file = file
        self._prompt_len: Ids = table.prompt_len
        self._output_len: Ids = table.output_len
        self._has_cache = system.prefix_unit > 0
        self._stays: dict[int, _Stay] = {}
        self._free: list[list[int]] = []
        self._tracks: list[int] = []
        self._waiting: list[int] = []
        self._resting: list[
            tuple[int, int] | None
        ] = []  # of a waiting worker: since when, and its active requests
        self._counters: list[dict[str, _Counter]] = []
        first = (
            len(system.all_workers) + 1
        )  # viewers treat the track with the number of its process as the main one
        for k, (worker, capacity) in enumerate(
            zip(system.all_workers, system.usable_capacities, strict=True)
        ):
            self._free.append([])
            self._tracks.append(first)
            self._waiting.append(0)
            self._resting.append(None)
            role = "" if worker.role == "mixed" else f"{worker.role}, "
            title = f"worker {k} ({role}{int(capacity):,} KV tokens)"
            self._describe("process_name", k, k + 1, name=title)
            self._describe("process_sort_index", k, k + 1, sort_index=k)
            self._name_track(k, k + 1, "batches")
            shown = [name for name in COUNTERS if name != "cached" or self._has_cache]
            self._counters.append({name: self._counter(k, name) for name in shown})

    # ------------------------------------------------------------ events of the run

    def began(self, requests: NDArray[Any]) -> None:
        """Read lengths by request id: in the closed loop of sessions the table has another order."""
        self._prompt_len, self._output_len = requests["prompt_len"], requests["output_len"]

    def joined(self, time: float, worker: int, request_id: int) -> None:
        """Begin the stay of a request, or the rest of it after a transfer."""
        moment = nanoseconds(time)
        if request_id in self._stays:
            self._change(request_id, QUEUED, moment)
        else:
            self._arrive(request_id, worker, QUEUED, moment)
        self._queue(worker, 1, moment)

    def decided(self, time: float, worker: int, admitted: Ids, evicted: Ids) -> None:
        """Mark evictions; the slices of admitted requests begin with the batch or the wait."""
        moment = nanoseconds(time)
        self._rest(worker, moment)
        for i in evicted.tolist():
            stay = self._stays[i]
            stay.evictions += 1
            self._file.write("i", "evicted", worker + 1, stay.track, moment, s="t", args={"request": i})
            self._change(i, EVICTED, moment)
        self._queue(worker, len(evicted) - len(admitted), moment)

    def moved(self, time: float, source: int, target: int, request_id: int, was_active: bool) -> None:
        """Move a request to another worker."""
        moment = nanoseconds(time)
        if not was_active:
            self._queue(source, -1, moment)
        self._transfer(request_id, target, moment)

    def waited(self, time: float, worker: int, active: Ids, kv_tokens: int) -> None:
        """Pause all requests."""
        moment = nanoseconds(time)
        for i in active.tolist():
            self._change(i, PAUSED, moment)
        self._resting[worker] = moment, len(active)
        self._set(worker, moment, kv_tokens, len(active))

    def ran(self, batch: Batch) -> None:
        """Draw a batch, and extend or begin the slices of its requests."""
        row = batch.row
        k, start, end = int(row["worker"]), nanoseconds(row["start_time"]), nanoseconds(row["end_time"])
        states = np.where(
            batch.prefill_tokens > 0, PREFILL, np.where(batch.decode_tokens > 0, DECODE, PAUSED)
        )
        tokens = batch.prefill_tokens + batch.decode_tokens
        for i, state, count in zip(batch.request_id.tolist(), states.tolist(), tokens.tolist(), strict=True):
            self._change(i, state, start, count)
        figures = {name: int(row[name]) for name in ("prefill_tokens", "num_prefills", "num_decodes")}
        about = {**figures, "num_active": int(row["num_active"]), "kv_tokens": int(row["kv_tokens"])}
        if self._has_cache:
            about["hit_tokens"] = int(row["hit_tokens"])
            self._counters[k]["cached"].set(start, int(row["kv_cached"]))
        if batch.cut:
            about["cut"] = True
        self._slice(_kind(figures), k, k + 1, start, end, about)
        self._set(k, start, int(row["kv_tokens"]), int(row["num_active"]))
        self._set(k, end, batch.kv_tokens, batch.num_active)
        for i in batch.finished.tolist():
            self._leave(i, end, finished=True)
        for transfer in batch.transfers:
            self._transfer(transfer.request_id, transfer.worker, end)

    def ended(self, time: float) -> None:
        """End what is still open."""
        moment = nanoseconds(time)
        for k, counters in enumerate(self._counters):
            self._rest(k, moment)
            for counter in counters.values():
                counter.flush()
        for i in sorted(self._stays):
            self._leave(i, moment, finished=False)

    # ------------------------------------------------------------ requests

    def _arrive(self, i: int, worker: int, state: str, moment: int) -> None:
        """Give a request the lowest free track of a worker."""
        if self._free[worker]:
            track = heapq.heappop(self._free[worker])
        else:
            track = self._tracks[worker]
            self._tracks[worker] += 1
            self._name_track(worker, track, "requests")
        self._stays[i] = _Stay(worker, track, moment, state, moment)

    def _change(self, i: int, state: str, moment: int, tokens: int = 0) -> None:
        """Change the state of a request; equal states in a row make one slice."""
        stay = self._stays[i]
        if stay.state != state:
            stay.done.append((stay.state, stay.since, moment, stay.tokens))
            stay.state, stay.since, stay.tokens = state, moment, 0
        stay.tokens += tokens

    def _leave(self, i: int, moment: int, *, finished: bool) -> None:
        """End the stay of a request: write it and free its track."""
        stay = self._stays.pop(i)
        heapq.heappush(self._free[stay.worker], stay.track)
        stay.done.append((stay.state, stay.since, moment, stay.tokens))
        about = {
            "request": i,
            "prompt_len": int(self._prompt_len[i]),
            "output_len": int(self._output_len[i]),
            "evictions": stay.evictions,
            "finished": finished,
        }
        self._slice(f"request {i}", stay.worker, stay.track, stay.start, moment, about)
        for state, start, end, tokens in stay.done:
            about = {"request": i, "tokens": tokens} if state in (PREFILL, DECODE) else {"request": i}
            self._slice(state, stay.worker, stay.track, start, end, about)

    def _transfer(self, i: int, worker: int | None, moment: int) -> None:
        """Move a request to another worker, with an arrow; if the run ends first, it stays in transfer."""
        if worker is None:
            self._change(i, TRANSFER, moment)
            return
        old = self._stays[i]
        arrow = {"cat": "transfer", "id": i}
        self._file.write("s", "transfer", old.worker + 1, old.track, old.since, **arrow)
        self._leave(i, moment, finished=False)
        self._arrive(i, worker, TRANSFER, moment)
        new = self._stays[i]
        self._file.write("f", "transfer", new.worker + 1, new.track, moment, bp="e", **arrow)

    # ------------------------------------------------------------ workers

    def _rest(self, worker: int, moment: int) -> None:
        """End the wait of a worker, if it waits."""
        resting, self._resting[worker] = self._resting[worker], None
        if resting is not None:
            self._slice("wait", worker, worker + 1, resting[0], moment, {"num_active": resting[1]})

    def _queue(self, worker: int, change: int, moment: int) -> None:
        self._waiting[worker] += change
        self._counters[worker]["waiting"].set(moment, self._waiting[worker])

    def _set(self, worker: int, moment: int, kv_tokens: int, num_active: int) -> None:
        self._counters[worker]["KV"].set(moment, kv_tokens)
        self._counters[worker]["active"].set(moment, num_active)

    def _counter(self, worker: int, name: str) -> _Counter:
        return _Counter(
            lambda time, value: self._file.write(
                "C", name, worker + 1, worker + 1, time, args={COUNTERS[name]: value}
            )
        )

    # ------------------------------------------------------------ events

    def _slice(self, name: str, worker: int, track: int, start: int, end: int, about: dict[str, Any]) -> None:
        if end > start:
            self._file.write("X", name, worker + 1, track, start, dur=end - start, args=about)

    def _describe(self, what: str, worker: int, track: int, **about: Any) -> None:
        self._file.write("M", what, worker + 1, track, 0, args=about)

    def _name_track(self, worker: int, track: int, name: str) -> None:
        self._describe("thread_name", worker, track, name=name)
        self._describe("thread_sort_index", worker, track, sort_index=track)


def _kind(figures: dict[str, int]) -> str:
    """Return the name of a batch."""
    if figures["num_prefills"] and figures["num_decodes"]:
        return "prefill and decode"
    return PREFILL if figures["num_prefills"] else DECODE if figures["num_decodes"] else "empty"
