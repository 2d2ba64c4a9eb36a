"""Actions in [-1, 1] in float32: the same episodes as with numbers in the units of the kind."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from kvgym.baselines.ranked.weights import WEIGHTS
from kvgym.envs.agents import AgentPolicy, play
from kvgym.envs.demonstrations.record import demonstrate
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.environment import ServingEnv, greedy_action
from kvgym.errors import ConfigError
from kvgym.policies.policy import Decision, Policy, PolicyInfo
from kvgym.policies.runner import simulate

TASK = {"num_requests": 15, "rate": 40.0, "kv_capacity": 5000, "queue_window": 3, "active_window": 3}


def own_numbers(space, unit):
    """Return the numbers that an action in [-1, 1] means, computed independently: a share of the range."""
    return space.low + (unit.astype(np.float64) + 1) / 2 * (space.high - space.low)


def test_the_ends_and_the_middle_of_a_range():
    config = EnvConfig.of(action="rank")
    space = config.kind.space(config)
    assert config.action_space == gym.spaces.Box(-1, 1, (len(WEIGHTS),), np.float32)
    middle = (space.low + space.high) / 2
    for numbers, unit in ((space.low, -1), (middle, 0), (space.high, 1)):
        np.testing.assert_allclose(config.as_actions(numbers), unit, atol=1e-15)
    assert EnvConfig.of(action="rank", unit_actions=False).as_actions(space.low) is space.low


def check_equal(numbers_of, name):
    rng = np.random.default_rng(0)
    env, first = (
        gym.make(f"kvgym/{name}-v0", **TASK, **more).unwrapped for more in ({}, {"unit_actions": False})
    )
    for e in (env, first):
        e.reset(seed=1)
    for _ in range(25):
        unit = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        (one, *rest, info), (other, *others, expected) = env.step(unit), first.step(numbers_of(first, unit))
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert rest[1:] == others[1:]
        assert info["ignored"] == expected["ignored"]
        if rest[1] or rest[2]:
            break


def test_tokens_in_their_own_units():
    check_equal(lambda first, unit: unit.astype(np.float64), "Tokens")


@pytest.mark.parametrize("name", ["Rank", "RankScores"])
def test_other_kinds_in_their_own_units(name):
    check_equal(lambda first, unit: own_numbers(first.action_space, unit), name)


def test_numbers_outside_are_refused():
    env = gym.make("kvgym/Rank-v0", **TASK).unwrapped
    env.reset(seed=0)
    for wrong in (1.5, np.nan):
        action = np.zeros(env.action_space.shape, np.float32)
        action[2] = wrong
        with pytest.raises(ConfigError, match=f"number 2 of the action is {wrong}, outside"):
            env.step(action)


@pytest.mark.parametrize("name", ["Rank", "RankScores"])
def test_the_greedy_action_is_the_scheduler_itself(name):
    env = gym.make(f"kvgym/{name}-v0", **TASK).unwrapped
    env.reset(options={"workload_seed": 4})
    ended = False
    while not ended:
        action = greedy_action(env.config, env.action_masks())
        assert env.action_space.contains(action)
        ended = any(env.step(action)[2:4])
    system, table = env.episodes.system, env.episodes.slots[0].table
    expected = simulate(system, table, "ranked", seed=4)
    finish = env.result().requests["finish_time"]
    # Weights in float32 are not those of the scheduler to the last digit, additions of 0 are.
    np.testing.assert_allclose(
        finish, expected.requests["finish_time"], rtol=0 if name == "RankScores" else 0.05
    )


class LateStart(Policy):
    """A scheduler that waits for a time that float32 cannot express, then serves one request at a time."""

    info = PolicyInfo(name="late_start", summary="waits, then serves one at a time")

    def schedule(self, view):
        if view.clock < 3.3333333333:
            return Decision(wait_until=3.3333333333)
        return Decision(admit=view.waiting.request_id[:1].tolist() if view.num_active == 0 else [])


def test_schedulers_play_exactly():
    """Their actions are float64, because float32 rounds the time until which a worker waits."""
    env = gym.make("kvgym/Tokens-v0", num_requests=3, queue_window=3).unwrapped
    played, _ = play(env, LateStart())
    run = simulate(env.episodes.system, env.episodes.workload.sample(0), LateStart())
    assert np.array_equal(played.requests["finish_time"], run.requests["finish_time"])
    assert played.requests["start_time"][0] == 3.3333333333
    kept, expected = (
        demonstrate("fcfs", steps=20, action="tokens", unit_actions=on, num_requests=10)
        for on in (True, False)
    )
    assert kept.actions.dtype == np.float64
    assert np.array_equal(kept.actions, expected.actions)


class Middle:
    """An agent that always chooses the middle of every range."""

    def __init__(self, size):
        self.size = size

    def predict(self, observation, *, deterministic=True):
        return np.zeros(self.size, np.float32), None


def test_an_agent_acts_as_in_the_environment():
    env = gym.make("kvgym/Rank-v0", **TASK).unwrapped
    env.reset(options={"workload_seed": 3})
    ended = False
    while not ended:
        ended = any(env.step(np.zeros(len(WEIGHTS), np.float32))[2:4])
    agent = AgentPolicy(Middle(len(WEIGHTS)), action="rank", **TASK)
    run = simulate(env.episodes.system, env.episodes.slots[0].table, agent, seed=3)
    assert np.array_equal(env.result().requests["finish_time"], run.requests["finish_time"])


def test_the_vector_environment_converts_every_row():
    vector = gym.make_vec("kvgym/Rank-v0", 3, **TASK)
    singles = [gym.make("kvgym/Rank-v0", **TASK).unwrapped for _ in range(3)]
    vector.reset(seed=5)
    for k, env in enumerate(singles):
        env.reset(seed=5 + k)
    rng = np.random.default_rng(1)
    for _ in range(4):
        actions = rng.uniform(-1, 1, vector.action_space.shape).astype(np.float32)
        observations = vector.step(actions)[0]
        for k, env in enumerate(singles):
            assert np.array_equal(env.step(actions[k])[0], observations[k])


def test_the_usual_range_for_agents():
    config, own = (EnvConfig.of(action="rank_scores", unit_actions=unit) for unit in (True, False))
    centre, change = config.usual_action()
    assert not centre.any()
    np.testing.assert_allclose(change, 0.05)  # 0.5 of ± 10
    np.testing.assert_array_equal(own.usual_action()[1], 0.5)
    assert EnvConfig.of(action="tokens").usual_action() is None


def test_only_for_kinds_with_bounded_real_numbers():
    for kind in ("knobs", "flags", "admit_count", "admit_evict"):
        with pytest.raises(ConfigError, match=f"unit_actions is for actions of real numbers.*{kind}"):
            ServingEnv(action=kind, unit_actions=True)
