"""Writes to the memories below the GPU: what batches compute, what the GPU drops, and what requests leave."""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit
from kvgym.simulator.blocks import planned_tokens
from kvgym.simulator.boundary import Run
from kvgym.simulator.tables import UNKNOWN
from kvgym.simulator.tiers.rows import list_coming, run_with, store_of
from kvgym.simulator.tiers.store import end_use, keep, offer


@jit
def write_units(run: Run, i: int, first: int, last: int, now: float, begin: float) -> float:
    """Offer the units ``first`` … ``last - 1`` of request ``i`` now, and write what is lacking from a time on.

    Returns:
        When it has been written; -1 if nothing is, -2 if there is no room.
    """
    tier, place = run.tier, run.prefix[i].chain
    count = offer(run, i, first, last, now)
    if count == UNKNOWN:
        tier.total_refused += 1
        return -2.0
    if count == 0:
        return -1.0
    begin = max(begin, tier.down_free)
    done = begin + (tier.latency + count * tier.store_time)
    for j in range(first, last):
        b = run.stored[run.chain[place + j]]
        if b.written == store_of(run).offer:
            b.ready_at = b.busy_until = done
            if tier.sharers > 1:
                list_coming(run, tier, 0, run.chain[place + j])
    tier.down_time += done - begin
    tier.down_free = done
    tier.total_stored += count
    return float(done)


@jit
def pass_down(run: Run, content: int, begin: float, now: float) -> float:
    """Write a content that is dropped above from a time on, and on from there; return when it has been written.

    What is written while the link is busy is part of the transfer before. -1 if nothing is written.
    """
    tier = run.tier
    if not keep(run, content, now):
        return -1.0
    latency = tier.latency if tier.down_free <= begin else 0.0
    begin = max(begin, tier.down_free)
    done = begin + (latency + tier.store_time)
    b = run.stored[content]
    b.ready_at = b.busy_until = done
    if tier.sharers > 1:
        list_coming(run, tier, 0, content)
    tier.down_time += done - begin
    tier.down_free = done
    tier.total_stored += 1
    return float(done)


@jit
def write_back(run: Run, content: int) -> None:
    """Write a content that the GPU drops; the memory that it had is free when that has ended."""
    now = float(run.w.clock)
    done = pass_down(run, content, now, now)
    if done >= 0.0:
        run.below[content].safe_at = done
        if run.tier.lower_row != 0:
            end = pass_down(run_with(run.tier.lower_row), content, done, now)
            run.stored[content].busy_until = max(done, end)


@jit
def write_on(run: Run, lower: Run, i: int, first: int, last: int, now: float, done: float) -> None:
    """Write on what the last offer to the host has written there, of units ``first`` … ``last - 1``, from a time on."""
    place, number = run.prefix[i].chain, store_of(run).offer
    while run.stored[run.chain[place + first]].written != number:
        first += 1
    end = write_units(lower, i, first, last, now, done)
    for j in range(first, last):
        if end >= 0.0 and lower.stored[run.chain[place + j]].written == store_of(lower).offer:
            b = run.stored[run.chain[place + j]]
            b.busy_until = max(b.busy_until, end)


@jit
def count_use(run: Run, end: float) -> None:
    """Count what is in use to the end of a batch."""
    tier = store_of(run)
    tier.used_time += tier.used * max(0.0, end - tier.counted_until)
    tier.counted_until = max(end, tier.counted_until)


@jit
def write(run: Run, end: float) -> None:
    """Write the units that the batch completes, or that found no room before, one transfer for each request.

    Args:
        run: the tables.
        end: end of the batch, seconds.
    """
    tier, w = run.tier, run.w
    count_use(run, end)
    if tier.lower_row != 0:
        count_use(run_with(tier.lower_row), end)
    for k in range(0 if tier.back == 1 else w.num_active):
        slot = run.active[k]
        if planned_tokens(run.decision, slot.planned, slot.num_prefill_left) > 0:
            write_computed(run, slot.request_id, run.prefix[slot.request_id].num_units, w.clock, end)
    forget_ended(run, w.clock, end)
    tier.together = 0


@jit
def write_computed(run: Run, i: int, computed: int, now: float, begin: float) -> None:
    """Write the first ``computed`` units of request ``i`` from a time on, without those that it has offered before."""
    tier, p, t = run.tier, run.prefix[i], run.tiered[i]
    last: Any = computed
    if tier.outputs == 0:
        last = min(computed, run.requests[i].prompt_len // run.problem.prefix_unit)
    if t.offered >= last:
        return
    done = write_units(run, i, t.offered, last, now, begin)
    if done == -2.0:
        return
    if done >= 0.0:
        t.stored_at = done
        for j in range(t.offered, last):
            content = run.chain[p.chain + j]
            if run.stored[content].written == store_of(run).offer:
                run.below[content].safe_at, run.below[content].source = done, run.held[p.held + j]
                run.stored[content].writer = i
        if tier.lower_row != 0:
            write_on(run, run_with(tier.lower_row), i, t.offered, last, now, done)
    t.offered = last


@jit
def forget_ended(run: Run, now: float, begin: float) -> None:
    """Offer once more what requests that have finished were refused, and end their use."""
    tier = run.tier
    while tier.first_ended != UNKNOWN:
        i = tier.first_ended
        until, tier.first_ended = run.tiered[i].until, run.tiered[i].following
        write_computed(run, i, run.prefix[i].left, now, begin)
        end_use(run, i, until)


@jit
def forget(run: Run, i: int, until: float) -> None:
    """Let request ``i``, which has finished, use no memory any more; its KV is kept to a time."""
    end_use(run, i, until)
    if run.tier.lower_row != 0:
        end_use(run_with(run.tier.lower_row), i, until)
