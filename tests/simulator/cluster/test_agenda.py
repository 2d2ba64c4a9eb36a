"""The agenda of a cluster against a plain list of times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.compiling.kernel import uncompiled
from kvgym.simulator.cluster.agenda import NEVER, NOW, empty_agenda, first_due, put_down
from kvgym.simulator.tables import UNKNOWN

note, find = uncompiled(put_down), uncompiled(first_due)


@pytest.mark.parametrize(("workers", "entries"), [(1, 2), (2, 4), (3, 8), (4, 8), (1000, 2048)])
def test_an_agenda_has_a_place_for_every_worker(workers: int, entries: int):
    agenda = empty_agenda(workers)
    assert agenda.shape == (entries,)
    assert find(agenda, 0, 1e300) == UNKNOWN


def test_workers_that_are_due_together_come_in_order():
    agenda = empty_agenda(3)
    for worker, time in ((2, 1.0), (0, 1.0), (1, 2.5)):
        note(agenda, worker, time)
    assert agenda[1] == 1.0
    assert [find(agenda, start, 1.0) for start in range(4)] == [0, 2, 2, UNKNOWN]
    note(agenda, 0, NOW)
    assert (find(agenda, 0, NOW), find(agenda, 1, NOW)) == (0, UNKNOWN)


@given(
    workers=st.integers(1, 20),
    events=st.lists(
        st.tuples(st.integers(0, 19), st.sampled_from((NOW, 0.0, 1.0, 1.0 + 2**-52, 7.5, NEVER))), max_size=60
    ),
)
def test_it_finds_what_a_look_at_all_finds(workers: int, events: list[tuple[int, float]]):
    agenda, times = empty_agenda(workers), [math.inf] * workers
    for worker, time in events:
        note(agenda, worker % workers, time)
        times[worker % workers] = time
        assert agenda[1] == min(times)
        for limit in (NOW, 0.5, 1.0, 7.5):
            for start in range(workers + 1):
                expected = next((k for k in range(start, workers) if times[k] <= limit), UNKNOWN)
                assert find(agenda, start, limit) == expected
