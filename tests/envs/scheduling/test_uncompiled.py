"""Plain Python and compiled code take the same steps, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.amount import some
from kvgym.envs import SCHEDULING_IDS as IDS
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv


def trajectory(env, seed, steps):
    """Return the steps of an environment with random actions, most of them inside the mask."""
    rng = np.random.default_rng(seed)
    found = [env.reset(seed=seed)]
    for _ in range(steps):
        env.action_space.seed(int(rng.integers(2**31)))
        masked = rng.random() < 0.8
        found.append(env.step(env.action_space.sample(env.sample_mask() if masked else None)))
        if found[-1][2] or found[-1][3]:
            found.append(env.reset())
    return found, env.result().requests


@pytest.mark.parametrize("action", dict.fromkeys(IDS.values()))
def test_small(action, small, equal):
    found = [trajectory(ServingEnv(action=action, compiled=c, **small), 5, 40) for c in (True, False)]
    assert equal(*found)


@pytest.mark.parametrize("number", some(range(24), 3))
def test_random_configurations(number, random_arguments, equal):
    rng = np.random.default_rng(500 + number)
    arguments = random_arguments(rng)
    found = [trajectory(ServingEnv(compiled=c, **arguments), number, 25) for c in (True, False)]
    assert equal(*found), arguments


def test_vector(small, equal):
    compiled, plain = (
        ServingVectorEnv(3, compiled=c, autoreset_mode="SameStep", **small, action="flags")
        for c in (True, False)
    )
    assert equal(compiled.reset(seed=1), plain.reset(seed=1))
    compiled.action_space.seed(0)
    for _ in range(15):
        actions = compiled.action_space.sample()
        assert equal(compiled.step(actions), plain.step(actions))
