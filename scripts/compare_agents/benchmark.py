"""Runs of policies on the same requests of a scenario."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvgym.errors import KVGymError
from kvgym.experiments.scenario import Scenario
from kvgym.metrics import compute_metrics
from kvgym.policy import Policy
from kvgym.runner import SimulationResult, simulate
from kvgym.workloads.table import RequestTable

BLOCKS = 40
"""Blocks of consecutive requests that a replayed trace is cut into; they take the place of seeds."""

DIGITS = 10
"""Significant digits of stored values."""


@dataclass(frozen=True)
class Outcome:
    """Result of a contestant.

    Attributes:
        spec: the policy that was run, e.g. a scheduler with its tuned hyperparameters.
        values: the metric by seed, or by block of requests if a trace is replayed; empty if it failed.
        error: why it failed, or "".
    """

    spec: str
    values: tuple[float, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Benchmark:
    """A scenario, a metric and seeds.

    Attributes:
        scenario: of one worker.
        metric: see :mod:`kvgym.metrics`.
        seeds: held out: not used to train, select or tune.
        tuning_seeds: used to choose hyperparameters and knobs.
    """

    scenario: Scenario
    metric: str
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]

    def tables(self, scenario: Scenario | None = None) -> list[RequestTable]:
        """Return the requests of each seed.

        Args:
            scenario: None = the benchmark's.
        """
        chosen = scenario or self.scenario
        return _tables(chosen.model_dump_json(), self.seeds)

    def with_true_lengths(self) -> list[RequestTable]:
        """Return the same requests with exact predictions.

        Raises:
            KVGymError: the requests differ in more than their predictions.
        """
        workload = self.scenario.workload
        described = {"preset": workload} if isinstance(workload, str) else workload
        found = self.tables(self.scenario.override(workload={**described, "predictions": {"kind": "exact"}}))
        for seed, mine, other in zip(self.seeds, self.tables(), found, strict=True):
            if not same_requests(mine, other):
                raise KVGymError(f"seed {seed}: the requests change with the predictions")
        return found

    def run(self, policy: Policy, spec: str, tables: Sequence[RequestTable] | None = None) -> Outcome:
        """Run a policy on all seeds, up to the first failure.

        Args:
            policy: the policy.
            spec: name in the outcome.
            tables: requests of the seeds; None = the benchmark's.
        """
        system, values = self.scenario.make_system(), []
        for seed, table in zip(self.seeds, self.tables() if tables is None else tables, strict=True):
            try:
                result = simulate(system, table, policy, seed=seed)
            except (KVGymError, ArithmeticError) as error:
                return Outcome(spec, error=f"seed {seed:,}: {error}")
            if not result.completed:
                return Outcome(spec, error=f"seed {seed:,}: requests are left at the horizon")
            values += self._values(result)
        return outcome(spec, values)

    def _values(self, result: SimulationResult) -> list[float]:
        """Return the metric of a run; of a replayed trace the mean latencies of blocks of requests."""
        if not self.scenario.make_workload().spec.replays:
            return [compute_metrics(result, [self.metric])[self.metric]]
        latency = result.requests["finish_time"] - result.table.arrival_time
        return [float(part.mean()) for part in np.array_split(latency, min(BLOCKS, len(latency)))]


def outcome(spec: str, values: Sequence[float]) -> Outcome:
    """Return an outcome with rounded values."""
    if not np.isfinite(values).all():
        return Outcome(spec, error="a seed has no value")
    return Outcome(spec, tuple(float(f"{value:.{DIGITS}g}") for value in values))


def same_requests(first: RequestTable, second: RequestTable) -> bool:
    """Return whether two tables differ only in predictions."""
    hidden = ("predicted_output_len", "predicted_low", "predicted_high")
    mine, others = ({k: v for k, v in t.columns().items() if k not in hidden} for t in (first, second))
    return mine.keys() == others.keys() and all(
        np.array_equal(column, others[name]) for name, column in mine.items()
    )


@functools.lru_cache(maxsize=4)
def _tables(scenario: str, seeds: tuple[int, ...]) -> list[RequestTable]:
    made = Scenario.model_validate_json(scenario)
    workload, capacity = made.make_workload(), made.make_system().usable_capacity
    return [made.sample(workload, seed, capacity) for seed in seeds]
