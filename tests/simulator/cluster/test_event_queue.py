"""The event queue of a cluster against a plain list of times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.compiling.kernel import uncompiled
from kvgym.simulator.cluster.event_queue import NEVER, NOW, empty_event_queue, first_due, set_time
from kvgym.simulator.tables import UNKNOWN

update, find = uncompiled(set_time), uncompiled(first_due)


@pytest.mark.parametrize(("workers", "entries"), [(1, 2), (2, 4), (3, 8), (4, 8), (1000, 2048)])
def test_there_is_an_entry_for_every_worker(workers: int, entries: int):
    events = empty_event_queue(workers)
    assert events.shape == (entries,)
    assert find(events, 0, 1e300) == UNKNOWN


@given(
    workers=st.integers(1, 20),
    changes=st.lists(
        st.tuples(st.integers(0, 19), st.sampled_from((NOW, 0.0, 1.0, 1.0 + 2**-52, 7.5, NEVER))), max_size=60
    ),
)
def test_a_linear_search_finds_the_same_worker(workers: int, changes: list[tuple[int, float]]):
    events, times = empty_event_queue(workers), [math.inf] * workers
    for worker, time in changes:
        update(events, worker % workers, time)
        times[worker % workers] = time
        assert events[1] == min(times)
        for limit in (NOW, 0.5, 1.0, 7.5):
            for start in range(workers + 1):
                expected = next((k for k in range(start, workers) if times[k] <= limit), UNKNOWN)
                assert find(events, start, limit) == expected
