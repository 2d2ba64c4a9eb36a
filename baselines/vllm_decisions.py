"""The decisions of vLLM's V1 scheduler, compiled; :mod:`~kvgym.baselines.vllm_v1` has the rules and the sources."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.baselines.vllm_releases import VICTIMS, Settings
from kvgym.kernels import (
    LOADS,
    RUNS,
    UNKNOWN,
    WAIT,
    WAITING,
    WAITS,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit,
    admit_tokens,
    allocated,
    decide_again,
    decide_ahead,
    decode_tokens,
    evict,
    forget_left,
    full_tokens,
    growth_of_slot,
    has_place,
    heap_pop,
    heap_push,
    held_by_slot,
    held_in_queue,
    jit,
    jit_inline,
    kept_by_others,
    kind_of_start,
    memory_reserved,
    named_numbers,
    need_of_active,
    next_to_admit,
    pause_all,
    plan_in_order,
    plan_next,
    policy_kernel,
    preempt_finished,
    request_key,
    rest_of_start,
    shared_units,
    size_of_start,
    written_tokens,
)

settings = named_numbers(Settings)

_LATEST, _CHEAPEST = VICTIMS.index("latest"), VICTIMS.index("cheapest")

ITERATIONS, LAST_PREFILL, LEFT_OVER, NUM_COUNTERS = range(4)
"""Entries of the state behind the heap of waiting requests, for the interval between prefills.

They are iterations so far, the iteration of the last prefill, and 1 if a request was left over when prompts were last
allowed.
"""

_LATE_ARRIVALS, _ADMISSIONS = 1, 2  # regions of the state, if decisions are made one batch ahead
_SEEN = 0  # the one real number: time of the last decision, until when arrivals have been seen

_LOADED = -(2**31)  # and up to the number of loads more: more urgent than priorities below 2^31 less that

_PREEMPTED = -2  # marks a preempted slot while the decision is made, less the tokens that it had been given
# Victims up to here are requests that finished with the last batch: -2 the first, -3 the second …
_LATE = -2


@jit_inline
def urgency(view: PolicyView, i: int) -> int:
    """Return a key that is smaller for more urgent requests: by priority, then by arrival.

    Those that hold what they have loaded come first, in the order of their loads.
    """
    if held_in_queue(view, i) > 0:
        return request_key(_LOADED + view.cache.prefix[i].place, i)
    return request_key(-1 - view.requests[i].priority, i)  # its negative would be too large for the lowest


def state_size(requests: int, ahead: bool) -> int:
    """Return the entries of the state: a heap of the waiting requests, and the counters.

    Args:
        requests: most requests of a run.
        ahead: whether decisions are made one batch ahead. Then there are, behind the heap, a list of requests that
            arrived too late for this decision, with its length, and the number of admissions so far, with the number of
            each request's last admission.
    """
    return (1 + requests) * (3 if ahead else 1) + NUM_COUNTERS


@jit
def region(state: Any, number: int) -> int:
    """Return the place of the list of late arrivals or of the admissions in the state."""
    return number * ((state.shape[0] - NUM_COUNTERS) // 3)


@jit_inline
def queue_new(view: PolicyView, memory: PolicyMemory, ahead: bool) -> None:
    """Put new requests into the heap of waiting ones, or into the list of those that came after the decision."""
    state, p = memory.state, settings(memory.params)
    late, by_priority = region(state, _LATE_ARRIVALS), p.by_priority
    if p.ahead:
        queue_late(view, memory)
    for j in range(view.worker.num_queued if by_priority or ahead else 0):
        i = view.queued[j]
        unseen = view.requests[i].arrival_time + p.api_time > memory.reals[_SEEN]
        if ahead and unseen and view.requests[i].num_evictions == 0:
            state[late] += 1
            state[late + state[late]] = i
        elif by_priority:
            heap_push(state, 0, urgency(view, i))


@jit_inline
def queue_late(view: PolicyView, memory: PolicyMemory) -> None:
    """Put the requests that arrived too late for a decision into the heap."""
    state, late = memory.state, region(memory.state, _LATE_ARRIVALS)
    for j in range(state[late] if settings(memory.params).by_priority else 0):
        i = state[late + 1 + j]
        if view.requests[i].status == WAITING and view.requests[i].worker == view.worker.index:
            heap_push(state, 0, urgency(view, i))
    state[late] = 0


@jit_inline
def number_admission(memory: PolicyMemory, i: int) -> None:
    """Give an admitted request the next number, by which running and just finished requests are in order."""
    if settings(memory.params).ahead:
        first = region(memory.state, _ADMISSIONS)
        memory.state[first] += 1
        memory.state[first + 1 + i] = memory.state[first]


@jit_inline
def threshold_of(view: PolicyView, p: Settings, more: int) -> int:
    """Return the most tokens of a prompt in this iteration, 0 = no limit; ``more`` corrects the number of requests."""
    threshold, count = p.threshold, view.worker.num_active + view.worker.num_waiting + more
    if not p.newer or threshold == 0:
        return threshold
    if count < 2:
        return 0
    return max(threshold, p.max_tokens // count) if p.adaptive else threshold


@jit_inline
def tokens_lacking(threshold: int, lacking: int) -> int:
    """Return the tokens that a request gets of those that it lacks in an iteration: all, or less of many."""
    return threshold if 0 < threshold < lacking else lacking


@jit_inline
def holds_prefills(view: PolicyView, memory: PolicyMemory, late: int) -> bool:
    """Return whether this iteration must not process prompts, because the last that did is too recent."""
    state, w, first = memory.state, view.worker, memory.state.shape[0] - NUM_COUNTERS
    recent = state[first + ITERATIONS] + 1.0 - state[first + LAST_PREFILL] < settings(memory.params).interval
    return bool(recent and state[first + LEFT_OVER] == 0.0 and w.num_active + late > w.num_prefilling)


@jit_inline
def note_prefill(memory: PolicyMemory, tokens: int) -> None:
    """Record that this iteration processes a prompt, if more than one token of it was left."""
    first = memory.state.shape[0] - NUM_COUNTERS
    if tokens > 1:
        memory.state[first + LAST_PREFILL] = memory.state[first + ITERATIONS] + 1.0


@jit_inline
def victim(view: PolicyView, memory: PolicyMemory, late: int) -> int:
    """Return the next slot to preempt: the newest, or the least urgent, of those not preempted yet.

    Args:
        view: the kernel's view.
        memory: hyperparameters and state.
        late: number of requests that finished with the last batch but still count as running.

    Returns:
        The slot; up to ``_LATE`` one of the late requests.
    """
    v = victim_of_active(view, settings(memory.params))
    if late == 0:
        return v
    numbers, by_priority = region(memory.state, _ADMISSIONS) + 1, settings(memory.params).by_priority
    chosen = UNKNOWN if v == UNKNOWN else view.active[v].request_id
    rule = settings(memory.params).victim
    for j in range(view.worker.num_finished):
        i = view.finished[j]
        number = memory.state[numbers + i]
        if number == 0:
            continue  # preempted
        worse = chosen == UNKNOWN
        if not worse and by_priority:
            a, b = view.requests[i], view.requests[chosen]
            worse = a.priority < b.priority or (a.priority == b.priority and a.arrival_time > b.arrival_time)
            if a.priority == b.priority and a.arrival_time == b.arrival_time:
                worse = number < memory.state[numbers + chosen]
        elif not worse:
            worse = number > memory.state[numbers + chosen]
        if rule != _LATEST:
            worse = (
                chosen == UNKNOWN
            )  # nothing of it would have to be computed again, but the engine cannot know
        if worse:
            v, chosen = _LATE - j, i
    return v


@jit_inline
def tokens_lost(view: PolicyView, p: Settings, slot: Any) -> int:
    """Return the tokens that a preempted request would have to compute again.

    By ``cheapest`` those do not count that other requests hold in the prefix cache.
    """
    tokens = slot.num_kv_tokens
    return tokens - shared_units(view, slot) if p.victim == _CHEAPEST else tokens


@jit_inline
def victim_of_active(view: PolicyView, p: Settings) -> int:
    """Return the slot that :func:`victim` chooses among the running requests, UNKNOWN if there is none."""
    chosen, least, latest, fewest = UNKNOWN, 0, 0.0, 0
    for k in range(view.worker.num_active - 1, -1, -1):
        slot = view.active[k]
        if slot.planned <= _PREEMPTED:
            continue
        if not p.by_priority and p.victim == _LATEST:
            return k
        row = view.requests[slot.request_id]
        if p.victim != _LATEST:
            priority, tokens = row.priority if p.by_priority else 0, tokens_lost(view, p, slot)
            if chosen == UNKNOWN or priority < least or (priority == least and tokens < fewest):
                chosen, least, fewest = k, priority, tokens
            continue
        less_urgent = row.priority < least or (row.priority == least and row.arrival_time >= latest)
        if chosen == UNKNOWN or less_urgent:
            chosen, least, latest = k, row.priority, row.arrival_time
    return chosen


@jit_inline
def schedule_running(
    view: PolicyView,
    decision: PolicyDecision,
    memory: PolicyMemory,
    holds: bool,
    late: int,
    more: int,
    held: int,
) -> tuple[int, int, int, int]:
    """Give the running requests their tokens; preempt if memory is short.

    Args:
        view: the kernel's view.
        decision: its decision.
        memory: hyperparameters and state.
        holds: whether this iteration must not process prompts.
        late: number of requests that finished with the last batch but still count as running.
        more: by how much the requests that count exceed those that run and wait.
        held: memory in use for the late requests alone, allocated tokens.

    Returns:
        The remaining budget, the memory in use with all planned tokens, the last slot preempted in an empty step
        of the engine, UNKNOWN if there was none or others were preempted later, and the late requests that are left.
    """
    w, active, capacity, p = view.worker, view.active, view.problem.kv_capacity, settings(memory.params)
    budget, used, threshold = p.max_tokens, w.kv_allocated + held, threshold_of(view, p, more)
    before = late
    one_each = w.num_prefilling == 0 and view.problem.drafts == 0
    if one_each and w.num_active <= budget and need_of_active(view) + held <= capacity:
        return (
            budget - w.num_active,
            need_of_active(view) + held,
            UNKNOWN,
            late,
        )  # all requests decode, as usual
    pause_all(view, decision)
    scheduled = k = 0
    empty = v = UNKNOWN
    while k < w.num_active and budget > 0:
        slot = active[k]
        if slot.planned > _PREEMPTED and not (holds and slot.num_prefill_left > 0):
            tokens = min(tokens_lacking(threshold, decode_tokens(view, k)), budget)
            growth = growth_of_slot(view, k, tokens)
            while slot.planned > _PREEMPTED and used + growth > capacity:
                v = victim(view, memory, late)
                if v <= _LATE:
                    i = view.finished[_LATE - v]
                    used -= preempt_finished(view, i, decision.record.num_evict + before - late)
                    memory.state[region(memory.state, _ADMISSIONS) + 1 + i] = 0
                    late -= 1
                    continue
                other = active[v]
                if other.planned > 0:
                    scheduled -= 1
                    budget += other.planned
                    used -= growth_of_slot(view, v, other.planned)
                used -= held_by_slot(view, v) - kept_by_others(view, other)
                other.planned = _PREEMPTED - max(other.planned, 0)
                evict(decision, v)
                empty = UNKNOWN
            if slot.planned > _PREEMPTED:
                slot.planned = tokens
                note_prefill(memory, 2 if slot.num_prefill_left > 0 else 0)
                scheduled += 1
                budget -= tokens
                used += growth
            elif not p.newer and (scheduled > 0 or p.ahead):
                break
            elif not p.newer:
                empty = k
        k += 1
        if k == w.num_active and holds and scheduled == 0 and decision.record.num_evict > 0 and not p.ahead:
            holds, k, empty = False, 0, v  # all that are left are prompts
    for j in range(decision.record.num_evict):
        slot = active[decision.evict[j]]
        slot.planned = _PREEMPTED - slot.planned
    return budget, used, empty, late


@jit_inline
def start_waiting(
    view: PolicyView,
    decision: PolicyDecision,
    memory: PolicyMemory,
    budget: int,
    used: int,
    empty: int,
    holds: bool,
    late: int,
    more: int,
    ahead: bool,
    kept: int,
) -> int:
    """Start waiting requests in order while budget, places and memory last.

    Args:
        view: the kernel's view.
        decision: its decision.
        memory: hyperparameters and state.
        budget: tokens that are left.
        used: memory in use so far, allocated tokens.
        empty: slot of the preempted request that is next in order; UNKNOWN if no request was preempted.
        holds: whether this iteration must not process prompts.
        late: number of requests that finished with the last batch but still count as running.
        more: by how much the requests that count exceed those that run and wait.
        ahead: whether requests that arrived after the last decision stay out.
        kept: units of the prefix cache that only late requests hold.

    Returns:
        How many of them stay in the queue, because they load or wait for transfers.
    """
    w, d, p = view.worker, decision.record, settings(memory.params)
    max_seqs, by_priority = p.max_seqs, p.by_priority
    running, before = w.num_active - d.num_evict + late, np.inf
    threshold = threshold_of(view, p, more)
    if empty != UNKNOWN:
        before = urgency(view, view.active[empty].request_id)
    in_order = view.worker.num_waiting > 0 and plan_in_order(view, decision, used, kept)
    apart = rest = 0  # starts that stay in the queue, and what those of this decision still need
    while budget > 0 and running + d.num_admit - apart < max_seqs and has_place(view, decision):
        i = next_to_admit(view, decision, memory.state, by_priority)
        if i == UNKNOWN or urgency(view, i) > before:
            break
        if ahead and view.requests[i].arrival_time + p.api_time > memory.reals[_SEEN]:
            break
        found, kv, left, shared = size_of_start(view, i, in_order)
        kind, whole, tokens = kind_of_start(view, i, found, in_order), full_tokens(left), 0
        if kind == RUNS:
            lacking = tokens_lacking(threshold, whole)
            if (holds and left > 1) or (lacking > budget and not p.chunked):
                break
            tokens = min(lacking, budget)
        beyond = view.problem.lookahead if kind == RUNS else 0
        taken = allocated(view.problem, kv + written_tokens(view.problem, left, tokens) + beyond) - shared
        taken_whole = allocated(view.problem, kv + written_tokens(view.problem, left, whole)) - shared
        room = view.problem.kv_capacity - used
        if running + d.num_admit - apart > 0:
            room -= p.watermark
        if kind != WAITS and (taken > room or (p.whole_input and taken_whole > room)):
            break
        if kind == LOADS and taken > room - memory_reserved(view) - rest:
            break
        if tokens == whole:
            admit(decision, i)
        else:
            admit_tokens(decision, i, tokens)
        if kind == RUNS:
            number_admission(memory, i)
            note_prefill(memory, left)
        else:
            apart += 1
        if kind != WAITS:
            budget -= tokens
            used += taken
            rest += rest_of_start(view, i, kv, left, tokens)
        if in_order and kind != WAITS:
            plan_next(view, decision, i, found, kv, left, tokens, used)
        if by_priority:
            heap_pop(memory.state, 0)
    return apart


@policy_kernel
def vllm_v1_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Schedule running requests first, and waiting ones only in an iteration without preemption.

    With asynchronous scheduling the decision was made when the last batch started: requests that finished with it still
    count, and arrivals since then do not. If nothing can run so, the engine decides again when that batch has ended,
    and so it does after preempting all that it has scheduled: such a step without tokens takes no time. So it is with
    drafts, for which a request that runs alone may lack memory.
    """
    w, d, p, state = view.worker, decision.record, settings(memory.params), memory.state
    counters, late, more, held, kept = state.shape[0] - NUM_COUNTERS, 0, 0, 0, 0
    ahead = p.ahead and w.iteration > 0 and w.clock == w.last_batch_end and w.clock > memory.reals[_SEEN]
    forget_left(view, state, 0)
    queue_new(view, memory, ahead)
    if ahead:
        late = w.num_finished
        more = late - state[region(state, _LATE_ARRIVALS)]
        held, kept = decide_ahead(view, decision)
    holds = p.interval > 1 and holds_prefills(view, memory, late)
    budget, used, empty, left = schedule_running(view, decision, memory, holds, late, more, held)
    preempts, apart = d.num_evict > 0 or left < late, 0
    if not preempts or (empty != UNKNOWN and not p.newer and not p.ahead):
        apart = start_waiting(view, decision, memory, budget, used, empty, holds, left, more, ahead, kept)
    if p.interval > 1 and (empty != UNKNOWN and not p.ahead if preempts else not holds):
        waiting = w.num_waiting + d.num_evict + more - left
        state[counters + LEFT_OVER] = 1.0 if waiting > d.num_admit else 0.0
    if p.ahead and (ahead or preempts) and d.num_admit == apart and budget == p.max_tokens:
        decide_again(view, decision)
        state[counters + LAST_PREFILL] = min(state[counters + LAST_PREFILL], state[counters + ITERATIONS])
    elif view.problem.drafts > 0 and preempts and d.num_admit == 0 and budget == p.max_tokens:
        d.act, d.wait_until = WAIT, w.clock
    elif p.interval > 1:
        state[counters + ITERATIONS] += 1.0
    memory.reals[_SEEN] = w.clock
