"""One iteration of a worker: arrivals, checking and applying a decision, running the batch.

The engine owns queue, memory and clock and never repairs a decision: one that does not fit is refused, with
nothing changed. All functions take one :class:`Run`, a named tuple of tables, which costs nothing when
compiled; the comments give the source of a rule where it is a convention.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kvgym.simulator.compiled import jit, jit_inline
from kvgym.simulator.queue import queue_insert, queue_remove, queue_return
from kvgym.simulator.tables import (
    ACTIVE,
    ADMITTING,
    BAD_ADMIT,
    BAD_DURATION,
    BAD_EVICT,
    BAD_TOKENS,
    BAD_WAIT,
    DEADLOCK,
    DECIDE,
    DONE,
    EVICTING,
    FINISHED,
    GAP_MIN_EXPONENT,
    GAP_OCTAVES,
    HORIZON,
    LOG_FULL,
    NO_MEMORY,
    OK,
    PROGRESS_KEPT,
    PROGRESS_LOST,
    RUN,
    STALLED,
    TOO_MANY,
    UNKNOWN,
    WAIT,
    WAITING,
)


class Run(NamedTuple):
    """The tables of one worker's run; shapes in brackets, n requests, A active slots at most.

    Records: ``problem``, ``tracker``, ``w`` (the worker), ``decision``, ``load``. Arrays: ``workload`` (n,)
    true requests; ``requests`` (n,); ``active`` (A,) with ``targets`` (A,) int32, the true output lengths,
    kept apart from what policies see; ``queued`` (n,) and ``finished`` (A,) int32, the requests that joined
    the queue and finished since the last decision; ``admit``, ``admit_tokens``, ``evict`` (A,) int32;
    ``gap_counts`` int64 and ``gap_sums`` float64 (GAP_BINS,); ``log`` rows of ITERATION.
    """

    problem: Any
    tracker: Any
    w: Any
    decision: Any
    load: Any
    workload: Any
    requests: Any
    active: Any
    targets: Any
    queued: Any
    finished: Any
    admit: Any
    admit_tokens: Any
    evict: Any
    gap_counts: Any
    gap_sums: Any
    log: Any


# ---------------------------------------------------------------- arrivals and the clock


@jit
def reveal(p: Any, source: Any, r: Any) -> None:
    """Copy a request from the hidden workload, as far as the policy may know it."""
    r.arrival_time = source.arrival_time
    r.prompt_len = source.prompt_len
    r.num_prefill_left = source.prompt_len
    r.priority = source.priority
    r.output_len = source.output_len if p.reveal_output == 1 else UNKNOWN
    r.predicted_len = source.predicted_len if p.reveal_predicted == 1 else UNKNOWN
    r.predicted_low = source.predicted_low if p.reveal_interval == 1 else UNKNOWN
    r.predicted_high = source.predicted_high if p.reveal_interval == 1 else UNKNOWN
    r.class_id = source.class_id if p.reveal_class == 1 else UNKNOWN
    r.ttft_slo = source.ttft_slo if p.reveal_slo == 1 else np.inf
    r.tbt_slo = source.tbt_slo if p.reveal_slo == 1 else np.inf


@jit
def announce(w: Any, requests: Any, queued: Any, i: int) -> None:
    """Note for the policy that request ``i`` has joined the queue."""
    requests[i].status = WAITING
    queued[w.num_queued] = i
    w.num_queued += 1


@jit_inline
def next_arrival_time(p: Any, tracker: Any, workload: Any) -> float:
    """Return when the next request arrives, inf if none will."""
    i = tracker.next_arrival
    return workload[i].arrival_time if i < p.num_requests else np.inf


@jit_inline
def take_arrivals(run: Run) -> None:
    """Queue all requests with arrival time ≤ now, in (arrival, id) order."""
    while next_arrival_time(run.problem, run.tracker, run.workload) <= run.w.clock:
        i = run.tracker.next_arrival
        reveal(run.problem, run.workload[i], run.requests[i])
        queue_insert(run.w, run.requests, i, UNKNOWN)
        announce(run.w, run.requests, run.queued, i)
        run.tracker.next_arrival += 1


@jit_inline
def advance_clock(w: Any, until: float) -> None:
    """Move the clock, accounting for memory held meanwhile."""
    w.kv_time += w.kv_tokens * (until - w.clock)
    w.active_time += w.num_active * (until - w.clock)
    w.clock = until


@jit_inline
def next_boundary(run: Run) -> int:
    """Go to the next moment at which something can be decided; an idle worker jumps to the next arrival."""
    w = run.w
    take_arrivals(run)
    if w.num_active == 0 and w.num_waiting == 0:
        until = next_arrival_time(run.problem, run.tracker, run.workload)
        if until == np.inf:
            return DONE
        if until >= run.problem.horizon:
            return HORIZON
        advance_clock(run.w, until)
        take_arrivals(run)
    if w.clock >= run.problem.horizon:
        return HORIZON
    if run.problem.keep_log == 1 and run.tracker.num_log >= run.log.shape[0]:
        return LOG_FULL
    return DECIDE


# ---------------------------------------------------------------- tokens of a request in a batch


@jit_inline
def full_tokens(prefill_left: int) -> int:
    """Return the tokens a request processes when nothing else is said: all of its prefill, or one decode."""
    return prefill_left if prefill_left > 0 else 1


@jit_inline
def kv_growth(p: Any, prefill_left: int, tokens: int) -> int:
    """Return the KV tokens a request gains; the last prefill chunk may also write output token 1."""
    if prefill_left > 0 and tokens == prefill_left:
        return tokens + p.prefill_emits
    return tokens


# ---------------------------------------------------------------- checking a decision


@jit
def take_marks_back(run: Run) -> None:
    """Restore the status of the requests a refused decision names."""
    d = run.decision
    for j in range(min(d.num_evict, run.evict.shape[0])):
        k = run.evict[j]
        if 0 <= k < run.w.num_active:
            run.requests[run.active[k].request_id].status = ACTIVE
    for j in range(min(d.num_admit, run.admit.shape[0])):
        i = run.admit[j]
        if 0 <= i < run.problem.num_requests and run.requests[i].status == ADMITTING:
            run.requests[i].status = WAITING


@jit_inline
def refuse(t: Any, code: int, request: int, needed: int, available: int) -> int:
    """Note what is wrong with a decision."""
    t.error_request, t.error_needed, t.error_available = request, needed, available
    return code


@jit_inline
def planned_tokens(d: Any, chosen: int, prefill_left: int) -> int:
    """Return the tokens the decision gives a request that has ``prefill_left`` to go."""
    if d.act == WAIT:
        return 0
    if d.explicit == 1 and chosen != UNKNOWN:
        return chosen
    return full_tokens(prefill_left)


@jit_inline
def inspect_decision(run: Run) -> int:
    """Check a decision, marking the requests it evicts and admits on the way."""
    d, w, limit = run.decision, run.w, run.problem.kv_capacity
    for j in range(d.num_evict):
        k = run.evict[j]
        if not 0 <= k < w.num_active:
            return refuse(run.tracker, BAD_EVICT, UNKNOWN, k, w.num_active)
        r = run.requests[run.active[k].request_id]
        if r.status != ACTIVE:
            return refuse(run.tracker, BAD_EVICT, run.active[k].request_id, k, w.num_active)
        r.status = EVICTING
    count = w.num_active - d.num_evict + d.num_admit
    if count > run.active.shape[0] or d.num_admit > run.admit.shape[0]:
        return refuse(run.tracker, TOO_MANY, UNKNOWN, count, run.active.shape[0])
    kv = w.kv_tokens
    if d.act == RUN and d.explicit == 0 and d.num_evict == 0 and w.num_prefilling == 0:
        kv += w.num_active  # the usual case: everybody decodes one token
    else:
        for k in range(w.num_active):
            slot = run.active[k]
            if run.requests[slot.request_id].status == EVICTING:
                kv -= slot.num_kv_tokens
                continue
            tokens = planned_tokens(d, slot.planned, slot.num_prefill_left)
            if not 0 <= tokens <= full_tokens(slot.num_prefill_left):
                return refuse(
                    run.tracker, BAD_TOKENS, slot.request_id, tokens, full_tokens(slot.num_prefill_left)
                )
            kv += kv_growth(run.problem, slot.num_prefill_left, tokens)
    for j in range(d.num_admit):
        i = run.admit[j]
        if not 0 <= i < run.problem.num_requests or run.requests[i].status != WAITING:
            return refuse(run.tracker, BAD_ADMIT, i, 0, 0)
        r = run.requests[i]
        tokens = planned_tokens(d, run.admit_tokens[j], r.num_prefill_left)
        if not 0 <= tokens <= full_tokens(r.num_prefill_left):
            return refuse(run.tracker, BAD_TOKENS, i, tokens, full_tokens(r.num_prefill_left))
        kv += r.num_kv_tokens + kv_growth(run.problem, r.num_prefill_left, tokens)
        if kv > limit:
            return refuse(run.tracker, NO_MEMORY, i, kv, limit)
        r.status = ADMITTING
    if kv > limit:
        return refuse(run.tracker, NO_MEMORY, UNKNOWN, kv, limit)
    if d.act == WAIT and not d.wait_until > w.clock:
        return refuse(run.tracker, BAD_WAIT, UNKNOWN, 0, 0)
    return OK


@jit_inline
def check_decision(run: Run) -> int:
    """Return OK if the worker can carry out the decision, with its requests marked, else the reason."""
    status = inspect_decision(run)
    if status != OK:
        take_marks_back(run)
    return status


# ---------------------------------------------------------------- applying a decision


@jit
def release(run: Run, k: int) -> None:
    """Send the request in slot ``k`` back to the queue, with what its progress setting lets it keep."""
    w, slot, p = run.w, run.active[k], run.problem
    r = run.requests[slot.request_id]
    w.kv_tokens -= slot.num_kv_tokens
    if slot.num_prefill_left > 0:
        w.num_prefilling -= 1
    r.num_evictions += 1
    r.num_delivered_tokens = max(slot.num_delivered_tokens, slot.num_output_tokens)
    r.last_token_time = slot.last_token_time
    r.max_token_gap = slot.max_token_gap
    if p.progress_on_evict == PROGRESS_KEPT:
        r.num_output_tokens = slot.num_output_tokens
        r.num_kv_tokens = slot.num_kv_tokens
        r.num_prefill_left = slot.num_prefill_left
    else:
        r.num_recomputed_tokens += slot.num_kv_tokens
        w.total_recomputed_tokens += slot.num_kv_tokens
        r.num_output_tokens = 0 if p.progress_on_evict == PROGRESS_LOST else slot.num_output_tokens
        r.num_prefill_left = slot.prompt_len + r.num_output_tokens
    queue_return(w, run.requests, slot.request_id, p.requeue)
    announce(w, run.requests, run.queued, slot.request_id)
    w.total_evicted += 1


@jit
def apply_evictions(run: Run) -> None:
    """Evict in the order of the decision (the order decides who ends up where in the queue)."""
    d, w = run.decision, run.w
    for j in range(d.num_evict):
        release(run, run.evict[j])
    kept = 0
    for k in range(w.num_active):
        if run.requests[run.active[k].request_id].status == ACTIVE:
            if k != kept:  # the active set stays compact and in order of activation
                run.active[kept] = run.active[k]
                run.targets[kept] = run.targets[k]
            kept += 1
    w.num_active = kept


@jit_inline
def activate(run: Run, i: int, tokens: int) -> None:
    """Move a waiting request into the active set, restoring what it kept over an eviction."""
    w, r, slot = run.w, run.requests[i], run.active[run.w.num_active]
    queue_remove(w, run.requests, i)
    r.status = ACTIVE
    if math.isnan(r.start_time):
        r.start_time = w.clock
    r.admit_iteration = w.iteration
    slot.request_id = i
    slot.prompt_len = r.prompt_len
    slot.predicted_len = r.predicted_len
    slot.num_kv_tokens = r.num_kv_tokens
    slot.num_prefill_left = r.num_prefill_left
    slot.num_output_tokens = r.num_output_tokens
    slot.num_delivered_tokens = r.num_delivered_tokens
    slot.planned = tokens
    slot.admit_iteration = w.iteration
    slot.last_token_time = r.last_token_time
    slot.max_token_gap = r.max_token_gap
    run.targets[w.num_active] = run.workload[i].output_len
    w.kv_tokens += r.num_kv_tokens
    if r.num_prefill_left > 0:
        w.num_prefilling += 1
    r.num_kv_tokens = 0
    w.num_active += 1


# ---------------------------------------------------------------- running a batch


@jit_inline
def first_to_measure(w: Any, d: Any, active: Any) -> int:
    """Return the slot before which every request decodes one token, so that sums are known without a look.

    This is so where nothing is paused or chunked and only requests just admitted prefill.
    """
    if d.explicit == 1 or w.num_prefilling > d.num_admit:
        return 0
    first = w.num_active - d.num_admit
    for k in range(first, w.num_active):
        if active[k].num_prefill_left == 0:
            return 0
    return first


@jit_inline
def measure_load(run: Run) -> None:
    """Sum the load of the decided batch."""
    d, w, load = run.decision, run.w, run.load
    first = first_to_measure(w, d, run.active)
    num_decodes, decode_context = first, w.kv_tokens if first > 0 else 0
    num_prefills = prefill_tokens = prefill_context = squares = products = 0
    left: Any
    context: Any
    tokens: Any
    for k in range(first, w.num_active):
        slot = run.active[k]
        left, context = np.int64(slot.num_prefill_left), np.int64(slot.num_kv_tokens)
        tokens = np.int64(planned_tokens(d, slot.planned, left))
        if left == 0:
            num_decodes += tokens
            decode_context += context * tokens
        elif tokens > 0:
            num_prefills += 1
            prefill_tokens += tokens
            prefill_context += context
            squares += tokens * tokens
            products += tokens * context
            if first > 0:
                decode_context -= context
    load.num_prefills, load.prefill_tokens, load.prefill_context = (
        num_prefills,
        prefill_tokens,
        prefill_context,
    )
    load.prefill_squares, load.prefill_products = squares, products
    load.num_decodes, load.decode_context = num_decodes, decode_context


@jit
def count_gap(gap_counts: Any, gap_sums: Any, gap: float, count: int) -> None:
    """Add ``count`` token gaps of ``gap`` seconds to the histogram."""
    per_octave = gap_counts.shape[0] // GAP_OCTAVES
    if per_octave == 0:
        return  # not wanted
    bin_ = 0
    if gap > 0.0:
        mantissa, exponent = math.frexp(gap)
        bin_ = (exponent - GAP_MIN_EXPONENT) * per_octave + int((2.0 * mantissa - 1.0) * per_octave)
    bin_ = min(max(bin_, 0), gap_counts.shape[0] - 1)
    gap_counts[bin_] += count
    gap_sums[bin_] += gap * count


@jit
def deliver(requests: Any, gap_counts: Any, gap_sums: Any, slot: Any, end: float) -> None:
    """Hand the user a first token, or one that comes after a pause or an eviction."""
    since, slot.last_token_time = slot.last_token_time, end
    if math.isnan(since):
        requests[slot.request_id].first_token_time = end
    else:
        slot.max_token_gap = max(slot.max_token_gap, end - since)
        count_gap(gap_counts, gap_sums, end - since, 1)


@jit
def complete(w: Any, requests: Any, finished: Any, slot: Any, end: float) -> None:
    """Record a finished request and free its memory."""
    r = requests[slot.request_id]
    r.status = FINISHED
    r.num_output_tokens = r.num_delivered_tokens = slot.num_output_tokens
    r.last_token_time = slot.last_token_time
    r.max_token_gap = slot.max_token_gap
    r.finish_time = end
    w.kv_tokens -= slot.num_kv_tokens
    finished[w.num_finished] = slot.request_id
    w.num_finished += 1
    w.total_finished += 1


@jit
def finish_chunk(p: Any, w: Any, requests: Any, slot: Any, tokens: int, end: float) -> bool:
    """Account for a prefill chunk; True if it emits a counted output token."""
    slot.num_prefill_left -= tokens
    if slot.num_prefill_left > 0:
        return False
    w.num_prefilling -= 1
    if p.prefill_emits == 0 and p.ttft_at_prefill == 1 and math.isnan(slot.last_token_time):
        # SLAI, STAB: this iteration shows a first token that output_len does not count.
        requests[slot.request_id].first_token_time = end
        slot.last_token_time = end
    return bool(p.prefill_emits == 1)


@jit_inline
def process_tokens(run: Run, end: float) -> int:
    """Advance every request of the batch to the end of the iteration; returns the output tokens made."""
    w, d, active, targets, last_batch_end = run.w, run.decision, run.active, run.targets, run.w.last_batch_end
    explicit, usual_gap = d.explicit == 1, end - run.w.last_batch_end
    made = usual = repeated = kept = written = 0
    for k in range(w.num_active):
        slot = active[k]
        left, tokens = slot.num_prefill_left, np.int32(1)
        if explicit or left > 0:
            tokens = np.int32(planned_tokens(d, slot.planned, left))
            slot.planned = UNKNOWN
        if tokens > 0:
            growth: Any = tokens
            emits = True
            if left > 0:
                growth = np.int32(kv_growth(run.problem, left, tokens))
                emits = finish_chunk(run.problem, w, run.requests, slot, tokens, end)
            slot.num_kv_tokens += growth
            written += growth
            if emits:
                made += 1
                output = slot.num_output_tokens + np.int32(1)
                slot.num_output_tokens = output
                if output <= slot.num_delivered_tokens:
                    repeated += 1  # made again after lost progress: the user has it already and waits
                elif slot.last_token_time == last_batch_end:
                    usual += 1  # the gap that most of a batch shares: counted once for all
                    slot.last_token_time = end
                    if usual_gap > slot.max_token_gap:
                        slot.max_token_gap = usual_gap
                else:
                    deliver(run.requests, run.gap_counts, run.gap_sums, slot, end)
                if output == targets[k]:
                    complete(w, run.requests, run.finished, slot, end)
                    continue
        if k != kept:  # the active set stays compact and in order of activation
            active[kept] = active[k]
            targets[kept] = targets[k]
        kept += 1
    w.kv_tokens += written
    w.num_active = kept
    w.total_delivered_tokens += made - repeated
    if made > repeated:
        w.last_progress = w.decisions
    if usual > 0:
        count_gap(run.gap_counts, run.gap_sums, usual_gap, usual)
    return made


@jit_inline
def write_log(run: Run, start: float, kv: int, made: int) -> None:
    """Append a row to the per-iteration log."""
    row, w, d, load = run.log[run.tracker.num_log], run.w, run.decision, run.load
    row.start_time, row.end_time = start, w.clock
    row.worker = 0
    row.num_admitted, row.num_evicted, row.num_finished = d.num_admit, d.num_evict, w.num_finished
    row.num_active, row.num_waiting = w.num_active + w.num_finished, w.num_waiting
    row.num_prefills, row.prefill_tokens, row.num_decodes = (
        load.num_prefills,
        load.prefill_tokens,
        load.num_decodes,
    )
    row.num_output_tokens = made
    row.kv_tokens = kv
    run.tracker.num_log += 1


@jit_inline
def run_batch(run: Run, batch_time: Any, batch_params: Any) -> int:
    """Run the decided batch; an empty one stalls the worker for the time of an empty batch."""
    w, load = run.w, run.load
    measure_load(run)
    duration = batch_time(load, batch_params)
    if not 0.0 <= duration < np.inf:
        return BAD_DURATION
    start, end, kv, active = w.clock, w.clock + duration, w.kv_tokens, w.num_active
    made = process_tokens(run, end)
    kv += load.prefill_tokens + made
    w.iteration += 1
    w.busy_time += duration
    w.kv_time += kv * duration
    w.active_time += active * duration
    w.peak_kv_tokens = max(w.peak_kv_tokens, kv)
    w.total_output_tokens += made
    w.total_prefill_tokens += load.prefill_tokens
    w.total_batch_requests += load.num_prefills + load.num_decodes
    w.clock = end
    w.last_batch_end = end
    if run.problem.keep_log == 1:
        write_log(run, start, kv, made)
    return OK


@jit_inline
def carry_out(run: Run, batch_time: Any, batch_params: Any) -> int:
    """Check and apply the decision, then run the batch or wait; the events of the last step are used up."""
    w, d = run.w, run.decision
    status = check_decision(run)
    if status != OK:
        return status
    w.num_queued = w.num_finished = 0
    w.decisions += 1
    if d.num_evict > 0:
        apply_evictions(run)
    for j in range(d.num_admit):
        activate(run, run.admit[j], run.admit_tokens[j] if d.explicit == 1 else UNKNOWN)
    w.total_admitted += d.num_admit
    if d.act == WAIT:
        for k in range(w.num_active):
            run.active[k].planned = UNKNOWN
        until = min(
            d.wait_until, next_arrival_time(run.problem, run.tracker, run.workload), run.problem.horizon
        )
        if until == np.inf:
            return DEADLOCK
        advance_clock(run.w, until)
    else:
        status = run_batch(run, batch_time, batch_params)
        if status != OK:
            return status
    return STALLED if w.decisions - w.last_progress > run.problem.stall_limit else OK


@jit_inline
def clear_decision(run: Run) -> None:
    """Start from the decision to run everything that is active and admit nothing."""
    d = run.decision
    d.act, d.explicit, d.num_admit, d.num_evict = RUN, 0, 0, 0
    d.wait_until = np.inf
