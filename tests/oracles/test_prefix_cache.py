"""The oracle of the prefix cache on runs worked by hand, and on runs that share nothing.

Its operations by hand are in tests/simulator/prefix/test_histories.py, together with those of the engine.
"""

import numpy as np
import pytest
from speed.textbook import run_textbook

from kvgym.workloads.table import RequestTable
from oracles.prefix_cache import ReferencePool, run_reference


def test_units_of_two_blocks():
    pool = ReferencePool(5, 2, "computed", {0: "AB", 1: "AC"}, unit=4)
    pool.admit(0, 6, 6)
    pool.end_batch()
    assert (pool.used, pool.cached, pool.blank) == (3, 0, 2)
    assert pool.admit(1, 7, 7) == (4, 3)
    pool.release(0)
    assert (pool.used, pool.cached, pool.blank) == (4, 0, 1)
    pool.release(1)
    assert pool.admit(0, 4, 4) == (0, 4)  # takes blank blocks
    assert (pool.used, pool.cached, pool.blank) == (2, 2, 1)
    assert not pool.grow(0, 8)
    assert pool.grow(0, 4)  # takes the last blank block, and both of A
    assert (pool.used, pool.cached, pool.blank) == (4, 0, 1)


def test_needs_at_rest_bound_what_starts_take_one_after_the_other():
    rng, fewer = np.random.default_rng(0), 0
    for _ in range(300):
        size, count = int(rng.integers(1, 4)), 9
        begins = list(
            zip(rng.integers(0, 7, count).tolist(), rng.choice(["A", "B"], count).tolist(), strict=True)
        )
        chains = {i: [(s if j < k else i, j) for j in range(6)] for i, (k, s) in enumerate(begins)}
        pool = ReferencePool(int(rng.integers(6, 20)), size, "scheduled", chains)
        for i in range(4):
            pool.admit(i, int(rng.integers(1, 6 * size)), int(rng.integers(1, 6 * size)))
            if rng.random() < 0.6 and i in pool.tables:
                pool.release(i)
        starts, left = [], pool.free
        for i in range(4, count):  # needs with the hits before the decision; starts share what they find
            known, chunk = int(rng.integers(1, 6 * size + 1)), int(rng.integers(1, 6 * size))
            hit = pool.match(i, known)
            need = pool.need(min(known, size * len(hit) + chunk), hit)
            if need <= left:
                starts.append((i, known, chunk))
                left -= need
        assert all(pool.admit(*start) for start in starts)
        pool.check()
        assert pool.free >= left
        fewer += pool.free > left
    assert fewer > 20


@pytest.mark.parametrize("share", ["computed", "scheduled"])
@pytest.mark.parametrize(("progress", "finish", "hit"), [("recompute", 6, 4), ("lost", 10, 0)])
def test_run_with_an_eviction(share, progress, finish, hit):
    """Four blocks of 4 tokens, two requests of 4 + 5 tokens: the fifth iteration would take six blocks."""
    (first, second), trace = run_reference([(0, 4, 5, "XY"), (0, 4, 5, "PQ")], 16, 4, 4, progress, share)
    assert (first.finish, first.evictions, second.evictions) == (5, 0, 1)
    assert (second.start, second.first_token, second.finish, second.hit_resumed) == (0, 1, finish, hit)
    assert [(i.memory, i.cached, i.evicted) for i in trace[3:5]] == [(16, 0, []), (12, 4, [1])]
    # P was released before Y and X. With 8 known tokens it is hit; with 4 it is not, as the last token is computed.
    assert (trace[5].memory, trace[5].cached) == ((12, 4) if hit else (8, 8))


def test_run_with_a_prefix():
    """The first two compute A side by side; the third hits it, but waits for its second block."""
    outcomes, trace = run_reference([(0, 5, 2, "A"), (0, 5, 2, "A"), (1, 6, 1, "A")], 16, 4, 4, "lost")
    assert [(o.start, o.finish, o.hit) for o in outcomes] == [(0, 2, 0), (0, 2, 0), (2, 3, 4)]
    assert [(i.memory, i.cached) for i in trace] == [(16, 0), (16, 0), (8, 4)]
    assert [i.hits for i in trace] == [{0: 0, 1: 0}, {2: 4}, {2: 4}]


@pytest.mark.parametrize("seed", range(6))
def test_without_shared_content_runs_equal_the_textbook(seed):
    rng = np.random.default_rng(seed)
    columns = (np.cumsum(rng.integers(0, 3, 20)), rng.integers(1, 25, 20), rng.integers(1, 15, 20))
    names = ("arrival_time", "prompt_len", "output_len")
    table = RequestTable.from_columns(**dict(zip(names, columns, strict=True)))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    requests = [(*row, [(i, j) for j in range(20)]) for i, row in enumerate(rows)]
    share, block = ("computed", "scheduled")[seed % 2], (1, 2, 4)[seed % 3]
    outcomes, _ = run_reference(requests, 60, block, 4, "lost", share)
    times = run_textbook(table, 60, lambda **_: 1.0, "fcfs", block_size=block)
    assert sum(outcome.evictions for outcome in outcomes) > 0
    for name, expected in times._asdict().items():
        assert [getattr(outcome, name) for outcome in outcomes] == expected.tolist()
