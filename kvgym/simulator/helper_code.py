"""How helpers are compiled: to code that kernels take in, with no machine code of their own.

Numba optimises every compiled function by itself and together with each of its callers, makes machine code of it, and
wrappers to call it from Python and from C. Only kernels are called from outside; they take in all that they reach and
optimise it as one. The rest would be in vain, and takes longer than what is used. This depends on private APIs of Numba
that :mod:`kvgym.simulator.numba_internals` checks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
from numba.core import codegen, compiler, typed_passes
from numba.core.compiler_machinery import register_pass

from kvgym.simulator.numba_internals import NO_REFCOUNT

_njit: Any = numba.njit  # untyped: options are not in Numba's stubs
_register_pass: Any = register_pass
_builder: Any = compiler.DefaultPassBuilder


class _Library(codegen.JITCodeLibrary):
    """Code that is linked into other code, as it was lowered."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


@_register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.NativeLowering):
    """Lowers a function and makes it known to its callers, without machine code."""

    _name = "helper_lowering"

    def run_pass(self, state: Any) -> bool:
        """Do it; True, as the state changes."""
        make_library: Any = _Library
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


_Compiler = compiler_with(_Lowering)


@functools.cache
def _alone(function: Callable[..., Any]) -> Any:
    """Return a function compiled by itself."""
    return _njit(**NO_REFCOUNT)(function)


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
        pipeline_class=_Compiler,
        **options,
    )(function)
    if made is not function:  # it is, where compilation is switched off
        made._insert = lambda *_: None  # there is nothing that Python could call
        made._compile_for_args = lambda *args: _alone(function)._compile_for_args(*args)
    return made
