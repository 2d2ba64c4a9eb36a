"""Helpers of the kernels of WAIT and Nested WAIT: queues, overflow, the drain rule, and adjusted thresholds.

Requests wait in queues, one for each class (WAIT) or group of prompt lengths (Nested WAIT). A queue has one
threshold or several, those of its segments, the first of which its length must reach.
"""

from __future__ import annotations

import math
from typing import Any

from kvgym.kernels import (
    REQUEUE_ARRIVAL,
    REQUEUE_FRONT,
    UNKNOWN,
    WAIT,
    RuleDecision,
    RuleMemory,
    RuleView,
    admit,
    evict,
    has_place,
    held_by,
    jit,
    jit_inline,
    need_of,
    unlink,
)

# Layout of the parameters: these numbers, then m thresholds to begin with; of each what a request per stage adds to
# a full batch (five sums, kvgym.theory.groups.segment_loads); of each the share of the threshold before that reaches
# it; and of each queue the index of its first threshold, ended by m. What follows (from `rest`) is the policy's own.
NUM_THRESHOLDS, DRAIN, PATIENCE, NUM_QUEUES, ADJUST, SLACK, STRICT, THRESHOLDS = range(8)
_SUMS = 5

# Layout of the state: whether the last decision was to wait, whether the drain rule is in force, from where on counters
# count next, the thresholds in force; heads, tails and lengths of the queues, how far they run; for every request the
# next one.
HOLDING, DRAINING, NEXT_COUNT, IN_FORCE = range(4)

# Layout of the real numbers: the end of the patience; when rates were last brought up to date, and when thresholds
# were; for each queue a count of arrivals that fades; room for thresholds.
UNTIL, COUNTED, SOLVED, COUNTS = range(4)

_ROUNDS = 200
"""Steps after which a search for adjusted thresholds keeps what it has."""

_ROUNDING = 1e-12

_HIGHEST = 2**31 - 1
"""Of a counter in the profile."""


@jit_inline
def queues_at(memory: RuleMemory) -> int:
    """Return where in the state the heads of the queues are."""
    return IN_FORCE + int(memory.params[NUM_THRESHOLDS])


@jit_inline
def length_of(memory: RuleMemory, q: int) -> int:
    """Return how many requests wait in queue ``q``."""
    return int(memory.state[queues_at(memory) + 2 * int(memory.params[NUM_QUEUES]) + q])


@jit_inline
def run_to(memory: RuleMemory, q: int) -> int:
    """Return where in the state the extent to which queue ``q`` runs is kept.

    WAIT: how many requests of the class at each stage. Nested WAIT: up to which threshold the segments of the group.
    """
    return queues_at(memory) + 3 * int(memory.params[NUM_QUEUES]) + q


@jit_inline
def first_of(memory: RuleMemory, q: int) -> int:
    """Return the index of the first threshold of queue ``q``; of the number of queues, that of thresholds."""
    return int(memory.params[THRESHOLDS + (2 + _SUMS) * int(memory.params[NUM_THRESHOLDS]) + q])


@jit_inline
def rest(memory: RuleMemory) -> int:
    """Return where in the parameters the policy's own begin."""
    m, queues = int(memory.params[NUM_THRESHOLDS]), int(memory.params[NUM_QUEUES])
    return THRESHOLDS + (2 + _SUMS) * m + queues + 1


@jit_inline
def reached(memory: RuleMemory, q: int) -> bool:
    """Return whether as many wait in queue ``q`` as its first threshold asks for."""
    return length_of(memory, q) >= int(memory.state[IN_FORCE + first_of(memory, q)])


@jit
def num_stages(view: RuleView) -> Any:
    """Return a number above every stage that a request can reach."""
    return view.problem.kv_capacity + 2


@jit_inline
def begin_count(view: RuleView, memory: RuleMemory, counters: int) -> int:
    """Return from where on the first ``counters`` numbers of the profile count active requests now.

    That is at least what any of them has been counted up to, so none has to be set back to 0 between two counts.
    """
    state, base = memory.state, memory.state[NEXT_COUNT]
    if base > _HIGHEST - view.worker.num_active:
        memory.profile[:counters] = 0
        base = 0
    state[NEXT_COUNT] = base + view.worker.num_active
    return int(base)


@jit_inline
def counted(profile: Any, at: int, base: int, most: int) -> bool:
    """Count one more, unless ``most`` have been counted since the count began; returns whether it has been."""
    count = max(profile[at], base)
    if count - base >= most:
        return False
    profile[at] = count + 1
    return True


@jit
def evict_newest(view: RuleView, decision: RuleDecision, need: int, running: int) -> int:
    """Evict LIFO until the planned batch fits; returns how many of the ``running`` requests are left."""
    k = view.worker.num_active - 1
    while need > view.problem.kv_capacity and k >= 0:
        slot = view.active[k]
        if slot.planned == 0:
            need -= held_by(view, slot)
        else:
            need -= need_of(view, slot)
            running -= 1
        slot.planned = UNKNOWN
        evict(decision, k)
        k -= 1
    return running


@jit
def plan_all(view: RuleView, decision: RuleDecision) -> None:
    """Cancel a plan: everything active runs in full, nothing is evicted or admitted."""
    d = decision.record
    if d.explicit == 1:
        for k in range(view.worker.num_active):
            view.active[k].planned = UNKNOWN
    d.explicit = d.num_admit = d.num_evict = 0


@jit_inline
def start_batch(memory: RuleMemory) -> None:
    """Note that a batch runs."""
    memory.state[HOLDING] = 0


@jit_inline
def stop_draining(memory: RuleMemory) -> None:
    """Go back to thresholds."""
    memory.state[DRAINING] = 0


@jit
def drain_or_wait(view: RuleView, decision: RuleDecision, memory: RuleMemory) -> bool:
    """Return True if everything is to be drained now; else decide to wait for the next arrival."""
    w, state, reals = view.worker, memory.state, memory.reals
    if memory.params[DRAIN] == 1.0:
        if w.num_active == 0:
            state[DRAINING] = 0
        if state[HOLDING] == 0 or w.num_queued > 0:
            reals[UNTIL] = w.clock + memory.params[PATIENCE]
        if reals[UNTIL] <= w.clock:
            state[DRAINING] = 1
        if state[DRAINING] == 1:
            return True
        decision.record.wait_until = reals[UNTIL]
    decision.record.act = WAIT
    state[HOLDING] = 1
    return False


@jit_inline
def join_queue(view: RuleView, memory: RuleMemory, q: int, i: int) -> None:
    """Add request ``i`` to queue ``q`` in the order of the waiting queue, and count it if it is new."""
    state, queues = memory.state, int(memory.params[NUM_QUEUES])
    r, requeue = view.requests[i], view.problem.requeue
    heads = queues_at(memory)
    head, tail, following = heads + q, heads + queues + q, heads + 4 * queues
    state[heads + 2 * queues + q] += 1
    before, at = UNKNOWN, UNKNOWN
    if r.num_evictions > 0 and requeue == REQUEUE_FRONT:
        at = state[head]
    elif r.num_evictions > 0 and requeue == REQUEUE_ARRIVAL:
        at = state[head]
        while at != UNKNOWN and at < i:
            before, at = at, state[following + at]
    else:
        before = state[tail]
    state[following + i] = at
    if before == UNKNOWN:
        state[head] = i
    else:
        state[following + before] = i
    if at == UNKNOWN:
        state[tail] = i
    if memory.params[ADJUST] > 0 and r.num_evictions == 0:
        age = view.worker.clock - r.arrival_time
        memory.reals[COUNTS + q] += math.exp(-age / memory.params[ADJUST])


@jit_inline
def leave_queue(memory: RuleMemory, q: int) -> None:
    """Remove the first request from queue ``q``."""
    state, queues = memory.state, int(memory.params[NUM_QUEUES])
    heads = queues_at(memory)
    state[heads + q] = state[heads + 4 * queues + state[heads + q]]
    if state[heads + q] == UNKNOWN:
        state[heads + queues + q] = UNKNOWN
    state[heads + 2 * queues + q] -= 1


@jit_inline
def forget_of_queue(memory: RuleMemory, q: int, i: int) -> None:
    """Remove request ``i``, which a router has moved away, from queue ``q`` if it is there."""
    state, queues = memory.state, int(memory.params[NUM_QUEUES])
    heads = queues_at(memory)
    if unlink(state, heads + q, heads + queues + q, heads + 4 * queues, i):
        state[heads + 2 * queues + q] -= 1


@jit_inline
def admit_by_queue(
    view: RuleView, decision: RuleDecision, memory: RuleMemory, need: int, below: bool
) -> None:
    """Admit up to the first threshold of each queue in queue order while they fit, queue by queue.

    With ``below``, queues that have not reached their threshold take part as well.
    """
    state, queues, heads = memory.state, int(memory.params[NUM_QUEUES]), queues_at(memory)
    for q in range(queues):
        if not below and not reached(memory, q):
            continue
        i = state[heads + q]
        for _ in range(state[IN_FORCE + first_of(memory, q)]):
            if i == UNKNOWN:
                break
            need += need_of(view, view.requests[i])
            if need > view.problem.kv_capacity or not has_place(view, decision):
                return
            admit(decision, i)
            i = state[heads + 4 * queues + i]


@jit
def fade_counts(view: RuleView, memory: RuleMemory) -> None:
    """Let the counts of arrivals fade to the present moment, before new ones join."""
    params, reals = memory.params, memory.reals
    faded = math.exp(-(view.worker.clock - reals[COUNTED]) / params[ADJUST])
    reals[COUNTED] = view.worker.clock
    for q in range(int(params[NUM_QUEUES])):
        reals[COUNTS + q] *= faded


@jit
def adjust_thresholds(view: RuleView, memory: RuleMemory) -> None:
    """Solve the paper's condition again, from time to time, for the rates that the counts estimate.

    The search rises from the least thresholds there are. What is kept is the solution, or, where that has a full
    batch beyond the memory or none exists, the last thresholds on the way with a full batch that fits.
    """
    params, state, reals = memory.params, memory.state, memory.reals
    if view.worker.clock < reals[SOLVED]:
        return
    m, queues = int(params[NUM_THRESHOLDS]), int(params[NUM_QUEUES])
    reals[SOLVED] = view.worker.clock + params[ADJUST] / 16
    for k in range(m):
        state[IN_FORCE + k] = 1
    for _ in range(_ROUNDS):
        at = COUNTS + queues
        seconds = full_batch(view, memory, m)
        if seconds < 0:
            for k in range(m):
                state[IN_FORCE + k] = int(reals[at + k])
            return
        changed = False
        for q in range(queues):
            share = (1 + params[SLACK]) * reals[COUNTS + q] / params[ADJUST] * seconds
            wanted = 0.0
            for k in range(first_of(memory, q), first_of(memory, q + 1)):
                before, p = wanted, params[THRESHOLDS + (1 + _SUMS) * m + k]
                if k > first_of(memory, q):
                    least = math.floor(p * before * (1 + _ROUNDING)) + 1
                    with_slack = math.floor((1 + params[SLACK]) * p * before * (1 + _ROUNDING)) + 1
                    wanted = max(least, min(with_slack, before))
                elif params[STRICT] == 1.0:
                    wanted = math.floor(share * (1 + _ROUNDING)) + 1
                else:
                    wanted = max(1.0, math.ceil(share * (1 - _ROUNDING)))
                reals[at + k] = state[IN_FORCE + k]
                changed |= wanted != reals[at + k]
                state[IN_FORCE + k] = int(wanted)
        if not changed:
            return


@jit
def full_batch(view: RuleView, memory: RuleMemory, m: int) -> float:
    """Return the seconds of a batch that is full at the thresholds in force; -1 if the memory does not hold it."""
    params, load = memory.params, view.load
    prefills = tokens = squares = decodes = context = 0.0
    smallest = True
    for k in range(m):
        n, at = memory.state[IN_FORCE + k], THRESHOLDS + m + _SUMS * k
        smallest = smallest and n == 1
        prefills += n * params[at]
        tokens += n * params[at + 1]
        squares += n * params[at + 2]
        decodes += n * params[at + 3]
        context += n * params[at + 4]
    if tokens + decodes + context > view.problem.kv_capacity and not smallest:
        return -1.0
    load.num_prefills = math.ceil(prefills * (1 - _ROUNDING))
    load.prefill_tokens = math.ceil(tokens * (1 - _ROUNDING))
    load.prefill_squares = math.ceil(squares * (1 - _ROUNDING))
    load.num_decodes = math.ceil(decodes * (1 - _ROUNDING))
    load.decode_context = math.ceil(context * (1 - _ROUNDING))
    load.prefill_context = load.prefill_products = 0
    seconds: Any = view.batch_time(load, view.batch_params)
    return float(seconds)
