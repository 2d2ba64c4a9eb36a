"""The private Numba APIs that the compiled core uses, and whether the installed Numba has them.

Only this module and :mod:`kvgym.compiling.lowering` use private APIs.

Numba may change them in any version, and a wrong assumption corrupts memory instead of raising an exception. Some are
needed: without them, or in another form, the import raises one clear error. The others are the tricks of
:mod:`kvgym.compiling`, which only save time. With a version that they were not tested with, or that lacks what they
use, kvgym compiles in Numba's public ways instead, and says so (:data:`TRICKS`).

When Numba releases a version, run all tests with it and ``KVGYM_NUMBA_TRICKS=1``, ``tests/compiling`` first. Then raise
:data:`LAST`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numba
from llvmlite import ir
from numba import types

from kvgym.errors import NumbaVersionError

FIRST, LAST = (0, 61), (0, 68)
"""First series of Numba that kvgym runs with, and the last one that the tricks were tested with."""


def _series() -> tuple[int, ...]:
    """Return the series of the installed Numba; (0, 0) if its version is no number."""
    try:
        return tuple(int(part) for part in numba.__version__.split(".")[:2])
    except ValueError:
        return 0, 0


def _lacking(wanted: tuple[tuple[Any, str], ...]) -> str | None:
    """Return which of some attributes does not exist, None if all do."""
    for place, name in wanted:
        if not hasattr(place, name):
            return f"{getattr(place, '__name__', place)} has no {name}"
    return None


def incompatibility() -> str | None:
    """Return why kvgym cannot use the installed Numba, None if it can."""
    if _series() < FIRST:
        return f"its version is {numba.__version__}"
    try:
        from numba.core import caching, cgutils, datamodel
        from numba.experimental import function_type
        from numba.np import arrayobj

        models: Any = datamodel
        function = models.default_manager.lookup(types.FunctionType(types.int64(types.int64)))._fields
        array = models.default_manager.lookup(types.int64[::1])._fields
        wanted: tuple[tuple[Any, str], ...] = (
            (cgutils, "create_struct_proxy"),
            (arrayobj, "make_array"),
            (arrayobj, "populate_array"),
            (function_type, "_get_wrapper_address"),
            (function_type, "_get_jit_address"),
            (caching, "_CacheLocator"),
            (getattr(caching, "CompileResultCacheImpl", None), "_locator_classes"),
        )
    except (ImportError, AttributeError, TypeError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    if tuple(function) != ("c_addr", "py_addr", "jit_addr"):
        return f"functions have the fields {', '.join(function)}"
    if tuple(array) != ("meminfo", "parent", "nitems", "itemsize", "data", "shape", "strides"):
        return f"arrays have the fields {', '.join(array)}"
    return _lacking(wanted)


def check_numba() -> None:
    """Check that kvgym can use the installed Numba.

    Raises:
        NumbaVersionError: it cannot.
    """
    found = incompatibility()
    if found is not None:
        wanted = f"numba>={FIRST[0]}.{FIRST[1]},<{LAST[0]}.{LAST[1] + 1}"
        raise NumbaVersionError(
            f"kvgym does not support the installed Numba ({found}); install a supported one: pip install '{wanted}'"
        )


def without_tricks() -> str | None:
    """Return why the tricks cannot be used with the installed Numba, None if they can.

    The environment variable ``KVGYM_NUMBA_TRICKS`` is ``1`` to use them with any version that has what they need, or
    ``0`` to do without them.
    """
    wish = os.environ.get("KVGYM_NUMBA_TRICKS")
    if wish == "0":
        return "KVGYM_NUMBA_TRICKS is 0"
    if _series() > LAST and wish != "1":
        return f"its version is {numba.__version__}"
    try:
        from numba.core import (
            caching,
            codegen,
            compiler,
            compiler_machinery,
            cpu,
            typed_passes,
            untyped_passes,
        )
        from numba.np import arrayobj

        flag: Any = cpu.CPUTargetOptions
        return _lacking(
            (
                (flag, "_nrt"),
                (flag, "forceinline"),
                (arrayobj, "fix_integer_index"),
                (caching.Cache, "_guard_against_spurious_io_errors"),
                (caching.Cache, "_load_overload"),
                (codegen.JITCodeLibrary, "_optimize_final_module"),
                (codegen.JITCodeLibrary, "_finalize_final_module"),
                (codegen.JITCodeLibrary, "_optimize_functions"),
                (codegen.JITCodeLibrary, "enable_object_caching"),
                (codegen.JITCPUCodegen, "_module_pass_manager"),
                (compiler.DefaultPassBuilder, "define_nopython_pipeline"),
                (compiler_machinery, "register_pass"),
                (typed_passes.NativeLowering, "run_pass"),
                (untyped_passes, "RewriteSemanticConstants"),
            )
        )
    except (ImportError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"


def choose_tricks() -> bool:
    """Return whether the tricks are used; warn if the installed Numba is the reason that they are not."""
    reason = without_tricks()
    if reason is not None and os.environ.get("KVGYM_NUMBA_TRICKS") != "0":
        warnings.warn(
            f"kvgym is faster with Numba {LAST[0]}.{LAST[1]} than with the installed one ({reason}); "
            "results are the same",
            RuntimeWarning,
            stacklevel=2,
        )
    return reason is None


check_numba()

TRICKS: bool = choose_tricks()
"""Whether kvgym compiles with the tricks of :mod:`kvgym.compiling`; else in Numba's public ways."""

NO_REFCOUNT: dict[str, Any] = {"_nrt": False} if TRICKS else {}
"""Options of ``numba.njit`` that switch reference counting off; such code cannot allocate."""

FORCE_INLINE: dict[str, Any] = {"forceinline": True} if TRICKS else {}
"""Options of ``numba.njit`` that make LLVM inline a helper into its callers."""


_PATCHING = threading.RLock()
"""Held while Numba is patched, so that the original function is restored."""

_OWN = "_ZN5kvgym"
"""Prefix of the mangled names of this package's functions; no other package has it."""


@contextlib.contextmanager
def no_index_wraparound() -> Iterator[None]:
    """Compile functions of this package without the check for negative indices while the context is active.

    By default Numba checks for a negative index and wraps it, which takes a fifth of the time of code that iterates
    over tables. Functions of other packages, such as users' policies, keep Python's negative indices even when they
    are compiled in this context. In this package's functions a negative index is an error, which the checked build
    reports, see :mod:`kvgym.compiling.checked_build`.
    """
    if not TRICKS:
        yield
        return
    from numba.np import arrayobj as typed

    arrayobj: Any = typed
    usual = arrayobj.fix_integer_index

    def fix_integer_index(context: Any, builder: Any, kind: Any, index: Any, size: Any) -> Any:
        if not builder.function.name.startswith(_OWN):
            return usual(context, builder, kind, index, size)
        return context.cast(builder, index, kind, types.intp)

    with _PATCHING:
        arrayobj.fix_integer_index = fix_integer_index
        try:
            yield
        finally:
            arrayobj.fix_integer_index = usual


def array_opener(array: Any) -> Callable[..., Any]:
    """Return the code generator of an intrinsic ``(address, *shape) -> array`` on memory owned elsewhere.

    Args:
        array: Numba type of the array, contiguous.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        from numba.np import arrayobj as typed

        arrayobj: Any = typed
        where, *shape = arguments
        data_type = context.get_data_type(array.dtype)
        size = context.get_constant(types.intp, context.get_abi_sizeof(data_type))
        strides = [size]
        for n in reversed(shape[1:]):
            strides.insert(0, builder.mul(n, strides[0]))
        out = arrayobj.make_array(array)(context, builder)
        data = builder.inttoptr(where, data_type.as_pointer())
        arrayobj.populate_array(out, data=data, shape=shape, strides=strides, itemsize=size, meminfo=None)
        return out._getvalue()

    return generate


def function_maker(kind: Any) -> Callable[..., Any]:
    """Return the code generator of an intrinsic ``(c_address, jit_address) -> first-class function``.

    Args:
        kind: Numba type of the function.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        from numba.core import cgutils as typed

        cgutils: Any = typed
        pointer = context.get_value_type(types.voidptr)
        # Numba checks at every call that the address is not 0. LLVM would duplicate whole loops for this check; it
        # removes the check of a number that cannot be 0.
        one = arguments[1].type(1)
        compiled = builder.select(builder.icmp_unsigned(">", arguments[1], one), arguments[1], one)
        out = cgutils.create_struct_proxy(kind)(context, builder)
        out.c_addr = builder.inttoptr(arguments[0], pointer)
        out.py_addr = context.get_constant_null(types.voidptr)
        out.jit_addr = builder.inttoptr(compiled, pointer)
        return out._getvalue()

    return generate


def generate_prefetch(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Generate the code of an intrinsic ``(address) -> None`` that prefetches the cache line at an address."""
    pointer, number = context.get_value_type(types.voidptr), context.get_value_type(types.int32)
    prefetch = builder.module.declare_intrinsic(
        "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    )
    for_writing, all_levels, data = (number(choice) for choice in (1, 3, 1))
    builder.call(prefetch, [builder.inttoptr(arguments[0], pointer), for_writing, all_levels, data])
    return context.get_dummy_value()


def generate_take(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Generate the code of an intrinsic ``(address, count) -> number`` that adds to a number, one thread at a time."""
    pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
    return builder.atomic_rmw("add", pointer, arguments[1], "monotonic")


def function_addresses(function: Any, signature: Any) -> tuple[int, int]:
    """Return the two addresses of a first-class function: its C wrapper and its compiled code."""
    from numba.experimental import function_type as typed

    function_type: Any = typed
    return (
        int(function_type._get_wrapper_address(function, signature)),
        int(function_type._get_jit_address(function, signature)),
    )


def kernel_cache(locator: type[Any]) -> type[Any]:
    """Return a class of caches ``(function)`` of kernels in the folder that a locator returns.

    Numba's own class gets everything ready for compiling before it loads code, which takes as long as importing Numba.
    Code of kernels needs nothing of it: they count no references and call no libraries.

    Args:
        locator: a class with ``from_function``, ``get_cache_path``, ``get_source_stamp`` and ``get_disambiguator``.
    """
    from numba.core import caching as typed

    caching: Any = typed

    class Located(caching.CompileResultCacheImpl):  # type: ignore[misc]
        _locator_classes = (type(locator.__name__, (locator, caching._CacheLocator), {}),)

    class KernelCache(caching.Cache):  # type: ignore[misc]
        _impl_class = Located

    class LightCache(KernelCache):
        def load_overload(self, sig: Any, target_context: Any) -> Any:
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)

    return LightCache if TRICKS else KernelCache


def check_bounds() -> None:
    """Make everything compiled from now on in this process check its indices; errors name function and line.

    Numba's own message names neither.
    """
    config: Any = numba.config
    config.BOUNDSCHECK = 1  # for all code, as users compile helpers with numba.njit
    from numba.core import cgutils as typed

    cgutils: Any = typed

    def located(context: Any, builder: Any, ind: Any, dimlen: Any, axis: Any = None) -> None:
        too_large = builder.icmp_signed(">=", ind, dimlen)
        outside = builder.or_(too_large, builder.icmp_signed("<", ind, ind.type(0)))
        loc, function = _current_line()
        with cgutils.if_unlikely(builder, outside):
            context.call_conv.return_user_exc(
                builder, IndexError, ("index is out of bounds",), loc=loc, func_name=function
            )

    cgutils.do_boundscheck = located


def _current_line() -> tuple[Any, str | None]:
    """Return the line and function that Numba is lowering, from the nearest lowering object up the call stack."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        lowering = frame.f_locals.get("self")
        if hasattr(lowering, "fndesc") and hasattr(lowering, "loc"):
            return lowering.loc, lowering.fndesc.qualname
        frame = frame.f_back
    return None, None
