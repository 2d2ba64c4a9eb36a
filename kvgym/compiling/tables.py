"""Tables declared by the fields of named tuples, and compiled functions that open them.

A field declares its table by its annotation, ``active: Annotated[Any, Table(SLOT, "slots")]``. Order, sizes,
types and openers are derived from these fields at import, so a new table is one new field.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from kvgym.compiling.kernel import jit_expand, uncompiled
from kvgym.compiling.pointers import view_at
from kvgym.compiling.references import Opened, Place, opened_on_reading

WHOLE, FRONT, SPARSE = 0, 1, 2
"""How much of a table an iteration touches: all of it, its first rows, or scattered rows."""


class Table(NamedTuple):
    """Declaration of a table.

    Attributes:
        dtype: of its elements.
        length: name of its length; "" for a single record, which opens as that record.
        shared: whether all workers of a run share one table; else each has its own.
        touched: WHOLE, FRONT or SPARSE; orders the tables in a block of memory.
        name: its name outside compiled code; "" for the name of the field.
    """

    dtype: Any
    length: str = ""
    shared: bool = False
    touched: int = SPARSE
    name: str = ""

    def opening(self, address: str, length: str) -> str:
        """Return the expression that opens the table, from the expressions of its address and its length."""
        view = _view_name(np.dtype(self.dtype), 1)
        return f"{view}({address}, {length})" if self.length else f"{view}({address}, 1)[0]"

    def opening_rows(self, address: str, count: str, length: str) -> str:
        """Return the expression that opens ``count`` adjacent tables as rows; single records as one dimension."""
        view = _view_name(np.dtype(self.dtype), 2 if self.length else 1)
        return f"{view}({address}, {count}, {length})" if self.length else f"{view}({address}, {count})"


def declared(fields: Any, prefix: str = "") -> dict[str, Table]:
    """Return the tables that the fields of a named tuple declare, by name, in order.

    Args:
        fields: class of the named tuple; fields without a declaration are skipped.
        prefix: prefix of the names.
    """
    hints = get_type_hints(fields, include_extras=True)
    found = {name: getattr(hints[name], "__metadata__", (None,))[0] for name in fields._fields}
    return {prefix + (table.name or name): table for name, table in found.items() if table is not None}


_VIEWS: dict[str, Any] = {}


@functools.cache
def _view_name(dtype: np.dtype[Any], dimensions: int) -> str:
    """Return the name, in generated code, of the function that opens tables of a dtype."""
    name = f"view_{len(_VIEWS)}"
    _VIEWS[name] = view_at(dtype, dimensions)
    return name


def opener(
    cls: Any, head: str, summary: str, values: Sequence[str], names: Mapping[str, Any] | None = None
) -> Any:
    """Return a compiled function, expanded in its callers, that returns a named tuple of expressions.

    Args:
        cls: class of the named tuple.
        head: the ``def`` line, and indented lines before the return.
        summary: its docstring.
        values: an expression for each field.
        names: globals that the expressions use.
    """
    source = f"{head}\n    return {cls.__name__}({', '.join(values)})\n"
    namespace = {**_VIEWS, **(names or {}), cls.__name__: cls, "__name__": cls.__module__}
    exec(source, namespace)
    (made,) = (item for name, item in namespace.items() if head.startswith(f"def {name}("))
    made.__doc__ = summary
    return jit_expand(made)


def in_rows(cls: Any, places: Mapping[str, tuple[Table, int, int] | Any]) -> Any:
    """Return a compiled function ``(addresses, lengths) -> named tuple`` of tables that are opened when they are read.

    Both rows are int64 (k,), and nothing may change them while compiled code runs.

    Args:
        cls: class of the named tuple.
        places: for each field its table, the indices of its address and its length; or a function that this one
            has returned, for a named tuple of tables in the same rows.
    """
    kinds, values, nested = {}, [], {}
    for name, place in places.items():
        if isinstance(place, tuple):
            table, address, length = place
            kinds[name] = Place(table.dtype, address, length if table.length else -1)
            values.append(table.opening(f"addresses[{address}]", f"lengths[{length}]"))
        else:
            kinds[name], nested[f"open_{name}"] = place.opened, place
            values.append(f"open_{name}(addresses, lengths)")
    head = "def open_rows(addresses, lengths):"
    kind = Opened(cls, kinds)
    found = opened_on_reading(kind, uncompiled(opener(cls, head, "Open all tables.", values, nested)))
    found.opened = kind
    return found
