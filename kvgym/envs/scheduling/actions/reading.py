"""Where an agent and the stepping functions meet: actions come in, masks go out.

Actions are checked once, where they come in: form and dtype here, and the numbers by :func:`inside` in the compiled
call that takes them (:func:`~kvgym.envs.scheduling.stepping.step_envs`), before anything has changed.
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
    """Return what numbers an action of a space is made of: the least of each, then the largest, float64 (2 a,).

    Raises:
        ConfigError: the space is not one of numbers.
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
    """Whether actions of a space are made of whole numbers."""
    return not isinstance(space, spaces.Box) or space.dtype.kind in "iu"


@jit
def inside(bounds: Any, whole: int, action: Any) -> bool:
    """Whether all numbers of an action are in its space; NaN is in none.

    Args:
        bounds: as of :func:`action_bounds`.
        whole: 1 if they must be whole numbers.
        action: float64 (a,).
    """
    size, found = action.shape[0], True
    for k in range(size):  # without a way out, so that several numbers are compared at once
        found &= (bounds[k] <= action[k]) & (action[k] <= bounds[size + k])
    if whole == 1 and found:
        for k in range(size):
            found &= action[k] == math.floor(action[k])
    return found


STORED = {np.dtype(np.int8): 1, np.dtype(np.int64): 2, np.dtype(np.float32): 3, np.dtype(np.float64): 0}
"""Numbers that stand for how actions are stored, by the dtype of their space; 0 as the stepping functions read them."""


@jit
def write_rows(given: Any, actions: Any, first: int) -> None:
    """Write rows of numbers of any kind, from ``first`` on, as float64."""
    for n in range(first, given.shape[0]):
        for k in range(given.shape[1]):
            actions[n, k] = given[n, k]


class ActionReader:
    """Takes actions of a space, or batches of them, as the stepping functions read them.

    Args:
        space: of single actions.
        out: float64, memory of the stepping functions: (a,), or (N, a) for batches.
        arrays: what calls of the stepping functions are given, where they may take actions from ``arrays.given``; None
            where they do not.
    """

    def __init__(
        self, space: spaces.Space[Any], out: NDArray[np.float64], arrays: Arrays | None = None
    ) -> None:
        self._space, self._shape = space, (*out.shape[:-1], *(space.shape or ()))
        self._out = out.reshape(self._shape)
        self._dtype, self._scalar = space.dtype, self._shape == () and is_whole(space)
        # Gymnasium's MultiBinary takes 0 and 1 of any dtype, which frameworks make use of.
        self._kinds = "biuf" if isinstance(space, spaces.MultiBinary) else "iu" if is_whole(space) else "iuf"
        self._usual: frozenset[type] = frozenset()
        self._taken = False
        if arrays is not None and space.dtype in STORED and len(self._shape) <= 1:
            # A view compares form and dtype of what it is assigned, and copies it, in a fraction of NumPy's time.
            self._usual = frozenset((int, np.int64)) if self._scalar else frozenset((np.ndarray,))
            self._stored = STORED[space.dtype]
            memory: Any = arrays.given if self._stored else out
            self._view: Any = memoryview(memory.reshape(-1))
            self._place: Any = 0 if self._scalar else slice(None)
            self._order = arrays.orders[0]

    def read(self, action: Any) -> None:
        """Write an action into the memory of the stepping functions.

        Args:
            action: of spaces of whole numbers an integer, or an array or list of integers of any width; of a Box
                floats or integers. Numbers outside the space are written, for the stepping functions to refuse.

        Raises:
            ConfigError: another form, or no such numbers; nothing has been written.
        """
        if action.__class__ in self._usual:
            try:
                self._view[self._place] = action
            except (TypeError, ValueError, BufferError):
                pass  # another dtype or form: as all others
            else:
                if not self._taken:
                    self._order[GIVEN], self._taken = self._stored, True
                return
        self._read_any(action)
        if self._taken:
            self._order[GIVEN], self._taken = 0, False

    def _read_any(self, action: Any) -> None:
        """Write an action of any form; arguments and errors as of :meth:`read`."""
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


def outside(space: spaces.Space[Any], action: NDArray[np.float64], who: str = "") -> ConfigError:
    """Return the error that tells of an action with a number outside its space.

    Args:
        space: of single actions.
        action: float64 (a,), as read.
        who: whose action it is, for the message.
    """
    low, high = action_bounds(space).reshape(2, -1)
    whole = is_whole(space)
    wrong = ~((low <= action) & (action <= high)) | (whole & (action != np.floor(action)))
    k = int(np.flatnonzero(wrong)[0])
    return ConfigError(
        f"{f'number {k} of the action' if space.shape else 'action'}{who} is {action[k]:.15g}, outside "
        f"{name_of(space)}; expected {'a whole number' if whole else 'a number'} from {low[k]:.15g} to {high[k]:.15g}"
    )


def sample_mask(space: spaces.Space[Any], mask: NDArray[np.uint8]) -> Any:
    """Return a mask in the form that ``space.sample(mask=...)`` takes, see Gymnasium's spaces.

    Args:
        space: of single actions.
        mask: (K,), laid out as sb3-contrib's; (N, K) of as many environments.

    Returns:
        int8 (n,) for Discrete(n); for MultiBinary(n) int8 (n,), 0 where a flag must be 0 and 2 where it is free; for
        MultiDiscrete a tuple of an int8 array each; None for a Box. Of N environments an array of these, as
        Gymnasium's vector environments put the information of theirs together: int8 (N, n), or object (N,).
    """
    if isinstance(space, spaces.Discrete):
        return mask.astype(np.int8)
    if isinstance(space, spaces.MultiBinary):
        return (2 * mask[..., 1::2]).astype(np.int8)
    if isinstance(space, spaces.Box):
        return None if mask.ndim == 1 else np.full(len(mask), None)
    assert isinstance(space, spaces.MultiDiscrete)
    parts = np.split(mask.astype(np.int8), np.cumsum(space.nvec)[:-1], axis=-1)
    return tuple(parts) if mask.ndim == 1 else np.fromiter(zip(*parts, strict=True), object, len(mask))


def name_of(space: spaces.Space[Any]) -> str:
    """Return a space in a few words; a Box of many bounds would print them all."""
    text = " ".join(str(space).split())
    return text if len(text) <= 80 else f"a {type(space).__name__} of shape {space.shape}"


def _short(action: Any) -> str:
    return " ".join(shown(action, 60).split())
