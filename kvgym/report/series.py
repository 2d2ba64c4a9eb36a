"""Data of plots as arrays: step functions, bins and distributions of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError
from kvgym.metrics.measured import gaps_of, scope_of, tpot_of
from kvgym.policies.runner import SimulationResult
from kvgym.simulator.tables import FINISHED

MAX_POINTS = 1000
"""Maximum number of points of a line; a step function has twice as many corners."""

Floats = NDArray[np.float64]
LATENCY_COLUMNS = {"e2e_latency": "finish_time", "ttft": "first_token_time"}


def iteration_log(result: SimulationResult) -> NDArray[Any]:
    """Return the per-iteration log of a run.

    Raises:
        ConfigError: the run has no log.
    """
    if result.log is None:
        raise ConfigError("this run has no per-iteration log; simulate with log=True")
    return result.log


def step_series(log: NDArray[Any], column: str) -> tuple[Floats, Floats]:
    """Return a column of the log as a step function of time, summed over workers.

    A value is valid from the start of its iteration to the start of the worker's next one. The KV memory of an idle
    worker is empty.

    Args:
        log: per-iteration rows, dtype ITERATION.
        column: ``"kv_tokens"``, ``"num_waiting"``, ``"num_active"``, ...

    Returns:
        Times in seconds, increasing, float64 (n,), and the value from each time on, float64 (n,).
    """
    times: list[Floats] = []
    deltas: list[Floats] = []
    for worker in np.unique(log["worker"]):
        rows = log[log["worker"] == worker]
        start, end = rows["start_time"], rows["end_time"]
        value = rows[column].astype(np.float64)
        after = value.copy()  # from the end of the iteration on
        if column in ("kv_tokens", "num_active"):
            after[rows["num_active"] == rows["num_finished"]] = 0.0
        instants = np.column_stack((start, end)).ravel()
        levels = np.column_stack((value, after)).ravel()
        times.append(instants)
        deltas.append(np.diff(levels, prepend=0.0))
    if not times:
        return np.zeros(0), np.zeros(0)
    all_times, all_deltas = np.concatenate(times), np.concatenate(deltas)
    order = np.argsort(all_times, kind="stable")
    all_times, levels = all_times[order], np.cumsum(all_deltas[order])
    keep = np.append(all_times[1:] > all_times[:-1], True)  # of equal times, the last counts
    all_times, levels = all_times[keep], levels[keep]
    changed = np.append(True, levels[1:] != levels[:-1])
    changed[-1] = True  # keeps the end of the last value
    return all_times[changed], levels[changed]


def thin_steps(times: Floats, values: Floats, limit: int = MAX_POINTS) -> tuple[Floats, Floats]:
    """Return a step function reduced to at most ``limit`` points.

    Time is divided into equal bins; the smallest, the largest and the last value of each bin are kept, so peaks are
    preserved and values between bins are exact.

    Args:
        times: increasing, float64 (n,).
        values: value from each time on, float64 (n,).
        limit: maximum number of points, at least 4.
    """
    if len(times) <= limit:
        return times, values
    bins = (limit - 1) // 3
    share = (times - times[0]) / (times[-1] - times[0])
    which = np.minimum((share * bins).astype(np.int64), bins - 1)
    starts = np.flatnonzero(np.diff(which, prepend=-1))
    keep = {0}
    for a, b in zip(starts, np.append(starts[1:], len(times)), strict=True):
        inside = values[a:b]
        keep |= {int(a + inside.argmin()), int(a + inside.argmax()), int(b - 1)}
    chosen = np.array(sorted(keep))
    return times[chosen], values[chosen]


def latencies(result: SimulationResult, name: str, chosen: NDArray[np.bool_] | None = None) -> Floats:
    """Return latencies of the finished requests in seconds, sorted; requests without a value are omitted.

    Args:
        result: the run; with a window, only requests that arrived in it count.
        name: ``"e2e_latency"``, ``"ttft"``, ``"tpot"``, or ``"longest_gap"`` between two tokens.
        chosen: mask of requests, bool (n,); None = all.
    """
    r = result.requests
    done = (r["status"] == FINISHED) & scope_of(result).counted
    if chosen is not None:
        done = done & chosen
    if name == "tpot":
        values = tpot_of(result)[done]
    elif name == "longest_gap":
        values = r["max_token_gap"][done & (gaps_of(result) > 0)]
    else:
        values = (r[LATENCY_COLUMNS[name]] - result.table.arrival_time)[done]
    return np.sort(np.asarray(values[np.isfinite(values)], dtype=np.float64))


def token_gaps(result: SimulationResult) -> tuple[Floats, Floats]:
    """Return the distribution of the gaps between tokens, over a run or its window: seconds, and share up to each.

    Gaps have a relative error of up to 0.1 %.
    """
    scope = scope_of(result)
    used = scope.gap_counts > 0
    counts, sums = scope.gap_counts[used], scope.gap_sums[used]
    values, share = sums / counts, np.cumsum(counts) / max(counts.sum(), 1)
    if len(values) > MAX_POINTS:
        places = np.searchsorted(share, np.linspace(share[0], 1.0, MAX_POINTS))
        chosen = np.unique(np.minimum(places, len(values) - 1))
        return values[chosen], share[chosen]
    return values, share


def distribution(values: Floats, total: int, limit: int = MAX_POINTS) -> tuple[Floats, Floats]:
    """Return the empirical distribution function of sorted values.

    Args:
        values: sorted, float64 (n,).
        total: number of observations; larger than n if some have no value, so that the curve ends below 1.
        limit: maximum number of points.

    Returns:
        The values, and the share of ``total`` that is at most each.
    """
    n = len(values)
    share = np.arange(1, n + 1) / max(total, 1)
    if n > limit:
        chosen = np.unique(np.linspace(0, n - 1, limit).round().astype(np.int64))
        return values[chosen], share[chosen]
    return values, share


def rate_bins(times: Floats, weights: NDArray[Any], edges: Floats) -> Floats:
    """Return the sum of weights per second in each bin.

    Args:
        times: instants in seconds, (n,).
        weights: e.g. tokens, (n,).
        edges: edges of the bins, increasing, (bins + 1,); times outside are ignored.
    """
    total, _ = np.histogram(times, bins=edges, weights=weights.astype(np.float64))
    return np.asarray(total / np.diff(edges), dtype=np.float64)
