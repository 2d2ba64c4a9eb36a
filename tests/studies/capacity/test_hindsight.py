"""Plans that a search finds in hindsight."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.runs.fleets import system_of, table_of
from kvgym.baselines.autoscalers.given import Plan
from kvgym.errors import ConfigError
from kvgym.simulator.fleet import Pool
from kvgym.simulator.system import System
from kvgym.studies.capacity.hindsight import FleetRuns, plan_in_hindsight


def runs() -> FleetRuns:
    """Return a fleet of up to two workers, of which two requests at 20 s need both if none is to be late."""
    table = table_of((0, 8), (20, 4), (20, 4)).replace(ttft_slo=np.full(3, 1.5))
    return FleetRuns(system_of(Pool(1, most=2, startup=2)), table, "fcfs", "join_shortest_queue")


def test_the_search_orders_a_worker_so_that_it_is_ready_in_time() -> None:
    found, metrics = plan_in_hindsight(runs(), "fixed:workers=2", step=6)
    assert found == ((0.0, (1,)), (18.0, (2,)))
    assert metrics["slo_attainment"] == 1
    assert 3600 * metrics["fleet_cost"] == pytest.approx(25 + 7)
    assert repr(metrics) == repr(runs().metrics(Plan(file=found)))  # NaN equals itself


def test_the_search_stops_after_its_runs() -> None:
    found, metrics = plan_in_hindsight(runs(), "fixed:workers=2", step=6, effort=1)
    assert found == ((0.0, (2,)),)
    assert 3600 * metrics["fleet_cost"] == pytest.approx(50)


def test_another_cost_may_be_searched_for() -> None:
    found, metrics = plan_in_hindsight(
        runs(), "fixed:workers=2", lambda metrics: metrics["gpu_hours"], step=6
    )
    assert found == ((0.0, (1,)),)
    assert 3600 * metrics["gpu_hours"] == pytest.approx(30)


def test_a_fleet_is_needed() -> None:
    static = FleetRuns(
        System.cluster(system_of(Pool(1, most=2)).workers), table_of((0, 8)), "fcfs", "round_robin"
    )
    with pytest.raises(ConfigError, match="no group of workers with most"):
        _ = static.fleet
