"""Actions from outside: checked once, where they come in."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.errors import ConfigError


def read_action(space: spaces.Space[Any], action: Any) -> NDArray[np.float64]:
    """Return an action, or a batch of them, as the stepping functions read it.

    Args:
        space: of the action or of the batch.
        action: a number or an array. Of Discrete, MultiDiscrete and MultiBinary spaces whole numbers, of whatever
            dtype; those outside the space are no-ops. Of a Box finite numbers, which are clipped to it.

    Raises:
        ConfigError: another shape, no numbers, not finite, or not whole.
    """
    given = np.asarray(action)
    if given.dtype.kind not in "biuf":
        raise ConfigError(f"action {_short(action)} is not made of numbers; expected one of {_name(space)}")
    wanted = space.shape or ()
    if given.shape != wanted and not (given.size == 1 and wanted == ()):
        raise ConfigError(f"actions have shape {given.shape}; expected {wanted}, of {_name(space)}")
    numbers = given.astype(np.float64)
    if given.dtype.kind == "f" and not np.isfinite(numbers).all():
        raise ConfigError(f"action {_short(action)} is not finite; expected one of {_name(space)}")
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return np.clip(numbers, space.low, space.high)
    if given.dtype.kind == "f" and (numbers != np.floor(numbers)).any():
        raise ConfigError(f"action {_short(action)} is not whole; expected one of {_name(space)}")
    return numbers


def _short(action: Any) -> str:
    text = " ".join(repr(action).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _name(space: spaces.Space[Any]) -> str:
    """Return a space in a few words; a Box would print all of its bounds."""
    return (
        f"Box of shape {space.shape}" if isinstance(space, spaces.Box) else " ".join(str(space).split())[:80]
    )
