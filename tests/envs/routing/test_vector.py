"""The vector environment of clusters equals SyncVectorEnv of the scalar one, bit for bit."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from helpers.environments import vector_play
from helpers.environments.routing_play import APART, SMALL
from kvgym.envs.routing.vector_environment import RoutingVectorEnv
from kvgym.errors import ConfigError

N = 3
MODES = tuple(AutoresetMode)


def pair(name, mode, max_episode_steps=None, **arguments):
    """Return the vector environment and SyncVectorEnv."""
    return vector_play.pair(name, N, mode, max_episode_steps, **{**SMALL, **arguments})


def run_both(native, sync, equal, steps=60, **reset):
    """Step both with the same random choices, most inside the masks; return the number of ended episodes."""
    rng = np.random.default_rng(0)

    def choose():
        masks = native.unwrapped.action_masks()
        inside = np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])
        return np.where(rng.random(N) < 0.9, inside, rng.integers(masks.shape[1], size=N))

    return vector_play.drive(native, sync, equal, choose, steps, reset)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("observation", ["flat", "dict", "rllib"])
@pytest.mark.parametrize("caches", [False, True])
def test_equals_sync(caches, observation, mode, equal):
    native, sync = pair("kvgym/Route-v0", mode, observation=observation, caches=caches)
    assert isinstance(native.unwrapped, RoutingVectorEnv)
    for space in ("single_action_space", "single_observation_space", "action_space", "observation_space"):
        assert getattr(native, space) == getattr(sync, space)
    assert run_both(native, sync, equal, seed=11) >= 3
    assert run_both(native, sync, equal, steps=20, seed=[5, None, 5]) >= 0


@pytest.mark.parametrize("mode", MODES)
def test_separate_prefill_and_decode_with_a_time_limit(mode, equal):
    native, sync = pair("kvgym/Route-v0", mode, max_episode_steps=7, workers=APART)
    assert run_both(native, sync, equal, seed=2) > 9


def test_requests_of_given_seeds():
    env = gym.make_vec("kvgym/Route-v0", N, **SMALL)
    seeds = [7, 8, 7]
    observations, info = env.reset(seed=0, options={"workload_seed": seeds})
    alone = gym.make("kvgym/Route-v0", **SMALL)
    for i, seed in enumerate(seeds):
        observation, own = alone.reset(options={"workload_seed": seed})
        assert np.array_equal(observations[i], observation)
        assert info["request"][i] == own["request"]
    assert np.array_equal(observations[0], observations[2])
    assert not np.array_equal(observations[0], observations[1])


def test_copies_continue(equal):
    env = gym.make_vec("kvgym/Route-v0", 2, **SMALL).unwrapped
    env.reset(seed=3)
    env.step(np.zeros(2, int))
    copied, states = pickle.loads(pickle.dumps(env)), env.get_state()
    for _ in range(20):
        assert equal(copied.step(np.ones(2, int)), env.step(np.ones(2, int)))
    observation, _ = copied.set_state(states)
    alone = gym.make("kvgym/Route-v0", **SMALL).unwrapped
    assert np.array_equal(alone.set_state(states[1])[0], observation[1])
    again = [copied.step(np.array([2, 1]))[0][1] for _ in range(5)]
    assert np.array_equal([alone.step(1)[0] for _ in range(5)], again)


def test_wrong_actions_change_nothing(equal):
    env = gym.make_vec("kvgym/Route-v0", 2, **SMALL).unwrapped
    env.reset(seed=3)
    before = pickle.dumps(env.get_state())
    for wrong in ([0, 3], [0, -1]):
        with pytest.raises(ConfigError, match="of environment 1 is"):
            env.step(np.array(wrong))
    with pytest.raises(ConfigError, match="shape"):
        env.step(np.zeros(3, int))
    assert pickle.dumps(env.get_state()) == before


def test_errors():
    with pytest.raises(ConfigError, match="does not render"):
        gym.make_vec("kvgym/Route-v0", 2, render_mode="ansi", vectorization_mode="vector_entry_point")
    with pytest.raises(ConfigError, match="workers"):
        gym.make_vec("kvgym/Route-v0", 2, workers=1, vectorization_mode="vector_entry_point")
