"""Effects of a batch on its requests: tokens, deliveries, completions, compared with a loop over single requests."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.amount import number
from helpers.runs.run_tables import first_worker
from kvgym import RequestTable, System, make_batch_time
from kvgym.compiling.kernel import uncompiled
from kvgym.simulator.batch import (
    measure_load,
    process_tokens,
    start_batch,
    take_blocks,
    write_log,
)
from kvgym.simulator.batch_time import clear_load
from kvgym.simulator.recording.gaps import count_gap
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.tables import ACTIVE, BAD_DURATION, BUSY, FINISHED, GAP_LENGTH, LOAD, OK, READY, UNKNOWN

LAST_END, END = 10.0, 10.5


@dataclass
class Member:
    """An active request before a batch: the fields of its slot, and its true output length."""

    kv: int
    left: int
    made: int
    delivered: int
    planned: int
    since: float  # when the user had the last token, NaN if none
    target: int


@st.composite
def members(draw, explicit):
    """Return a request that decodes or prefills; an explicit decision may pause it or cut it short."""
    made = draw(st.integers(0, 4))
    left = draw(st.sampled_from([0, 0, 0, 1, 5]))
    delivered = draw(st.sampled_from([0, made, made + 2]))
    since = draw(st.sampled_from([LAST_END, LAST_END, 3.0])) if max(made, delivered) > 0 else math.nan
    planned = draw(st.sampled_from([UNKNOWN, UNKNOWN, 0, 1])) if explicit else UNKNOWN
    target = max(made, delivered) + draw(st.integers(1, 3))
    return Member(made + 3, left, made, delivered, planned, since, target)


def tables_of(batch, explicit):
    """Return the tables of a worker that is about to end a batch of these requests."""
    n = len(batch)
    table = RequestTable([0.0] * n, [3] * n, [9] * n)
    system = System(1_000, make_batch_time({"kind": "unit"}))
    simulation = Simulation(system, table, log=True, compiled=False)
    run = first_worker(simulation)
    run.decision.explicit, run.w.last_batch_end = explicit, LAST_END
    for k, member in enumerate(batch):
        slot = run.active[k]
        slot.request_id, slot.planned, run.targets[k] = k, member.planned, member.target
        slot.num_kv_tokens, slot.num_prefill_left = member.kv, member.left
        slot.num_output_tokens, slot.num_delivered_tokens = member.made, member.delivered
        slot.last_token_time = member.since
        slot.num_kv_best = best_of(k, member)
        request = run.requests[k]
        request.status, request.prompt_len, request.predicted_len = ACTIVE, 3, 4 + k
    run.w.num_active = n
    run.w.decisions, run.w.last_progress = 5, 1
    run.w.kv_tokens = run.w.kv_allocated = sum(member.kv for member in batch)
    run.w.num_prefilling = sum(member.left > 0 for member in batch)
    return run


def best_of(k, member):
    """Return the most KV tokens that the request in slot k has ever had."""
    return member.kv + k % 3


def tokens_of(member, explicit):
    """Return the tokens that a request processes."""
    full = member.left if member.left > 0 else 1
    return full if not explicit or member.planned == UNKNOWN else member.planned


def play(batch, explicit):
    """Return remaining and finished requests, first tokens, largest gaps and all gaps, one request at a time."""
    stay, finished, first, largest, gaps = [], [], {}, {}, []
    for k, member in enumerate(batch):
        kv, left, made, since = member.kv, member.left, member.made, member.since
        tokens = tokens_of(member, explicit)
        emits = tokens > 0 and tokens >= left
        kv += tokens + (1 if emits and left > 0 else 0)
        left = max(0, left - tokens)
        largest[k] = 0.0
        if emits:
            made += 1
            if made > member.delivered:
                if math.isnan(since):
                    first[k] = END
                else:
                    largest[k] = END - since
                    gaps.append(END - since)
                since = END
        if emits and made == member.target:
            finished.append(k)
        else:
            stay.append((k, kv, left, made, since))
    return stay, finished, first, largest, gaps


DECODE = Member(kv=5, left=0, made=2, delivered=2, planned=UNKNOWN, since=LAST_END, target=9)


def test_an_empty_load():
    load = tables_of([DECODE], False).load
    for name in LOAD.names:
        setattr(load, name, 9)
    uncompiled(clear_load)(load)
    assert [getattr(load, name) for name in LOAD.names] == [0] * len(LOAD.names)


def test_a_batch_starts_with_its_swaps():
    """2 s by the model for two decodes with 10 KV tokens, and 3 swapped tokens of half a second each."""
    run = tables_of([DECODE, DECODE], False)
    w, run.problem.swap_time = run.w, 0.5
    w.clock, w.swap_tokens, w.total_swapped_tokens, w.num_waiting = 7.0, 3, 4, 6
    started = uncompiled(start_batch)(run, lambda load, factor: factor * load.decode_context, 0.2)
    assert started == OK
    assert (w.phase, w.until, w.batch_duration, w.clock) == (BUSY, 10.5, 3.5, 7.0)
    assert (w.swap_tokens, w.total_swapped_tokens) == (0, 7)
    assert (w.batch_kv, w.batch_active, w.batch_waiting) == (10, 2, 6)


@pytest.mark.parametrize("seconds", [-1.0, -math.inf, math.inf, math.nan])
def test_a_batch_of_an_impossible_duration_does_not_start(seconds):
    run = tables_of([DECODE], False)
    run.w.phase, run.w.swap_tokens = READY, 3
    assert uncompiled(start_batch)(run, lambda load, _: seconds, None) == BAD_DURATION
    assert (run.w.phase, run.w.swap_tokens, run.w.total_swapped_tokens) == (READY, 3, 0)


def test_a_row_of_the_log():
    run = tables_of([DECODE], False)
    w, d, load, run.tracker.num_log = run.w, run.decision, run.load, 1
    w.clock, w.index, w.num_finished, w.batch_active, w.batch_waiting = 9.0, 2, 3, 4, 5
    d.num_admit, d.num_evict, w.batch_hits, w.batch_cached = 6, 7, 14, 15
    load.num_prefills, load.prefill_tokens, load.num_decodes, load.draft_tokens = 8, 10, 11, 16
    uncompiled(write_log)(run, 1.0, 12, 13)
    assert run.tracker.num_log == 2
    assert {name: run.log[1][name].item() for name in run.log.dtype.names} == {
        "start_time": 1.0, "end_time": 9.0, "worker": 2, "num_admitted": 6, "num_evicted": 7, "num_finished": 3,
        "num_active": 4, "num_waiting": 5, "num_prefills": 8, "prefill_tokens": 10, "num_decodes": 11,
        "num_output_tokens": 13, "draft_tokens": 16, "accepted_tokens": 0, "kv_tokens": 12,
        "hit_tokens": 14, "kv_cached": 15,
    }  # fmt: skip
    assert not run.log[0]["end_time"]
    assert not run.log[2]["end_time"]


batches = st.booleans().flatmap(
    lambda explicit: st.tuples(st.just(explicit), st.lists(members(explicit), min_size=1, max_size=8))
)


@settings(max_examples=number(200, 40), deadline=None)
@given(batches)
def test_a_batch_advances_all_requests(drawn):
    explicit, batch = drawn
    run = tables_of(batch, explicit)
    made, _ = uncompiled(process_tokens)(run, END)
    stay, finished, first, largest, gaps = play(batch, explicit)
    w = run.w
    slots = [run.active[k] for k in range(w.num_active)]
    assert [s.request_id for s in slots] == [k for k, *_ in stay]
    for slot, (_, kv, left, tokens, since) in zip(slots, stay, strict=True):
        assert (slot.num_kv_tokens, slot.num_prefill_left, slot.num_output_tokens) == (kv, left, tokens)
        assert slot.last_token_time == since or (math.isnan(slot.last_token_time) and math.isnan(since))
        assert slot.max_token_gap == largest[slot.request_id]
        assert slot.planned == UNKNOWN
    assert run.targets[: w.num_active].tolist() == [batch[k].target for k, *_ in stay]
    assert run.finished[: w.num_finished].tolist() == finished
    assert w.num_prefilling == sum(left > 0 for _, _, left, *_ in stay)
    assert (w.num_finished, w.total_finished, w.outstanding_requests) == (
        *[len(finished)] * 2,
        -len(finished),
    )
    assert w.outstanding_tokens == -sum(3 + 4 + k for k in finished)
    farther = [
        m.left > 0 and tokens_of(m, explicit) > 0 and m.kv + tokens_of(m, explicit) > best_of(k, m)
        for k, m in enumerate(batch)
    ]
    assert w.last_progress == (5 if gaps or first or any(farther) else 1)
    for k in finished:
        request = run.requests[k]
        assert request.status == FINISHED
        assert request.num_output_tokens == request.num_delivered_tokens == batch[k].target
        assert request.last_token_time == request.finish_time == END
        assert run.requests[k].max_token_gap == largest[k]
    assert {k: t for k, t in enumerate(run.requests.first_token_time) if t == END} == first
    emitted = sum(tokens_of(m, explicit) >= max(1, m.left) for m in batch)
    assert (made, w.total_delivered_tokens) == (emitted, len(gaps) + len(first))
    assert w.kv_tokens == w.kv_allocated == sum(kv for _, kv, *_ in stay)
    counts, sums = np.zeros(GAP_LENGTH, np.int64), np.zeros(GAP_LENGTH)
    for gap in gaps:
        uncompiled(count_gap)(counts, sums, gap, 1)
    np.testing.assert_array_equal(run.gap_counts, counts)
    np.testing.assert_allclose(run.gap_sums, sums)


@settings(max_examples=number(100, 40), deadline=None)
@given(batches)
def test_the_load_is_the_sum_over_the_batch(drawn):
    explicit, batch = drawn
    run = tables_of(batch, explicit)
    uncompiled(measure_load)(run)
    given_to = [(m, tokens_of(m, explicit)) for m in batch]
    chunks = [(m.kv, tokens) for m, tokens in given_to if m.left > 0 and tokens > 0]
    contexts = [m.kv for m, tokens in given_to if m.left == 0 and tokens > 0]
    load = run.load
    assert (load.num_prefills, load.prefill_tokens) == (len(chunks), sum(c for _, c in chunks))
    assert load.prefill_context == sum(k for k, _ in chunks)
    assert load.prefill_squares == sum(c * c for _, c in chunks)
    assert load.prefill_products == sum(c * k for k, c in chunks)
    assert (load.num_decodes, load.decode_context) == (len(contexts), sum(contexts))


@settings(max_examples=number(100, 40), deadline=None)
@given(batches, st.sampled_from([2, 3, 4, 7]))
def test_blocks_cover_the_tokens_that_the_batch_writes(drawn, size):
    explicit, batch = drawn
    run = tables_of(batch, explicit)
    run.problem.block_size = size
    run.w.kv_allocated = sum(math.ceil(m.kv / size) * size for m in batch)
    run.w.num_full = sum(m.kv % size == 0 for m in batch)
    used = uncompiled(take_blocks)(run)
    tokens = []
    for member in batch:
        processed = tokens_of(member, explicit)
        emits = member.left > 0 and processed == member.left
        tokens.append(member.kv + processed + emits)
    assert used == run.w.kv_allocated == sum(math.ceil(kv / size) * size for kv in tokens)
    assert run.w.num_full == sum(kv % size == 0 for kv in tokens)
