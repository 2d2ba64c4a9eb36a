"""Content of an environment's pictures and texts: a bounded history, and the current requests.

Pictures show only what the agent may observe: the tables read here hold a request from its arrival on, an output
length after the request has finished, and predictions as far as they are revealed. The number of future requests
is not shown either.

Only :meth:`Recorder.write_summary` needs a plotting library, and imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.rendering.frame import draw_scene
from kvgym.envs.rendering.history import History
from kvgym.envs.rendering.scene import (
    EVICTED,
    IN_QUEUE,
    RUNNING,
    SERVED,
    Integers,
    Scene,
    Spans,
    choose_rows,
    require_libraries,
    text_frame,
)
from kvgym.errors import ConfigError, InformationError
from kvgym.simulator.tables import FINISHED, UNKNOWN, WAITING, WORKER
from kvgym.simulator.view import RequestColumns, SystemView

MAX_GAPS = 32
"""Upper limit of gaps of a request; beyond it, the two nearest are merged."""

MAX_GAPPED = 4096
"""Upper limit of requests with recorded gaps; beyond it, those of the earliest finished ones are dropped."""

GANTT_ROWS = 40
"""Upper limit of requests in the Gantt view of a picture."""


class Tables(Protocol):
    """``workers``, ``requests`` and ``tracker`` of an episode by name, as the simulator has them."""

    def __getitem__(self, name: str, /) -> Any:
        """Return a table."""
        ...


_PLACE = {name: k for k, name in enumerate(WORKER.names or ())}
_CLOCK, _BATCH_END, _ITERATION = _PLACE["clock"], _PLACE["last_batch_end"], _PLACE["iteration"]
_KV, _WAITING, _ACTIVE = _PLACE["kv_allocated"], _PLACE["num_waiting"], _PLACE["num_active"]
_ADMITTED, _EVICTED = _PLACE["total_admitted"], _PLACE["total_evicted"]


class Recorder:
    """Records an episode and draws it.

    Attributes:
        kv_capacity: tokens.
        observe: returns the current view of the worker, and the tables of its episode.
        history: KV memory, waiting and active requests over time.
    """

    def __init__(self, kv_capacity: int, observe: Callable[[], tuple[SystemView, Tables]]) -> None:
        """Create an empty recording of one episode."""
        self.kv_capacity, self.observe = kv_capacity, observe
        self.history = History()
        self._view: SystemView | None = None
        self._block: Tables | None = None
        self._workers: Any = None
        self._before: tuple[Any, ...] = ()
        self._evictions: NDArray[np.int32] = np.zeros(0, np.int32)
        self._gaps: dict[int, list[list[float]]] = {}
        self._out: set[int] = set()  # evicted and not admitted again

    # ------------------------------------------------------------ recording

    def take(self) -> None:
        """Record the current state; called after ``reset`` and after every step."""
        view, block = self.observe()
        if block is not self._block:
            self._block, self._workers = block, block["workers"]
            self._evictions = np.zeros(len(block["requests"]), np.int32)
        self._view = view
        now = self._workers.item(0)
        before, self._before = self._before, now
        if before:
            if now[_BATCH_END] < now[_CLOCK] and before[_CLOCK] < now[_BATCH_END]:
                self._add_idle(now)
            if now[_EVICTED] != before[_EVICTED]:
                self._open_gaps(before, now)
            elif self._out and now[_ADMITTED] != before[_ADMITTED]:
                self._close_gaps(before, now)
        self.history.add(now[_CLOCK], now[_KV], now[_WAITING], now[_ACTIVE])

    def _add_idle(self, now: tuple[Any, ...]) -> None:
        """Add the end of the last batch, after which the worker was idle."""
        arrived = self._block["tracker"]["next_arrival"].item(0)  # type: ignore[index]
        later = 0
        times = self._block["requests"]["arrival_time"]  # type: ignore[index]
        while later < arrived and times[arrived - 1 - later] > now[_BATCH_END]:
            later += 1
        self.history.add(now[_BATCH_END], now[_KV], now[_WAITING] - later, now[_ACTIVE])

    def _open_gaps(self, before: tuple[Any, ...], now: tuple[Any, ...]) -> None:
        """Open a gap for every request evicted since the last call."""
        requests = self._block["requests"]  # type: ignore[index]
        counts = requests["num_evictions"]
        self._close_gaps(before, now)
        for i in np.flatnonzero(counts != self._evictions).tolist():
            # Evicted between the two calls, and after its last token.
            last = requests["last_token_time"].item(i)
            gaps = self._gaps.setdefault(i, [])
            if i in self._out:  # admitted and evicted again between two calls: one gap
                continue
            seen = requests["status"].item(i) != FINISHED and before[_CLOCK] < last
            earliest = max(requests["start_time"].item(i), gaps[-1][1] if gaps else 0.0)
            gaps.append([max(last if seen else before[_CLOCK], earliest), np.inf])
            if len(gaps) > MAX_GAPS:
                _join_nearest(gaps)
            self._out.add(i)
        self._evictions = counts.copy()
        self._close_gaps(before, now)
        if len(self._gaps) > MAX_GAPPED:
            self._drop_gaps(requests["status"])

    def _close_gaps(self, before: tuple[Any, ...], now: tuple[Any, ...]) -> None:
        """Close the gap of every request that was admitted again."""
        requests = self._block["requests"]  # type: ignore[index]
        for i in sorted(self._out):
            if requests["status"].item(i) != WAITING:
                gap = self._gaps[i][-1]
                passed = max(now[_ITERATION] - before[_ITERATION], 1)
                share = (requests["admit_iteration"].item(i) - before[_ITERATION]) / passed
                end = before[_CLOCK] + min(max(share, 0.0), 1.0) * (now[_CLOCK] - before[_CLOCK])
                gap[1] = max(gap[0], end)
                self._out.discard(i)

    def _drop_gaps(self, status: NDArray[np.int32]) -> None:
        """Drop the gaps of the earliest finished requests, down to half of the limit."""
        for i in sorted(self._gaps):
            if len(self._gaps) <= MAX_GAPPED // 2:
                break
            if status[i] == FINISHED:
                del self._gaps[i]

    # ------------------------------------------------------------ drawing

    def scene(self, rows: int | None = GANTT_ROWS) -> Scene:
        """Return the drawn content of the current moment.

        Args:
            rows: upper limit of requests in the Gantt view, None = all.
        """
        if self._view is None or self._block is None:
            raise ConfigError("nothing to draw yet; call reset() first")
        view, block = self._view, self._block
        worker = block["workers"][0]
        requests = block["requests"][: block["tracker"]["next_arrival"].item(0)]
        done = np.flatnonzero(requests["status"] == FINISHED)
        latencies = requests["finish_time"][done] - requests["arrival_time"][done]
        active, queue = view.active, view.waiting
        kv = active.num_kv_tokens.astype(np.int64)
        prompt_kv = np.minimum(kv, active.prompt_len)
        time, kv_line, waiting_line, active_line = (
            np.append(column, present)
            for column, present in zip(
                self.history.columns(),
                (view.clock, view.kv_allocated, view.num_waiting, view.num_active),
                strict=True,
            )
        )
        latest = done[np.lexsort((done, requests["finish_time"][done]))]
        chosen = choose_rows(active.request_id, queue.request_id, latest, rows)
        return Scene(
            clock=view.clock,
            iteration=view.iteration,
            kv_capacity=self.kv_capacity,
            kv_tokens=view.kv_allocated,
            peak_kv_tokens=int(worker["peak_kv_tokens"]),
            num_prefilling=int(worker["num_prefilling"]),
            num_finished=len(done),
            num_evictions=int(worker["total_evicted"]),
            mean_latency=float(latencies.mean()) if len(done) else float("nan"),
            time=time,
            kv=kv_line,
            waiting=waiting_line,
            active=active_line,
            active_id=active.request_id,
            active_arrival=active.arrival_time if len(active) else np.zeros(0),
            prompt_len=active.prompt_len.astype(np.int64),
            prompt_kv=prompt_kv,
            output_kv=kv - prompt_kv,
            num_output_tokens=active.num_output_tokens.astype(np.int64),
            predicted_len=_predictions(active),
            queue_id=queue.request_id,
            queue_arrival=queue.arrival_time,
            queue_prompt=queue.prompt_len.astype(np.int64),
            queue_predicted=_predictions(queue),
            rows=chosen,
            spans=self._spans(chosen, requests, view.clock),
        )

    def _spans(self, chosen: Integers, requests: Any, now: float) -> Spans:
        """Return the spans of the chosen requests until now."""
        found: list[tuple[int, int, float, float]] = []
        for row, i in enumerate(chosen.tolist()):
            arrival, start = requests["arrival_time"].item(i), requests["start_time"].item(i)
            if not start <= now:
                found.append((row, IN_QUEUE, arrival, now))
                continue
            finished = requests["status"].item(i) == FINISHED
            end = requests["finish_time"].item(i) if finished else now
            kind = SERVED if finished else RUNNING
            found.append((row, IN_QUEUE, arrival, start))
            for left, right in self._gaps.get(i, ()):
                found.append((row, kind, start, left))
                found.append((row, EVICTED, left, min(right, end)))
                start = min(right, end)
            found.append((row, kind, start, end))
        kept = np.array([span for span in found if span[3] > span[2]], np.float64).reshape(-1, 4)
        return Spans(kept[:, 0].astype(np.int64), kept[:, 1].astype(np.int64), kept[:, 2], kept[:, 3])

    def draw(self, moment: Scene) -> NDArray[np.uint8]:
        """Return a moment as an image, uint8 (600, 800, 3)."""
        return draw_scene(moment)

    def picture(self) -> NDArray[np.uint8]:
        """Return the current moment as an image, see :meth:`draw`."""
        return self.draw(self.scene())

    def write_summary(self, title: str, path: Path | IO[bytes]) -> None:
        """Write a picture of the episode so far as a PNG file.

        Args:
            title: first line.
            path: the file, open for writing, or its path in an existing folder.

        Raises:
            MissingLibraryError: matplotlib is missing.
        """
        require_libraries("matplotlib")
        from kvgym.envs.rendering.picture import write_summary

        write_summary(self.scene(rows=None), title, path)

    def text(self) -> str:
        """Return the current moment as plain text, at most 80 columns wide."""
        return text_frame(self.scene(rows=0))


def _join_nearest(gaps: list[list[float]]) -> None:
    """Merge the two neighbours with the least time between them."""
    k = min(range(len(gaps) - 1), key=lambda k: gaps[k + 1][0] - gaps[k][1])
    gaps[k : k + 2] = [[gaps[k][0], gaps[k + 1][1]]]


def _predictions(columns: RequestColumns) -> Integers:
    """Return predicted output lengths, UNKNOWN if they are not revealed."""
    try:
        return columns.predicted_output_len.astype(np.int64)
    except InformationError:
        return np.full(len(columns), UNKNOWN, np.int64)
