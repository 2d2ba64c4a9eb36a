"""The decodes of SLAI: their last schedulable times, which of them are critical, and which of them run."""

from __future__ import annotations

import math

import numpy as np

from kvgym.kernels import (
    UNKNOWN,
    RuleMemory,
    RuleView,
    follow_slots,
    jit,
    jit_inline,
    needs_block,
    ranked_keep,
)

# Layout of the parameters.
SHORTEST, PAYING, OFFSET, LOW_OFFSET, HIGH_MEMORY, BUDGET, MAX_ACTIVE, MAX_DECODES, LIMIT = range(9)

# Layout of the state array: where the heap and the two lists begin, how many requests have joined the queue in front of
# those that wait and behind them, then ranks by request id, the heap of waiting requests, a list of slots, and who was
# in which slot. The real numbers are a deadline and a TBT objective per slot.
WAITING_AT, SLOTS_AT, FOLLOWED_AT, FRONT, BACK, RANKS = range(6)


@jit_inline
def find_deadlines(view: RuleView, memory: RuleMemory) -> int:
    """Write the last schedulable time (8) of every decode to ``reals``; returns how many are critical."""
    w, params, deadlines = view.worker, memory.params, memory.reals
    offset = params[LOW_OFFSET] if w.kv_allocated < params[HIGH_MEMORY] else params[OFFSET]
    margin = offset * (w.busy_time / w.iteration) if w.iteration > 0 else 0.0
    objectives, critical = deadlines.shape[0] // 2, 0
    for k in range(
        follow_slots(view, memory.state, memory.state[FOLLOWED_AT], deadlines, objectives), w.num_active
    ):
        deadlines[objectives + k] = view.requests[view.active[k].request_id].tbt_slo
    for k in range(w.num_active):
        slot = view.active[k]
        if slot.num_prefill_left > 0:
            continue
        deadlines[k] = -np.inf
        if not math.isnan(slot.last_token_time):
            deadlines[k] = slot.last_token_time + deadlines[objectives + k] - margin
        if deadlines[k] <= w.clock:
            critical += 1
    return critical


@jit_inline
def count_full(view: RuleView, memory: RuleMemory, decoding: int, critical: int) -> tuple[int, int]:
    """Return how many decodes, and how many critical ones, need a new block for their next token."""
    if view.problem.block_size == 1:
        return decoding, critical
    filled = full = 0
    for k in range(view.worker.num_active):
        if view.active[k].num_prefill_left == 0 and needs_block(view, view.active[k]):
            filled += 1
            if memory.reals[k] <= view.worker.clock:
                full += 1
    return filled, full


@jit
def list_decodes(view: RuleView, memory: RuleMemory, keep: int, critical: bool, filled: bool) -> None:
    """Add critical, or non-critical, decodes to the list of slots: if they need a new block, or if they do not."""
    state, at = memory.state, memory.state[SLOTS_AT]
    for k in range(keep):
        slot = view.active[k]
        if (
            slot.num_prefill_left == 0
            and (memory.reals[k] <= view.worker.clock) == critical
            and needs_block(view, slot) == filled
        ):
            slot.planned = 0
            state[at] += 1
            state[at + state[at]] = k


@jit_inline
def run_decodes(
    view: RuleView, memory: RuleMemory, keep: int, critical: bool, limit: int, free: int
) -> tuple[int, int]:
    """Run up to ``limit`` critical, or non-critical, decodes by last schedulable time.

    A decode that needs a new block where none is ``free`` is passed over: of those that need one, as many of the first
    stay in the running as there are free blocks.

    Returns:
        How many run, and the memory they gain.
    """
    active, state, deadlines, now = view.active, memory.state, memory.reals, view.worker.clock
    block_size, count, full = view.problem.block_size, 0, 0
    if limit == 0:
        return 0, 0
    for k in range(keep):
        if active[k].num_prefill_left == 0 and (deadlines[k] <= now) == critical:
            count += 1
            full += needs_block(view, active[k])
            active[k].planned = UNKNOWN
    blocks = free // block_size
    most = min(limit, count - full + min(full, blocks))
    if count <= most:
        return count, full * block_size
    at = state[SLOTS_AT]
    state[at] = 0
    list_decodes(view, memory, keep, critical, True)
    ranked_keep(state, at, deadlines, 0, min(full, blocks))
    list_decodes(view, memory, keep, critical, False)
    ranked_keep(state, at, deadlines, 0, most)
    full = 0
    for j in range(most):
        slot = active[state[at + 1 + j]]
        slot.planned = UNKNOWN
        full += needs_block(view, slot)
    return most, full * block_size
