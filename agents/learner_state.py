"""What a learner of Stable-Baselines3 needs to go on, in a file that runs no code when it is read.

Its own files hold pickles, which run whatever was put into them. Everything but numbers is made anew from the run's
configuration instead; the numbers are tensors, read by ``torch.load(weights_only=True)``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.errors import ConfigError

try:
    import torch
    from stable_baselines3.common.base_class import BaseAlgorithm
except ImportError as error:
    raise ConfigError(f'training needs PyTorch: pip install "kvgym[train]" ({error})') from error

COUNTERS = (
    "num_timesteps", "_total_timesteps", "_num_timesteps_at_start", "_n_updates", "_n_calls", "_episode_num",
    "_current_progress_remaining", "exploration_rate",
)  # fmt: skip
"""Numbers of a learner, as far as its algorithm has them."""

REPLAYED = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
"""Arrays of a replay buffer; the first two are mappings of arrays where observations are."""


def save_learner(model: BaseAlgorithm, path: Path) -> None:
    """Write weights, optimiser, counters, normalisation of rewards and replay buffer of a learner."""
    content: dict[str, Any] = {
        "parameters": model.get_parameters(),
        "counters": {name: _number(getattr(model, name)) for name in COUNTERS if hasattr(model, name)},
        "episodes": [{k: _number(x) for k, x in info.items()} for info in model.ep_info_buffer or ()],
    }
    normaliser = model.get_vec_normalize_env()
    if normaliser is not None:
        scale = normaliser.ret_rms
        content["rewards"] = {name: _tensor(getattr(scale, name)) for name in ("mean", "var", "count")}
    buffer = getattr(model, "replay_buffer", None)
    if buffer is not None:
        arrays = {name: _tensors(getattr(buffer, name)) for name in REPLAYED if hasattr(buffer, name)}
        content["replay"] = {**arrays, "pos": int(buffer.pos), "full": bool(buffer.full)}
    torch.save(content, path)


def load_learner(model: BaseAlgorithm, path: Path) -> None:
    """Give a new learner of the same configuration what :func:`save_learner` wrote.

    Raises:
        Exception: the file is damaged, or of another configuration; of many kinds.
    """
    content = torch.load(path, map_location="cpu", weights_only=True)
    model.set_parameters(content["parameters"], exact_match=True, device=model.device)
    for name, value in content["counters"].items():
        if name not in COUNTERS:
            raise ValueError(f"unknown counter {name!r}")
        setattr(model, name, value)
    model.ep_info_buffer = deque(content["episodes"], maxlen=model._stats_window_size)
    model.ep_success_buffer = deque(maxlen=model._stats_window_size)
    normaliser = model.get_vec_normalize_env()
    if normaliser is not None:
        scale: Any = normaliser.ret_rms
        for name, value in content["rewards"].items():
            setattr(scale, name, value.numpy() if value.ndim else value.numpy()[()])
    buffer: Any = getattr(model, "replay_buffer", None)
    if buffer is not None:
        replay = content["replay"]
        for name in REPLAYED:
            if hasattr(buffer, name):
                _fill(getattr(buffer, name), replay[name])
        buffer.pos, buffer.full = replay["pos"], replay["full"]


def _number(value: Any) -> Any:
    """Return a number as Python's own."""
    return value.item() if isinstance(value, np.generic) else value


def _tensor(value: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(value))


def _tensors(value: Any) -> Any:
    return {k: _tensor(x) for k, x in value.items()} if isinstance(value, Mapping) else _tensor(value)


def _fill(array: Any, value: Any) -> None:
    """Put saved numbers into an array, or a mapping of arrays, of the same shape."""
    if isinstance(array, Mapping):
        for name, own in array.items():
            _fill(own, value[name])
        return
    if array.shape != tuple(value.shape):
        raise ValueError(f"an array of shape {tuple(value.shape)}; expected {array.shape}")
    array[...] = value.numpy()
