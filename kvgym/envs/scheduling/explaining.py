"""What an environment that schedules one worker takes and shows, as rows of tables and as a text."""

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
from kvgym.envs.scheduling.revealed import class_features, moment_features
from kvgym.envs.scheduling.spaces import flat_space, parts

TITLES = {
    "system": "The worker",
    "profile": "Future memory",
    "classes": "Classes",
    "rule": "The rule",
    "queue": "Each position q of the queue window",
    "active": "Each position a of the active window, latest activated first",
}
"""What the keys of the Dict observation are about."""


class Feature(NamedTuple):
    """A number of the flat observation, or one of each position of a window.

    Attributes:
        place: where it is.
        name: its name.
        meaning: what it is.
        unit: what it is counted in: a flag, a share, or x / (x + scale).
        low: its smallest value.
        high: its largest.
    """

    place: str
    name: str
    meaning: str
    unit: str
    low: float
    high: float


def unit_of(meaning: str) -> str:
    """Return what a normalised feature is counted in."""
    if meaning.startswith(("1 if", "1 for")):
        return "flag"
    return "x / (x + scale)" if "half-way" in meaning else "share"


def rows(
    features: Sequence[tuple[str, str]], first: int, low: Any, high: Any, position: str = ""
) -> list[Feature]:
    """Return the rows of a group of features.

    Args:
        features: name and meaning of each.
        first: where the group begins in the flat observation.
        low: bounds of the flat observation.
        high: the same.
        position: letter of the position, where the group is there for each of several; "" = once.
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
        "rule": moment_features(config),
        "queue": queue_features(config),
        "active": active_features(config),
    }
    return {
        key: rows(groups[key], first, space.low, space.high, {"queue": "q", "active": "a"}.get(key, ""))
        for key, (first, _) in bounds.items()
    }


def introduction(config: EnvConfig, environment: type[Any]) -> str:
    """Return what ``help`` says of an environment: its ids, what its actions are, and what all of its kind share."""
    entry, kind = ACTIONS[config.action], config.kind
    actions = "\n".join(
        f"    {part.place}: {part.meaning}. Unit: {part.unit}; {part.low:g} to {part.high:g}."
        for part in kind.parts(config)
    )
    return (
        f"{', '.join(entry.ids)}: {entry.summary}\n\n{inspect.getdoc(type(kind))}\n\nActions of this environment, "
        f"{kind.space(config)}:\n{actions}\n\n{inspect.getdoc(environment)}"
    )
