"""Numba's compiler with other passes: helpers are compiled only into kernels, and each kernel once, after linking.

Numba optimises every compiled function on its own and within each caller, and emits machine code and wrappers for
calls from Python and C. Only kernels are called from outside, so compiling helpers on their own is wasted work, and
costs more than the kernels themselves.

Numba optimises a function before linking it with its callees, then after linking, to remove pairs of reference
counts, and then once more. Kernels count no references, so one pass is enough. The machine code is equally fast, and
optimisation never changes results.

:mod:`kvgym.compiling.numba_internals` checks that the private Numba APIs used here exist, before this is imported.
"""

from __future__ import annotations

from typing import Any

from numba.core import codegen, compiler, ir, typed_passes, untyped_passes
from numba.core.compiler_machinery import FunctionPass, register_pass

_register_pass: Any = register_pass
_builder: Any = compiler.DefaultPassBuilder


class _HelperLibrary(codegen.JITCodeLibrary):
    """Unoptimised code, to be linked into a kernel."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


@_register_pass(mutates_CFG=True, analysis_only=False)
class _HelperLowering(typed_passes.NativeLowering):
    """Lowers a helper and registers it for its callers, without emitting machine code."""

    _name = "helper_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower the helper; True, as the state changes."""
        make_library: Any = _HelperLibrary
        library = state.library = make_library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        usual: Any = super()
        usual.run_pass(state)
        name = object()  # the key by which callers find the helper, in place of a compiled function
        state["cr"] = state["cr"]._replace(cfunc=name)
        state.targetctx.insert_user_function(name, state["cr"].fndesc, [library])
        return True


@_register_pass(mutates_CFG=False, analysis_only=False)
class _KnownAnswers(FunctionPass):
    """Replaces calls of helpers that return False for their arguments; Numba then removes dead branches."""

    _name = "known_answers"

    def __init__(self) -> None:
        """Make the pass; Numba's own initialiser is abstract."""

    def run_pass(self, state: Any) -> bool:
        """Replace the calls; return whether there were any."""
        code = state.func_ir
        constant: Any = ir.Const

        def definition(variable: Any) -> Any:
            found = code._definitions[variable.name]
            while len(found) == 1 and isinstance(found[0], ir.Var):
                found = code._definitions[found[0].name]
            return found[0] if len(found) == 1 else None

        changed = False
        for block in code.blocks.values():
            for step in block.find_insts(ir.Assign):
                call = step.value
                if not (isinstance(call, ir.Expr) and call.op == "call" and call.args):
                    continue
                function, given = definition(call.func), definition(call.args[0])
                if not (isinstance(function, ir.Global | ir.FreeVar) and isinstance(given, ir.Arg)):
                    continue
                kind = getattr(state.args[given.index], "instance_class", object)
                cls, other = (getattr(function.value, name, None) for name in ("false_for", "false_unless"))
                if (cls and issubclass(kind, cls)) or (other and not issubclass(kind, other)):
                    step.value = constant(False, call.loc)
                    known = code._definitions[step.target.name]
                    known[known.index(call)] = step.value
                    changed = True
        return changed


def compiler_with(lowering: type[Any]) -> type[compiler.CompilerBase]:
    """Return a compiler with Numba's passes, the given lowering pass, and known answers before dead branches."""

    class Compiler(compiler.CompilerBase):
        def define_pipelines(self) -> list[Any]:
            manager = _builder.define_nopython_pipeline(self.state)
            manager.passes = [
                (lowering if step is typed_passes.NativeLowering else step, what)
                for step, what in manager.passes
            ]
            manager.add_pass_after(_KnownAnswers, untyped_passes.RewriteSemanticConstants)
            manager.finalize()
            return [manager]

    return Compiler


class _KernelLibrary(codegen.JITCodeLibrary):
    """Code that is optimised once, after linking."""

    _codegen: Any
    _final_module: Any

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        found = self._codegen._module_pass_manager()
        if not isinstance(found, tuple):  # Numba 0.61 has a different pass manager
            usual: Any = super()
            usual._optimize_final_module()
            return
        manager, builder = found
        manager.run(self._final_module, builder)


@_register_pass(mutates_CFG=True, analysis_only=False)
class _KernelLowering(typed_passes.NativeLowering):
    """Lowers a kernel into a library that is optimised once."""

    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower the kernel; return whether the state changed."""
        make_library: Any = _KernelLibrary
        state.library = make_library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        usual: Any = super()
        return bool(usual.run_pass(state))


HELPER_COMPILER, KERNEL_COMPILER = compiler_with(_HelperLowering), compiler_with(_KernelLowering)
"""Compilers of helpers and of kernels: the option ``pipeline_class`` of ``numba.njit``."""
