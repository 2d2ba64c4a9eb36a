"""A network of one number per request as an agent's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.agents.reinforce.network import Array, Network
from kvgym.agents.trained.header import Header, windows_of
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.observations import observation_size
from kvgym.envs.scheduling.spaces import parts


def feature_places(config: EnvConfig, fixed: Mapping[str, Any] | None = None) -> dict[str, list[int]]:
    """Return the positions in an observation of the parts after the windows, and of their single features.

    Args:
        config: of the environment.
        fixed: further parts, with name and meaning of each feature.

    Returns:
        Positions by name of a part, such as ``"asked"``, and of a feature, such as ``"asked.prompt"``.
    """
    bounds, known = parts(config), dict[str, list[int]]()
    for part, features in {**(fixed or {}), **{part.name: part.features for part in config.parts}}.items():
        first = bounds[part][0]
        known[part] = list(range(first, first + len(features)))
        known |= {f"{part}.{name}": [first + k] for k, (name, _) in enumerate(features)}
    return known


def as_agent(
    env: EnvConfig,
    network: Network,
    places: NDArray[np.int64],
    centre: Array,
    spread: Array,
    *,
    algorithm: str,
    noise: float,
    metadata: Mapping[str, Any],
) -> NumpyModel:
    """Return a network as an agent that reads plain observations.

    Args:
        env: configuration of the environment, with an action of one number.
        network: its output 0 is the usual action, 1 is one typical change more.
        places: positions of its inputs in an observation, int64 (number of inputs,).
        centre: what is subtracted from the inputs, (number of inputs,).
        spread: what they are then divided by.
        algorithm: that trained it, see :class:`~kvgym.agents.trained.header.Header`.
        noise: standard deviation of drawn actions, in typical changes.
        metadata: JSON-able.
    """
    usual = env.usual_action()
    assert usual is not None
    size = observation_size(env)
    space: Any = env.action_space
    header = Header(
        network="mlp", action=env.action, algorithm=algorithm, choices=(), hidden=network.hidden,
        centre=(float(usual[0][0]),), spread=(float(usual[1][0]),),
        low=tuple(space.low.tolist()), high=tuple(space.high.tolist()),
        **windows_of(env), env_arguments=env.model_dump(mode="json"), metadata=dict(metadata),
    )  # fmt: skip
    first, bias, *rest = network.numbers
    scaled = first / spread[:, None]
    plain = np.zeros((size, first.shape[1]))
    plain[places] = scaled
    numbers = [plain, bias - centre @ scaled, *rest]
    arrays = {}
    for k in range(len(numbers) // 2):
        arrays[f"layer.{k}.weight"] = np.ascontiguousarray(numbers[2 * k].T, np.float32)
        arrays[f"layer.{k}.bias"] = numbers[2 * k + 1].astype(np.float32)
    arrays["log_std"] = np.log([noise]).astype(np.float32)
    return NumpyModel(header, arrays)
