"""The engine's rules by default, with a model and a GPU; their prefix cache where requests share hashes."""

import pytest

from kvgym.experiments.changes import build_scenario
from kvgym.experiments.describing import rules_of
from kvgym.experiments.scenario import load_scenario
from kvgym.simulator.prefix.rules import PREFIX_CACHES

HARDWARE = "model=llama3-8b,gpu=h100"
ENGINE = ("recompute", "front", 16, "next_iteration")


def rules(scenario):
    system = scenario.system
    return system.progress_on_evict, system.requeue, system.block_size, system.output_kv


@pytest.mark.parametrize("options", [{"hardware": HARDWARE}, {"rules": "engine"}])
def test_they_are_those_of_todays_engines(options):
    scenario = build_scenario("a100-llama2-70b", **options)
    assert rules(scenario) == ENGINE
    assert scenario.system.prefix_cache == "off"
    assert rules_of(scenario) == "engine rules: KV of a token an iteration later"


def test_the_prefix_cache_is_on_where_requests_have_hashes():
    agents = build_scenario("a100-llama2-70b", hardware=HARDWARE, workload="coding-agent")
    assert agents.system.prefix_cache == "scheduled"
    assert rules_of(agents) == "engine rules: KV of a token an iteration later, prefix cache"
    without = build_scenario(
        "a100-llama2-70b", hardware=HARDWARE, workload="coding-agent", prefix_cache="off"
    )
    assert without.system.prefix_cache == "off"


def test_a_log_of_sessions_has_it_with_a_shared_prefix(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("arrival,prompt,output,session\n0,400,20,a\n1,900,20,a\n2,300,20,b\n")
    given = {"trace": log, "columns": "arrival=arrival,prompt=prompt,output=output,session_id=session"}
    plain = build_scenario("rush", rules="engine", **given)
    shared = build_scenario("rush", rules="engine", shared_prefix=64, **given)
    assert (plain.system.prefix_cache, shared.system.prefix_cache) == ("off", "scheduled")
    assert any(
        "today's engines have one" in note for note in plain.sample(plain.make_workload(), 0, 16_000).notes
    )


def test_a_papers_rules_and_those_that_a_scenario_states_stay():
    agents = build_scenario("a100-llama2-70b", hardware=HARDWARE, rules="paper", workload="coding-agent")
    assert rules(agents) == ("lost", "arrival", 1, "at_once")
    assert agents.system.prefix_cache == "off"
    assert rules_of(agents) == "paper rules"
    rush = load_scenario("rush")
    assert rules(rush) == ("recompute", "front", 16, "at_once")
    assert rules_of(rush) == "engine rules: KV of a token at once"
    assert rules(build_scenario("rush", hardware=HARDWARE)) == ENGINE  # it states nothing else


def test_a_size_of_units_keeps_the_cache_of_the_engine():
    given = {"hardware": HARDWARE, "workload": "coding-agent", "prefix_block": 256}
    assert build_scenario("rush", **given).system.prefix_cache == "scheduled"
    assert build_scenario("rush", cache_rule="fixed:tool=5", **given).system.prefix_cache == "computed"
    assert build_scenario("rush", rules="paper", **given).system.prefix_cache == "computed"


@pytest.mark.parametrize("cache", PREFIX_CACHES)
def test_every_prefix_cache_has_a_heading(cache):
    scenario = build_scenario("rush", rules="engine", prefix_cache=cache)
    assert rules_of(scenario).startswith("engine rules: KV of a token an iteration later")
    assert ("prefix cache" in rules_of(scenario)) == (cache != "off")
