"""How much is run, and the metrics of a policy on given requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness import HERE, Where, do_all
from kvgym.errors import LivelockError
from kvgym.metrics import compute_metrics
from kvgym.runner import simulate
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

METRICS = ("e2e_latency_mean", "e2e_latency_p95", "request_throughput", "token_throughput")
EXTRA = ("unfinished", "evictions", "kv_utilisation", "jain_fairness")
Values = dict[str, list[float]]


@dataclass(frozen=True)
class Plan:
    """How much to run.

    Attributes:
        horizons: slots of Section 4.1.
        seeds: seeds reported.
        tuning_seeds: seeds on which hyperparameters are chosen.
        requests: requests of Section 4.2.
        where: where runs are done.
    """

    horizons: tuple[int, ...] = tuple(range(1000, 10_001, 1000))
    seeds: int = 5
    tuning_seeds: int = 2
    requests: int = 5000
    where: Where = HERE


class OneRun:
    """Runs a policy on the requests of a seed; NaN where it livelocks."""

    def __init__(self, system: System, tables: Sequence[RequestTable]) -> None:
        self.system, self.tables = system, tables

    def __call__(self, task: tuple[str, int]) -> dict[str, float]:
        """Return the metrics of a policy and a seed."""
        policy, seed = task
        try:
            return compute_metrics(simulate(self.system, self.tables[seed], policy, seed=seed))
        except LivelockError:
            return dict.fromkeys(METRICS + EXTRA, float("nan"))


def run_all(
    system: System, tables: Sequence[RequestTable], policies: Sequence[str], where: Where
) -> dict[str, Values]:
    """Return the metrics of each policy by name, one value per table."""
    tasks = [(policy, seed) for policy in policies for seed in range(len(tables))]
    found: dict[str, Values] = {policy: {name: [] for name in METRICS + EXTRA} for policy in policies}
    for (policy, _), metrics in zip(tasks, do_all(OneRun(system, tables), tasks, where), strict=True):
        for name, column in found[policy].items():
            column.append(metrics[name])
    return found
