"""Discount by time: durations of steps, and advantages by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import VecNormalize

from kvgym.agents import discount_by_time, load_training, make_sb3_env
from kvgym.agents.sb3.algorithms import make_environments, make_model, wrap
from kvgym.agents.sb3.mixed_env import MixedVecEnv
from kvgym.errors import ConfigError

SMALL = {
    "scenario": "mc-sf-model-2",
    "num_requests": 12,
    "queue_window": 5,
    "active_window": 3,
    "horizon": 300.0,
}

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def make(num_envs=2, seed=3):
    return make_sb3_env("admit_count", num_envs, seed=seed, **SMALL)


def test_the_durations_of_steps_add_up_to_the_time_of_an_episode():
    envs = MixedVecEnv([make(1, 3), make(1, 4)])
    envs.reset()
    begun = np.array([info["time"] for info in envs.reset_infos])
    total, episodes = begun, 0
    while episodes < 4:
        _, _, dones, infos = envs.step(np.full(2, 1))
        total = total + envs.step_seconds
        for i in np.flatnonzero(dones):
            inner = envs.parts[i].env
            assert total[i] == pytest.approx(infos[i]["kv/makespan"]) or total[i] >= infos[i]["kv/makespan"]
            total[i] = inner.episodes.slots[0].block["workers"]["clock"][0]
            episodes += 1
    assert (envs.step_seconds >= 0).all()


@pytest.mark.parametrize("kind", [PPO, MaskablePPO, RecurrentPPO])
def test_advantages_by_hand(kind):
    network = "MlpLstmPolicy" if kind is RecurrentPPO else "MlpPolicy"
    model = kind(
        network, VecNormalize(make(), norm_obs=False), n_steps=6, batch_size=12, gamma=1.0, device="cpu"
    )
    discount_by_time(model, 0.9)
    model.learn(12)
    buffer, rng = model.rollout_buffer, np.random.default_rng(0)
    assert (buffer.seconds > 0).any()
    buffer.reset()
    assert not buffer.seconds.any()
    for array in (buffer.rewards, buffer.values, buffer.seconds):
        array[:] = rng.exponential(1.0, array.shape)
    buffer.episode_starts[3, 0] = 1.0
    last, dones = torch.tensor([0.5, -1.0]), np.array([False, True])
    buffer.compute_returns_and_advantage(last, dones)
    for i in range(2):
        after = 0.0
        for k in range(5, -1, -1):
            ended = dones[i] if k == 5 else buffer.episode_starts[k + 1, i] == 1
            value = float(last[i]) if k == 5 else buffer.values[k + 1, i]
            kept = 0.0 if ended else 0.9 ** buffer.seconds[k, i]
            after = (
                buffer.rewards[k, i] + kept * value - buffer.values[k, i] + kept * buffer.gae_lambda * after
            )
            assert buffer.advantages[k, i] == pytest.approx(after, rel=1e-4, abs=1e-5)


def test_a_second_of_weight_one_is_no_discount():
    found = []
    for timed in (False, True):
        model = PPO("MlpPolicy", make(), n_steps=6, batch_size=12, gamma=1.0, seed=0, device="cpu")
        if timed:
            discount_by_time(model, 1.0)
        model.learn(24)
        found.append(model.rollout_buffer.returns)
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_a_configuration_discounts_by_time_and_standardises():
    changes = ["num_envs=2", "total_steps=24", "discount_per_second=0.98", "normalize_observations=true",
               "hyperparameters.n_steps=6", "hyperparameters.batch_size=12"]  # fmt: skip
    config = load_training("hidden_kinds_ppo", [*changes, "env.num_requests=10"]).check()
    model = make_model(config, wrap(config, make_environments(config, 0)))
    assert model.rollout_buffer.per_second == 0.98
    assert model.get_vec_normalize_env().norm_obs
    with pytest.raises(ConfigError, match="no discount_per_second"):
        load_training("dqn", ["discount_per_second=0.98"])
    with pytest.raises(ConfigError, match="normalize_observations needs"):
        load_training("hidden_kinds_ppo", [*changes, "network.kind=slots"])


def test_what_cannot_discount_by_time():
    with pytest.raises(ConfigError, match="for PPO, A2C, MaskablePPO and RecurrentPPO"):
        discount_by_time(DQN("MlpPolicy", make(1), buffer_size=10, device="cpu"), 0.9)
    model = PPO("MlpPolicy", "CartPole-v1", device="cpu")
    with pytest.raises(ConfigError, match="with environments of make_sb3_env"):
        discount_by_time(model, 0.9)
    with pytest.raises(ConfigError, match="per_second"):
        discount_by_time(model, 1.5)
