"""Copy a trained Stable-Baselines3 model into a :class:`~kvgym.agents.trained.numpy_model.NumpyModel`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from kvgym.agents.sb3.algorithms import ALGORITHMS
from kvgym.agents.sb3.gaussian import Around
from kvgym.agents.sb3.networks import ActionHead, SlotsExtractor
from kvgym.agents.trained.header import Header, windows_of
from kvgym.agents.trained.numpy_model import Array, NumpyModel
from kvgym.envs.scheduling import spaces
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.errors import ConfigError, shown

__all__ = [
    "export",
]

try:
    from stable_baselines3 import DQN
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.torch_layers import FlattenExtractor
    from torch import nn
except ImportError as error:
    raise ConfigError(
        f'kvgym.agents.sb3.export needs PyTorch and Stable-Baselines3: pip install "kvgym[train]" ({error})'
    ) from error


def export(
    model: BaseAlgorithm, env_arguments: dict[str, Any], metadata: dict[str, Any] | None = None
) -> NumpyModel:
    """Return the acting part of a trained model as NumPy arrays.

    Where ``VecNormalize`` standardises observations, the first layer takes its means and deviations, so that the agent
    reads plain observations; it does not clip them.

    Args:
        model: PPO, A2C, MaskablePPO or DQN with ``"MlpPolicy"``, RecurrentPPO with ``"MlpLstmPolicy"``, or a policy of
            :mod:`kvgym.agents.sb3.networks`.
        env_arguments: the environment arguments it was trained with, ``action`` among them.
        metadata: JSON-able data to store with it.

    Raises:
        ConfigError: another algorithm or network, spaces that do not fit the environment arguments, or normalised
            observations of a slots network.
    """
    names = [name for name, kind in ALGORITHMS.items() if type(model) is kind]
    if not names:
        raise ConfigError(
            f"cannot export {type(model).__name__}; expected PPO, MaskablePPO, RecurrentPPO, A2C or DQN"
        )
    config = EnvConfig.of(**env_arguments)
    for what, given, expected in (
        ("observation", model.observation_space, spaces.observation_space(config)),
        ("action", model.action_space, config.action_space),
    ):
        if given != expected:
            raise ConfigError(
                f"the model's {what} space is {given}; with these environment arguments it is {expected}"
            )
    if config.observation != "flat":
        raise ConfigError(f"exported agents read flat observations, this one {shown(config.observation)}")
    normaliser = model.get_vec_normalize_env()
    standardised = normaliser if normaliser is not None and normaliser.norm_obs else None
    policy: Any = model.policy.q_net if isinstance(model, DQN) else model.policy
    space: Any = model.action_space
    flags = isinstance(space, gym.spaces.MultiBinary)
    common: dict[str, Any] = {
        "action": config.action,
        "algorithm": names[0],
        "choices": _choices(space),
        "bernoulli": flags and names[0] != "maskable_ppo",
        **windows_of(config),
        "env_arguments": dict(env_arguments),
        "metadata": dict(metadata or {}),
    }
    extractor = policy.features_extractor if isinstance(model, DQN) else policy.pi_features_extractor
    head = policy.q_net if isinstance(model, DQN) else policy.action_net
    noise: dict[str, Array] = {}
    if isinstance(space, gym.spaces.Box):
        if policy.use_sde:
            raise ConfigError("cannot export state-dependent noise (use_sde)")
        count = space.shape[0]
        noise["log_std"] = policy.log_std.detach().cpu().expand(count).numpy().copy()
        common |= {"centre": (0.0,) * count, "spread": (1.0,) * count}
        common |= {"low": _floats(space.low), "high": _floats(space.high)}
    if isinstance(head, Around):
        common |= {"centre": _floats(head.centre.cpu()), "spread": _floats(head.spread.cpu())}
        head = head.inner
    if standardised is not None and not isinstance(extractor, FlattenExtractor):
        raise ConfigError(
            "this model uses VecNormalize for observations, which only mlp networks can take into their first layer; "
            "train with norm_obs=False"
        )
    if isinstance(extractor, SlotsExtractor) and isinstance(head, ActionHead):
        header = Header(
            network="slots",
            prefix=tuple(extractor.prefix),
            row_dim=extractor.row_dim,
            context_dim=extractor.context_dim,
            attention=extractor.attention is not None,
            **common,
        )
        return NumpyModel(header, {**_arrays(extractor), **_arrays(head, "head."), **noise})
    if not isinstance(extractor, FlattenExtractor):
        raise ConfigError(f"cannot export a policy with {type(extractor).__name__}")
    layers = list(head) if isinstance(model, DQN) else [*policy.mlp_extractor.policy_net, head]
    linear, between = layers[::2], {type(layer) for layer in layers[1::2]}
    activations = {nn.Tanh: "tanh", nn.ReLU: "relu"}
    if (
        not all(type(layer) is nn.Linear for layer in linear)
        or len(between) > 1
        or between - activations.keys()
    ):
        raise ConfigError(f"cannot export these layers, expected linear ones with Tanh or ReLU: {layers}")
    arrays: dict[str, Array] = {}
    for i, layer in enumerate(linear):
        arrays |= _arrays(layer, f"layer.{i}.")
    lstm = getattr(policy, "lstm_actor", None)
    if lstm is not None:
        if lstm.num_layers > 1 or not lstm.bias or lstm.bidirectional or lstm.proj_size:
            raise ConfigError(f"cannot export {lstm}, expected one layer with biases, in one direction")
        parts = _arrays(lstm)
        for ours, theirs in (("input", "ih"), ("state", "hh")):
            arrays[f"lstm.{ours}.weight"] = parts[f"weight_{theirs}_l0"]
            arrays[f"lstm.{ours}.bias"] = parts[f"bias_{theirs}_l0"]
    header = Header(
        network="mlp",
        lstm=0 if lstm is None else lstm.hidden_size,
        activation=activations[between.pop()] if between else "tanh",
        hidden=tuple(layer.out_features for layer in linear[:-1]),
        **common,
    )
    if standardised is not None:
        scale: Any = standardised.obs_rms
        first = "layer.0" if lstm is None else "lstm.input"
        weight = arrays[f"{first}.weight"] / np.sqrt(scale.var + standardised.epsilon)
        arrays[f"{first}.bias"] = (arrays[f"{first}.bias"] - weight @ scale.mean).astype(np.float32)
        arrays[f"{first}.weight"] = weight.astype(np.float32)
    return NumpyModel(header, {**arrays, **noise})


def _choices(space: Any) -> tuple[int, ...]:
    """Return the number of options of each choice; empty for actions of real numbers."""
    if isinstance(space, gym.spaces.Box):
        return ()
    if isinstance(space, gym.spaces.MultiDiscrete):
        return tuple(int(levels) for levels in space.nvec)
    n = int(space.n)
    return (2,) * n if space.shape else (n,)


def _floats(numbers: Any) -> tuple[float, ...]:
    return tuple(float(x) for x in numbers)


def _arrays(module: nn.Module, prefix: str = "") -> dict[str, Array]:
    return {
        prefix + name: np.array(value.detach().cpu().numpy(), np.float32)
        for name, value in module.state_dict().items()
    }
