"""The parameters of a kernel by name: the first numbers of an array as the fields of a named tuple."""

from __future__ import annotations

from typing import Any, TypeVar

from numba import types as typed_types
from numba.core import cgutils as typed_cgutils

from kvgym.compiling.kernel import generated

cgutils: Any = typed_cgutils
types: Any = typed_types
N = TypeVar("N", bound=tuple[Any, ...])


def named_numbers(kind: type[N], numbers: Any) -> N:
    """Return the first numbers of an array as a named tuple; :data:`named` in plain Python.

    Args:
        kind: a ``typing.NamedTuple`` with fields of type float.
        numbers: float64 array of shape (k,), with at least as many numbers as there are fields.
    """
    make: Any = kind
    fields: N = make(*numbers[: len(make._fields)])
    return fields


def _typed(typing: Any, kind: Any, numbers: Any) -> Any:
    count = len(kind.instance_class._fields)
    fields = types.NamedUniTuple(types.float64, count, kind.instance_class)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Load every number; LLVM removes the loads of fields that the kernel does not read."""
        first = context.make_array(numbers)(context, builder, arguments[1]).data
        loaded = [builder.load(cgutils.gep_inbounds(builder, first, i)) for i in range(count)]
        return context.make_tuple(builder, fields, loaded)

    return fields(kind, numbers), generate


named: Any = generated(_typed, named_numbers)
"""``named(kind, numbers)`` in compiled code, see :func:`named_numbers`."""
