"""Agent graphs in the closed loop: fan-outs and joins worked by hand, chains, open form, clusters and saved states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvgym
from kvgym.batch_time.models.affine import AffineBatchTime
from kvgym.batch_time.models.unit import UnitBatchTime
from kvgym.errors import WorkloadError
from kvgym.simulator.system import System
from kvgym.workloads.graphs import Parents
from kvgym.workloads.table import RequestTable


def graph(parents, think_time, output_len, session_id=None, arrival_time=None, **more):
    """Return requests with given parents; by default each is a session of its own and all arrive at 0."""
    n = len(parents)
    return RequestTable.from_columns(
        arrival_time=np.zeros(n) if arrival_time is None else arrival_time,
        prompt_len=np.full(n, 3),
        output_len=output_len,
        session_id=np.arange(n) if session_id is None else session_id,
        turn=np.arange(1, n + 1),
        think_time=think_time,
        parents=Parents.from_rows(parents),
        **more,
    )


CLOSED = System(100, UnitBatchTime(), sessions="closed")
SLOW = System(60, AffineBatchTime(0.31, 0.017, 0.023, 0.0011), sessions="closed")


def drawn(seed, n=40):
    rng = np.random.default_rng(seed)
    parents = [
        rng.choice(row, rng.integers(0, min(row, 3) + 1), replace=False).tolist() if row else []
        for row in range(n)
    ]
    return graph(
        parents,
        rng.choice([0.0, 0.5, 3.0], n),
        rng.integers(1, 9, n),
        rng.integers(0, 25, n),
        np.sort(rng.uniform(0, 20, n)),
    )


def test_a_fan_out_arrives_at_its_parent_s_end_and_a_join_waits_for_the_slowest():
    # Two iterations of row 0, then rows 1 to 3 for 1, 4 and 2 iterations; row 4 waits for all and thinks for 1.5 s.
    requests = graph([[], [0], [0], [0], [1, 2, 3]], [9, 0, 0, 0, 1.5], [2, 1, 4, 2, 1])
    run = kvgym.simulate(CLOSED, requests, "fcfs", compiled=False)
    assert run.table.session_id.tolist() == [0, 1, 2, 3, 4]
    assert run.table.arrival_time.tolist() == [0, 2, 2, 2, 7.5]
    assert run.requests["finish_time"].tolist() == [2, 3, 6, 4, 8.5]
    assert run.table.parents.rows.tolist() == [0, 0, 0, 1, 2, 3]


def test_a_later_child_may_arrive_first_and_numbers_of_parents_follow_the_order_of_arrival():
    requests = graph([[], [0], [0], [1]], [0, 5.0, 1.0, 0], [1, 1, 1, 1])
    run = kvgym.simulate(CLOSED, requests, "fcfs", compiled=False)
    assert run.table.session_id.tolist() == [0, 2, 1, 3]
    assert run.table.arrival_time.tolist() == [0, 2, 6, 7]
    assert [each.tolist() for each in run.table.parents.edges] == [[0, 0, 2], [1, 2, 3]]


def test_the_turn_before_is_a_parent_too():
    # Rows 0 and 2 are one session; row 1 is called by row 0, and row 2 uses what it has found.
    requests = graph([[], [0], [1]], [0.0, 0, 0], [1, 3, 1], session_id=[5, 6, 5])
    assert requests.parents.rows.tolist() == [0, 0, 1]
    assert requests.roots.tolist() == [True, False, False]
    run = kvgym.simulate(CLOSED, requests, "fcfs", compiled=False)
    assert run.table.arrival_time.tolist() == [0, 1, 4]
    called = graph([[], [0], []], [0.0, 0, 0], [1, 3, 1], session_id=[5, 6, 5])  # it does not wait for row 1
    run = kvgym.simulate(CLOSED, called, "fcfs", compiled=False)
    assert run.table.session_id.tolist() == [5, 6, 5]
    assert run.table.arrival_time.tolist() == [0, 1, 1]


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "uncompiled"])
def test_chains_are_equal_to_sessions_and_graphs_to_their_open_form(compiled):
    chains = replace(drawn(1), parents=None)
    explicit = chains.replace(parents=Parents.from_rows([[]] * len(chains)))
    assert len(explicit.parents.rows) > 10
    runs = [kvgym.simulate(SLOW, each, "fcfs", compiled=compiled) for each in (chains, explicit)]
    assert runs[0].requests.tobytes() == runs[1].requests.tobytes()
    assert runs[0].worker.tobytes() == runs[1].worker.tobytes()
    run = kvgym.simulate(SLOW, drawn(2), "fcfs", compiled=compiled)
    again = kvgym.simulate(replace(SLOW, sessions="open"), run.table, "fcfs", compiled=compiled)
    assert run.completed
    assert run.requests.tobytes() == again.requests.tobytes()


def test_a_cluster_makes_a_graph_s_requests_arrive():
    run = kvgym.simulate(SLOW.replicate(2), drawn(4), "fcfs", compiled=False)
    assert run.completed
    check_arrivals(run)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([20.0, np.inf]))
def test_a_request_arrives_when_the_last_of_its_parents_has_ended_and_its_think_time_has_passed(
    seed, horizon
):
    run = kvgym.simulate(replace(SLOW, horizon=horizon), drawn(seed, 25), "fcfs", compiled=False)
    check_arrivals(run)
    assert run.completed == (len(run.table) == 25 and not np.isnan(run.requests["finish_time"]).any())


def check_arrivals(run):
    """Check the arrival of every request with parents, to the bit."""
    ends, parents = run.requests["finish_time"], run.table.parents
    for row in np.flatnonzero(~parents.roots).tolist():
        last = ends[parents.rows[parents.start[row] : parents.start[row + 1]]].max()
        assert run.table.arrival_time[row] == last + run.table.think_time[row]


@pytest.mark.parametrize(
    ("parents", "arrival_time", "problem"),
    [
        ([[], [2], []], [0.0, 1, 2], "parents, row 1: its parent, row 2, does not arrive before it"),
        ([[1], [0]], [0.0, 0], "parents, row 0: its parent, row 1, does not arrive before it"),
        ([[], [1]], [0.0, 0], "parents, row 1: its parent, row 1, does not"),
        ([[], [7]], [0.0, 0], "parents, row 1: there is no row 7; the last is 1"),
    ],
)
def test_cycles_and_later_parents_are_refused(parents, arrival_time, problem):
    n = len(parents)
    with pytest.raises(WorkloadError, match=problem):
        graph(parents, np.zeros(n), np.ones(n, np.int64), arrival_time=arrival_time)


def test_a_session_is_of_one_job():
    with pytest.raises(
        WorkloadError, match="job_id, row 2: job 1, but row 0 of the same session 4 is of job 0"
    ):
        graph([[], [], []], np.zeros(3), [1, 1, 1], session_id=[4, 5, 4], job_id=[0, 0, 1])


def test_what_is_left_out_hands_its_parents_on():
    requests = graph([[], [0], [1], [2], [0, 3]], np.zeros(5), [1] * 5)
    kept = requests.select(np.array([True, False, False, True, True]))
    assert [each.tolist() for each in kept.parents.edges] == [[0, 0, 1], [1, 2, 2]]
    assert requests.select(slice(3, None)).parents.edges[0].tolist() == [0]
    backwards = requests.replace(arrival_time=np.arange(5.0))
    assert Parents.from_rows([[1], []])[[1, 0]].rows.tolist() == [0]
    assert backwards.parents.rows.tolist() == requests.parents.rows.tolist()
