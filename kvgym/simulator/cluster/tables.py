"""The tables of a cluster, and how compiled code opens them by address.

A call costs the same for any number of workers, see :mod:`kvgym.compiling.pointers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
from numba import types

from kvgym.compiling.kernel import jit, jit_expand
from kvgym.compiling.pointers import function_at, view_at
from kvgym.compiling.tables import Table, declared, in_rows, opener
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE
from kvgym.simulator.boundary import RUN_TABLES, Run
from kvgym.simulator.cluster.router_view import ROUTER_SIGNATURE
from kvgym.simulator.policy_interface import POLICY_SIGNATURE, PolicyMemory
from kvgym.simulator.prefix.host_memory import BELOW
from kvgym.simulator.sessions import TURN
from kvgym.simulator.tables import (
    CONTENT,
    ITERATION,
    MOVE,
    PREFIX,
    PROBLEM,
    REQUEST,
    ROLE_DECODE,
    SLOT,
    TRACKER,
    UNKNOWN,
    WORKER,
    WORKLOAD,
)

_policy_at, _batch_time_at, _router_at = map(
    function_at, (POLICY_SIGNATURE, BATCH_TIME_SIGNATURE, ROUTER_SIGNATURE)
)
_i4_at, _f8_at = view_at("i4"), view_at("f8")
_slots_at, _contents_at, _changed_at = view_at(SLOT, 2), view_at(CONTENT, 2), view_at("f8", 2)
_below_at = view_at(BELOW, 2)
_prefix_at = view_at(PREFIX)


FLEET = np.dtype(
    [
        ("due", "f8"),  # s, when a place may change its state; -inf: now
        ("control", "f8"),  # s, when the autoscaler is asked next
        ("open_first", "i8"),  # open places for requests that arrive
        ("open_decode", "i8"),  # open places for requests that have been prefilled elsewhere
        (
            "lacking",
            "i8",
        ),  # requests without a worker that have arrived before, those that come later included
        ("lacking_head", "i8"),  # those of them that can be routed now, in the order in which they came to
        ("lacking_tail", "i8"),
        ("leaving", "f8"),  # s, when a user may give up next
    ],
    align=True,
)
"""What the loop of a cluster knows of a fleet; other clusters have no such record."""

TRIP = np.dtype(
    [
        ("since", "f8"),  # s, since when it lacks a worker; NaN: it does not, or comes later
        ("source", "i8"),  # worker that it was on last before the transfer, UNKNOWN once that has stopped
    ],
    align=True,
)
"""What the loop of a cluster knows of a request of a fleet; other clusters have no such records."""

KNOWLEDGE = np.dtype(
    [
        ("mode", "i8"),  # EXACT, SCRAPED, INFLIGHT or BOTH
        ("routers", "i8"),
        ("interval", "f8"),  # s between scrapes
        ("delay", "f8"),  # s until one has arrived
        ("offset", "f8"),  # s, the first
        ("slots", "i8"),  # scrapes that are kept, number m in slot m mod slots
        ("first_scrape", "i8"),  # block of `seen` with slot 0
        ("next", "f8"),  # s, the next one; inf: there are none
        ("number", "i8"),  # its place in the grid of times
        ("taken", "i8"),  # scrapes taken so far; number 0 shows nothing
        ("arrived", "i8"),  # the last of them that has arrived
    ],
    align=True,
)
"""What routers and autoscalers know, see :mod:`kvgym.simulator.cluster.knowledge`."""

KNOWER = np.dtype([("answers", "i8"), ("scrape", "i8")], align=True)
"""A router: requests that it has sent, and the scrape in what it knows."""

SENDING = np.dtype([("worker", "i8"), ("scrape", "i8"), ("prefill", "i8")], align=True)
"""Where the router of a request has sent it, UNKNOWN if it is not there any more; the last scrape before, and the
prompt tokens that were to be computed.
"""


LEAVES, WHOLE, SENT, KEPT = 1, 2, 3, 4
"""Where a request is decoded: it will be handed over, it is where it is prefilled, it has been handed over to another
worker, or to its own source.
"""

LINK = np.dtype(
    [
        ("num_flows", "i8"),  # transfers on shared links now
        ("layers", "i8"),  # of the model, where a prefill and its transfer overlap; 0: they do not
    ],
    align=True,
)
"""How transfers use links, see :mod:`kvgym.simulator.cluster.links`."""

PORT = np.dtype(
    [
        ("num_sent", "i4"),  # transfers from the worker now
        ("num_received", "i4"),  # and to it
        ("first_sent", "i4"),  # one of them each, UNKNOWN if there is none
        ("first_received", "i4"),
    ],
    align=True,
)
"""The ports of a worker, if links are shared."""

FLOW = np.dtype(
    [
        ("left", "f8"),  # tokens that are left to send, as of `since`
        ("since", "f8"),  # s, when it got its present share; while nothing moves, the end of the latency
        ("alone", "f8"),  # s, when it would end without others
        ("waited", "f8"),  # s that sharing has cost the transfers of this request that have ended
        ("share", "i4"),  # transfers at the busier of its ports
        ("source", "i4"),  # worker
        ("place", "i4"),  # in the heap of all transfers by their ends
        ("heap", "i4"),  # request of the transfer in this place of that heap
        ("next_sent", "i4"),  # neighbours at the port of its source
        ("before_sent", "i4"),
        ("next_received", "i4"),  # and of its target
        ("before_received", "i4"),
    ],
    align=True,
)
"""The transfer of a request on shared links."""


class Cluster(NamedTuple):
    """The tables that all workers share, and addresses of each worker's own; ``events``: the event queue.

    Attributes:
        session: int32 (n,), number of the session of each row of the workload; empty without sessions, as is the next.
        link: one record if links are shared or transfers overlap with prefills, else none; ``ports``: PORT (r,) and
            ``flows``: FLOW (n,), by request, if they are shared, else empty.
        stage: uint8 (n,), LEAVES, WHOLE, SENT or KEPT for each request that has been routed, 0 before; empty unless
            the router chooses where requests are prefilled (``local_prefill``).
        open: uint8 (r,), CLOSED, OPEN or DRAINING for each place of a fleet; empty without one, as are ``fleet`` and
            ``trips`` (n,).
        knowledge: with the next five what routers know, see :mod:`kvgym.simulator.cluster.knowledge`; empty if that is
            the present.
        last_worker: int32 (2 s,), the worker of the last request of each session, UNKNOWN before; then the same for
            decode workers that requests were handed over to.
        rows: int64 (r, len(ROW)), addresses of the tables of each worker.
        sizes: int64 (r, len(ROW)), their lengths.
        handles: int64 (r, 8), handles of each worker's functions, see POLICY.
    """

    tracker: Annotated[Any, Table(TRACKER)]
    problems: Annotated[Any, Table(PROBLEM, "workers", name="problem")]
    workers: Annotated[Any, Table(WORKER, "workers")]
    workload: Annotated[Any, Table(WORKLOAD, "num_requests")]
    requests: Annotated[Any, Table(REQUEST, "num_requests")]
    log: Annotated[Any, Table(ITERATION, "log")]
    moves: Annotated[Any, Table(MOVE, "moves")]
    events: Annotated[Any, Table("f8", "events")]
    turns: Annotated[Any, Table(TURN, "turns")]
    session: Annotated[Any, Table("i4", "sessions")]
    last_worker: Annotated[Any, Table("i4", "sessions")]
    open: Annotated[Any, Table("u1", "open", name="open_places")]
    fleet: Annotated[Any, Table(FLEET, "fleet", name="fleet_tracker")]
    trips: Annotated[Any, Table(TRIP, "trips")]
    link: Annotated[Any, Table(LINK, "link")]
    ports: Annotated[Any, Table(PORT, "ports")]
    flows: Annotated[Any, Table(FLOW, "flows")]
    stage: Annotated[Any, Table("u1", "stage")]
    knowledge: Annotated[Any, Table(KNOWLEDGE, "knowledge")]
    seen: Annotated[Any, Table(WORKER, "seen")]
    seen_backlog: Annotated[Any, Table("i8", "seen")]
    taken_at: Annotated[Any, Table("f8", "slots")]
    knowers: Annotated[Any, Table(KNOWER, "routers")]
    sent: Annotated[Any, Table(SENDING, "sent")]
    router_params: Annotated[Any, Table("f8", "params")]
    router_state: Annotated[Any, Table("i8", "state")]
    rows: Any
    sizes: Any
    handles: Any


SHARED = dict(zip(declared(Cluster), Cluster._fields, strict=False))
"""Names of the shared tables, in the order of the address array, and of their fields."""

MEMORY_TABLES = declared(PolicyMemory)
ROW = (*RUN_TABLES, *MEMORY_TABLES, "batch_params")
"""Names of the tables of a worker, of its run, policy and batch times, in the order of its row of addresses."""

_ACTIVE, _QUEUED, _CONTENTS, _CHANGED, _BELOW, _CHAIN, _PREFIX, _BATCH_PARAMS = map(
    ROW.index, ("active", "queued", "contents", "changed", "below", "chain", "prefix", "batch_params")
)

POLICY, BATCH_TIME, ROUTER, REASSIGNING = 0, 2, 4, 6
"""Columns of the handles, two for each function; ROUTER, and REASSIGNING for moves, are only in row 0."""

CLUSTER_PLACES = (types.int64[::1],) * 2 + (types.int64[:, ::1],) * 3
"""Numba types of the arguments of :data:`open_cluster`: addresses and lengths of the shared tables, then ``rows``,
``sizes`` and ``handles``.
"""

open_cluster: Callable[[Any, Any, Any, Any, Any], Cluster] = opener(
    Cluster,
    "def open_cluster(shared, lengths, rows, sizes, handles):",
    "Open the shared tables, of their addresses and lengths.",
    [
        *(t.opening(f"shared[{j}]", f"lengths[{j}]") for j, t in enumerate(declared(Cluster).values())),
        "rows",
        "sizes",
        "handles",
    ],
)

_run_at = in_rows(
    Run,
    {
        field: (table, j, j)
        for j, (field, table) in enumerate(zip(Run._fields, RUN_TABLES.values(), strict=True))
    },
)


@jit_expand
def run_of(c: Cluster, k: int) -> Run:
    """Open the tables of worker ``k``."""
    return _run_at(c.rows[k], c.sizes[k])


memory_of: Callable[[Cluster, int], PolicyMemory] = opener(
    PolicyMemory,
    "def memory_of(c, k):\n    a, n = c.rows[k], c.sizes[k]",
    "Open what the policy of worker ``k`` remembers.",
    [
        table.opening(f"a[{j}]", f"n[{j}]")
        for j, table in enumerate(MEMORY_TABLES.values(), start=len(RUN_TABLES))
    ],
)


@jit
def session_of(c: Cluster, i: int) -> int:
    """Return the number of the session of request ``i``, UNKNOWN if there is none."""
    if i == UNKNOWN or c.session.shape[0] == 0:
        return UNKNOWN
    return int(c.session[c.turns[i].row if c.turns.shape[0] > 0 else i])


@jit
def last_worker_of(c: Cluster, session: int, first: int) -> int:
    """Return the last worker of a session among those from ``first`` on: all, or all that decode."""
    if session == UNKNOWN:
        return UNKNOWN
    return int(c.last_worker[session + (c.last_worker.shape[0] // 2 if first > 0 else 0)])


@jit
def remember_worker(c: Cluster, i: int, k: int) -> None:
    """Remember that request ``i`` of a session goes to worker ``k``."""
    session = session_of(c, i)
    if session != UNKNOWN:
        c.last_worker[session + (c.last_worker.shape[0] // 2 if c.workers[k].role == ROLE_DECODE else 0)] = k


@jit_expand
def batch_params_of(c: Cluster, k: int) -> Any:
    """Open the parameters of the batch-time kernel of worker ``k``."""
    return _f8_at(c.rows[k][_BATCH_PARAMS], c.sizes[k][_BATCH_PARAMS])


@jit_expand
def queued_of(c: Cluster, k: int) -> Any:
    """Open the list of requests that joined the queue of worker ``k``."""
    return _i4_at(c.rows[k][_QUEUED], c.sizes[k][_QUEUED])


@jit_expand
def tables_of_caches(c: Cluster) -> Any:
    """Return active sets, contents and changes of prefix caches, and hosts by worker, and the chains of requests.

    The active sets of all workers are contiguous in memory, and so are the contents of their prefix caches and hosts.
    """
    count, a, n = c.workers.shape[0], c.rows[0], c.sizes[0]
    return (
        _slots_at(a[_ACTIVE], count, n[_ACTIVE]),
        _contents_at(a[_CONTENTS], count, n[_CONTENTS]),
        _changed_at(a[_CHANGED], count, n[_CHANGED]),
        _below_at(a[_BELOW], count, n[_BELOW]),
        _i4_at(a[_CHAIN], n[_CHAIN]),
        _prefix_at(a[_PREFIX], n[_PREFIX]),
    )


@jit_expand
def policy_of(c: Cluster, k: int) -> Any:
    """Return the kernel of the policy of worker ``k``."""
    return _policy_at(c.handles[k, POLICY], c.handles[k, POLICY + 1])


@jit_expand
def batch_time_of(c: Cluster, k: int) -> Any:
    """Return the batch-time kernel of worker ``k``."""
    return _batch_time_at(c.handles[k, BATCH_TIME], c.handles[k, BATCH_TIME + 1])


@jit_expand
def router_of(c: Cluster) -> Any:
    """Return the router's kernel."""
    return _router_at(c.handles[0, ROUTER], c.handles[0, ROUTER + 1])


@jit_expand
def reassign_of(c: Cluster) -> Any:
    """Return the router's kernel that moves requests."""
    return _router_at(c.handles[0, REASSIGNING], c.handles[0, REASSIGNING + 1])
