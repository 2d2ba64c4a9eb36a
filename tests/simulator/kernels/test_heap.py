"""Sorted lists with ranks: insertion, sorting and merging."""

from __future__ import annotations

import bisect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.compiling.kernel import jit, uncompiled
from kvgym.simulator.kernels.heap import ranked_merge, ranked_sink, ranked_sort

AT, BASE = 2, 3


@jit
def sink(items, ranks, k):
    ranked_sink(items, AT, ranks, BASE, k)


@jit
def merge(items, ranks, known, count):
    ranked_merge(items, AT, ranks, BASE, known, count, AT + count + 2, BASE + count + 1)


@jit
def sort(items, ranks, known, count):
    ranked_sort(items, AT + known, count - known, ranks, BASE + known, AT + count + 2, BASE + count + 1)


WAYS = (sink, uncompiled(sink))


def check(pairs, last, move):
    """Insert the last of some items, (rank, item), into the sorted ones; values around the list must not change."""
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


def check_ordered(pairs, known, expected, way):
    """Sort some items, (rank, item), inside larger arrays; only they and the buffers may change."""
    new = len(pairs) - known
    items = np.array([7, 8, *(item for _, item in pairs), 9, 10, *[0] * new], np.int64)
    ranks = np.array([np.nan] * BASE + [rank for rank, _ in pairs] + [np.nan] + [0.0] * new)
    way(items, ranks, known, len(pairs))
    assert items[: AT + len(pairs) + 2].tolist() == [7, 8, *(item for _, item in expected), 9, 10]
    ranks_then = [np.nan] * BASE + [rank for rank, _ in expected] + [np.nan]
    np.testing.assert_array_equal(ranks[: len(ranks_then)], ranks_then)


def check_sorted(pairs, way, known=0):
    """Sort items behind a number of others."""
    check_ordered(pairs, known, pairs[:known] + sorted(pairs[known:]), way)


@given(ranks_of_some, st.randoms(), st.data(), st.sampled_from((sort, uncompiled(sort))))
def test_any_order(ranks, random, data, way):
    pairs = list(zip(ranks, random.sample(range(100), len(ranks)), strict=True))
    check_sorted(pairs, way, data.draw(st.integers(0, len(ranks))))


def test_orders_of_many_lengths():
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 100, 1000):
        ranks = rng.integers(0, max(1, n // 2), n).astype(float).tolist()  # some are equal
        pairs = list(zip(ranks, rng.permutation(n).tolist(), strict=True))
        for order in (pairs, sorted(pairs), sorted(pairs, reverse=True)):
            check_sorted(order, sort)


def check_merged(pairs, known, way):
    """Merge items: the first ``known`` are sorted, and so are the others."""
    check_ordered(sorted(pairs[:known]) + sorted(pairs[known:]), known, sorted(pairs), way)


@given(ranks_of_some, st.randoms(), st.data(), st.sampled_from((merge, uncompiled(merge))))
def test_any_items_behind_those_in_order(ranks, random, data, way):
    items = random.sample(range(100), len(ranks))
    known = data.draw(st.integers(0, len(ranks)))
    check_merged(list(zip(ranks, items, strict=True)), known, way)
