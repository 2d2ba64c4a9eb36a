"""From a training configuration to environments and a Stable-Baselines3 model."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from kvgym.agents.config import TrainConfig
from kvgym.agents.mixed_env import MixedVecEnv
from kvgym.agents.networks import policy_for
from kvgym.agents.vec_env import SB3VecEnv, VecEnv, make_sb3_env
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.errors import ConfigError

try:
    from sb3_contrib import MaskablePPO
    from stable_baselines3 import A2C, DQN, PPO
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.vec_env import VecNormalize
except ImportError as error:
    raise ConfigError(
        f'training needs Stable-Baselines3 and sb3-contrib: pip install "kvgym[train]" ({error})'
    ) from error

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {
    "maskable_ppo": MaskablePPO,
    "ppo": PPO,
    "a2c": A2C,
    "dqn": DQN,
}
"""Algorithms by the name they have in training configurations."""

# Least values of whole-number hyperparameters, where that is not 1.
_LEAST = {"batch_size": 2, "gradient_steps": -1, "learning_starts": 0, "sde_sample_freq": -1}

_OURS = ("policy", "env", "policy_kwargs", "seed", "device", "tensorboard_log", "verbose")


def make_environments(config: TrainConfig, seed: int) -> VecEnv:
    """Return the environments to train on: the native ones, shared out among the variants.

    Args:
        config: the training configuration.
        seed: environment i starts with seed + i.
    """
    variants = config.env_configs()
    share, rest = divmod(config.num_envs, len(variants))
    parts: list[SB3VecEnv] = []
    for k, variant in enumerate(variants):
        arguments = variant.model_dump(exclude={"action"})
        parts.append(make_sb3_env(variant.action, share + (k < rest), **arguments))
    envs: VecEnv = parts[0] if len(parts) == 1 else MixedVecEnv(parts)
    envs.seed(seed)
    return envs


def wrap(config: TrainConfig, envs: VecEnv) -> VecEnv:
    """Return the environments with normalised rewards, if the configuration says so."""
    if not config.normalize_reward:
        return envs
    gamma = config.hyperparameters.get("gamma", 0.99)
    return VecNormalize(envs, norm_obs=False, norm_reward=True, gamma=gamma, clip_reward=50.0)


def schedule(value: Any) -> Any:
    """Return a hyperparameter, with ``"lin_3e-4"`` as a function that falls linearly to 0.

    Raises:
        ConfigError: other text.
    """
    if not isinstance(value, str):
        return value
    kind, _, start = value.partition("_")
    try:
        first = float(start)
    except ValueError:
        first = float("nan")
    if kind != "lin" or not first > 0:
        raise ConfigError(f"hyperparameter {value!r}: expected a number, or e.g. lin_3e-4")
    return _Linear(first)


class _Linear:
    """A schedule that falls linearly from a first value to 0; picklable."""

    def __init__(self, first: float) -> None:
        self.first = first

    def __call__(self, progress_remaining: float) -> float:
        return self.first * progress_remaining


def _checked(name: str, value: Any, default: Any) -> Any:
    """Return the value of a hyperparameter, of the type of its default.

    Raises:
        ConfigError: it is of another type, or too small.
    """
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ConfigError(f"hyperparameter {name} = {value!r}; expected true or false")
        return value
    if not isinstance(default, int | float):
        if isinstance(value, str):
            raise ConfigError(f"hyperparameter {name} = {value!r}; expected a number")
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if isinstance(default, float) or name == "max_grad_norm":
        if not number:
            raise ConfigError(f"hyperparameter {name} = {value!r}; expected a number")
        return value
    low = _LEAST.get(name, 1)
    if not number or value != int(value) or value < low:
        raise ConfigError(f"hyperparameter {name} = {value!r}; expected a whole number ≥ {low}")
    return int(value)


def make_model(config: TrainConfig, envs: VecEnv) -> BaseAlgorithm:
    """Return an untrained model.

    Raises:
        ConfigError: a hyperparameter that the algorithm does not have, or a value it refuses.
    """
    cls: Callable[..., BaseAlgorithm] = ALGORITHMS[config.algorithm]
    valid = [name for name in inspect.signature(cls).parameters if name not in (*_OURS, "_init_setup_model")]
    defaults = {name: parameter.default for name, parameter in inspect.signature(cls).parameters.items()}
    hyperparameters = {}
    for name, value in config.hyperparameters.items():
        if name not in valid:
            raise ConfigError(f"{config.algorithm} has no hyperparameter {name!r}; valid: {', '.join(valid)}")
        scheduled = name in ("learning_rate", "clip_range")
        hyperparameters[name] = schedule(value) if scheduled else _checked(name, value, defaults[name])
    if config.algorithm == "maskable_ppo":
        given = {**defaults, **hyperparameters}
        if given["normalize_advantage"] and (config.num_envs * given["n_steps"]) % given["batch_size"] == 1:
            raise ConfigError(
                f"maskable_ppo: a batch of one step cannot be normalised: {config.num_envs} environments times "
                f"n_steps = {given['n_steps']} leaves one in batches of {given['batch_size']}; change batch_size"
            )
    env: EnvConfig = config.env_configs()[0]
    policy, policy_kwargs = policy_for(config.network.kind, config.algorithm, env, **config.network.sizes())
    try:
        return cls(
            policy,
            envs,
            policy_kwargs=policy_kwargs,
            seed=config.seed,
            device=config.device,
            **hyperparameters,
        )
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise ConfigError(f"{config.algorithm} refuses its hyperparameters: {error}") from error
