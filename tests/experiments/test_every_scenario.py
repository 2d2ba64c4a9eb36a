"""Every policy on the beginning of every scenario: it finishes, or says why it cannot."""

from __future__ import annotations

import pytest

from kvgym import load_scenario, simulate
from kvgym.errors import ConfigError, LivelockError
from kvgym.experiments.scenario import scenario_names
from kvgym.metrics import compute_metrics
from kvgym.policy import POLICIES, make_policy
from kvgym.runner import check_needs

NUM_REQUESTS = 80


@pytest.mark.parametrize("name", scenario_names())
def test_every_policy_finishes_or_says_why_not(name: str) -> None:
    scenario = load_scenario(name)
    system, table = scenario.make_system(), scenario.sample(scenario.make_workload(), 0, 10**9)
    table = table.select(slice(0, NUM_REQUESTS))
    outcomes: dict[str, str] = {}
    for policy in POLICIES:
        try:
            result = simulate(system, table, policy, router=scenario.make_router())
        except (ConfigError, LivelockError) as error:
            outcomes[policy] = str(error)
            continue
        outcomes[policy] = "finished" if result.completed else "horizon"
        assert result.completed or system.horizon < float("inf")
        assert compute_metrics(result)["finished"] == int(result.worker["total_finished"].sum())
    for policy, outcome in outcomes.items():
        assert outcome in ("finished", "horizon") or f"policy {policy!r}" in outcome
    assert "finished" in outcomes.values() or "horizon" in outcomes.values()


@pytest.mark.parametrize("name", scenario_names())
def test_the_policies_of_a_scenario_can_run_on_it(name: str) -> None:
    scenario = load_scenario(name)
    table = scenario.sample(scenario.make_workload(), 0, 10**9).select(slice(0, 10))
    for policy in scenario.policies:
        check_needs(make_policy(policy), table)
    scenario.make_system().check_fits(table)
