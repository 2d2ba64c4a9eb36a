"""The decisions of vLLM's V1 scheduler, compiled; :mod:`~kvgym.baselines.vllm_v1` has the rules and the sources."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.kernels import (
    UNKNOWN,
    RuleDecision,
    RuleMemory,
    RuleView,
    admit,
    admit_tokens,
    allocated,
    evict,
    forget_left,
    full_tokens,
    has_place,
    heap_pop,
    heap_push,
    held_by,
    jit_inline,
    kept_by_others,
    kv_growth,
    need_of_active,
    next_to_admit,
    pause_all,
    plan_in_order,
    plan_next,
    policy_kernel,
    request_key,
    size_of_start,
    written_tokens,
)

# Layout of the parameters.
_MAX_TOKENS, _MAX_SEQS, _THRESHOLD, _BY_PRIORITY, _CHUNKED, _WHOLE_INPUT, _WATERMARK = range(7)
_RELEASE, _ADAPTIVE, _INTERVAL = range(7, 10)

NUM_COUNTERS = 3
"""Entries of the state behind the heap of waiting requests, for the interval between prefills.

They are iterations so far, that of the last prefill, and 1 if a request was left over when prompts were last allowed.
"""

_PREEMPTED = -2  # marks a slot, instead of its planned tokens, while the decision is made


@jit_inline
def urgency(row: Any, i: int) -> int:
    """Return a key that is smaller for more urgent requests: by priority, then by arrival."""
    return request_key(-1 - row.priority, i)  # its negative would be too large for the lowest priority


@jit_inline
def threshold_of(view: RuleView, params: Any) -> int:
    """Return the most tokens of a prompt in this iteration, 0 = no limit."""
    threshold, count = int(params[_THRESHOLD]), view.worker.num_active + view.worker.num_waiting
    if params[_RELEASE] == 0.0 or threshold == 0:
        return threshold
    if count < 2:
        return 0
    return max(threshold, int(params[_MAX_TOKENS]) // count) if params[_ADAPTIVE] == 1.0 else threshold


@jit_inline
def tokens_lacking(threshold: int, prefill_left: int) -> int:
    """Return the tokens that a request needs in an iteration: all that it lacks, or less for a long prompt."""
    lacking = full_tokens(prefill_left)
    return threshold if 0 < threshold < lacking else lacking


@jit_inline
def holds_prefills(view: RuleView, memory: RuleMemory) -> bool:
    """Return whether this iteration must not process prompts, because the last that did is too recent."""
    state, w, first = memory.state, view.worker, memory.state.shape[0] - NUM_COUNTERS
    recent = state[first] + 1.0 - state[first + 1] < memory.params[_INTERVAL]
    return bool(recent and state[first + 2] == 0.0 and w.num_active > w.num_prefilling)


@jit_inline
def note_prefill(memory: RuleMemory, tokens: int) -> None:
    """Record that this iteration processes a prompt, if more than one token of it was left."""
    first = memory.state.shape[0] - NUM_COUNTERS
    if tokens > 1:
        memory.state[first + 1] = memory.state[first] + 1.0


@jit_inline
def victim(view: RuleView, params: Any) -> int:
    """Return the next slot to preempt: the newest, or the least urgent, of those not preempted yet."""
    chosen, least, latest = UNKNOWN, 0, 0.0
    for k in range(view.worker.num_active - 1, -1, -1):
        slot = view.active[k]
        if slot.planned == _PREEMPTED:
            continue
        if params[_BY_PRIORITY] == 0.0:
            return k
        row = view.requests[slot.request_id]
        less_urgent = row.priority < least or (row.priority == least and row.arrival_time >= latest)
        if chosen == UNKNOWN or less_urgent:
            chosen, least, latest = k, row.priority, row.arrival_time
    return chosen


@jit_inline
def schedule_running(
    view: RuleView, decision: RuleDecision, memory: RuleMemory, holds: bool
) -> tuple[int, int, int]:
    """Give the running requests their tokens; preempt if memory is short.

    Args:
        view: the kernel's view.
        decision: its decision.
        memory: hyperparameters and state.
        holds: whether this iteration must not process prompts.

    Returns:
        The remaining budget, the memory in use with all planned tokens, and the last slot preempted in an empty step
        of the engine, UNKNOWN if there was none or others were preempted later.
    """
    w, active, capacity, params = view.worker, view.active, view.problem.kv_capacity, memory.params
    budget, used, threshold = int(params[_MAX_TOKENS]), view.worker.kv_allocated, threshold_of(view, params)
    if w.num_prefilling == 0 and w.num_active <= budget and need_of_active(view) <= capacity:
        return budget - w.num_active, need_of_active(view), UNKNOWN  # the usual batch: all requests decode
    pause_all(view, decision)
    scheduled = k = 0
    empty = v = UNKNOWN
    while k < w.num_active and budget > 0:
        slot = active[k]
        if slot.planned != _PREEMPTED and not (holds and slot.num_prefill_left > 0):
            tokens = min(tokens_lacking(threshold, slot.num_prefill_left), budget)
            growth = kv_growth(view.problem, slot, tokens)
            while slot.planned != _PREEMPTED and used + growth > capacity:
                v = victim(view, params)
                other = active[v]
                if other.planned > 0:
                    scheduled -= 1
                    budget += other.planned
                    used -= kv_growth(view.problem, other, other.planned)
                used -= held_by(view, other) - kept_by_others(view, other)
                other.planned = _PREEMPTED
                evict(decision, v)
                empty = UNKNOWN
            if slot.planned != _PREEMPTED:
                slot.planned = tokens
                note_prefill(memory, 2 if slot.num_prefill_left > 0 else 0)
                scheduled += 1
                budget -= tokens
                used += growth
            elif params[_RELEASE] == 0.0 and scheduled > 0:
                break
            elif params[_RELEASE] == 0.0:
                empty = k
        k += 1
        if k == w.num_active and holds and scheduled == 0 and decision.record.num_evict > 0:
            holds, k, empty = False, 0, v  # all that are left are prompts
    for j in range(decision.record.num_evict):
        active[decision.evict[j]].planned = UNKNOWN
    return budget, used, empty


@jit_inline
def start_waiting(
    view: RuleView,
    decision: RuleDecision,
    memory: RuleMemory,
    budget: int,
    used: int,
    empty: int,
    holds: bool,
) -> None:
    """Start waiting requests in order while budget, places and memory last.

    Args:
        view: the kernel's view.
        decision: its decision.
        memory: hyperparameters and state.
        budget: tokens that are left.
        used: memory in use so far, allocated tokens.
        empty: slot of the preempted request that is next in order; UNKNOWN if no request was preempted.
        holds: whether this iteration must not process prompts.
    """
    w, d, params = view.worker, decision.record, memory.params
    max_seqs, by_priority = int(params[_MAX_SEQS]), params[_BY_PRIORITY] == 1.0
    running, threshold, before = w.num_active - d.num_evict, threshold_of(view, params), np.inf
    if empty != UNKNOWN:
        before = urgency(view.requests[view.active[empty].request_id], view.active[empty].request_id)
    in_order = view.worker.num_waiting > 0 and plan_in_order(view, decision, used)
    while budget > 0 and running + d.num_admit < max_seqs and has_place(view, decision):
        i = next_to_admit(view, decision, memory.state, by_priority)
        if i == UNKNOWN or urgency(view.requests[i], i) > before:
            break
        found, kv, left, shared = size_of_start(view, i, in_order)
        if holds and left > 1:
            break
        lacking, whole = tokens_lacking(threshold, left), full_tokens(left)
        if lacking > budget and params[_CHUNKED] == 0.0:
            break
        tokens = min(lacking, budget)
        taken = allocated(view.problem, kv + written_tokens(view.problem, left, tokens)) - shared
        taken_whole = allocated(view.problem, kv + written_tokens(view.problem, left, whole)) - shared
        room = view.problem.kv_capacity - used
        if running + d.num_admit > 0:
            room -= int(params[_WATERMARK])
        if taken > room or (params[_WHOLE_INPUT] == 1.0 and taken_whole > room):
            break
        if tokens == whole:
            admit(decision, i)
        else:
            admit_tokens(decision, i, tokens)
        note_prefill(memory, left)
        budget -= tokens
        used += taken
        if in_order:
            plan_next(view, decision, i, found, kv, left, tokens, used)
        if by_priority:
            heap_pop(memory.state, 0)


@jit_inline
def count_iteration(view: RuleView, decision: RuleDecision, memory: RuleMemory, allowed: bool) -> None:
    """Count the iteration for the interval between prefills.

    Args:
        view: the kernel's view.
        decision: its decision.
        memory: hyperparameters and state.
        allowed: whether waiting requests could start.
    """
    d, state, first = decision.record, memory.state, memory.state.shape[0] - NUM_COUNTERS
    state[first] += 1.0
    if allowed:
        state[first + 2] = 1.0 if view.worker.num_waiting + d.num_evict > d.num_admit else 0.0


@policy_kernel
def vllm_v1_kernel(view: RuleView, decision: RuleDecision, memory: RuleMemory) -> None:
    """Schedule running requests first, and waiting ones only in an iteration without preemption."""
    w = view.worker
    holds = memory.params[_INTERVAL] > 1.0 and holds_prefills(view, memory)
    forget_left(view, memory.state, 0)
    for j in range(w.num_queued if memory.params[_BY_PRIORITY] == 1.0 else 0):
        i = view.queued[j]
        heap_push(memory.state, 0, urgency(view.requests[i], i))
    budget, used, empty = schedule_running(view, decision, memory, holds)
    preempts = decision.record.num_evict > 0
    if not preempts or (empty != UNKNOWN and memory.params[_RELEASE] == 0.0):
        start_waiting(view, decision, memory, budget, used, empty, holds)
    if memory.params[_INTERVAL] > 1.0:
        count_iteration(view, decision, memory, empty != UNKNOWN if preempts else not holds)
