"""Rows move up within a table as slices of a copy would."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import types

from kvgym.compiling.kernel import kernel, uncompiled
from kvgym.compiling.references import move_up
from kvgym.simulator.policy_interface import table_type
from kvgym.simulator.tables import SLOT


@kernel(types.void(table_type(SLOT), types.int32[::1], types.int64, types.int64, types.int64))
def both(slots, numbers, first, end, places):
    move_up(slots, first, end, places)
    move_up(numbers, first, end, places)


@pytest.mark.parametrize("compiled", [True, False])
@given(places=st.integers(0, 5), before=st.integers(0, 5), count=st.integers(0, 12), after=st.integers(0, 3))
def test_rows_move_up(compiled, places, before, count, after):
    n, first = places + before + count + after, places + before
    slots, numbers = np.zeros(n, SLOT), np.arange(n, dtype=np.int32)
    slots["request_id"], slots["max_token_gap"] = numbers, numbers / 4
    expected = numbers.copy()
    expected[before : before + count] = numbers[first : first + count]
    (both.compiled if compiled else uncompiled(both))(slots, numbers, first, first + count, places)
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_array_equal(slots["request_id"], expected)
    np.testing.assert_array_equal(slots["max_token_gap"], expected / 4)
