"""Models of Stable-Baselines3 with random weights, and observations for them."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, DQN, PPO

from helpers.environments.plain import plain
from kvgym.agents.sb3.networks import policy_for
from kvgym.agents.sb3.vec_env import make_sb3_env
from kvgym.envs.scheduling.config import EnvConfig

ALGORITHMS = {"ppo": PPO, "maskable_ppo": MaskablePPO, "a2c": A2C, "dqn": DQN}
SIZES: dict[str, dict[str, Any]] = {"mlp": {"hidden": [12, 10]}, "slots": {"row_dim": 8, "context_dim": 12}}
SIZES["attention"] = {**SIZES["slots"], "attention": True}
Q, W = 5, 3


def arguments_of(action: str) -> dict[str, Any]:
    return plain(
        action,
        scenario="mc-sf-model-2",
        num_requests=12,
        queue_window=Q,
        active_window=W,
        hold=2,
        horizon=300.0,
        features=[],  # as a file of an agent has it
    )


def make_env(action: str, num_envs: int = 8, **more: Any) -> Any:
    arguments = {**arguments_of(action), **more}
    return make_sb3_env(arguments.pop("action"), num_envs, seed=3, **arguments)


def make_model(action: str, network: str, algorithm: str = "ppo", num_envs: int = 1, **more: Any) -> Any:
    config = EnvConfig.of(**arguments_of(action))
    kind: Any = "slots" if network == "attention" else network
    policy, policy_kwargs = policy_for(kind, algorithm, config, **SIZES[network])  # type: ignore[arg-type]
    envs = make_env(action, num_envs)
    return ALGORITHMS[algorithm](policy, envs, policy_kwargs=policy_kwargs, seed=0, device="cpu", **more)


@functools.cache
def random_model(algorithm: str, network: str, action: str) -> Any:
    """Return a model with weights large enough for varied actions."""
    more = {"buffer_size": 10} if algorithm == "dqn" else {}
    return with_random_weights(make_model(action, network, algorithm, **more))


def with_random_weights(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.normal_(0.0, 0.4)
    return model


@functools.cache
def observed(action: str) -> tuple[Any, Any]:
    """Return observations (N, D) and sb3-contrib masks (N, K) of random play; windows fill and empty."""
    env = make_env(action)
    env.action_space.seed(0)
    x, masks = [env.reset()], [env.action_masks()]
    for _ in range(40):
        x.append(env.step(np.stack([_legal(env.action_space, row) for row in masks[-1]]))[0])
        masks.append(env.action_masks())
    return np.concatenate(x), np.concatenate(masks)


def _legal(space: Any, mask: Any) -> Any:
    if isinstance(space, gym.spaces.Discrete):
        return space.sample(mask=mask.astype(np.int8))
    return space.sample()
