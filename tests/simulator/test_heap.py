"""Items ordered by a rank kept beside them: sorting what is nearly in order, and what is not."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvgym.simulator.compiled import jit, uncompiled
from kvgym.simulator.heap import ranked_sort

AT, BASE = 2, 3


@jit
def sort(listed, ranks):
    ranked_sort(listed, AT, ranks, BASE)


def check(items, ranks, compiled=True):
    """Sort items, listed behind others, by ranks that stand behind others; nothing else may change."""
    listed = np.array([7, 8, len(items), *items, 9, 10], np.int64)
    places = np.array([np.nan] * BASE + list(ranks))
    (sort if compiled else uncompiled(sort))(listed, places)
    expected = sorted(items, key=lambda item: (ranks[item], item))
    assert listed.tolist() == [7, 8, len(items), *expected, 9, 10]


few = st.sampled_from([-1.5, 0.0, 0.25, np.inf])


@given(st.lists(few | st.floats(-10, 10), max_size=40).flatmap(
    lambda ranks: st.tuples(st.just(ranks), st.permutations(range(len(ranks))), st.booleans())
))  # fmt: skip
def test_any_order(case):
    ranks, items, compiled = case
    check(items, ranks, compiled)


def test_orders_that_need_many_moves():
    rng = np.random.default_rng(0)
    for n in (1, 2, 9, 10, 100, 1000):
        ranks = rng.integers(0, max(1, n // 2), n).astype(float).tolist()  # some are equal
        ordered = sorted(range(n), key=lambda item: (ranks[item], item))
        for items in (
            ordered,
            ordered[::-1],
            ordered[n // 2 :] + ordered[: n // 2],
            rng.permutation(n).tolist(),
        ):
            check(items, ranks)
        moved = ordered[1:] + ordered[:1]  # one that is new comes last
        check(moved, ranks)
        check(ordered[: n // 3], ranks)  # some of the items
