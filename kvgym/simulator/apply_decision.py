"""Check and apply a decision.

The engine never repairs a decision: an invalid one is refused and changes nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.simulator.blocks import allocated, count_memory, kv_growth, written_tokens
from kvgym.simulator.boundary import Run, cache_of, has_cache, list_queued, show_hit
from kvgym.simulator.prefix.cache import give_up, hold_hit
from kvgym.simulator.prefix.pins import end_pin_found_by
from kvgym.simulator.prefix.plan import plan_change, plan_room, plan_shared, plan_start, planned_hit
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


@jit_inline
def full_tokens(prefill_left: int) -> int:
    """Return the tokens a request processes by default: all of its prefill, or one decode."""
    return prefill_left if prefill_left > 0 else 1


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
def planned_tokens(d: Any, chosen: int, prefill_left: int) -> int:
    """Return the tokens that the decision gives a request with ``prefill_left`` tokens to prefill."""
    if d.act == WAIT:
        return 0
    if d.explicit == 1 and chosen != UNKNOWN:
        return chosen
    return full_tokens(prefill_left)


@jit_inline
def decoding_front(run: Run, known: int) -> int:
    """Return a slot before which every active request decodes one token; usually all slots are before it.

    It need not be the largest such slot: prefills usually come last, so the search goes backwards from the end.

    Args:
        run: its tables.
        known: a slot before which every request is known to decode.
    """
    d, w, front = run.decision, run.w, known
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


@jit
def with_kv(p: Any, prefill_left: int, kv: int, tokens: int) -> int:
    """Return the tokens with KV, as engines have it, of a request with ``kv`` KV tokens that processes ``tokens``.

    If the prefill writes the KV of the first output token, every request has one token less in engines.
    """
    return kv + tokens - (p.prefill_writes if prefill_left == 0 else 0)


@jit
def finished_tokens(p: Any, r: Any) -> int:
    """Return the KV tokens that a finished request had in the end."""
    return int(r.prompt_len + r.num_output_tokens - p.prefill_emits + p.prefill_writes)


@jit
def with_known(p: Any, d: Any, w: Any, slot: Any) -> int:
    """Return the tokens of a running request that the cache gets with its next tokens, as the decision knows them.

    A decision made ahead does not know the output token of the last batch: KV up to there cannot be named yet.
    """
    left, tokens = slot.num_prefill_left, planned_tokens(d, slot.planned, slot.num_prefill_left)
    if d.ahead == 1 and left == 0 and slot.last_token_time == w.last_batch_end:
        tokens = 0
    return with_kv(p, left, slot.num_kv_tokens, tokens)


@jit
def plan_active(
    c: Any, p: Any, d: Any, w: Any, active: Any, requests: Any, in_use: int, kept: int = 0
) -> None:
    """Begin a plan: the running requests take their memory, and enter the units of their next tokens into the map.

    Args:
        c: the prefix cache.
        p: PROBLEM record.
        d: DECISION record.
        w: WORKER record.
        active: SLOT (A,), with the planned tokens.
        requests: REQUEST (n,); those that are evicted are marked.
        in_use: memory in use afterwards, tokens.
        kept: cached units that the plan counts as held.
    """
    c.pool.plan_next, c.pool.plan_cached = c.pool.head, c.pool.num_cached - kept
    plan_room(c, p.prefix_unit, in_use, p.kv_capacity)
    for k in range(w.num_active):
        slot = active[k]
        if requests[slot.request_id].status == ACTIVE:
            known = c.prefix[slot.request_id].num_units
            plan_shared(c, p.prefix_unit, slot.request_id, known, with_known(p, d, w, slot))


@jit
def planned_size(c: Any, p: Any, r: Any, i: int) -> tuple[int, int, int, int]:
    """Return what the waiting request ``i`` has if it starts next under the plan.

    Args:
        c: the prefix cache.
        p: PROBLEM record.
        r: row of the request.
        i: its number.

    Returns:
        The units that it finds, its KV tokens, its tokens left to prefill, and the memory of it that others hold.
    """
    found, shared = planned_hit(c, i)
    change = (found - c.prefix[i].num_units) * p.prefix_unit
    return found, r.num_kv_tokens + change, r.num_prefill_left - change, shared * p.prefix_unit


@jit
def plan_admission(
    c: Any, p: Any, d: Any, i: int, found: int, kv: int, left: int, tokens: int, in_use: int
) -> None:
    """Plan that the waiting request ``i`` starts.

    Args:
        c: the prefix cache.
        p: PROBLEM record.
        d: DECISION record.
        i: the request.
        found: units that it finds.
        kv: its KV tokens, those included.
        left: its tokens left to prefill.
        tokens: those that it processes.
        in_use: memory in use afterwards, tokens.
    """
    plan_start(c, i, found)
    plan_room(c, p.prefix_unit, in_use, p.kv_capacity)
    plan_shared(c, p.prefix_unit, i, found, with_kv(p, left, kv, tokens))


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
        if run.prefix[i].victim != UNKNOWN:
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
    kv = w.kv_allocated + run.problem.block_size * w.num_full  # if all decode one token
    if has_cache(run):
        run.pool.stamp += 1
    for j in range(d.num_evict):
        slot = run.active[run.evict[j]]
        kv += shared_by(run, slot.request_id, True) - allocated(run.problem, slot.num_kv_tokens + 1)
    if holds_finished(run):
        kv -= memory_of_victims(run)
    d.front = decoding_front(run, 0)
    for k in range(d.front, w.num_active):
        slot = run.active[k]
        if d.num_evict > 0 and run.requests[slot.request_id].status == EVICTING:
            continue
        left = slot.num_prefill_left
        tokens = planned_tokens(d, slot.planned, left)
        if not 0 <= tokens <= full_tokens(left):
            return refuse(run.tracker, BAD_TOKENS, slot.request_id, tokens, full_tokens(left))
        kv += allocated(run.problem, slot.num_kv_tokens + written_tokens(run.problem, left, tokens))
        kv -= allocated(run.problem, slot.num_kv_tokens + 1)
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
            kv += allocated(run.problem, had + written_tokens(run.problem, left, tokens)) - shared
            plan_admission(cache_of(run), run.problem, d, i, found, had, left, tokens, kv)
        else:
            kv += allocated(run.problem, r.num_kv_tokens) + kv_growth(run.problem, r, tokens)
            kv -= shared_by(run, i, False)
        if kv > limit:
            return refuse(run.tracker, NO_MEMORY, i, kv, limit)
        r.status = ADMITTING
    if kv > limit:
        return refuse(run.tracker, NO_MEMORY, UNKNOWN, kv, limit)
    if d.act == WAIT and not (d.wait_until > w.clock or (d.ahead == 1 and d.wait_until == w.clock)):
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
    free_memory(run, slot)
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
            kept += 1
    w.num_active = kept


@jit_inline
def allocate_memory(run: Run, i: int) -> int:
    """Allocate the memory that a starting request has from the beginning; return how much of it the cache gives.

    Returns:
        Its hit, tokens.
    """
    w, r, unit = run.w, run.requests[i], run.problem.prefix_unit
    count_memory(run.problem, w, r.num_kv_tokens, 1)
    if not has_cache(run):
        return 0
    if run.problem.prefix_tree == 1:
        end_hit(cache_of(run), run.requests, unit, i)
    shared = hold_hit(cache_of(run), i) * unit
    w.kv_allocated -= shared
    w.kv_shared += shared
    end_pin_found_by(cache_of(run), i)
    hit, known = run.prefix[i].num_units * unit, r.num_kv_tokens + r.num_prefill_left
    run.prefix[i].to_prefill, run.prefix[i].known = r.num_prefill_left, known
    w.batch_hits += hit
    if r.num_kv_tokens > hit:
        run.pool.next_full = 0  # its own KV fills units with the next batch
    elif r.num_admissions == 0:
        w.total_hit_tokens += hit
        w.total_known_tokens += known
    else:
        w.total_hit_resumed += hit
        w.total_known_resumed += known
    return hit


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
    if math.isnan(r.ready_time):  # else its KV comes from another worker, not from CPU memory
        w.swap_tokens += r.num_kv_tokens - hit
    if r.num_prefill_left > 0:
        w.num_prefilling += 1
    r.num_kv_tokens = 0
    w.num_active += 1
