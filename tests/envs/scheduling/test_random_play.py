"""Random play over random configurations: nothing breaks, the engine's invariants hold, all is repeatable.

``KVGYM_RANDOM_STEPS=1000000`` plays a million steps instead of some thousands.
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
from kvgym.envs.scheduling.environment import ServingEnv

STEPS = int(os.environ.get("KVGYM_RANDOM_STEPS", "12000"))
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_random_configurations(part, random_arguments, check_state):
    rng = np.random.default_rng(1000 + part)
    left = STEPS // PARTS
    while left > 0:
        arguments = random_arguments(rng)
        env = ServingEnv(**arguments)
        env.action_space.seed(int(rng.integers(2**31)))
        masked_share = rng.choice([0.0, 0.5, 1.0])
        steps = min(left, 400)
        left -= steps
        while steps > 0:
            steps -= play_episode(env, rng, masked_share, steps, check_state)


def play_episode(env, rng, masked_share, limit, check_state):
    """Play up to ``limit`` steps of an episode, checking everything; returns the steps taken."""
    observation, info = env.reset(seed=int(rng.integers(2**31)))
    arguments = env.config.model_dump(exclude_defaults=True)
    taken = 0
    while taken < limit:
        taken += 1
        assert observation in env.observation_space, arguments
        check_state(env)
        before = info["time"]
        masked = rng.random() < masked_share
        action = env.action_space.sample(env.sample_mask() if masked else None)
        observation, reward, terminated, truncated, info = env.step(action)
        terms = dict(zip(env.reward_terms, info["reward_terms"], strict=True))
        assert np.isfinite(reward)
        own = sum(w * terms[name] for name, w in env.config.reward.items())
        if env.config.reward_reference is None:
            assert reward == pytest.approx(own)
        assert info["time"] >= before
        if masked and env.config.action not in ("flags", "tokens"):
            assert info["ignored"] == 0, arguments
        if terminated or truncated:
            check_state(env)
            assert observation in env.observation_space, arguments
            result = env.result()
            assert result.completed == info["completed"] == terminated
            metrics = dict(zip(env.metric_names, info["metrics"], strict=True))
            assert metrics["finished"] == (result.requests["status"] == 3).sum()
            if terminated:
                assert metrics["finished"] == len(result.table)
                check_records(result)
            break
    return taken


def check_records(result):
    """Check the records of a completed episode."""
    table, r = result.table, result.requests
    assert (table.arrival_time <= r["start_time"]).all()
    assert (r["start_time"] <= r["first_token_time"]).all()
    assert (r["first_token_time"] <= r["finish_time"]).all()
    np.testing.assert_array_equal(r["num_output_tokens"], table.output_len)
    shown = table.output_len + (1 if result.system.first_token == "uncounted" else 0)
    assert result.gap_counts.sum() == (shown - 1).sum()


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


@pytest.mark.parametrize("name", IDS)
def test_pickling_keeps_the_generator(name, small, equal):
    env = gym.make(name, **small)
    env.reset(seed=3)
    copy = pickle.loads(pickle.dumps(env))
    assert copy.unwrapped.np_random_seed == 3
    assert copy.spec == env.spec
    for _ in range(3):
        assert equal(env.reset(), copy.reset())
