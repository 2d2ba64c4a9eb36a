"""Information of the last step of an episode, at any limit."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import kvgym
from helpers.environments import vector_play
from kvgym.envs import IDS, SCALING_ID

FEW = {"num_requests": 12, "rate": 2.0}
STEPS = 5


def few(name):
    """Return arguments of an episode that random actions do not end within STEPS."""
    return {**FEW, "control": 1.0} if name == SCALING_ID else FEW


def last(env, steps):
    """Play at random, without a mask, and return the last step."""
    env.reset(seed=1)
    env.action_space.seed(1)
    for step in range(1, steps + 1):
        found = env.step(env.action_space.sample())
        assert ("metrics" in found[4]) == (step == steps)
        assert (found[2] or found[3]) == (step == steps)
    return found


@pytest.mark.parametrize("name", IDS)
def test_the_declared_limit_ends_an_episode_with_its_metrics(name):
    env = gym.make(vector_play.limited(name, STEPS), **few(name))
    *_, terminated, truncated, info = last(env, STEPS)
    assert (terminated, truncated, info["completed"]) == (False, True, False)
    expected = kvgym.compute_metrics(env.unwrapped.result())
    assert env.unwrapped.metrics() == pytest.approx(expected, abs=0, nan_ok=True)
    np.testing.assert_array_equal(info["metrics"], list(expected.values()))
    assert (
        "metrics" not in env.step(env.action_space.sample())[4]
    )  # as with any TimeLimit, more steps are possible


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("name", IDS)
def test_a_vector_applies_any_limit(name, mode):
    env = gym.make_vec(name, 2, autoreset_mode=mode, max_episode_steps=STEPS, **few(name))
    alone = gym.make(vector_play.limited(name, STEPS), **few(name))
    env.reset(seed=[1, 1])
    alone.reset(seed=1)
    env.action_space.seed(0)
    for _ in range(STEPS):
        action = env.single_action_space.sample()
        *_, truncated, info = env.step(np.stack([action, action]))
        *_, single = alone.step(action)
    assert truncated.all()
    info = info["final_info"] if mode == AutoresetMode.SAME_STEP else info
    assert info["_metrics"].all()
    np.testing.assert_array_equal(info["metrics"], [single["metrics"]] * 2)
    assert info["completed"].tolist() == [False, False]


@pytest.mark.parametrize("name", ["kvgym/AdmitCount-v0", "kvgym/Route-v0"])
def test_states_count_their_steps(name):
    """An episode continued from a state ends at the limit with its metrics, in any environment."""
    made = vector_play.limited(name, STEPS)
    env, other = (gym.make(made, **FEW) for _ in range(2))
    env.reset(seed=1)
    for _ in range(2):
        env.step(0)
    other.reset(seed=2)
    other.unwrapped.set_state(env.unwrapped.get_state())
    there = ["metrics" in other.unwrapped.step(0)[4] for _ in range(STEPS - 2)]
    assert there == [False] * (STEPS - 3) + [True]
    assert env.unwrapped.get_state().steps == 2


@pytest.mark.parametrize("name", ["kvgym/AdmitEvict-v0", "kvgym/Route-v0"])
def test_metrics_before_there_is_an_episode(name):
    env = gym.make(name, **FEW)
    with pytest.raises(gym.error.ResetNeeded):
        env.unwrapped.metrics()
    env.reset(seed=0)
    assert env.unwrapped.metrics()["finished"] == 0
