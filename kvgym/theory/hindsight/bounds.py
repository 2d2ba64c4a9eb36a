"""Where the optimum lies for given requests: below, what no scheduler beats; above, the best run that is known.

Three arguments, of which :func:`bound` takes those that hold for the system:

- batches of any kind of cost, clusters and every rule of the engine: :mod:`~kvgym.theory.hindsight.calibrated.bounds`;
- slotted time (one worker, a second for every batch, memory in tokens, the prompt's batch emits the first token, whole
  arrival times): :func:`~kvgym.theory.hindsight.slotted.bound_slotted`, which is tighter there;
- a run: nobody can say that a better one is impossible, so what the best of those given and the clairvoyant reference
  reach is the other end.

In slotted time the first two must speak of the same schedules. Where an eviction loses all progress, completions are
never sooner for evictions (leave the lost attempts out) nor for pauses: a request that holds s + k tokens while it
pauses from t1 to t2 might have begun so much later that it gets its k-th token just at t2, and it would hold no more at
any moment and end as before; the same goes for chunks of its prompt. So schedules without interruptions are all that
matter, and theirs is the bound. First tokens do come sooner with interruptions, and with evictions that keep progress
or recompute it completions may; there only memory × time counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kvgym.batch_time import UnitBatchTime
from kvgym.errors import ConfigError, shown
from kvgym.metrics import compute_metrics, metric_info
from kvgym.runner import SimulationResult, simulate
from kvgym.simulator.system import System
from kvgym.theory.hindsight.calibrated.bounds import Bound, bound_calibrated
from kvgym.theory.hindsight.interval import TOLERANCE, Interval
from kvgym.utils.arguments import explained
from kvgym.workloads.table import RequestTable

REFERENCE = "clairvoyant"
"""The policy whose run is the upper end unless a better one is given: it knows all lengths."""


@explained
def is_slotted(table: RequestTable, system: System) -> bool:
    """Return whether requests and system are those of slotted time."""
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
    """Return where the best value of a metric lies that any scheduler reaches on these requests.

    Args:
        table: the requests.
        system: worker or cluster that serves them.
        metric: one of :data:`~kvgym.theory.hindsight.calibrated.bounds.METRICS`.
        runs: runs of these requests on this system; those that did not complete do not count.
        reference: a policy that is run besides; None = nobody.
        seconds: in slotted time, how long an integer program may be solved.

    Raises:
        ConfigError: there is no bound on the metric, the system has a horizon, or a run is of other requests or of
            another system, or beats the bound, which only a batch-time model that breaks its contract allows.
        WorkloadError: a request can never be served.
        LivelockError: the reference finds no way through.
    """
    lower_is_better = bool(metric_info(metric).lower_is_better)
    found, slotted = _bounds(table, system, metric, seconds, 1.0)
    end, how = found.value, found.method
    reached, by, schedule = (np.inf if lower_is_better else -np.inf), "nobody", None
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
            f"{by} reaches {metric} = {shown(reached)}, which no scheduler does ({how}: {shown(end)}); bounds "
            "hold for batch times that do not fall when a batch gets more: check the batch-time model"
        )
    reached = max(reached, end) if lower_is_better else min(reached, end)
    low, high = (end, reached) if lower_is_better else (reached, end)
    return Interval(metric, float(low), float(high), schedule, method)


@explained
def unbeatable(
    table: RequestTable, system: System, metric: str = "e2e_latency_mean", *, effort: float = 1.0
) -> Bound:
    """Return the best bound there is on what any scheduler reaches, without a run beside it.

    Args:
        table: the requests.
        system: worker or cluster that serves them.
        metric: one of :data:`~kvgym.theory.hindsight.calibrated.bounds.METRICS`.
        effort: in slotted time, multiplies the work of the search for prices, some seconds at most.

    Raises:
        ConfigError: there is no bound on the metric, or the system has a horizon.
        WorkloadError: a request can never be served.
    """
    return _bounds(table, system, metric, 0.0, effort)[0]


def _bounds(
    table: RequestTable, system: System, metric: str, seconds: float, effort: float
) -> tuple[Bound, Interval | None]:
    """Return the best bound and, in slotted time, what is known there."""
    best = bound_calibrated(table, system, metric)
    if not is_slotted(table, system):
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
            "block_size",
        )
        return [workers, *(getattr(system, name) for name in names)]

    return one is other or rules(one) == rules(other)


def _same_requests(one: RequestTable, other: RequestTable) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("arrival_time", "prompt_len", "output_len")
    )
