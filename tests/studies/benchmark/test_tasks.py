import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import kvgym
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.scenario import load_scenario
from kvgym.studies.benchmark import tasks
from kvgym.studies.benchmark.entries import load_entry
from kvgym.studies.benchmark.judging import judge
from kvgym.studies.benchmark.running import run_benchmark
from kvgym.studies.benchmark.tasks import FIRST_TEST, load_suite, scenario_file
from kvgym.workloads.workload import describe_workload

SUITE = load_suite()


@pytest.mark.parametrize("task", SUITE.tasks, ids=lambda task: task.name)
def test_tasks_are_frozen(task):
    assert task.digest(SUITE.name) == task.hash, "a change of a task is a new suite"
    plain, reference = np.array(task.plain_values), np.array(task.reference_values)
    assert len(plain) == len(reference) == task.test_seeds
    assert (reference <= plain).all()
    assert task.seeds[0] == FIRST_TEST


def test_a_task_is_an_environment():
    task = SUITE.task("hidden-kinds")
    env = kvgym.make_task("hidden-kinds")
    assert env.spec.id == "kvgym/Priority-v0"
    assert env.spec.reward_threshold == -np.mean(task.reference_values)
    assert gym.spec("kvgym/Priority-v0").reward_threshold is None
    env.reset(seed=3)
    step = env.step(env.action_space.sample())
    assert np.isfinite(step[1])
    assert kvgym.make_task("routing-unequal", 2).num_envs == 2


def test_the_example_of_the_page_runs():
    page = Path(__file__).parents[3] / "docs" / "benchmark-suite.md"
    (code,) = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    names = {}
    exec(compile(code, page.name, "exec"), names)
    assert names["several"].num_envs == 8


@pytest.mark.parametrize(
    "task", [task for task in SUITE.tasks if task.environment], ids=lambda task: task.name
)
def test_every_task_with_an_environment_can_be_made(task):
    kvgym.make_task(task.name).reset(seed=0)


def test_results_depend_on_the_tasks_of_their_role():
    fewer = SUITE.model_copy(update={"tasks": SUITE.tasks[:-1]})
    assert fewer.hash_of("router") == SUITE.hash_of("router")
    assert fewer.hash_of("scheduler") != SUITE.hash_of("scheduler")
    assert fewer.hash != SUITE.hash


def test_mistakes_are_named():
    with pytest.raises(UnknownNameError, match="hidden-kinds"):
        kvgym.make_task("hidden_kinds")
    with pytest.raises(ConfigError, match="leave scenario out"):
        kvgym.make_task("hidden-kinds", scenario="conversations")
    with pytest.raises(ConfigError, match=r"routing-tiers has no environment.*enter a router"):
        kvgym.make_task("routing-tiers")


def test_a_changed_task_is_refused(monkeypatch):
    loaded = load_scenario(scenario_file(SUITE.name, "applications"))
    changed = loaded.override(workload={**describe_workload(loaded.workload), "rate": 1.0})
    monkeypatch.setattr(tasks, "load_scenario", lambda path: changed)
    for use in (
        lambda: kvgym.make_task("applications"),
        lambda: run_benchmark([load_entry("fcfs")], tasks=["applications"], jobs=1),
        lambda: judge("fcfs", tasks=("applications",)),
    ):
        with pytest.raises(ConfigError, match=r"task applications of kvgym-bench-2 has changed.* --suite"):
            use()
