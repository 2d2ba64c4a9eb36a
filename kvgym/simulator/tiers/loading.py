"""Asynchronous loads: a request waits with the memory for its load while others run.

A request that starts and finds units below takes the memory for its hit and its load, holds both, and stays in the
queue, at its front, until the load has ended; then it starts with what it has. A start that finds a unit which is being
written or loaded for another request comes to nothing: the request waits, and holds nothing. So it is where the load
does not fit beside what all prefills and loads under way still need. Every policy may start such requests again and
again; those that know of loads (:mod:`kvgym.simulator.kernels.loads`) give them no tokens.

To the prefix cache, a request that loads is like one that runs: it holds its units, which are in the map at once; a
time says when they can be read. Its memory is in ``kv_allocated``, and taken from ``kv_shared``, because no active
request has it. If nothing runs and nothing is under way, but what waiting requests have loaded keeps others from
starting, they give it up, and it stays in the cache. What starts next loads as with ``load = "wait"``, since no other
request is there to run meanwhile. So no policy can block a run.

Source: as for :mod:`kvgym.simulator.tiers.kernel`, and the scheduler (``vllm/v1/core/sched/scheduler.py``).
"""

from __future__ import annotations

import numpy as np

from kvgym.compiling.kernel import jit
from kvgym.simulator.blocks import allocated, planned_tokens, written_tokens
from kvgym.simulator.boundary import Run, cache_of, list_queued
from kvgym.simulator.prefix.cache import (
    count_hit,
    find_hit,
    forget_hit,
    give_up,
    hold_hit,
    list_waiting,
    set_hit,
    share_up_to,
)
from kvgym.simulator.prefix.pins import end_pin_found_by, make_room
from kvgym.simulator.prefix.plan import last_is_below, planned_unit
from kvgym.simulator.prefix.tier_hook import LOADS, RUNS, WAITS
from kvgym.simulator.queue import queue_insert, queue_remove
from kvgym.simulator.tables import (
    ACTIVE,
    ENDS,
    FINISHED,
    REQUEUE_FRONT,
    RUN,
    UNKNOWN,
)
from kvgym.simulator.tiers.store import begin_use, rank_of, use


@jit
def kind_of_start(run: Run, i: int, found: int) -> int:
    """Return what the start of request ``i`` comes to under the plan, in which it finds ``found`` units.

    Units that it would load are marked: later starts of the decision that find them wait.
    """
    p, t, c, clock = run.prefix[i], run.tiered[i], cache_of(run), run.w.clock
    t.kind, t.wake, first = RUNS, np.inf, found
    if run.tier.together == 1:
        return RUNS
    if p.kept > 0:
        if t.loaded_at > clock:
            t.kind, t.wake = WAITS, t.loaded_at
        return int(t.kind)
    for j in range(found):
        content = run.chain[p.chain + j]
        b, above = run.stored[content], planned_unit(c, content)
        entered = above == UNKNOWN and run.contents[content].stamp == np.int32(run.pool.stamp)
        if first == found and (j >= p.most or (above == UNKNOWN and not entered)):
            first = j
        until = -np.inf
        if j >= first:
            until = max(b.loaded_at, b.ready_at)
        elif above == b.loads and not entered:
            until = b.loaded_at
        if until > clock or (j >= first and b.decision == run.pool.stamp):
            t.kind = WAITS
            t.wake = min(t.wake, until) if until > clock else t.wake
    if t.kind == RUNS and first < found:
        t.kind = LOADS
        for j in range(first, found):
            run.stored[run.chain[p.chain + j]].decision = run.pool.stamp
    return int(t.kind)


# ------------------------------------------------------------ memory


@jit
def rest_of(run: Run, i: int) -> int:
    """Return the memory that request ``i``, which holds units while it waits, still needs for its prefill, tokens."""
    p, r = run.problem, run.requests[i]
    whole = r.num_kv_tokens + written_tokens(p, r.num_prefill_left, r.num_prefill_left)
    return int(allocated(p, whole) - run.prefix[i].kept * p.prefix_unit)


@jit
def reserve(run: Run) -> int:
    """Return the memory that prefills and loads under way need beyond what they have after the next batch, tokens."""
    p, w, need = run.problem, run.w, 0
    for k in range(w.num_active if w.num_prefilling > 0 else 0):
        slot = run.active[k]
        left = slot.num_prefill_left
        if left > 0 and run.requests[slot.request_id].status == ACTIVE:
            need += allocated(p, slot.num_kv_tokens + written_tokens(p, left, left))
            need -= allocated(
                p,
                slot.num_kv_tokens
                + written_tokens(p, left, max(planned_tokens(run.decision, slot.planned, left), 0)),
            )
    i, seen = w.queue_head, 0
    while seen < run.tier.num_kept:
        if run.prefix[i].kept > 0:
            need += rest_of(run, i)
            seen += 1
        i = run.requests[i].queue_next
    return int(need)


@jit
def count_kept(run: Run, units: int) -> None:
    """Count units that no active request holds as memory in use."""
    tokens = units * run.problem.prefix_unit
    run.w.kv_allocated += tokens
    run.w.kv_shared -= tokens


# ------------------------------------------------------------ the life of a load


@jit
def to_front(run: Run, i: int) -> None:
    """Move the waiting request ``i`` to the front of the queue, behind those that hold units."""
    w, requests = run.w, run.requests
    queue_remove(w, requests, i)
    before = w.queue_head
    while before != UNKNOWN and run.prefix[before].kept > 0:
        before = requests[before].queue_next
    queue_insert(w, requests, i, before)


@jit
def fence_hit(run: Run, i: int) -> None:
    """Let the next batch wait for writes from the units that request ``i`` holds by requests that have finished.

    That is not needed, since both only read them, but the engine does it for all memory that a start takes.
    """
    tier, p = run.tier, run.prefix[i]
    for j in range(p.num_units if tier.asynchronous == 1 else 0):
        content = run.chain[p.chain + j]
        b = run.below[content]
        if b.source == run.held[p.held + j] and run.requests[run.stored[content].writer].status == FINISHED:
            tier.fence = max(tier.fence, b.safe_at)


@jit
def begin_load(run: Run, i: int, growth: int) -> bool:
    """Let request ``i`` take the memory for its hit and its load; False if it does not fit, or has to wait.

    Args:
        run: the tables.
        i: the request, which waits.
        growth: memory in use that is not counted yet, tokens.
    """
    w, p, t, r, unit = run.w, run.prefix[i], run.tiered[i], run.requests[i], run.problem.prefix_unit
    c = cache_of(run)
    found = p.num_units + (1 if last_is_below(c, unit, r, i, p.num_units) else 0)
    hit = cached = 0
    for j in range(found):
        content = run.chain[p.chain + j]
        b, above = run.stored[content], run.contents[content].unit
        if j == hit and j < p.most and above != UNKNOWN:
            hit += 1
            cached += 1 if run.units[above].holders == 0 else 0
            if above == b.loads and b.loaded_at > w.clock:
                return False
        elif max(b.ready_at, b.loaded_at) > w.clock:
            return False
    need = (found - hit + cached) * unit + reserve(run)
    if hit == found or w.kv_allocated + growth + need > run.problem.kv_capacity:
        return False
    shared = hold_hit(c, i)
    count_kept(run, hit - shared)
    end_pin_found_by(c, i)
    fence_hit(run, i)
    in_use = w.kv_allocated + growth + (found - hit) * unit
    make_room(c, run.requests, run.problem, w, in_use)
    share_up_to(c, run.requests, unit, i, found * unit, w.clock)
    count_kept(run, found - hit)
    known = r.num_kv_tokens + r.num_prefill_left
    r.num_kv_tokens = min(found * unit, known - 1)
    r.num_prefill_left = known - r.num_kv_tokens
    count_hit(c, i, 0, found)
    p.most = found
    list_waiting(c, ENDS, p.chain + found - 1, i)
    to_front(run, i)
    p.kept, p.place = found, run.tier.num_begun
    run.tier.num_begun += 1
    run.tier.num_kept += 1
    begin_use(run, i)
    t.first = hit if t.used == 0 else min(t.first, hit)
    t.used, t.offered = max(t.used, found), found
    t.loaded, t.loaded_at = found - hit, np.inf
    rank = rank_of(run, i)
    for j in range(hit, found):
        content = run.chain[p.chain + j]
        use(run, content, rank)
        run.stored[content].loaded_at, run.stored[content].loads = np.inf, run.held[p.held + j]
    return True


@jit
def set_apart(run: Run, i: int, growth: int) -> int:
    """Return 1 if the start of request ``i`` comes to nothing but perhaps a load, which begins; else 0."""
    t = run.tiered[i]
    if t.kind == RUNS:
        return 0
    if t.kind == LOADS and not begin_load(run, i, growth):
        t.kind = WAITS
    list_queued(run.w, run.requests, run.queued, i)
    return 1


@jit
def submit_loads(run: Run) -> None:
    """Submit the loads of the decision, behind the writes from memory that it takes.

    What it has not started leaves its list of starts, and ``wake`` is set.
    """
    w, d, tier, count = run.w, run.decision, run.tier, 0
    base = max(w.clock, tier.fence)
    tier.wake = np.inf
    for k in range(d.num_admit):
        i = run.admit[k]
        t, p = run.tiered[i], run.prefix[i]
        if t.kind == RUNS:
            run.admit[count], run.admit_tokens[count] = i, run.admit_tokens[k]
            count += 1
        elif t.kind == WAITS:
            tier.wake = min(tier.wake, t.wake)
        else:
            begin = max(base, tier.up_free)
            end = begin + (tier.latency + t.loaded * tier.load_time)
            for j in range(p.kept - t.loaded, p.kept):
                b = run.stored[run.chain[p.chain + j]]
                b.loaded_at = end
                b.busy_until = max(b.busy_until, end)
            t.loaded_at = tier.up_free = end
            tier.wake = min(tier.wake, end)  # it may be there at once
            tier.up_time += end - begin
            tier.total_loads += 1
            tier.total_loaded += t.loaded
            tier.wait_time += end - w.clock
            if run.requests[i].num_admissions == 0:
                tier.total_first += t.loaded
    d.num_admit = count
    i, seen = w.queue_head, 0
    while seen < tier.num_kept:
        if run.prefix[i].kept > 0:
            if run.tiered[i].loaded_at > w.clock:
                tier.wake = min(tier.wake, run.tiered[i].loaded_at)
            seen += 1
        i = run.requests[i].queue_next
    later = d.act == RUN or d.wait_until > w.clock
    if later and w.num_active == 0 and tier.num_kept > 0 and (d.num_evict > 0 or tier.wake == np.inf):
        if d.num_evict == 0:
            release_all(run)
        tier.wake = base  # decide again
    if later and w.num_active == 0:  # no batch waits for these writes
        tier.stall_time += base - w.clock
        tier.fence = -1.0


@jit
def end_load(run: Run, i: int) -> int:
    """Let request ``i`` start with the units that it holds; return how many of them it has loaded."""
    p, t = run.prefix[i], run.tiered[i]
    loaded, t.loaded, p.kept = t.loaded, 0, 0
    run.tier.num_kept -= 1
    return int(loaded)


@jit
def release(run: Run, i: int) -> None:
    """Let the waiting request ``i`` give up the units that it holds; it finds them as long as they are there."""
    w, p, r, unit, c = run.w, run.prefix[i], run.requests[i], run.problem.prefix_unit, cache_of(run)
    if p.kept == 0:
        return
    kept = p.kept
    forget_hit(c, i)
    count_hit(c, i, kept, 0)
    shared = give_up(c, i)
    count_kept(run, shared - kept)
    w.kv_cached = run.pool.num_cached * unit
    end_load(run, i)
    known = r.num_kv_tokens + r.num_prefill_left
    r.num_kv_tokens, r.num_prefill_left = 0, known
    p.most = min((known - 1) // unit, p.length)
    set_hit(c, run.requests, unit, i, find_hit(c, i, 0))


@jit
def release_all(run: Run) -> None:
    """Let all waiting requests give up the units that they hold; the next batch waits for its loads."""
    i, run.tier.together = run.w.queue_head, 1
    while run.tier.num_kept > 0:
        release(run, i)
        i = run.requests[i].queue_next


@jit
def requeue(run: Run, i: int) -> None:
    """Let request ``i``, which has been evicted, wait behind those that hold units; its last write ends before."""
    tier = run.tier
    tier.fence = max(tier.fence, run.tiered[i].stored_at)
    if run.problem.requeue == REQUEUE_FRONT and tier.num_kept > 0:
        to_front(run, i)


# ------------------------------------------------------------ with all loads


@jit
def load_whole(run: Run, i: int) -> int:
    """Show in the row of request ``i``, which starts, that it has all but its last token; 0 if it has not."""
    r, unit = run.requests[i], run.problem.prefix_unit
    if not last_is_below(cache_of(run), unit, r, i, run.prefix[i].num_units):
        return 0
    r.num_kv_tokens += unit - 1
    r.num_prefill_left -= unit - 1
    return 1


@jit
def note_ended(run: Run, i: int, until: float) -> None:
    """List request ``i``, which has finished: it is done with after the offers of the next batch, as in the engine.

    Its KV is kept to a time, see :func:`~kvgym.simulator.tiers.store.end_use`.
    """
    tier, t = run.tier, run.tiered[i]
    t.following, t.until = UNKNOWN, until
    if tier.first_ended == UNKNOWN:
        tier.first_ended = i
    else:
        run.tiered[tier.last_ended].following = i
    tier.last_ended = i
