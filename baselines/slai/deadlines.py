"""The decodes of SLAI: last schedulable times, critical decodes, and which decodes run."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kvgym.kernels import (
    UNKNOWN,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    follow_slots,
    jit,
    jit_inline,
    named_numbers,
    needs_block,
    ranked_keep,
)


class Rules(NamedTuple):
    """Parameters of ``slai``."""

    shortest_first: bool  # whether the shortest prefill goes first
    paying_first: bool  # whether requests of higher priority go first
    offset: float  # safety margin, average batch times
    low_offset: float  # the same while less than ``high_memory`` is in use
    high_memory: int  # tokens
    token_budget: int  # maximum tokens per batch
    max_active: int  # maximum number of active requests
    max_decodes: int  # maximum number of decodes per batch
    limit: int  # memory that admission may fill, tokens


rules = named_numbers(Rules)

# Layout of the state array: start of the heap and of the four lists; how many requests have joined the queue at its
# front and at its back; ranks by request id; the heap of waiting requests; slots of critical decodes, slots of the
# others, scratch space for such a list; and the request last seen in each slot. The real numbers are a deadline and a
# TBT objective per slot.
WAITING_AT, CRITICAL_AT, OTHERS_AT, ROOM_AT, FOLLOWED_AT, FRONT, BACK, RANKS = range(8)


@jit
def put(state: Any, at: int, k: int) -> None:
    """Append slot ``k`` to the list that begins at ``state[at]``."""
    state[at] += 1
    state[at + state[at]] = k


@jit_inline
def find_deadlines(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> int:
    """Write the last schedulable time (8) of every decode to ``reals``, list the decodes, and plan no tokens.

    Returns:
        The number of critical decodes.
    """
    w, p, state, deadlines = view.worker, rules(memory.params), memory.state, memory.reals
    offset = p.low_offset if w.kv_allocated < p.high_memory else p.offset
    margin = offset * (w.busy_time / w.iteration) if w.iteration > 0 else 0.0
    objectives, critical, others = deadlines.shape[0] // 2, state[CRITICAL_AT], state[OTHERS_AT]
    for k in range(follow_slots(view, state, state[FOLLOWED_AT], deadlines, objectives), w.num_active):
        deadlines[objectives + k] = view.requests[view.active[k].request_id].tbt_slo
    num_critical = num_others = 0
    decision.record.explicit = 1
    for k in range(w.num_active):
        slot = view.active[k]
        slot.planned = 0
        if slot.num_prefill_left > 0:
            continue
        last = slot.last_token_time
        deadlines[k] = -np.inf if math.isnan(last) else last + deadlines[objectives + k] - margin
        late = deadlines[k] <= w.clock
        # Both lists get the slot, and one of them keeps it: nothing to be predicted wrongly.
        state[critical + 1 + num_critical] = state[others + 1 + num_others] = k
        num_critical += late
        num_others += not late
    state[critical], state[others] = num_critical, num_others
    return num_critical


@jit_inline
def count_full(view: PolicyView, memory: PolicyMemory, decoding: int, critical: int) -> tuple[int, int]:
    """Return how many of all decodes, and of the critical ones, need a new block for their next token."""
    if view.problem.block_size == 1:
        return decoding, critical
    full = full_of(view, memory.state, memory.state[CRITICAL_AT])
    return full + full_of(view, memory.state, memory.state[OTHERS_AT]), full


@jit_inline
def full_of(view: PolicyView, state: Any, at: int) -> int:
    """Return how many decodes of a list need a new block for their next token."""
    if view.problem.block_size == 1:
        return int(state[at])
    full = 0
    for j in range(at + 1, at + 1 + state[at]):
        full += needs_block(view, view.active[state[j]])
    return full


@jit_inline
def copy_decodes(view: PolicyView, state: Any, at: int, to: int, full: bool) -> None:
    """Append to list ``to`` the decodes of list ``at`` that need a new block (``full``), or those that do not."""
    for j in range(at + 1, at + 1 + state[at]):
        if needs_block(view, view.active[state[j]]) == full:
            put(state, to, state[j])


@jit_inline
def run_decodes(
    view: PolicyView, memory: PolicyMemory, at: int, keep: int, limit: int, free: int
) -> tuple[int, int]:
    """Run up to ``limit`` decodes of a list, in order of last schedulable time; the list is consumed.

    Decodes that need a new block are limited to the ``free`` memory: the first of them run as long as it has blocks,
    and the rest are skipped. Slots from ``keep`` on are evicted.

    Returns:
        The number of decodes that run, and the memory that they add.
    """
    state, deadlines, block_size = memory.state, memory.reals, view.problem.block_size
    if limit == 0:
        return 0, 0
    while state[at] > 0 and state[at + state[at]] >= keep:
        state[at] -= 1
    count, full, blocks = state[at], full_of(view, state, at), free // block_size
    most = min(count, limit, count - full + min(full, blocks))
    if count > most:
        room = at
        if block_size > 1:
            room = state[ROOM_AT]
            state[room] = 0
            copy_decodes(view, state, at, room, True)
            ranked_keep(state, room, deadlines, 0, min(full, blocks))
            copy_decodes(view, state, at, room, False)
        ranked_keep(state, room, deadlines, 0, most)
        full, at = full_of(view, state, room), room
    for j in range(at + 1, at + 1 + most):
        view.active[state[j]].planned = UNKNOWN
    return most, full * block_size
