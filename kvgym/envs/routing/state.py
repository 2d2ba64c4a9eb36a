"""Saved states of the routing environment; :mod:`kvgym.envs.scheduling.state` describes their use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.routing.config import RoutingConfig
from kvgym.envs.scheduling.state import SavedState, Sealed
from kvgym.errors import ConfigError, shown


@dataclass(frozen=True)
class RoutingState(Sealed, SavedState):
    """A routing environment at a moment; it can be pickled, and restored any number of times.

    Attributes:
        config: its configuration.
        seed: seed of the requests and of the schedulers' random numbers.
        memory: uint8, the contents of all arrays that an episode changes, concatenated.
        generator: state of the bit generator that draws the seeds of later episodes.
        flags: the other attributes of the environment by name; none is modified in place.
        ended: whether the episode is over.
        steps: steps of the episode so far.
    """

    config: RoutingConfig
    seed: int
    memory: NDArray[np.uint8]
    generator: Mapping[str, Any]
    flags: dict[str, Any]
    ended: bool
    steps: int = 0


def pack(arrays: list[NDArray[Any]]) -> NDArray[np.uint8]:
    """Return the contents of contiguous arrays in one block."""
    return np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays])


def check_packed(memory: Any, arrays: list[NDArray[Any]]) -> None:
    """Check that a block could have been packed from arrays of these shapes.

    Raises:
        ConfigError: it could not.
    """
    expected = sum(array.nbytes for array in arrays)
    if not isinstance(memory, np.ndarray) or memory.dtype != np.uint8 or memory.shape != (expected,):
        found = memory.nbytes if isinstance(memory, np.ndarray) else shown(memory)
        raise ConfigError(
            f"the state has tables of {found} bytes; expected {expected}: it was saved by another version of kvgym, "
            "or is damaged"
        )


def unpack(memory: NDArray[np.uint8], arrays: list[NDArray[Any]]) -> None:
    """Copy a block back into arrays of the shapes it was packed from."""
    at = 0
    for array in arrays:
        array.reshape(-1).view(np.uint8)[:] = memory[at : at + array.nbytes]
        at += array.nbytes
