"""Single runs: description, result, and execution in any process."""

from __future__ import annotations

import copy
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvgym.errors import ConfigError, KVGymError, shown
from kvgym.experiments.resolving import requests_for, resolve_policy
from kvgym.experiments.scenario import Scenario
from kvgym.metrics.catalogue import METRICS, metric_names
from kvgym.metrics.compute import compute_metrics, worker_metrics
from kvgym.policies.policy import POLICIES, Policy, make_policy
from kvgym.policies.routing import Router
from kvgym.policies.runner import SimulationResult, check_needs, simulate
from kvgym.policies.scaling import Autoscaler
from kvgym.simulator.system import System
from kvgym.utils.execution import Executor
from kvgym.utils.hyperparameters import given_hyperparameters
from kvgym.utils.specs import spec_text
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import Workload

KEPT_SCENARIOS = 16
"""Number of most recent scenarios for which a process caches system and workload."""

KEPT_TABLES = 8
"""Number of most recent request tables that a process caches: all policies of a seed share one."""

KEPT_REQUESTS = 1_000_000
"""Number of requests up to which it caches more tables; about 50 bytes each."""


SAMPLES = 192
"""Maximum number of moments at which the running requests of a kept result are recorded."""


@dataclass(frozen=True)
class PlannedRun:
    """Description of a run; equal runs give equal bits on any machine.

    Attributes:
        scenario: the scenario.
        policy: a policy or its spec.
        router: a router or its spec; None = the scenario's.
        seed: the seed.
        label: its name in results.
        log: record per-iteration rows.
        measure: function that computes further values from the result in the process of the run; must be picklable.
        keep: return the result, with samples.
        autoscaler: an autoscaler of the fleet; None = the scenario's.
    """

    scenario: Scenario
    policy: str | Policy
    router: str | Router | None
    seed: int
    label: str
    log: bool = False
    measure: Callable[[SimulationResult], dict[str, float]] | None = None
    keep: bool = False
    autoscaler: Autoscaler | None = None


@dataclass(frozen=True)
class RunRecord:
    """One policy on one seed, with one router if several are compared.

    Attributes:
        policy: label of the policy, e.g. ``alpha_greedy:alpha=0.3``; see
            :func:`~kvgym.experiments.comparison.compare` for several routers.
        seed: the seed.
        metrics: see :mod:`kvgym.metrics`; all NaN if the run failed.
        error: error of a failed run, or "".
        completed_once: whether every request has exactly one completion record.
        wall_time: duration of the run, seconds.
        workers: metrics of each worker, see :func:`kvgym.metrics.worker_metrics`; empty for a single worker.
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
    """Result of a run.

    Attributes:
        record: metrics and status.
        num_requests: requests of the workload; 0 if it cannot be sampled.
        notes: changes to the workload, and hyperparameters that the policy chose, one sentence each.
        result: the simulation result if it is kept and the run did not fail; else None.
        measured: values returned by ``measure``; empty without it, or if the run failed.
    """

    record: RunRecord
    num_requests: int
    notes: tuple[str, ...] = ()
    result: SimulationResult | None = None
    measured: dict[str, float] = field(default_factory=dict)


class Player:
    """Executes batches of runs and caches what they share; work for an executor.

    A :class:`~kvgym.errors.KVGymError` or MemoryError raised by a run becomes the error of its record. If a
    scenario cannot be made, for example because one of its files is missing, the error is raised.

    Args:
        tables: number of request tables to cache, at least :data:`KEPT_TABLES`.
    """

    def __init__(self, tables: int = 0) -> None:
        self._kept_tables = max(KEPT_TABLES, tables)
        self._metrics = tuple(METRICS[name] for name in METRICS)
        self._scenarios: OrderedDict[str, tuple[System, Workload]] = OrderedDict()
        self._tables: OrderedDict[tuple[str, int], RequestTable] = OrderedDict()
        self._requests = 0  # of the cached tables
        self._policies: dict[str, Policy] = {}
        self._named: tuple[Scenario, str] | None = None  # the last scenario, and what it is cached by

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the caches, and with the registered metrics, which other processes may not have.

        Raises:
            ConfigError: a metric is a function that other processes cannot import.
        """
        for metric in self._metrics:
            if "<" in getattr(metric.measure, "__qualname__", ""):
                raise ConfigError(
                    f"metric {shown(metric.name)} is defined inside a function, so other processes do not have it; "
                    "define it at the top of a module, or use jobs = 1"
                )
        empty = {
            "_scenarios": OrderedDict(),
            "_tables": OrderedDict(),
            "_requests": 0,
            "_named": None,
            "_policies": {},
        }
        return {**vars(self), **empty}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle, and register the metrics."""
        vars(self).update(state)
        for metric in self._metrics:
            METRICS.add(metric.name, metric)

    def __call__(self, runs: Sequence[PlannedRun], /) -> list[Played]:
        """Return the result of each run.

        All requests are drawn first, then all runs simulated, then all measured: short runs take less time where the
        code of a stage stays in the processor's cache.
        """
        found: dict[int, Played] = {}
        left = dict(enumerate(map(self._play, runs)))
        while left:
            for place, stages in list(left.items()):
                try:
                    next(stages)
                except StopIteration as end:
                    found[place] = end.value
                    del left[place]
        return [found[place] for place in range(len(runs))]

    def requests(self, scenario: Scenario, seed: int) -> tuple[System, RequestTable]:
        """Return the system of a scenario, and the requests of a seed.

        Raises:
            KVGymError: the scenario is contradictory, or the workload cannot be sampled.
        """
        scenario = scenario.of_seed(seed)
        name, system, workload = self._made(scenario)
        return system, self._sampled(name, scenario, workload, seed, system)

    def _made(self, scenario: Scenario) -> tuple[str, System, Workload]:
        # Describing one takes as long as a small run.
        if self._named is None or self._named[0] is not scenario:
            described = scenario.model_dump_json(exclude={"name", "summary", "policies", "seeds"})
            self._named = scenario, described
        name = self._named[1]
        found = self._scenarios.pop(name, None)
        if found is None:
            found = scenario.make_system(), scenario.make_workload()
        self._scenarios[name] = found
        if len(self._scenarios) > KEPT_SCENARIOS:
            self._scenarios.popitem(last=False)
        return name, *found

    def _sampled(
        self, name: str, scenario: Scenario, workload: Workload, seed: int, system: System
    ) -> RequestTable:
        table = self._tables.pop((name, seed), None)
        if table is None:
            table = scenario.sample(workload, seed, system.usable_capacity)
            self._requests += len(table)
        self._tables[name, seed] = table
        while len(self._tables) > self._kept_tables and self._requests > KEPT_REQUESTS:
            self._requests -= len(self._tables.popitem(last=False)[1])
        return table

    def _policy(self, given: str | Policy) -> Policy:
        """Return a copy of a policy: one that has run may hold objects that cannot be sent to another process."""
        if not isinstance(given, str):
            return copy.copy(given)
        made = self._policies.get(given)
        # Agents are read again, and a class may have been defined again under its name.
        if made is None or made.info.name not in POLICIES or POLICIES[made.info.name] is not type(made):
            self._policies[given] = made = make_policy(given)
            if len(self._policies) > KEPT_SCENARIOS:
                del self._policies[next(iter(self._policies))]
        return copy.copy(made)

    def _play(self, run: PlannedRun) -> Generator[None, None, Played]:
        """Play a run, and pause between its stages."""
        started, count = time.perf_counter(), 0
        notes: tuple[str, ...] = ()
        scenario = run.scenario.of_seed(run.seed)
        name, system, workload = self._made(scenario)
        try:
            table = self._sampled(name, scenario, workload, run.seed, system)
            count, notes = len(table), table.notes
            policy = self._policy(run.policy)
            check_needs(policy, table)
            table = requests_for(policy, table, workload)
            resolved = resolve_policy(policy, system, table)
            as_usual = (policy.label, spec_text(policy.info.name, given_hyperparameters(policy)))
            if resolved is not policy and resolved.label not in as_usual:
                notes = (*notes, f"{run.label} runs as {resolved.label}.")
            router = run.scenario.make_router() if run.router is None else run.router
            autoscaler = scenario.autoscaler if run.autoscaler is None else copy.copy(run.autoscaler)
            yield
            started = time.perf_counter()
            result = simulate(
                system, table, resolved, router=router, seed=run.seed, log=run.log, window=scenario.window,
                samples=SAMPLES if run.keep else 0, autoscaler=autoscaler,
            )  # fmt: skip
            elapsed = time.perf_counter() - started
            yield
            metrics = compute_metrics(result)
        except (KVGymError, MemoryError) as error:
            empty = dict.fromkeys(metric_names(), float("nan"))
            elapsed = time.perf_counter() - started
            if isinstance(error, MemoryError):
                error = KVGymError(f"not enough memory: {error}; use fewer requests or smaller tables")
            return Played(RunRecord(run.label, run.seed, empty, str(error), False, elapsed), count, notes)
        once = result.completed and int(result.worker["total_finished"].sum()) == len(table)
        workers = tuple(worker_metrics(result)) if len(result.worker) > 1 else ()
        record = RunRecord(run.label, run.seed, metrics, "", once, elapsed, workers)
        measured = {} if run.measure is None else run.measure(result)
        return Played(record, count, notes, result if run.keep else None, measured)


MOST_AT_A_TIME = 16
"""Maximum number of runs in one task of an executor."""

TASK_SECONDS = 0.1
"""Target duration of a task, seconds: this much work is lost if the process ends."""

FIRST = 8
"""Number of runs that are executed one by one first, to measure their duration."""


def play_runs(
    runs: Sequence[PlannedRun], executor: Executor[Sequence[PlannedRun], list[Played]]
) -> Iterator[tuple[int, Played]]:
    """Execute runs, and yield the place and the result of each when it finishes, in any order.

    Consecutive runs of one scenario and seed share their requests. Short runs are grouped into tasks.

    Args:
        runs: the runs.
        executor: executor of a :class:`Player`.
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
