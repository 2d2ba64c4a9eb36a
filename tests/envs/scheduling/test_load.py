"""The load of an episode: a factor on the arrival rate, drawn from the workload seed."""

from __future__ import annotations

import pickle

import gymnasium as gym
import numpy as np
import pytest

from kvgym.agents.sb3.vec_env import make_sb3_env
from kvgym.envs.scheduling.drawing import at_load
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.errors import ConfigError
from kvgym.utils.seeding import STREAMS

ARGUMENTS = {"num_requests": 20, "rate": 10.0, "queue_window": 4, "active_window": 4}


def tables(env, count):
    """Return the requests of episodes with the seeds 0, 1, ..."""
    found = []
    for seed in range(count):
        env.reset(options={"workload_seed": seed})
        found.append(env.episodes.slots[0].table)
    return found


def factors(env, count=40):
    """Return each episode's factor, after checking that only arrivals were scaled."""
    found = []
    for seed, table in enumerate(tables(env, count)):
        plain = env.episodes.workload.sample(seed)
        ratio = plain.arrival_time / table.arrival_time
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)
        for name, column in plain.columns().items():
            if name != "arrival_time":
                np.testing.assert_array_equal(column, table.columns()[name])
        found.append(float(ratio[0]))
    return np.array(found)


def test_the_stream_was_added_last():
    assert STREAMS == (
        "arrivals", "lengths", "predictions", "classes", "policy", "routing", "noise", "load", "prefixes", "thinking",
        "startup", "autoscaler", "failures", "patience", "again", "drafts",
    )  # fmt: skip


def test_factors_lie_in_the_range():
    found = factors(ServingEnv(load=(0.5, 2.0), **ARGUMENTS), 200)
    assert len(np.unique(found)) == 200
    assert found.min() >= 0.5 * (1 - 1e-12)
    assert found.max() <= 2.0 * (1 + 1e-12)
    assert found.min() < 0.6
    assert found.max() > 1.7
    assert 0.4 < (found < 1).mean() < 0.6  # half of them below the geometric mean
    np.testing.assert_allclose(factors(ServingEnv(load=(3.0, 3.0), **ARGUMENTS), 5), 3.0, rtol=1e-12)


def test_a_fixed_factor_is_met_exactly():
    env = ServingEnv(**ARGUMENTS)
    plain = env.episodes.workload.sample(0)
    for factor in (0.3, 1.1, 3.0, 7.0):
        for seed in range(5):
            scaled = at_load(plain, (factor, factor), seed)
            np.testing.assert_array_equal(scaled.arrival_time, plain.arrival_time / factor)


def test_a_factor_of_one_changes_nothing(equal):
    def trajectory(env):
        out = [env.reset(seed=3)]
        env.action_space.seed(0)
        for _ in range(30):
            out.append(env.step(env.action_space.sample(env.sample_mask())))
            if out[-1][2] or out[-1][3]:
                out.append(env.reset())
        return out

    plain = trajectory(ServingEnv(**ARGUMENTS))
    assert equal(trajectory(ServingEnv(load=(1, 1), **ARGUMENTS)), plain)
    assert equal(
        trajectory(ServingEnv(load=(1, 2), **ARGUMENTS)), trajectory(ServingEnv(load=(1, 2), **ARGUMENTS))
    )
    assert not equal(trajectory(ServingEnv(load=(1, 2), **ARGUMENTS)), plain)


def test_vector_equals_scalar(equal):
    arguments = {**ARGUMENTS, "load": (0.5, 2.0)}
    vector = gym.make_vec("kvgym/AdmitCount-v0", 3, **arguments)
    vector.reset(seed=8)
    singles = [gym.make("kvgym/AdmitCount-v0", **arguments) for _ in range(3)]
    for i, env in enumerate(singles):
        env.reset(seed=8 + i)
        ours = vector.unwrapped.episodes.slots[i].table.to_records()
        assert equal(ours, env.unwrapped.episodes.slots[0].table.to_records())
    for _ in range(20):
        observations = vector.step(np.ones(3, int))[0]
        for i, env in enumerate(singles):
            np.testing.assert_array_equal(observations[i], env.step(1)[0])


def test_rates_of_classes_follow():
    env = ServingEnv(scenario="wait-low", load=(0.5, 0.5), num_requests=20)
    env.reset(seed=0)
    plain, table = env.episodes.workload.sample(0), env.episodes.slots[0].table
    assert [c.rate for c in table.classes] == [c.rate / 2 for c in plain.classes]
    assert [c.output_len for c in table.classes] == [c.output_len for c in plain.classes]


def test_setting_the_range():
    env = ServingVectorEnv(2, **ARGUMENTS)
    assert env.load == (1.0, 1.0)
    options = {"workload_seed": 5}
    env.reset(options=dict(options))
    plain = env.episodes.slots[1].table.arrival_time
    env.load = [2, 2]
    assert env.load == env.config.load == (2.0, 2.0)
    np.testing.assert_array_equal(env.episodes.slots[1].table.arrival_time, plain)  # for future episodes only
    env.reset(options=dict(options))
    np.testing.assert_array_equal(env.episodes.slots[1].table.arrival_time, plain / 2)
    assert pickle.loads(pickle.dumps(env)).load == (2.0, 2.0)
    env.load = np.array([0.5, 0.75])
    for wrong in (
        (2.0, 1.0),
        (0.0, 1.0),
        (1.0, np.inf),
        (np.nan, 1.0),
        2.0,
        (1.0,),
        (1.0, 2.0, 3.0),
        "no",
        None,
    ):
        with pytest.raises(ConfigError):
            env.load = wrong
        assert env.load == (0.5, 0.75)


@pytest.mark.parametrize("load", [(2.0, 1.0), (0.0, 1.0), (-1.0, 1.0), (1.0,)])
def test_wrong_ranges(load):
    with pytest.raises(ConfigError, match="load"):
        ServingEnv(load=load)


def test_setting_the_range_through_stable_baselines():
    env = make_sb3_env("admit_count", 2, seed=0, **ARGUMENTS)
    env.set_attr("load", (2.0, 3.0))
    assert env.get_attr("load") == [(2.0, 3.0)] * 2
    env.reset()
    with pytest.raises(ConfigError, match="load"):
        env.set_attr("load", (1.0, 1.0), indices=[0])
    with pytest.raises(ConfigError, match="hold"):
        env.set_attr("hold", 3)
