"""Training configurations for a scenario or a trace of the user."""

from __future__ import annotations

import pytest

from kvgym.agents.runs.config import SERVICE_TRAINING, load_training
from kvgym.errors import ConfigError
from kvgym.workloads.traces import load_trace, write_sample_trace


def test_a_scenario_replaces_the_services_of_evolution():
    config = load_training(SERVICE_TRAINING, ["generations=3"], scenario="a100-llama3-8b")
    assert [family.scenario for family in config.services.families] == ["a100-llama3-8b"]
    assert (config.policy, config.generations) == ("ranked", 3)
    assert "ranked" in config.reference


def test_a_scenario_replaces_the_environments_but_not_the_action():
    config = load_training("hidden_kinds", ["env.num_requests=50"], scenario="hidden-kinds-large")
    assert config.env_config().scenario == "hidden-kinds-large"
    assert (config.env_config().action, config.env_config().num_requests) == ("priority", 50)


def test_agents_observe_the_feature_columns_of_a_trace(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_time,prompt_len,output_len,feature_0\n0,5,6,1\n1,7,8,-1\n")
    config = load_training("hidden_kinds", scenario=str(path))
    assert config.env_config().information == ("features",)
    assert config.inputs == ("asked.prompt", "columns")
    assert len(config.places()) == 5
    assert load_training("hidden_kinds", scenario="hidden-kinds-large").inputs == ("asked.prompt",)


def test_requests_are_drawn_from_a_trace(tmp_path):
    path = tmp_path / "trace.csv"
    write_sample_trace(path, "azure")
    trace = load_trace(path)
    config = load_training(SERVICE_TRAINING, scenario=str(path))
    first, second = (config.services.draw(seed).table for seed in (1, 2))
    assert set(first.prompt_len) <= set(trace.prompt_len)
    assert first.predicted_output_len is None
    assert first.prompt_len.tolist() != second.prompt_len.tolist()
    assert load_training("hidden_kinds", scenario=str(path)).env["workload"]["num_requests"] == min(
        len(trace), 1000
    )


def test_a_trace_without_times_is_refused(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n5,6\n7,8\n")
    with pytest.raises(ConfigError, match="no arrival times"):
        load_training(SERVICE_TRAINING, scenario=str(path))
