"""Cells and what has to be run for them: each run once, and again only where something differs."""

from dataclasses import replace

import pytest
from compare_agents.cells import Cell, Seeds, key_of
from compare_agents.entrants import FixedKnobs, Given, Tuned
from compare_agents.running import jobs_for

from helpers.comparing_runs import save_agent, small
from kvgym.errors import ConfigError

LATENCY = "e2e_latency_mean"
FCFS = Given("scheduler", "fcfs", "fcfs")
HAND = Given("ranked by hand", "by hand", "ranked")


def cell(*entrants, scenario=None, task="latency"):
    return Cell(task, {"rate": "1"}, Seeds(2, 1).bench(scenario or small(), LATENCY), entrants)


def test_keys_follow_what_an_outcome_depends_on(tmp_path):
    bench = Seeds(2, 1).bench(small(), LATENCY)
    agent = Given("agent", "a", save_agent(tmp_path / "a.json", waiting=1.0), agent=True)
    alike = Given("training seed", "b", save_agent(tmp_path / "b.json", waiting=1.0), agent=True)
    assert key_of(bench, agent) == key_of(bench, alike)
    others = [
        (bench, Given("agent", "c", save_agent(tmp_path / "c.json", waiting=2.0), agent=True)),
        (bench, replace(agent, true_lengths=True)),
        (bench, replace(agent, changes={"held": 0.0})),
        (Seeds(3, 1).bench(small(), LATENCY), agent),
        (Seeds(2, 2).bench(small(), LATENCY), agent),
        (Seeds(2, 1).bench(small(rate=41.0), LATENCY), agent),
        (replace(bench, metric="ttft_mean"), agent),
        (bench, FCFS),
        (bench, Tuned("scheduler", "x", "fcfs")),
        (bench, Tuned("scheduler", "x", "fcfs", {"protection": (0.1,)})),
        (bench, FixedKnobs("fixed knobs", "x", {"cap": (7,)})),
        (bench, FixedKnobs("fixed knobs", "x", {"cap": (6,)})),
    ]
    keys = {key_of(bench, agent), *(key_of(*other) for other in others)}
    assert len(keys) == 1 + len(others)


def test_an_agent_is_told_from_the_scheduler_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "ranked"
    folder.mkdir()
    (folder / "config.yaml").write_text("policy: ranked\n")
    save_agent(folder / "best.json", waiting=3.0)
    bench = Seeds(2, 1).bench(small("interval", rate=80.0), LATENCY)
    trained = Given("agent", "ranked", "ranked", agent=True)
    assert key_of(bench, trained) != key_of(bench, HAND)
    assert trained.play(bench).values != HAND.play(bench).values


def test_jobs_run_everything_once():
    first, second = cell(FCFS, HAND), cell(HAND, Given("x", "vllm", "vllm"), task="spread")
    other = cell(FCFS, scenario=small(rate=60.0))
    jobs = jobs_for([first, second, other])
    assert [[e.label for e in job.entrants.values()] for job in jobs] == [
        ["fcfs", "by hand", "vllm"],
        ["fcfs"],
    ]
    done = first.run_keys()
    jobs = jobs_for([first, second, other], done)
    assert [[e.label for e in job.entrants.values()] for job in jobs] == [["vllm"], ["fcfs"]]
    assert jobs_for([first], done) == []


def test_labels_tell_entrants_apart():
    with pytest.raises(ConfigError, match="'fcfs' is there twice"):
        cell(FCFS, Tuned("scheduler", "fcfs", "fcfs"))


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0), (1, 2_000_000)])
def test_seeds_are_there_and_apart(numbers):
    with pytest.raises(ConfigError, match="expected at least one of each"):
        Seeds(*numbers)
    bench = Seeds(30, 5).bench(small(), LATENCY)
    assert not set(bench.seeds) & set(bench.tuning_seeds)
    assert (len(bench.seeds), len(bench.tuning_seeds)) == (30, 5)
