"""Fleets in scenarios, and comparisons of autoscalers with the best fixed size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from kvgym.batch_time.deployments.load import load_hardware
from kvgym.errors import ConfigError
from kvgym.experiments.budget_comparison import compare_fleets
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.fleet.choices import fixed_sizes
from kvgym.experiments.fleet.groups import startup_of
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.experiments.scenario_options import ScenarioOptions
from kvgym.simulator.fleet import Failures, Fleet, Pool, Users

TEXT = """\
batch_time: {kind: affine, constant: 0.02, per_decode_token: 0.004}
kv_capacity: 2000
workload:
  num_requests: 120
  lengths: {kind: independent, prompt: {kind: constant, value: 100}, output: {kind: constant, value: 60}}
  arrivals: {kind: sinusoid, rate: 4, amplitude: 0.9, period: 30}
  ttft_slo: 2
policies: [fcfs]
router: join_shortest_queue
workers: [{count: 2, least: 1, most: 4, startup: 3s, price: 2.5, drain: requeue}]
fleet: {control: 2s, budget: 3, penalty: 20}
autoscaler: hpa:target=4
seeds: 1
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    path = tmp_path / "day.yaml"
    path.write_text(TEXT)
    return load_scenario(path)


def test_a_scenario_describes_a_fleet(scenario: Scenario) -> None:
    system = scenario.make_system()
    pool = Pool(2, most=4, least=1, startup=3.0, price=2.5, drain="requeue")
    assert system.fleet == Fleet((pool,), budget=3, control=2.0, penalty=20.0)
    assert len(system.workers) == 4


def test_without_a_fleet_nothing_is_one() -> None:
    assert load_scenario("rush").make_system().fleet is None


@pytest.mark.parametrize("field", [{"fleet": {"budget": 3}}, {"autoscaler": "hpa"}])
def test_fleets_need_pools(field: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="need groups of workers with most"):
        load_scenario("rush").override(**field).make_system()


TROUBLE = """
failures: {mtbf: 500h, repair: 10min, at: [[90s, 0]]}
users: {patience: {median: 30s, sigma: 0.5}, again: {probability: 0.5, delay: 5s, most: 2}}
on_loss: fail
retry_delay: 500ms
keep_tokens: true
"""


@pytest.mark.parametrize("workers", [1, 3])
def test_failures_and_users_make_any_cluster_a_fleet(workers: int) -> None:
    scenario = load_scenario("rush").override(workers=workers, fleet=yaml.safe_load(TROUBLE))
    fleet = scenario.make_system().fleet
    assert fleet is not None
    (pool,) = fleet.pools
    assert (pool.count, pool.least, pool.most) == (workers,) * 3
    assert fleet == Fleet(
        fleet.pools, on_loss="fail", retry_delay=0.5, keep_tokens=True,
        failures=Failures(mtbf=1_800_000.0, repair=600.0, at=((90.0, 0),)),
        users=Users(patience=30.0, sigma=0.5, again=0.5, delay=5.0, most=2),
    )  # fmt: skip
    again = Scenario.model_validate(scenario.model_dump(mode="json"))
    assert again == scenario


def test_settings_of_trouble_are_written_only_if_they_are_given(scenario: Scenario) -> None:
    assert scenario.fleet is not None
    assert set(scenario.fleet.model_dump()) == {"control", "budget", "startup", "penalty"}
    assert "drain_limit" not in scenario.model_dump()["workers"][0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"failures": {"mtbf": "often"}},
            "mtbf = 'often'; expected seconds, or a number with ms, s, min, h or d",
        ),
        ({"failures": {"mtbf": 0}}, "mtbf = 0.0; expected seconds, at least 1"),
        ({"failures": {"at": [[5, 9]]}}, "place of a failure = 9; expected 0 … 3"),
        ({"users": {"patience": 0}}, "patience = 0.0; expected seconds, at least 0.001"),
        ({"users": {"patience": {"sigma": 1}}}, "expected seconds, or a median and a sigma"),
        ({"users": {"again": {"probability": 2}}}, "again = 2.0; expected a probability, 0 … 1"),
        ({"users": {"again": {"most": -1}}}, "most = -1; expected 0 … 1,000 further tries"),
        ({"on_loss": "ignore"}, "on_loss = 'ignore'; valid: retry, fail"),
        ({"retry_delay": -1}, "retry_delay = -1.0; expected seconds, 0 … 1e9"),
    ],
)
def test_wrong_settings_of_trouble_are_named(
    scenario: Scenario, wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        scenario.override(fleet=wrong).make_system()


def test_a_group_without_workers_is_a_pool_or_nothing(scenario: Scenario) -> None:
    with pytest.raises(ConfigError, match="count = 0; expected at least 1, or a pool with most"):
        scenario.override(workers=[{"count": 0}])


def test_options_make_a_fleet_of_equal_workers() -> None:
    options = ScenarioOptions(fleet="2-6", startup="45", autoscaler="ray")
    scenario = build_scenario("rush", options)
    fleet = scenario.make_system().fleet
    assert fleet is not None
    (pool,) = fleet.pools
    assert (pool.count, pool.least, pool.most, pool.startup) == (2, 2, 6, 45.0)
    assert scenario.autoscaler == "ray"


@pytest.mark.parametrize("wrong", ["6", "6-2", "a-b", "0-0"])
def test_a_wrong_range_is_named(wrong: str) -> None:
    with pytest.raises(ConfigError, match="expected the fewest and the most workers, as in 1-8"):
        build_scenario("rush", ScenarioOptions(fleet=wrong))


def test_start_up_times_follow_the_weights() -> None:
    hardware = load_hardware("roofline:model=llama3-8b,gpu=h100")
    assert startup_of("cold", hardware)[0] == pytest.approx(104, abs=0.5)  # as measured
    assert startup_of(None, hardware)[0] == startup_of("prepared", hardware)[0] == pytest.approx(71, abs=1.5)
    assert startup_of({"median": 240, "sigma": 0.3}, None) == (240.0, 0.3)
    assert startup_of("500ms", None) == (0.5, 0.0)
    assert startup_of(None, None) == (60.0, 0.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("cold", "startup = cold needs hardware with a known model"),
        ("soon", "expected seconds, prepared, cold"),
        ({"sigma": 1.0}, "expected seconds, prepared, cold"),
    ],
)
def test_wrong_start_up_times_are_named(wrong: str | dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        startup_of(wrong, None)


def test_fixed_sizes_keep_the_budget(scenario: Scenario) -> None:
    assert fixed_sizes(scenario) == ["fixed:workers=1", "fixed:workers=2", "fixed:workers=3"]
    with pytest.raises(ConfigError, match="no group of workers with most"):
        fixed_sizes(load_scenario("rush"))
    with pytest.raises(ConfigError, match="500 fixed sizes"):
        fixed_sizes(scenario.override(workers=[{"count": 1, "most": 500}]))


def test_autoscalers_are_compared_with_the_best_fixed_size(scenario: Scenario) -> None:
    found = compare_fleets(scenario, ["fcfs"], ["hpa:target=4", "fixed:workers=1"])
    best, hpa, one = found.policies
    assert best.startswith("best fixed, workers=")
    assert (hpa, one) == ("hpa:target=4", "fixed:workers=1")
    assert all(run.completed_once for run in found.runs)
    assert found.estimate(best, "fleet_cost").value <= found.estimate(one, "fleet_cost").value
    assert found.estimate(one, "ready_workers").value == pytest.approx(1)
    assert found.estimate(hpa, "target_changes").value > 0
    with pytest.raises(ConfigError, match="is listed twice"):
        compare_fleets(scenario, ["fcfs"], ["hpa", "hpa"])
    with pytest.raises(ConfigError, match="no group of workers with most"):
        compare_fleets(load_scenario("rush"), ["fcfs"], ["hpa"])
