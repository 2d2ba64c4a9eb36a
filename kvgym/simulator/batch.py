"""Run a batch: its load and duration, tokens, completions and records."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.simulator.apply_decision import (
    decoding_front,
    detach,
    free_memory,
    free_slot,
    held_in,
    move_drafts,
    tokens_of,
    top_with,
)
from kvgym.simulator.blocks import allocated, planned_tokens, written_tokens
from kvgym.simulator.boundary import (
    Run,
    cache_of,
    expected_tokens,
    has_cache,
    has_drafts,
    has_sessions,
    has_tier,
    hidden_row,
    is_closed,
    renew_predictions,
    sessions_of,
)
from kvgym.simulator.drafts.steps import await_drafts, making, num_right, propose, verify
from kvgym.simulator.prefix.pins import make_room
from kvgym.simulator.prefix.returns import keep_finished
from kvgym.simulator.prefix.sharing import share_computed, share_outputs
from kvgym.simulator.prefix.tier_hook import BATCH, END, call_tier, wait_for_tier
from kvgym.simulator.recording.gaps import count_gap
from kvgym.simulator.sessions import end_turn
from kvgym.simulator.tables import (
    BAD_CLOCK,
    BAD_DURATION,
    BUSY,
    FINISHED,
    OK,
    READY,
    UNKNOWN,
)

MAX_DURATION = 1e12
"""Longest batch, seconds, far beyond realistic ones, so that totals of a run stay finite."""

CLOCK_ERROR = 0.01
"""Largest relative error of a batch's duration when it is added to the clock, which has limited precision."""


@jit_inline
def measure_load(run: Run) -> None:
    """Sum the load of the decided batch."""
    d, w, load = run.decision, run.w, run.load
    front = d.front = decoding_front(run, d.front)
    num_decodes, decode_context = front, w.kv_tokens
    num_prefills = prefill_tokens = prefill_context = squares = products = drafts = longest = 0
    left: Any
    context: Any
    tokens: Any
    for k in range(front, w.num_active):
        slot = run.active[k]
        left, context = np.int64(slot.num_prefill_left), np.int64(slot.num_kv_tokens)
        tokens = np.int64(tokens_of(run, k))
        decode_context -= context
        if left == 0:
            decoded = min(tokens, np.int64(1))
            num_decodes += decoded
            decode_context += context * decoded
            drafts += tokens - decoded
            longest = max(longest, tokens - decoded)
        elif tokens > 0:
            num_prefills += 1
            prefill_tokens += tokens
            prefill_context += context
            squares += tokens * tokens
            products += tokens * context
    load.num_prefills, load.prefill_tokens, load.prefill_context = (
        num_prefills,
        prefill_tokens,
        prefill_context,
    )
    load.prefill_squares, load.prefill_products = squares, products
    load.num_decodes, load.decode_context, load.draft_tokens = num_decodes, decode_context, drafts
    if has_drafts(run):
        s = run.speculation[0]
        s.longest, s.needed, s.accepted = longest, 0, 0


@jit
def deliver(requests: Any, gap_counts: Any, gap_sums: Any, slot: Any, end: float) -> None:
    """Deliver a first token, or one after a pause or an eviction."""
    since, slot.last_token_time = slot.last_token_time, end
    if math.isnan(since):
        requests[slot.request_id].first_token_time = end
    else:
        slot.max_token_gap = max(slot.max_token_gap, end - since)
        count_gap(gap_counts, gap_sums, end - since, 1)


@jit
def complete(w: Any, requests: Any, finished: Any, slot: Any, end: float) -> None:
    """Record a finished request."""
    r = requests[slot.request_id]
    r.status = FINISHED
    r.num_output_tokens = r.num_delivered_tokens = slot.num_output_tokens
    r.last_token_time = slot.last_token_time
    r.max_token_gap = slot.max_token_gap
    r.finish_time = end
    finished[w.num_finished] = slot.request_id
    w.num_finished += 1
    w.total_finished += 1
    w.outstanding_requests -= 1
    w.outstanding_tokens -= expected_tokens(r)


@jit
def finish_chunk(p: Any, w: Any, requests: Any, slot: Any, tokens: int, end: float) -> bool:
    """Account for a prefill chunk; True if it emits a counted output token."""
    slot.num_prefill_left -= tokens
    if slot.num_kv_tokens + tokens > slot.num_kv_best:
        w.last_progress = w.decisions  # new progress, not a repeat of tokens that an eviction lost
    if slot.num_prefill_left > 0:
        return False
    w.num_prefilling -= 1
    if p.prefill_emits == 0 and p.ttft_at_prefill == 1 and math.isnan(slot.last_token_time):
        # SLAI, STAB: this iteration shows a first token that output_len does not count.
        requests[slot.request_id].first_token_time = end
        slot.last_token_time = end
    return bool(p.prefill_emits == 1)


@jit_inline
def takes_blocks(run: Run) -> bool:
    """Return whether memory is counted when it is taken; else, with blocks of one token, as tokens are written."""
    return bool(has_drafts(run) or run.problem.block_size > 1)


@jit_inline
def take_blocks(run: Run) -> int:
    """Allocate memory for the tokens of the batch; return the memory in use while it runs."""
    p, w, d = run.problem, run.w, run.decision
    if has_drafts(run):
        for k in range(w.num_active):
            before, top = held_in(run, k), top_with(run, k, tokens_of(run, k))
            w.kv_allocated += allocated(p, top) - before
            run.drafts[k].kv_top = top
        w.num_full = 0  # is not kept: decodes need memory for their drafts as well
        return int(w.kv_allocated)
    kv, full = (
        w.kv_allocated + p.block_size * w.num_full,
        0,
    )  # if all decode one token, as those before the front do
    for k in range(d.front):
        tokens = run.active[k].num_kv_tokens + 1
        full += 1 if allocated(p, tokens) == tokens else 0
    for k in range(d.front, w.num_active):
        slot = run.active[k]
        left = slot.num_prefill_left
        tokens = slot.num_kv_tokens + written_tokens(p, left, planned_tokens(d, slot.planned, left))
        held = allocated(p, tokens)
        kv += held - allocated(p, slot.num_kv_tokens + 1)
        full += 1 if held == tokens else 0
    w.kv_allocated, w.num_full = kv, full
    return kv


@jit_inline
def make_token(
    slot: Any,
    target: int,
    k: int,
    notes: Any,
    noted: int,
    last_batch_end: float,
    end: float,
    count: int = 1,
) -> tuple[int, int]:
    """Count more output tokens of a request, and record its slot if they have the last one, or are late.

    Tokens of one batch are delivered together.

    Args:
        slot: slot of the request.
        target: its true output length, tokens.
        k: number of the slot.
        notes: recorded slots: ``k``, or ``-1 - k`` if the token is late, i.e. the first of the request, or the first
            new one after a pause or an eviction.
        noted: number of recorded slots.
        last_batch_end: time of the previous token for most of the batch, seconds.
        end: time of this token, seconds.
        count: tokens that it makes.

    Returns:
        0 if the token comes after the gap that most of the batch shares, else 1; and the number of recorded slots.
    """
    output = slot.num_output_tokens + np.int32(count)
    slot.num_output_tokens = output
    apart, late = 0, False
    if output > slot.num_delivered_tokens and slot.last_token_time == last_batch_end:
        slot.last_token_time = end
        slot.max_token_gap = max(slot.max_token_gap, end - last_batch_end)  # a branch would be mispredicted
    else:  # if not late, it repeats a token that an eviction lost: already delivered
        apart = 1
        late = output > slot.num_delivered_tokens
    if late or output == target:
        notes[noted] = -1 - k if late else k
        noted += 1
    return apart, noted


@jit
def decode_front(
    active: Any, targets: Any, notes: Any, front: int, last_batch_end: float, end: float
) -> tuple[int, int]:
    """Give every request in the slots before ``front`` one token; arguments and result as of :func:`make_token`.

    This is where a run spends most of its time.
    """
    apart = noted = 0
    for k in range(front):
        slot = active[k]
        slot.num_kv_tokens += np.int32(1)
        more, noted = make_token(slot, targets[k], k, notes, noted, last_batch_end, end)
        apart += more
    return apart, noted


@jit_inline
def close_up(active: Any, targets: Any, first: int, end: int, places: int) -> None:
    """Move the slots ``first`` … ``end - 1`` up by ``places``, which are free."""
    if places > 0:
        for k in range(first, end):
            active[k - places] = active[k]
            targets[k - places] = targets[k]


@jit_inline
def close_ranks(run: Run, first: int, end: int, places: int) -> None:
    """Move slots up as :func:`close_up` does, with what speculation knows of their requests."""
    if has_drafts(run) and places > 0:
        for k in range(first, end):
            move_drafts(run, k, k - places)
    close_up(run.active, run.targets, first, end, places)


@jit
def leave_batch(run: Run, i: int) -> None:
    """Remove an active request from the active set, and copy the state of its slot to its row."""
    w, k = run.w, 0
    while run.active[k].request_id != i:
        k += 1
    free_memory(run, run.active[k])
    detach(w, run.requests[i], run.active[k])
    close_up(run.active, run.targets, k + 1, w.num_active, 1)
    w.num_active -= 1


@jit_inline
def settle(run: Run, noted: int, end: float) -> int:
    """Deliver late tokens and record finished requests of the recorded slots; return the number of late tokens.

    The active set stays compact and in order of activation.
    """
    w, active, targets = run.w, run.active, run.targets
    late = gone = stay = 0
    for j in range(noted):
        note = np.int64(run.finished[j])
        k: Any = note if note >= 0 else -1 - note
        slot = active[k]
        if note < 0:
            late += 1
            deliver(run.requests, run.gap_counts, run.gap_sums, slot, end)
        if slot.num_output_tokens == targets[k]:
            if has_cache(run):
                share_outputs(cache_of(run), run.requests, run.problem, w, slot, end)
            free_slot(run, k)
            if has_cache(run):
                i, closed = slot.request_id, is_closed(run)
                until = keep_finished(cache_of(run), run.problem, w, run.turns, run.workload, closed, i, end)
                if has_tier(run):
                    call_tier(run.tier, END, i, 0, 0, until)
            if has_sessions(run):
                end_turn(sessions_of(run), run.problem, slot.request_id, end, run.tracker.next_arrival)
            complete(w, run.requests, run.finished, slot, end)
            close_ranks(run, stay, k, gone)
            stay = k + 1
            gone += 1
    close_ranks(run, stay, w.num_active, gone)
    w.num_active -= gone
    return late


@jit_inline
def update_cache(run: Run, in_use: int, end: float) -> None:
    """Let the batch take its memory from the prefix cache, and enter what it has computed into the map.

    Args:
        run: the tables.
        in_use: memory in use while the batch runs, tokens.
        end: end of the batch, seconds.
    """
    p, w = run.problem, run.w
    make_room(cache_of(run), run.requests, p, w, in_use)
    w.batch_cached = w.kv_cached
    w.cached_time += w.batch_cached * w.batch_duration
    if p.prefix_in_order == 0 or has_drafts(run):  # right drafts are known only now
        share_computed(cache_of(run), run.requests, p, w, run.active, run.decision.front, end)


@jit_inline
def process_tokens(run: Run, end: float) -> tuple[int, int]:
    """Advance every request of the batch to the end of the iteration; return how many output and KV tokens it made.

    Most requests only decode; they have a separate loop. Rare events are recorded and handled afterwards.
    They are recorded in the list of finished requests, which is empty while a batch runs.
    """
    w, d, active, targets, notes = run.w, run.decision, run.active, run.targets, run.finished
    last_batch_end, front = w.last_batch_end, d.front
    apart, noted = decode_front(active, targets, notes, front, last_batch_end, end)
    emitted = written = front
    more_made = more_new = 0  # output tokens beyond one for each request
    for k in range(front, w.num_active):  # prompts, chunks, paused requests, and decodes between them
        slot = active[k]
        left = slot.num_prefill_left
        tokens = np.int32(tokens_of(run, k))
        slot.planned = UNKNOWN
        if tokens > 0:
            growth: Any = np.int32(written_tokens(run.problem, left, tokens))
            count = 1
            if has_drafts(run) and left == 0:
                s, row = run.speculation[0], hidden_row(run, slot.request_id)
                right = num_right(s, run.odds, run.rights, run.first_right, row, slot.num_output_tokens)
                count = verify(w, s, run.drafts[k], slot, targets[k], tokens - 1, right)
                growth = np.int32(count)
                more_made += count - 1
                known = max(slot.num_output_tokens, slot.num_delivered_tokens)
                more_new += max(0, slot.num_output_tokens + count - known - 1)
            emits = left == 0 or finish_chunk(run.problem, w, run.requests, slot, tokens, end)
            if has_drafts(run):
                ahead = run.problem.lookahead
                await_drafts(run.speculation[0], run.drafts[k], slot, targets[k], ahead, emits)
            slot.num_kv_tokens += growth
            written += growth
            if emits:
                more, noted = make_token(slot, targets[k], k, notes, noted, last_batch_end, end, count)
                apart += more
                emitted += 1
    if has_cache(run):
        update_cache(run, w.kv_allocated + (0 if takes_blocks(run) else written), end)
    usual, late = emitted - apart, settle(run, noted, end) if noted > 0 else 0
    w.kv_tokens += written
    if not takes_blocks(run):
        w.kv_allocated += written
    w.total_delivered_tokens += usual + late + more_new
    if usual + late > 0:
        w.last_progress = w.decisions
    if usual > 0:
        count_gap(run.gap_counts, run.gap_sums, end - last_batch_end, usual)
    return emitted + more_made, written


@jit_inline
def write_log(run: Run, start: float, kv: int, made: int) -> None:
    """Append a row to the per-iteration log."""
    row, w, d, load = run.log[run.tracker.num_log], run.w, run.decision, run.load
    row.start_time, row.end_time = start, w.clock
    row.worker = w.index
    row.num_admitted, row.num_evicted, row.num_finished = d.num_admit, d.num_evict, w.num_finished
    row.num_active, row.num_waiting = w.batch_active, w.batch_waiting
    row.num_prefills, row.prefill_tokens, row.num_decodes = (
        load.num_prefills,
        load.prefill_tokens,
        load.num_decodes,
    )
    row.num_output_tokens = made
    row.draft_tokens = load.draft_tokens
    row.accepted_tokens = run.speculation[0].accepted if has_drafts(run) else 0
    row.kv_tokens = kv
    row.hit_tokens, row.kv_cached = w.batch_hits, w.batch_cached
    run.tracker.num_log += 1


@jit_inline
def start_batch(run: Run, batch_time: Any, batch_params: Any) -> int:
    """Start the decided batch; an empty one stalls the worker for the time of an empty batch."""
    w = run.w
    measure_load(run)
    duration = batch_time(run.load, batch_params) + run.problem.swap_time * w.swap_tokens
    if has_drafts(run):
        load, s = run.load, run.speculation[0]
        duration += making(s, s.longest, load.draft_tokens, load.decode_context)
    if has_tier(run):
        duration = wait_for_tier(run, duration)
        call_tier(run.tier, BATCH, UNKNOWN, 0, 0, w.clock + duration)
    end = w.clock + duration
    w.batch_duration = duration
    if not 0.0 <= duration <= MAX_DURATION:  # also true for NaN
        return BAD_DURATION
    if abs(end - w.clock - duration) > CLOCK_ERROR * duration:
        return BAD_CLOCK
    w.total_swapped_tokens += w.swap_tokens
    w.swap_tokens = 0
    w.phase, w.until = BUSY, end
    w.batch_kv, w.batch_active, w.batch_waiting = w.kv_allocated, w.num_active, w.num_waiting
    return OK


@jit_inline
def finish_batch(run: Run) -> None:
    """End the batch: deliver its tokens and remove finished requests."""
    w, start, end = run.w, run.w.clock, run.w.until
    kv = take_blocks(run) if takes_blocks(run) else 0
    made, written = process_tokens(run, end)
    if not takes_blocks(run):
        kv = w.batch_kv + written
    renew_predictions(run)
    duration = w.batch_duration
    w.phase = READY
    w.iteration += 1
    w.busy_time += duration
    w.kv_time += kv * duration
    w.active_time += w.batch_active * duration
    w.peak_kv_tokens = max(w.peak_kv_tokens, kv)
    w.total_output_tokens += made
    w.total_prefill_tokens += run.load.prefill_tokens
    w.total_batch_requests += run.load.num_prefills + run.load.num_decodes
    w.clock = end
    w.last_batch_end = end
    if run.problem.keep_log == 1:
        write_log(run, start, kv, made)


@jit_inline
def propose_drafts(run: Run, batch_time: Any, batch_params: Any) -> None:
    """Give the requests that have made a token in the last batch their next drafts."""
    if has_drafts(run):
        s, drafts, active, w, load = run.speculation[0], run.drafts, run.active, run.w, run.load
        propose(s, drafts, active, w, load, run.depths, batch_time, batch_params)
