"""Numbers of kernels by name: a row of float64 read through the fields of a named tuple.

A named tuple declares the numbers in order, and with its types how they are read::

    class Limits(NamedTuple):
        limit: int
        strict: bool
        share: float


    limits = named_numbers(Limits)

    p = limits(memory.params)  # in a kernel
    if p.strict and need > p.limit: ...

``p`` is the address of the row: a field is one load, and an ``int`` or ``bool`` one conversion. Numbers behind the
declared ones are read by index from ``len(Limits._fields)`` on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_type_hints

import numba.extending as typed_extending
import numpy as np
from numba import types
from numba.core import cgutils as typed_cgutils
from numba.core.typing import templates as typed_templates
from numpy.typing import NDArray

from kvgym.compiling.kernel import generated, jit_disabled

T = TypeVar("T")
extending: Any = typed_extending
cgutils: Any = typed_cgutils
templates: Any = typed_templates

_TYPES: dict[Any, Any] = {int: types.int64, bool: types.boolean, float: types.float64}


class Named(types.Type):
    """Numba type of the address of a float64 row, with numbers that are read by name.

    Args:
        title: name of their declaration.
        kinds: the type of each number by name, in order: float, int or bool.
    """

    def __init__(self, title: str, kinds: Mapping[str, Any]) -> None:
        self.places = {name: (k, kind) for k, (name, kind) in enumerate(kinds.items())}
        super().__init__(f"{title} {hashlib.sha256(repr(self.places).encode()).hexdigest()[:8]}")


@extending.register_model(Named)
class _Row(extending.models.PrimitiveModel):  # type: ignore[misc]
    """A pointer to the row."""

    def __init__(self, manager: Any, named: Any) -> None:
        super().__init__(manager, named, manager.lookup(types.float64).get_value_type().as_pointer())


@extending.infer_getattr
class _Numbers(templates.AttributeTemplate):  # type: ignore[misc]
    """Types of the numbers."""

    key = Named

    def generic_resolve(self, named: Any, name: str) -> Any:
        """Return the type of a number, None if there is none of that name."""
        return _TYPES[named.places[name][1]] if name in named.places else None


@extending.lower_getattr_generic(Named)  # type: ignore[untyped-decorator]
def _read(context: Any, builder: Any, named: Any, value: Any, name: str) -> Any:
    """Generate the code that reads a number."""
    place, kind = named.places[name]
    number = builder.load(cgutils.gep_inbounds(builder, value, place))
    if kind is bool:
        return builder.fcmp_unordered("!=", number, number.type(0.0))
    return context.cast(builder, number, types.float64, _TYPES[kind])


class _InPython:
    """The numbers of a row by name, for uncompiled code."""

    __slots__ = ("_places", "_row")

    def __init__(self, places: dict[str, tuple[int, Any]], row: Any) -> None:
        self._places, self._row = places, row

    def __getattr__(self, name: str) -> Any:
        if name not in self._places:
            raise AttributeError(name)
        place, kind = self._places[name]
        return self._row[place] if kind is float else kind(self._row[place])


def named_numbers(cls: type[T]) -> Callable[[Any], T]:
    """Return a function for kernels that reads a float64 row through the fields of a named tuple.

    Args:
        cls: the named tuple; each of its fields has the type ``float``, ``int`` or ``bool`` (0 or not).
    """
    return numbers_named(cls.__name__, get_type_hints(cls))


def numbers_named(title: str, kinds: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return a function for kernels that reads a float64 row by the given names.

    Args:
        title: name of their declaration.
        kinds: the type of each number by name, in order: float, int or bool.
    """
    kind = Named(title, kinds)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return cgutils.create_struct_proxy(signature.args[0])(context, builder, arguments[0]).data

    found = generated(lambda typing, row: (kind(row), generate), lambda row: _InPython(kind.places, row))
    if not jit_disabled():
        found.cache_key = kind.name
    made: Callable[[Any], Any] = found
    return made


def row_of(cls: type[Any], owner: object, computed: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the numbers that a named tuple declares, float64 (k,).

    Args:
        cls: the named tuple.
        owner: object with those that are not computed, as attributes of the same names.
        computed: the others by name.
    """
    values = [computed[name] if name in computed else getattr(owner, name) for name in cls._fields]
    return np.array(values, np.float64)


def named_values(cls: type[T], row: Any) -> T:
    """Return the numbers that begin a row as the named tuple that declares them, for programs.

    Args:
        cls: the named tuple; all its fields have the type float.
        row: float64 (k,), with at least as many numbers as there are fields.
    """
    make: Any = cls
    found: T = make(*row[: len(make._fields)])
    return found
