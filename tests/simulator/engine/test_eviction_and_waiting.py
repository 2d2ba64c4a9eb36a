"""Eviction, waiting and the end of a run, on decisions made by hand."""

from __future__ import annotations

import math

import pytest

from helpers.runs.runs_by_hand import Make, finish, log_of, queue, rows, run
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.errors import InvalidDecisionError, LivelockError
from kvgym.policies.policy import Decision
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.simulator.tables import GAP_BINS
from kvgym.workloads.table import RequestTable

# ---------------------------------------------------------------- eviction


@pytest.mark.parametrize(
    ("progress", "waiting", "again", "finish_time", "thrown"),
    [
        ("lost", (0, 4, 0), (5, 0, 1), 10, 7),
        ("recompute", (0, 7, 3), (8, 0, 4), 7, 7),  # 4 + 3 tokens prefilled, which emits the fourth
        ("kept", (7, 0, 3), (8, 0, 4), 7, 0),
    ],
)
def test_the_progress_that_an_evicted_request_keeps(
    make: Make,
    progress: str,
    waiting: tuple[int, int, int],
    again: tuple[int, int, int],
    finish_time: float,
    thrown: int,
) -> None:
    simulation = make([(0, 4, 6)], progress_on_evict=progress)
    view = simulation.view
    run(simulation, Decision(admit=[0]), Decision(), Decision())
    assert rows(view.active) == {0: (7, 0, 3)}
    run(simulation, Decision(evict=[0]))
    assert rows(view.waiting) == {0: waiting}
    assert (view.num_active, view.kv_tokens, view.clock) == (0, 0, 4)
    run(simulation, Decision(admit=[0]))
    assert rows(view.active) == {0: again}
    finish(simulation)
    record = simulation.requests[0]
    assert (record["start_time"], record["first_token_time"], record["finish_time"]) == (0, 1, finish_time)
    assert (record["num_evictions"], record["num_recomputed_tokens"]) == (1, thrown)
    assert record["num_output_tokens"] == record["num_delivered_tokens"] == 6
    # Tokens are delivered once; repeats do not count: five gaps; the longest is from token 3 to token 4.
    assert simulation.gap_counts[:GAP_BINS].sum() == 5
    assert record["max_token_gap"] == (5 if progress == "lost" else 2)
    repeats = 3 if progress == "lost" else 0
    assert simulation.workers["total_output_tokens"][0] == 6 + repeats
    prefilled = {"lost": 4 + 4, "recompute": 4 + 7, "kept": 4}[progress]
    assert simulation.workers["total_prefill_tokens"][0] == prefilled


@pytest.mark.parametrize(
    ("progress", "first_token", "again"),
    [
        ("recompute", "uncounted", (6, 0, 2)),  # the prefill of 4 + 2 emits nothing
        ("recompute", "decode", (6, 0, 2)),
        ("kept", "uncounted", (7, 0, 3)),
        ("lost", "decode", (4, 0, 0)),
    ],
)
def test_recomputing_when_prefill_emits_nothing(
    make: Make, progress: str, first_token: str, again: tuple[int, int, int]
) -> None:
    simulation = make([(0, 4, 6)], progress_on_evict=progress, first_token=first_token)
    run(simulation, Decision(admit=[0]), Decision(), Decision())
    assert rows(simulation.view.active) == {0: (6, 0, 2)}
    run(simulation, Decision(evict=[0]), Decision(admit=[0]))
    assert rows(simulation.view.active) == {0: again}
    finish(simulation)
    record = simulation.requests[0]
    assert record["first_token_time"] == (1 if first_token == "uncounted" else 2)
    assert record["num_output_tokens"] == 6
    assert simulation.gap_counts[:GAP_BINS].sum() == (6 if first_token == "uncounted" else 5)
    assert simulation.gap_sums.sum() == pytest.approx(
        record["finish_time"] - record["first_token_time"], rel=0.01
    )


@pytest.mark.parametrize(
    ("progress", "waiting"), [("lost", (0, 4, 0)), ("recompute", (0, 4, 0)), ("kept", (3, 1, 0))]
)
def test_eviction_within_a_prefill(make: Make, progress: str, waiting: tuple[int, int, int]) -> None:
    simulation = make([(0, 4, 2)], progress_on_evict=progress)
    run(simulation, Decision(admit=[0], tokens={0: 3}), Decision(evict=[0]))
    assert rows(simulation.view.waiting) == {0: waiting}
    run(simulation, Decision(admit=[0]))
    assert rows(simulation.view.active) == {0: (5, 0, 1)}


def test_recompute_in_chunks(make: Make) -> None:
    simulation = make([(0, 4, 6)], progress_on_evict="recompute")
    run(simulation, Decision(admit=[0]), Decision(), Decision(), Decision(evict=[0]))
    run(simulation, Decision(admit=[0], tokens={0: 5}))
    assert rows(simulation.view.active) == {0: (5, 2, 3)}
    run(simulation, Decision(evict=[0]))  # once more, within the prefill
    assert rows(simulation.view.waiting) == {0: (0, 7, 3)}
    run(simulation, Decision(admit=[0], tokens={0: 5}), Decision(tokens={0: 2}))
    assert rows(simulation.view.active) == {0: (8, 0, 4)}
    assert simulation.requests["num_recomputed_tokens"][0] == 7 + 5


def test_kept_kv_needs_room_again(make: Make) -> None:
    simulation = make([(0, 6, 4), (0, 8, 2)], M=14, progress_on_evict="kept")
    run(simulation, Decision(admit=[0]), Decision())  # 8 held
    run(simulation, Decision(evict=[0], admit=[1]))  # memory is free at this boundary already
    assert rows(simulation.view.waiting) == {0: (8, 0, 2)}
    with pytest.raises(InvalidDecisionError, match=r"needs 19 KV tokens, kv_capacity is 14"):
        simulation.step(Decision(admit=[0]))  # 8 + 1 next to 9 + 1
    assert simulation.step(Decision())
    run(simulation, Decision(admit=[0]))
    assert rows(simulation.view.active) == {0: (9, 0, 3)}


@pytest.mark.parametrize(
    ("requeue", "expected"),
    [("arrival", [0, 1, 2, 3, 4]), ("front", [1, 3, 0, 2, 4]), ("back", [0, 2, 3, 1, 4])],
)
def test_where_evicted_requests_requeue(make: Make, requeue: str, expected: list[int]) -> None:
    """They enter one by one in the order of the decision, before requests that arrive during the iteration."""
    simulation = make([(0, 1, 9), (0, 1, 9), (1, 1, 9), (1, 1, 9), (2.5, 1, 1)], requeue=requeue)
    run(simulation, Decision(admit=[1]), Decision(admit=[3]))
    assert queue(simulation) == [0, 2]
    run(simulation, Decision(evict=[3, 1]))
    assert queue(simulation) == expected


# ---------------------------------------------------------------- waiting and stalling


def test_wait_until_a_time_or_the_next_arrival(make: Make) -> None:
    simulation = make([(1, 2, 2), (6, 2, 2), (9, 2, 2)])
    view = simulation.view
    assert view.clock == 1  # nothing can be decided earlier
    run(simulation, Decision(wait_until=3))
    assert (view.clock, view.iteration, queue(simulation)) == (3, 0, [0])
    run(simulation, Decision(wait_until=8))  # an earlier arrival wakes
    assert (view.clock, queue(simulation)) == (6, [0, 1])
    run(simulation, Decision(wait_until=math.inf))
    assert (view.clock, queue(simulation)) == (9, [0, 1, 2])
    assert len(log_of(simulation)) == 0
    assert simulation.requests["start_time"].tolist() == pytest.approx([math.nan] * 3, nan_ok=True)
    run(simulation, Decision(wait_until=11.5))  # nothing arrives any more, but a time still counts
    assert view.clock == 11.5
    with pytest.raises(LivelockError, match=r"by_hand.*waits for the next arrival.*drain rule"):
        simulation.step(Decision(wait_until=math.inf))


def test_waiting_holds_active_requests_and_memory(make: Make) -> None:
    simulation = make([(0, 4, 3), (2.5, 1, 1)])
    view = simulation.view
    run(simulation, Decision(admit=[0]))
    run(simulation, Decision(wait_until=math.inf))
    assert (view.clock, view.iteration) == (2.5, 1)
    assert rows(view.active) == {0: (5, 0, 1)}
    run(simulation, Decision())
    assert view.clock == 3.5
    run(simulation, Decision(wait_until=4.5, admit=[1]))  # admitted now, run later
    assert simulation.requests["start_time"][1] == 3.5
    assert rows(view.active) == {0: (6, 0, 2), 1: (0, 1, 0)}
    run(simulation, Decision(wait_until=5.0, evict=[1]))
    assert queue(simulation) == [1]
    assert simulation.step(Decision(admit=[1])) is False
    worker = simulation.workers[0]
    assert simulation.requests["finish_time"].tolist() == [6, 6]
    # KV: (0,1] 5, (1,2.5] 5 held, (2.5,3.5] 6, (3.5,5] 6 held, (5,6] 7 + 2.
    assert worker["kv_time"] == pytest.approx(5 + 1.5 * 5 + 6 + 1.5 * 6 + 9)
    assert worker["active_time"] == pytest.approx(1 + 1.5 + 1 + 2 * 1 + 0.5 + 2)
    assert (worker["peak_kv_tokens"], worker["iteration"], worker["total_finished"]) == (9, 3, 2)


def test_an_empty_batch_stalls_for_its_time(make: Make) -> None:
    simulation = make([(0, 4, 3), (0.7, 1, 1)], time=AffineBatchTime(0.5, per_decode_token=3.0))
    run(simulation, Decision())
    view = simulation.view
    assert (view.clock, view.iteration, queue(simulation)) == (0.5, 1, [0])
    run(simulation, Decision())
    assert (view.clock, view.iteration, queue(simulation)) == (1.0, 2, [0, 1])
    log = log_of(simulation)
    assert log["num_waiting"].tolist() == [1, 1]
    assert log["num_active"].tolist() == log["num_decodes"].tolist() == log["kv_tokens"].tolist() == [0, 0]


def test_an_empty_worker_goes_to_the_next_arrival(make: Make) -> None:
    simulation = make([(1, 2, 1), (5.25, 2, 1), (5.25, 2, 1)])
    run(simulation, Decision(admit=[0]))
    assert (simulation.view.clock, queue(simulation)) == (5.25, [1, 2])
    assert simulation.view.finished.tolist() == [0]
    assert simulation.step(Decision(admit=[1, 2])) is False
    assert simulation.requests["finish_time"].tolist() == [2, 6.25, 6.25]
    empty = RequestTable([], [], [])
    assert not Simulation(System(kv_capacity=5, batch_time=UnitBatchTime()), empty).start()


def test_arrivals_within_an_iteration_are_seen_at_its_end(make: Make) -> None:
    simulation = make([(0, 2, 3), (1, 2, 1), (1.5, 2, 1), (2, 2, 1)])
    run(simulation, Decision(admit=[0]))
    assert queue(simulation) == [1]  # an arrival at the boundary itself counts
    run(simulation, Decision())
    assert queue(simulation) == [1, 2, 3]


# ---------------------------------------------------------------- the end of a run


def test_horizon_stops_at_the_next_boundary(make: Make) -> None:
    simulation = make([(0, 2, 9)], horizon=3, time=AffineBatchTime(2.0))
    run(simulation, Decision(admit=[0]))
    assert simulation.step(Decision()) is False
    assert simulation.view.clock == 4
    simulation = make([(0, 2, 9)], horizon=3)
    run(simulation, Decision(admit=[0]), Decision())
    assert simulation.step(Decision()) is False
    assert simulation.view.clock == 3
    assert simulation.requests["status"][0] == 2
    assert math.isnan(simulation.requests["finish_time"][0])
    simulation = make([(0, 2, 9), (50, 1, 1)], horizon=3)
    assert simulation.step(Decision(wait_until=math.inf)) is False
    # Nothing left before the horizon: the run ends without a decision about the rest.
    simulation = make([(0, 2, 1), (50, 1, 1)], horizon=3)
    assert simulation.step(Decision(admit=[0])) is False
    assert simulation.requests["finish_time"][0] == 1


@pytest.mark.parametrize(
    "decisions",
    [
        [Decision()],
        [Decision(admit=[0], tokens={0: 1}), Decision(evict=[0])],  # tokens of the prompt are no progress
        [Decision(admit=[0]), Decision(evict=[0])],  # the first token, again and again
    ],
)
def test_a_long_time_without_a_new_token_is_a_livelock(make: Make, decisions: list[Decision]) -> None:
    simulation = make([(0, 2, 3)], stall_limit=7)

    def forever() -> None:
        for k in range(12):
            simulation.step(decisions[k % len(decisions)])

    with pytest.raises(
        LivelockError, match=r"policy 'by_hand', iteration \d+.*7 decisions.*(1 active|1 waiting)"
    ):
        forever()
    assert 7 <= simulation.view.iteration <= 9


def test_a_long_prefill_is_no_livelock_by_default(make: Make) -> None:
    """The default limit allows one token of prefill per decision, and long pauses of one request."""
    simulation = make([(0, 400, 2), (0, 1, 2)], M=500)
    run(simulation, Decision(admit=[0], tokens={0: 1}))
    for _ in range(399):
        run(simulation, Decision(tokens={0: 1}))
    assert rows(simulation.view.active) == {0: (401, 0, 1)}
