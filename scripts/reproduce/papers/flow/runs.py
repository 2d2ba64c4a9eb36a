"""How much is run, and the metrics of a policy on given requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """

    horizons: tuple[int, ...] = tuple(range(1000, 10_001, 1000))
    seeds: int = 5
    tuning_seeds: int = 2
    requests: int = 5000


def run(system: System, tables: Sequence[RequestTable], policy: str) -> Values:
    """Return the metrics of a policy by name, one value per table; NaN where it livelocks."""
    values: Values = {name: [] for name in METRICS + EXTRA}
    for seed, table in enumerate(tables):
        try:
            metrics = compute_metrics(simulate(system, table, policy, seed=seed))
        except LivelockError:
            metrics = dict.fromkeys(values, float("nan"))
        for name, column in values.items():
            column.append(metrics[name])
    return values
