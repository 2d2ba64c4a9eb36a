"""Arrays and functions by address, for compiled code that works on many environments or workers.

A compiled call from Python pays for every array and function it is given, a structured array most of all. Where
a call would need many of them, it gets one array of addresses and opens them itself.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numba
import numpy as np
from numba import types

from kvgym.compiling.kernel import generated, jit_disabled
from kvgym.compiling.numba_internals import (
    array_opener,
    fetcher,
    function_addresses,
    function_maker,
)
from kvgym.compiling.records import as_records
from kvgym.utils.user_code import named_errors


def runs_compiled(wanted: bool) -> bool:
    """Return whether what finds arrays and functions by address runs compiled code.

    Args:
        wanted: whether its user wants that.
    """
    return wanted and not jit_disabled()


def view_at(dtype: Any, dimensions: int = 1) -> Any:
    """Return a compiled function that opens a contiguous table of ``dtype`` on memory owned elsewhere.

    Args:
        dtype: of its elements.
        dimensions: 1 for ``(address, n) -> array of shape (n,)``, 2 for ``(address, r, n) -> array (r, n)``.
    """
    element = numba.from_dtype(np.dtype(dtype))
    array = types.Array(element, dimensions, "C")
    generate = array_opener(array)
    places = (types.int64,) * (1 + dimensions)

    def line(typing: Any, address: Any, n: Any) -> Any:
        return array(*places), generate

    def rows(typing: Any, address: Any, r: Any, n: Any) -> Any:
        return array(*places), generate

    def in_python(address: int, *shape: int) -> Any:
        return _view_in_python(dtype, int(address), tuple(map(int, shape)))

    found = generated(line if dimensions == 1 else rows, in_python)
    found.opens = np.dtype(dtype)
    return found


def _fetch(typing: Any, address: Any) -> Any:
    return types.void(types.int64), fetcher


fetch = generated(_fetch, lambda address: None)
"""Has the cache line at an address brought near while the work goes on: a hint, which changes nothing."""


_HELD: dict[int, Any] = {}
"""Address -> compiled function, or identity -> plain Python function: what handles stand for must not be freed."""


def function_handle(function: Any, signature: Any, *, compiled: bool) -> tuple[int, int]:
    """Return two numbers by which compiled code finds a function, see :func:`function_at`.

    Handing the function itself to a compiled call would look its addresses up again at every call, which
    takes ten times as long as a step. The function lives as long as the process: a handle is a number, and where
    copies of it lie nobody knows.
    """
    if compiled:
        handle = function_addresses(function, signature)
    else:
        function = named_errors(function, "kernel")
        handle = id(function), 0
    _HELD[handle[0]] = function
    return handle


def function_at(signature: Any) -> Any:
    """Return a compiled function ``(c_address, jit_address) -> first-class function`` of a signature."""
    kind = types.FunctionType(signature)
    generate = function_maker(kind)

    def make(typing: Any, c_address: Any, jit_address: Any) -> Any:
        return kind(types.int64, types.int64), generate

    return generated(make, lambda handle, _: _HELD.get(int(handle)))  # 0: none, and none is called


def _view_in_python(dtype: Any, address: int, shape: tuple[int, ...]) -> Any:
    """Do the same in plain Python, for uncompiled code."""
    kind, n = np.dtype(dtype), math.prod(shape)
    buffer = (ctypes.c_char * (kind.itemsize * n)).from_address(address)
    table = np.frombuffer(buffer, dtype=kind, count=n).reshape(shape)
    return as_records(table) if kind.names else table
