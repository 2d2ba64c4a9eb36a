"""Named tuples by address: fields read the same in compiled code and in its plain twin."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import types

from kvgym.compiling.kernel import jit, kernel, uncompiled
from kvgym.compiling.passes import false_for, machine_code
from kvgym.compiling.references import Reference, by_address
from kvgym.compiling.tables import Table, in_rows
from kvgym.errors import KernelError
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE
from kvgym.simulator.policy_interface import policy_kernel, tuple_type


class Parts(NamedTuple):
    """All kinds of field that kernels get: a number, an array and a nested tuple."""

    factor: Any
    numbers: Any
    inner: Any


class Inner(NamedTuple):
    counts: Any
    step: Any


NUMBERS, COUNTS = types.float64[::1], types.int64[::1]
REFERENCE = Reference(tuple_type(Parts, types.float64, NUMBERS, tuple_type(Inner, COUNTS, types.int64)))
SUM = types.float64(REFERENCE)


@kernel(SUM)
def weighed(parts):
    total = 0.0
    for k in range(parts.numbers.shape[0]):
        total += parts.factor * parts.numbers[k]
        parts.inner.counts[0] += parts.inner.step
    return total


@kernel(types.float64(types.FunctionType(SUM), types.float64, NUMBERS, COUNTS, types.int64))
def hand_over(function, factor, numbers, counts, times):
    parts = by_address(Parts(factor, numbers, Inner(counts, 1)))
    total = 0.0
    for _ in range(times):
        total += function(parts)
    other = by_address(Parts(-1.0, numbers, Inner(counts, 1)))
    return total + function(other)


@pytest.mark.parametrize("compiled", [True, False])
def test_fields_read_the_same_by_address(compiled):
    numbers, counts = np.array([1.0, 2.0, 4.0]), np.zeros(1, np.int64)
    call = hand_over.compiled if compiled else uncompiled(hand_over)
    function = weighed.compiled if compiled else uncompiled(weighed)
    assert call(function, 0.5, numbers, counts, 2) == 2 * 3.5 - 7.0
    assert counts[0] == 9  # arrays in fields are writable


def test_references_to_equal_tuples_are_equal():
    same = Reference(tuple_type(Parts, types.float64, NUMBERS, tuple_type(Inner, COUNTS, types.int64)))
    assert same == REFERENCE
    assert hash(same) == hash(REFERENCE)
    assert Reference(tuple_type(Inner, NUMBERS, types.int64)) != Reference(
        tuple_type(Inner, COUNTS, types.int64)
    )
    assert BATCH_TIME_SIGNATURE.args[0] != REFERENCE


def test_an_unknown_field_is_named():
    def rule(view, decision, memory):
        memory.state[0] = view.colour

    with pytest.raises(KernelError, match="no field 'colour' of PolicyView"):
        _ = policy_kernel(rule).compiled


RECORD = np.dtype([("count", "i8"), ("weight", "f8")], align=True)


class Tables(NamedTuple):
    record: Any
    numbers: Any


class Whole(NamedTuple):
    part: Any
    counts: Any


part_at = in_rows(Tables, {"record": (Table(RECORD), 0, 0), "numbers": (Table("f8", "n"), 1, 3)})
whole_at = in_rows(Whole, {"part": part_at, "counts": (Table("i8", "n"), 2, 4)})


@jit
def weigh(tables):
    total = 0.0
    for k in range(tables.numbers.shape[0]):
        total += tables.record.weight * tables.numbers[k]
    return total


@kernel(types.float64(types.int64[::1]))
def opened(where):
    whole = whole_at(where, where)
    whole.part.record.count += 1
    whole.counts[1] = whole.counts.shape[0]
    return weigh(whole.part)


@pytest.mark.parametrize("compiled", [True, False])
def test_tables_are_opened_when_they_are_read(compiled):
    record, numbers, counts = np.zeros(1, RECORD), np.array([1.0, 2.0]), np.zeros(3, np.int64)
    record["weight"] = 0.5
    where = np.array([*(table.ctypes.data for table in (record, numbers, counts)), 2, 3])
    assert (opened.compiled if compiled else uncompiled(opened))(where) == 1.5
    assert (record["count"][0], counts.tolist()) == (1, [0, 3, 0])


def test_types_of_opened_tables_are_equal_if_their_places_are():
    same = in_rows(Tables, {"record": (Table(RECORD), 0, 0), "numbers": (Table("f8", "n"), 1, 3)})
    other = in_rows(Tables, {"record": (Table(RECORD), 0, 0), "numbers": (Table("f8", "n"), 1, 2)})
    assert same.opened == part_at.opened
    assert other.opened != part_at.opened
    assert whole_at.opened.types[0] == part_at.opened


class Bare(Tables):
    """Tables without numbers."""


bare_at = in_rows(Bare, {"record": (Table(RECORD), 0, 0), "numbers": (Table("f8", "n"), 1, 3)})


@jit
def has_numbers(tables):
    return tables.numbers.shape[0] > 0


false_for(Bare, has_numbers)


@jit
def rarely(tables):
    return tables.numbers[0]


@jit
def first_number(tables):
    found = has_numbers(tables) and tables.record.count > 0
    if found:
        return rarely(tables)
    return tables.record.weight


@kernel(types.float64(types.int64[::1]))
def without(where):
    return first_number(bare_at(where, where))


@kernel(types.float64(types.int64[::1]))
def with_numbers(where):
    return first_number(part_at(where, where))


def test_what_tables_exclude_is_not_compiled():
    record, numbers = np.ones(1, RECORD), np.array([7.0])
    where = np.array([record.ctypes.data, numbers.ctypes.data, 0, 1])
    compiled = machine_code(without.signature)(without.function)
    assert compiled(where) == 1.0
    assert not rarely.overloads
    assert machine_code(with_numbers.signature)(with_numbers.function)(where) == 7.0
    assert rarely.overloads
