"""Random services: equal seeds, rates, limits, and wrong descriptions."""

import numpy as np
import pytest

from helpers.training.evolution_runs import SERVICES
from kvgym.agents.evolution.capacity import sustained_rate
from kvgym.agents.evolution.services import Services
from kvgym.errors import ConfigError

FAMILY = SERVICES["families"][0]


def services(*families):
    made = Services.model_validate({"families": [{**FAMILY, **changes} for changes in families or ({},)]})
    made.check()
    return made


def same(a, b):
    return a.description == b.description and all(
        np.array_equal(x, b.table.columns()[name]) for name, x in a.table.columns().items()
    )


def test_equal_seeds_give_equal_services():
    drawn = [services().draw(seed) for seed in range(8)]
    assert all(same(service, services().draw(service.seed)) for service in drawn)
    assert len({service.load for service in drawn}) == 8
    assert {len(service.table) for service in drawn} <= set(range(20, 41))
    predictions = [s.scenario.workload["predictions"]["kind"] for s in drawn]
    assert {"exact", "noisy"} == set(predictions)


def test_the_load_is_a_multiple_of_the_estimate_and_the_pattern_stays():
    service = services({"load": 1.5}).draw(3)
    assert service.rate == pytest.approx(1.5 * sustained_rate(service.system, service.table))
    slower = services({"load": 0.5}).draw(3)
    ratio = slower.table.arrival_time / service.table.arrival_time
    assert ratio == pytest.approx(3.0)
    absolute = services({"load": None, "rate": 20.0}).draw(3)
    assert absolute.rate == 20.0
    assert absolute.table.arrival_time * 20 == pytest.approx(service.table.arrival_time * service.rate)
    own = services({"load": None}).draw(3)
    assert own.rate == 1.0


def test_families_come_by_weight():
    made = services({"name": "a", "weight": 3}, {"name": "b", "weight": 1})
    drawn = [made.draw(seed).family for seed in range(200)]
    assert drawn.count("a") / 200 == pytest.approx(0.75, abs=0.1)


def test_requests_that_do_not_fit_are_dropped_and_the_rate_is_of_those_that_stay():
    lengths = {"kind": "independent", "prompt": {"kind": "discrete", "values": [50, 900]},
               "output": {"kind": "constant", "value": 50}}  # fmt: skip
    workload = {**FAMILY["workload"], "lengths": lengths, "num_requests": 2_000}
    service = services({"workload": workload, "kv_capacity": 500, "load": None, "rate": 10.0}).draw(0)
    assert set(service.table.prompt_len) == {50}
    assert len(service.table) / service.table.arrival_time[-1] == pytest.approx(10.0, rel=0.1)
    clipped = services({"workload": workload, "kv_capacity": 500, "too_long": "clip"}).draw(0)
    assert len(clipped.table) == 2_000
    with pytest.raises(ConfigError, match="no request fits into 40 tokens"):
        services({"workload": workload, "kv_capacity": 40}).draw(0)


def test_classes_with_targets_and_other_hardware():
    classes = [
        {"name": "paying", "weight": {"uniform": [0.3, 0.7]}, "ttft_slo": {"log_uniform": [1, 10]}, "tbt_slo": 0.1},
        {"name": "free", "weight": 0.5, "ttft_slo": 30.0},
    ]  # fmt: skip
    made = services(
        {
            "hardware": {"choice": ["llama2-70b-a100-tp2", "llama3-8b-a100-tp1"]},
            "workload": {**FAMILY["workload"], "classes": classes},
            "system": {"block_size": 16, "horizon": 60.0},
        }
    )
    drawn = [made.draw(seed) for seed in range(6)]
    assert len({s.scenario.hardware for s in drawn}) == 2
    assert all(s.system.block_size == 16 and s.system.horizon == 60.0 for s in drawn)
    targets = {float(x) for s in drawn for x in s.table.ttft_slo}
    assert 30.0 in targets
    assert len(targets) == 7
    rates = sum(c.rate for c in drawn[0].table.classes)
    assert rates == pytest.approx(drawn[0].rate)


def test_the_middle_of_a_family_is_a_scenario_of_its_own():
    scenario = services({"load": None, "rate": {"log_uniform": [4, 16]}}).families[0].typical()
    assert scenario.make_workload().mean_rate == pytest.approx(8.0)
    loaded = services().families[0].typical()
    table = loaded.sample(loaded.make_workload(), 0, loaded.make_system().usable_capacity)
    load = loaded.make_workload().mean_rate / sustained_rate(loaded.make_system(), table)
    assert load == pytest.approx(np.sqrt(0.8 * 1.8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 3.0}, "rate and load are both given"),
        ({"load": {"uniform": [-1, 1]}}, r"families.0.load: expected a number > 0"),
        ({"load": "much"}, "expected a number > 0"),
        ({"hardware": {"choice": ["llama2-70b-a100-tp2", "abacus"]}}, "abacus"),
        ({"system": {"block_sise": 16}}, "block_sise"),
        ({"scenario": "nowhere"}, "unknown scenario 'nowhere'"),
        ({"router": "dice", "workers": 2}, "dice"),
        ({"workload": {**FAMILY["workload"], "arrivals": {"kind": "all_at_once"}}}, "no rate to change"),
        ({"workload": {**FAMILY["workload"], "num_requests": {"integer": [0, 9]}}}, "num_requests"),
        (
            {"hardware": "llama3-8b-a100-tp1", "workers": [{"role": "prefill"}, {"role": "decode"}]},
            "give a rate",
        ),
    ],
)  # fmt: skip
def test_mistakes(changes, message):
    with pytest.raises(ConfigError, match=message):
        services(changes)
