"""The number of waiting requests of a run: its course, its slope, its largest value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.experiments.statistics import Estimate, mean_interval
from kvgym.policies.runner import SimulationResult
from kvgym.theory.stability import cumulative_memory
from papers.stab.setting import CHUNK, FCFS, SLACK, M, run_at

Floats = NDArray[np.float64]
POINTS = 200  # of a course that is drawn


class Queue(NamedTuple):
    """The queue of a run.

    Attributes:
        figures: by name; see :func:`queue_figures`.
        times: seconds, of the course.
        waiting: requests waiting then.
    """

    figures: dict[str, float]
    times: list[float]
    waiting: list[int]


class QueueRun(NamedTuple):
    """A run with its queue recorded; :func:`play` runs it."""

    name: str
    rate: float
    requests: int
    seed: int
    policy: str = FCFS
    workers: int = 1
    engine: str = "slotted"


def play(task: QueueRun) -> Queue:
    """Run a task until the last arrival, and return its queue."""
    result = run_at(
        task.name,
        task.rate,
        task.requests,
        task.seed,
        task.policy,
        workers=task.workers,
        engine=task.engine,
        to_the_end=False,
    )
    times = np.linspace(0, float(result.table.arrival_time[-1]), POINTS)
    course = waiting_work(result, times).astype(int)
    return Queue(queue_figures(result), np.round(times, 2).tolist(), course.tolist())


def queue_figures(result: SimulationResult) -> dict[str, float]:
    """Return slopes and sizes of the queue while requests arrive.

    - ``slope``, ``work slope``: least-squares slopes of the waiting requests, and of their work in units of E[g],
      per second, without the first fifth of the arrivals; ``r2``: the share of the variance that the first explains;
    - ``mean``: waiting requests, over the same time;
    - ``max``, ``up to 5``: most of them when a batch begins, and the share of batches that begin with at most 5;
    - ``kv use``: of M, mean over the batches; ``below``: share of batches that hold less than (1 − δ)M among those
      that begin while requests wait, NaN where none does.
    """
    end = float(result.table.arrival_time[-1])
    times = np.linspace(0.2 * end, end, 2000)
    count = waiting_work(result, times)
    work = cumulative_memory(result.table.prompt_len, result.table.output_len, CHUNK).astype(np.float64)
    log = result.log
    assert log is not None
    begins = log["start_time"][log["start_time"] < end]
    seen = waiting_work(result, np.sort(begins))
    rows = log[(log["start_time"] > 0.2 * end) & (log["start_time"] < end)]
    queued = rows[rows["num_waiting"] > 0]
    slope, level = np.polyfit(times, count, 1)
    rest = count - (slope * times + level)
    return {
        "slope": float(slope),
        "r2": float(1 - rest.var() / count.var()) if count.var() > 0 else 0.0,
        "work slope": float(np.polyfit(times, waiting_work(result, times, work), 1)[0] / work.mean()),
        "mean": float(count.mean()),
        "max": float(seen.max()),
        "up to 5": float((seen <= 5).mean()),
        "kv use": float(rows["kv_tokens"].mean() / M),
        "below": float((queued["kv_tokens"] < (1 - SLACK) * M).mean()) if len(queued) else float("nan"),
    }


def waiting_work(result: SimulationResult, times: Floats, work: Floats | None = None) -> Floats:
    """Return the requests that have arrived and not been started at each time, or the sum of their work."""
    arrival, start = result.table.arrival_time, result.requests["start_time"]
    weight = np.ones(len(arrival)) if work is None else work
    total = np.zeros(len(times))
    for moments, sign in ((arrival, 1.0), (start, -1.0)):
        order = np.argsort(moments)  # NaN, never started, comes last and is never reached
        sums = np.concatenate([[0.0], np.cumsum(weight[order])])
        total += sign * sums[np.searchsorted(moments[order], times, side="right")]
    return total


def estimates(queues: Sequence[Queue]) -> dict[str, Estimate]:
    """Return each figure of the queue with its interval over runs."""
    names = queues[0].figures
    return {name: mean_interval([queue.figures[name] for queue in queues]) for name in names}


def most(queues: Sequence[Queue]) -> int:
    """Return the most requests that wait in any of the runs."""
    return int(max(queue.figures["max"] for queue in queues))


def share(value: float) -> str:
    """Return a share in per cent, – for none."""
    return "–" if np.isnan(value) else f"{value:.0%}"
