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
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic
from numba.np import arrayobj as _arrayobj

from kvgym.simulator.tables import as_records

cgutils: Any = _cgutils  # untyped parts of Numba's extension API
arrayobj: Any = _arrayobj


def view_at(dtype: Any, dimensions: int = 1) -> Any:
    """Return a compiled function that opens a contiguous table of ``dtype`` on memory owned elsewhere.

    Args:
        dtype: of its elements.
        dimensions: 1 for ``(address, n) -> array of shape (n,)``, 2 for ``(address, r, n) -> array (r, n)``.
    """
    element = numba.from_dtype(np.dtype(dtype))
    array = types.Array(element, dimensions, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        where, *shape = arguments
        data_type = context.get_data_type(element)
        size = context.get_constant(types.intp, context.get_abi_sizeof(data_type))
        strides = [size]
        for n in reversed(shape[1:]):
            strides.insert(0, builder.mul(n, strides[0]))
        out = arrayobj.make_array(array)(context, builder)
        data = builder.inttoptr(where, data_type.as_pointer())
        arrayobj.populate_array(out, data=data, shape=shape, strides=strides, itemsize=size, meminfo=None)
        return out._getvalue()

    found: Any
    if dimensions == 1:

        @intrinsic
        def found(typing: Any, address: Any, n: Any) -> Any:
            return array(types.int64, types.int64), generate

    else:

        @intrinsic
        def found(typing: Any, address: Any, r: Any, n: Any) -> Any:
            return array(types.int64, types.int64, types.int64), generate

    found.python_twin = lambda address, *shape: _view_in_python(dtype, int(address), tuple(map(int, shape)))
    return found


_IN_PYTHON: dict[int, Any] = {}
"""Handle -> plain Python function, for uncompiled code."""


def function_handle(function: Any, signature: Any, *, compiled: bool) -> tuple[int, int]:
    """Return two numbers by which compiled code finds a function, see :func:`function_at`.

    Handing the function itself to a compiled call would look its addresses up again at every call, which
    takes ten times as long as a step. The caller keeps the function alive.
    """
    if not compiled:
        _IN_PYTHON[id(function)] = function
        return id(function), 0
    from numba.experimental import function_type as numba_function_type

    function_type: Any = numba_function_type
    return (
        int(function_type._get_wrapper_address(function, signature)),
        int(function_type._get_jit_address(function, signature)),
    )


def function_at(signature: Any) -> Any:
    """Return a compiled function ``(c_address, jit_address) -> first-class function`` of a signature."""
    kind = types.FunctionType(signature)

    @intrinsic
    def make(typing: Any, c_address: Any, jit_address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = context.get_value_type(types.voidptr)
            out = cgutils.create_struct_proxy(kind)(context, builder)
            out.c_addr = builder.inttoptr(arguments[0], pointer)
            out.py_addr = context.get_constant_null(types.voidptr)
            out.jit_addr = builder.inttoptr(arguments[1], pointer)
            return out._getvalue()

        return kind(types.int64, types.int64), generate

    found: Any = make
    found.python_twin = lambda handle, _: _IN_PYTHON.get(int(handle))  # 0: none, and none is called
    return found


def _view_in_python(dtype: Any, address: int, shape: tuple[int, ...]) -> Any:
    """Do the same in plain Python, for uncompiled code."""
    kind, n = np.dtype(dtype), math.prod(shape)
    buffer = (ctypes.c_char * (kind.itemsize * n)).from_address(address)
    table = np.frombuffer(buffer, dtype=kind, count=n).reshape(shape)
    return as_records(table) if kind.names else table
