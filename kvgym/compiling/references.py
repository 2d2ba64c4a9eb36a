"""Named tuples handed over by their address, for functions on the hot path.

Compiled code passes a named tuple by its parts, seven words for each array: what a rule is called with are a hundred
words, copied at every call. They are the same at every decision of a run, so the loop writes them down once and
hands over where. Rules do not see the difference: they read fields by name. This stands on what Numba offers for
types of one's own (``numba.extending``).
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
    """Numba type of the address of a named tuple whose fields are read by name.

    Args:
        whole: Numba type of the named tuple.
    """

    def __init__(self, whole: Any) -> None:
        self.whole = whole
        super().__init__(f"{whole} by address")


@extending.register_model(Reference)
class _Address(extending.models.PrimitiveModel):  # type: ignore[misc]
    """A pointer to the tuple, in the form that compiled code holds it in."""

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
    """Generate the code that reads a field. It never changes, so it need not be read twice."""
    place = cgutils.gep_inbounds(builder, value, 0, reference.whole.fields.index(name))
    return _unchanging(builder, place)


def _unchanging(builder: Any, place: Any) -> Any:
    """Load what lies at a pointer word by word, as the optimiser does not look into larger things."""
    kind = place.type.pointee
    if isinstance(kind, ir.LiteralStructType | ir.ArrayType):
        value = kind(ir.Undefined)
        for i in range(len(kind)):
            value = builder.insert_value(
                value, _unchanging(builder, cgutils.gep_inbounds(builder, place, 0, i)), i
            )
        return value
    value = builder.load(place)
    value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


def _write_down(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Generate the code that hands a named tuple over."""
    place = cgutils.alloca_once(builder, arguments[0].type)  # in the caller's frame: for its callees only
    builder.store(arguments[0], place)
    return place


def _typed(typing: Any, whole: Any) -> Any:
    return Reference(whole)(whole), _write_down


by_address = generated(_typed, lambda whole: whole)
"""Write a named tuple down in the frame of the calling function, and return a :class:`Reference` to it."""
