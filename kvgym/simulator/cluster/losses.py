"""Requests that leave a cluster unfinished: with a worker that fails, or because their users give up.

These functions run as plain Python between two calls of the compiled loop
(:func:`kvgym.compiling.kernel.uncompiled`); they are rare.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.compiling.kernel import jit
from kvgym.simulator.apply_decision import detach, free_memory
from kvgym.simulator.batch import leave_batch
from kvgym.simulator.boundary import advance_clock, cache_of, depart, withdraw
from kvgym.simulator.cluster.knowledge import end_sent
from kvgym.simulator.cluster.lacking import leave_list
from kvgym.simulator.cluster.tables import Cluster, queued_of, run_of
from kvgym.simulator.cluster.transfers import end_transfer, plan
from kvgym.simulator.prefix.cache import lose_hit
from kvgym.simulator.queue import queue_remove
from kvgym.simulator.tables import ACTIVE, BUSY, READY, TRANSFERRING, UNKNOWN, WAITING


@jit
def leave_queue(c: Cluster, k: int, i: int) -> None:
    """Remove request ``i`` from the queue of worker ``k``."""
    queue_remove(c.workers[k], c.requests, i)
    if c.problems[k].prefix_unit > 0:
        lose_hit(cache_of(run_of(c, k)), c.requests, c.problems[k].prefix_unit, i)
    depart(c.workers[k], c.requests[i])


@jit
def leave_active(c: Cluster, k: int, i: int) -> None:
    """Remove request ``i`` from the active set of worker ``k``.

    A batch that runs ends at its time, but makes no token for it. Its memory counts as free from now on, though no
    request can start with it before the end of the batch.
    """
    w, run, slot = c.workers[k], run_of(c, k), 0
    if w.phase == BUSY:
        while run.active[slot].request_id != i:
            slot += 1
        if slot < run.decision.front:
            run.decision.front -= 1
    else:
        if w.clock < c.tracker.clock:
            advance_clock(w, c.tracker.clock)
        w.phase = READY  # even if it had decided to wait with this request
    leave_batch(run, i)
    depart(w, c.requests[i])


@jit
def is_handed_over(c: Cluster, i: int) -> bool:
    """Return whether request ``i`` waits for a decode worker."""
    at = c.tracker.handoff_head
    while at != UNKNOWN and at != i:
        at = c.requests[at].queue_next
    return bool(at == i)


@jit
def leave_cluster(c: Cluster, i: int) -> None:
    """Remove request ``i`` from where it is: a queue, a batch, on its way, or between prefill and decode."""
    t, r = c.tracker, c.requests[i]
    k = r.worker
    end_sent(c, i)
    if r.status == WAITING or r.status == ACTIVE:
        withdraw(c.workers[k], queued_of(c, k), i)
        if r.status == WAITING:
            leave_queue(c, k, i)
        else:
            leave_active(c, k, i)
        plan(c, k)
    elif r.status == TRANSFERRING and is_handed_over(c, i):
        t.handoff_head, t.handoff_tail = leave_list(t.handoff_head, t.handoff_tail, c.requests, i)
    elif r.status == TRANSFERRING:
        end_transfer(c, i)
        depart(c.workers[k], r)
        plan(c, k)


@jit
def empty_worker(c: Cluster, k: int, lost: Any) -> int:
    """Take all requests from worker ``k``, which stops now; return their number.

    The batch that runs makes no tokens, and counts as busy until now. Requests on their way to the worker or from it,
    and those that it has prefilled and that have no decode worker yet, are lost as well.

    Args:
        c: the tables.
        k: the worker.
        lost: int64 (n,), where to write the requests.
    """
    t, w, run, count = c.tracker, c.workers[k], run_of(c, k), 0
    if w.clock < t.clock:
        if w.phase == BUSY:
            w.busy_time += t.clock - w.clock
        advance_clock(w, t.clock)
    for place in range(w.num_active):
        slot = run.active[place]
        i = slot.request_id
        free_memory(run, slot)
        detach(w, c.requests[i], slot)
        depart(w, c.requests[i])
        end_sent(c, i)
        lost[count] = i
        count += 1
    w.num_active = 0
    while w.num_waiting > 0:
        lost[count] = w.queue_head
        end_sent(c, w.queue_head)
        leave_queue(c, k, w.queue_head)
        count += 1
    w.num_queued = w.num_left = w.num_finished = w.swap_tokens = w.at_boundary = 0
    w.phase, w.last_progress = READY, w.decisions
    i = t.handoff_head
    while i != UNKNOWN:
        following = c.requests[i].queue_next
        if c.requests[i].worker == k:
            lost[count] = i
            leave_cluster(c, i)
            count += 1
        i = following
    first, count = count, list_transfers(c, k, lost, count)
    for place in range(first, count):
        leave_cluster(c, lost[place])
    plan(c, k)
    return count


@jit
def list_transfers(c: Cluster, k: int, found: Any, count: int) -> int:
    """Add the requests on their way to worker ``k`` or from it to ``count`` found ones; return their number."""
    shared = c.flows.shape[0] > 0
    place, i = 0, c.tracker.transfer_head
    while i != UNKNOWN:
        if c.requests[i].worker == k or c.trips[i].source == k:
            found[count] = i
            count += 1
        place += 1
        if shared and place < c.link[0].num_flows:
            i = c.flows[place].heap
        else:
            i = UNKNOWN if shared else c.requests[i].queue_next
    return count


@jit
def forget_source(c: Cluster, k: int, found: Any) -> None:
    """Note that worker ``k`` has stopped: what is still on its way from it, to others, arrives.

    Args:
        c: the tables.
        k: the worker.
        found: int64 (n,), room for requests.
    """
    for place in range(list_transfers(c, k, found, 0)):
        c.trips[found[place]].source = UNKNOWN


@jit
def restart(c: Cluster, i: int, room: int) -> int:
    """Prepare request ``i``, which has lost its KV, for another try; return the KV tokens that it had.

    Args:
        c: the tables.
        i: the request.
        room: prompt and output tokens that it may begin with; the output beyond is computed again.
    """
    r = c.requests[i]
    had = r.num_kv_tokens
    kept = max(0, min(r.num_delivered_tokens, room - r.prompt_len))
    r.num_output_tokens, r.num_prefill_left = kept, r.prompt_len + kept
    r.num_kv_tokens = r.num_kv_best = 0
    r.num_recomputed_tokens += had
    r.ready_time = np.nan
    return int(had)
