"""Excluding admitting nothing while the worker is empty: masks, choices, schedulers, agents."""

from __future__ import annotations

import numpy as np
import pytest

import kvgym
from kvgym.envs.agents import AgentPolicy, NotExpressibleError, action_of, play
from kvgym.envs.scheduling.environment import ServingEnv, greedy_action
from kvgym.errors import ConfigError, LivelockError
from kvgym.policies.policy import Decision

KINDS = ("admit_evict", "admit_count", "flags")
SLOTTED = {"scenario": "mc-sf-model-2", "queue_window": 2, "active_window": 2}
NOTHING = {"admit_evict": 4, "admit_count": 0, "flags": np.zeros(4, np.int8)}
EMPTY = {"admit_evict": [1, 1, 0, 0, 0], "admit_count": [0, 1, 1], "flags": [0, 1, 1, 1, 1, 0, 1, 0]}
"""Masks in sb3-contrib's layout at an empty worker with two waiting requests that fit together."""
RUNNING = {"admit_evict": [1, 0, 1, 0, 1], "admit_count": [1, 1, 0], "flags": [1, 1, 1, 0, 1, 1, 1, 0]}
"""And once the first of them runs."""
ADMIT_ONE = {"admit_evict": [0, 4], "admit_count": [1], "flags": [np.array([1, 0, 0, 0])]}


@pytest.fixture
def two(requests_of):
    return {**SLOTTED, "kv_capacity": 12, "workload": requests_of((0, 4, 2), (0, 4, 2))}


@pytest.mark.parametrize("kind", KINDS)
def test_masks_by_hand(kind, two):
    """A masked choice is a no-op that is counted, and the worker waits, as without the mask."""
    env, first = ServingEnv(action=kind, **two), ServingEnv(action=kind, must_admit=False, **two)
    for e in (env, first):
        e.reset(seed=0)
    assert env.action_masks().astype(int).tolist() == EMPTY[kind]
    assert first.action_masks().astype(int).sum() == sum(EMPTY[kind]) + 1
    ignored = [e.step(NOTHING[kind])[4]["ignored"] for e in (env, first)]
    assert ignored == [1, 0]
    assert env.view.clock == first.view.clock > 0
    for action in ADMIT_ONE[kind]:
        *_, info = env.step(action)
        assert info["ignored"] == 0
    assert env.view.active.request_id.tolist() == [0]
    assert env.action_masks().astype(int).tolist() == RUNNING[kind]
    assert env.step(NOTHING[kind])[4]["ignored"] == 0
    assert env.action_space.contains(greedy_action(env.config, env.action_masks()))


def test_choices_before_the_batch_count(two):
    """After one admission the batch may run, even if another request would fit."""
    env = ServingEnv(action="admit_evict", **two)
    env.reset(seed=0)
    *_, info = env.step(1)
    assert info["time"] == 0
    assert info["action_mask"].tolist() == [1, 0, 0, 0, 1]


def test_a_forced_flag_in_the_form_of_gymnasium(two):
    env = ServingEnv(action="flags", **two)
    _, info = env.reset(seed=0)
    assert info["action_mask"].tolist() == [1, 2, 0, 0]
    env.action_space.seed(0)
    assert all(env.action_space.sample(mask=info["action_mask"])[0] == 1 for _ in range(10))


@pytest.mark.parametrize("kind", KINDS)
def test_schedulers_that_idle_are_refused(kind, two):
    env = ServingEnv(action=kind, **two)
    env.reset(seed=0)
    with pytest.raises(NotExpressibleError, match="waiting at an empty worker; use must_admit=False"):
        next(action_of(env, Decision()))
    _, total = play(env, "fcfs")
    assert total == play(ServingEnv(action=kind, must_admit=False, **two), "fcfs")[1]


class Nothing:
    """An agent that prefers to admit nothing, and takes the first legal choice otherwise."""

    def predict(self, observation, *, deterministic=True, action_masks=None):
        return int(np.flatnonzero(action_masks)[0]), None


def test_an_idle_agent_serves_every_request():
    """Without the mask it livelocks."""
    task = {"action": "admit_count", "num_requests": 10, "rate": 40.0, "kv_capacity": 6000}
    scenario = kvgym.load_scenario("a100-llama2-70b").override(kv_capacity=6000)
    scenario = scenario.override(workload={"preset": "lmsys", "num_requests": 10, "rate": 40.0})
    agents = [AgentPolicy(Nothing(), name=f"{on}", must_admit=on, **task) for on in (True, False)]
    with pytest.warns(RuntimeWarning, match="1 of 2 runs failed"):
        found = kvgym.compare(scenario, agents, seeds=[0])
    assert found.values("True", "e2e_latency_mean")[0] > 0
    assert list(found.errors()) == ["False"]


def test_only_for_kinds_that_choose_requests():
    for kind in ("knobs", "rank", "rank_scores", "tokens", "priority"):
        with pytest.raises(ConfigError, match=f"must_admit is for actions that choose requests.*{kind}"):
            ServingEnv(action=kind, must_admit=True)


class Undecided:
    """An agent that most probably admits nothing, and draws any legal choice otherwise."""

    def predict(self, observation, *, deterministic=True, action_masks=None, rng=None):
        return 0 if deterministic else int(rng.choice(np.flatnonzero(action_masks))), None


def test_drawn_actions_depend_on_the_seed_alone():
    task = {
        "action": "admit_count",
        "must_admit": False,
        "num_requests": 10,
        "rate": 40.0,
        "kv_capacity": 6000,
    }
    env = ServingEnv(**task)
    system, table = env.episodes.system, env.episodes.workload.sample(0)
    agent = AgentPolicy(Undecided(), deterministic=False, **task)
    finish = [
        kvgym.simulate(system, table, agent, seed=s).requests["finish_time"].tolist() for s in (0, 0, 1)
    ]
    assert finish[0] == finish[1] != finish[2]
    assert agent.content()["deterministic"] is False
    with pytest.raises(LivelockError, match=r"by MODEL:deterministic=false or .*must_admit=True") as found:
        kvgym.simulate(system, table, AgentPolicy(Undecided(), **task))
    assert len(str(found.value)) <= 300
    assert "deterministic" not in AgentPolicy(Undecided(), deterministic=False, **task).info.livelock_advice
