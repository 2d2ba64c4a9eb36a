"""Conversion of actions and masks between agents and the stepping functions.

Actions are checked once: shape and dtype here, and the numbers by :func:`inside` at the beginning of the compiled
call (:func:`~kvgym.envs.scheduling.stepping.step_envs`), before anything has changed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit
from kvgym.envs.scheduling.memory import GIVEN, Arrays
from kvgym.errors import ConfigError, shown


def action_bounds(space: spaces.Space[Any]) -> NDArray[np.float64]:
    """Return the bounds of the numbers of an action: all lower ones, then all upper ones, float64 (2 a,).

    Raises:
        ConfigError: the space is not numeric.
    """
    if isinstance(space, spaces.Discrete):
        low, high = space.start, space.start + space.n - 1
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    elif isinstance(space, spaces.MultiBinary):
        low, high = np.zeros(space.shape), np.ones(space.shape)
    elif isinstance(space, spaces.Box):
        low, high = space.low, space.high
    else:
        raise ConfigError(
            f"actions of {type(space).__name__}; expected a Discrete, MultiDiscrete, MultiBinary or Box"
        )
    return np.concatenate([np.ravel(low), np.ravel(high)]).astype(np.float64)


def is_whole(space: spaces.Space[Any]) -> bool:
    """Whether the actions of a space consist of whole numbers."""
    return not isinstance(space, spaces.Box) or space.dtype.kind in "iu"


@jit
def inside(bounds: Any, whole: int, action: Any) -> bool:
    """Whether all numbers of an action are in its space; NaN never is.

    Args:
        bounds: from :func:`action_bounds`.
        whole: 1 if they must be whole numbers.
        action: float64 (a,).
    """
    size, found = action.shape[0], True
    for k in range(size):  # no early exit, so that the loop is vectorised
        found &= (bounds[k] <= action[k]) & (action[k] <= bounds[size + k])
    if whole == 1 and found:
        for k in range(size):
            found &= action[k] == math.floor(action[k])
    return found


STORED = {np.dtype(np.int8): 1, np.dtype(np.int64): 2, np.dtype(np.float32): 3, np.dtype(np.float64): 0}
"""Codes of the dtypes in which actions are stored; 0 is the dtype that the stepping functions use."""


@jit
def write_rows(given: Any, actions: Any, first: int) -> None:
    """Copy rows of numbers of any dtype, from ``first`` on, as float64."""
    for n in range(first, given.shape[0]):
        for k in range(given.shape[1]):
            actions[n, k] = given[n, k]


class ActionReader:
    """Converts actions of a space, or batches of them, for the stepping functions.

    Args:
        space: the space of single actions.
        out: float64, memory of the stepping functions: (a,), or (N, a) for batches.
        arrays: arguments of the stepping functions, if these can read actions from ``arrays.given``; else None.
    """

    def __init__(
        self, space: spaces.Space[Any], out: NDArray[np.float64], arrays: Arrays | None = None
    ) -> None:
        self._space, self._shape = space, (*out.shape[:-1], *(space.shape or ()))
        self._out = out.reshape(self._shape)
        self._dtype, self._scalar = space.dtype, self._shape == () and is_whole(space)
        # Gymnasium's MultiBinary accepts 0 and 1 of any dtype, and frameworks rely on it.
        self._kinds = "biuf" if isinstance(space, spaces.MultiBinary) else "iu" if is_whole(space) else "iuf"
        self._fast_types: frozenset[type] = frozenset()
        self._given = False
        if arrays is not None and space.dtype in STORED and len(self._shape) <= 1:
            # Assignment to a memoryview checks shape and dtype and copies in a fraction of NumPy's time.
            self._fast_types = frozenset((int, np.int64)) if self._scalar else frozenset((np.ndarray,))
            self._stored = STORED[space.dtype]
            memory: Any = arrays.given if self._stored else out
            self._view: Any = memoryview(memory.reshape(-1))
            self._place: Any = 0 if self._scalar else slice(None)
            self._order = arrays.orders[0]

    def read(self, action: Any) -> None:
        """Write an action into the memory of the stepping functions.

        Args:
            action: for spaces of whole numbers an integer, or an array or list of integers of any width; for a Box
                floats or integers. Numbers outside the space are written too; the stepping functions refuse them.

        Raises:
            ConfigError: the shape or the dtype is wrong; nothing has been written.
        """
        if action.__class__ in self._fast_types:
            try:
                self._view[self._place] = action
            except (TypeError, ValueError, BufferError):
                pass  # another dtype or shape: take the general path
            else:
                if not self._given:
                    self._order[GIVEN], self._given = self._stored, True
                return
        self._read_any(action)
        if self._given:
            self._order[GIVEN], self._given = 0, False

    def _read_any(self, action: Any) -> None:
        """Write an action of any type; arguments and errors as in :meth:`read`."""
        kind = action.__class__
        try:
            if kind is np.ndarray:
                if action.dtype is self._dtype and action.shape == self._shape:
                    self._out[...] = action
                    return
            elif self._scalar and (kind is int or kind is np.int64):
                self._out[()] = action
                return
            given = np.asarray(action)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"action {_short(action)} is none of {name_of(self._space)}: {error}") from None
        if given.shape != self._shape:
            raise ConfigError(
                f"action {_short(action)} has shape {given.shape}; expected {self._shape}, of {name_of(self._space)}"
            )
        if given.dtype.kind not in self._kinds:
            taken = "numbers" if "f" in self._kinds else "whole numbers, int or an integer array"
            raise ConfigError(
                f"action {_short(action)} is of dtype {given.dtype}; {name_of(self._space)} takes {taken}"
            )
        self._out[...] = given


def outside(space: spaces.Space[Any], action: NDArray[np.float64], owner: str = "") -> ConfigError:
    """Return the error for an action with a number outside its space.

    Args:
        space: the space of single actions.
        action: float64 (a,), as read.
        owner: suffix that names the environment in the message.
    """
    low, high = action_bounds(space).reshape(2, -1)
    whole = is_whole(space)
    wrong = ~((low <= action) & (action <= high)) | (whole & (action != np.floor(action)))
    k = int(np.flatnonzero(wrong)[0])
    return ConfigError(
        f"{f'number {k} of the action' if space.shape else 'action'}{owner} is {action[k]:.15g}, outside "
        f"{name_of(space)}; expected {'a whole number' if whole else 'a number'} from {low[k]:.15g} to {high[k]:.15g}"
    )


def sample_mask(space: spaces.Space[Any], mask: NDArray[np.uint8]) -> Any:
    """Return a mask in the form that ``space.sample(mask=...)`` takes, see Gymnasium's spaces.

    Args:
        space: the space of single actions.
        mask: (K,) in sb3-contrib's layout; (N, K) for N environments.

    Returns:
        int8 (n,) for Discrete(n); for MultiBinary(n) int8 (n,), 0 or 1 where a flag must be that, and 2 where it is
        free; for MultiDiscrete a tuple of int8 arrays; None for a Box. For N environments an array of these, in the
        form of the information of Gymnasium's vector environments: int8 (N, n), or object (N,).
    """
    if isinstance(space, spaces.Discrete):
        return mask.astype(np.int8)
    if isinstance(space, spaces.MultiBinary):
        return (mask[..., 1::2] * (1 + mask[..., 0::2])).astype(np.int8)
    if isinstance(space, spaces.Box):
        return None if mask.ndim == 1 else np.full(len(mask), None)
    assert isinstance(space, spaces.MultiDiscrete)
    parts = np.split(mask.astype(np.int8), np.cumsum(space.nvec)[:-1], axis=-1)
    return tuple(parts) if mask.ndim == 1 else np.fromiter(zip(*parts, strict=True), object, len(mask))


def name_of(space: spaces.Space[Any]) -> str:
    """Return a short text for a space; a Box with many bounds would print them all."""
    text = " ".join(str(space).split())
    return text if len(text) <= 80 else f"a {type(space).__name__} of shape {space.shape}"


def _short(action: Any) -> str:
    return " ".join(shown(action, 60).split())
