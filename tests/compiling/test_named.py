"""Numbers of kernels that are read by name."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import types

from kvgym.compiling.kernel import fingerprint, jit, kernel, uncompiled
from kvgym.compiling.named import named_numbers, row_of
from kvgym.errors import KVGymError


class Numbers(NamedTuple):
    count: int
    strict: bool
    share: float


class Reordered(NamedTuple):
    share: float
    strict: bool
    count: int


numbers: Any = named_numbers(Numbers)
reordered: Any = named_numbers(Reordered)


@jit
def part_of(p: Any) -> float:
    return float(p.count // 2 + p.share)


@kernel(types.float64(types.float64[::1]))
def total(row: Any) -> float:
    p = numbers(row)
    return part_of(p) + (10.0 if p.strict else 0.0) + row[3]


@kernel(types.float64(types.float64[::1]))
def missing(row: Any) -> float:
    return float(numbers(row).size)


@pytest.mark.parametrize(
    ("row", "expected"), [((7, 1, 0.25, 100), 113.25), ((-7, 0, 0.5, 0), -3.5), ((0, 2, 0.0, 0), 10.0)]
)
def test_compiled_and_plain_python_read_the_same(row: tuple[float, ...], expected: float):
    given = np.array(row, np.float64)
    assert total(given) == uncompiled(total)(given) == expected


def test_a_number_without_a_declaration_is_an_error():
    with pytest.raises(KVGymError, match="size"):
        missing(np.zeros(3))
    with pytest.raises(AttributeError, match="size"):
        uncompiled(missing)(np.zeros(3))


def test_the_order_is_part_of_the_cache_key():
    def first(row: Any) -> Any:
        return numbers(row).count

    plain = fingerprint(first)
    assert plain == fingerprint(first)
    first.__globals__["numbers"], kept = reordered, numbers
    try:
        assert fingerprint(first) != plain
    finally:
        first.__globals__["numbers"] = kept


def test_a_row_takes_attributes_and_computed_numbers():
    class Owner:
        count, share = 4, 0.5

    np.testing.assert_array_equal(row_of(Numbers, Owner(), {"strict": True}), [4.0, 1.0, 0.5])
