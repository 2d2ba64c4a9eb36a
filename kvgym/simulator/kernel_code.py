"""How kernels are compiled: optimised once, together with all that they take in, and typed without doing work twice.

Numba optimises each function before it is linked with what it calls, then a first time together with that, to find
reference counts that cancel out, and then a second time. Kernels count no references, so once is enough. The machine
code is as fast; results are the same, as no optimisation may change them.

While Numba finds out types, most of its time goes into two things that need not take any: comparing settings of the
compiler option by option wherever an operator is looked up, and trying all that an operator may mean again for operands
that it has been tried for. :func:`quicker` saves both. This depends on private APIs of Numba
that :mod:`kvgym.simulator.numba_internals` checks.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numba
from numba.core import codegen, targetconfig, typed_passes, types
from numba.core.compiler_machinery import register_pass

from kvgym.simulator.helper_code import compiler_with
from kvgym.simulator.numba_internals import NO_REFCOUNT

_njit: Any = numba.njit  # untyped: options are not in Numba's stubs
_register_pass: Any = register_pass
_settings: Any = targetconfig.TargetConfig
_present: Any = targetconfig.ConfigStack
_function: Any = types.functions.BaseFunction


class _Library(codegen.JITCodeLibrary):
    """Code that is optimised once, when it is linked."""

    _codegen: Any
    _final_module: Any

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        found = self._codegen._module_pass_manager()
        if not isinstance(found, tuple):  # Numba 0.61 has another kind of pass manager
            usual: Any = super()
            usual._optimize_final_module()
            return
        manager, builder = found
        manager.run(self._final_module, builder)


@_register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.NativeLowering):
    """Lowers a kernel into such a library."""

    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        """Do it; True, as the state changes."""
        make_library: Any = _Library
        state.library = make_library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        usual: Any = super()
        return bool(usual.run_pass(state))


_Compiler = compiler_with(_Lowering)


def _equal(settings: Any, other: Any) -> Any:
    """Return whether two settings are equal, as Numba does, of those only that are set in either."""
    if not isinstance(other, _settings):
        return NotImplemented
    mine, theirs, options = settings._values, other._values, settings.options
    if options is not other.options:
        return bool(settings.values() == other.values())
    return bool(
        mine == theirs
        or all(
            mine.get(name, options[name].default) == theirs.get(name, options[name].default)
            for name in mine.keys() | theirs.keys()
        )
    )


@functools.cache
def _hash_of(kind: Any) -> int:
    return hash(tuple(sorted(kind.options)))


def _hash(settings: Any) -> int:
    """Return the hash of settings, which in Numba is one of the names of all options."""
    kind: Any = type(settings)
    return _hash_of(kind)


_TYPED: dict[tuple[Any, ...], tuple[Any, Any, tuple[Any, Any]]] = {}
"""Function, context, types of arguments and settings -> the signature, by what the function finds its implementation,
and both of them, lest others have their ids."""

_USUAL = {
    (_settings, "__eq__"): _settings.__eq__,
    (_settings, "__hash__"): _settings.__hash__,
    (_function, "get_call_type"): _function.get_call_type,
}


def _get_call_type(function: Any, context: Any, args: Any, kws: Any) -> Any:
    """Return the signature of a call of one of Numba's own functions, looked up once.

    Of those, that is, which a program can name: others are made anew wherever they are met. The function also notes
    which implementation such a call has, one for all settings, so that it is noted again with every call.
    """
    look_up = _USUAL[_function, "get_call_type"]
    if kws or context._lookup_global(function.typing_key) is not function:
        return look_up(function, context, args, kws)
    key = id(function), id(context), tuple(args), _present.top_or_none()
    if key not in _TYPED:
        signature = look_up(function, context, args, kws)
        if signature is None:
            return None
        _TYPED[key] = signature, function._impl_keys[signature.args], (function, context)
    signature, implementation, _ = _TYPED[key]
    function._impl_keys[signature.args] = implementation
    return signature


@contextlib.contextmanager
def quicker() -> Iterator[None]:
    """Compile with the shortcuts above. Other threads that compile meanwhile take them too, to the same end."""
    try:
        _settings.__eq__, _settings.__hash__, _function.get_call_type = _equal, _hash, _get_call_type
        yield
    finally:
        for (place, name), usual in _USUAL.items():
            setattr(place, name, usual)


def machine_code(signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function, or loads what is kept of it.

    Args:
        signature: its Numba signature.
        **options: of ``numba.njit``.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        with quicker():
            return _njit(signature, **NO_REFCOUNT, pipeline_class=_Compiler, **options)(function)

    return compiled
