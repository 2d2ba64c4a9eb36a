"""Contests and their runs: each run is done once, and repeated only if something differs."""

from dataclasses import replace

import pytest
from compare_agents.contestants import FixedKnobs, Given, Tuned
from compare_agents.contests import Contest, Seeds, key_of
from compare_agents.running import jobs_for

from helpers.comparing_runs import save_agent, small
from kvgym.errors import ConfigError

LATENCY = "e2e_latency_mean"
FCFS = Given("scheduler", "fcfs", "fcfs")
HAND = Given("ranked by hand", "by hand", "ranked")


def contest(*contestants, scenario=None, task="latency"):
    return Contest(task, {"rate": "1"}, Seeds(2, 1).benchmark(scenario or small(), LATENCY), contestants)


def test_keys_follow_what_an_outcome_depends_on(tmp_path):
    benchmark = Seeds(2, 1).benchmark(small(), LATENCY)
    agent = Given("agent", "a", save_agent(tmp_path / "a.json", waiting=1.0), agent=True)
    alike = Given("training seed", "b", save_agent(tmp_path / "b.json", waiting=1.0), agent=True)
    assert key_of(benchmark, agent) == key_of(benchmark, alike)
    others = [
        (benchmark, Given("agent", "c", save_agent(tmp_path / "c.json", waiting=2.0), agent=True)),
        (benchmark, replace(agent, true_lengths=True)),
        (benchmark, replace(agent, changes={"held": 0.0})),
        (Seeds(3, 1).benchmark(small(), LATENCY), agent),
        (Seeds(2, 2).benchmark(small(), LATENCY), agent),
        (Seeds(2, 1).benchmark(small(rate=41.0), LATENCY), agent),
        (replace(benchmark, metric="ttft_mean"), agent),
        (benchmark, FCFS),
        (benchmark, Tuned("scheduler", "x", "fcfs")),
        (benchmark, Tuned("scheduler", "x", "fcfs", {"protection": (0.1,)})),
        (benchmark, FixedKnobs("fixed knobs", "x", {"cap": (7,)})),
        (benchmark, FixedKnobs("fixed knobs", "x", {"cap": (6,)})),
    ]
    keys = {key_of(benchmark, agent), *(key_of(*other) for other in others)}
    assert len(keys) == 1 + len(others)


def test_an_agent_and_a_scheduler_of_one_name_differ(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "ranked"
    folder.mkdir()
    (folder / "config.yaml").write_text("policy: ranked\n")
    save_agent(folder / "best.json", waiting=3.0)
    benchmark = Seeds(2, 1).benchmark(small("interval", rate=80.0), LATENCY)
    trained = Given("agent", "ranked", "ranked", agent=True)
    assert key_of(benchmark, trained) != key_of(benchmark, HAND)
    assert trained.play(benchmark).values != HAND.play(benchmark).values


def test_jobs_run_everything_once():
    first, second = contest(FCFS, HAND), contest(HAND, Given("x", "vllm", "vllm"), task="spread")
    other = contest(FCFS, scenario=small(rate=60.0))
    jobs = jobs_for([first, second, other])
    assert [[e.label for e in job.contestants.values()] for job in jobs] == [
        ["fcfs", "by hand", "vllm"],
        ["fcfs"],
    ]
    done = first.run_keys()
    jobs = jobs_for([first, second, other], done)
    assert [[e.label for e in job.contestants.values()] for job in jobs] == [["vllm"], ["fcfs"]]
    assert jobs_for([first], done) == []


def test_labels_are_unique():
    with pytest.raises(ConfigError, match="'fcfs' is there twice"):
        contest(FCFS, Tuned("scheduler", "fcfs", "fcfs"))


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0), (1, 2_000_000)])
def test_seeds_are_there_and_apart(numbers):
    with pytest.raises(ConfigError, match="expected at least one of each"):
        Seeds(*numbers)
    benchmark = Seeds(30, 5).benchmark(small(), LATENCY)
    assert not set(benchmark.seeds) & set(benchmark.tuning_seeds)
    assert (len(benchmark.seeds), len(benchmark.tuning_seeds)) == (30, 5)
