"""Shared parts of supervised training of a model's policy."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.errors import ConfigError, shown

try:
    import torch
    from sb3_contrib import MaskablePPO
    from stable_baselines3 import A2C, PPO
    from torch import Tensor, nn
except ImportError as error:
    raise ConfigError(
        "kvgym.agents.sb3.supervised needs PyTorch, Stable-Baselines3 and sb3-contrib: "
        f'pip install "kvgym[train]" ({error})'
    ) from error

CHUNK = 4096  # rows evaluated at a time


def check_model(model: Any) -> None:
    """Check that the model has a stochastic policy and a critic.

    Raises:
        ConfigError: it does not.
    """
    if isinstance(model, PPO | A2C | MaskablePPO):
        return
    raise ConfigError(
        f"{type(model).__name__} has no distribution over actions to train; use MaskablePPO, PPO or A2C (dqn learns "
        "action values: fill its replay buffer with a policy's steps instead)"
    )


def check_positive(**numbers: int) -> None:
    """Check that arguments are whole numbers ≥ 1.

    Raises:
        ConfigError: naming the first that is not.
    """
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ConfigError(f"{name} = {shown(value)}; expected a whole number ≥ 1")


def distribution(policy: Any, observations: Tensor, masks: Tensor | None) -> Any:
    """Return Stable-Baselines3's distribution over actions for m observations."""
    if masks is None:
        return policy.get_distribution(observations)
    return policy.get_distribution(observations, action_masks=masks)


def update(policy: Any, optimiser: torch.optim.Optimizer, loss: Tensor, max_grad_norm: float) -> None:
    """Take a step down the gradient."""
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
    optimiser.step()
    optimiser.zero_grad()  # keep these gradients from the model's own optimiser
