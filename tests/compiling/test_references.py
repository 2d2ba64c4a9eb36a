"""Named tuples by address: fields read the same in compiled code and in its plain twin."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import types

from kvgym.compiling.kernel import kernel, uncompiled
from kvgym.compiling.references import Reference, by_address
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

    with pytest.raises(KernelError, match="no field 'colour' of RuleView"):
        _ = policy_kernel(rule).compiled
