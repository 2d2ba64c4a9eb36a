"""The checked build, for developers and for authors of policies: ``KVGYM_DEBUG=1``.

The compiled core trusts its indices and addresses; a mistake there, or in a policy from elsewhere, changes other
memory or ends the process without a word. In a process that is started with ``KVGYM_DEBUG=1``

- all compiled code, policies and their helpers included, checks every index before it reads or writes,
- memory that compiled code finds by address lies between canaries, numbers that nobody may change, which are looked at
  after every call,

and either is reported as an :class:`~kvgym.errors.OutOfBoundsError`. Results are the same; runs take about twice as
long. Machine code of the checked build is kept in a folder of its own. There is no switch within a process: helpers
may have been compiled already. :func:`checked_environment` is for processes that are to be started.
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
"""Whether this process is of the checked build."""

GAP = 64 if CHECKED else 0
"""Bytes of each canary: a cache line, so that tables stay aligned."""
CANARY = 0xC5
"""What each byte of a canary holds."""

if CHECKED:
    check_bounds()


def checked_environment() -> dict[str, str]:
    """Return the variables of this process with those that make the checked build of one that is started with them."""
    return {**os.environ, VARIABLE: "1"}


class _Buffer(np.ndarray[Any, np.dtype[np.uint8]]):
    """Memory of an array with a canary before and behind it; NumPy keeps it as the base of the array's views."""


def guarded(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array; in the checked build a copy of it between canaries, for :func:`check`."""
    if not CHECKED:
        return array
    buffer: Any = np.zeros(array.nbytes + 3 * GAP, np.uint8).view(_Buffer)
    buffer = buffer[-buffer.ctypes.data % GAP :][: array.nbytes + 2 * GAP]
    buffer[:GAP] = buffer[GAP + array.nbytes :] = CANARY
    found: NDArray[Any] = np.ndarray(array.shape, array.dtype, buffer, GAP)
    found[...] = array
    return found


def _buffer_of(array: Any) -> _Buffer | None:
    """Return the memory with canaries that an array lies in, if it does."""
    while isinstance(array, np.ndarray):
        if isinstance(array, _Buffer):
            return array
        array = array.base
    return None


def check(who: str, tables: Mapping[str, NDArray[Any]]) -> None:
    """Look at the canaries around arrays.

    Args:
        who: whose they are or who may have written to them, for the message.
        tables: arrays by name; those that are not :func:`guarded`, or copies, are passed over.

    Raises:
        OutOfBoundsError: somebody has written outside of one.
    """
    for name, array in tables.items():
        buffer = _buffer_of(array)
        if buffer is not None:
            for gap, side in ((buffer[:GAP], "before"), (buffer[-GAP:], "behind")):
                if (gap != CANARY).any():
                    raise damage(who, name, side)


def damage(who: str, name: str, side: str) -> OutOfBoundsError:
    """Return the error about memory that was written to."""
    return OutOfBoundsError(
        f"{who}: compiled code wrote to memory right {side} the table {name!r}; what was computed since the call "
        "before is not to be trusted"
    )


def watched(
    entry: Callable[..., Any], who: Callable[[], str], check_memory: Callable[[str], None]
) -> Callable[..., Any]:
    """Return a compiled function as it is to be called; the function itself but in the checked build.

    There it raises :class:`~kvgym.errors.OutOfBoundsError` where an index was wrong or a canary has changed.

    Args:
        entry: the function.
        who: returns who is to blame, for messages.
        check_memory: called after the function with who is to blame, see :func:`check`.
    """
    if not CHECKED:
        return entry

    def call(*arguments: Any) -> Any:
        try:
            found = entry(*arguments)
        except IndexError as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise OutOfBoundsError(
                f"{who()}: {error} in {place.name} ({place.filename}:{place.lineno}); the run cannot go on"
            ) from None
        check_memory(who())
        return found

    return call
