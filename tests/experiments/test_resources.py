"""Resource checks: runs that cannot finish are refused before they start."""

import pytest

from kvgym.errors import ConfigError
from kvgym.experiments import resources
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.comparison import compare
from kvgym.experiments.tuning.tune import tune

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
