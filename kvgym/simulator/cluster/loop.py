"""The loop of a cluster: several workers behind a router, each with its own clock, in one order of events.

At a time t, events happen in this order, workers by index:

1. Batches that end at t finish; requests that have just completed their prefill leave their prefill worker.
2. Places of a fleet change their states, see :mod:`kvgym.simulator.cluster.members`.
3. Requests that complete their transfer arrive at their workers.
4. Users of a fleet give up, see :mod:`kvgym.simulator.cluster.outside`.
5. Requests that arrive again, then new ones, are routed by the state of the cluster at t. While no place is open to
   them, they wait outside, in the order in which they came to lack a worker.
6. A scrape is taken, if it is due, see :mod:`kvgym.simulator.cluster.knowledge`.
7. The autoscaler of a fleet sets its targets, if it is due.
8. A router that reassigns is called for every worker that has just ended a batch or a wait, until it moves no more.
9. Every free worker decides.

A cluster of one worker has exactly the states of :func:`~kvgym.simulator.loop.run_loop`. The tables are passed by
address, see :mod:`kvgym.simulator.cluster.tables`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from kvgym.compiling.kernel import jit, jit_inline, kernel
from kvgym.compiling.references import by_address
from kvgym.simulator.batch import finish_batch
from kvgym.simulator.boundary import (
    advance_clock,
    assign,
    next_arrival_time,
    note_return,
    reveal_next,
    stalled,
    wastes_effort,
)
from kvgym.simulator.cluster.event_queue import NOW, first_due
from kvgym.simulator.cluster.knowledge import end_batch_sent, note_sent, own_state, router_view, scrape
from kvgym.simulator.cluster.lacking import first_lacking, take_in
from kvgym.simulator.cluster.router_view import PREFILL_ONLY, REJECT
from kvgym.simulator.cluster.tables import (
    CLUSTER_PLACES,
    LEAVES,
    WHOLE,
    Cluster,
    batch_params_of,
    batch_time_of,
    memory_of,
    open_cluster,
    policy_of,
    reassign_of,
    remember_worker,
    router_of,
    run_of,
)
from kvgym.simulator.cluster.transfers import deliver_transfers, hand_over, keep, move, place, plan, send
from kvgym.simulator.engine import begin, clear_decision
from kvgym.simulator.policy_interface import decision_of, view_of
from kvgym.simulator.tables import (
    BAD_ROUTE,
    BUDGET,
    BUSY,
    CHANGE,
    CONTROL,
    DEADLOCK,
    DECIDE,
    DONE,
    HORIZON,
    LEAVE,
    LOG_FULL,
    OK,
    OPEN,
    READY,
    REASSIGN,
    REFUSED,
    ROLE_PREFILL,
    ROUTE,
    STALLED,
    UNKNOWN,
)

# Decisions that the caller makes instead of a kernel.
ASK_POLICY, ASK_ROUTER = 1, 2

# How a call continues after the last one.
RESUME_NOTHING, RESUME_DECISION, RESUME_ROUTE, RESUME_REASSIGN = 0, 1, 2, 3


@jit
def settle_route(c: Cluster, answer: int) -> int:
    """Send the request that needs a worker where the answer says; BAD_ROUTE if it may not go there, or REFUSED."""
    t, chooses = c.tracker, c.stage.shape[0] > 0
    first, last = candidates(c)
    if chooses:
        first, last = 0, c.workers.shape[0]
    if answer == REJECT and t.sheds == 1 and not hands_over(c):
        t.error_request = t.request
        return REFUSED
    only = PREFILL_ONLY <= answer < 2 * PREFILL_ONLY
    k = answer - PREFILL_ONLY if only else answer
    wrong = only and (not chooses or hands_over(c))
    if wrong or not first <= k < last or (c.open.shape[0] > 0 and c.open[k] != OPEN):
        t.error_request, t.error_needed = t.request, answer
        return BAD_ROUTE
    remember_worker(c, t.request, k)
    if hands_over(c):
        if chooses and c.requests[t.request].worker == k:
            keep(c)
        else:
            send(c, k)
    else:
        if chooses:
            c.stage[t.request] = LEAVES if only or c.workers[k].role == ROLE_PREFILL else WHOLE
        is_new = take_in(c, t.request)
        assign(c.workers[k], c.requests[t.request])
        if is_new:
            note_return(run_of(c, k), t.request)
        place(c, k, t.request, True)
    note_sent(c, t.request, k)
    return OK


@jit
def hands_over(c: Cluster) -> bool:
    """Return whether a prefilled request needs a decode worker, and there is one that may take it."""
    if c.tracker.handoff_head == UNKNOWN:
        return False
    return bool(c.fleet.shape[0] == 0 or c.fleet[0].open_decode > 0)


@jit
def arrival_due(c: Cluster) -> float:
    """Return when the next request arrives at the router; inf if none does, or while no place is open to it."""
    if c.fleet.shape[0] > 0 and c.fleet[0].open_first == 0:
        return np.inf
    return next_arrival_time(c.problems[0], c.tracker, c.workload)


@jit
def candidates(c: Cluster) -> tuple[int, int]:
    """Return the range of workers that the request may go to: the first, and the end (exclusive)."""
    prefill, total = c.tracker.num_prefill_workers, c.workers.shape[0]
    if prefill == 0:
        return 0, total
    if hands_over(c):
        return prefill, total
    return 0, prefill


@jit
def request_to_route(c: Cluster) -> int:
    """Return the request that needs a worker now, UNKNOWN if there is none; LEAVE if users may give up before that.

    From the horizon on, no request needs a worker.
    """
    t = c.tracker
    if t.clock >= c.problems[0].horizon:
        return UNKNOWN
    if hands_over(c):
        return int(t.handoff_head)
    deliver_transfers(c)
    if c.fleet.shape[0] > 0:
        if c.fleet[0].leaving <= t.clock:
            return LEAVE
        i = first_lacking(c, arrival_due(c))
        if i != UNKNOWN:
            return int(i)
    if arrival_due(c) > t.clock:
        return UNKNOWN
    return int(reveal_next(run_of(c, 0)))


@jit
def next_event(c: Cluster) -> float:
    """Return the time of the next event when no worker can decide; inf = never.

    From the horizon on, only ends of batches count.
    """
    time = c.events[1]
    if c.tracker.clock < c.problems[0].horizon:
        time = min(time, arrival_due(c))
        if c.tracker.transfer_head != UNKNOWN:
            time = min(time, c.requests[c.tracker.transfer_head].ready_time)
    return time


@jit
def any_busy(c: Cluster) -> bool:
    """Return whether a batch is running."""
    busy = False
    for k in range(c.workers.shape[0]):
        busy = busy or c.workers[k].phase == BUSY
    return busy


@jit
def wake(c: Cluster, time: float) -> None:
    """Advance to ``time`` and finish the batches and waits that end there."""
    t = c.tracker
    t.clock = time
    t.asking = 0
    k = first_due(c.events, 0, time)
    while k != UNKNOWN:
        w = c.workers[k]
        if w.phase == BUSY:
            run = run_of(c, k)
            finish_batch(run)
            if w.role == ROLE_PREFILL or c.stage.shape[0] > 0:
                hand_over(c, run)
            end_batch_sent(c, k)
        else:
            w.phase = READY
            advance_clock(w, time)
        w.at_boundary = t.reassigns
        plan(c, k)
        k = first_due(c.events, k + 1, time)


@jit
def anything_left(c: Cluster) -> bool:
    """Return whether a request has not finished; sets ``tracker.worker`` to the last worker that has one."""
    t = c.tracker
    left = t.transfer_head != UNKNOWN or t.handoff_head != UNKNOWN or t.next_arrival < c.workload.shape[0]
    for k in range(c.workers.shape[0]):
        w = c.workers[k]
        if w.num_active > 0 or w.num_waiting > 0:
            left = True
            t.worker = k
    return bool(left or (c.fleet.shape[0] > 0 and c.fleet[0].lacking > 0))


@jit
def stop(c: Cluster) -> int:
    """Return why the run is over: no batch is running, and no event comes before the horizon."""
    horizon = c.problems[0].horizon
    if not anything_left(c):
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
    """Return whether no request can join the queue of a worker any more; there is no horizon.

    Turns that follow those of the worker itself do not count, as they need its progress.
    """
    t = c.tracker
    if next_arrival_time(c.problems[0], t, c.workload) < np.inf:
        return False
    if c.fleet.shape[0] > 0 and c.fleet[0].lacking > 0:
        return False
    follows, chooses = t.next_arrival < c.problems[0].num_requests, c.stage.shape[0] > 0
    for k in range(c.workers.shape[0]):
        other = c.workers[k]
        comes = other.role == ROLE_PREFILL and w.role != ROLE_PREFILL
        comes = comes or (chooses and k != w.index)
        moves = t.reassigns == 1 and other.role == w.role and k != w.index
        if (comes or moves or (follows and k != w.index)) and other.outstanding_requests > 0:
            return False
    if w.role == ROLE_PREFILL and not chooses:
        return True
    return bool(t.handoff_head == UNKNOWN and t.transfer_head == UNKNOWN)


@jit
def worker_to_reassign(c: Cluster) -> int:
    """Return the next worker at a boundary that the router has not yet handled, UNKNOWN if there is none."""
    t = c.tracker
    if t.clock < c.problems[0].horizon:
        for k in range(t.asking, c.workers.shape[0]):
            if c.workers[k].at_boundary == 1:
                t.asking = k
                return int(k)
    t.asking = c.workers.shape[0]
    return UNKNOWN


@jit
def settle_reassign(c: Cluster, answer: int) -> int:
    """Execute the router's answer for worker ``tracker.asking``: a move, or UNKNOWN if there is none left."""
    t, count = c.tracker, c.workers.shape[0]
    if answer == UNKNOWN:
        c.workers[t.asking].at_boundary = t.num_asked = 0
        t.asking += 1
        return OK
    return move(c, answer // count, answer % count)


@jit_inline
def next_question(c: Cluster) -> int:
    """Continue until a worker can decide (DECIDE), the router is needed (ROUTE, REASSIGN), or the run is over."""
    t = c.tracker
    fleet, known = c.fleet.shape[0] > 0, c.knowledge.shape[0] > 0
    while True:
        if fleet and c.fleet[0].due <= t.clock:
            return CHANGE
        i = request_to_route(c)
        if i == LEAVE:
            return LEAVE
        if i != UNKNOWN:
            t.request = i
            return ROUTE
        if known and c.knowledge[0].next <= t.clock:
            scrape(c, t.clock)
        if fleet and c.fleet[0].control <= t.clock:
            return CONTROL
        if t.reassigns == 1 and worker_to_reassign(c) != UNKNOWN:
            if c.problems[0].keep_log == 1 and t.num_moves >= c.moves.shape[0]:
                return LOG_FULL
            return REASSIGN
        k = first_due(c.events, 0, NOW)
        if k != UNKNOWN:
            w = c.workers[k]
            t.worker = k
            if c.problems[k].keep_log == 1 and t.num_log + c.workers.shape[0] > c.log.shape[0]:
                return LOG_FULL
            if stalled(w, c.problems[k]):
                return STALLED
            return STALLED if wastes_effort(w, c.problems[k]) and nothing_to_come(c, w) else DECIDE
        time = next_event(c)
        if fleet and t.clock < c.problems[0].horizon and (time < np.inf or anything_left(c)):
            time = min(time, c.fleet[0].due, c.fleet[0].control, c.fleet[0].leaving)
        if time >= c.problems[0].horizon and not any_busy(c):
            return stop(c)
        if known and c.knowledge[0].next < time:
            scrape(c, time)
        wake(c, time)


@jit_inline
def choose_worker(c: Cluster, router: Any) -> int:
    """Return the router's answer for the request; without a call if there is only one candidate."""
    first, last = candidates(c)
    if last - first == 1 and c.stage.shape[0] == 0 and c.tracker.sheds == 0:
        return first
    view = router_view(c, c.tracker.request, first, last, UNKNOWN)
    return int(router(by_address(view), c.router_params, own_state(c, c.tracker.request)))


@jit_inline
def choose_move(c: Cluster, reassign: Any) -> int:
    """Return the router's move for the worker ``tracker.asking``."""
    view = router_view(c, UNKNOWN, 0, c.workers.shape[0], c.tracker.asking)
    return int(reassign(by_address(view), c.router_params, c.router_state))


@kernel(types.int64(*CLUSTER_PLACES, types.int64), "simulator")
def ask_router(shared: Any, shared_sizes: Any, rows: Any, sizes: Any, handles: Any, question: int) -> int:
    """Return the router's answer to ROUTE or REASSIGN, which nothing executes; tables as of :func:`run_cluster`."""
    c = open_cluster(shared, shared_sizes, rows, sizes, handles)
    return choose_worker(c, router_of(c)) if question == ROUTE else choose_move(c, reassign_of(c))


@kernel(types.int64(*CLUSTER_PLACES, types.int64, types.int64, types.int64), "simulator")
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
    """Run a cluster until the caller must decide, the run ends, an error occurs, or the budget is used up.

    Args:
        shared: int64 (len(SHARED),), addresses of the shared tables.
        shared_sizes: int64, their lengths.
        rows: int64 (r, len(ROW)), addresses of each worker's tables.
        sizes: int64, their lengths.
        handles: int64 (r, 8), handles of each worker's functions, two numbers each, at POLICY, BATCH_TIME,
            ROUTER and REASSIGNING.
        resume: RESUME_DECISION executes the decision of ``tracker.worker`` first; RESUME_ROUTE sends
            ``tracker.request`` by the answer ``tracker.route``; RESUME_REASSIGN makes the move ``tracker.route``.
        ask: sum of ASK_POLICY and ASK_ROUTER: return DECIDE, or ROUTE and REASSIGN, instead of calling the kernel.
        budget: value of ``tracker.used``, which counts decisions, at which to return BUDGET.

    Returns:
        DECIDE (with the decision of ``tracker.worker`` reset), ROUTE, REASSIGN, REFUSED (for
        ``tracker.error_request``), of a fleet CHANGE, LEAVE or CONTROL, or a reason to stop as in
        :func:`~kvgym.simulator.loop.run_loop`.
    """
    c = by_address(open_cluster(shared, shared_sizes, rows, sizes, handles))
    t = c.tracker
    router, reassign = router_of(c), reassign_of(c)
    status = OK
    if resume == RESUME_ROUTE:
        status = settle_route(c, t.route)
    elif resume == RESUME_REASSIGN:
        status = settle_reassign(c, t.route)
    decided = resume == RESUME_DECISION
    while status == OK:
        if decided:
            k = t.worker
            run = run_of(c, k)
            status = begin(run, batch_time_of(c, k), batch_params_of(c, k))
            plan(c, k)
            decided = False
            continue
        question = next_question(c)
        if question == ROUTE:
            if ask & ASK_ROUTER:
                return ROUTE
            status = settle_route(c, choose_worker(c, router))
        elif question == REASSIGN:
            if ask & ASK_ROUTER:
                return REASSIGN
            status = settle_reassign(c, choose_move(c, reassign))
        elif question == DECIDE:
            if t.used >= budget:
                return BUDGET
            t.used += 1
            k = t.worker
            run = run_of(c, k)
            clear_decision(run)
            if ask & ASK_POLICY:
                return DECIDE
            policy = policy_of(c, k)
            view = view_of(run, batch_time_of(c, k), batch_params_of(c, k))
            policy(by_address(view), by_address(decision_of(run)), by_address(memory_of(c, k)))
            decided = True
        else:
            return question
    return status
