"""One iteration of a worker: check the decision, apply it, run the batch or wait.

The engine owns queue, memory and clock. Its functions take one :class:`~kvgym.simulator.boundary.Run`, a named
tuple of tables, which costs nothing when compiled; helpers take only the tables they use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.compiling.kernel import jit_inline
from kvgym.simulator.apply_decision import (
    activate,
    apply_evictions,
    check_decision,
    holds_finished,
)
from kvgym.simulator.batch import finish_batch, propose_drafts, start_batch
from kvgym.simulator.blocks import full_tokens
from kvgym.simulator.boundary import Run, advance_clock, cache_of, has_cache, has_tier, next_arrival_time
from kvgym.simulator.in_order import (
    end_batch_before_idle,
    end_last_batch,
    grow_in_order,
    hold_finished,
    take_back,
    take_in_order,
)
from kvgym.simulator.prefix.pins import make_room
from kvgym.simulator.prefix.tier_hook import see_arrivals
from kvgym.simulator.tables import (
    BUSY,
    DEADLOCK,
    OK,
    READY,
    RUN,
    SLEEPING,
    UNKNOWN,
    WAIT,
)
from kvgym.simulator.tiers.hook import end_uses, next_transfer, stays_apart, submit_loads


@jit_inline
def begin(run: Run, batch_time: Any, batch_params: Any) -> int:
    """Check and apply the decision, then start the batch or the wait; clears the event lists of the last step."""
    w, d, ahead = run.w, run.decision, holds_finished(run)
    if ahead:
        hold_finished(run)
    status = check_decision(run)
    if status != OK:
        if ahead:
            take_back(run)
        return status
    w.num_queued = w.num_left = 0
    w.decisions += 1
    in_order, growth = has_cache(run) and run.problem.prefix_in_order == 1, 0
    if in_order:
        growth = grow_in_order(run)
    elif d.num_evict > 0:
        apply_evictions(run)
    if d.num_evict > 0:
        d.front = 0
    for j in range(d.num_admit):
        if stays_apart(run, run.admit[j], growth):
            continue
        activate(run, run.admit[j], run.admit_tokens[j] if d.explicit == 1 else UNKNOWN)
        if in_order:
            slot = run.active[w.num_active - 1]
            slot.planned = min(slot.planned, full_tokens(slot.num_prefill_left))  # its hit may have grown
            growth = take_in_order(run, w.num_active - 1, growth)
    if has_cache(run):
        make_room(cache_of(run), run.requests, run.problem, w, w.kv_allocated + growth)
    if ahead:
        end_last_batch(run)
        run.pool.ahead = 1
    submit_loads(run)
    w.num_finished = 0
    w.total_admitted += d.num_admit
    w.total_put_back += d.num_put_back
    w.total_overflows += 1 if d.num_evict + d.num_put_back > 0 else 0
    transfer = next_transfer(run)
    if d.act == RUN and (w.num_active > 0 or transfer == np.inf):
        w.total_idle += 1 if w.num_active == 0 else 0
        return start_batch(run, batch_time, batch_params)
    for k in range(w.num_active):
        run.active[k].planned = UNKNOWN
    until = d.wait_until if d.act == WAIT else np.inf
    w.phase, w.until = SLEEPING, min(until, transfer, run.problem.horizon)
    return OK


@jit_inline
def carry_out(run: Run, batch_time: Any, batch_params: Any) -> int:
    """Execute the decision of a single worker: run the batch, or wait."""
    status = begin(run, batch_time, batch_params)
    if status != OK:
        return status
    w = run.w
    if w.phase == BUSY:
        finish_batch(run)
        propose_drafts(run, batch_time, batch_params)
    else:
        until = min(w.until, next_arrival_time(run.problem, run.tracker, run.workload))
        if until == np.inf:
            return DEADLOCK
        w.phase = READY
        advance_clock(w, until)
    return OK


@jit_inline
def clear_decision(run: Run) -> None:
    """Reset the decision: run all active requests and admit none."""
    if has_cache(run):
        run.pool.stamp += 1
        run.w.batch_hits = 0
        if has_tier(run):
            see_arrivals(run.tier, run.w.clock)
        if run.pool.ahead == 1 and run.w.clock != run.w.last_batch_end:
            end_batch_before_idle(run)
    end_uses(run)
    d = run.decision
    d.act, d.explicit, d.num_admit, d.num_evict, d.num_put_back = RUN, 0, 0, 0, 0
    d.wait_until = np.inf
    d.ahead = 0
