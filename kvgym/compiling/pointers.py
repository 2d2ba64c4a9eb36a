"""Arrays and functions by address, for compiled code that works on many environments or workers.

A call from Python into compiled code pays for each array and function argument, most of all for structured arrays. A
call that needs many of them gets one array of addresses instead and opens the tables itself.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from kvgym.compiling.kernel import generated, jit_disabled
from kvgym.compiling.numba_internals import (
    array_opener,
    function_addresses,
    function_maker,
    generate_prefetch,
    generate_take,
)
from kvgym.compiling.records import as_records
from kvgym.utils.checks import check_flag
from kvgym.utils.user_code import named_errors


def runs_compiled(wanted: bool) -> bool:
    """Return whether code that takes addresses runs compiled: if the caller wants it and Numba is not switched off.

    Raises:
        ConfigError: ``wanted`` is neither True nor False.
    """
    return check_flag(wanted, "compiled") and not jit_disabled()


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


def _prefetch(typing: Any, address: Any) -> Any:
    return types.void(types.int64), generate_prefetch


prefetch = generated(_prefetch, lambda address: None)
"""Prefetch the cache line at an address: a hint to the processor, without effect on results."""


def _take(typing: Any, address: Any, count: Any) -> Any:
    return types.int64(types.int64, types.int64), generate_take


def _take_in_python(address: int, count: int) -> int:
    number = ctypes.c_int64.from_address(int(address))
    found = number.value
    number.value += count
    return found


take = generated(_take, _take_in_python)
"""Add ``count`` to the int64 at an address and return what it was; threads that do so get different numbers."""


def address_of(array: NDArray[Any]) -> int:
    """Return the address of an array's elements; NumPy makes several objects for it, so ask for few."""
    return int(array.ctypes.data)


_ADDRESSES: dict[tuple[Any, int], tuple[tuple[int, int], Any]] = {}
"""Addresses of compiled functions, and their signatures: looking them up takes as long as a run of ten requests."""

_HELD: dict[int, Any] = {}
"""Functions that handles refer to, kept alive: address -> compiled function, or id -> plain Python function."""


def function_handle(function: Any, signature: Any, *, compiled: bool) -> tuple[int, int]:
    """Return two numbers by which compiled code finds a function, see :func:`function_at`.

    Passing the function itself would look its addresses up at every call, which takes ten times as long as a step.
    The function lives as long as the process: a handle is a number, so copies of it cannot be tracked.
    """
    if compiled:
        key = function, id(signature)  # comparing signatures takes longer
        if key not in _ADDRESSES:
            _ADDRESSES[key] = function_addresses(function, signature), signature
        handle = _ADDRESSES[key][0]
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

    return generated(make, lambda handle, _: _HELD.get(int(handle)))  # handle 0 = no function, never called


def _view_in_python(dtype: Any, address: int, shape: tuple[int, ...]) -> Any:
    """Open a table in plain Python, for uncompiled code."""
    kind, n = np.dtype(dtype), math.prod(shape)
    buffer = (ctypes.c_char * (kind.itemsize * n)).from_address(address)
    table = np.frombuffer(buffer, dtype=kind, count=n).reshape(shape)
    return as_records(table) if kind.names else table
