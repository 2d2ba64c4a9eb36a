"""Decisions that take effect in order: with ``prefix_cache="scheduled"``, and one batch ahead.

Running requests take their memory and enter units into the map one after the other, then those that start. A decision
may have been made while the last batch ran, as engines with asynchronous scheduling make them. Requests that finished
with that batch then still hold their memory in it, and can be preempted like others; their last units, and those of
paused requests, enter the map after it.
"""

from __future__ import annotations

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.simulator.apply_decision import (
    close_evicted,
    give_units,
    growth_in,
    release,
    tokens_of,
)
from kvgym.simulator.blocks import (
    allocated,
    finished_tokens,
    kv_growth,
    planned_tokens,
    with_known,
    with_kv,
)
from kvgym.simulator.boundary import Run, cache_of
from kvgym.simulator.prefix.cache import hold_left, share_up_to
from kvgym.simulator.prefix.pins import begin_pin, end_pin, make_room
from kvgym.simulator.tables import ACTIVE, EVICTING, UNKNOWN

_TAKEN = -2
"""Marks a victim that has taken memory: it has this instead of its planned tokens, less their number."""


@jit
def count_finished(run: Run, i: int, sign: int) -> None:
    """Add (sign 1) or subtract (sign -1) the memory of a finished request, which takes no further block."""
    tokens = finished_tokens(run.problem, run.requests[i])
    run.w.kv_tokens += sign * tokens
    run.w.kv_allocated += sign * allocated(run.problem, tokens)


@jit
def hold_finished(run: Run) -> None:
    """Let the requests that have just finished hold their memory again."""
    p, w = run.problem, run.w
    for j in range(w.num_finished):
        i = run.finished[j]
        count_finished(run, i, 1)
        shared = hold_left(cache_of(run), i) * p.prefix_unit
        w.kv_allocated -= shared
        w.kv_shared += shared
        w.kv_cached = run.pool.num_cached * p.prefix_unit


@jit
def let_go(run: Run, i: int) -> None:
    """End what :func:`hold_finished` has begun for one of them; its pin has the units that it has entered since."""
    c, until = cache_of(run), run.prefix[i].deadline
    count_finished(run, i, -1)
    if until > 0.0:
        end_pin(c, i)
    give_units(run, i)
    if until > 0.0:
        begin_pin(c, i, until)


@jit
def take_back(run: Run) -> None:
    """End what :func:`hold_finished` has begun, because the decision is refused."""
    for j in range(run.w.num_finished):
        let_go(run, run.finished[j])


@jit
def enter_rest(run: Run, i: int, kv: int) -> None:
    """Enter the units of request ``i`` into the map that its ``kv`` KV tokens fill."""
    known = with_kv(run.problem, 0, kv, 0)
    share_up_to(cache_of(run), run.requests, run.problem.prefix_unit, i, known, run.w.clock)


@jit
def end_last_batch(run: Run) -> None:
    """After a decision made ahead: finished requests give up their memory; what was not known yet enters the map."""
    w, d = run.w, run.decision
    for j in range(w.num_finished):
        i = run.finished[j]
        if run.prefix[i].place == UNKNOWN:
            enter_rest(run, i, finished_tokens(run.problem, run.requests[i]))
            let_go(run, i)
    for k in range(w.num_active):
        slot = run.active[k]
        if slot.num_prefill_left == 0 and planned_tokens(d, slot.planned, 0) == 0:
            enter_rest(run, slot.request_id, slot.num_kv_tokens)


@jit
def end_batch_before_idle(run: Run) -> None:
    """Before a decision that was not made ahead, as no batch ran: enter the last units of finished requests."""
    run.pool.ahead = 0
    hold_finished(run)
    for j in range(run.w.num_finished):
        run.prefix[run.finished[j]].place = UNKNOWN
    end_last_batch(run)


@jit_inline
def release_next(run: Run, gone: int, late: int) -> tuple[int, int]:
    """Let the next victim of the decision give up its memory, after ``gone`` others, of which ``late`` had finished.

    Returns:
        1 if it had finished with the last batch, else 0; and the memory that it had taken for its next tokens, tokens.
    """
    for j in range(run.w.num_finished if run.decision.ahead == 1 else 0):
        if run.prefix[run.finished[j]].place == gone:
            let_go(run, run.finished[j])
            return 1, 0
    k = run.evict[gone - late]
    slot = run.active[k]
    taken = kv_growth(run.problem, slot, _TAKEN - slot.planned) if slot.planned <= _TAKEN else 0
    release(run, k)
    return 0, taken


@jit_inline
def num_victims(run: Run) -> int:
    """Return how many requests the decision preempts, those included that had finished with the last batch."""
    count = run.decision.num_evict
    for j in range(run.w.num_finished if run.decision.ahead == 1 else 0):
        count += 1 if run.prefix[run.finished[j]].place != UNKNOWN else 0
    return int(count)


@jit
def take_in_order(run: Run, k: int, growth: int) -> int:
    """Let the request in slot ``k`` take the memory of its next tokens, and enter the units that they fill.

    Args:
        run: the tables.
        k: the slot.
        growth: memory that requests before it have taken in this way, tokens; in use, but not counted yet.

    Returns:
        The memory taken so far, tokens.
    """
    p, w, slot = run.problem, run.w, run.active[k]
    growth += growth_in(run, k, tokens_of(run, k))
    make_room(cache_of(run), run.requests, p, w, w.kv_allocated + growth)
    filled = with_known(p, run.decision, w, slot)
    share_up_to(cache_of(run), run.requests, p.prefix_unit, slot.request_id, filled, w.clock)
    return growth


@jit
def grow_in_order(run: Run) -> int:
    """Let the running requests take the memory of their next tokens, and evict when it is short.

    In a decision made ahead, tokens of a victim are those that it was given before it was preempted: their units stay
    in the cache, as in engines.

    Returns:
        The memory taken, tokens; in use, but counted only when the batch ends.
    """
    d, w, p, growth, gone, late = run.decision, run.w, run.problem, 0, 0, 0
    victims = num_victims(run)
    for k in range(w.num_active):
        slot, status = run.active[k], run.requests[run.active[k].request_id].status
        first = (
            status == EVICTING and d.ahead == 1 and planned_tokens(d, slot.planned, slot.num_prefill_left) > 0
        )
        if status != ACTIVE and not first:
            continue
        more = growth_in(run, k, tokens_of(run, k))
        while gone < victims and w.kv_allocated + growth + more > p.kv_capacity:
            was, taken = release_next(run, gone, late)
            late += was
            growth -= taken
            gone += 1
        if first and run.requests[slot.request_id].status != EVICTING:
            continue
        growth = take_in_order(run, k, growth)
        if first:
            slot.planned = _TAKEN - planned_tokens(d, slot.planned, slot.num_prefill_left)
    while gone < victims:
        was, taken = release_next(run, gone, late)
        late += was
        growth -= taken
        gone += 1
    close_evicted(run)
    return growth
