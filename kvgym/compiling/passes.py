"""Decorators of helpers and kernels: with the compilers of :mod:`kvgym.compiling.lowering`, or with Numba's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba

from kvgym.compiling.numba_internals import NO_REFCOUNT, TRICKS, no_index_wraparound

_njit: Any = numba.njit  # untyped: options are not in Numba's stubs
_HELPER: dict[str, Any] = {}
_KERNEL: dict[str, Any] = {}
if TRICKS:
    from kvgym.compiling.lowering import HELPER_COMPILER, KERNEL_COMPILER

    _HELPER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": HELPER_COMPILER}
    _KERNEL = {"pipeline_class": KERNEL_COMPILER}


def false_for(cls: type[Any], *helpers: Any) -> None:
    """Declare that helpers return False for tables of a class; code that this excludes is not compiled for them.

    Without it, Numba compiles everything, and LLVM removes most of it again.
    """
    for made in helpers:
        made.false_for = cls


def false_unless(cls: type[Any], *helpers: Any) -> None:
    """Declare that helpers return False for tables of all other classes than this one."""
    for made in helpers:
        made.false_unless = cls


@functools.cache
def _standalone(function: Callable[..., Any]) -> Any:
    """Return a dispatcher that compiles a helper on its own, for calls from Python."""
    return _njit(**NO_REFCOUNT)(function)


def _compile_standalone(function: Callable[..., Any], *arguments: Any) -> Any:
    with no_index_wraparound():
        return _standalone(function)._compile_for_args(*arguments)


def helper(function: Callable[..., Any], **options: Any) -> Any:
    """Return a function for compiled callers; a call from Python compiles it separately.

    Args:
        function: in Numba's subset of Python.
        **options: of ``numba.njit``.
    """
    made = _njit(**NO_REFCOUNT, **_HELPER, **options)(function)
    if TRICKS and made is not function:  # equal if compilation is switched off
        made._insert = lambda *_: None  # a helper has no entry point for Python
        made._compile_for_args = functools.partial(_compile_standalone, function)
    return made


def machine_code(
    signature: Any, own_cache: type[Any] | None = None, **options: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function or loads it from the cache.

    Args:
        signature: its Numba signature.
        own_cache: class of the cache; None = Numba's, if ``options`` have ``cache``.
        **options: of ``numba.njit``.
    """
    options = {**NO_REFCOUNT, **_KERNEL, **options}

    def compiled(function: Callable[..., Any]) -> Any:
        with no_index_wraparound():
            if own_cache is None:
                return _njit(signature, **options)(function)
            made = _njit(**options)(function)
            made._cache = own_cache(function)
            made.compile(signature)
            made.disable_compile()
            return made

    return compiled
