"""Resource checks: runs that cannot finish, and settings that make large tables, are refused before they start."""

import re

import numpy as np
import pytest

from kvgym import make_batch_time, make_workload, simulate
from kvgym.compiling.records import sparse_zeros
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ConfigError
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.comparison import compare
from kvgym.experiments.scenario import load_scenario
from kvgym.simulator.system import System
from kvgym.studies.tuning.tune import tune
from kvgym.utils import resources

SCENARIO = "a100-llama2-70b"


def test_requests_that_do_not_fit_into_memory_are_not_drawn(monkeypatch):
    monkeypatch.setattr(resources, "free_memory", lambda: 10**9)
    many = build_scenario(SCENARIO, num_requests=10**12)
    with pytest.raises(
        ConfigError, match=r"1,000,000,000,000 requests on 1 worker.* about 600,00\d GB .* 1\.0 GB are free"
    ):
        compare(many, ["fcfs"], seeds=1)
    resources.check_memory(10**6, 1, 10**6)
    with pytest.raises(ConfigError, match=r"1,000,000 requests on 100 worker.* 9 GB"):
        resources.check_memory(10**6, 100, 10**6)
    resources.check_memory(10**6, 100, 1000)


UNIT = make_batch_time({"kind": "unit"})
TABLE = make_workload("wait-low", num_requests=5).sample(0)
LARGE = 2**31 - 1


@pytest.mark.parametrize(
    ("system", "policy", "message"),
    [
        (
            {"prefix_cache": "computed"}, "fcfs",
            r"prefix cache of kv_capacity = 2,147,483,647 tokens in units of 1 takes 96\.0 GiB; at most 1 GiB .* lower "
            r"kv_capacity to 22,369,621",
        ),
        ({"prefix_cache": "computed", "block_size": 64}, "fcfs", r"in units of 64 takes 1\.5 GiB"),
        ({}, "past_future:window=1000000000", r"window = 1,000,000,000 past lengths takes 14\.9 GiB; at most 1 GiB"),
        ({}, "wait:thresholds=4", r"wait: a counter for .* kv_capacity = 2,147,483,647 takes 16\.0 GiB"),
        ({}, "nested_wait:thresholds=4", r"nested_wait: a counter for .* takes 16\.0 GiB"),
    ],
)  # fmt: skip
def test_settings_that_would_make_large_tables_are_refused(system, policy, message):
    with pytest.raises(ConfigError, match=message):
        simulate(System(LARGE, UNIT, **system), TABLE, policy)


@pytest.mark.parametrize(
    "policy", ["fcfs", "mc_sf", "vllm_v1", "clairvoyant:rule=look_ahead,passed=1000000000"]
)
def test_large_settings_without_large_tables_work(policy):
    found = simulate(System(LARGE, UNIT), TABLE, policy, compiled=False)
    assert found.completed


def test_runs_comparisons_and_environments_have_one_limit(tmp_path):
    file = tmp_path / "large.yaml"
    file.write_text(
        "batch_time: {kind: unit}\nworkload: {preset: wait-low, num_requests: 5}\nkv_capacity: 2000000000\n"
        "system: {prefix_cache: computed}\npolicies: [fcfs]\n"
    )
    said = r"kv_capacity = 2,000,000,000 tokens in units of 1 takes 89\.4 GiB; at most 1 GiB"
    with pytest.raises(ConfigError, match=said):
        ServingEnv(scenario=str(file))
    with pytest.warns(RuntimeWarning, match="1 of 1 runs failed"):
        found = compare(load_scenario(file), ["fcfs"], seeds=1)
    assert re.search(said, found.errors()["fcfs"])


def test_memory_that_the_system_does_not_promise_is_a_memory_error(monkeypatch):
    def refuse(*arguments, **named):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refuse)
    with pytest.raises(MemoryError, match=r"Unable to allocate 0\.1 GiB for a table of shape \(16777216,\)"):
        sparse_zeros((2**24,), np.int64)


def test_free_memory_is_known():
    assert 10**6 < resources.free_memory() < 10**15


@pytest.mark.parametrize("seeds", [10**9, range(10**30), [0] * 1_000_001])
def test_too_many_seeds(seeds):
    for run in (
        lambda: compare(SCENARIO, ["fcfs"], seeds=seeds),
        lambda: tune("mc_sf", SCENARIO, seeds=seeds),
    ):
        with pytest.raises(ConfigError, match="at most 1,000,000"):
            run()


def test_too_many_workers():
    with pytest.raises(ConfigError, match=r"workers: expected a whole number ≥ 1 and ≤ 10000"):
        build_scenario(SCENARIO, workers=1_000_000).make_system()
