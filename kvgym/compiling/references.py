"""Named tuples passed by address, for functions on the hot path.

Compiled code passes a named tuple by its parts, seven words for each array: a policy's kernel would get a hundred
words at every call. They are the same at every decision of a run, so the loop stores them once and passes their
address. Kernels read fields by name either way. This uses Numba's public API for new types (``numba.extending``).
"""

from __future__ import annotations

from typing import Any

import numba.extending as typed_extending
from llvmlite import ir
from numba import types
from numba.core import cgutils as typed_cgutils
from numba.core.typing import templates as typed_templates

from kvgym.compiling.kernel import generated

extending: Any = typed_extending
cgutils: Any = typed_cgutils
templates: Any = typed_templates


class Reference(types.Type):
    """Numba type of the address of a named tuple, with fields that are read by name.

    Args:
        whole: Numba type of the named tuple.
    """

    def __init__(self, whole: Any) -> None:
        self.whole = whole
        super().__init__(f"{whole} by address")


@extending.register_model(Reference)
class _Address(extending.models.PrimitiveModel):  # type: ignore[misc]
    """A pointer to the tuple as compiled code stores it."""

    def __init__(self, manager: Any, reference: Any) -> None:
        super().__init__(manager, reference, manager.lookup(reference.whole).get_value_type().as_pointer())


@extending.infer_getattr
class _Fields(templates.AttributeTemplate):  # type: ignore[misc]
    """Types of fields."""

    key = Reference

    def generic_resolve(self, reference: Any, name: str) -> Any:
        """Return the type of a field, None if there is none of that name."""
        whole = reference.whole
        return whole.types[whole.fields.index(name)] if name in whole.fields else None


@extending.lower_getattr_generic(Reference)  # type: ignore[untyped-decorator]
def _read(context: Any, builder: Any, reference: Any, value: Any, name: str) -> Any:
    """Generate the code that reads a field. Fields never change, so LLVM may reuse a value it has loaded."""
    pointer = cgutils.gep_inbounds(builder, value, 0, reference.whole.fields.index(name))
    return _load_invariant(builder, pointer)


def _load_invariant(builder: Any, pointer: Any) -> Any:
    """Load a value that never changes, word by word, as LLVM does not optimise loads of whole structs."""
    kind = pointer.type.pointee
    if isinstance(kind, ir.LiteralStructType | ir.ArrayType):
        value = kind(ir.Undefined)
        for i in range(len(kind)):
            value = builder.insert_value(
                value, _load_invariant(builder, cgutils.gep_inbounds(builder, pointer, 0, i)), i
            )
        return value
    value = builder.load(pointer)
    value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


def _store(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Generate the code that stores a named tuple and returns its address."""
    pointer = cgutils.alloca_once(builder, arguments[0].type)  # in the caller's frame: for its callees only
    builder.store(arguments[0], pointer)
    return pointer


def _typed(typing: Any, whole: Any) -> Any:
    return Reference(whole)(whole), _store


by_address = generated(_typed, lambda whole: whole)
"""Store a named tuple in the stack frame of the calling function and return a :class:`Reference` to it."""
