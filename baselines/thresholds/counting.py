"""Kernel helpers of WAIT and Nested WAIT: queues, overflow, the drain rule, and adjusted thresholds.

Requests wait in queues, one for each class (WAIT) or group of prompt lengths (Nested WAIT). A queue has one
threshold, or one for each of its segments. Its length must reach the first of them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kvgym.kernels import (
    REQUEUE_ARRIVAL,
    REQUEUE_FRONT,
    UNKNOWN,
    WAIT,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit,
    all_stay,
    evict,
    has_place,
    held_by,
    jit,
    jit_inline,
    kept_by_others,
    named_numbers,
    need_of,
    taken_by,
    unlink,
)


class Shared(NamedTuple):
    """Parameters of both policies; the other ones follow, see below."""

    num_thresholds: int  # m
    drain: bool  # whether requests that reach no threshold are served in the end
    patience: float  # seconds before they are
    num_queues: int  # number of queues
    adjust: float  # seconds over which rates are estimated; 0 = fixed thresholds
    slack: float  # fraction by which computed thresholds exceed the arrivals
    strict: bool  # whether they must exceed them, not only reach them


shared = named_numbers(Shared)

# Layout of the other parameters: m initial thresholds; for each, the load that a request per stage adds to a full batch
# (five sums, kvgym.theory.groups.segment_loads); for each, the share of the previous threshold's requests that reaches
# it; for each queue the index of its first threshold, then m. The policy's own parameters follow (from `rest`).
THRESHOLDS = len(Shared._fields)
_SUMS = 5

# Layout of the state: whether the last decision was to wait; whether the drain rule is active; the base of the next
# count; the thresholds in force; heads, tails and lengths of the queues, and how far they run; for each request the
# next one in its queue.
HOLDING, DRAINING, NEXT_COUNT, IN_FORCE = range(4)

# Layout of the real numbers: when patience ends; when rates were last updated; when thresholds were last solved; for
# each queue a decaying count of arrivals; scratch space for thresholds.
UNTIL, COUNTED, SOLVED, COUNTS = range(4)

_ROUNDS = 200
"""Maximum number of steps of a search for adjusted thresholds; it then keeps its current result."""

_ROUNDING = 1e-12

_HIGHEST = 2**31 - 1
"""Highest value of a counter in the profile."""


@jit_inline
def queues_at(memory: PolicyMemory) -> int:
    """Return the index in the state of the heads of the queues."""
    return IN_FORCE + shared(memory.params).num_thresholds


@jit_inline
def length_of(memory: PolicyMemory, q: int) -> int:
    """Return the number of requests in queue ``q``."""
    return int(memory.state[queues_at(memory) + 2 * shared(memory.params).num_queues + q])


@jit_inline
def run_to(memory: PolicyMemory, q: int) -> int:
    """Return the index in the state of how far queue ``q`` runs.

    For WAIT this is the number of requests of the class that run at each stage; for Nested WAIT, the threshold up to
    which the group's segments run.
    """
    return queues_at(memory) + 3 * shared(memory.params).num_queues + q


@jit_inline
def first_of(memory: PolicyMemory, q: int) -> int:
    """Return the index of the first threshold of queue ``q``; m if ``q`` is the number of queues."""
    return int(memory.params[THRESHOLDS + (2 + _SUMS) * shared(memory.params).num_thresholds + q])


@jit_inline
def rest(memory: PolicyMemory) -> int:
    """Return the index of the policy's own parameters."""
    p = shared(memory.params)
    return THRESHOLDS + (2 + _SUMS) * p.num_thresholds + p.num_queues + 1


@jit_inline
def reached(memory: PolicyMemory, q: int) -> bool:
    """Return whether the length of queue ``q`` has reached its first threshold."""
    return length_of(memory, q) >= int(memory.state[IN_FORCE + first_of(memory, q)])


@jit
def num_stages(view: PolicyView) -> Any:
    """Return an upper bound, exclusive, of the stages that a request can reach."""
    return view.problem.kv_capacity + 2


@jit_inline
def begin_count(view: PolicyView, memory: PolicyMemory, counters: int) -> int:
    """Return the base from which the first ``counters`` numbers of the profile count active requests now.

    No counter exceeds the base, so counters need no reset to 0 between two counts.
    """
    state, base = memory.state, memory.state[NEXT_COUNT]
    if base > _HIGHEST - view.worker.num_active:
        memory.profile[:counters] = 0
        base = 0
    state[NEXT_COUNT] = base + view.worker.num_active
    return int(base)


@jit_inline
def counted(profile: Any, at: int, base: int, most: int) -> bool:
    """Count a request, unless ``most`` have been counted since the count began; return whether it was counted."""
    count = max(profile[at], base)
    if count - base >= most:
        return False
    profile[at] = count + 1
    return True


@jit
def evict_newest(view: PolicyView, decision: PolicyDecision, need: int, running: int) -> int:
    """Evict LIFO until the planned batch fits; return how many of the ``running`` requests remain."""
    k = view.worker.num_active - 1
    while need > view.problem.kv_capacity and k >= 0:
        slot = view.active[k]
        need += kept_by_others(view, slot)
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
def plan_all(view: PolicyView, decision: PolicyDecision) -> None:
    """Cancel a plan: all active requests run in full, and none is evicted or admitted."""
    d = decision.record
    if d.explicit == 1:
        for k in range(view.worker.num_active):
            view.active[k].planned = UNKNOWN
    d.explicit = d.num_admit = d.num_evict = 0
    all_stay(view)


@jit_inline
def start_batch(memory: PolicyMemory) -> None:
    """Record that a batch runs."""
    memory.state[HOLDING] = 0


@jit_inline
def stop_draining(memory: PolicyMemory) -> None:
    """End the drain rule and return to thresholds."""
    memory.state[DRAINING] = 0


@jit
def drain_or_wait(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> bool:
    """Return True if the drain rule applies now; else decide to wait for the next arrival."""
    w, state, reals = view.worker, memory.state, memory.reals
    if shared(memory.params).drain:
        if w.num_active == 0:
            state[DRAINING] = 0
        if state[HOLDING] == 0 or w.num_queued > 0:
            reals[UNTIL] = w.clock + shared(memory.params).patience
        if reals[UNTIL] <= w.clock:
            state[DRAINING] = 1
        if state[DRAINING] == 1:
            return True
        decision.record.wait_until = reals[UNTIL]
    decision.record.act = WAIT
    state[HOLDING] = 1
    return False


@jit_inline
def join_queue(view: PolicyView, memory: PolicyMemory, q: int, i: int) -> None:
    """Add request ``i`` to queue ``q`` in the order of the waiting queue; a new request counts as an arrival."""
    state, queues = memory.state, shared(memory.params).num_queues
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
    if shared(memory.params).adjust > 0 and r.num_evictions == 0:
        age = view.worker.clock - r.arrival_time
        memory.reals[COUNTS + q] += math.exp(-age / shared(memory.params).adjust)


@jit_inline
def leave_queue(memory: PolicyMemory, q: int) -> None:
    """Remove the first request from queue ``q``."""
    state, queues = memory.state, shared(memory.params).num_queues
    heads = queues_at(memory)
    state[heads + q] = state[heads + 4 * queues + state[heads + q]]
    if state[heads + q] == UNKNOWN:
        state[heads + queues + q] = UNKNOWN
    state[heads + 2 * queues + q] -= 1


@jit_inline
def forget_of_queue(memory: PolicyMemory, q: int, i: int) -> None:
    """Remove request ``i``, which a router has moved away, from queue ``q`` if it is there."""
    state, queues = memory.state, shared(memory.params).num_queues
    heads = queues_at(memory)
    if unlink(state, heads + q, heads + queues + q, heads + 4 * queues, i):
        state[heads + 2 * queues + q] -= 1


@jit_inline
def admit_by_queue(
    view: PolicyView, decision: PolicyDecision, memory: PolicyMemory, need: int, below: bool
) -> None:
    """Admit requests while they fit, queue by queue in queue order, up to each queue's first threshold.

    With ``below``, this includes queues that have not reached their threshold.
    """
    state, queues, heads = memory.state, shared(memory.params).num_queues, queues_at(memory)
    for q in range(queues):
        if not below and not reached(memory, q):
            continue
        i = state[heads + q]
        for _ in range(state[IN_FORCE + first_of(memory, q)]):
            if i == UNKNOWN:
                break
            need += taken_by(view, i)
            if need > view.problem.kv_capacity or not has_place(view, decision):
                return
            admit(decision, i)
            i = state[heads + 4 * queues + i]


@jit
def fade_counts(view: PolicyView, memory: PolicyMemory) -> None:
    """Decay the counts of arrivals to the present time, before new arrivals are added."""
    p, reals = shared(memory.params), memory.reals
    faded = math.exp(-(view.worker.clock - reals[COUNTED]) / p.adjust)
    reals[COUNTED] = view.worker.clock
    for q in range(p.num_queues):
        reals[COUNTS + q] *= faded


@jit
def adjust_thresholds(view: PolicyView, memory: PolicyMemory) -> None:
    """Solve the paper's condition again, at intervals, for the rates estimated from the counts.

    The search rises from the smallest possible thresholds. If there is no solution, or if its full batch exceeds the
    memory, it keeps the last thresholds on the way with a full batch that fits.
    """
    p, state, reals = shared(memory.params), memory.state, memory.reals
    if view.worker.clock < reals[SOLVED]:
        return
    m, queues = p.num_thresholds, p.num_queues
    reals[SOLVED] = view.worker.clock + p.adjust / 16
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
            share = (1 + p.slack) * reals[COUNTS + q] / p.adjust * seconds
            wanted = 0.0
            for k in range(first_of(memory, q), first_of(memory, q + 1)):
                before, part = wanted, memory.params[THRESHOLDS + (1 + _SUMS) * m + k]
                if k > first_of(memory, q):
                    least = math.floor(part * before * (1 + _ROUNDING)) + 1
                    with_slack = math.floor((1 + p.slack) * part * before * (1 + _ROUNDING)) + 1
                    wanted = max(least, min(with_slack, before))
                elif p.strict:
                    wanted = math.floor(share * (1 + _ROUNDING)) + 1
                else:
                    wanted = max(1.0, math.ceil(share * (1 - _ROUNDING)))
                reals[at + k] = state[IN_FORCE + k]
                changed |= wanted != reals[at + k]
                state[IN_FORCE + k] = int(wanted)
        if not changed:
            return


@jit
def full_batch(view: PolicyView, memory: PolicyMemory, m: int) -> float:
    """Return the duration of a full batch at the thresholds in force, s; -1 if it does not fit into the memory."""
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
