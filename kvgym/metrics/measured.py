"""A run as metrics are computed from it: its records and totals, or those of its window."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.metrics.attainment import has_targets, met_slo, slo_met
from kvgym.metrics.fairness import client_means, jain_index, service_difference
from kvgym.metrics.jobs import Jobs, jobs_of, spans_alone
from kvgym.policies.runner import SimulationResult
from kvgym.simulator.cluster.changing import FleetRecord
from kvgym.simulator.tables import FINISHED, FUTURE, WAITING

NONE = np.zeros(0)
_PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
STATISTICS = ("mean", "std", *_PERCENTILES, "max")


PARTS: dict[str, Callable[[SimulationResult], object]] = {
    "targets": lambda run: (
        run.table.ttft_slo is not None or run.table.tbt_slo is not None or run.table.e2e_slo is not None
    ),
    "clients": lambda run: run.table.client_id is not None,
    "sessions": lambda run: run.table.session_id is not None,
    "jobs": lambda run: run.table.job_id is not None,
    "cache": lambda run: run.system.prefix_unit,
    "drafts": lambda run: run.system.speculation is not None,
    "host": lambda run: run.system.host_memory is not None,
    "store": lambda run: run.system.host_memory is not None and run.system.host_memory.below is not None,
    "links": lambda run: run.transfer_wait is not None,
    "stages": lambda run: run.whole is not None,
    "fleet": lambda run: run.fleet is not None,
}
"""What only some runs have, and whether a run does."""


@dataclass(frozen=True)
class Scope:
    """The data that metrics are computed from: a whole run, or its window.

    Attributes:
        worker: totals of the workers.
        span: seconds of the run, or of the window.
        counting: seconds during which the totals were counted, the mean over the workers.
        by_worker: the same for each worker.
        counted: bool (n,), requests with latencies that count, or True.
        left: bool (n,), requests that count as finished in the span if they have finished, or True.
        gap_counts: token gaps by bin.
        gap_sums: their sums.
        longest_gap: seconds.
    """

    worker: NDArray[Any]
    span: float
    counting: float
    by_worker: Sequence[float]
    counted: Any
    left: Any
    gap_counts: NDArray[np.int64]
    gap_sums: NDArray[np.float64]
    longest_gap: float


def scope_of(result: SimulationResult) -> Scope:
    """Return the data that metrics of a run are computed from."""
    return _scope(result, _span(result, result.requests["status"] == FINISHED)[1])


def _scope(result: SimulationResult, span: float) -> Scope:
    """Return the scope of a run of ``span`` seconds."""
    r, window = result.requests, result.window
    if window is None:
        longest = float(r["max_token_gap"].max(initial=0.0))
        spans = [span] * len(result.worker)
        return Scope(
            result.worker, span, span, spans, True, True, result.gap_counts, result.gap_sums, longest
        )
    opening, closing, worker = window.opening, window.closing, window.closing.worker.copy()
    for name in worker.dtype.names or ():
        if name.startswith("total_") or name in (
            "iteration",
            "busy_time",
            "kv_time",
            "cached_time",
            "active_time",
        ):
            worker[name] -= opening.worker[name]
    seconds = closing.clock - opening.clock
    arrival, finish = result.table.arrival_time, r["finish_time"]
    counts, sums = closing.gap_counts - opening.gap_counts, closing.gap_sums - opening.gap_sums
    (used,) = np.nonzero(counts)
    return Scope(
        worker=worker,
        span=window.end - window.start,
        counting=float(seconds.mean()),
        by_worker=seconds.tolist(),
        counted=(arrival >= window.start) & (arrival < window.end),
        left=(finish >= window.start) & (finish < window.end),
        gap_counts=counts,
        gap_sums=sums,
        longest_gap=float(sums[used[-1]] / counts[used[-1]]) if len(used) else float("nan"),
    )


class Measured:
    """A run with what several metrics are computed from.

    Attributes:
        result: the run.
        records: its records, dtype REQUEST, (n,).
        table: its requests.
        scope: the run, or its window.
        capacities: usable KV capacity of each worker, tokens.
        capacity: their sum.
        end: end of the run, seconds.
        makespan: time from the first arrival to the end, seconds.
        finished: requests that have finished, bool (n,).
        done: finished requests with latencies that count, bool (n,).
        left: requests that finished in the span, bool (n,).
        arrived: requests that arrived before the end, bool (n,).
        begun: requests that were admitted, bool (n,).
        e2e: seconds from arrival to completion, (n,).
        ttft: seconds from arrival to the first token, (n,).
        waited: seconds from arrival to the first admission, of admitted requests that count, (k,).
    """

    def __init__(self, result: SimulationResult) -> None:
        self.result, self.records, self.table = result, result.requests, result.table
        self.capacities = result.system.usable_capacities
        self.capacity = self.capacities.sum()
        arrival, start = self.table.arrival_time, self.records["start_time"]
        self.finished = self.records["status"] == FINISHED
        self.end, self.makespan = _span(result, self.finished)
        self.scope = _scope(result, self.makespan)
        self.done, self.left = self.finished & self.scope.counted, self.finished & self.scope.left
        self.arrived, self.begun = arrival <= self.end, ~np.isnan(start)
        self.e2e = self.records["finish_time"] - arrival
        self.ttft = self.records["first_token_time"] - arrival
        self.waited = (start - arrival)[self.scope.counted & self.begun]

    @property
    def parts(self) -> tuple[bool, ...]:
        """Which of the :data:`PARTS` the run has."""
        return tuple(bool(has(self.result)) for has in PARTS.values())

    @property
    def fleet(self) -> FleetRecord:
        """What the fleet of a run that has one did."""
        assert self.result.fleet is not None
        return self.result.fleet

    def total(self, name: str) -> Any:
        """Return the sum of a total over the workers."""
        column = self.scope.worker[name]
        return column[0] if len(column) == 1 else np.add.reduce(column)

    @staticmethod
    def count(requests: NDArray[np.bool_]) -> float:
        """Return how many of the requests are marked."""
        return float(np.count_nonzero(requests))

    def share_of_memory(self, time: str) -> float:
        """Return a total in token-seconds as a time average, as a share of the capacity."""
        return ratio(self.total(time), self.capacity * self.scope.counting)

    def tpot(self) -> NDArray[np.float64]:
        """Return the seconds per output token of the requests in ``done`` that have gaps, (k,)."""
        r, gaps = self.records, gaps_of(self.result)
        chosen = self.done & (gaps > 0)
        return np.asarray((r["finish_time"] - r["first_token_time"])[chosen] / gaps[chosen])

    @cached_property
    def jobs(self) -> Jobs:
        """The sessions."""
        return self._jobs(self.table.session_id, self.result.to_come)

    @cached_property
    def whole_jobs(self) -> Jobs:
        """The jobs of several sessions."""
        return self._jobs(self.table.job_id, self.result.jobs_to_come)

    @cached_property
    def job_spans(self) -> NDArray[np.float64]:
        """Seconds of each of these jobs alone on empty workers; none where decodes make several tokens."""
        jobs = self.whole_jobs
        if not len(jobs.chosen) or self.result.system.speculation is not None:
            return np.full(len(jobs.chosen), math.nan)
        return spans_alone(self.table, self.result.system, jobs.chosen)

    def job_statistics(self, figure: Any) -> dict[str, float]:
        """Return the :data:`STATISTICS` of a function of makespans and seconds alone of jobs; NaN if none is known."""
        spans = self.job_spans
        return statistics(figure(self.whole_jobs.completion, spans)[~np.isnan(spans)])

    def job_fairness(self) -> float:
        """Return Jain's index of the slowdowns of jobs."""
        return jain_index(self.whole_jobs.completion / self.job_spans)

    def _jobs(self, numbers: NDArray[np.int64] | None, to_come: NDArray[np.int64]) -> Jobs:
        return jobs_of(self.table, numbers, self.records, to_come, self.scope.counted, self.end)

    def fairness(self) -> float:
        """Return Jain's index of the requests' token rates."""
        return jain_index(self.table.output_len[self.done] / np.maximum(self.e2e[self.done], 1e-12))

    @property
    def has_clients(self) -> bool:
        """Whether any request with a client counts."""
        return bool(self.done.any())

    def client_fairness(self) -> float:
        """Return Jain's index of the clients' token rates; NaN without clients."""
        if not self.has_clients:
            return math.nan
        output = client_means(self.table, self.table.output_len.astype(np.float64), self.done)
        return jain_index(output / np.maximum(client_means(self.table, self.e2e, self.done), 1e-12))

    def service_difference(self) -> float:
        """Return the largest difference of service between two waiting clients; NaN without clients."""
        return service_difference(self.table, self.records, self.end) if self.has_clients else math.nan

    def worst_client_ttft(self) -> float:
        """Return the mean time to first token of the client with the largest; NaN without clients."""
        return float(client_means(self.table, self.ttft, self.done).max()) if self.has_clients else math.nan

    def attained(self, kind: str) -> float:
        """Return the share of the requests with a target of a kind, such as ``"ttft"``, that met it."""
        if getattr(self.table, f"{kind}_slo") is None:
            return math.nan
        met, having = met_slo(self.result, kind)
        return ratio((met & self.scope.counted).sum(), (having & self.arrived & self.scope.counted).sum())

    def good(self, requests: Any) -> float:
        """Return how many of some requests, bool (n,) or True, met all of their targets; NaN if none has any."""
        return self.count(self._met & requests) if has_targets(self.table) else math.nan

    @cached_property
    def _met(self) -> NDArray[np.bool_]:
        return slo_met(self.result)

    def transfer_wait(self) -> float:
        """Return the mean seconds by which sharing links has prolonged the transfers of a finished request."""
        assert self.result.transfer_wait is not None
        return ratio(self.result.transfer_wait[self.done].sum(), self.done.sum())

    def local_prefills(self) -> float:
        """Return how many finished requests one worker prefilled and decoded."""
        assert self.result.whole is not None
        return float(self.result.whole[self.done].sum())

    def max_wait(self) -> float:
        """Return the longest time from arrival to the first admission, or to the end without one."""
        longest = float(self.waited.max(initial=0.0))
        if self.begun.all():
            return longest
        arrival, status = self.table.arrival_time, self.records["status"]
        never = np.flatnonzero(self.scope.counted & ~self.begun & ((status == FUTURE) | (status == WAITING)))
        here = arrival[never[arrival[never] <= self.end]]
        return float(max(longest, (self.end - here).max(initial=0.0)))

    def mean_of_turns(self, values: NDArray[np.float64], *, first: bool) -> float:
        """Return the mean of values (n,) over the first or the later turns of sessions."""
        chosen = values[self.done & (self.table.first_turns == first)]
        return ratio(chosen.sum(), len(chosen))


def _span(result: SimulationResult, finished: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the end of the run and the time since the first arrival, seconds."""
    arrival, r = result.table.arrival_time, result.requests
    start = float(arrival[0]) if len(arrival) else 0.0
    if result.completed and len(r) and finished.all():
        end = float(r["finish_time"].max())
    elif result.completed and len(r) and result.fleet is not None:  # the last one may have ended otherwise
        end = result.fleet.end
    else:
        end = float(result.worker["clock"].max())
    return end, max(end - start, 0.0)


def gaps_of(result: SimulationResult) -> NDArray[np.int64]:
    """Return the number of gaps between the output tokens of each request, shape (n,)."""
    return np.asarray(result.table.output_len - (result.system.first_token != "uncounted"), dtype=np.int64)


def tpot_of(result: SimulationResult) -> NDArray[np.float64]:
    """Return the time per output token of each request in seconds, shape (n,); NaN if it has none."""
    r, gaps = result.requests, gaps_of(result)
    return np.asarray((r["finish_time"] - r["first_token_time"]) / np.where(gaps > 0, gaps, np.nan))


def ratio(numerator: Any, denominator: Any) -> float:
    """Return a ratio; NaN if the denominator is not positive."""
    return float(numerator) / float(denominator) if denominator > 0 else math.nan


def statistics(values: NDArray[np.float64]) -> dict[str, float]:
    """Return the :data:`STATISTICS` of values; sorts them."""
    if not len(values):
        return dict.fromkeys(STATISTICS, math.nan)
    # The same as numpy's mean, std and percentile, which take several times as long on one episode.
    last, mean = len(values) - 1, np.add.reduce(values) / len(values)
    squares = values - mean
    squares *= squares
    figures = {"mean": float(mean), "std": math.sqrt(np.add.reduce(squares) / len(values))}
    values.sort()  # a copy of a million numbers takes as long as sorting them
    for name, share in _PERCENTILES.items():  # between the two nearest ranks
        below = int(share * last)
        low, high = values.item(below), values.item(min(below + 1, last))
        figures[name] = low + (high - low) * (share * last - below)
    figures["max"] = values.item(last)
    return figures


def gap_statistics(scope: Scope) -> dict[str, float]:
    """Return the :data:`STATISTICS` of token gaps from their histogram; a bin stands for the mean of its gaps."""
    (used,) = scope.gap_counts.nonzero()  # few bins of many
    counts, sums = scope.gap_counts[used], scope.gap_sums[used]
    if not len(counts):
        return dict.fromkeys(STATISTICS, math.nan)
    cumulative, means = counts.cumsum(), sums / counts
    total = cumulative.item(-1)
    mean = np.add.reduce(sums) / total
    figures = {
        "mean": float(mean),
        "std": math.sqrt(np.add.reduce(counts * (means - mean) ** 2) / total),
    }
    ranks = [q * (total - 1) for q in _PERCENTILES.values()]
    nearest = [end for rank in ranks for end in (math.floor(rank), math.ceil(rank))]
    places = iter(means[cumulative.searchsorted(nearest, side="right")].tolist())
    for name, rank, low, high in zip(_PERCENTILES, ranks, places, places, strict=True):
        share = rank - math.floor(rank)  # between the two nearest ranks
        figures[name] = (1 - share) * low + share * high
    figures["max"] = scope.longest_gap
    return figures
