"""How much memory a training run would take, told before PyTorch takes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from kvgym.agents.runs.config import NetworkConfig, TrainConfig
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.observations import observation_size
from kvgym.experiments.resources import check_free


def check_training_memory(config: TrainConfig, env: EnvConfig, hyperparameters: Mapping[str, Any]) -> None:
    """Check, before a model is made, that it and what it learns from fit into the memory that is free.

    Args:
        config: of the run.
        env: of its environments.
        hyperparameters: of the algorithm, its defaults included.

    Raises:
        ConfigError: they do not, by an estimate; the message names the fields that it is made of.
    """
    width, choices = observation_size(env), env.kind.mask_size(env)
    row = 4 * width
    if "buffer_size" in hyperparameters:
        steps, what = (
            hyperparameters["buffer_size"],
            f"buffer_size = {hyperparameters['buffer_size']:,} steps",
        )
        check_free(steps * (2 * row + 32), what, "choose a smaller one")
    else:  # the rollout, and the same once more in the order of its batches
        steps = config.num_envs * hyperparameters["n_steps"]
        what = f"rollouts of num_envs × n_steps = {steps:,} steps"
        check_free(2 * steps * (row + 4 * choices + 48), what, "choose fewer")
    if config.device != "cpu":
        return
    batch = min(hyperparameters.get("batch_size") or steps, steps)
    weights, units = network_size(config.network, width, choices)
    # The weights, their gradients and two moments of Adam; what a batch computes, and its gradients.
    needed = 4 * (4 * weights + 2 * batch * (units + width))
    what = f"a network of {weights:,} weights, learning from batches of {batch:,},"
    check_free(needed, what, "choose fewer units or a smaller batch_size")


def network_size(network: NetworkConfig, width: int, choices: int) -> tuple[int, int]:
    """Return about how many weights and units a network has, those of the critic included.

    Args:
        network: the network.
        width: numbers of an observation.
        choices: outputs.
    """
    if network.kind == "mlp":
        layers = (width, *network.hidden, choices)
        return 2 * sum(a * b + b for a, b in pairwise(layers)), 2 * sum(layers)
    inside = network.row_dim + network.context_dim
    return 4 * inside * (inside + width), 8 * inside * math.isqrt(width + 1)
