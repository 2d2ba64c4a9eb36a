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

Cost and use: ``evictions``, ``recomputed_tokens`` (KV tokens lost by evictions and, in a fleet, by retries),
``put_back`` (requests that a policy selected before the memory check and that then did not fit; only policies that
select first report it), ``overflows`` (decisions that evicted or put back a request), ``moves`` (requests that a
cluster's router reassigned or migrated), ``kv_utilisation`` (time average of memory in use / M, both in whole blocks),
``kv_peak`` (the largest), ``batch_size`` (requests per iteration), ``active_requests`` (time average),
``busy_fraction`` (share of span spent in batches), ``iterations``, ``makespan`` = span, ``duration`` = t1,
``input_tokens`` and ``output_tokens`` (sums of s and of o over finished requests), ``jain_fairness`` = (Σx)² / (n Σx²)
of the finished requests' token rates x = o / (c - a) (1 = equal), ``max_wait`` (longest b - a; requests not yet
admitted wait until t1), ``finished``, ``unfinished`` (arrived by t1 and not ended by then).

With clients (otherwise NaN): ``client_fairness`` is the same index of x = Σo / Σ(c - a) over the finished requests of
each client, ``worst_client_ttft`` the largest mean of f - a of a client, ``service_difference`` see
:func:`kvgym.metrics.fairness.service_difference`.

With a prefix cache (otherwise NaN): ``hit_rate`` (tokens that requests found at their first start / tokens that they
had to process), ``hit_rate_resumed`` (the same at starts after an eviction, with kept output among the tokens),
``hit_tokens`` (tokens found at all starts), ``cached_share`` (time average of cached memory that is not in use / M),
``cache_evictions`` (units dropped). The cache is not emptied at the start of a window.

With speculation (otherwise NaN): ``tokens_per_step`` = 1 + right drafts / decodes of requests, the mean acceptance
length of engines; those beyond the end of an output count, as they do there. ``acceptance_rate`` = right drafts /
verified ones, ``drafted_tokens`` (verified ones), ``wasted_tokens`` (wrong ones). A step delivers its tokens together:
``tbt`` has the gaps between deliveries, ``tpot`` the time per token.

With host memory (otherwise NaN): ``host_hit_rate`` (tokens that requests loaded from the host at their first start /
tokens that they had to process; ``hit_rate`` does not contain them), ``store_hit_rate`` (from the store below it),
``loaded_tokens``, ``stored_tokens``, ``load_wait`` (time that batches took longer for loads / requests that loaded),
``stall_time`` (time that batches waited for writes from memory that they took), ``host_use`` (time average),
``link_use`` (share of time in which the link from the host was busy).
They cover whole runs.

With sessions (otherwise NaN): ``first_turn_latency`` and ``later_turn_latency`` (means of ``e2e_latency`` over first
and later turns), ``first_turn_ttft`` and ``later_turn_ttft`` (of ``ttft``), ``job_completion_time`` (last c - first a
of each session with all turns finished), ``service_time`` (the sum of c - a over its turns), ``sessions_finished`` and
``sessions_unfinished`` (begun by t1, and not all turns finished). In a window, sessions that begin in it count; the
last two remain those of the whole run.

With a ``job_id`` (otherwise NaN): ``job_makespan`` (last c - first a of each job with all requests finished),
``job_wait`` and ``job_slowdown`` (its difference and its ratio to the time of the job alone, the longest path through
its graph; unknown with speculation), ``jobs_finished``, and ``job_fairness``, Jain's index of the slowdowns. In
a window, jobs that begin in it count; ``jobs_finished`` is of the whole run.

In a fleet (otherwise NaN): ``gpu_hours`` (each worker is billed from the order to start until it is off, and to the end
of the run), ``fleet_cost`` (the same times the prices of the pools, plus ``Fleet.penalty`` GPU-seconds for each request
that had arrived by t1 and missed a target, all in hours), ``goodput_per_gpu_hour``, ``ready_workers`` (time average),
``time_to_scale`` (mean over the starts that were not cancelled), ``late_time`` (time in which a pool had fewer ready
workers than its target), ``wasted_warm_time`` (share of billed time in which a ready or draining worker ran no batch),
``cancelled_time``, ``unrouted_time`` (summed over requests: time until a worker was open to them), ``target_changes``.
``aborted``, ``failed`` and ``shed`` count the requests that users gave up, that were lost with their workers and that
the router refused (``shed`` also without a fleet, if there are any), ``retries`` further tries of requests, and
``lost_tokens`` the KV tokens of lost requests. They cover whole runs. Other averages over workers count all places,
those that are off included.

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

import functools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.metrics.catalogue import (
    LATENCIES,
    METRICS,
    SCALARS,
    STANDARD_METRICS,
    Computed,
    metric_info,
)
from kvgym.metrics.measured import PARTS, STATISTICS, Measured, ratio, scope_of
from kvgym.policies.runner import SimulationResult
from kvgym.simulator.tables import FINISHED
from kvgym.utils.arguments import explained

__all__ = ["WORKER_METRICS", "compute_metrics", "counted_requests", "worker_metrics"]


_FAMILY_NAMES = {family: tuple(f"{family}_{s}" for s in STATISTICS) for family in LATENCIES}


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
    run = Measured(result)
    measured = _standard(run, None if names is None else frozenset(names))
    if names is None:
        return measured | {name: METRICS[name].value(result) for name in METRICS}
    for name in names:
        if name not in measured:
            metric_info(name)  # an error if there is none of the name
            measured[name] = METRICS[name].value(result)
    return {name: measured[name] for name in names}


def _standard(run: Measured, names: frozenset[str] | None) -> dict[str, float]:
    """Return kvgym's own metrics of a run, NaN for those that were not asked for."""
    blank, families, scalars = _plan(run.parts, names)
    found = blank.copy()
    for own, family in families:
        found.update(zip(own, family(run).values(), strict=True))
    for name, scalar in scalars:
        found[name] = float(scalar(run))
    return found


@functools.lru_cache(maxsize=64)
def _plan(
    parts: tuple[bool, ...], names: frozenset[str] | None
) -> tuple[
    dict[str, float],
    list[tuple[tuple[str, ...], Callable[[Measured], dict[str, float]]]],
    list[tuple[str, Callable[[Measured], float]]],
]:
    """Return a NaN for each metric, and the families and the single metrics that a run with these parts has."""
    has = {"": True, **dict(zip(PARTS, parts, strict=True))}

    def wanted(own: Collection[str]) -> bool:
        return names is None or any(name in names for name in own)

    return (
        dict.fromkeys(STANDARD_METRICS, math.nan),
        [
            (own, LATENCIES[f].compute)
            for f, own in _FAMILY_NAMES.items()
            if has[LATENCIES[f].of] and wanted(own)
        ],
        [(name, m.compute) for name, m in SCALARS.items() if has[m.of] and wanted((name,))],
    )


@dataclass(frozen=True)
class _Worker:
    """A worker of a run.

    Attributes:
        totals: its totals, a WORKER record.
        span: seconds during which they were counted.
        capacity: its usable KV capacity, tokens.
        e2e: seconds from arrival to completion of the requests that finished here, (k,).
        ttft: seconds from their arrival to the first token, (k,).
    """

    totals: Any
    span: float
    capacity: int
    e2e: NDArray[np.float64]
    ttft: NDArray[np.float64]


WORKER_METRICS: dict[str, Computed[_Worker, float]] = {
    "routed": Computed("1", "requests that joined, by arrival, by transfer or by a move", None,
        lambda w: w.totals["total_routed"]),
    "moved_here": Computed("1", "those of them that the router moved here from another worker", None,
        lambda w: w.totals["total_received"]),
    "finished": Computed("1", "requests that finished here", None, lambda w: w.totals["total_finished"]),
    "e2e_latency_mean": Computed("s", "of the requests that finished here", True,
        lambda w: ratio(w.e2e.sum(), len(w.e2e))),
    "ttft_mean": Computed("s", "of the requests that finished here", True,
        lambda w: ratio(w.ttft.sum(), len(w.ttft))),
    "request_throughput": Computed("1/s", "requests finished here per second", None,
        lambda w: ratio(w.totals["total_finished"], w.span)),
    "generated_token_throughput": Computed("tokens/s", "output tokens generated, repeats included", None,
        lambda w: ratio(w.totals["total_output_tokens"], w.span)),
    "evictions": Computed("1", "requests evicted", True, lambda w: w.totals["total_evicted"]),
    "kv_utilisation": Computed("1", "time average of KV memory in use / capacity, in whole blocks", None,
        lambda w: ratio(w.totals["kv_time"], w.capacity * w.span)),
    "kv_peak": Computed("1", "most KV memory in use / capacity, in whole blocks", None,
        lambda w: w.totals["peak_kv_tokens"] / w.capacity),
    "batch_size": Computed("1", "requests per iteration", None,
        lambda w: ratio(w.totals["total_batch_requests"], w.totals["iteration"])),
    "busy_fraction": Computed("1", "share of time spent in batches", None,
        lambda w: ratio(w.totals["busy_time"], w.span)),
    "iterations": Computed("1", "batches executed", None, lambda w: w.totals["iteration"]),
}  # fmt: skip
"""Metrics of a single worker, see :func:`worker_metrics`."""


@explained
def worker_metrics(result: SimulationResult) -> list[dict[str, Any]]:
    """Return for each worker its role, its KV capacity and the metrics of :data:`WORKER_METRICS`.

    Rates and shares are over the span of the whole run, or its window; NaN if nothing was measured.
    """
    r, scope = result.requests, scope_of(result)
    done = (r["status"] == FINISHED) & scope.counted
    e2e, ttft = (r[name] - result.table.arrival_time for name in ("finish_time", "first_token_time"))
    capacities = result.system.usable_capacities
    rows: list[dict[str, Any]] = []
    for k, (worker, totals) in enumerate(zip(result.system.all_workers, scope.worker, strict=True)):
        mine = done & (r["worker"] == k)
        measured = _Worker(totals, scope.by_worker[k], capacities[k], e2e[mine], ttft[mine])
        rows.append(
            {"worker": k, "role": worker.role, "kv_capacity": int(capacities[k])}
            | {name: float(metric.compute(measured)) for name, metric in WORKER_METRICS.items()}
        )
    return rows


@explained
def counted_requests(result: SimulationResult) -> NDArray[np.bool_]:
    """Return for each request whether its latency counts, shape (n,): all, or those that arrived in the window.

    Requests that have not finished are included; their ``finish_time`` is NaN.
    """
    return np.broadcast_to(np.asarray(scope_of(result).counted, np.bool_), (len(result.table),)).copy()
