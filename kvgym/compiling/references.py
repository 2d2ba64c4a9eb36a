"""Named tuples passed by address, for functions on the hot path, and tables that are opened when they are read.

Compiled code passes a named tuple by its parts, seven words for each array: a policy's kernel would get a hundred
words at every call. They are the same at every decision of a run, so the loop stores them once and passes their
address. Kernels read fields by name either way.

The tables of a run are opened from rows of addresses and lengths, and helpers take the two rows: a helper that took
all parts of all tables would compile ten times as long. Both use Numba's public API for new types
(``numba.extending``). The names of both types are short, as every compiled name contains those of its arguments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numba
import numba.extending as typed_extending
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as typed_cgutils
from numba.core.typing import templates as typed_templates

from kvgym.compiling.kernel import generated
from kvgym.compiling.numba_internals import array_opener

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
        super().__init__(f"{whole.instance_class.__name__} by address")

    @property
    def key(self) -> Any:
        """What distinguishes two of these types."""
        return self.whole.name

    @property
    def instance_class(self) -> Any:
        """The class of the named tuple."""
        return self.whole.instance_class


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


class Place(NamedTuple):
    """Where a table is found.

    Attributes:
        dtype: of its elements.
        address: index of its address in the row of addresses.
        length: index of its length in the row of lengths; -1 for a single record.
    """

    dtype: Any
    address: int
    length: int


class Opened(types.Type):
    """Numba type of a named tuple of tables that are opened when they are read, given by two rows.

    Args:
        cls: class of the named tuple.
        places: place of each field; or the type of a named tuple of tables in the same rows.
    """

    def __init__(self, cls: type[Any], places: Mapping[str, Place | Opened]) -> None:
        self.instance_class = cls
        self.places = dict(places)
        self.fields = tuple(places)
        whole = repr((cls.__module__, cls.__qualname__, *self.places.items()))
        super().__init__(f"{cls.__name__} {hashlib.sha256(whole.encode()).hexdigest()[:8]}")

    @property
    def types(self) -> tuple[Any, ...]:
        """The types of the fields."""
        return tuple(map(self.type_of, self.fields))

    def type_of(self, name: str) -> Any:
        """Return the type of a field, None if there is none of that name."""
        place = self.places.get(name)
        if not isinstance(place, Place):
            return place
        element = numba.from_dtype(np.dtype(place.dtype))
        return types.Array(element, 1, "C") if place.length >= 0 else element


@extending.register_model(Opened)
class _Rows(extending.models.StructModel):  # type: ignore[misc]
    """Two pointers: to the row of addresses and to the row of lengths."""

    def __init__(self, manager: Any, opened: Any) -> None:
        pointer: Any = types.CPointer
        row = pointer(types.int64)
        super().__init__(manager, opened, [("addresses", row), ("lengths", row)])


@extending.infer_getattr
class _Tables(templates.AttributeTemplate):  # type: ignore[misc]
    """Types of tables."""

    key = Opened

    def generic_resolve(self, opened: Any, name: str) -> Any:
        """Return the type of a table, None if there is none of that name."""
        return opened.type_of(name)


@extending.lower_getattr_generic(Opened)  # type: ignore[untyped-decorator]
def _open(context: Any, builder: Any, opened: Any, value: Any, name: str) -> Any:
    """Generate the code that opens a table. Rows never change while compiled code runs."""
    place = opened.places[name]
    if not isinstance(place, Place):
        return value

    def number(row: str, k: int) -> Any:
        rows = cgutils.create_struct_proxy(opened)(context, builder, value)
        return _load_invariant(builder, cgutils.gep_inbounds(builder, getattr(rows, row), k))

    kind, address = opened.type_of(name), number("addresses", place.address)
    if place.length < 0:
        return builder.inttoptr(address, context.get_value_type(kind))
    return array_opener(kind)(context, builder, None, (address, number("lengths", place.length)))


def opened_on_reading(opened: Opened, in_python: Callable[..., Any]) -> Any:
    """Return a compiled function ``(addresses, lengths) -> tables`` of two int64 rows that nothing changes.

    Args:
        opened: Numba type of the tables.
        in_python: the equivalent function in plain Python.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows = cgutils.create_struct_proxy(opened)(context, builder)
        for name, kind, value in zip(("addresses", "lengths"), signature.args, arguments, strict=True):
            array = cgutils.create_struct_proxy(kind)(context, builder, value)
            setattr(rows, name, array.data)
        return rows._getvalue()

    def typed(typing: Any, addresses: Any, lengths: Any) -> Any:
        return opened(addresses, lengths), generate

    return generated(typed, in_python)
