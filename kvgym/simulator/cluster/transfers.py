"""Requests on their way between the workers of a cluster: hand-overs after the prefill, transfers, and moves.

A router *moves* a waiting request to another queue, or an active one, which leaves the batch with its KV. A request
with KV is transferred, see :func:`travel`; one without joins the other queue at once. What the target has in its prefix
cache when a transfer begins is not transferred. Like all KV of a request on its way, it then takes no memory of the
target until the request starts there, so that it need not be kept in the cache for the time of the transfer.
"""

from __future__ import annotations

from kvgym.compiling.kernel import jit
from kvgym.simulator.apply_decision import detach, free_memory
from kvgym.simulator.batch import close_up, leave_batch
from kvgym.simulator.boundary import (
    Run,
    advance_clock,
    assign,
    cache_of,
    depart,
    join,
    show_hit,
    withdraw,
)
from kvgym.simulator.cluster.event_queue import NEVER, NOW, set_time
from kvgym.simulator.cluster.knowledge import note_sent
from kvgym.simulator.cluster.links import join_ports, leave_ports, left_to_send
from kvgym.simulator.cluster.tables import KEPT, LEAVES, SENT, Cluster, queued_of, remember_worker, run_of
from kvgym.simulator.prefix.cache import lose_hit, tokens_there
from kvgym.simulator.queue import queue_insert, queue_remove
from kvgym.simulator.tables import (
    ACTIVE,
    BAD_MOVE,
    BUSY,
    DRAINING,
    ENDLESS_MOVES,
    OK,
    OPEN,
    READY,
    ROLE_DECODE,
    TRANSFERRING,
    UNKNOWN,
    WAITING,
)
from kvgym.simulator.tiers.hook import let_go_in_queue


@jit
def plan(c: Cluster, k: int) -> None:
    """Update the event queue for worker ``k``; called after every change that may affect it."""
    w = c.workers[k]
    if w.phase != READY:
        set_time(c.events, k, w.until)
    elif (w.num_active > 0 or w.num_waiting > 0) and w.clock < c.problems[k].horizon:
        set_time(c.events, k, NOW)
    else:
        set_time(c.events, k, NEVER)
    if c.open.shape[0] > 0 and c.open[k] == DRAINING and w.outstanding_requests == 0:
        c.fleet[0].due = NOW


@jit
def hand_over(c: Cluster, run: Run) -> None:
    """Remove requests that have completed their prefill from a worker, in order of activation.

    From a prefill worker all leave, or those for which the router has chosen that.
    """
    w, t, chosen = run.w, run.tracker, c.stage.shape[0] > 0
    gone = stay = 0
    for k in range(w.num_active):
        slot = run.active[k]
        i = slot.request_id
        if slot.num_prefill_left > 0 or (chosen and c.stage[i] != LEAVES):
            continue
        r = run.requests[i]
        free_memory(run, slot)
        detach(w, r, slot)
        depart(w, r)
        if chosen:
            withdraw(w, run.queued, i)  # its policy could not know that it leaves
        r.status = TRANSFERRING
        r.queue_next = UNKNOWN
        if t.handoff_head == UNKNOWN:
            t.handoff_head = i
        else:
            run.requests[t.handoff_tail].queue_next = i
        t.handoff_tail = i
        close_up(run.active, run.targets, stay, k, gone)
        stay = k + 1
        gone += 1
    close_up(run.active, run.targets, stay, w.num_active, gone)
    w.num_active -= gone


@jit
def to_transfer(c: Cluster, k: int, i: int) -> int:
    """Return how many KV tokens of request ``i`` worker ``k`` does not have in its prefix cache."""
    unit, tokens = c.problems[k].prefix_unit, int(c.requests[i].num_kv_tokens)
    return tokens - tokens_there(cache_of(run_of(c, k)), unit, i, tokens) if unit > 0 else tokens


@jit
def travel(c: Cluster, k: int, i: int, seconds: float) -> None:
    """Start the transfer of the KV of request ``i`` that worker ``k`` lacks.

    Args:
        c: the cluster.
        k: the worker.
        i: the request, still of the worker that sends it.
        seconds: of the batch that has computed the last of its KV and ends now; 0 = there is none.
    """
    t, requests, p = c.tracker, c.requests, c.problems[0]
    r = requests[i]
    source = r.worker
    r.status = TRANSFERRING
    if c.trips.shape[0] > 0:
        c.trips[i].source = r.worker
    assign(c.workers[k], r)
    tokens = left_to_send(c, to_transfer(c, k, i), seconds)
    r.ready_time = t.clock + p.transfer_latency + p.transfer_time * tokens
    if c.flows.shape[0] > 0:
        join_ports(c, source, i, tokens)
        return
    after = t.transfer_tail  # sorted by ready_time; equal times stay in order
    while after != UNKNOWN and requests[after].ready_time > r.ready_time:
        after = requests[after].queue_prev
    before = t.transfer_head if after == UNKNOWN else requests[after].queue_next
    r.queue_prev, r.queue_next = after, before
    if after == UNKNOWN:
        t.transfer_head = i
    else:
        requests[after].queue_next = i
    if before == UNKNOWN:
        t.transfer_tail = i
    else:
        requests[before].queue_prev = i


@jit
def end_transfer(c: Cluster, i: int) -> None:
    """Take request ``i`` out of the transfers: it has landed, or is lost on its way."""
    if c.flows.shape[0] > 0:
        leave_ports(c, i)
        return
    t, requests = c.tracker, c.requests
    before, after = requests[i].queue_prev, requests[i].queue_next
    if before == UNKNOWN:
        t.transfer_head = after
    else:
        requests[before].queue_next = after
    if after == UNKNOWN:
        t.transfer_tail = before
    else:
        requests[after].queue_prev = before


@jit
def send(c: Cluster, k: int) -> None:
    """Start the transfer of the first request that waits for a decode worker to worker ``k``."""
    i = c.tracker.handoff_head
    c.tracker.handoff_head = c.requests[i].queue_next
    w = c.workers[c.requests[i].worker]
    if c.stage.shape[0] > 0:
        c.stage[i] = SENT
    travel(c, k, i, w.batch_duration if w.last_batch_end == c.tracker.clock else 0.0)


@jit
def keep(c: Cluster) -> None:
    """Return the first request that waits for a decode worker to its source: to the front of the queue, with its KV."""
    t, requests = c.tracker, c.requests
    i = t.handoff_head
    t.handoff_head = requests[i].queue_next
    k = requests[i].worker
    c.stage[i] = KEPT
    requests[i].ready_time = t.clock  # so that its KV is restored at no cost
    assign(c.workers[k], requests[i])
    place(c, k, i, True)
    queue_remove(c.workers[k], requests, i)
    queue_insert(c.workers[k], requests, i, c.workers[k].queue_head)


@jit
def place(c: Cluster, k: int, i: int, is_new: bool) -> None:
    """Add request ``i`` to the queue of worker ``k`` now; a worker with no batch running becomes ready to decide.

    Only a request that is new to the stage counts as progress, because moves could go on for ever.
    """
    w = c.workers[k]
    if w.phase != BUSY:
        w.phase = READY
        if w.clock < c.tracker.clock:
            advance_clock(w, c.tracker.clock)
    progress = w.last_progress
    join(w, c.requests, queued_of(c, k), i)
    show_hit(run_of(c, k), i)
    if not is_new:
        w.last_progress = progress
    plan(c, k)


@jit
def deliver_transfers(c: Cluster) -> None:
    """Add requests to the queues of their workers when their KV has arrived."""
    t, requests = c.tracker, c.requests
    while t.transfer_head != UNKNOWN and requests[t.transfer_head].ready_time <= t.clock:
        i = t.transfer_head
        end_transfer(c, i)
        k = requests[i].worker
        place(c, k, i, c.workers[k].role == ROLE_DECODE or c.stage.shape[0] > 0)


@jit
def can_move(c: Cluster, i: int, k: int) -> bool:
    """Return whether request ``i`` waits, or is active between batches, on another worker with the role of ``k``."""
    if not (0 <= i < c.requests.shape[0] and 0 <= k < c.workers.shape[0]):
        return False
    r = c.requests[i]
    if r.status != WAITING and r.status != ACTIVE:
        return False
    source = c.workers[r.worker]
    if c.open.shape[0] > 0 and c.open[k] != OPEN:
        return False
    return bool(
        r.worker != k and source.role == c.workers[k].role and (r.status == WAITING or source.phase != BUSY)
    )


@jit
def move(c: Cluster, i: int, k: int) -> int:
    """Move request ``i`` to worker ``k``; BAD_MOVE if that is not allowed, ENDLESS_MOVES if there are too many."""
    t = c.tracker
    t.num_asked += 1
    if not can_move(c, i, k):
        t.error_request, t.error_needed = i, k
        return BAD_MOVE
    if t.num_asked > c.requests.shape[0]:
        return ENDLESS_MOVES
    r, source = c.requests[i], c.requests[i].worker
    w, was_active = c.workers[source], r.status == ACTIVE
    withdraw(w, queued_of(c, source), i)
    if was_active:
        if w.clock < t.clock:
            advance_clock(w, t.clock)
        leave_batch(run_of(c, source), i)
        w.phase = READY  # even if it had decided to wait with this request
    else:
        let_go_in_queue(run_of(c, source), i)
        queue_remove(w, c.requests, i)
        if c.problems[source].prefix_unit > 0:
            lose_hit(cache_of(run_of(c, source)), c.requests, c.problems[source].prefix_unit, i)
    depart(w, r)
    plan(c, source)
    remember_worker(c, i, k)
    note_sent(c, i, k)
    c.workers[k].total_received += 1
    transferred = 0
    if r.num_kv_tokens > 0:
        transferred = to_transfer(c, k, i)
        travel(c, k, i, 0.0)
    else:
        assign(c.workers[k], r)
        place(c, k, i, False)
    if c.problems[0].keep_log == 1:
        made = c.moves[t.num_moves]
        made.time, made.request_id, made.source, made.target = t.clock, i, source, k
        made.ready_time, made.num_kv_tokens = t.clock, transferred
        if r.status == TRANSFERRING:
            made.ready_time = r.ready_time
        made.was_active = 1 if was_active else 0
    t.num_moves += 1
    return OK
