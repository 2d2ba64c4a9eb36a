"""Observation spaces; action spaces belong to the kinds of action."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.observations import (
    PROFILE_FEATURES,
    SYSTEM_FEATURES,
    active_features,
    observation_size,
    queue_features,
    standard_size,
)
from kvgym.envs.scheduling.revealed import cache_features, class_features, moment_features
from kvgym.utils.arguments import explained
from kvgym.workloads.layout import FEATURE_COLUMNS

Parts = dict[str, tuple[int, int]]
"""Slice (start, stop) of each key of a Dict observation in the flat one."""


@explained
def feature_names(config: EnvConfig) -> tuple[str, ...]:
    """Return the name of each number of the flat observation, e.g. ``"queue.3.prompt"``."""
    queue, active = queue_features(config), active_features(config)
    names = [f"system.{name}" for name, _ in SYSTEM_FEATURES] + [name for name, _ in PROFILE_FEATURES]
    names += [f"classes.{name}" for name, _ in class_features(config)]
    names += [f"cache.{name}" for name, _ in cache_features(config)]
    names += [f"rule.{name}" for name, _ in moment_features(config)]
    names += [f"queue.{q}.{name}" for q in range(config.queue_window) for name, _ in queue]
    names += [f"active.{a}.{name}" for a in range(config.active_window) for name, _ in active]
    names += [f"{part.name}.{name}" for part in config.parts for name, _ in part.features]
    return tuple(names)


def _bounds(config: EnvConfig) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    signed = ("_slack", ".priority", ".rank_score", ".relative_output", *FEATURE_COLUMNS)
    standard = feature_names(config)[: standard_size(config)]
    low, high = [-1.0 if name.endswith(signed) else 0.0 for name in standard], [1.0] * len(standard)
    for part in config.parts:
        low += [part.low] * len(part.features)
        high += [part.high] * len(part.features)
    return np.array(low, np.float32), np.array(high, np.float32)


def flat_space(config: EnvConfig) -> spaces.Box:
    """Return the space of the flat observation."""
    return spaces.Box(*_bounds(config), dtype=np.float32)


def parts(config: EnvConfig) -> Parts:
    """Return the slice (start, stop) of each key of the Dict observation in the flat one."""
    bounds, at = {}, 0
    for name, length in (
        ("system", len(SYSTEM_FEATURES)),
        ("profile", len(PROFILE_FEATURES)),
        ("classes", len(class_features(config))),
        ("cache", len(cache_features(config))),
        ("rule", len(moment_features(config))),
        ("queue", config.queue_window * len(queue_features(config))),
        ("active", config.active_window * len(active_features(config))),
        *((part.name, len(part.features)) for part in config.parts),
    ):
        if length:
            bounds[name] = (at, at + length)
        at += length
    assert at == observation_size(config)
    return bounds


def observation_space(config: EnvConfig) -> spaces.Space[Any]:
    """Return the space of single observations."""
    return space_of(config.observation, flat_space(config), config.kind.mask_size(config), parts(config))


def space_of(form: str, flat: spaces.Box, mask_size: int, parts: Parts) -> spaces.Space[Any]:
    """Return the space of observations in one of the forms ``"flat"``, ``"dict"`` and ``"rllib"``.

    Args:
        form: the environment argument ``observation``.
        flat: the space of the flat observation.
        mask_size: K, length of the mask.
        parts: slice of each key of the Dict observation.
    """
    if form == "flat":
        return flat
    if form == "rllib":
        mask = spaces.Box(0.0, 1.0, (mask_size,), np.float32)
        return spaces.Dict({"action_mask": mask, "observations": flat})
    return spaces.Dict({name: spaces.Box(flat.low[a:b], flat.high[a:b]) for name, (a, b) in parts.items()})


def present(
    form: str, parts: Parts, flat: NDArray[np.float32], mask: NDArray[np.uint8], *, fresh: bool = False
) -> Any:
    """Return an observation in its form, in memory of its own.

    Args:
        form: the environment argument ``observation``.
        parts: slice of each key of the Dict observation.
        flat: (D,) or (N, D).
        mask: (K,) or (N, K).
        fresh: whether ``flat`` is newly allocated and can be returned without a copy.
    """
    if form == "dict":
        return {name: flat[..., a:b].copy() for name, (a, b) in parts.items()}
    if not fresh:
        flat = flat.copy()
    return flat if form == "flat" else {"action_mask": mask.astype(np.float32), "observations": flat}
