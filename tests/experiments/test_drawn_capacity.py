"""Scenarios that draw their memory for every seed."""

import numpy as np
import pytest

from kvgym.errors import ConfigError
from kvgym.experiments.comparison import compare
from kvgym.experiments.runs import Player
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.workloads import mcsf_instance


@pytest.mark.parametrize("model", [1, 2])
def test_the_scenarios_of_section_5_1_are_its_instances(model):
    scenario, player, seen = load_scenario(f"mc-sf-model-{model}"), Player(), set()
    for seed in range(8):
        system, table = player.requests(scenario, seed)
        expected, memory = mcsf_instance(model, seed)
        assert system.kv_capacity == memory == scenario.of_seed(seed).kv_capacity
        for name, column in expected.columns().items():
            np.testing.assert_array_equal(getattr(table, name), column)
        seen.add(memory)
    assert len(seen) > 4
    assert seen <= set(range(30, 51))
    assert Scenario.model_validate_json(scenario.model_dump_json()) == scenario


def test_a_comparison_runs_each_seed_with_its_memory():
    seeds = 3
    found = compare("mc-sf-model-1", ["fcfs"], seeds=seeds, keep_examples=True)
    assert [run.error for run in found.runs] == [""] * seeds
    assert found.examples["fcfs"].system.kv_capacity == mcsf_instance(1, 0)[1]
    assert found.num_requests == tuple(len(mcsf_instance(1, seed)[0]) for seed in range(seeds))


def test_other_workloads_and_fixed_memories_stay():
    scenario = load_scenario("mc-sf-model-2")
    assert scenario.make_system().kv_capacity == 40
    fixed = scenario.override(kv_capacity=35)
    assert fixed.of_seed(3) is fixed
    other = scenario.override(workload="flow")
    assert other.of_seed(1).workload == "flow"
    assert other.of_seed(1).kv_capacity == mcsf_instance(1, 1)[1]
    for wrong, message in (({"low": 40, "high": 30}, "below low"), ({"low": 1, "high": 30}, "at least 2")):
        with pytest.raises(ConfigError, match=message):
            scenario.override(kv_capacity=wrong)
