"""Descriptions of actions and observations of a scheduling environment: rows of tables, and the text of ``help``."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvgym.envs.scheduling.actions.catalogue import ACTIONS
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.observations import (
    PROFILE_FEATURES,
    SYSTEM_FEATURES,
    active_features,
    queue_features,
)
from kvgym.envs.scheduling.revealed import cache_features, class_features, moment_features
from kvgym.envs.scheduling.spaces import flat_space, parts

TITLES = {
    "system": "The worker",
    "profile": "Future memory",
    "classes": "Classes",
    "cache": "The prefix cache",
    "rule": "The rule",
    "queue": "Each position q of the queue window",
    "active": "Each position a of the active window, latest activated first",
    "asked": "The request that is asked for",
    "lengths": "Outputs that have ended",
}
"""Headings for the keys of the Dict observation."""


class Feature(NamedTuple):
    """A number of the flat observation, or one per position of a window.

    Attributes:
        place: its index or indices.
        name: its name.
        meaning: what it is.
        unit: flag, share, or x / (x + scale).
        low: its smallest value.
        high: its largest value.
    """

    place: str
    name: str
    meaning: str
    unit: str
    low: float
    high: float


def unit_of(meaning: str) -> str:
    """Return the unit of a normalised feature."""
    if meaning.startswith(("1 if", "1 for")):
        return "flag"
    if "log2(1 + " in meaning:
        return "logarithm"
    return "x / (x + scale)" if "(scale: " in meaning else "share"


def rows(
    features: Sequence[tuple[str, str]], first: int, low: Any, high: Any, position: str = ""
) -> list[Feature]:
    """Return the rows of a group of features.

    Args:
        features: name and meaning of each.
        first: index of the group in the flat observation.
        low: lower bounds of the flat observation.
        high: upper bounds of the flat observation.
        position: letter of the position if the group is repeated for each position of a window, else "".
    """
    step = f" + {len(features)} {position}" if position else ""
    return [
        Feature(f"{first + k}{step}", name, meaning, unit_of(meaning), float(low[first + k]), float(high[first + k]))
        for k, (name, meaning) in enumerate(features)
    ]  # fmt: skip


def observation_rows(config: EnvConfig) -> dict[str, list[Feature]]:
    """Return the rows of every group of the observation, by key of the Dict observation."""
    space, bounds = flat_space(config), parts(config)
    groups = {
        "system": SYSTEM_FEATURES,
        "profile": PROFILE_FEATURES,
        "classes": class_features(config),
        "cache": cache_features(config),
        "rule": moment_features(config),
        "queue": queue_features(config),
        "active": active_features(config),
        **{part.name: part.features for part in config.parts},
    }
    return {
        key: rows(groups[key], first, space.low, space.high, {"queue": "q", "active": "a"}.get(key, ""))
        for key, (first, _) in bounds.items()
    }


def introduction(config: EnvConfig, environment: type[Any]) -> str:
    """Return the text of ``help`` for an environment: its id, its actions, and the docstring of its class."""
    entry, kind = ACTIONS[config.action], config.kind
    actions = "\n".join(
        f"    {part.place}: {part.meaning}. Unit: {part.unit}; {part.low:g} to {part.high:g}."
        for part in kind.parts(config)
    )
    return (
        f"{entry.id}: {entry.summary}\n\n{inspect.getdoc(type(kind))}\n\nActions of this environment, "
        f"{config.action_space}:\n{actions}\n\n{inspect.getdoc(environment)}"
    )
