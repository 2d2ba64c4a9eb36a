"""Every metric, defined once.

Symbols, per request i: a arrival, b first admission, f first token, c completion (seconds); s prompt and o
output length (tokens). Per run: t0 first arrival, t1 end (the last completion; with a horizon, the moment
the run stopped), span = t1 - t0, M the KV capacity (of a cluster, the sum over its workers).

Latencies are over finished requests, each as mean, std (of the population), p50, p90, p95, p99 and max:

- ``e2e_latency`` = c - a
- ``ttft`` = f - a (time to first token)
- ``queueing_delay`` = b - a (of all admitted requests)
- ``tpot`` = (c - f) / (gaps between output tokens): o - 1, or o where prefill shows an uncounted first token;
  requests with no gap are left out (time per output token)
- ``tbt`` = gaps between consecutive output tokens of a request, over all tokens (time between tokens). A
  token generated again after lost progress is not delivered twice: the user waits for the next new one.
  Mean and maximum are exact, percentiles and each gap in the std to a relative 0.1 %.

Rates, per second of span: ``request_throughput`` (finished), ``token_throughput`` (output tokens of finished
requests, counted at completion), ``generated_token_throughput`` (output tokens as generated, repeats
included), ``processed_token_throughput`` (prefill and output tokens as processed), ``goodput`` (requests
that met all of their SLOs: f - a ≤ TTFT SLO and every gap ≤ TBT SLO). ``slo_attainment`` is the share of
all requests that had arrived by t1 and did.

Cost and use: ``evictions``, ``recomputed_tokens`` (KV tokens thrown away by evictions), ``put_back`` (requests
that a policy picked without a look at memory and left in the queue at the same moment, because it does not suffice:
policies report it whose rule is to pick first and look afterwards), ``overflows`` (decisions that evicted or put back
anybody), ``kv_utilisation``
(time average of memory in use / M, both in whole blocks), ``kv_peak`` (the largest), ``batch_size`` (requests per
iteration), ``active_requests`` (time average), ``busy_fraction`` (share of span spent in batches),
``iterations``, ``makespan`` = span, ``duration`` = t1, ``input_tokens`` and ``output_tokens`` (sums of s and of o
over finished requests), ``jain_fairness`` = (Σx)² / (n Σx²) of the finished requests' token rates x = o / (c - a)
(1 = equal), ``max_wait`` (longest b - a, counting requests not yet admitted as waiting until t1), ``finished``,
``unfinished`` (arrived by t1 and not finished).

In a cluster all of these are over all workers, ``busy_fraction`` their mean, ``kv_peak`` the largest;
:func:`worker_metrics` has the figures of each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.runner import SimulationResult
from kvgym.simulator.tables import FINISHED, FUTURE, WAITING

__all__ = [
    "LATENCIES",
    "SCALARS",
    "STATISTICS",
    "WORKER_METRICS",
    "MetricInfo",
    "compute_metrics",
    "metric_info",
    "metric_names",
    "slo_met",
    "worker_metrics",
]

STATISTICS = ("mean", "std", "p50", "p90", "p95", "p99", "max")


@dataclass(frozen=True)
class MetricInfo:
    """What a metric is.

    Attributes:
        unit: unit, "1" for ratios.
        summary: one line; the module's docstring has the definition.
        lower_is_better: True, False, or None where neither is.
    """

    unit: str
    summary: str
    lower_is_better: bool | None


LATENCIES: dict[str, MetricInfo] = {
    "e2e_latency": MetricInfo("s", "completion - arrival", True),
    "ttft": MetricInfo("s", "first token - arrival", True),
    "tbt": MetricInfo("s", "gap between consecutive output tokens", True),
    "tpot": MetricInfo("s", "mean gap between output tokens of a request", True),
    "queueing_delay": MetricInfo("s", "first admission - arrival", True),
}
"""Metrics reported as ``<name>_<statistic>``, see :data:`STATISTICS`."""

SCALARS: dict[str, MetricInfo] = {
    "request_throughput": MetricInfo("1/s", "requests finished per second", False),
    "token_throughput": MetricInfo("tokens/s", "output tokens of finished requests per second", False),
    "generated_token_throughput": MetricInfo("tokens/s", "output tokens generated, repeats included", None),
    "processed_token_throughput": MetricInfo("tokens/s", "prefill and output tokens processed", None),
    "goodput": MetricInfo("1/s", "requests per second that met all of their SLOs", False),
    "slo_attainment": MetricInfo("1", "share of requests that met all of their SLOs", False),
    "evictions": MetricInfo("1", "requests sent back to the queue", True),
    "recomputed_tokens": MetricInfo("tokens", "KV tokens thrown away by evictions", True),
    "put_back": MetricInfo("1", "requests picked and put back at once, as memory does not suffice", True),
    "overflows": MetricInfo("1", "decisions that evicted or put back anybody", True),
    "kv_utilisation": MetricInfo("1", "time average of KV memory in use / capacity, in whole blocks", None),
    "kv_peak": MetricInfo("1", "most KV memory in use / capacity, in whole blocks", None),
    "batch_size": MetricInfo("1", "requests per iteration", None),
    "active_requests": MetricInfo("1", "time average of active requests", None),
    "busy_fraction": MetricInfo("1", "share of time spent in batches", None),
    "iterations": MetricInfo("1", "batches executed", None),
    "makespan": MetricInfo("s", "end of the run - first arrival", True),
    "duration": MetricInfo("s", "end of the run - time 0", None),
    "input_tokens": MetricInfo("tokens", "prompt tokens of finished requests", None),
    "output_tokens": MetricInfo("tokens", "output tokens of finished requests", None),
    "jain_fairness": MetricInfo("1", "Jain's index of the requests' token rates", False),
    "max_wait": MetricInfo("s", "longest time from arrival to first admission", True),
    "finished": MetricInfo("1", "requests finished", False),
    "unfinished": MetricInfo("1", "requests not finished when the run stopped", True),
}
"""Metrics that are one figure per run."""


def metric_info(name: str) -> MetricInfo:
    """Return the description of a metric such as ``"ttft_p99"`` or ``"goodput"``.

    Raises:
        KeyError: there is no such metric.
    """
    if name in SCALARS:
        return SCALARS[name]
    family, _, statistic = name.rpartition("_")
    if statistic in STATISTICS and family in LATENCIES:
        return LATENCIES[family]
    raise KeyError(name)


def metric_names() -> tuple[str, ...]:
    """Return the names of all metrics, in order."""
    return (*(f"{family}_{s}" for family in LATENCIES for s in STATISTICS), *SCALARS)


def compute_metrics(result: SimulationResult, names: Collection[str] | None = None) -> dict[str, float]:
    """Return metrics of a run by name, NaN where nothing was measured.

    Args:
        result: the run.
        names: metrics to compute, which saves the time of the others; None = all.

    Raises:
        KeyError: there is no metric of a name.
    """
    r, w, table = result.requests, result.worker, result.table
    done = r["status"] == FINISHED
    arrival = table.arrival_time
    end, span = _span(result)

    def waited() -> NDArray[np.float64]:
        return np.asarray((r["start_time"] - arrival)[~np.isnan(r["start_time"])])

    def arrived() -> int:
        return int((arrival <= end).sum())

    def tpot() -> NDArray[np.float64]:
        gaps = table.output_len - (result.system.first_token != "uncounted")
        timed = done & (gaps > 0)
        return np.asarray((r["finish_time"] - r["first_token_time"])[timed] / gaps[timed])

    def fairness() -> float:
        rates = table.output_len[done] / np.maximum((r["finish_time"] - arrival)[done], 1e-12)
        return _ratio(rates.sum() ** 2, len(rates) * (rates**2).sum())

    def max_wait() -> float:
        here = np.isin(r["status"], (FUTURE, WAITING)) & (arrival <= end) & np.isnan(r["start_time"])
        return float(max(waited().max(initial=0.0), (end - arrival[here]).max(initial=0.0)))

    capacity = result.system.usable_capacities
    families: dict[str, Callable[[], dict[str, float]]] = {
        "e2e_latency": lambda: _statistics("e2e_latency", (r["finish_time"] - arrival)[done]),
        "ttft": lambda: _statistics("ttft", (r["first_token_time"] - arrival)[done]),
        "tbt": lambda: _gap_statistics(result),
        "tpot": lambda: _statistics("tpot", tpot()),
        "queueing_delay": lambda: _statistics("queueing_delay", waited()),
    }
    scalars: dict[str, Callable[[], float]] = {
        "request_throughput": lambda: _ratio(done.sum(), span),
        "token_throughput": lambda: _ratio(table.output_len[done].sum(), span),
        "generated_token_throughput": lambda: _ratio(w["total_output_tokens"].sum(), span),
        "processed_token_throughput": lambda: _ratio(
            w["total_output_tokens"].sum() + w["total_prefill_tokens"].sum(), span
        ),
        "goodput": lambda: _ratio(slo_met(result).sum(), span),
        "slo_attainment": lambda: _ratio(slo_met(result).sum(), arrived()),
        "evictions": lambda: float(w["total_evicted"].sum()),
        "recomputed_tokens": lambda: float(r["num_recomputed_tokens"].sum()),
        "put_back": lambda: float(w["total_put_back"].sum()),
        "overflows": lambda: float(w["total_overflows"].sum()),
        "kv_utilisation": lambda: _ratio(w["kv_time"].sum(), capacity.sum() * span),
        "kv_peak": lambda: float((w["peak_kv_tokens"] / capacity).max()),
        "batch_size": lambda: _ratio(w["total_batch_requests"].sum(), w["iteration"].sum()),
        "active_requests": lambda: _ratio(w["active_time"].sum(), span),
        "busy_fraction": lambda: _ratio(w["busy_time"].sum(), span * len(w)),
        "iterations": lambda: float(w["iteration"].sum()),
        "makespan": lambda: span,
        "duration": lambda: end,
        "input_tokens": lambda: float(table.prompt_len[done].sum()),
        "output_tokens": lambda: float(table.output_len[done].sum()),
        "jain_fairness": fairness,
        "max_wait": max_wait,
        "finished": lambda: float(done.sum()),
        "unfinished": lambda: float(arrived() - done.sum()),
    }
    found: dict[str, float] = {}
    for name in metric_names() if names is None else names:
        if name not in found:
            metric_info(name)
            family = name.rpartition("_")[0]
            found |= {name: scalars[name]()} if name in scalars else families[family]()
    return found if names is None else {name: found[name] for name in names}


WORKER_METRICS: dict[str, MetricInfo] = {
    "routed": MetricInfo("1", "requests that came, by arrival or by transfer", None),
    "finished": MetricInfo("1", "requests that finished here", None),
    "e2e_latency_mean": MetricInfo("s", "of the requests that finished here", True),
    "ttft_mean": MetricInfo("s", "of the requests that finished here", True),
    "request_throughput": MetricInfo("1/s", "requests finished here per second", None),
    "generated_token_throughput": MetricInfo("tokens/s", "output tokens generated, repeats included", None),
    "evictions": MetricInfo("1", "requests sent back to the queue", True),
    "kv_utilisation": MetricInfo("1", "time average of KV memory in use / capacity, in whole blocks", None),
    "kv_peak": MetricInfo("1", "most KV memory in use / capacity, in whole blocks", None),
    "batch_size": MetricInfo("1", "requests per iteration", None),
    "busy_fraction": MetricInfo("1", "share of time spent in batches", None),
    "iterations": MetricInfo("1", "batches executed", None),
}
"""Metrics of a single worker, see :func:`worker_metrics`."""


def worker_metrics(result: SimulationResult) -> list[dict[str, Any]]:
    """Return for each worker its role, its KV capacity and the metrics of :data:`WORKER_METRICS`.

    Rates and shares are over the span of the whole run; NaN where nothing was measured.
    """
    r, span = result.requests, _span(result)[1]
    done = r["status"] == FINISHED
    capacities = result.system.usable_capacities
    rows: list[dict[str, Any]] = []
    for k, (worker, w) in enumerate(zip(result.system.all_workers, result.worker, strict=True)):
        mine = done & (r["worker"] == k)
        e2e, ttft = (
            (r[name] - result.table.arrival_time)[mine] for name in ("finish_time", "first_token_time")
        )
        capacity = capacities[k]
        figures = (
            w["total_routed"],
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


def _span(result: SimulationResult) -> tuple[float, float]:
    """Return the end of the run and the time since the first arrival, seconds."""
    arrival, r = result.table.arrival_time, result.requests
    start = float(arrival[0]) if len(arrival) else 0.0
    over = result.completed and len(r)
    end = float(r["finish_time"].max()) if over else float(result.worker["clock"].max())
    return end, max(end - start, 0.0)


def slo_met(result: SimulationResult) -> NDArray[np.bool_]:
    """Return for each request whether it finished within all of its SLOs, shape (n,)."""
    r, table = result.requests, result.table
    met = r["status"] == FINISHED
    if table.ttft_slo is not None:
        met &= r["first_token_time"] - table.arrival_time <= table.ttft_slo
    if table.tbt_slo is not None:
        met &= r["max_token_gap"] <= table.tbt_slo
    return np.asarray(met)


def _ratio(numerator: Any, denominator: Any) -> float:
    return float(numerator) / float(denominator) if denominator > 0 else float("nan")


def _statistics(name: str, values: NDArray[np.float64]) -> dict[str, float]:
    if not len(values):
        return {f"{name}_{s}": float("nan") for s in STATISTICS}
    ordered = np.sort(values)
    rank = np.array((0.50, 0.90, 0.95, 0.99)) * (len(ordered) - 1)
    below = rank.astype(np.int64)
    above = np.minimum(below + 1, len(ordered) - 1)
    # Between the two nearest ranks, as numpy.percentile, which takes ten times as long on one episode.
    quantiles = ordered[below] + (ordered[above] - ordered[below]) * (rank - below)
    figures = (values.mean(), values.std(), *quantiles, ordered[-1])
    return {f"{name}_{s}": float(x) for s, x in zip(STATISTICS, figures, strict=True)}


def _gap_statistics(result: SimulationResult) -> dict[str, float]:
    """Statistics of the token gaps from their histogram; a bin stands for the mean of its gaps."""
    used = result.gap_counts > 0
    counts, sums = result.gap_counts[used], result.gap_sums[used]
    if not len(counts):
        return {f"tbt_{s}": float("nan") for s in STATISTICS}
    cumulative, means = np.cumsum(counts), sums / counts
    mean = sums.sum() / counts.sum()
    figures = [mean, np.sqrt((counts * (means - mean) ** 2).sum() / counts.sum())]
    for q in (0.50, 0.90, 0.95, 0.99):  # between the two nearest ranks, as numpy.percentile does
        rank = q * (cumulative[-1] - 1)
        low, high = np.searchsorted(cumulative, (np.floor(rank), np.ceil(rank)), side="right")
        share = rank - np.floor(rank)
        figures.append((1 - share) * means[low] + share * means[high])
    figures.append(result.requests["max_token_gap"].max())
    return {f"tbt_{s}": float(x) for s, x in zip(STATISTICS, figures, strict=True)}
