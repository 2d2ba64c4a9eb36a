"""Make environments and a Stable-Baselines3 model from a training configuration."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from kvgym.agents.runs.limits import MAX_REAL, RANGES
from kvgym.agents.sb3.config import NetworkConfig, TrainConfig
from kvgym.agents.sb3.discounting import discount_by_time
from kvgym.agents.sb3.mixed_env import MixedVecEnv
from kvgym.agents.sb3.networks import policy_for
from kvgym.agents.sb3.vec_env import SB3VecEnv, VecEnv, make_sb3_env
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.observations import observation_size
from kvgym.errors import ConfigError, shown
from kvgym.utils.resources import check_free

try:
    from sb3_contrib import MaskablePPO, RecurrentPPO
    from stable_baselines3 import A2C, DQN, PPO
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.vec_env import VecNormalize
except ImportError as error:
    raise ConfigError(
        f'training needs Stable-Baselines3 and sb3-contrib: pip install "kvgym[train]" ({error})'
    ) from error

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {
    "maskable_ppo": MaskablePPO,
    "recurrent_ppo": RecurrentPPO,
    "ppo": PPO,
    "a2c": A2C,
    "dqn": DQN,
}
"""Algorithms by their name in training configurations; each before those that can also read its files."""

UNCLIPPED = 1e6
"""Limit of standardised observations: exported agents do not clip them."""

_OURS = (
    "policy", "env", "policy_kwargs", "seed", "device", "tensorboard_log", "verbose", "_init_setup_model",
    "rollout_buffer_class", "rollout_buffer_kwargs", "replay_buffer_class", "replay_buffer_kwargs",
)  # fmt: skip
"""Arguments of algorithms that are not hyperparameters: set elsewhere, or not storable in a file."""


def make_environments(config: TrainConfig, seed: int) -> VecEnv:
    """Return the training environments, divided among the variants.

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
    """Return the environments, with normalised rewards and observations if configured."""
    if not (config.normalize_reward or config.normalize_observations):
        return envs
    return VecNormalize(
        envs,
        norm_obs=config.normalize_observations,
        norm_reward=config.normalize_reward,
        gamma=config.hyperparameters.get("gamma", 0.99),
        clip_reward=50.0,
        clip_obs=UNCLIPPED,
    )


def schedule(text: str) -> Callable[[float], float]:
    """Return the schedule of a hyperparameter such as ``"lin_3e-4"``, which falls linearly to 0.

    Raises:
        ConfigError: the text has another form.
    """
    kind, _, start = text.partition("_")
    try:
        first = float(start)
    except ValueError:
        first = float("nan")
    if kind != "lin" or not 0 < first <= MAX_REAL:
        raise ConfigError(f"hyperparameter {shown(text)}: expected a number, or e.g. lin_3e-4")
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
        ConfigError: it has another type, or is out of range.
    """
    allowed = RANGES.get(name)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ConfigError(f"hyperparameter {name} = {shown(value)}; expected true or false")
        return value
    if allowed is None or (value is None and default is None):
        return value
    if not allowed.holds(value):
        raise ConfigError(f"hyperparameter {name} = {shown(value)}; expected {allowed}")
    return int(value) if allowed.whole else value


def make_model(config: TrainConfig, envs: VecEnv) -> BaseAlgorithm:
    """Return an untrained model.

    Raises:
        ConfigError: the algorithm does not have a hyperparameter or refuses its value.
    """
    cls: Callable[..., BaseAlgorithm] = ALGORITHMS[config.algorithm]
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(cls).parameters.items()
        if name not in _OURS
    }
    hyperparameters = {}
    for name, value in config.hyperparameters.items():
        if name not in defaults:
            raise ConfigError(
                f"{config.algorithm} has no hyperparameter {shown(name)}; valid: {', '.join(defaults)}"
            )
        scheduled = name in ("learning_rate", "clip_range") and isinstance(value, str)
        hyperparameters[name] = schedule(value) if scheduled else _checked(name, value, defaults[name])
    given = {**defaults, **hyperparameters}
    steps = config.num_envs * given.get("n_steps", 1)
    if (
        config.algorithm in ("maskable_ppo", "recurrent_ppo")
        and given["normalize_advantage"]
        and steps % given["batch_size"] == 1
    ):
        raise ConfigError(
            f"{config.algorithm}: a batch of one step cannot be normalised: {config.num_envs} environments times "
            f"n_steps = {given['n_steps']} leaves one in batches of {given['batch_size']}; change batch_size"
        )
    env: EnvConfig = config.env_configs()[0]
    check_training_memory(config, env, given)
    sizes = config.network.sizes(config.algorithm)
    policy, policy_kwargs = policy_for(config.network.kind, config.algorithm, env, **sizes)
    try:
        model = cls(
            policy,
            envs,
            policy_kwargs=policy_kwargs,
            seed=config.seed,
            device=config.device,
            **hyperparameters,
        )
        if config.discount_per_second is not None:
            discount_by_time(model, config.discount_per_second)
        return model
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise ConfigError(f"{config.algorithm} refuses its hyperparameters: {error}") from error


def check_training_memory(config: TrainConfig, env: EnvConfig, hyperparameters: Mapping[str, Any]) -> None:
    """Check that a model and its training data fit into free memory, before they are allocated.

    Args:
        config: of the run.
        env: of its environments.
        hyperparameters: of the algorithm, including defaults.

    Raises:
        ConfigError: they do not fit, by an estimate; the message names its fields.
    """
    width, choices = observation_size(env), env.kind.mask_size(env)
    row = 4 * width
    if "buffer_size" in hyperparameters:
        steps, what = (
            hyperparameters["buffer_size"],
            f"buffer_size = {hyperparameters['buffer_size']:,} steps",
        )
        check_free(steps * (2 * row + 32), what, "choose a smaller one")
    else:  # the rollout, and a copy in the order of its batches
        steps = config.num_envs * hyperparameters["n_steps"]
        what = f"rollouts of num_envs × n_steps = {steps:,} steps"
        states = 16 * config.network.lstm if config.algorithm == "recurrent_ppo" else 0
        check_free(2 * steps * (row + 4 * choices + states + 48), what, "choose fewer")
    if config.device != "cpu":
        return
    batch = min(hyperparameters.get("batch_size") or steps, steps)
    weights, units = network_size(config.network, width, choices)
    if config.algorithm == "recurrent_ppo":
        lstm = config.network.lstm  # one for the actor, one for the critic
        weights, units = weights + 8 * lstm * (width + lstm), units + 12 * lstm
    if config.network.kind == "slots" and config.network.attention:
        units += 2 * (env.queue_window + env.active_window) ** 2
    # Weights, gradients and two moments of Adam; activations of a batch and their gradients.
    needed = 4 * (4 * weights + 2 * batch * (units + width))
    what = f"a network of {weights:,} weights, learning from batches of {batch:,},"
    check_free(needed, what, "choose fewer units or a smaller batch_size")


def network_size(network: NetworkConfig, width: int, choices: int) -> tuple[int, int]:
    """Return the approximate number of weights and units of a network, including the critic.

    Args:
        network: the network.
        width: size of an observation.
        choices: number of outputs.
    """
    if network.kind == "mlp":
        layers = (width, *network.hidden, choices)
        return 2 * sum(a * b + b for a, b in pairwise(layers)), 2 * sum(layers)
    inside = network.row_dim + network.context_dim
    return 4 * inside * (inside + width), 8 * inside * math.isqrt(width + 1)
