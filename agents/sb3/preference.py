"""Warm start: prefer a fixed action.

The policy of a Stable-Baselines3 model is trained with a separate optimiser and separate random numbers; the model's
own optimiser is unchanged. Equal arguments give equal weights.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from kvgym.agents.sb3.supervised import CHUNK, check_model, check_positive, distribution, update
from kvgym.errors import ConfigError, KVGymError, shown

try:
    import torch
    from sb3_contrib import MaskablePPO
    from sb3_contrib.common.maskable.utils import get_action_masks
    from stable_baselines3.common.vec_env import VecEnv
    from torch import Tensor
    from torch.distributions import Categorical
except ImportError as error:
    raise ConfigError(
        "kvgym.agents.sb3.preference needs PyTorch, Stable-Baselines3 and sb3-contrib: "
        f'pip install "kvgym[train]" ({error})'
    ) from error

_BATCH, _PATIENCE = 256, 10  # rows per update of prefer(), and updates between two evaluations of all rows


def prefer(
    model: Any,
    action: Any,
    env: VecEnv,
    *,
    probability: float = 0.7,
    steps: int = 2048,
    learning_rate: float = 1e-3,
    max_updates: int = 2000,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Train a model's policy to prefer a fixed action, e.g. the best fixed setting of ``kvgym/Knobs-v0``.

    Observations are collected by running the action. The policy is trained until the mean probability of every
    component of the action is at least ``probability``; components that reach it are not trained further, to keep
    exploration. The critic is not trained.

    Args:
        model: PPO, A2C or MaskablePPO.
        action: of a Discrete or MultiDiscrete space, e.g. ``[0, 7, 3, 0]``.
        env: environments like the model's, e.g. :class:`~kvgym.agents.sb3.vec_env.SB3VecEnv`; they are reset and
            stepped.
        probability: between 0 and 1.
        steps: number of observations, over all environments.
        learning_rate: of Adam, > 0.
        max_updates: largest number of updates, of 256 observations each.
        seed: of the environments and of the order of observations.

    Returns:
        The mean probability of each component of the action, float64 (a,).

    Raises:
        ConfigError: an argument is wrong, the algorithm or kind of action is another one, or a mask forbids the action.
        KVGymError: ``max_updates`` are not enough.
    """
    check_model(model)
    check_positive(steps=steps, max_updates=max_updates)
    if not 0 < probability < 1 or not learning_rate > 0:
        raise ConfigError(
            f"probability = {shown(probability)} must be between 0 and 1 and learning_rate = {shown(learning_rate)} > 0"
        )
    wanted = _whole_action(model.action_space, action)
    seen, masks = _collect(model, env, wanted, steps, seed)
    rng, policy, was_training = np.random.default_rng(seed), model.policy, model.policy.training
    optimiser = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    target = torch.as_tensor(wanted, device=model.device)
    found = _probabilities(policy, seen, masks, target)
    updates = 0
    while (found < probability).any() and updates < max_updates:
        policy.set_training_mode(True)
        lacking = torch.as_tensor(found < probability, device=model.device)
        for _ in range(_PATIENCE):
            rows = rng.integers(len(seen), size=_BATCH)
            log_prob = _log_probabilities(policy, seen[rows], None if masks is None else masks[rows], target)
            update(policy, optimiser, -log_prob[:, lacking].sum(1).mean(), model.max_grad_norm)
        updates += _PATIENCE
        policy.set_training_mode(False)
        found = _probabilities(policy, seen, masks, target)
    policy.set_training_mode(was_training)
    if (found < probability).any():
        raise KVGymError(
            f"after {updates} updates the components of action {wanted.tolist()} have probabilities "
            f"{found.round(3).tolist()}, not {probability} each; try more max_updates or a larger learning_rate"
        )
    return found


def _whole_action(space: Any, action: Any) -> NDArray[np.int64]:
    """Return an action of a Discrete or MultiDiscrete space as int64 (a,).

    Raises:
        ConfigError: it is not in the space.
    """
    if not isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        raise ConfigError(f"prefer() takes actions of Discrete and MultiDiscrete spaces, not of {space}")
    given = np.asarray(action)
    wanted = given.astype(np.int64) if given.dtype.kind in "iu" else None
    if wanted is None or wanted.shape != space.shape or not space.contains(wanted):
        raise ConfigError(f"action = {shown(action)} is not in the model's action space {space}")
    return wanted.reshape(-1)


def _log_probabilities(policy: Any, observations: Tensor, masks: Tensor | None, action: Tensor) -> Tensor:
    """Return the log-probability of each component of an action, (m, a)."""
    inside = distribution(policy, observations, masks)
    parts: list[Categorical] = (
        inside.distributions if hasattr(inside, "distributions") else inside.distribution
    )
    parts = parts if isinstance(parts, list) else [parts]
    return torch.stack([part.logits[:, a] for part, a in zip(parts, action, strict=True)], 1)


def _probabilities(
    policy: Any, observations: Tensor, masks: Tensor | None, action: Tensor
) -> NDArray[np.float64]:
    """Return the mean probability of each component of an action, float64 (a,)."""
    total = torch.zeros(len(action), dtype=torch.float64, device=action.device)
    with torch.no_grad():
        for start in range(0, len(observations), CHUNK):
            part = slice(start, start + CHUNK)
            log_prob = _log_probabilities(
                policy, observations[part], None if masks is None else masks[part], action
            )
            total += log_prob.double().exp().sum(0)
    found: NDArray[np.float64] = (total / len(observations)).cpu().numpy()
    return found


def _collect(
    model: Any, env: VecEnv, action: NDArray[np.int64], steps: int, seed: int
) -> tuple[Tensor, Tensor | None]:
    """Run an action; return observations (m, D), and masks (m, K) if the model has them.

    Raises:
        ConfigError: the environment differs from the model's, or a mask forbids the action.
    """
    if env.observation_space != model.observation_space or env.action_space != model.action_space:
        raise ConfigError(
            f"the environment has {env.observation_space} and {env.action_space}, the model "
            f"{model.observation_space} and {model.action_space}"
        )
    masked, discrete = isinstance(model, MaskablePPO), isinstance(model.action_space, gym.spaces.Discrete)
    levels = [int(model.action_space.n)] if discrete else model.action_space.nvec.tolist()
    places = np.cumsum([0, *levels[:-1]]) + action
    same = np.tile(action, (env.num_envs, 1))
    played = same[:, 0] if discrete else same
    env.seed(seed)
    observation: Any = env.reset()
    observations, masks = [], []
    for _ in range(-(-steps // env.num_envs)):
        observations.append(np.array(observation, np.float32))
        if masked:
            masks.append(get_action_masks(env))
            if not masks[-1][:, places].all():
                raise ConfigError(
                    f"action {action.tolist()} is not always possible: the masks of this environment forbid it"
                )
        observation, _, _, _ = env.step(played)
    seen = torch.as_tensor(np.concatenate(observations), device=model.device)
    return seen, torch.as_tensor(np.concatenate(masks), device=model.device) if masked else None
