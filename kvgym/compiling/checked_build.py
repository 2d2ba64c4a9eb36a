"""The checked build, for developers and authors of policies: ``KVGYM_DEBUG=1``.

The compiled core does not check indices and addresses; a mistake there, or in a user's policy, corrupts other memory
or crashes the process. In a process that is started with ``KVGYM_DEBUG=1``

- all compiled code, policies and their helpers included, checks every index before it reads or writes,
- memory that compiled code finds by address has guard bytes around it that are verified after every call,

and a violation raises :class:`~kvgym.errors.OutOfBoundsError`. Results are the same; runs take about twice as long.
The checked build has its own cache folder. It cannot be switched on within a process, where helpers may have been
compiled already; :func:`checked_environment` returns the variables for a new process.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.numba_internals import check_bounds
from kvgym.errors import OutOfBoundsError

VARIABLE = "KVGYM_DEBUG"
CHECKED = os.environ.get(VARIABLE, "0") not in ("", "0")
"""Whether this process runs the checked build."""

GUARD_SIZE = 64 if CHECKED else 0
"""Guard bytes on each side: a cache line, so that tables stay aligned."""
GUARD_BYTE = 0xC5
"""Value of each guard byte."""

if CHECKED:
    check_bounds()


def checked_environment() -> dict[str, str]:
    """Return this process's environment variables with the checked build switched on, for starting a process."""
    return {**os.environ, VARIABLE: "1"}


class _Buffer(np.ndarray[Any, np.dtype[np.uint8]]):
    """Memory of an array with guard bytes before and behind it; NumPy keeps it as the base of the array's views."""


def guarded(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array; in the checked build a copy with guard bytes around it, for :func:`check`."""
    if not CHECKED:
        return array
    buffer: Any = np.zeros(array.nbytes + 3 * GUARD_SIZE, np.uint8).view(_Buffer)
    buffer = buffer[-buffer.ctypes.data % GUARD_SIZE :][: array.nbytes + 2 * GUARD_SIZE]
    buffer[:GUARD_SIZE] = buffer[GUARD_SIZE + array.nbytes :] = GUARD_BYTE
    copy: NDArray[Any] = np.ndarray(array.shape, array.dtype, buffer, GUARD_SIZE)
    copy[...] = array
    return copy


def _buffer_of(array: Any) -> _Buffer | None:
    """Return the guarded memory of an array, None if it has none."""
    while isinstance(array, np.ndarray):
        if isinstance(array, _Buffer):
            return array
        array = array.base
    return None


def check(owner: str, tables: Mapping[str, NDArray[Any]]) -> None:
    """Verify the guard bytes around arrays.

    Args:
        owner: what the arrays belong to or what may have written to them, for the message.
        tables: arrays by name; copies and arrays that are not :func:`guarded` are skipped.

    Raises:
        OutOfBoundsError: guard bytes have changed.
    """
    for name, array in tables.items():
        buffer = _buffer_of(array)
        if buffer is not None:
            for guard, side in ((buffer[:GUARD_SIZE], "before"), (buffer[-GUARD_SIZE:], "behind")):
                if (guard != GUARD_BYTE).any():
                    raise overwrite_error(owner, name, side)


def overwrite_error(owner: str, name: str, side: str) -> OutOfBoundsError:
    """Return the error about guard bytes that were overwritten."""
    return OutOfBoundsError(
        f"{owner}: compiled code wrote to memory right {side} the table {name!r}; results since the previous call are "
        "not reliable"
    )


def watched(
    entry: Callable[..., Any], owner: Callable[[], str], check_memory: Callable[[str], None]
) -> Callable[..., Any]:
    """Return a compiled function, wrapped by checks in the checked build.

    There it raises :class:`~kvgym.errors.OutOfBoundsError` if an index was wrong or guard bytes have changed.

    Args:
        entry: the function.
        owner: returns what runs, for messages.
        check_memory: called after the function with the owner, see :func:`check`.
    """
    if not CHECKED:
        return entry

    def call(*arguments: Any) -> Any:
        try:
            result = entry(*arguments)
        except IndexError as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise OutOfBoundsError(
                f"{owner()}: {error} in {place.name} ({place.filename}:{place.lineno}); the run cannot go on"
            ) from None
        check_memory(owner())
        return result

    return call
