"""Calls from compiled code into Python, by address."""

from __future__ import annotations

import ctypes
from typing import Any

from llvmlite import ir
from numba import types

from kvgym.compiling.kernel import generated

C_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int64)
"""Makes a C function of a Python function ``() -> int``.

The caller keeps it alive, and no exception may leave it: Python would print it and go on.
"""


def address_of(function: Any) -> int:
    """Return the address of a :data:`C_FUNCTION`."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    function = ir.FunctionType(context.get_value_type(types.int64), [])
    return builder.call(builder.inttoptr(arguments[0], function.as_pointer()), [])


def _typed(typing: Any, address: Any) -> Any:
    return types.int64(types.int64), _generate


call_back = generated(_typed, lambda address: int(C_FUNCTION(int(address))()))
"""Call a :data:`C_FUNCTION` by its address, from compiled code that holds the GIL or has released it."""
