"""The checkers of Gymnasium and Stable-Baselines3, with warnings as errors, over every id and observation."""

from __future__ import annotations

import typing
import warnings

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from kvgym.envs import IDS, ROUTING_ID, SCALING_ID
from kvgym.envs.scheduling.config import EnvConfig

OBSERVATIONS = typing.get_args(EnvConfig.model_fields["observation"].annotation)
SETTINGS = (
    {},
    {
        "scenario": "mc-sf-model-2",
        "queue_window": 2,
        "active_window": 1,
        "epochs": "decision",
        "information": [],
    },
)
ROUTING = (
    {},
    {
        "scenario": "mc-sf-model-2",
        "workers": [{"count": 2, "role": "prefill"}, {"role": "decode"}],
        "information": [],
    },
)
SCALING = (
    {"num_requests": 200},
    {
        "scenario": "mc-sf-model-2",
        "workers": [{"count": 1, "role": "prefill", "most": 3}, {"role": "decode", "most": 2, "least": 0}],
        "action": "target",
        "window": None,
    },
    {"scenario": "scale-split", "num_requests": 200},
)
CLUSTERS = {ROUTING_ID: ROUTING, SCALING_ID: SCALING}
CASES = [(name, arguments) for name in IDS for arguments in CLUSTERS.get(name, SETTINGS)]


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_gymnasium(name, observation, arguments):
    env = gym.make(name, observation=observation, **arguments).unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)


@pytest.mark.parametrize("name", IDS)
def test_gymnasium_with_rendering(name):
    env = gym.make(name, scenario="mc-sf-model-2", render_mode="rgb_array").unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_stable_baselines3(name, observation, arguments):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    env = gym.make(name, observation=observation, **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checker.check_env(env.unwrapped)
        checker.check_env(env)


@pytest.mark.parametrize("name", IDS)
def test_wrappers(name):
    """Common wrappers, and the passive checker of make, issue no warnings."""
    env = gym.make(name, scenario="mc-sf-model-2", observation="dict", max_episode_steps=7)
    env = gym.wrappers.RecordEpisodeStatistics(gym.wrappers.FlattenObservation(env))
    env = gym.wrappers.NormalizeReward(gym.wrappers.TimeAwareObservation(env))
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(7):
        observation, *_, truncated, info = env.step(env.action_space.sample())
        assert observation in env.observation_space
    assert truncated
    assert info["episode"]["l"] == 7
    assert env.get_wrapper_attr("action_masks")().dtype == bool
