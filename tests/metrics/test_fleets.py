"""Metrics of fleets, on runs that are worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from helpers.runs.fleets import CASES
from kvgym.baselines.first_come import FCFS
from kvgym.batch_time import UnitBatchTime
from kvgym.metrics.catalogue import SCALARS
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.runner import simulate
from kvgym.simulator.fleet import Fleet
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

NAMES = (
    "gpu_hours", "fleet_cost", "goodput_per_gpu_hour", "ready_workers", "time_to_scale", "late_time",
    "wasted_warm_time", "cancelled_time", "unrouted_time", "target_changes",
)  # fmt: skip


def metrics_of(start: str) -> dict[str, float]:
    """Return the metrics of the case with this beginning of its name."""
    (case,) = (case for name, case in CASES.items() if name.startswith(start))
    return compute_metrics(case.play(compiled=False), NAMES)


def test_a_start_from_nothing() -> None:
    found = metrics_of(
        "start-up"
    )  # ordered at 10, ready at 70, the end at 80; requests at 5 and 20 wait outside
    assert found["gpu_hours"] == pytest.approx(70 / 3600)
    assert found["ready_workers"] == pytest.approx(10 / 80)
    assert found["time_to_scale"] == found["late_time"] == 60
    assert found["unrouted_time"] == 65 + 50
    assert found["wasted_warm_time"] == found["cancelled_time"] == 0
    assert found["target_changes"] == 1


def test_idle_workers_are_wasted() -> None:
    found = metrics_of(
        "same time"
    )  # worker 0 works for 22 s of 22, worker 1 starts for 10 s, works for 2 of 12
    assert found["wasted_warm_time"] == pytest.approx(10 / 44)
    assert found["late_time"] == 10
    assert found["unrouted_time"] == 0


def test_a_cancelled_start_costs_time() -> None:
    found = metrics_of("up-time")  # the third worker is ordered at 0 and cancelled at 5
    assert found["cancelled_time"] == 5
    assert found["time_to_scale"] == 10
    assert found["late_time"] == 10
    assert found["target_changes"] == 3


def test_a_pool_is_late_although_another_is_not() -> None:
    assert metrics_of("budget")["late_time"] == 7  # the second pool wants a worker from 1 on and has it at 8


def test_cost_counts_prices_and_requests_that_missed_their_targets() -> None:
    (case,) = (case for name, case in CASES.items() if name.startswith("start-up"))
    (pool,) = case.pools
    system = case.system().fleet
    assert system == Fleet((pool,))
    plain = metrics_of("start-up")["fleet_cost"]
    assert plain == pytest.approx(70 / 3600)
    slow = compute_metrics(case.play(compiled=False, ttft_slo=60.0, price=2.0), NAMES)
    assert slow["fleet_cost"] == pytest.approx(
        (2 * 70 + 20) / 3600
    )  # the first waits for 66 s, the second for 56
    assert slow["goodput_per_gpu_hour"] == pytest.approx(1 / (70 / 3600))


def test_there_is_no_value_without_a_fleet() -> None:
    table = RequestTable.from_columns(
        arrival_time=np.zeros(2), prompt_len=np.full(2, 3), output_len=np.full(2, 2)
    )
    found = compute_metrics(simulate(System(20, UnitBatchTime()), table, FCFS(), compiled=False), NAMES)
    assert all(math.isnan(value) for value in found.values())
    assert set(NAMES) <= set(SCALARS)
