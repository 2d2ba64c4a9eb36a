"""Cloning a scheduler: learning, determinism, unchanged state, errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.vec_env import VecNormalize

from kvgym.agents.sb3.networks import policy_for
from kvgym.agents.sb3.vec_env import make_sb3_env
from kvgym.agents.sb3.warm_start import _as_seen, _held_out, _returns, clone
from kvgym.envs.demonstrations.record import demonstrate
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.errors import ConfigError

SMALL = {
    "num_requests": 40,
    "kv_capacity": 300,
    "rate": 20.0,
    "batch_time": {"kind": "affine", "constant": 0.02, "per_prefill_token": 1e-4, "per_context_token": 1e-6},
    "workload": {"preset": "lmsys", "limits": {"max_prompt_len": 60, "max_output_len": 60}},
    "scenario": "a100-llama2-70b",
    "must_admit": False,
    "queue_window": 40,
    "active_window": 4,
    "horizon": 1e6,
}
BY_LENGTH = {"queue_order": "predicted"}

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def make(algorithm, action, *, normalise=False, policy="MlpPolicy", policy_kwargs=None, **options):
    short = {} if algorithm in (A2C, DQN) else {"n_steps": 64}
    env = make_sb3_env(action, 2, seed=0, **{**SMALL, **options})
    if normalise:
        env = VecNormalize(env, norm_obs=False, norm_reward=True)
    return algorithm(policy, env, seed=0, device="cpu", policy_kwargs=policy_kwargs, **short)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.policy.parameters()])


@pytest.fixture(scope="module")
def of_fcfs():
    return demonstrate("fcfs", steps=6000, **SMALL)


@pytest.mark.parametrize(
    ("algorithm", "policy", "options"),
    [
        pytest.param(MaskablePPO, "fcfs", {}, marks=pytest.mark.long),
        (MaskablePPO, "mc_sf", BY_LENGTH),
        pytest.param(PPO, "fcfs", {}, marks=pytest.mark.long),
        (A2C, "fcfs", {}),
    ],
)
def test_a_clone_does_what_was_demonstrated(algorithm, policy, options):
    found = demonstrate(policy, steps=6000, **{**SMALL, **options})
    model = make(algorithm, "admit_count", **options)
    report = clone(model, found, epochs=20)
    assert report.accuracy_before < report.accuracy_after
    assert report.accuracy_after >= 0.9
    assert report.loss_after < report.loss_before
    assert report.num_training + report.num_validation == len(found)
    assert 0.09 < report.num_validation / len(found) < 0.2
    assert report.training_losses[-1] < report.training_losses[0]
    assert len(report.training_losses) == 20
    assert report.critic == "trained"
    assert report.value_loss_after < min(report.value_loss_before, 0.7)


@pytest.mark.parametrize(
    ("algorithm", "action"),
    [
        (MaskablePPO, "flags"),
        (PPO, "admit_evict"),
        pytest.param(MaskablePPO, "admit_evict", marks=pytest.mark.long),
        pytest.param(PPO, "flags", marks=pytest.mark.long),
    ],
)
def test_other_kinds_of_action(action, algorithm):
    found = demonstrate("fcfs", steps=2000, action=action, **{**SMALL, "active_window": 8})
    report = clone(make(algorithm, action, active_window=8), found, epochs=5)
    assert report.accuracy_after > report.accuracy_before + 0.2


def test_slots_network(of_fcfs):
    config = EnvConfig.of(action="admit_count", **SMALL)
    policy, arguments = policy_for("slots", "maskable_ppo", config, row_dim=8, context_dim=16)
    model = make(MaskablePPO, "admit_count", policy=policy, policy_kwargs=arguments)
    assert clone(model, of_fcfs, epochs=3).accuracy_after > 0.85


def test_equal_arguments_give_equal_weights(of_fcfs):
    def run(seed):
        model = make(MaskablePPO, "admit_count")
        torch.manual_seed(np.random.default_rng().integers(2**31))  # no other random numbers count
        report = clone(model, of_fcfs, epochs=1, seed=seed)
        return weights(model), report

    (one, report), (same, again), (other, _) = run(1), run(1), run(2)
    assert torch.equal(one, same)
    assert report == again
    assert not torch.equal(one, other)


def test_optimiser_random_state_and_mode_are_unchanged(of_fcfs):
    model = make(PPO, "admit_count")
    model.learn(1)
    for training in (True, False):
        model.policy.set_training_mode(training)
        state = torch.cat([s["exp_avg"].flatten() for s in model.policy.optimizer.state.values()])
        random = torch.get_rng_state()
        clone(model, of_fcfs, epochs=1)
        after = torch.cat([s["exp_avg"].flatten() for s in model.policy.optimizer.state.values()])
        assert torch.equal(state, after)
        assert torch.equal(random, torch.get_rng_state())
        assert model.policy.training == training
        assert all(p.grad is None for p in model.policy.parameters())


def test_returns_are_known_up_to_the_end_of_completed_episodes(of_fcfs):
    starts = np.array([True, False, False, True, False])
    found = replace(
        of_fcfs,
        rewards=np.array([1.0, 2.0, 4.0, 8.0, 16.0]),
        episode_starts=starts,
        completed=np.array([True]),
    )
    expected = [1 + 1 + 1, 2 + 2, 4, np.nan, np.nan]
    np.testing.assert_array_equal(_returns(found, found.rewards, 0.5), expected)
    np.testing.assert_allclose(_returns(found, found.rewards, 0.05)[3:], [8.8, np.nan])
    truncated = replace(found, completed=np.array([False]))
    assert np.isnan(_returns(truncated, found.rewards, 0.5)).all()


def test_whole_episodes_are_held_out_if_there_are_ten(of_fcfs):
    starts = np.arange(100) % 5 == 0
    found = replace(of_fcfs, actions=np.zeros(100, np.int64), episode_starts=starts)
    held_out = _held_out(found, np.random.default_rng(0))
    assert held_out.sum() == 10
    assert (held_out.reshape(-1, 5).sum(1) % 5 == 0).all()
    one = replace(found, episode_starts=np.arange(100) == 0)
    assert _held_out(one, np.random.default_rng(0)).sum() == 10


def test_normalised_rewards_scale_the_returns(of_fcfs):
    model = make(PPO, "admit_count", normalise=True)
    normaliser = model.get_vec_normalize_env()
    plain = make(PPO, "admit_count")
    np.testing.assert_array_equal(_as_seen(plain, of_fcfs), of_fcfs.rewards)
    cold = _as_seen(model, of_fcfs)
    assert np.abs(cold).max() <= normaliser.clip_reward
    inside = np.abs(cold) < normaliser.clip_reward
    ratio = cold[inside] / of_fcfs.rewards[inside]
    assert ratio[np.isfinite(ratio)].std() < 1e-9
    normaliser.ret_rms.count, normaliser.ret_rms.var = 5000.0, np.array(4.0)
    np.testing.assert_allclose(_as_seen(model, of_fcfs), np.clip(of_fcfs.rewards / 2, -10, 10), rtol=1e-6)
    assert clone(model, of_fcfs, epochs=1).critic == "trained"


def test_the_critic_is_not_trained_without_known_returns(of_fcfs):
    model = make(PPO, "admit_count")
    critic = torch.cat([p.detach().flatten() for p in model.policy.value_net.parameters()])
    report = clone(model, of_fcfs, epochs=1, value_weight=0)
    assert report.value_loss_after is None
    assert "value_weight is 0" in report.critic
    model.gamma = 1.0
    cut = replace(of_fcfs, completed=np.zeros(len(of_fcfs.completed), bool))
    report = clone(model, cut, epochs=1)
    assert report.value_loss_before is None
    assert "cut off" in report.critic
    after = torch.cat([p.detach().flatten() for p in model.policy.value_net.parameters()])
    assert torch.equal(critic, after)


def test_cloning_errors(of_fcfs):
    with pytest.raises(ConfigError, match=r"DQN.*MaskablePPO"):
        clone(make(DQN, "admit_count"), of_fcfs)
    model = make(PPO, "admit_count", queue_window=5)
    with pytest.raises(ConfigError, match="do not fit"):
        clone(model, of_fcfs)
    with pytest.raises(ConfigError, match="do not fit"):
        clone(make(PPO, "flags"), of_fcfs)
    with pytest.raises(ConfigError, match="epochs = 0"):
        clone(make(PPO, "admit_count"), of_fcfs, epochs=0)
    with pytest.raises(ConfigError, match="learning_rate"):
        clone(make(PPO, "admit_count"), of_fcfs, learning_rate=0.0)
    env = VecNormalize(make_sb3_env("admit_count", 1, **SMALL), norm_obs=True)
    with pytest.raises(ConfigError, match="norm_obs=False"):
        clone(PPO("MlpPolicy", env, device="cpu"), of_fcfs)
