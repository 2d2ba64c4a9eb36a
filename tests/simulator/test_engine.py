"""The engine on decisions made by hand, compiled and as plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvgym.batch_time import AffineBatchTime, BatchTimeModel, UnitBatchTime, batch_time_kernel
from kvgym.errors import InformationError, InvalidDecisionError, KVGymError, LivelockError, WorkloadError
from kvgym.policy import Decision, Policy, PolicyInfo
from kvgym.runner import simulate
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.simulator.view import SystemView
from kvgym.workloads.table import RequestTable

Make = Callable[..., Simulation]


@pytest.fixture(params=[True, False], ids=["compiled", "python"])
def make(request: pytest.FixtureRequest) -> Make:
    """Return a function that starts a simulation of (arrival, prompt, output) rows."""

    def build(
        rows: list[tuple[float, int, int]],
        M: int = 20,  # noqa: N803
        time: BatchTimeModel | None = None,
        needs: frozenset[str] = frozenset(),
        columns: dict[str, Any] | None = None,
        **rules: Any,
    ) -> Simulation:
        arrival, prompt, output = zip(*rows, strict=True)
        table = RequestTable.from_columns(
            arrival_time=arrival, prompt_len=prompt, output_len=output, **columns or {}
        )
        system = System(kv_capacity=M, batch_time=time or UnitBatchTime(), **rules)
        simulation = Simulation(
            system, table, needs=needs, policy_name="by_hand", log=True, compiled=request.param
        )
        assert simulation.start()
        return simulation

    return build


def run(simulation: Simulation, *decisions: Decision) -> None:
    for decision in decisions:
        assert simulation.step(decision)


def finish(simulation: Simulation) -> None:
    """Run whatever is active in full until the end, admitting nobody."""
    while simulation.step(Decision()):
        pass


def rows(columns: Any) -> dict[int, tuple[int, int, int]]:
    """(KV tokens, prefill left, output tokens) by request id."""
    return {
        int(i): (int(kv), int(left), int(out))
        for i, kv, left, out in zip(
            columns.request_id,
            columns.num_kv_tokens,
            columns.num_prefill_left,
            columns.num_output_tokens,
            strict=True,
        )
    }


def log_of(simulation: Simulation) -> Any:
    return simulation.log[: int(simulation.tracker[0]["num_log"])]


def queue(simulation: Simulation) -> list[int]:
    return simulation.view.waiting.request_id.tolist()


# ---------------------------------------------------------------- prefill and first token


@pytest.mark.parametrize(
    ("first_token", "kv", "first", "last"),
    [
        ("counted", [2, 4, 6, 7, 8], 3, 5),  # the last chunk writes token 1: o iterations from there
        ("uncounted", [2, 4, 5, 6, 7, 8], 3, 6),  # the last chunk shows a token, o decodes follow
        ("decode", [2, 4, 5, 6, 7, 8], 4, 6),  # the first of o decodes shows it
    ],
)
def test_chunked_prefill_and_first_token(
    make: Make, first_token: str, kv: list[int], first: float, last: float
) -> None:
    simulation = make([(0, 5, 3)], first_token=first_token)
    view = simulation.view
    assert view.prefill_emits == (first_token == "counted")
    run(simulation, Decision(admit=[0], tokens={0: 2}))
    assert rows(view.active) == {0: (2, 3, 0)}
    run(simulation, Decision(tokens={0: 2}))
    assert rows(view.active) == {0: (4, 1, 0)}
    run(simulation, Decision())
    assert rows(view.active) == {0: (6, 0, 1) if first_token == "counted" else (5, 0, 0)}
    finish(simulation)
    log = log_of(simulation)
    assert log["kv_tokens"].tolist() == kv
    assert log["prefill_tokens"].tolist() == [2, 2, 1] + [0] * (len(kv) - 3)
    assert log["num_prefills"].tolist() == [1, 1, 1] + [0] * (len(kv) - 3)
    assert log["num_decodes"].tolist() == [0, 0, 0] + [1] * (len(kv) - 3)
    assert log["num_output_tokens"].sum() == 3
    record = simulation.requests[0]
    assert (record["start_time"], record["first_token_time"], record["finish_time"]) == (0, first, last)
    assert record["num_output_tokens"] == 3
    # Gaps between tokens shown: all are 1 s; the uncounted first token makes one more.
    assert simulation.gap_counts.sum() == (3 if first_token == "uncounted" else 2)
    assert simulation.gap_sums.sum() == last - first
    assert view.finished.tolist() == [0]


@pytest.mark.parametrize(("first_token", "iterations"), [("counted", 1), ("uncounted", 2), ("decode", 2)])
def test_one_token_requests(make: Make, first_token: str, iterations: int) -> None:
    simulation = make([(0, 19, 1)], first_token=first_token)  # and exactly fills M = 20
    if iterations == 2:
        run(simulation, Decision(admit=[0]))
        assert rows(simulation.view.active) == {0: (19, 0, 0)}
        assert not simulation.step(Decision())
    else:
        assert not simulation.step(Decision(admit=[0]))
    record = simulation.requests[0]
    assert record["finish_time"] == iterations
    assert record["first_token_time"] == (2 if first_token == "decode" else 1)
    assert log_of(simulation)["kv_tokens"][-1] == 20


def test_whole_prompt_prefill_is_the_default(make: Make) -> None:
    simulation = make([(0, 5, 3), (0, 2, 2)])
    run(simulation, Decision(admit=[1, 0], tokens={0: 1}))
    assert rows(simulation.view.active) == {1: (3, 0, 1), 0: (1, 4, 0)}
    assert simulation.view.active.request_id.tolist() == [1, 0]  # order of activation
    run(simulation, Decision())
    assert rows(simulation.view.active) == {0: (6, 0, 1)}
    assert simulation.view.finished.tolist() == [1]


# ---------------------------------------------------------------- the load that a batch-time model is told

WEIGHTS = {
    "num_prefills": 1.0,
    "prefill_tokens": 2.0**6,
    "prefill_context": 2.0**12,
    "prefill_squares": 2.0**18,
    "prefill_products": 2.0**24,
    "num_decodes": 2.0**30,
    "decode_context": 2.0**36,
}


@batch_time_kernel
def _digits(load: Any, params: Any) -> Any:
    return (
        params[0] * load.num_prefills
        + params[1] * load.prefill_tokens
        + params[2] * load.prefill_context
        + params[3] * load.prefill_squares
        + params[4] * load.prefill_products
        + params[5] * load.num_decodes
        + params[6] * load.decode_context
        + 2.0**-4
    )


class Digits(BatchTimeModel):
    """Spells the load in the digits of the duration."""

    kernel = _digits

    def params(self) -> np.ndarray:
        return np.array(list(WEIGHTS.values()))


def test_load_of_a_mixed_batch(make: Make) -> None:
    simulation = make([(0, 6, 3), (0, 5, 2), (0, 4, 2), (0, 3, 3)], M=40, time=Digits())
    run(simulation, Decision(admit=[0, 3, 1], tokens={1: 2}))
    run(simulation, Decision(admit=[2], tokens={1: 3, 3: 0}))
    # 0 decodes with 7 cached, 1 ends its prefill with 3 after 2, 2 prefills 4 after 0, 3 is paused.
    load = {
        "num_prefills": 2,
        "prefill_tokens": 7,
        "prefill_context": 2,
        "prefill_squares": 9 + 16,
        "prefill_products": 6,
        "num_decodes": 1,
        "decode_context": 7,
    }
    before, after = log_of(simulation)["end_time"][-2:]
    assert after - before == sum(WEIGHTS[name] * count for name, count in load.items()) + 2.0**-4
    assert after - before == Digits()(**load)
    assert log_of(simulation)["kv_tokens"][-1] == 8 + 6 + 5 + 4


@batch_time_kernel
def _invalid(load: Any, params: Any) -> Any:
    return params[0]


class Invalid(BatchTimeModel):
    kernel = _invalid

    def __init__(self, duration: float) -> None:
        self.duration = duration

    def params(self) -> np.ndarray:
        return np.array([self.duration])


@pytest.mark.parametrize("duration", [math.nan, -1.0, math.inf])
def test_invalid_durations_are_refused(make: Make, duration: float) -> None:
    simulation = make([(0, 6, 3)], time=Invalid(duration))
    with pytest.raises(KVGymError, match=r"duration.*'prefill_tokens': 6"):
        simulation.step(Decision(admit=[0]))


# ---------------------------------------------------------------- pausing


def test_paused_requests_keep_their_kv_and_cost_no_time(make: Make) -> None:
    simulation = make([(0, 5, 3), (0, 2, 4)], time=AffineBatchTime(0.5, per_decode_token=0.25))
    view = simulation.view
    run(simulation, Decision(admit=[0, 1]))  # until 0.5
    run(simulation, Decision(tokens={0: 0}))  # one decode: until 1.25
    assert rows(view.active) == {0: (6, 0, 1), 1: (4, 0, 2)}
    run(simulation, Decision(tokens={0: 0, 1: 0}))  # nothing: until 1.75
    assert rows(view.active) == {0: (6, 0, 1), 1: (4, 0, 2)}
    assert view.clock == 1.75
    run(simulation, Decision())  # two decodes: until 2.75
    assert view.clock == 2.75
    log = log_of(simulation)
    assert log["kv_tokens"].tolist() == [6 + 3, 6 + 4, 10, 7 + 5]
    assert log["num_active"].tolist() == [2] * 4
    assert log["num_decodes"].tolist() == [0, 1, 0, 2]
    finish(simulation)
    assert simulation.requests["max_token_gap"].tolist() == [2.25, 1.5]
    assert simulation.requests["finish_time"].tolist() == [3.75, 3.75]


def test_prefill_may_pause(make: Make) -> None:
    simulation = make([(0, 5, 3)])
    run(simulation, Decision(admit=[0], tokens={0: 3}), Decision(tokens={0: 0}))
    assert rows(simulation.view.active) == {0: (3, 2, 0)}
    assert simulation.view.clock == 2
    run(simulation, Decision(tokens={0: 2}))
    assert rows(simulation.view.active) == {0: (6, 0, 1)}
    # Admitted without a token at first: active, without KV.
    simulation = make([(0, 5, 3)])
    run(simulation, Decision(admit=[0], tokens={0: 0}))
    assert rows(simulation.view.active) == {0: (0, 5, 0)}
    assert simulation.requests["start_time"][0] == 0
    assert simulation.view.kv_tokens == 0


# ---------------------------------------------------------------- eviction


@pytest.mark.parametrize(
    ("progress", "waiting", "again", "finish_time", "thrown"),
    [
        ("lost", (0, 4, 0), (5, 0, 1), 10, 7),
        ("recompute", (0, 7, 3), (8, 0, 4), 7, 7),  # 4 + 3 tokens prefilled, which emits the fourth
        ("kept", (7, 0, 3), (8, 0, 4), 7, 0),
    ],
)
def test_what_an_evicted_request_keeps(
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
    # Tokens are delivered once, a repeat is none: five gaps; the longest is from token 3 to token 4.
    assert simulation.gap_counts.sum() == 5
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
def test_recomputing_where_prefill_emits_nothing(
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
    assert simulation.gap_counts.sum() == (6 if first_token == "uncounted" else 5)
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
    run(simulation, Decision(evict=[0], admit=[1]))  # memory is free at this very epoch
    assert rows(simulation.view.waiting) == {0: (8, 0, 2)}
    with pytest.raises(InvalidDecisionError, match=r"needs 19 KV tokens, kv_capacity is 14"):
        simulation.step(Decision(admit=[0]))  # 8 + 1 beside 9 + 1
    assert simulation.step(Decision())
    run(simulation, Decision(admit=[0]))
    assert rows(simulation.view.active) == {0: (9, 0, 3)}


@pytest.mark.parametrize(
    ("requeue", "expected"),
    [("arrival", [0, 2, 3, 4, 5]), ("front", [0, 2, 3, 4, 5]), ("back", [3, 4, 2, 0, 5])],
)
def test_where_evicted_requests_requeue(make: Make, requeue: str, expected: list[int]) -> None:
    """They enter one after another in the order of the decision, before what arrives in the iteration."""
    simulation = make([(0, 1, 9)] * 5 + [(1.5, 1, 1)], requeue=requeue)
    run(simulation, Decision(admit=[0, 1, 2]))
    assert queue(simulation) == [3, 4]
    run(simulation, Decision(evict=[2, 0]))
    assert queue(simulation) == expected
    assert simulation.view.active.request_id.tolist() == [1]


def test_requeue_by_arrival_goes_between_and_front_before(make: Make) -> None:
    for requeue, expected in (("arrival", [0, 1, 2, 3]), ("front", [1, 3, 0, 2]), ("back", [0, 2, 3, 1])):
        simulation = make([(0, 1, 9), (0, 1, 9), (1, 1, 9), (1, 1, 9)], requeue=requeue)
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
    run(simulation, Decision(wait_until=11.5))  # nothing comes any more: a time is still a time
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
    # KV: (0,1] 5, (1,2.5] 5 at rest, (2.5,3.5] 6, (3.5,5] 6 at rest, (5,6] 7 + 2.
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
    empty = RequestTable.from_columns(arrival_time=[], prompt_len=[], output_len=[])
    assert not Simulation(System(kv_capacity=5, batch_time=UnitBatchTime()), empty).start()


def test_arrivals_within_an_iteration_are_seen_at_its_end(make: Make) -> None:
    simulation = make([(0, 2, 3), (1, 2, 1), (1.5, 2, 1), (2, 2, 1)])
    run(simulation, Decision(admit=[0]))
    assert queue(simulation) == [1]  # an arrival at the boundary itself is there
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
    # Nothing left before the horizon: the run is over without a decision about the rest.
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
def test_no_new_token_for_long_is_a_livelock(make: Make, decisions: list[Decision]) -> None:
    simulation = make([(0, 2, 3)], stall_limit=7)

    def forever() -> None:
        for k in range(12):
            simulation.step(decisions[k % len(decisions)])

    with pytest.raises(LivelockError, match=r"policy 'by_hand', iteration \d+.*7 decisions.*[01] active"):
        forever()
    assert 7 <= simulation.view.iteration <= 9


def test_a_long_prefill_is_no_livelock_by_default(make: Make) -> None:
    """The default limit allows one token of prefill per decision, and long pauses of one request."""
    simulation = make([(0, 400, 2), (0, 1, 2)], M=500)
    run(simulation, Decision(admit=[0], tokens={0: 1}))
    for _ in range(399):
        run(simulation, Decision(tokens={0: 1}))
    assert rows(simulation.view.active) == {0: (401, 0, 1)}


# ---------------------------------------------------------------- invalid decisions

BAD = {
    "admits an unknown id": (Decision(admit=[99]), "request 99"),
    "admits a negative id": (Decision(admit=[-1]), "request -1"),
    "admits what has not arrived": (Decision(admit=[6]), "request 6.*not here yet"),
    "admits what has finished": (Decision(admit=[0]), "request 0.*finished"),
    "admits what is active": (Decision(admit=[1]), "request 1.*active"),
    "admits twice": (Decision(admit=[5, 5], tokens={5: 1}), "request 5.*twice"),
    "admits what it evicts": (Decision(evict=[1], admit=[1]), "request 1"),
    "evicts what waits": (Decision(evict=[4]), "request 4.*waiting"),
    "evicts what has finished": (Decision(evict=[0]), "request 0.*finished"),
    "evicts an unknown id": (Decision(evict=[77]), "request 77.*unknown"),
    "evicts twice": (Decision(evict=[1, 1]), "request 1.*twice"),
    "evicts twice, others between": (Decision(evict=[1, 2, 1]), "request 1.*twice"),
    "gives tokens to a waiting request": (Decision(tokens={4: 1}), "request 4"),
    "gives tokens to an unknown request": (Decision(tokens={55: 1}), "request 55"),
    "gives a decode two tokens": (Decision(tokens={1: 2}), r"request 1.* 2 tokens.*0 … 1"),
    "gives -1 token": (Decision(tokens={1: -1}), "request 1.*-1"),
    "gives a first chunk of -1": (Decision(admit=[5], tokens={5: -1}), "request 5.*-1"),
    "gives negative tokens": (Decision(tokens={1: -3}), "request 1.*-3"),
    "gives a negative chunk": (Decision(tokens={2: -2}), "request 2.*-2"),
    "gives too long a chunk": (Decision(tokens={2: 4}), r"request 2.* 4 tokens.*0 … 3"),
    "gives too long a first chunk": (Decision(admit=[5], tokens={5: 9}), r"request 5.* 9 tokens.*0 … 4"),
    "does not fit": (Decision(admit=[3, 4]), r"request 4.*needs 23 KV tokens, kv_capacity is 20.*\[3, 4\]"),
    "does not fit, paused": (
        Decision(admit=[3, 4, 5], tokens={1: 0, 2: 0}),
        r"request 5.*needs 23 KV tokens, kv_capacity is 20",
    ),
    "waits until the past": (Decision(wait_until=1), "waits until 1"),
    "waits until now": (Decision(wait_until=2), "waits until 2"),
    "waits until never": (Decision(wait_until=math.nan), "waits until nan"),
    "waits and does not fit": (Decision(wait_until=9, admit=[0]), "request 0.*finished"),
}


def scene(make: Make) -> Simulation:
    """0 finished, 1 decoding (4 KV), 2 prefilling (2 KV, 3 left), 3 4 5 waiting, 6 to come; t = 2, M = 20."""
    simulation = make([(0, 1, 1), (0, 2, 9), (0, 5, 2), (1, 7, 1), (1, 3, 2), (2, 4, 2), (9, 1, 1)])
    run(simulation, Decision(admit=[0, 1, 2], tokens={2: 1}), Decision(tokens={2: 1}))
    assert rows(simulation.view.active) == {1: (4, 0, 2), 2: (2, 3, 0)}
    assert queue(simulation) == [3, 4, 5]
    return simulation


def snapshot(simulation: Simulation) -> list[bytes]:
    active = simulation.active.copy()
    active["planned"] = 0
    tables = (
        simulation.workers,
        simulation.requests,
        simulation.gap_counts,
        simulation.gap_sums,
        log_of(simulation),
    )
    return [active.tobytes(), *(table.tobytes() for table in tables)]


@pytest.mark.parametrize("case", BAD)
def test_invalid_decisions_change_nothing(make: Make, case: str) -> None:
    decision, message = BAD[case]
    simulation = scene(make)
    before = snapshot(simulation)
    for _ in range(2):  # and again: nothing is left over from the refused one
        with pytest.raises(InvalidDecisionError, match=message) as error:
            simulation.step(decision)
        assert "policy 'by_hand'" in str(error.value)
        assert "iteration 2" in str(error.value)
        assert snapshot(simulation) == before
    run(simulation, Decision(evict=[2], admit=[4, 3], tokens={3: 2}))
    assert rows(simulation.view.active) == {1: (5, 0, 3), 4: (4, 0, 1), 3: (2, 5, 0)}
    assert queue(simulation) == [2, 5]


def test_fits_exactly(make: Make) -> None:
    # 1: 5, 2: 2+3+1, 3: 7+1, together 19; 4 begins with one token of its prompt.
    simulation = scene(make)
    run(simulation, Decision(admit=[3, 4], tokens={4: 1}))
    assert log_of(simulation)["kv_tokens"][-1] == 20
    with pytest.raises(InvalidDecisionError, match="needs 21"):
        scene(make).step(Decision(admit=[3, 4], tokens={4: 2}))


def test_more_than_can_ever_be_active(make: Make) -> None:
    simulation = make([(0, 1, 1)] * 9, M=3)
    with pytest.raises(InvalidDecisionError, match=r"more requests than can ever be active \(3\)"):
        simulation.step(Decision(admit=[0, 1, 2, 3]))
    run(simulation, Decision(admit=[0, 1, 2], tokens={0: 0, 1: 0, 2: 0}))
    with pytest.raises(InvalidDecisionError, match="4 requests active; at most 3"):
        simulation.step(Decision(admit=[3], tokens=dict.fromkeys(range(4), 0)))
    run(simulation, Decision(evict=[2], admit=[3], tokens={0: 1, 1: 0, 3: 0}))
    assert simulation.view.active.request_id.tolist() == [1, 3]


@pytest.mark.parametrize(
    "decision",
    [
        Decision(admit=[4.7]),  # type: ignore[list-item]
        Decision(admit=["4"]),  # type: ignore[list-item]
        Decision(admit=[2**40]),
        Decision(evict=[1.5]),  # type: ignore[list-item]
        Decision(tokens={2: 1.5}),  # type: ignore[dict-item]
        Decision(tokens={2: 2**40}),
        Decision(tokens={2: -(2**40)}),
    ],
    ids=str,
)
def test_what_is_not_a_whole_number_is_refused_not_rounded(make: Make, decision: Decision) -> None:
    simulation = scene(make)
    before = snapshot(simulation)
    with pytest.raises(InvalidDecisionError, match="policy 'by_hand'"):
        simulation.step(decision)
    assert snapshot(simulation) == before


def test_numpy_integers_are_as_good(make: Make) -> None:
    simulation = scene(make)
    ids = np.array([3, 4])
    run(simulation, Decision(admit=ids[1:], evict=np.array([2]), tokens={np.int64(4): np.int32(2)}))  # type: ignore[arg-type]
    assert rows(simulation.view.active) == {1: (5, 0, 3), 4: (2, 1, 0)}


def test_requests_longer_than_the_memory_are_refused_at_once() -> None:
    table = RequestTable.from_columns(arrival_time=[0, 0], prompt_len=[3, 15], output_len=[3, 6])
    with pytest.raises(WorkloadError, match=r"1 of 2 requests.*kv_capacity = 20.*request 1, 15 \+ 6 = 21"):
        Simulation(System(kv_capacity=20, batch_time=UnitBatchTime()), table)


# ---------------------------------------------------------------- what a policy sees

COLUMNS = {
    "predicted_output_len": [3, 4],
    "predicted_low": [1, 2],
    "predicted_high": [5, 6],
    "class_id": [1, 0],
    "ttft_slo": [2.0, 3.0],
    "tbt_slo": [0.5, 0.25],
    "priority": [7, -7],
}
NEED = {
    "predicted_output_len": "predicted_length",
    "predicted_low": "length_interval",
    "predicted_high": "length_interval",
    "class_id": "class",
    "ttft_slo": "slo",
    "tbt_slo": "slo",
    "output_len": "true_length",
}


@pytest.mark.parametrize("column", NEED)
def test_undeclared_columns_cannot_be_read(make: Make, column: str) -> None:
    requests = [(0.0, 2, 3), (0.0, 3, 4)]
    others = frozenset(NEED.values()) - {NEED[column]}
    simulation = make(requests, needs=others, columns=COLUMNS)
    run(simulation, Decision(admit=[1]))
    for side in (simulation.view.waiting, simulation.view.active):
        with pytest.raises(InformationError, match=rf"by_hand.*{column}.*{NEED[column]}"):
            getattr(side, column)
    simulation = make(requests, needs=frozenset({NEED[column]}), columns=COLUMNS)
    run(simulation, Decision(admit=[1]))
    expected = {"output_len": [3, 4], **COLUMNS}[column]
    assert getattr(simulation.view.waiting, column).tolist() == expected[:1]
    assert getattr(simulation.view.active, column).tolist() == expected[1:]


def test_the_view_is_read_only_and_says_what_there_is(make: Make) -> None:
    simulation = make([(0, 2, 3), (0, 3, 4)], columns=COLUMNS)
    run(simulation, Decision(admit=[1]))
    view = simulation.view
    assert (view.kv_capacity, view.kv_tokens, view.num_active, view.num_waiting) == (20, 4, 1, 1)
    assert view.waiting.priority.tolist() == [7]
    assert view.active.arrival_time.tolist() == [0]
    for name in ("request_id", "prompt_len", "num_kv_tokens"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(view.active, name)[0] = 5
    with pytest.raises(AttributeError, match="prompt_len"):
        _ = view.active.promptlen
    with pytest.raises(AttributeError):
        view.clock = 5.0  # type: ignore[misc]


# ---------------------------------------------------------------- a user's policy


class ShortestPromptFirst(Policy):
    """Admits the shortest prompts that fit whole, now and at their end; evicts nothing."""

    info = PolicyInfo(
        name="shortest_prompt", summary="shortest prompt first", needs=frozenset({"predicted_length"})
    )

    def schedule(self, view: SystemView) -> Decision:
        active, waiting = view.active, view.waiting
        room = view.kv_capacity - int((active.prompt_len + active.predicted_output_len).sum())
        admit = []
        for row in np.argsort(waiting.prompt_len, kind="stable"):
            peak = int(waiting.prompt_len[row] + waiting.predicted_output_len[row])
            if peak > room:
                break
            admit.append(int(waiting.request_id[row]))
            room -= peak
        if not (admit or len(active)):
            return Decision(wait_until=math.inf)
        return Decision(admit=admit)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_policy_in_plain_python(compiled: bool) -> None:
    table = RequestTable.from_columns(
        arrival_time=[0, 0, 0, 1],
        prompt_len=[6, 2, 3, 1],
        output_len=[2, 3, 1, 2],
        predicted_output_len=[2, 3, 1, 2],
    )
    # M = 10. t=0: 1 (peak 5), 2 (4), room 1. t=1: 2 is over, room 5: 3 (3), room 2; 0 (8) not. t=3: 1 and 3 are
    # over: 0 until 5.
    result = simulate(
        System(kv_capacity=10, batch_time=UnitBatchTime()), table, ShortestPromptFirst(), compiled=compiled
    )
    assert result.requests["start_time"].tolist() == [3, 0, 0, 1]
    assert result.requests["finish_time"].tolist() == [5, 3, 1, 3]
    assert result.completed
    with pytest.raises(LivelockError, match="shortest_prompt"):
        simulate(
            System(kv_capacity=10, batch_time=UnitBatchTime()),
            table.replace(predicted_output_len=[9, 3, 1, 2]),
            ShortestPromptFirst(),
        )
