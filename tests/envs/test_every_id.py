"""Random play of every id: observations are in their space, and equal seeds give equal episodes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence

import kvgym.envs  # noqa: F401  (registers the ids)

IDS = sorted(name for name in gym.registry if name.startswith("kvgym/"))
STEPS = 60


def episode(name: str) -> list[Any]:
    env = gym.make(name, num_requests=30, max_episode_steps=-1)
    env.action_space.seed(3)
    outputs: list[Any] = [env.reset(seed=3)[0]]
    for _ in range(STEPS):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        outputs += [observation, float(reward)]
        if terminated or truncated:
            break
    env.close()
    return outputs


@pytest.mark.parametrize("name", IDS)
def test_equal_seeds_give_equal_episodes(name: str) -> None:
    one, other = episode(name), episode(name)
    assert len(one) > 2
    assert data_equivalence(one, other, exact=True)
    assert all(np.isfinite(reward) for reward in one[2::2])
