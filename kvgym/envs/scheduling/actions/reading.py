"""Actions from outside: checked once, where they come in."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.errors import ConfigError

_INT64 = np.dtype(np.int64)


class ActionReader:
    """Takes actions of a space, or batches of them, as the stepping functions read them.

    Args:
        space: of the action or of the batch.
        out: float64, memory of the stepping functions, as many numbers as the space has.
    """

    def __init__(self, space: spaces.Space[Any], out: NDArray[np.float64]) -> None:
        self._space, self._shape, self._out = space, space.shape, out
        self._box = space if isinstance(space, spaces.Box) and space.dtype.kind == "f" else None
        self._copied = self._shape if self._box is None and self._shape == out.shape else None

    def read(self, action: Any) -> None:
        """Write an action into the memory of the stepping functions.

        Args:
            action: a number or an array. Of Discrete, MultiDiscrete and MultiBinary spaces whole numbers, of whatever
                dtype; those outside the space are no-ops. Of a Box finite numbers, which are clipped to it.

        Raises:
            ConfigError: another shape, no numbers, not finite, or not whole; nothing has been written.
        """
        if action.__class__ is np.ndarray and action.dtype is _INT64 and action.shape == self._copied:
            self._out[...] = action  # the usual case: whole numbers, which need no look
            return
        try:
            given = np.asarray(action)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"action {_short(action)} is no array of numbers: {error}") from None
        if self._box is not None or given.dtype.kind not in "iub":
            given = self._checked(action, given)
        if given.shape == self._shape or (given.size == 1 and self._shape == ()):
            self._out[...] = given.reshape(self._out.shape)
        else:
            raise ConfigError(f"actions have shape {given.shape}; expected {self._shape}, of {self._name()}")

    def _checked(self, action: Any, given: NDArray[Any]) -> NDArray[Any]:
        """Return an action whose numbers may be wrong, clipped if it belongs to a Box."""
        if given.dtype.kind not in "iubf":
            raise ConfigError(
                f"action {_short(action)} is not made of numbers; expected one of {self._name()}"
            )
        if not np.isfinite(given).all():
            raise ConfigError(f"action {_short(action)} is not finite; expected one of {self._name()}")
        if self._box is None and (given != np.floor(given)).any():
            raise ConfigError(f"action {_short(action)} is not whole; expected one of {self._name()}")
        fits = self._box is not None and given.shape == self._shape
        return np.clip(given, self._box.low, self._box.high) if fits and self._box is not None else given

    def _name(self) -> str:
        """Return the space in a few words; a Box would print all of its bounds."""
        return (
            f"Box of shape {self._shape}"
            if self._box is not None
            else " ".join(str(self._space).split())[:80]
        )


def _short(action: Any) -> str:
    text = " ".join(repr(action).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
