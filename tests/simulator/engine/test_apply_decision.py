"""Checking and applying a decision on tables filled by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.runs.run_tables import first_worker
from kvgym.batch_time import UnitBatchTime
from kvgym.compiling.kernel import uncompiled
from kvgym.simulator.apply_decision import (
    activate,
    apply_evictions,
    check_decision,
    decoding_front,
    release,
)
from kvgym.simulator.blocks import full_tokens, planned_tokens
from kvgym.simulator.boundary import Run
from kvgym.simulator.queue import queue_insert
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.simulator.tables import (
    ACTIVE,
    ADMITTING,
    BAD_ADMIT,
    BAD_EVICT,
    BAD_TOKENS,
    BAD_WAIT,
    EVICTING,
    FINISHED,
    FUTURE,
    NO_MEMORY,
    OK,
    PROGRESS_KEPT,
    PROGRESS_LOST,
    PROGRESS_RECOMPUTE,
    RUN,
    TOO_MANY,
    UNKNOWN,
    WAIT,
    WAITING,
)
from kvgym.workloads.table import RequestTable

STATUSES = [ACTIVE, ACTIVE, WAITING, WAITING, FINISHED, FUTURE]


def scene() -> Run:
    """Return the tables of a worker with 20 tokens of memory, room for 6 active requests, and six requests.

    Request 0 decodes with 4 KV tokens, request 1 has 2 and 3 of its prompt left, 2 and 3 wait with prompts of 3 tokens,
    4 has finished and 5 has not arrived. Slots that are not in use still name requests 4 and 5.
    """
    n = len(STATUSES)
    table = RequestTable([0.0] * n, [3] * n, [10 + i for i in range(n)])
    simulation = Simulation(System(20, UnitBatchTime()), table, compiled=False)
    run: Run = first_worker(simulation)
    w: Any = run.w
    for i, status in enumerate(STATUSES):
        request = run.requests[i]
        request.status, request.worker, request.prompt_len, request.num_prefill_left = status, w.index, 3, 3
        run.active[i].planned = run.admit_tokens[i] = UNKNOWN
    for i in (2, 3):
        uncompiled(queue_insert)(w, run.requests, i, UNKNOWN)
    for k, (request_id, kv, left) in enumerate(
        [(0, 4, 0), (1, 2, 3), (4, 0, 0), (4, 0, 0), (4, 0, 0), (5, 0, 0)]
    ):
        slot = run.active[k]
        slot.request_id, slot.num_kv_tokens, slot.num_prefill_left = request_id, kv, left
    w.num_active, w.num_prefilling, w.kv_tokens, w.kv_allocated, w.num_full = 2, 1, 6, 6, 2
    w.clock, run.decision.act = 7.0, RUN
    return run


def decide(run: Run, evict: Sequence[int] = (), admit: Sequence[int] = (), **counts: int) -> int:
    """Check a decision; ``counts`` overrides counts that differ from the lengths of the lists."""
    d: Any = run.decision
    d.num_evict, d.num_admit = counts.get("num_evict", len(evict)), counts.get("num_admit", len(admit))
    run.evict[: len(evict)], run.admit[: len(admit)] = evict, admit
    return int(uncompiled(check_decision)(run))


def statuses(run: Run) -> list[int]:
    return [int(run.requests[i].status) for i in range(len(STATUSES))]


def refusal(run: Run) -> tuple[int, int, int]:
    t: Any = run.tracker
    return int(t.error_request), int(t.error_needed), int(t.error_available)


# ---------------------------------------------------------------- checking


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        ({"evict": [0, 2]}, BAD_EVICT, (UNKNOWN, 2, 2)),
        ({"evict": [0, -1]}, BAD_EVICT, (UNKNOWN, -1, 2)),
        ({"evict": [0, 1, 1]}, BAD_EVICT, (1, 1, 2)),
        ({"evict": [0, 1], "num_evict": 7}, BAD_EVICT, (UNKNOWN, 6, 2)),
        ({"admit": [2, 6]}, BAD_ADMIT, (6, 0, 0)),
        ({"admit": [2, -1]}, BAD_ADMIT, (-1, 0, 0)),
        ({"admit": [2, 2]}, BAD_ADMIT, (2, 0, 0)),
        ({"admit": [3, 5]}, BAD_ADMIT, (5, 0, 0)),
        ({"evict": [1], "admit": [2, 1]}, BAD_ADMIT, (1, 0, 0)),
        ({"admit": [0]}, BAD_ADMIT, (0, 0, 0)),
        ({"num_admit": 5}, TOO_MANY, (UNKNOWN, 7, 6)),
        ({"evict": [0, 1], "num_admit": 7}, TOO_MANY, (UNKNOWN, 7, 6)),
    ],
)
def test_a_refused_decision_names_what_is_wrong_and_changes_no_status(
    arguments: dict[str, Any], code: int, reason: tuple[int, int, int]
) -> None:
    run = scene()
    assert decide(run, **arguments) == code
    assert refusal(run) == reason
    assert statuses(run) == STATUSES


def test_a_request_of_another_worker_is_refused() -> None:
    run = scene()
    run.requests[3].worker = run.w.index + 1
    assert decide(run, admit=[2, 3]) == BAD_ADMIT
    assert refusal(run) == (3, 0, 0)
    assert statuses(run) == STATUSES


@pytest.mark.parametrize(
    ("slot", "planned", "reason"),
    [(1, 4, (1, 4, 3)), (0, 2, (0, 2, 1)), (1, -2, (1, -2, 3)), (0, -2, (0, -2, 1))],
)
def test_more_tokens_than_are_left_are_refused(slot: int, planned: int, reason: tuple[int, int, int]) -> None:
    run = scene()
    run.decision.explicit, run.active[slot].planned = 1, planned
    assert decide(run) == BAD_TOKENS
    assert refusal(run) == reason
    assert decide(run, evict=[slot]) == OK  # an evicted request has no tokens
    run = scene()
    run.active[slot].planned = planned  # counts are not read if the decision has none
    assert decide(run) == OK


@pytest.mark.parametrize(("tokens", "status"), [(-2, BAD_TOKENS), (0, OK), (1, OK), (3, OK), (4, BAD_TOKENS)])
def test_tokens_of_an_admission(tokens: int, status: int) -> None:
    run = scene()
    run.decision.explicit, run.admit_tokens[1] = 1, tokens
    assert decide(run, admit=[3, 2]) == status
    if status == BAD_TOKENS:
        assert refusal(run) == (2, tokens, 3)


@pytest.mark.parametrize(
    ("arguments", "planned", "needed", "request_id"),
    [
        ({}, {}, 5 + 6, UNKNOWN),  # a decode, and the rest of a prompt with its first token
        ({"admit": [2]}, {}, 5 + 6 + 4, 2),
        ({"admit": [2, 3]}, {}, 5 + 6 + 4 + 4, 3),
        ({"evict": [0], "admit": [2]}, {}, 6 + 4, 2),
        ({"evict": [1], "admit": [2]}, {}, 5 + 4, 2),
        ({"evict": [1, 0], "admit": [3]}, {}, 4, 3),
        ({}, {0: 0, 1: 0}, 4 + 2, UNKNOWN),
        ({}, {0: 0, 1: 2}, 4 + 4, UNKNOWN),
        ({"admit": [3]}, {0: 0, 1: 2}, 4 + 4 + 4, 3),
    ],
)
def test_memory_by_hand(arguments: Any, planned: dict[int, int], needed: int, request_id: int) -> None:
    """The decision fits exactly; with one token less it does not."""
    for spare, status in ((0, OK), (-1, NO_MEMORY)):
        run = scene()
        run.problem.kv_capacity = needed + spare
        run.decision.explicit = int(bool(planned))
        for k, tokens in planned.items():
            run.active[k].planned = tokens
        assert decide(run, **arguments) == status
        if status == NO_MEMORY:
            assert refusal(run) == (request_id, needed, needed - 1)
            assert statuses(run) == STATUSES


def test_marks_of_a_valid_decision() -> None:
    run = scene()
    assert decide(run, evict=[1], admit=[3]) == OK
    assert statuses(run) == [ACTIVE, EVICTING, WAITING, ADMITTING, FINISHED, FUTURE]


@pytest.mark.parametrize(
    ("until", "status"), [(7.0, BAD_WAIT), (6.0, BAD_WAIT), (math.nan, BAD_WAIT), (7.5, OK), (math.inf, OK)]
)
def test_a_wait_must_end_later(until: float, status: int) -> None:
    run = scene()
    run.decision.act, run.decision.wait_until = WAIT, until
    assert decide(run, evict=[1], admit=[3]) == status
    assert (statuses(run) == STATUSES) == (status != OK)


def test_tokens_of_a_request() -> None:
    """A request processes all of its prompt or one decode, unless the decision has a count; none while waiting."""
    assert [uncompiled(full_tokens)(left) for left in (0, 1, 2, 7)] == [1, 1, 2, 7]
    d: Any = scene().decision
    planned = uncompiled(planned_tokens)
    assert [planned(d, *given) for given in ((UNKNOWN, 3), (UNKNOWN, 0), (2, 3), (0, 0))] == [3, 1, 3, 1]
    d.explicit = 1
    assert [planned(d, *given) for given in ((UNKNOWN, 3), (UNKNOWN, 0), (2, 3), (0, 0))] == [3, 1, 2, 0]
    d.act = WAIT
    assert [planned(d, *given) for given in ((UNKNOWN, 3), (UNKNOWN, 0), (2, 3))] == [0, 0, 0]


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 0, 0, 1, 5]), st.sampled_from([UNKNOWN, UNKNOWN, 0, 1])), max_size=6
    )
)
def test_the_front_is_what_decodes_before_the_first_that_does_not(slots: list[tuple[int, int]]) -> None:
    run = scene()
    d, w = run.decision, run.w
    for k, (left, planned) in enumerate(slots):
        run.active[k].num_prefill_left, run.active[k].planned = left, planned
    w.num_active, w.num_prefilling = len(slots), sum(left > 0 for left, _ in slots)
    lefts = [left > 0 for left, _ in slots]
    first = lefts.index(True) if any(lefts) else len(slots)
    assert uncompiled(decoding_front)(run, 0) == first
    d.explicit = 1
    others = [left > 0 or planned not in (UNKNOWN, 1) for left, planned in slots]
    first = others.index(True) if any(others) else len(slots)
    assert [uncompiled(decoding_front)(run, known) for known in range(first + 1)] == [first] * (first + 1)
    d.act = WAIT
    assert [uncompiled(decoding_front)(run, known) for known in (0, first)] == [0, first]


# ---------------------------------------------------------------- applying


def fill(row: Any, **fields: Any) -> None:
    for name, value in fields.items():
        setattr(row, name, value)


def fields(row: Any, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(row, name).item() for name in names)


KEPT = ("num_kv_best", "num_delivered_tokens", "last_token_time", "max_token_gap")


@pytest.mark.parametrize(
    ("progress", "kept", "recomputed", "swapped"),
    [
        (PROGRESS_KEPT, (5, 2, 1), 30, 2 + 5),  # KV tokens, output tokens, prefill left
        (PROGRESS_RECOMPUTE, (0, 2, 3 + 2), 30 + 5, 2),
        (PROGRESS_LOST, (0, 0, 3), 30 + 5, 2),
    ],
)
def test_state_of_an_evicted_request(
    progress: int, kept: tuple[int, int, int], recomputed: int, swapped: int
) -> None:
    """The request has 5 KV tokens (8 before), 2 output tokens (4 before), and one to prefill; others already wait."""
    run = scene()
    w, request, slot = run.w, run.requests[1], run.active[1]
    run.problem.progress_on_evict = progress
    fill(request, ready_time=1.0, num_evictions=4, num_recomputed_tokens=30)
    fill(
        w,
        swap_tokens=2,
        total_recomputed_tokens=40,
        total_evicted=6,
        num_queued=1,
        kv_tokens=9,
        kv_allocated=9,
    )
    fill(slot, prompt_len=3, num_kv_tokens=5, num_prefill_left=1, num_output_tokens=2, num_delivered_tokens=4)
    fill(slot, num_kv_best=8, last_token_time=6.0, max_token_gap=1.5)
    uncompiled(release)(run, 1)
    assert fields(request, "num_kv_tokens", "num_output_tokens", "num_prefill_left") == kept
    assert fields(request, *KEPT) == (8, 4, 6.0, 1.5)
    assert math.isnan(request.ready_time)
    assert fields(request, "status", "num_evictions", "num_recomputed_tokens") == (WAITING, 5, recomputed)
    assert fields(w, "swap_tokens", "total_recomputed_tokens", "total_evicted") == (
        swapped,
        10 + recomputed,
        7,
    )
    assert fields(w, "kv_tokens", "kv_allocated", "num_full", "num_prefilling") == (4, 4, 1, 0)
    assert fields(w, "num_waiting", "queue_head", "num_queued") == (3, 1, 2)
    assert run.queued[1] == 1


def test_an_evicted_request_has_its_best_values_from_now() -> None:
    run = scene()
    fill(run.active[0], num_kv_tokens=4, num_kv_best=3, num_output_tokens=2, num_delivered_tokens=1)
    uncompiled(release)(run, 0)
    assert fields(run.requests[0], "num_kv_best", "num_delivered_tokens") == (4, 2)
    assert run.w.num_prefilling == 1  # another request's prefill


@pytest.mark.parametrize(
    ("evict", "stay"), [([0], [1, 2]), ([1], [0, 2]), ([2], [0, 1]), ([2, 0], [1]), ([1, 2, 0], [])]
)
def test_remaining_requests_keep_their_order(evict: list[int], stay: list[int]) -> None:
    run = scene()
    for i in range(3):
        run.requests[i].status = EVICTING if i in evict else ACTIVE
        fill(run.active[i], request_id=i, num_kv_tokens=1)
        run.targets[i] = 10 + i
    run.w.num_active, run.w.queue_head, run.w.queue_tail = 3, UNKNOWN, UNKNOWN
    run.decision.num_evict, run.evict[: len(evict)] = len(evict), evict
    uncompiled(apply_evictions)(run)
    assert [int(run.active[k].request_id) for k in range(run.w.num_active)] == stay
    assert run.targets[: run.w.num_active].tolist() == [10 + i for i in stay]
    assert run.queued[: run.w.num_queued].tolist() == evict


@pytest.mark.parametrize(
    ("start", "ready", "left", "started", "swapped", "prefilling"),
    [(math.nan, math.nan, 3, 7.0, 2 + 4, 2), (5.0, 6.0, 0, 5.0, 2, 1)],
)
def test_an_admitted_request_is_restored(
    start: float, ready: float, left: int, started: float, swapped: int, prefilling: int
) -> None:
    """It returns with KV tokens, from CPU memory or, if a time is given, from another worker."""
    run = scene()
    w, request, slot = run.w, run.requests[3], run.active[2]
    fill(w, iteration=9, swap_tokens=2)
    fill(
        request,
        start_time=start,
        ready_time=ready,
        num_prefill_left=left,
        num_kv_tokens=4,
        num_output_tokens=2,
    )
    fill(request, predicted_len=11, class_id=1, num_admissions=5, num_delivered_tokens=6, num_kv_best=8)
    fill(request, last_token_time=6.5, max_token_gap=1.5, admit_iteration=1)
    uncompiled(activate)(run, 3, 2)
    assert fields(request, "status", "start_time", "num_admissions", "admit_iteration") == (
        ACTIVE,
        started,
        6,
        9,
    )
    assert request.num_kv_tokens == 0
    assert fields(slot, "request_id", "prompt_len", "predicted_len", "class_id") == (3, 3, 11, 1)
    assert fields(slot, "num_kv_tokens", "num_prefill_left", "num_output_tokens") == (4, left, 2)
    assert fields(slot, *KEPT) == (8, 6, 6.5, 1.5)
    assert fields(slot, "planned", "admit_iteration") == (2, 9)
    assert run.targets[2] == 13
    assert fields(w, "num_active", "num_prefilling", "swap_tokens") == (3, prefilling, swapped)
    assert fields(w, "kv_tokens", "kv_allocated", "num_full") == (10, 10, 3)
    assert fields(w, "num_waiting", "queue_head", "queue_tail") == (1, 2, 2)
