"""Save and load the state of a Stable-Baselines3 learner without pickles.

Stable-Baselines3's own files are pickles, which can run any code. Here only numbers are stored, as tensors read by
``torch.load(weights_only=True)``; everything else is made again from the run's configuration.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.errors import ConfigError, shown, some
from kvgym.utils.reading import check_archive

try:
    import torch
    from stable_baselines3.common.base_class import BaseAlgorithm
except ImportError as error:
    raise ConfigError(f'training needs PyTorch: pip install "kvgym[train]" ({error})') from error

COUNTERS = (
    "num_timesteps", "_total_timesteps", "_num_timesteps_at_start", "_n_updates", "_n_calls", "_episode_num",
    "_current_progress_remaining", "exploration_rate",
)  # fmt: skip
"""Counters of a learner; an algorithm has some of them."""

REPLAYED = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
"""Arrays of a replay buffer; the first two are mappings if observations are."""

POSITIVE = ("step", "exp_avg_sq", "max_exp_avg_sq", "square_avg")
"""State of optimisers that must not be negative: they take roots of it, or use it as an exponent."""


def save_learner(model: BaseAlgorithm, path: Path) -> None:
    """Write weights, optimiser, counters, normalisation and replay buffer of a learner."""
    content: dict[str, Any] = {
        "parameters": model.get_parameters(),
        "counters": {name: _number(getattr(model, name)) for name in COUNTERS if hasattr(model, name)},
        "episodes": [{k: _number(x) for k, x in info.items()} for info in model.ep_info_buffer or ()],
    }
    for part, scale in _scales(model).items():
        content[part] = {name: _tensor(getattr(scale, name)) for name in ("mean", "var", "count")}
    buffer = getattr(model, "replay_buffer", None)
    if buffer is not None:
        arrays = {name: _tensors(getattr(buffer, name)) for name in REPLAYED if hasattr(buffer, name)}
        content["replay"] = {**arrays, "pos": int(buffer.pos), "full": bool(buffer.full)}
    torch.save(content, path)


def load_learner(model: BaseAlgorithm, path: Path) -> None:
    """Load a file of :func:`save_learner` into a new learner of the same configuration.

    Raises:
        ConfigError: the file is damaged or of another configuration; discard the learner then.
    """
    check_archive(path, "checkpoint")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        _take(model, content)
    except MemoryError:
        raise
    except Exception as error:  # damaged files fail in many ways
        raise ConfigError(f"checkpoint {path} cannot be loaded: {error}") from None


def _take(model: BaseAlgorithm, content: Any) -> None:
    """Check and load the parts of a file; any exception means that a part is wrong."""
    optimisers = {name: _groups(part) for name, part in _optimisers(model).items()}
    model.set_parameters(content["parameters"], exact_match=True, device=model.device)
    if not all(bool(x.isfinite().all()) for x in model.policy.state_dict().values()):
        raise ValueError("weights that are not finite")
    for name, optimiser in _optimisers(model).items():
        _check_optimiser(optimiser, optimisers[name])
    counters = content["counters"]
    for name in counters:
        if name not in COUNTERS:
            raise ValueError(f"unknown counter {shown(name)}")
    for name in COUNTERS:
        if hasattr(model, name):
            setattr(model, name, _like(counters[name], getattr(model, name), name))
    episodes = [{str(k): _like(x, 0.0, "episodes") for k, x in info.items()} for info in content["episodes"]]
    if not all({"r", "l"} <= info.keys() for info in episodes):
        raise ValueError("episodes without return or length")
    model.ep_info_buffer = deque(episodes, maxlen=model._stats_window_size)
    model.ep_success_buffer = deque(maxlen=model._stats_window_size)
    for part, scale in _scales(model).items():
        for name, least in (("mean", -math.inf), ("var", 0.0), ("count", 0.0)):
            found = content[part][name].numpy()
            if (
                found.shape != np.shape(getattr(scale, name))
                or not (np.isfinite(found) & (found >= least)).all()
            ):
                raise ValueError(f"{part}.{name} = {shown(found)}")
            setattr(scale, name, found if found.ndim else found[()])
    buffer: Any = getattr(model, "replay_buffer", None)
    if buffer is not None:
        replay = content["replay"]
        for name in REPLAYED:
            if hasattr(buffer, name):
                _fill(getattr(buffer, name), replay[name])
        if type(replay["full"]) is not bool or type(replay["pos"]) is not int:
            raise ValueError("invalid position in the replay buffer")
        if not 0 <= replay["pos"] < buffer.buffer_size:
            raise ValueError(f"position {replay['pos']} in a replay buffer of {buffer.buffer_size}")
        buffer.pos, buffer.full = replay["pos"], replay["full"]


def _scales(model: BaseAlgorithm) -> dict[str, Any]:
    """Return the running means and variances of a learner, by name."""
    normaliser = model.get_vec_normalize_env()
    if normaliser is None:
        return {}
    return {"rewards": normaliser.ret_rms} | (
        {"observations": normaliser.obs_rms} if normaliser.norm_obs else {}
    )


def _optimisers(model: BaseAlgorithm) -> dict[str, torch.optim.Optimizer]:
    """Return the optimisers among the parts of :meth:`get_parameters`, by name."""
    found = {name: functools.reduce(getattr, name.split("."), model) for name in model.get_parameters()}
    return {name: part for name, part in found.items() if isinstance(part, torch.optim.Optimizer)}


def _groups(optimiser: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [{name: x for name, x in group.items() if name != "params"} for group in optimiser.param_groups]


def _check_optimiser(optimiser: torch.optim.Optimizer, before: list[dict[str, Any]]) -> None:
    """Check that an optimiser has its original settings, and moments that fit its weights.

    Only the learning rate may differ, as it follows a schedule.
    """
    for group, own in zip(_groups(optimiser), before, strict=True):
        rate = group.get("lr")
        if {**group, "lr": own["lr"]} != own or type(rate) is not float or not 0 <= rate < math.inf:
            raise ValueError(f"settings of the optimiser: {shown(group)}")
    expected = _moments(optimiser, before[0])
    for weights, moments in optimiser.state.items():
        if moments and moments.keys() != expected.keys():
            raise ValueError(f"optimiser: moments {some(map(str, moments))}; expected {some(expected)}")
        for name, value in moments.items():
            shape = weights.shape if expected[name] else torch.Size()
            fits = isinstance(value, torch.Tensor) and value.shape == shape
            least = 0.0 if name in POSITIVE else -math.inf
            if not fits or not bool((value.isfinite() & (value >= least)).all()):
                raise ValueError(
                    f"optimiser: {name} of weights {tuple(weights.shape)} has a wrong type, shape or value"
                )


def _moments(optimiser: torch.optim.Optimizer, settings: Mapping[str, Any]) -> dict[str, bool]:
    """Return the state of such an optimiser, by name: arrays of the weights' shape (True), or one number."""
    weights = torch.nn.Parameter(torch.zeros(2, 3))
    weights.grad = torch.zeros(2, 3)
    taken = inspect.signature(type(optimiser)).parameters
    made: Any = type(optimiser)
    probe = made([weights], **{name: x for name, x in settings.items() if name in taken})
    probe.step()
    return {name: tuple(value.shape) == (2, 3) for name, value in probe.state[weights].items()}


def _like(value: Any, own: Any, name: str) -> Any:
    """Return a number of the same type as the learner's own."""
    whole = isinstance(own, int) and not isinstance(own, bool)
    kinds = (int,) if whole else (int, float)
    if type(value) not in kinds or not math.isfinite(value) or (whole and not 0 <= value < 2**63):
        raise ValueError(f"{name} = {shown(value)}")
    return value


def _number(value: Any) -> Any:
    """Return a number as a Python number."""
    return value.item() if isinstance(value, np.generic) else value


def _tensor(value: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(value))


def _tensors(value: Any) -> Any:
    return {k: _tensor(x) for k, x in value.items()} if isinstance(value, Mapping) else _tensor(value)


def _fill(array: Any, value: Any) -> None:
    """Copy saved numbers into an array, or a mapping of arrays, of the same shape."""
    if isinstance(array, Mapping):
        for name, own in array.items():
            _fill(own, value[name])
        return
    if not isinstance(value, torch.Tensor) or not bool(value.isfinite().all()):
        raise ValueError("not an array of finite numbers")
    if array.shape != tuple(value.shape):
        raise ValueError(f"an array of shape {tuple(value.shape)}; expected {array.shape}")
    array[...] = value.numpy()
