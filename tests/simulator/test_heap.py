"""Lists in order whose ranks stand side by side: items sink to their place, from near or from far."""

from __future__ import annotations

import bisect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.simulator.compiled import jit, uncompiled
from kvgym.simulator.heap import ranked_insert, ranked_sink, ranked_sort

AT, BASE = 2, 3


@jit
def sink(items, ranks, k):
    ranked_sink(items, AT, ranks, BASE, k)


@jit
def insert(items, ranks, k):
    ranked_insert(items, AT, ranks, BASE, k)


@jit
def sort(items, ranks):
    ranked_sort(items, AT, len(items) - AT - 2, ranks, BASE)


WAYS = (sink, insert, uncompiled(sink), uncompiled(insert))


def check(pairs, last, move):
    """Let the last of some items, (rank, item), behind and before others, find its place; nothing else may change."""
    before = sorted(pairs)
    items = np.array([7, 8, *(item for _, item in before), last[1], 9, 10], np.int64)
    ranks = np.array([np.nan] * BASE + [rank for rank, _ in before] + [last[0], np.nan])
    move(items, ranks, len(before))
    bisect.insort(before, last)
    assert items.tolist() == [7, 8, *(item for _, item in before), 9, 10]
    expected = [np.nan] * BASE + [rank for rank, _ in before] + [np.nan]
    np.testing.assert_array_equal(ranks, expected)


few = st.sampled_from([-1.5, 0.0, 0.25, np.inf])
ranks_of_some = st.lists(few | st.floats(-10, 10), min_size=1, max_size=40)


@given(ranks_of_some, st.randoms(), st.sampled_from(WAYS))
def test_any_place(ranks, random, move):
    items = random.sample(range(100), len(ranks))  # of equal ranks, the smaller one comes first
    *pairs, last = zip(ranks, items, strict=True)
    check(pairs, last, move)


@pytest.mark.parametrize("move", WAYS)
def test_every_place_in_lists_of_many_lengths(move):
    for n in (0, 1, 2, 3, 7, 8, 9, 100):
        pairs = [(float(2 * k), k) for k in range(n)]
        for rank in range(-1, 2 * n):
            check(pairs, (float(rank), n), move)
            check(pairs, (float(rank), -1), move)


def check_sorted(pairs, way):
    """Sort some items, (rank, item), behind and before others; nothing else may change."""
    items = np.array([7, 8, *(item for _, item in pairs), 9, 10], np.int64)
    ranks = np.array([np.nan] * BASE + [rank for rank, _ in pairs] + [np.nan])
    way(items, ranks)
    assert items.tolist() == [7, 8, *(item for _, item in sorted(pairs)), 9, 10]
    np.testing.assert_array_equal(ranks, [np.nan] * BASE + [rank for rank, _ in sorted(pairs)] + [np.nan])


@given(ranks_of_some, st.randoms(), st.sampled_from((sort, uncompiled(sort))))
def test_any_order(ranks, random, way):
    check_sorted(list(zip(ranks, random.sample(range(100), len(ranks)), strict=True)), way)


def test_orders_of_many_lengths():
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 9, 10, 100, 1000):
        ranks = rng.integers(0, max(1, n // 2), n).astype(float).tolist()  # some are equal
        pairs = list(zip(ranks, rng.permutation(n).tolist(), strict=True))
        for order in (pairs, sorted(pairs), sorted(pairs, reverse=True)):
            check_sorted(order, sort)
