"""Every metric, defined once.

Symbols, per request i: a arrival, b first admission, f first token, c completion (seconds); s prompt and o
output length (tokens). Per run: t0 first arrival, t1 end (the last completion; with a horizon, the moment
the run stopped), span = t1 - t0, M the KV capacity (of a cluster, the sum over its workers).

Latencies are over finished requests, each as mean, std (of the population), p50, p90, p95, p99 and max:

- ``e2e_latency`` = c - a
- ``ttft`` = f - a (time to first token)
- ``queueing_delay`` = b - a (of all admitted requests)
- ``tpot`` = (c - f) / (gaps between output tokens): o - 1, or o where prefill shows an uncounted first token;
  requests with no gap are omitted (time per output token)
- ``tbt`` = gaps between consecutive output tokens of a request, over all tokens (time between tokens). A
  token generated again after lost progress is not delivered twice: the user waits for the next new one.
  Mean and maximum are exact, percentiles and each gap in the std to a relative 0.1 %.

Rates, per second of span: ``request_throughput`` (finished), ``token_throughput`` (output tokens of finished
requests, counted at completion), ``generated_token_throughput`` (output tokens as generated, repeats
included), ``processed_token_throughput`` (prefill and output tokens as processed), ``goodput`` (requests
that met all of their SLOs: f - a ≤ TTFT SLO, every gap ≤ TBT SLO, and c - a ≤ the deadline, E2E SLO).
``slo_attainment`` is the share of all requests that had arrived by t1 and did. A request without a target of a kind
meets it; if no request has a target, both are NaN. ``ttft_attainment``, ``tbt_attainment`` and ``e2e_attainment`` are
the shares of the requests with a target of that kind that had arrived by t1, finished and met it.

Cost and use: ``evictions``, ``recomputed_tokens`` (KV tokens lost by evictions), ``put_back`` (requests that a policy
selected before the memory check and that then did not fit; only policies that select first report it), ``overflows``
(decisions that evicted or put back a request), ``moves`` (requests that a cluster's router reassigned or migrated),
``kv_utilisation`` (time average of memory in use / M, both in whole blocks), ``kv_peak`` (the largest), ``batch_size``
(requests per iteration), ``active_requests`` (time average), ``busy_fraction`` (share of span spent in batches),
``iterations``, ``makespan`` = span, ``duration`` = t1, ``input_tokens`` and ``output_tokens`` (sums of s and of o
over finished requests), ``jain_fairness`` = (Σx)² / (n Σx²) of the finished requests' token rates x = o / (c - a)
(1 = equal), ``max_wait`` (longest b - a; requests not yet admitted wait until t1), ``finished``, ``unfinished``
(arrived by t1 and not finished).

With clients (otherwise NaN): ``client_fairness`` is the same index of x = Σo / Σ(c - a) over the finished requests of
each client, ``worst_client_ttft`` the largest mean of f - a of a client, ``service_difference`` see
:func:`kvgym.metrics.fairness.service_difference`.

With a prefix cache (otherwise NaN): ``hit_rate`` (tokens that requests found at their first start / tokens that they
had to process), ``hit_rate_resumed`` (the same at starts after an eviction, with kept output among the tokens),
``hit_tokens`` (tokens found at all starts), ``cached_share`` (time average of cached memory that is not in use / M),
``cache_evictions`` (units dropped). The cache is not emptied at the start of a window.

With sessions (otherwise NaN): ``first_turn_latency`` and ``later_turn_latency`` (means of ``e2e_latency`` over first
and later turns), ``first_turn_ttft`` and ``later_turn_ttft`` (of ``ttft``), ``job_completion_time`` (last c - first a
of each session with all turns finished), ``service_time`` (the sum of c - a over its turns), ``sessions_finished`` and
``sessions_unfinished`` (begun by t1, and not all turns finished). In a window, sessions that begin in it count; the
last two remain those of the whole run.

In a run with a window [w0, w1) (:class:`kvgym.simulator.recording.window.Window`) latencies, shares within SLOs,
``jain_fairness``, ``client_fairness``, ``worst_client_ttft`` and ``max_wait`` cover the requests with w0 ≤ a < w1,
however long they take; ``request_throughput``, ``token_throughput`` and ``goodput`` over those with w0 ≤ c < w1, per
second of w1 - w0. ``tbt`` and all other metrics
use the engine's counters from the first decision at or after w0 to the first at or after w1, per second between
these two. ``finished``, ``unfinished``, ``input_tokens``, ``output_tokens``, ``makespan``, ``duration``,
``kv_peak`` and ``service_difference`` remain those of the whole run.

In a cluster all of these are over all workers, ``busy_fraction`` their mean, ``kv_peak`` the largest;
:func:`worker_metrics` returns metrics for each worker.

Other distributions add metrics by :func:`register_metric`; docs/own-metric.md has an example.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.metrics.attainment import has_targets, met_slo, slo_met
from kvgym.metrics.catalogue import (
    LATENCIES,
    METRICS,
    SCALARS,
    STANDARD_METRICS,
    STATISTICS,
    Metric,
    MetricInfo,
    metric_info,
    metric_names,
    register_metric,
)
from kvgym.metrics.fairness import client_means, jain_index, service_difference
from kvgym.metrics.jobs import Jobs, jobs_of
from kvgym.policies.runner import SimulationResult
from kvgym.simulator.tables import FINISHED, FUTURE, WAITING
from kvgym.utils.arguments import explained

__all__ = [
    "LATENCIES",
    "METRICS",
    "SCALARS",
    "STANDARD_METRICS",
    "STATISTICS",
    "WORKER_METRICS",
    "Metric",
    "MetricInfo",
    "compute_metrics",
    "counted_requests",
    "metric_info",
    "metric_names",
    "register_metric",
    "slo_met",
    "worker_metrics",
]

_SHARES = (0.50, 0.90, 0.95, 0.99)


@explained
def compute_metrics(result: SimulationResult, names: Collection[str] | None = None) -> dict[str, float]:
    """Return metrics of a run by name, NaN if nothing was measured.

    Args:
        result: the run.
        names: metrics to compute; None = all.

    Raises:
        UnknownNameError: there is no metric of a name.
        KVGymError: a registered metric fails, see :meth:`Metric.value`.
    """
    r, table, scope = result.requests, result.table, scope_of(result)
    w, span, (end, makespan) = scope.worker, scope.span, _span(result)
    arrival, counted = table.arrival_time, scope.counted
    status, start, finish = r["status"], r["start_time"], r["finish_time"]
    finished = status == FINISHED
    done, left = finished & counted, finished & scope.left
    e2e, begun = finish - arrival, ~np.isnan(start)
    waited = (start - arrival)[counted & begun]

    def total(name: str) -> Any:
        return np.add.reduce(w[name])

    def arrived() -> NDArray[np.bool_]:
        return np.asarray(arrival <= end)

    def fairness() -> float:
        return jain_index(table.output_len[done] / np.maximum(e2e[done], 1e-12))

    def by_client(figure: Callable[[], float]) -> Callable[[], float]:
        several = table.client_id is not None and bool(done.any())
        return figure if several else lambda: float("nan")

    def client_fairness() -> float:
        output = client_means(table, table.output_len.astype(np.float64), done)
        return jain_index(output / np.maximum(client_means(table, e2e, done), 1e-12))

    def attained(kind: str) -> float:
        met, having = met_slo(result, kind)
        return _ratio((met & counted).sum(), (having & arrived() & counted).sum())

    def max_wait() -> float:
        never = np.flatnonzero(counted & ~begun & ((status == FUTURE) | (status == WAITING)))
        here = arrival[never[arrival[never] <= end]]
        return float(max(waited.max(initial=0.0), (end - here).max(initial=0.0)))

    def good(requests: NDArray[np.bool_]) -> float:
        return float((slo_met(result) & requests).sum()) if has_targets(table) else float("nan")

    def of_turns(values: NDArray[np.float64], first: bool) -> float:
        if table.session_id is None:
            return float("nan")
        chosen = values[done & (table.first_turns == first)]
        return _ratio(chosen.sum(), len(chosen))

    def jobs() -> Jobs:
        return jobs_of(table, r, result.to_come, scope.counted, end)

    def if_cached(figure: Any) -> float:
        return float(figure) if result.system.prefix_unit else float("nan")

    capacity = result.system.usable_capacities
    families: dict[str, Callable[[], dict[str, float]]] = {
        "e2e_latency": lambda: _statistics("e2e_latency", e2e[done]),
        "ttft": lambda: _statistics("ttft", (r["first_token_time"] - arrival)[done]),
        "tbt": lambda: _gap_statistics(scope),
        "tpot": lambda: _statistics("tpot", tpot_of(result)[done & (gaps_of(result) > 0)]),
        "queueing_delay": lambda: _statistics("queueing_delay", waited),
        "job_completion_time": lambda: _statistics("job_completion_time", jobs().completion),
        "service_time": lambda: _statistics("service_time", jobs().service),
    }
    scalars: dict[str, Callable[[], float]] = {
        "request_throughput": lambda: _ratio(left.sum(), span),
        "token_throughput": lambda: _ratio(table.output_len[left].sum(), span),
        "generated_token_throughput": lambda: _ratio(total("total_output_tokens"), scope.counting),
        "processed_token_throughput": lambda: _ratio(
            total("total_output_tokens") + total("total_prefill_tokens"), scope.counting
        ),
        "goodput": lambda: _ratio(good(left), span),
        "slo_attainment": lambda: _ratio(good(counted), (arrived() & counted).sum()),
        "ttft_attainment": lambda: attained("ttft"),
        "tbt_attainment": lambda: attained("tbt"),
        "e2e_attainment": lambda: attained("e2e"),
        "evictions": lambda: float(total("total_evicted")),
        "recomputed_tokens": lambda: float(total("total_recomputed_tokens")),
        "put_back": lambda: float(total("total_put_back")),
        "overflows": lambda: float(total("total_overflows")),
        "moves": lambda: float(total("total_received")),
        "kv_utilisation": lambda: _ratio(total("kv_time"), capacity.sum() * scope.counting),
        "kv_peak": lambda: float((result.worker["peak_kv_tokens"] / capacity).max()),
        "hit_rate": lambda: _ratio(total("total_hit_tokens"), total("total_known_tokens")),
        "hit_rate_resumed": lambda: _ratio(total("total_hit_resumed"), total("total_known_resumed")),
        "hit_tokens": lambda: if_cached(total("total_hit_tokens") + total("total_hit_resumed")),
        "cached_share": lambda: if_cached(_ratio(total("cached_time"), capacity.sum() * scope.counting)),
        "cache_evictions": lambda: if_cached(total("total_dropped_units")),
        "batch_size": lambda: _ratio(total("total_batch_requests"), total("iteration")),
        "active_requests": lambda: _ratio(total("active_time"), scope.counting),
        "busy_fraction": lambda: _ratio(total("busy_time"), scope.counting * len(w)),
        "iterations": lambda: float(total("iteration")),
        "makespan": lambda: makespan,
        "duration": lambda: end,
        "input_tokens": lambda: float(table.prompt_len[finished].sum()),
        "output_tokens": lambda: float(table.output_len[finished].sum()),
        "jain_fairness": fairness,
        "client_fairness": by_client(client_fairness),
        "service_difference": by_client(lambda: service_difference(table, r, end)),
        "worst_client_ttft": by_client(
            lambda: float(client_means(table, r["first_token_time"] - arrival, done).max())
        ),
        "max_wait": max_wait,
        "first_turn_latency": lambda: of_turns(e2e, True),
        "later_turn_latency": lambda: of_turns(e2e, False),
        "first_turn_ttft": lambda: of_turns(r["first_token_time"] - arrival, True),
        "later_turn_ttft": lambda: of_turns(r["first_token_time"] - arrival, False),
        "sessions_finished": lambda: jobs().finished,
        "sessions_unfinished": lambda: jobs().unfinished,
        "finished": lambda: float(finished.sum()),
        "unfinished": lambda: float(arrived().sum() - finished.sum()),
    }
    found: dict[str, float] = {}
    if names is None:
        for figures in families.values():
            found.update(figures())
        found.update((name, figure()) for name, figure in scalars.items())
        found.update((name, METRICS[name].value(result)) for name in METRICS)
        return found
    for name in names:
        if name not in found:
            if name in scalars:
                found[name] = scalars[name]()
            elif name in STANDARD_METRICS:
                found |= families[name.rpartition("_")[0]]()
            else:
                metric_info(name)  # an error if there is none of the name
                found[name] = METRICS[name].value(result)
    return {name: found[name] for name in names}


WORKER_METRICS: dict[str, MetricInfo] = {
    "routed": MetricInfo("1", "requests that joined, by arrival, by transfer or by a move", None),
    "moved_here": MetricInfo("1", "those of them that the router moved here from another worker", None),
    "finished": MetricInfo("1", "requests that finished here", None),
    "e2e_latency_mean": MetricInfo("s", "of the requests that finished here", True),
    "ttft_mean": MetricInfo("s", "of the requests that finished here", True),
    "request_throughput": MetricInfo("1/s", "requests finished here per second", None),
    "generated_token_throughput": MetricInfo("tokens/s", "output tokens generated, repeats included", None),
    "evictions": MetricInfo("1", "requests evicted", True),
    "kv_utilisation": MetricInfo("1", "time average of KV memory in use / capacity, in whole blocks", None),
    "kv_peak": MetricInfo("1", "most KV memory in use / capacity, in whole blocks", None),
    "batch_size": MetricInfo("1", "requests per iteration", None),
    "busy_fraction": MetricInfo("1", "share of time spent in batches", None),
    "iterations": MetricInfo("1", "batches executed", None),
}
"""Metrics of a single worker, see :func:`worker_metrics`."""


@explained
def worker_metrics(result: SimulationResult) -> list[dict[str, Any]]:
    """Return for each worker its role, its KV capacity and the metrics of :data:`WORKER_METRICS`.

    Rates and shares are over the span of the whole run, or its window; NaN if nothing was measured.
    """
    r, scope = result.requests, scope_of(result)
    done = (r["status"] == FINISHED) & scope.counted
    capacities = result.system.usable_capacities
    rows: list[dict[str, Any]] = []
    for k, (worker, w) in enumerate(zip(result.system.all_workers, scope.worker, strict=True)):
        span = scope.by_worker[k]
        mine = done & (r["worker"] == k)
        e2e, ttft = (
            (r[name] - result.table.arrival_time)[mine] for name in ("finish_time", "first_token_time")
        )
        capacity = capacities[k]
        figures = (
            w["total_routed"],
            w["total_received"],
            w["total_finished"],
            _ratio(e2e.sum(), len(e2e)),
            _ratio(ttft.sum(), len(ttft)),
            _ratio(w["total_finished"], span),
            _ratio(w["total_output_tokens"], span),
            w["total_evicted"],
            _ratio(w["kv_time"], capacity * span),
            w["peak_kv_tokens"] / capacity,
            _ratio(w["total_batch_requests"], w["iteration"]),
            _ratio(w["busy_time"], span),
            w["iteration"],
        )
        rows.append(
            {"worker": k, "role": worker.role, "kv_capacity": int(capacity)}
            | {name: float(x) for name, x in zip(WORKER_METRICS, figures, strict=True)}
        )
    return rows


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
    r, window = result.requests, result.window
    if window is None:
        span, longest = _span(result)[1], float(r["max_token_gap"].max(initial=0.0))
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


@explained
def counted_requests(result: SimulationResult) -> NDArray[np.bool_]:
    """Return for each request whether its latency counts, shape (n,): all, or those that arrived in the window.

    Requests that have not finished are included; their ``finish_time`` is NaN.
    """
    return np.broadcast_to(np.asarray(scope_of(result).counted, np.bool_), (len(result.table),)).copy()


def _span(result: SimulationResult) -> tuple[float, float]:
    """Return the end of the run and the time since the first arrival, seconds."""
    arrival, r = result.table.arrival_time, result.requests
    start = float(arrival[0]) if len(arrival) else 0.0
    over = result.completed and len(r)
    end = float(r["finish_time"].max()) if over else float(result.worker["clock"].max())
    return end, max(end - start, 0.0)


def gaps_of(result: SimulationResult) -> NDArray[np.int64]:
    """Return the number of gaps between the output tokens of each request, shape (n,)."""
    return np.asarray(result.table.output_len - (result.system.first_token != "uncounted"), dtype=np.int64)


def tpot_of(result: SimulationResult) -> NDArray[np.float64]:
    """Return the time per output token of each request in seconds, shape (n,); NaN if it has none."""
    r, gaps = result.requests, gaps_of(result)
    return np.asarray((r["finish_time"] - r["first_token_time"]) / np.where(gaps > 0, gaps, np.nan))


def _ratio(numerator: Any, denominator: Any) -> float:
    return float(numerator) / float(denominator) if denominator > 0 else float("nan")


def _statistics(name: str, values: NDArray[np.float64]) -> dict[str, float]:
    """Return the statistics of values, by name; sorts them."""
    if not len(values):
        return {f"{name}_{s}": float("nan") for s in STATISTICS}
    # The same as numpy's mean, std and percentile, which take several times as long on one episode.
    last, mean = len(values) - 1, np.add.reduce(values) / len(values)
    squares = values - mean
    squares *= squares
    figures = [float(mean), float(np.sqrt(np.add.reduce(squares) / len(values)))]
    values.sort()  # a copy of a million numbers takes as long as sorting them
    for share in _SHARES:  # between the two nearest ranks
        below = int(share * last)
        low, high = float(values[below]), float(values[min(below + 1, last)])
        figures.append(low + (high - low) * (share * last - below))
    figures.append(float(values[last]))
    return {f"{name}_{s}": x for s, x in zip(STATISTICS, figures, strict=True)}


def _gap_statistics(scope: Scope) -> dict[str, float]:
    """Statistics of the token gaps from their histogram; a bin stands for the mean of its gaps."""
    used = np.flatnonzero(scope.gap_counts)  # few bins of many
    counts, sums = scope.gap_counts[used], scope.gap_sums[used]
    if not len(counts):
        return {f"tbt_{s}": float("nan") for s in STATISTICS}
    cumulative, means = np.cumsum(counts), sums / counts
    total = int(cumulative[-1])
    mean = np.add.reduce(sums) / total
    figures = [float(mean), float(np.sqrt(np.add.reduce(counts * (means - mean) ** 2) / total))]
    ranks = [q * (total - 1) for q in _SHARES]
    nearest = [end for rank in ranks for end in (math.floor(rank), math.ceil(rank))]
    places = iter(means[np.searchsorted(cumulative, nearest, side="right")].tolist())
    for rank, low, high in zip(ranks, places, places, strict=True):  # between the two nearest ranks
        share = rank - math.floor(rank)
        figures.append((1 - share) * low + share * high)
    figures.append(scope.longest_gap)
    return {f"tbt_{s}": x for s, x in zip(STATISTICS, figures, strict=True)}
