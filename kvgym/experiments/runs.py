"""Single runs of a comparison: what is run, what it gives, and how it is done anywhere."""

from __future__ import annotations

import copy
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvgym.errors import KVGymError
from kvgym.execution import Executor
from kvgym.experiments.scenario import Scenario
from kvgym.metrics import compute_metrics, metric_names, worker_metrics
from kvgym.policy import Policy, make_policy
from kvgym.routing import Router
from kvgym.runner import SimulationResult, check_needs, simulate
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import Workload

KEPT_SCENARIOS = 4
"""Scenarios of which a process keeps system and workload, the latest ones."""

KEPT_TABLES = 8
"""Request tables that a process keeps, the latest ones: all policies of a seed share one."""


@dataclass(frozen=True)
class Run:
    """What is run: equal runs give equal bits, wherever.

    Attributes:
        scenario: the scenario.
        policy: a policy or its spec.
        router: a router or its spec; None = the scenario's.
        seed: the seed.
        label: what results call it.
        log: keep the result, with per-iteration rows.
        measure: further figures, taken from the result where the run is done (with per-iteration rows if ``log``),
            so that the result need not travel; a function of a module, as it is sent to other processes.
    """

    scenario: Scenario
    policy: str | Policy
    router: str | Router | None
    seed: int
    label: str
    log: bool = False
    measure: Callable[[SimulationResult], dict[str, float]] | None = None


@dataclass(frozen=True)
class RunRecord:
    """One policy on one seed, with one router if several are compared.

    Attributes:
        policy: label of the policy, e.g. ``alpha_greedy:alpha=0.3``; see
            :func:`~kvgym.experiments.comparison.compare` for several routers.
        seed: the seed.
        metrics: see :mod:`kvgym.metrics`; all NaN where the run failed.
        error: why the run has no result, or "".
        completed_once: every request has exactly one completion record.
        wall_time: seconds the run took, on whatever machine.
        workers: figures of each worker, see :func:`kvgym.metrics.worker_metrics`; empty for a single worker.
    """

    policy: str
    seed: int
    metrics: dict[str, float]
    error: str
    completed_once: bool
    wall_time: float
    workers: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Played:
    """What a run gave.

    Attributes:
        record: the figures.
        num_requests: requests of the workload; 0 where it cannot be sampled.
        notes: what happened to the workload, one sentence each.
        result: the run itself if its ``log`` was wanted, with nothing to measure, and it did not fail; else None.
        measured: what the run's ``measure`` returned; empty where there is none, or the run failed.
    """

    record: RunRecord
    num_requests: int
    notes: tuple[str, ...] = ()
    result: SimulationResult | None = None
    measured: dict[str, float] = field(default_factory=dict)


class Player:
    """Does runs, some at a time, and keeps what they share; work for an executor.

    What a run raises of :class:`~kvgym.errors.KVGymError` is its record's error. A scenario that cannot be made, as
    when a file of it has gone, is no result of a run: that comes out.

    Args:
        tables: request tables that a process keeps, where those are more than :data:`KEPT_TABLES`.
    """

    def __init__(self, tables: int = 0) -> None:
        self._kept_tables = max(KEPT_TABLES, tables)
        self._scenarios: OrderedDict[str, tuple[System, Workload]] = OrderedDict()
        self._tables: OrderedDict[tuple[str, int], RequestTable] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        """Go to other processes without what is kept."""
        return {**vars(self), "_scenarios": OrderedDict(), "_tables": OrderedDict()}

    def __call__(self, runs: Sequence[Run], /) -> list[Played]:
        """Return what each run gave."""
        return [self._play(run) for run in runs]

    def requests(self, scenario: Scenario, seed: int) -> tuple[System, RequestTable]:
        """Return the system of a scenario, and the requests of a seed.

        Raises:
            KVGymError: the scenario is contradictory, or the workload cannot be sampled.
        """
        scenario = scenario.of_seed(seed)
        name, system, workload = self._made(scenario)
        return system, self._sampled(name, scenario, workload, seed, system)

    def _made(self, scenario: Scenario) -> tuple[str, System, Workload]:
        name = scenario.model_dump_json(exclude={"name", "summary", "policies", "seeds"})
        found = self._scenarios.pop(name, None)
        if found is None:
            found = scenario.make_system(), scenario.make_workload()
        _keep(self._scenarios, name, found, KEPT_SCENARIOS)
        return name, *found

    def _sampled(
        self, name: str, scenario: Scenario, workload: Workload, seed: int, system: System
    ) -> RequestTable:
        table = self._tables.pop((name, seed), None)
        if table is None:
            table = scenario.sample(workload, seed, system.usable_capacity)
        _keep(self._tables, (name, seed), table, self._kept_tables)
        return table

    def _play(self, run: Run) -> Played:
        started, count = time.perf_counter(), 0
        notes: tuple[str, ...] = ()
        scenario = run.scenario.of_seed(run.seed)
        name, system, workload = self._made(scenario)
        try:
            table = self._sampled(name, scenario, workload, run.seed, system)
            count, notes = len(table), table.notes
            # A copy, as a policy that has run may hold what cannot be sent to another process.
            policy = make_policy(run.policy) if isinstance(run.policy, str) else copy.copy(run.policy)
            check_needs(policy, table)
            router = run.scenario.make_router() if run.router is None else run.router
            started = time.perf_counter()
            result = simulate(
                system, table, policy, router=router, seed=run.seed, log=run.log, window=scenario.window
            )
        except KVGymError as error:
            empty = dict.fromkeys(metric_names(), float("nan"))
            elapsed = time.perf_counter() - started
            return Played(RunRecord(run.label, run.seed, empty, str(error), False, elapsed), count, notes)
        elapsed = time.perf_counter() - started
        once = result.completed and int(result.worker["total_finished"].sum()) == len(table)
        workers = tuple(worker_metrics(result)) if len(result.worker) > 1 else ()
        record = RunRecord(run.label, run.seed, compute_metrics(result), "", once, elapsed, workers)
        if run.measure is not None:
            return Played(record, count, notes, measured=run.measure(result))
        return Played(record, count, notes, result if run.log else None)


def _keep(kept: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Note what was used last, and forget what has not been used for longest."""
    kept[key] = value
    while len(kept) > most:
        kept.popitem(last=False)


MOST_AT_A_TIME = 16
"""Runs of one task of an executor at most."""

TASK_SECONDS = 0.5
"""Seconds that the runs of a task should take together: what is lost of it when the process ends."""

FIRST = 64
"""Runs that are done one by one, to see how long they take."""


def play_runs(
    runs: Sequence[Run], executor: Executor[Sequence[Run], list[Played]]
) -> Iterator[tuple[int, Played]]:
    """Do runs, and return the place of each and what it gave as soon as it is there, in any order.

    Runs of one scenario and seed share their requests where they stand side by side. Where there are many short ones,
    a task has several.

    Args:
        runs: the runs.
        executor: of a :class:`Player`.
    """
    seconds = 0.0
    for place, (played,) in executor.stream([[run] for run in runs[:FIRST]]):
        seconds += played.record.wall_time
        yield place, played
    left = len(runs) - FIRST
    if left <= 0:
        return
    size = int(min(MOST_AT_A_TIME, max(1, left // FIRST), max(1, TASK_SECONDS * FIRST / max(seconds, 1e-9))))
    tasks = [runs[k : k + size] for k in range(FIRST, len(runs), size)]
    for number, found in executor.stream(tasks):
        for offset, played in enumerate(found):
            yield FIRST + number * size + offset, played
