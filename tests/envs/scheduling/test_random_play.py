"""Random play is repeatable: in this process, in another one, and after pickling.

``scripts/checks/random_play.py`` checks its invariants, see tests/scripts/checks/test_random_play.py.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

from kvgym.envs import SCHEDULING_IDS as IDS


def digest(env: gym.Env, seed: int, steps: int = 150) -> str:
    """Return a fingerprint of a trajectory over several episodes."""
    out = hashlib.sha256()
    base = env.unwrapped
    observation, info = env.reset(seed=seed)
    env.action_space.seed(seed)
    for _ in range(steps):
        out.update(observation.tobytes())
        out.update(base.action_masks().tobytes())
        numbers = sorted(set(info) - {"action_mask"})
        out.update(b"".join(np.asarray(info[name]).tobytes() for name in numbers))
        observation, reward, terminated, truncated, info = env.step(
            env.action_space.sample(base.sample_mask())
        )
        out.update(np.array([reward, terminated, truncated]).tobytes())
        if terminated or truncated:
            observation, info = env.reset()
    return out.hexdigest()


@pytest.mark.parametrize("name", IDS)
def test_same_seed_same_trajectory(name, small):
    env = gym.make(name, **small)
    first = digest(env, 5)
    assert digest(env, 5) == first
    assert digest(gym.make(name, **small), 5) == first
    assert digest(env, 6) != first
    assert digest(pickle.loads(pickle.dumps(env)), 5) == first


SCRIPT = """
import importlib.util, sys, gymnasium as gym
spec = importlib.util.spec_from_file_location("play", sys.argv[1])
play = importlib.util.module_from_spec(spec)
spec.loader.exec_module(play)
for name in play.IDS:
    print(play.digest(gym.make(name, **eval(sys.argv[2])), 5))
"""


def test_same_trajectory_in_another_process(small):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, __file__, repr(small)],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert done.stdout.split() == [digest(gym.make(name, **small), 5) for name in IDS]
