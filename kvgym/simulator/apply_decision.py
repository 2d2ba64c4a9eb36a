"""Check and apply a decision.

The engine never repairs a decision: an invalid one is refused and changes nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.simulator.blocks import (
    allocated,
    count_memory,
    finished_tokens,
    full_tokens,
    kv_growth,
    planned_tokens,
    written_tokens,
)
from kvgym.simulator.boundary import Run, cache_of, has_cache, has_drafts, has_tier, list_queued, show_hit
from kvgym.simulator.prefix.cache import give_up, hold_hit
from kvgym.simulator.prefix.pins import end_pin_found_by
from kvgym.simulator.prefix.plan import plan_active, plan_admission, plan_change, planned_size
from kvgym.simulator.prefix.tier_hook import LOADS, START, WAITS, call_tier, take_hit
from kvgym.simulator.prefix.tree import end_hit
from kvgym.simulator.queue import queue_remove, queue_return
from kvgym.simulator.tables import (
    ACTIVE,
    ADMITTING,
    BAD_ADMIT,
    BAD_EVICT,
    BAD_TOKENS,
    BAD_WAIT,
    EVICTING,
    NO_MEMORY,
    OK,
    PROGRESS_KEPT,
    PROGRESS_LOST,
    RUN,
    TOO_MANY,
    UNKNOWN,
    WAIT,
    WAITING,
)
from kvgym.simulator.tiers.hook import kind_of_start, note_evicted


@jit
def restore_statuses(run: Run) -> None:
    """Restore the status of the requests that a refused decision names."""
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
    """Record what is wrong with a decision and return the code."""
    t.error_request, t.error_needed, t.error_available = request, needed, available
    return code


@jit_inline
def most_tokens(run: Run, k: int) -> int:
    """Return the tokens that the request in slot ``k`` processes if it runs in full."""
    left = run.active[k].num_prefill_left
    if has_drafts(run) and left == 0:
        return int(1 + run.drafts[k].proposed)
    return full_tokens(left)


@jit_inline
def tokens_of(run: Run, k: int) -> int:
    """Return the tokens that the decision gives the request in slot ``k``."""
    d, slot = run.decision, run.active[k]
    if has_drafts(run) and slot.num_prefill_left == 0 and d.act == RUN:
        return int(slot.planned) if d.explicit == 1 and slot.planned != UNKNOWN else most_tokens(run, k)
    return planned_tokens(d, slot.planned, slot.num_prefill_left)


@jit_inline
def usual_need(run: Run) -> int:
    """Return the memory of the next iteration if every request needs :func:`usual_of`, allocated tokens."""
    if has_drafts(run):
        return int(run.w.kv_allocated)
    return int(run.w.kv_allocated + run.problem.block_size * run.w.num_full)


@jit_inline
def usual_of(run: Run, k: int) -> int:
    """Return the memory of the request in slot ``k`` if it decodes one token; with speculation what it holds."""
    return held_in(run, k) if has_drafts(run) else allocated(run.problem, run.active[k].num_kv_tokens + 1)


@jit_inline
def held_in(run: Run, k: int) -> int:
    """Return the memory that the request in slot ``k`` holds, allocated tokens."""
    return allocated(run.problem, run.drafts[k].kv_top if has_drafts(run) else run.active[k].num_kv_tokens)


@jit_inline
def top_with(run: Run, k: int, tokens: int) -> int:
    """Return for how many tokens the request in slot ``k`` has memory while it processes ``tokens``."""
    slot = run.active[k]
    top = slot.num_kv_tokens + written_tokens(run.problem, slot.num_prefill_left, tokens)
    if has_drafts(run):
        top = max(run.drafts[k].kv_top, top + (run.problem.lookahead if tokens > 0 else 0))
    return int(top)


@jit_inline
def growth_in(run: Run, k: int, tokens: int) -> int:
    """Return the memory that the request in slot ``k`` gains by processing ``tokens``, allocated tokens."""
    if has_drafts(run):
        return allocated(run.problem, top_with(run, k, tokens)) - held_in(run, k)
    return kv_growth(run.problem, run.active[k], tokens)


@jit_inline
def start_with(run: Run, kv: int, left: int, tokens: int) -> int:
    """Return the memory of a request that starts, allocated tokens.

    Args:
        run: the tables.
        kv: its KV tokens.
        left: its tokens left to prefill.
        tokens: those that it processes.
    """
    top = kv + written_tokens(run.problem, left, tokens)
    if has_drafts(run) and tokens > 0:
        top += run.problem.lookahead
    return allocated(run.problem, top)


@jit_inline
def decoding_front(run: Run, known: int) -> int:
    """Return a slot before which every active request decodes one token; usually all slots are before it.

    It need not be the largest such slot: prefills usually come last, so the search goes backwards from the end.

    Args:
        run: its tables.
        known: a slot before which every request is known to decode.
    """
    d, w, front = run.decision, run.w, known
    if has_drafts(run):
        return 0
    if d.act == RUN and d.explicit == 0:
        front, prefills = w.num_active, w.num_prefilling
        while prefills > 0:
            front -= 1
            prefills -= 1 if run.active[front].num_prefill_left > 0 else 0
    elif d.act == RUN:
        while front < w.num_active:
            slot = run.active[front]
            if slot.num_prefill_left > 0 or not (slot.planned == UNKNOWN or slot.planned == 1):
                break
            slot.planned = UNKNOWN  # one token, too; the engine leaves it so
            front += 1
    return front


@jit_inline
def shared_by(run: Run, i: int, active: bool) -> int:
    """Return the memory of request ``i`` that others hold under the decision so far, tokens; add it to the decision.

    Args:
        run: the tables.
        i: the request.
        active: whether it is active and evicted, or waits and starts.
    """
    if not has_cache(run):
        return 0
    return plan_change(cache_of(run), i, active) * run.problem.prefix_unit


@jit_inline
def holds_finished(run: Run) -> bool:
    """Return whether requests that finished with the last batch hold their memory until the decision takes effect.

    Without a prefix cache nothing depends on it but the decision itself.
    """
    return bool(has_cache(run) and run.decision.ahead == 1 and run.problem.prefix_in_order == 1)


@jit_inline
def memory_of_victims(run: Run) -> int:
    """Return the memory that the finished requests free that the decision preempts, tokens; add it to the decision."""
    freed = 0
    for j in range(run.w.num_finished):
        i = run.finished[j]
        if run.prefix[i].place != UNKNOWN:
            freed += allocated(run.problem, finished_tokens(run.problem, run.requests[i]))
            freed -= shared_by(run, i, True)
    return freed


@jit_inline
def inspect_decision(run: Run) -> int:
    """Check a decision, and mark the requests it evicts and admits."""
    d, w, limit = run.decision, run.w, run.problem.kv_capacity
    in_order = has_cache(run) and run.problem.prefix_in_order == 1 and d.num_admit > 0
    if d.num_evict > run.evict.shape[0]:
        return refuse(run.tracker, BAD_EVICT, UNKNOWN, d.num_evict - 1, w.num_active)
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
    kv = usual_need(run)
    if has_cache(run):
        run.pool.stamp += 1
    for j in range(d.num_evict):
        slot = run.active[run.evict[j]]
        kv += shared_by(run, slot.request_id, True) - usual_of(run, run.evict[j])
    if holds_finished(run):
        kv -= memory_of_victims(run)
    d.front = decoding_front(run, 0)
    for k in range(d.front, w.num_active):
        slot = run.active[k]
        if d.num_evict > 0 and run.requests[slot.request_id].status == EVICTING:
            continue
        tokens = tokens_of(run, k)
        if not 0 <= tokens <= most_tokens(run, k):
            return refuse(run.tracker, BAD_TOKENS, slot.request_id, tokens, most_tokens(run, k))
        kv += allocated(run.problem, top_with(run, k, tokens)) - usual_of(run, k)
    if in_order:
        plan_active(cache_of(run), run.problem, d, w, run.active, run.requests, kv)
    for j in range(d.num_admit):
        i = run.admit[j]
        if not 0 <= i < run.problem.num_requests:
            return refuse(run.tracker, BAD_ADMIT, i, 0, 0)
        r = run.requests[i]
        if r.status != WAITING or r.worker != w.index:
            return refuse(run.tracker, BAD_ADMIT, i, 0, 0)
        tokens = planned_tokens(d, run.admit_tokens[j], r.num_prefill_left)
        most = full_tokens(r.num_prefill_left + (r.num_kv_tokens if in_order else 0))  # it may lose its hit
        if not 0 <= tokens <= most:
            return refuse(run.tracker, BAD_TOKENS, i, tokens, most)
        if in_order:
            found, had, left, shared = planned_size(cache_of(run), run.problem, r, i)
            tokens = min(planned_tokens(d, run.admit_tokens[j], left), full_tokens(left))
            kind = kind_of_start(run, i, found)
            if kind != WAITS:
                tokens = 0 if kind == LOADS else tokens
                kv += start_with(run, had, left, tokens) - shared
                plan_admission(cache_of(run), run.problem, d, i, found, had, left, tokens, kv)
        else:
            kv += start_with(run, r.num_kv_tokens, r.num_prefill_left, tokens) - shared_by(run, i, False)
        if kv > limit:
            return refuse(run.tracker, NO_MEMORY, i, kv, limit)
        r.status = ADMITTING
    if kv > limit:
        return refuse(run.tracker, NO_MEMORY, UNKNOWN, kv, limit)
    at_once = d.ahead == 1 or (has_drafts(run) and d.num_evict > 0)  # a step that only preempts
    if d.act == WAIT and not (d.wait_until > w.clock or (at_once and d.wait_until == w.clock)):
        return refuse(run.tracker, BAD_WAIT, UNKNOWN, 0, 0)
    return OK


@jit_inline
def check_decision(run: Run) -> int:
    """Return OK if the worker can execute the decision, with its requests marked, else the reason."""
    status = inspect_decision(run)
    if status != OK:
        restore_statuses(run)
    return status


@jit_inline
def free_memory(run: Run, slot: Any) -> None:
    """Free the memory of a request that stops being active; its units in the prefix cache stay there."""
    count_memory(run.problem, run.w, slot.num_kv_tokens, -1)
    give_units(run, slot.request_id)


@jit_inline
def free_slot(run: Run, k: int) -> None:
    """Free the memory of the request in slot ``k``, that of rejected drafts included."""
    if has_drafts(run):
        run.w.kv_allocated += allocated(run.problem, run.active[k].num_kv_tokens) - held_in(run, k)
    free_memory(run, run.active[k])


@jit_inline
def move_drafts(run: Run, source: int, target: int) -> None:
    """Move what speculation knows of a request to another slot."""
    if has_drafts(run):
        run.drafts[target] = run.drafts[source]


@jit_inline
def give_units(run: Run, i: int) -> None:
    """Let request ``i`` give up its units in the prefix cache; those that others hold stay in use."""
    if has_cache(run):
        shared = give_up(cache_of(run), i) * run.problem.prefix_unit
        run.w.kv_allocated += shared
        run.w.kv_shared -= shared
        run.w.kv_cached = run.pool.num_cached * run.problem.prefix_unit


@jit
def detach(w: Any, r: Any, slot: Any) -> None:
    """Copy the state of a slot to the row of its request, which stops being active."""
    if slot.num_prefill_left > 0:
        w.num_prefilling -= 1
    r.num_kv_best = max(slot.num_kv_best, slot.num_kv_tokens)
    r.num_delivered_tokens = max(slot.num_delivered_tokens, slot.num_output_tokens)
    r.last_token_time = slot.last_token_time
    r.max_token_gap = slot.max_token_gap
    r.num_output_tokens = slot.num_output_tokens
    r.num_kv_tokens = slot.num_kv_tokens
    r.num_prefill_left = slot.num_prefill_left


@jit
def release(run: Run, k: int) -> None:
    """Return the request in slot ``k`` to the queue, with the progress that the settings let it keep."""
    w, slot, p = run.w, run.active[k], run.problem
    r = run.requests[slot.request_id]
    free_slot(run, k)
    detach(w, r, slot)
    r.ready_time = np.nan
    r.num_evictions += 1
    if p.progress_on_evict == PROGRESS_KEPT:
        w.swap_tokens += slot.num_kv_tokens
    else:
        r.num_kv_tokens = 0
        r.num_recomputed_tokens += slot.num_kv_tokens
        w.total_recomputed_tokens += slot.num_kv_tokens
        r.num_output_tokens = 0 if p.progress_on_evict == PROGRESS_LOST else slot.num_output_tokens
        r.num_prefill_left = slot.prompt_len + r.num_output_tokens
    queue_return(w, run.requests, slot.request_id, p.requeue)
    list_queued(w, run.requests, run.queued, slot.request_id)
    show_hit(run, slot.request_id)
    note_evicted(run, slot.request_id)
    w.total_evicted += 1


@jit
def apply_evictions(run: Run) -> None:
    """Evict in the order of the decision, which decides the places in the queue."""
    for j in range(run.decision.num_evict):
        release(run, run.evict[j])
    close_evicted(run)


@jit
def close_evicted(run: Run) -> None:
    """Close the gaps that evictions have left in the active set."""
    d, w = run.decision, run.w
    kept = w.num_active
    for j in range(d.num_evict):
        kept = min(kept, run.evict[j])
    for k in range(kept, w.num_active):
        if run.requests[run.active[k].request_id].status == ACTIVE:
            if k != kept:  # the active set stays compact and in order of activation
                run.active[kept] = run.active[k]
                run.targets[kept] = run.targets[k]
                move_drafts(run, k, kept)
            kept += 1
    w.num_active = kept


@jit_inline
def allocate_memory(run: Run, i: int) -> int:
    """Allocate the memory that a starting request has from the beginning; return how much of it the cache gives.

    Returns:
        Its hit, tokens; what it loads from the memory below the GPU included.
    """
    w, r, unit = run.w, run.requests[i], run.problem.prefix_unit
    found = loaded = 0
    if has_cache(run):
        found = take_hit(run, i) if has_tier(run) else int(run.prefix[i].num_units)
    count_memory(run.problem, w, r.num_kv_tokens, 1)
    if not has_cache(run):
        return 0
    if run.problem.prefix_tree == 1:
        end_hit(cache_of(run), run.requests, unit, i)
    shared = hold_hit(cache_of(run), i) * unit
    if has_tier(run):
        loaded = call_tier(run.tier, START, i, run.prefix[i].num_units, found, w.clock)
    w.kv_allocated -= shared
    w.kv_shared += shared
    end_pin_found_by(cache_of(run), i)
    hit, known = (run.prefix[i].num_units - loaded) * unit, r.num_kv_tokens + r.num_prefill_left
    run.prefix[i].to_prefill, run.prefix[i].known = r.num_prefill_left, known
    w.batch_hits += hit
    if r.num_kv_tokens > found * unit:
        run.pool.next_full = 0  # its own KV fills units with the next batch
    elif r.num_admissions == 0:
        w.total_hit_tokens += hit
        w.total_known_tokens += known
    else:
        w.total_hit_resumed += hit
        w.total_known_resumed += known
    return min(found * unit, int(r.num_kv_tokens))


@jit_inline
def activate(run: Run, i: int, tokens: int) -> None:
    """Move a waiting request into the active set, restoring what it kept when it was evicted."""
    w, r, slot = run.w, run.requests[i], run.active[run.w.num_active]
    queue_remove(w, run.requests, i)
    r.status = ACTIVE
    if math.isnan(r.start_time):
        r.start_time = w.clock
    r.admit_iteration = w.iteration
    hit = allocate_memory(run, i)
    slot.request_id = i
    slot.prompt_len = r.prompt_len
    slot.predicted_len = r.predicted_len
    slot.class_id = r.class_id
    r.num_admissions += 1
    slot.num_kv_tokens = r.num_kv_tokens
    slot.num_prefill_left = r.num_prefill_left
    slot.num_output_tokens = r.num_output_tokens
    slot.num_delivered_tokens = r.num_delivered_tokens
    slot.num_kv_best = r.num_kv_best
    slot.planned = tokens
    slot.admit_iteration = w.iteration
    slot.last_token_time = r.last_token_time
    slot.max_token_gap = r.max_token_gap
    run.targets[w.num_active] = run.workload[i].output_len
    if has_drafts(run):
        own = run.drafts[w.num_active]
        own.proposed = own.tried = own.right = 0
        own.kv_top = r.num_kv_tokens
    if math.isnan(r.ready_time):  # else its KV comes from another worker, not from CPU memory
        w.swap_tokens += r.num_kv_tokens - hit
    if r.num_prefill_left > 0:
        w.num_prefilling += 1
    r.num_kv_tokens = 0
    w.num_active += 1
