"""Clusters: several workers behind a router, each with a clock of its own, in one order of events.

At a moment t, first the batches that end at t are finished in the order of the workers, and requests whose
prefill has just ended leave their prefill worker; then requests arrive that were handed over earlier; then new
requests, each of which is routed on what the cluster looks like at t; then every worker that is free decides, in
order. One worker alone goes through exactly the states of :func:`~kvgym.simulator.loop.run_loop`.

The tables come by address, see :mod:`kvgym.simulator.cluster_tables`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from kvgym.simulator.apply_decision import detach
from kvgym.simulator.batch import finish_batch
from kvgym.simulator.boundary import (
    Run,
    advance_clock,
    belong,
    expected_tokens,
    join,
    next_arrival_time,
    reveal,
    stalled,
    works_in_vain,
)
from kvgym.simulator.cluster_tables import (
    Cluster,
    batch_params_of,
    batch_time_at,
    i4_at,
    memory_of,
    open_cluster,
    policy_at,
    router_at,
    run_of,
)
from kvgym.simulator.compiled import jit, jit_inline, kernel
from kvgym.simulator.engine import begin, clear_decision
from kvgym.simulator.rule import decision_of, view_of
from kvgym.simulator.tables import (
    BAD_ROUTE,
    BUDGET,
    BUSY,
    DEADLOCK,
    DECIDE,
    DONE,
    HORIZON,
    LOG_FULL,
    OK,
    READY,
    ROLE_PREFILL,
    ROUTE,
    STALLED,
    TRANSFERRING,
    UNKNOWN,
)

# What is asked of the caller instead of a kernel.
ASK_POLICY, ASK_ROUTER = 1, 2

# How a call goes on from the last one.
RESUME_NOTHING, RESUME_DECISION, RESUME_ROUTE = 0, 1, 2


@jit
def hand_over(run: Run) -> None:
    """Let requests whose prefill has ended leave a prefill worker, in order of activation."""
    w, t = run.w, run.tracker
    kept = 0
    for k in range(w.num_active):
        slot = run.active[k]
        if slot.num_prefill_left > 0:
            if k != kept:
                run.active[kept] = run.active[k]
                run.targets[kept] = run.targets[k]
            kept += 1
            continue
        i = slot.request_id
        r = run.requests[i]
        detach(run.problem, w, r, slot)
        w.outstanding_requests -= 1
        w.outstanding_tokens -= expected_tokens(r)
        r.status = TRANSFERRING
        r.queue_next = UNKNOWN
        if t.handoff_head == UNKNOWN:
            t.handoff_head = i
        else:
            run.requests[t.handoff_tail].queue_next = i
        t.handoff_tail = i
    w.num_active = kept


@jit
def send(c: Cluster, k: int) -> None:
    """Start the transfer of the first request that waits for a decode worker to worker ``k``."""
    t, requests, p = c.tracker, c.requests, c.problems[0]
    i = t.handoff_head
    r = requests[i]
    t.handoff_head = r.queue_next
    belong(c.workers[k], r)
    r.ready_time = t.clock + p.transfer_latency + p.transfer_time * r.num_kv_tokens
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
def place(c: Cluster, k: int, i: int) -> None:
    """Add request ``i`` to the queue of worker ``k`` now; a worker with no batch running is ready to decide."""
    w = c.workers[k]
    c.tracker.scan = 0
    if w.phase != BUSY:
        w.phase = READY
        if w.clock < c.tracker.clock:
            advance_clock(w, c.tracker.clock)
    join(w, c.requests, i4_at(c.rows[k][4], c.sizes[k][4]), i)


@jit
def deliver_transfers(c: Cluster) -> None:
    """Add the requests whose KV has arrived to the queues of their decode workers."""
    t, requests = c.tracker, c.requests
    while t.transfer_head != UNKNOWN and requests[t.transfer_head].ready_time <= t.clock:
        i = t.transfer_head
        t.transfer_head = requests[i].queue_next
        if t.transfer_head == UNKNOWN:
            t.transfer_tail = UNKNOWN
        else:
            requests[t.transfer_head].queue_prev = UNKNOWN
        place(c, requests[i].worker, i)


@jit
def settle_route(c: Cluster, k: int) -> int:
    """Send the request in question to worker ``k``; BAD_ROUTE if that is none it may go to."""
    t = c.tracker
    first, last = candidates(c)
    if not first <= k < last:
        t.error_request, t.error_needed = t.request, k
        return BAD_ROUTE
    if t.handoff_head != UNKNOWN:
        send(c, k)
    else:
        t.next_arrival += 1
        belong(c.workers[k], c.requests[t.request])
        place(c, k, t.request)
    return OK


@jit
def candidates(c: Cluster) -> tuple[int, int]:
    """Return the first worker the request in question may go to, and the end (exclusive)."""
    prefill, total = c.tracker.num_prefill_workers, c.workers.shape[0]
    if prefill == 0:
        return 0, total
    if c.tracker.handoff_head != UNKNOWN:
        return prefill, total
    return 0, prefill


@jit
def request_to_route(c: Cluster) -> int:
    """Return the request that needs a worker now, UNKNOWN if none does; from the horizon on, none does."""
    t = c.tracker
    if t.clock >= c.problems[0].horizon:
        return UNKNOWN
    if t.handoff_head != UNKNOWN:
        return int(t.handoff_head)
    deliver_transfers(c)
    if next_arrival_time(c.problems[0], t, c.workload) > t.clock:
        return UNKNOWN
    reveal(c.problems[0], c.workload[t.next_arrival], c.requests[t.next_arrival])
    return int(t.next_arrival)


@jit
def next_event(c: Cluster) -> tuple[float, bool]:
    """Return when something happens next (inf = never) and whether a batch is running.

    From the horizon on, only batches end.
    """
    time, busy = np.inf, False
    if c.tracker.clock < c.problems[0].horizon:
        time = next_arrival_time(c.problems[0], c.tracker, c.workload)
        if c.tracker.transfer_head != UNKNOWN:
            time = min(time, c.requests[c.tracker.transfer_head].ready_time)
    for k in range(c.workers.shape[0]):
        if c.workers[k].phase != READY:
            time = min(time, c.workers[k].until)
            busy = busy or c.workers[k].phase == BUSY
    return time, busy


@jit
def wake(c: Cluster, time: float) -> None:
    """Go to ``time``: finish batches and waits that end there."""
    c.tracker.clock = time
    c.tracker.scan = 0
    for k in range(c.workers.shape[0]):
        w = c.workers[k]
        if w.phase == READY or w.until > time:
            continue
        run = run_of(c, k)
        if w.phase == BUSY:
            finish_batch(run)
            if w.role == ROLE_PREFILL:
                hand_over(run)
        else:
            w.phase = READY
            advance_clock(w, time)


@jit
def stop(c: Cluster) -> int:
    """Return why the run is over, with no batch running and nothing to happen before the horizon."""
    horizon = c.problems[0].horizon
    t = c.tracker
    left = t.transfer_head != UNKNOWN or t.handoff_head != UNKNOWN or t.next_arrival < c.workload.shape[0]
    for k in range(c.workers.shape[0]):
        w = c.workers[k]
        if w.num_active > 0 or w.num_waiting > 0:
            left = True
            t.worker = k
    if not left:
        return DONE
    if horizon == np.inf:
        return DEADLOCK
    for k in range(c.workers.shape[0]):
        w = c.workers[k]
        w.phase = READY
        if w.clock < horizon:
            advance_clock(w, horizon)
    return HORIZON


@jit
def nothing_to_come(c: Cluster, w: Any) -> bool:
    """Whether no request can join the queue of a worker any more; there is no horizon."""
    t = c.tracker
    if t.next_arrival < c.workload.shape[0]:
        return False
    if w.role == ROLE_PREFILL:
        return True
    for k in range(t.num_prefill_workers):
        if c.workers[k].outstanding_requests > 0:
            return False
    return bool(t.handoff_head == UNKNOWN and t.transfer_head == UNKNOWN)


@jit_inline
def next_question(c: Cluster) -> int:
    """Go on until a worker can decide (DECIDE), a request must be routed (ROUTE), or the run is over."""
    t, count = c.tracker, c.workers.shape[0]
    while True:
        i = request_to_route(c)
        if i != UNKNOWN:
            t.request = i
            return ROUTE
        for k in range(t.scan, count):
            w = c.workers[k]
            if (
                w.phase == READY
                and (w.num_active > 0 or w.num_waiting > 0)
                and w.clock < c.problems[k].horizon
            ):
                t.worker = t.scan = k
                if c.problems[k].keep_log == 1 and t.num_log + count > c.log.shape[0]:
                    return LOG_FULL
                if stalled(w, c.problems[k]):
                    return STALLED
                return STALLED if works_in_vain(w, c.problems[k]) and nothing_to_come(c, w) else DECIDE
        t.scan = count
        time, busy = next_event(c)
        if time >= c.problems[0].horizon and not busy:
            return stop(c)
        wake(c, time)


@jit_inline
def choose_worker(c: Cluster, router: Any) -> int:
    """Ask the router, unless there is only one worker to choose from."""
    first, last = candidates(c)
    if last - first == 1:
        return first
    return int(
        router(
            c.problems, c.workers, c.requests, c.tracker.request, first, last, c.router_params, c.router_state
        )
    )


@kernel(
    types.int64(
        types.int64[::1],
        types.int64[::1],
        types.int64[:, ::1],
        types.int64[:, ::1],
        types.int64[:, ::1],
        types.int64,
        types.int64,
        types.int64,
    ),
    "simulator",
)
def run_cluster(
    shared: Any,
    shared_sizes: Any,
    rows: Any,
    sizes: Any,
    handles: Any,
    resume: int,
    ask: int,
    budget: int,
) -> int:
    """Run a cluster until the caller is asked, all is done, something is wrong, or the budget is used up.

    Args:
        shared: int64 (len(SHARED),), addresses of the shared tables.
        shared_sizes: int64, their lengths.
        rows: int64 (r, len(ROWS)), addresses of each worker's tables.
        sizes: int64, their lengths.
        handles: int64 (r, 6), where policy, batch-time model and router lie, two numbers each.
        resume: RESUME_DECISION carries out the decision of ``tracker.worker`` first; RESUME_ROUTE sends
            ``tracker.request`` to worker ``tracker.route``.
        ask: ASK_POLICY and ASK_ROUTER, added up: return DECIDE or ROUTE instead of calling the kernel.
        budget: value of ``tracker.used``, which counts decisions, at which to return BUDGET.

    Returns:
        DECIDE (with the decision of ``tracker.worker`` reset), ROUTE, or a reason to stop as in
        :func:`~kvgym.simulator.loop.run_loop`.
    """
    c = open_cluster(shared, shared_sizes, rows, sizes, handles)
    t = c.tracker
    router = router_at(handles[0, 4], handles[0, 5])
    status = OK
    if resume == RESUME_ROUTE:
        status = settle_route(c, t.route)
    decided = resume == RESUME_DECISION
    while status == OK:
        if decided:
            k = t.worker
            run = run_of(c, k)
            status = begin(run, batch_time_at(handles[k, 2], handles[k, 3]), batch_params_of(c, k))
            decided = False
            continue
        question = next_question(c)
        if question == ROUTE:
            if ask & ASK_ROUTER:
                return ROUTE
            status = settle_route(c, choose_worker(c, router))
        elif question == DECIDE:
            if t.used >= budget:
                return BUDGET
            t.used += 1
            k = t.worker
            run = run_of(c, k)
            clear_decision(run)
            if ask & ASK_POLICY:
                return DECIDE
            policy = policy_at(handles[k, 0], handles[k, 1])
            view = view_of(run, batch_time_at(handles[k, 2], handles[k, 3]), batch_params_of(c, k))
            policy(view, decision_of(run), memory_of(c, k))
            decided = True
        else:
            return question
    return status
