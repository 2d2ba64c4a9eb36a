"""What routers know of the workers of a cluster: the present, scrapes, and what each router has sent itself.

Routers read rows of workers. With an exact view these are the workers' own; otherwise rows of the table ``seen``, in
blocks of a row for each worker: what each router knows, the scrapes that are kept, and what each router has sent since
each of them. So kernels need no knowledge of the view, see :class:`~kvgym.simulator.knowledge.Knowledge`.

Nothing changes between two events of the loop. So scrapes are no events: the loop takes those that were due before it
advances its clock, one for all that would show the same, and a router looks which has arrived when it is asked.
"""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit, jit_expand
from kvgym.simulator.boundary import expected_tokens
from kvgym.simulator.cluster.router_view import RouterView, prefills_left
from kvgym.simulator.cluster.tables import (
    Cluster,
    last_worker_of,
    run_of,
    session_of,
    tables_of_caches,
)
from kvgym.simulator.knowledge import BOTH, INFLIGHT, SCRAPED
from kvgym.simulator.tables import UNKNOWN


@jit
def owner(c: Cluster, i: int) -> int:
    """Return the router that request ``i`` belongs to."""
    if c.knowledge.shape[0] == 0:
        return 0
    session = session_of(c, i)
    return int((i if session == UNKNOWN else session) % c.knowledge[0].routers)


@jit
def num_routers(c: Cluster) -> int:
    """Return the number of routers."""
    return 1 if c.knowledge.shape[0] == 0 else int(c.knowledge[0].routers)


@jit_expand
def own_state(c: Cluster, i: int) -> Any:
    """Return the state of the router that request ``i`` belongs to."""
    size = c.router_state.shape[0] // num_routers(c)
    at = owner(c, i) * size
    return c.router_state[at : at + size]


# ---------------------------------------------------------------- scrapes


@jit
def arrive(c: Cluster, time: float) -> None:
    """Note which scrape is the last that has arrived."""
    s = c.knowledge[0]
    while s.arrived < s.taken and c.taken_at[(s.arrived + 1) % s.slots] + s.delay <= time:
        s.arrived += 1


@jit
def scrape(c: Cluster, time: float) -> None:
    """Take the scrape that is due, and skip those before ``time``, which would show the same."""
    s, r = c.knowledge[0], c.workers.shape[0]
    arrive(c, s.next)
    s.taken += 1
    slot = s.taken % s.slots
    c.taken_at[slot] = s.next
    for k in range(r):
        at, w = (s.first_scrape + slot) * r + k, c.workers[k]
        row = c.seen[at]
        row.num_waiting, row.num_active = w.num_waiting, w.num_active
        row.kv_tokens, row.kv_allocated, row.kv_cached = w.kv_tokens, w.kv_allocated, w.kv_cached
        row.outstanding_requests, row.outstanding_tokens = w.outstanding_requests, w.outstanding_tokens
        row.total_finished, row.total_output_tokens = w.total_finished, w.total_output_tokens
        c.seen_backlog[at] = prefills_left(w, c.requests, run_of(c, k).active)
    if s.mode == BOTH:
        for j in range(s.routers):
            for k in range(r):
                clear(c, sent_block(s, j, s.taken) * r + k)
    s.number = max(s.number + 1, int((time - s.offset) / s.interval) - 1)
    while s.offset + s.number * s.interval < time:
        s.number += 1
    s.next = s.offset + s.number * s.interval


@jit
def clear(c: Cluster, at: int) -> None:
    """Set the figures of a row to 0, but for the totals."""
    row = c.seen[at]
    row.num_waiting = row.num_active = row.kv_tokens = row.kv_allocated = row.kv_cached = 0
    row.outstanding_requests = row.outstanding_tokens = c.seen_backlog[at] = 0


@jit
def add(c: Cluster, to: int, at: int) -> None:
    """Add the figures of a row to another."""
    row, more = c.seen[to], c.seen[at]
    row.num_waiting += more.num_waiting
    row.num_active += more.num_active
    row.kv_tokens += more.kv_tokens
    row.kv_allocated += more.kv_allocated
    row.kv_cached += more.kv_cached
    row.outstanding_requests += more.outstanding_requests
    row.outstanding_tokens += more.outstanding_tokens
    c.seen_backlog[to] += c.seen_backlog[at]


# ---------------------------------------------------------------- what a router has sent


@jit
def sent_block(s: Any, j: int, scrape: int) -> int:
    """Return the block of what router ``j`` has sent between a scrape and the next."""
    return int(s.first_scrape + s.slots + j * s.slots + scrape % s.slots)


@jit
def count_sent(c: Cluster, i: int, sign: int) -> None:
    """Add request ``i`` to what its router knows of its worker, or take it from there."""
    s, r, sent = c.knowledge[0], c.workers.shape[0], c.sent[i]
    if s.mode == SCRAPED:
        return
    j, k = owner(c, i), sent.worker
    if s.mode == INFLIGHT or sent.scrape >= c.knowers[j].scrape:
        count_in(c, j * r + k, i, sign)
    if s.mode == BOTH and sent.scrape > s.taken - s.slots:
        count_in(c, sent_block(s, j, sent.scrape) * r + k, i, sign)


@jit
def count_in(c: Cluster, at: int, i: int, sign: int) -> None:
    """Add request ``i`` to a row as a waiting request with its prompt in memory, or take it from there."""
    row, r = c.seen[at], c.requests[i]
    row.outstanding_requests += sign
    row.num_waiting += sign
    row.outstanding_tokens += sign * expected_tokens(r)
    row.kv_tokens += sign * r.prompt_len
    row.kv_allocated += sign * r.prompt_len
    c.seen_backlog[at] += sign * c.sent[i].prefill


@jit
def note_sent(c: Cluster, i: int, k: int) -> None:
    """Note that the router of request ``i`` has sent it to worker ``k``."""
    if c.sent.shape[0] == 0:
        return
    end_sent(c, i)
    c.sent[i].worker, c.sent[i].scrape = k, c.knowledge[0].taken
    c.sent[i].prefill = c.requests[i].num_prefill_left
    c.knowers[owner(c, i)].answers += 1
    count_sent(c, i, 1)


@jit
def end_sent(c: Cluster, i: int) -> None:
    """Note that request ``i`` has left the worker that its router sent it to."""
    if c.sent.shape[0] > 0 and c.sent[i].worker != UNKNOWN:
        count_sent(c, i, -1)
        c.sent[i].worker = UNKNOWN


@jit
def end_batch_sent(c: Cluster, k: int) -> None:
    """Note that the requests which worker ``k`` has finished or handed over have left it."""
    if c.sent.shape[0] == 0:
        return
    finished = run_of(c, k).finished
    for j in range(c.workers[k].num_finished):
        end_sent(c, finished[j])
    i = c.tracker.handoff_head
    while i != UNKNOWN:
        end_sent(c, i)
        i = c.requests[i].queue_next


# ---------------------------------------------------------------- views


@jit
def known_block(c: Cluster, i: int) -> int:
    """Return the block of ``seen`` with what the router of request ``i`` knows now, UNKNOWN: the present."""
    if c.sent.shape[0] == 0 or i == UNKNOWN:
        return UNKNOWN
    s, r, j = c.knowledge[0], c.workers.shape[0], owner(c, i)
    if s.mode == INFLIGHT:
        return j
    arrive(c, c.tracker.clock)
    scraped = s.first_scrape + s.arrived % s.slots
    if s.mode == SCRAPED:
        return int(scraped)
    if c.knowers[j].scrape != s.arrived:
        c.knowers[j].scrape = s.arrived
        for k in range(r):
            clear(c, j * r + k)
            add(c, j * r + k, scraped * r + k)
            for number in range(s.arrived, s.taken + 1):
                add(c, j * r + k, sent_block(s, j, number) * r + k)
    return j


@jit
def caches_known(c: Cluster, block: int) -> float:
    """Return as of when the router knows the prefix caches, seconds."""
    late = c.problems[0].cache_staleness
    if block != UNKNOWN and late == 0.0 and c.knowledge[0].mode != INFLIGHT:
        return float(c.taken_at[c.knowledge[0].arrived % c.knowledge[0].slots])
    return float(c.tracker.clock - late)


@jit
def begin_of_scan(c: Cluster, i: int, first: int, last: int, block: int) -> int:
    """Return the worker that wins ties: the lowest index; with scrapes each in turn."""
    if block == UNKNOWN or c.knowledge[0].mode == INFLIGHT or last <= first:
        return first
    j = owner(c, i)
    return int(first + (c.knowers[j].answers + j) % (last - first))


@jit_expand
def router_view(c: Cluster, request: int, first: int, last: int, boundary: int) -> RouterView:
    """Return what a router observes, see :class:`~kvgym.simulator.cluster.router_view.RouterView`."""
    block, session, r = known_block(c, request), session_of(c, request), c.workers.shape[0]
    begin, end = (0, 0) if block == UNKNOWN else (block * r, block * r + r)
    active, contents, changed, below, chain, prefix = tables_of_caches(c)
    return RouterView(
        c.problems,
        c.workers if block == UNKNOWN else c.seen[begin:end],
        c.requests,
        active,
        contents,
        changed,
        below,
        chain,
        prefix,
        c.tracker.clock,
        request,
        first,
        last,
        boundary,
        session,
        last_worker_of(c, session, first),
        c.open,
        c.seen_backlog[begin:end],
        caches_known(c, block),
        begin_of_scan(c, request, first, last, block),
    )
