"""Scenario files: shipped ones and the user's."""

from typing import Any

import pytest

from kvgym.errors import ConfigError, KVGymError, UnknownNameError
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.scenario import DEFAULT_SCENARIO, Scenario, load_scenario, scenario_names
from kvgym.experiments.scenario_options import OVERLOAD_SCENARIO
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import check_needs

ROOFLINE = "roofline:model=qwen3-8b,gpu=l4"


@pytest.mark.parametrize("name", list(scenario_names()))
def test_every_scenario_can_be_set_up(name):
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.summary
    system = scenario.make_system()
    table = scenario.make_workload().sample(0)
    system.check_fits(table)
    assert scenario.policies
    for policy in scenario.policies:
        check_needs(make_policy(policy), table)
    assert Scenario.model_validate_json(scenario.model_dump_json()) == scenario


@pytest.mark.parametrize(
    ("name", "rate", "requests"), [(DEFAULT_SCENARIO, 8, 2000), (OVERLOAD_SCENARIO, 50, 1000)]
)
def test_the_default_scenarios_are_of_the_papers_hardware(name, rate, requests):
    scenario = load_scenario(name)
    assert next(iter(scenario_names())) == DEFAULT_SCENARIO
    assert scenario.make_system().kv_capacity == 16_492
    workload = scenario.make_workload()
    assert workload.mean_rate == rate
    assert len(workload.sample(0)) == requests
    assert {"sarathi", "vllm_v1"} <= set(scenario.policies)  # schedulers in production use


def test_errors_name_file_and_field(tmp_path):
    with pytest.raises(UnknownNameError, match="Did you mean 'a100-llama2-70b'"):
        load_scenario("a100-llama2-70")
    path = tmp_path / "mine.yaml"
    with pytest.raises(ConfigError, match="cannot be read"):
        load_scenario(path)
    cases = {
        "summary: x\nworkload: lmsys\nhardwear: y": "hardwear",
        "summary: x\nworkload: lmsys\nsystem: {first_tokens: decode}": "first_tokens",
        "summary: x\nworkload: lmsys\nseeds: none": "seeds",
        "- a list": "must be a mapping",
        "summary: [": "not valid YAML",
    }
    for text, message in cases.items():
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_scenario(path)


def test_contradictions_are_explained(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("summary: x\nworkload: lmsys")
    with pytest.raises(ConfigError, match="needs either hardware, or batch_time with a kind and kv_capacity"):
        load_scenario(path).make_system()
    path.write_text("summary: x\nworkload: lmsys\nhardware: llama2-7b-a100-tp1\nbatch_time: {kind: unit}")
    with pytest.raises(ConfigError, match="accepts only composition"):
        load_scenario(path).make_system()
    path.write_text(
        "summary: x\nworkload: lmsys\nkv_capacity: 100\nbatch_time: {kind: unit}\nsystem: {requeue: top}"
    )
    with pytest.raises(ConfigError, match="requeue = 'top'; valid: arrival, front, back"):
        load_scenario(path).make_system()


def test_your_own_scenario(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "summary: mine\nbatch_time: {kind: unit}\nkv_capacity: 500\n"
        "workload: {preset: stab-1-1, num_requests: 5, limits: {max_total_len: 500}}\n"
        "system: {first_token: uncounted, progress_on_evict: kept, horizon: 99, block_size: 16}\n"
    )
    scenario = load_scenario(path)
    assert scenario.name == "mine"
    system = scenario.make_system()
    assert (system.horizon, system.first_token, system.progress_on_evict) == (99, "uncounted", "kept")
    assert (system.block_size, system.kv_capacity, system.usable_capacity) == (16, 500, 496)
    assert load_scenario(OVERLOAD_SCENARIO).make_system().block_size == 1
    with pytest.raises(KVGymError):
        scenario.override(seeds=0)


def test_a_summary_may_be_omitted(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("workload: lmsys\n")
    assert load_scenario(path).heading == "mine"
    path.write_text("summary: conversations\nworkload: lmsys\n")
    assert load_scenario(path).heading == "mine: conversations"


def test_a_mistake_in_a_worker_group_is_named() -> None:
    scenario = load_scenario("a100-llama3-8b")
    with pytest.raises(ConfigError, match=r"group 1: role: Input should be 'mixed', 'prefill' or 'decode'"):
        scenario.override(workers=[{"role": "prefill"}, {"role": "prefil"}])
    with pytest.raises(ConfigError, match="group 0: number"):
        scenario.override(workers=[{"number": 2}])


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("a100-llama2-70b", {}, ("lost", "arrival", 1)),
        ("a100-llama2-70b", {"hardware": "llama3-8b-a100-tp1"}, ("lost", "arrival", 1)),
        ("a100-llama2-70b", {"hardware": ROOFLINE}, ("recompute", "front", 16)),
        ("a100-llama2-70b", {"hardware": ROOFLINE, "rules": "paper"}, ("lost", "arrival", 1)),
        ("a100-llama2-70b", {"hardware": ROOFLINE, "block_size": 8}, ("recompute", "front", 8)),
        ("a100-llama2-70b", {"rules": "engine"}, ("recompute", "front", 16)),
        ("vllm-v1", {"rules": "paper"}, ("lost", "arrival", 1)),
        ("stab-1-1", {"hardware": ROOFLINE}, ("kept", "arrival", 1)),  # it states its rules
    ],
)
def test_rules(name: str, options: dict[str, Any], expected: tuple[str, str, int]) -> None:
    system = build_scenario(name, **options).system
    assert (system.progress_on_evict, system.requeue, system.block_size) == expected


def test_a_scenario_with_a_roofline_keeps_its_rules() -> None:
    own = load_scenario("a100-llama2-70b").override(hardware=ROOFLINE)
    assert build_scenario(own, hardware="roofline:gpu=h200").system == own.system
    stated = load_scenario("a100-llama2-70b").override(system={"requeue": "back"})
    assert build_scenario(stated, hardware=ROOFLINE).system == stated.system


def test_unknown_rules_are_explained() -> None:
    with pytest.raises(UnknownNameError, match="Valid names: engine, paper"):
        build_scenario("vllm-v1", rules="papers")
