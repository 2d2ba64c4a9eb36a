"""The routing environment under random play: seeds, registration, arguments."""

from __future__ import annotations

import hashlib
import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from helpers.environments.routing_play import (
    CLUSTERS,
    SMALL,
    TIGHT,
    random_episode,
)
from kvgym.envs.routing.config import RoutingConfig
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ConfigError, UnknownNameError
from playing.checks import time_inside
from playing.configurations import routing_arguments

# ---------------------------------------------------------------- random play, repeatability


@pytest.mark.parametrize("number", range(40))
def test_random_play(number, equal):
    rng = np.random.default_rng(number)
    arguments = routing_arguments(rng)
    env = RoutingEnv(**arguments)
    steps = random_episode(env, number)
    assert all(step[0] in env.observation_space for step in steps), arguments
    assert all(np.isfinite(step[1]) for step in steps[1:])
    assert [type(x) for x in steps[-1][1:4]] == [float, bool, bool]
    result, info = env.result(), steps[-1][4]
    assert result.completed == info["completed"] == steps[-1][2]
    inside = time_inside(result, info["time"]) / arguments["num_requests"]
    assert sum(step[1] for step in steps[1:]) == pytest.approx(-inside, rel=1e-9)
    assert equal(random_episode(env, number), steps)
    assert equal(random_episode(pickle.loads(pickle.dumps(env)), number), steps)


@pytest.mark.parametrize("number", range(6))
def test_plain_python_takes_the_same_steps(number, equal):
    arguments = {**routing_arguments(np.random.default_rng(100 + number)), "num_requests": 8}
    found = [random_episode(RoutingEnv(compiled=c, **arguments), number) for c in (True, False)]
    assert equal(*found), arguments


def test_seeds(equal):
    env, other = (gym.make("kvgym/Route-v0", **SMALL) for _ in range(2))
    first = env.reset(seed=3)
    assert equal(first, other.reset(seed=3))
    following = env.reset()
    assert equal(following, other.reset())
    copy = pickle.loads(pickle.dumps(env))
    assert equal(env.reset(), copy.reset())
    digests = {hashlib.sha256(env.reset(seed=s)[0].tobytes()).hexdigest() for s in range(8)}
    assert len(digests) > 4
    env.reset(options={"workload_seed": 4})
    table = env.unwrapped.workload.sample(4)
    np.testing.assert_array_equal(env.unwrapped.result().table.output_len, table.output_len)


def test_returned_arrays_do_not_change(equal):
    env, twin = RoutingEnv(**SMALL), RoutingEnv(**SMALL)
    kept = [env.reset(seed=1)]
    twin.reset(seed=1)
    for k in range(12):
        kept.append(env.step(k % 3))
        spoilt = twin.step(k % 3)
        assert equal(kept[-1], spoilt)
        spoilt[0][:] = -1
        for value in spoilt[4].values():
            if isinstance(value, np.ndarray):
                value[:] = 99
        twin.action_masks()[:] = False
        twin.result().worker[:] = 0
    before = env.result()
    env.reset(seed=2)
    assert before.completed
    assert before.worker["total_finished"].sum() == 12


# ---------------------------------------------------------------- registration and arguments


@pytest.mark.parametrize("how", ["json", "pickle"])
def test_spec_survives(how, equal):
    arguments = {**TIGHT, **CLUSTERS["apart"], "reward": {"latency": 0.5, "ttft": 0.1}, "policy": "fcfs"}
    env = gym.make("kvgym/Route-v0", **arguments)
    spec = env.spec
    copy = EnvSpec.from_json(spec.to_json()) if how == "json" else pickle.loads(pickle.dumps(spec))
    again = gym.make(copy)
    assert again.unwrapped.config == env.unwrapped.config
    assert RoutingConfig.of(**env.unwrapped.config.model_dump(mode="json")) == env.unwrapped.config
    assert equal(env.reset(seed=1), again.reset(seed=1))
    assert equal(env.step(1), again.step(1))


@pytest.mark.parametrize("observation", ["flat", "dict"])
def test_vector(observation, equal):
    """Gymnasium's own vector environments accept it."""
    arguments = {**SMALL, "observation": observation}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vector = gym.make_vec("kvgym:kvgym/Route-v0", num_envs=3, vectorization_mode="sync", **arguments)
        observations, infos = vector.reset(seed=5)
        singles = [gym.make("kvgym/Route-v0", **arguments) for _ in range(3)]
        first = [env.reset(seed=5 + k) for k, env in enumerate(singles)]
        for _ in range(12):
            stacked = [o for o, *_ in first] if observation == "flat" else [o["workers"] for o, *_ in first]
            np.testing.assert_array_equal(
                observations if observation == "flat" else observations["workers"], np.stack(stacked)
            )
            np.testing.assert_array_equal(
                infos["action_mask"], np.stack([f[-1]["action_mask"] for f in first])
            )
            observations, rewards, ended, _, infos = vector.step(np.array([0, 1, 2]))
            first = [env.step(k) for k, env in enumerate(singles)]
            np.testing.assert_allclose(rewards, [f[1] for f in first])
        assert ended.all()
        assert infos["metrics"].shape == (3, len(RoutingEnv.metric_names))
        vector.step(np.zeros(3, np.int64))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"worker": 3}, "worker: .*valid there: scenario, workers, policy"),
        ({"workers": 1}, "workers"),
        ({"workers": [{"count": 1}]}, "1 workers.*no choice"),
        ({"workers": [{"role": "prefill"}, {"role": "decode"}]}, "2 workers, 1 of them for prefill"),
        ({"workers": [{"count": 2, "rolle": "mixed"}]}, "rolle"),
        ({"observation": "image"}, "observation"),
        (
            {"information": ["class_rates"]},
            "unknown information 'class_rates'.*Valid names: .*predicted_length",
        ),
        ({"information": ["length_interval"]}, "requests have no predicted_low"),
        ({"information": ["class"]}, "requests have no class_id"),
        ({"policy": "wait"}, "needs class"),
        ({"policy": "mc_sf:protection=3"}, "protection"),
        ({"reward": {"speed": 1.0}}, "unknown reward term 'speed'.*Valid names: .*latency"),
        ({"reward_scale": 0}, "reward_scale"),
        ({"horizon": float("inf")}, "horizon"),
        ({"render_mode": "human"}, "render_mode = 'human'; valid: rgb_array, ansi"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        RoutingEnv(**{**SMALL, **arguments})


def test_wrong_names_and_options():
    with pytest.raises(UnknownNameError, match="unknown scenario"):
        RoutingEnv(scenario="a100")
    with pytest.raises(UnknownNameError, match="mc_sf"):
        RoutingEnv(policy="mc_sff")
    env = RoutingEnv(**SMALL)
    with pytest.raises(ConfigError, match="unknown reset option 'seed'; valid: workload_seed"):
        env.reset(options={"seed": 3})
    with pytest.raises(ConfigError, match="seed must be a whole number"):
        env.reset(options={"workload_seed": -1})


def test_the_load_is_replicated_with_the_worker(tmp_path):
    """One worker's load is kept per worker unless a rate is given; a cluster's scenario is unchanged."""
    assert RoutingEnv().workload.mean_rate == 200
    assert RoutingEnv(workers=6).workload.mean_rate == 300
    assert RoutingEnv(rate=70.0).workload.mean_rate == 70
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "summary: three workers\nhardware: llama2-70b-a100-tp2\nworkload: {preset: lmsys, num_requests: 50}\n"
        "workers: 3\n"
    )
    env = RoutingEnv(scenario=str(path))
    assert env.action_space.n == 3
    assert env.workload.mean_rate == 50
    assert RoutingEnv(scenario=str(path), workers=5).workload.mean_rate == 50
    with pytest.raises(ConfigError, match=r"is a cluster.*kvgym/Route-v0"):
        ServingEnv(scenario=str(path))
