"""Interval of the optimum for given requests: a bound that no scheduler beats, and the best known run.

Three arguments; :func:`bound` uses those that hold for the system:

- batches of any kind of cost, clusters and every rule of the engine: :mod:`~kvgym.theory.hindsight.calibrated.bounds`;
- slotted time (one worker, a second for every batch, memory in tokens, the prompt's batch emits the first token, whole
  arrival times): :func:`~kvgym.theory.hindsight.slotted.bound_slotted`, which is tighter there;
- a run: better ones may exist, so the best value of the given runs and of the clairvoyant reference is the other end.

In slotted time the first two must cover the same schedules. Where an eviction loses all progress, neither
evictions nor pauses make completions sooner. Lost attempts can be left out. A request that holds s + k tokens while it
pauses from t1 to t2 could have begun later, so that it gets its k-th token just at t2: it would hold no more at any
moment and end as before. The same holds for chunks of its prompt. So only schedules without interruptions matter.
First tokens do come sooner with interruptions; completions may if evictions keep progress or recompute it. There only
memory × time counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kvgym.batch_time import UnitBatchTime
from kvgym.errors import ConfigError, shown
from kvgym.metrics.attainment import WITHIN_SLO
from kvgym.metrics.catalogue import metric_info
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.system import System
from kvgym.theory.hindsight.calibrated.bounds import Bound, bound_calibrated
from kvgym.theory.hindsight.interval import TOLERANCE, Interval
from kvgym.utils.arguments import explained
from kvgym.workloads.table import RequestTable

REFERENCE = "clairvoyant"
"""The policy run for the upper end, unless a better run is given: it knows all lengths."""


@explained
def is_slotted(table: RequestTable, system: System) -> bool:
    """Return whether requests and system are in slotted time."""
    return bool(
        not system.workers
        and isinstance(system.batch_time, UnitBatchTime)
        and system.block_size == 1
        and system.first_token == "counted"
        and not (system.swap_time and system.progress_on_evict == "kept")
        and np.all(table.arrival_time == np.floor(table.arrival_time))
    )


@explained
def bound(
    table: RequestTable,
    system: System,
    metric: str = "e2e_latency_mean",
    *,
    runs: Iterable[SimulationResult] = (),
    reference: str | None = REFERENCE,
    seconds: float = 0.0,
) -> Interval:
    """Return an interval around the best value of a metric that any scheduler reaches on these requests.

    Args:
        table: the requests.
        system: worker or cluster that serves them.
        metric: one of :data:`~kvgym.theory.hindsight.calibrated.bounds.METRICS`.
        runs: runs of these requests on this system; runs that did not complete are ignored.
        reference: a policy to run as well; None = none.
        seconds: in slotted time, the time limit of the integer program.

    Raises:
        ConfigError: there is no bound on the metric, the system has a horizon, a run is of other requests or of
            another system, or a run beats the bound: then the batch-time model breaks its contract.
        WorkloadError: a request can never be served.
        LivelockError: the reference makes no progress.
    """
    lower_is_better = bool(metric_info(metric).lower_is_better)
    found, slotted = _bounds(table, system, metric, seconds, 1.0)
    end, how = found.value, found.method
    reached, by, schedule = (np.inf if lower_is_better else -np.inf), "no run", None
    if slotted is not None:
        reached = slotted.upper if lower_is_better else slotted.lower
        schedule, by = slotted.schedule, "a schedule found by search"
    candidates = list(runs)
    for run in candidates:
        if run.table is not table and not _same_requests(run.table, table):
            raise ConfigError(f"a run of {shown(run.policy)} is of other requests than those to bound")
        if not _same_system(run.system, system):
            raise ConfigError(f"a run of {shown(run.policy)} is of another system than the one to bound")
    if reference is not None:
        candidates.append(simulate(system, table, reference))
    for run in candidates:
        value = compute_metrics(run, [metric])[metric]
        if run.completed and (value < reached) == lower_is_better and value != reached:
            reached, by = value, repr(run.policy)
            schedule = None if run.worker["total_evicted"].any() else run.requests["start_time"].copy()
    method = f"bound: {how}; reached: {by}"
    # A run that meets the bound may seem to beat it by the rounding of sums, and by no more.
    allowed = end * (1 - TOLERANCE if lower_is_better else 1 + TOLERANCE)
    if (reached < allowed) if lower_is_better else (reached > allowed):
        raise ConfigError(
            f"{by} reaches {metric} = {shown(reached)}, beyond the bound on every scheduler ({how}: {shown(end)}); "
            "bounds need batch times that do not fall as a batch grows: check the batch-time model"
        )
    reached = max(reached, end) if lower_is_better else min(reached, end)
    low, high = (end, reached) if lower_is_better else (reached, end)
    return Interval(metric, float(low), float(high), schedule, method)


@explained
def unbeatable(
    table: RequestTable, system: System, metric: str = "e2e_latency_mean", *, effort: float = 1.0
) -> Bound:
    """Return the best bound on what any scheduler reaches; runs nothing.

    Args:
        table: the requests.
        system: worker or cluster that serves them.
        metric: one of :data:`~kvgym.theory.hindsight.calibrated.bounds.METRICS`.
        effort: in slotted time, a factor on the search for prices, which takes a few seconds at 1.

    Raises:
        ConfigError: there is no bound on the metric, or the system has a horizon.
        WorkloadError: a request can never be served.
    """
    return _bounds(table, system, metric, 0.0, effort)[0]


def _bounds(
    table: RequestTable, system: System, metric: str, seconds: float, effort: float
) -> tuple[Bound, Interval | None]:
    """Return the best bound and, in slotted time, the interval found there."""
    best = bound_calibrated(table, system, metric)
    if metric in WITHIN_SLO or not is_slotted(table, system):
        return best, None
    from kvgym.theory.hindsight.slotted import bound_slotted  # it loads a solver

    uninterrupted = system.progress_on_evict == "lost" and metric != "ttft_mean"
    slotted = bound_slotted(
        table, system.kv_capacity, metric, seconds=seconds, interruptions=not uninterrupted, effort=effort
    )
    lower_is_better = bool(metric_info(metric).lower_is_better)
    end = slotted.lower if lower_is_better else slotted.upper
    if (end > best.value) == lower_is_better and end != best.value:
        how = slotted.method.partition(";")[0].removeprefix("below: ")
        best = Bound(metric, end, f"slotted time, {how}", best.alone)
    return best, slotted


def _same_system(one: System, other: System) -> bool:
    def rules(system: System) -> list[Any]:
        workers = [
            (w.kv_capacity, w.role, w.batch_time.kernel, w.batch_time.params().tobytes())
            for w in system.all_workers
        ]
        names = (
            "first_token",
            "progress_on_evict",
            "swap_time",
            "transfer_latency",
            "transfer_time",
            "transfer_overlap",
            "local_prefill",
            "block_size",
        )
        return [workers, *(getattr(system, name) for name in names)]

    return one is other or rules(one) == rules(other)


def _same_requests(one: RequestTable, other: RequestTable) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("arrival_time", "prompt_len", "output_len")
    )
