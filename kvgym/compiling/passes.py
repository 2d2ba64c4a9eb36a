"""Compiler passes: helpers are compiled only into kernels, and a kernel is optimised once, with all that it takes in.

Numba optimises every compiled function by itself and together with each of its callers, makes machine code of it, and
wrappers to call it from Python and from C. Only kernels are called from outside, so compiling helpers on their own is
wasted work, and costs more than the kernels themselves.

Numba optimises each function before it is linked with what it calls, then a first time together with that, to find
reference counts that cancel out, and then a second time. Kernels count no references, so once is enough. The machine
code is as fast; results are the same, as no optimisation may change them.

All of this depends on private APIs of Numba that :mod:`kvgym.compiling.numba_internals` checks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
from numba.core import codegen, compiler, typed_passes
from numba.core.compiler_machinery import register_pass

from kvgym.compiling.numba_internals import NO_REFCOUNT, no_index_wraparound

_njit: Any = numba.njit  # untyped: options are not in Numba's stubs
_register_pass: Any = register_pass
_builder: Any = compiler.DefaultPassBuilder


class _HelperLibrary(codegen.JITCodeLibrary):
    """Code that is linked into other code, as it was lowered."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


@_register_pass(mutates_CFG=True, analysis_only=False)
class _HelperLowering(typed_passes.NativeLowering):
    """Lowers a function and makes it known to its callers, without machine code."""

    _name = "helper_lowering"

    def run_pass(self, state: Any) -> bool:
        """Do it; True, as the state changes."""
        make_library: Any = _HelperLibrary
        library = state.library = make_library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        usual: Any = super()
        usual.run_pass(state)
        name = object()  # under which callers find it, in place of a compiled function
        state["cr"] = state["cr"]._replace(cfunc=name)
        state.targetctx.insert_user_function(name, state["cr"].fndesc, [library])
        return True


def compiler_with(lowering: type[Any]) -> type[compiler.CompilerBase]:
    """Return a compiler of Numba's passes, with another one to lower a function."""

    class Compiler(compiler.CompilerBase):
        def define_pipelines(self) -> list[Any]:
            manager = _builder.define_nopython_pipeline(self.state)
            manager.passes = [
                (lowering if step is typed_passes.NativeLowering else step, what)
                for step, what in manager.passes
            ]
            manager.finalize()
            return [manager]

    return Compiler


_HelperCompiler = compiler_with(_HelperLowering)


@functools.cache
def _alone(function: Callable[..., Any]) -> Any:
    """Return a function compiled by itself."""
    return _njit(**NO_REFCOUNT)(function)


def _compile_alone(function: Callable[..., Any], *arguments: Any) -> Any:
    with no_index_wraparound():
        return _alone(function)._compile_for_args(*arguments)


def helper(function: Callable[..., Any], **options: Any) -> Any:
    """Return a function as compiled code calls it; a call from Python compiles it by itself.

    Args:
        function: in Numba's subset of Python.
        **options: of ``numba.njit``.
    """
    made = _njit(
        **NO_REFCOUNT,
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        pipeline_class=_HelperCompiler,
        **options,
    )(function)
    if made is not function:  # it is, where compilation is switched off
        made._insert = lambda *_: None  # there is nothing that Python could call
        made._compile_for_args = functools.partial(_compile_alone, function)
    return made


class _KernelLibrary(codegen.JITCodeLibrary):
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
class _KernelLowering(typed_passes.NativeLowering):
    """Lowers a kernel into such a library."""

    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        """Do it; True, as the state changes."""
        make_library: Any = _KernelLibrary
        state.library = make_library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        usual: Any = super()
        return bool(usual.run_pass(state))


_KernelCompiler = compiler_with(_KernelLowering)


def machine_code(signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function, or loads what is kept of it.

    Args:
        signature: its Numba signature.
        **options: of ``numba.njit``.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        with no_index_wraparound():
            return _njit(signature, **NO_REFCOUNT, pipeline_class=_KernelCompiler, **options)(function)

    return compiled
