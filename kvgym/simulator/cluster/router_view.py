"""The view of compiled routers: what a router observes of the cluster, the request, and the prefix caches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit, uncompiled
from kvgym.compiling.references import Reference
from kvgym.simulator.policy_interface import table_type, tuple_type
from kvgym.simulator.prefix.host_memory import BELOW
from kvgym.simulator.tables import CONTENT, OPEN, PREFIX, PROBLEM, REQUEST, SLOT, UNKNOWN, WORKER
from kvgym.workloads.table import RequestTable

PREFILL_ONLY = 1 << 32
"""Added to the answer of a router, see :func:`prefill_only`."""


class RouterView(NamedTuple):
    """The view of a router's kernel: n requests in the run, r workers; read-only.

    Attributes:
        problems: PROBLEM (r,), the settings of each worker (``kv_capacity`` in tokens, ``batch_base`` …).
        workers: WORKER (r,), their state: of a running batch when it began. Of a router that does not see the present,
            what it knows: ``num_waiting``, ``num_active``, ``kv_tokens``, ``kv_allocated``, ``outstanding_requests``,
            ``outstanding_tokens``; ``index`` and ``role`` are always there, and no batch is known to run.
        requests: REQUEST (n,), by request id; rows of requests that have not arrived are blank, and so are the
            columns that the scheduler of the workers did not declare to need.
        active: SLOT (r, A), the active sets; the first ``workers[k].num_active`` rows of worker k count.
        contents: CONTENT (r, D), the contents of the prefix caches, for :func:`hit_of`. D = 0 without a cache, as in
            the next four tables.
        changed: float64 (r, D), when a content last came to a worker's cache or left it, seconds; only if the router
            knows caches late.
        below: BELOW (r, D), what is below the GPU of each worker, for :func:`found_of`; D = 0 without.
        chain: int32 (T,), the contents of the chains of all requests.
        prefix: PREFIX (n,), the place of each request's chain.
        clock: present time, seconds.
        request: the request to be routed; UNKNOWN when requests may be moved.
        first: first worker that it may go to.
        last: the end of these workers, exclusive.
        boundary: the worker that has just ended a batch or a wait, when requests may be moved; else UNKNOWN.
        session: number of the request's session, from 0; UNKNOWN without sessions.
        previous: the worker of the session's previous request, for a request that is handed over the worker that
            decoded it; UNKNOWN if there is none.
        open: uint8 (r,), whether each place of a fleet takes requests, see :func:`may_go`; empty if all do.
        backlog: int64 (r,), the prompt tokens that each worker has to compute, for :func:`prefill_backlog`; empty if
            the router sees the present.
        caches_known: as of when it knows the prefix caches, seconds.
        begin: the worker that wins ties, see :func:`first_open`.
    """

    problems: Any
    workers: Any
    requests: Any
    active: Any
    contents: Any
    changed: Any
    below: Any
    chain: Any
    prefix: Any
    clock: Any
    request: Any
    first: Any
    last: Any
    boundary: Any
    session: Any
    previous: Any
    open: Any
    backlog: Any
    caches_known: Any
    begin: Any

    def hits(self) -> NDArray[np.int64]:
        """Return :func:`hit_of` of each worker in plain Python, int64 (r,)."""
        return np.array([uncompiled(hit_of)(self, k) for k in range(len(self.workers))], np.int64)


REJECT = -2
"""Answer of a router that refuses the request, which has just arrived; it must declare ``sheds``."""

ROUTER_SIGNATURE = types.int64(
    Reference(
        tuple_type(
            RouterView,
            table_type(PROBLEM),
            table_type(WORKER),
            table_type(REQUEST),
            table_type(SLOT, 2),
            table_type(CONTENT, 2),
            types.float64[:, ::1],
            table_type(BELOW, 2),
            types.int32[::1],
            table_type(PREFIX),
            types.float64,
            *(types.int64,) * 6,
            types.uint8[::1],
            types.int64[::1],
            types.float64,
            types.int64,
        )
    ),
    types.float64[::1],
    types.int64[::1],
)
"""Signature of a compiled router, ``(view, params, state) -> answer``; it may change only ``state``.

The answer of the kernel that routes is a worker for ``view.request``, or REJECT. It is called when a request arrives,
and again when its prefill has ended on a prefill worker. With ``local_prefill`` of the system, :func:`may_choose`, the
answer may be any worker that takes requests: when it arrives also a decode worker, which then serves all of it, or
:func:`prefill_only` of any; when its prefill has ended also the worker that has prefilled it.

The answer of the second kernel of a router that reassigns is a move (:func:`kvgym.kernels.move_to`), or UNKNOWN for
none. It is called when a batch or a wait of worker ``view.boundary`` has ended, before any worker decides, and again
after every move that it returns.
"""


@jit
def may_go(view: RouterView, k: int) -> bool:
    """Return whether worker ``k`` takes requests now: always, but in a fleet only while it is ready."""
    return bool(view.open.shape[0] == 0 or view.open[k] == OPEN)


@jit
def prefill_only(k: int) -> int:
    """Return the answer that a new request is prefilled by worker ``k`` and then handed over, whatever its role."""
    return k + PREFILL_ONLY


@jit
def may_choose(view: RouterView) -> bool:
    """Return whether a request may go to any worker that takes requests (``local_prefill``), not only by its role."""
    return bool(view.problems[0].hands_over == 0)


@jit
def first_open(view: RouterView) -> int:
    """Return the first worker, in the order of ties, that the request may go to; there always is one.

    That order begins at ``view.begin``: ``first``, but for routers that know scrapes each worker in turn.
    """
    k = view.begin
    while not may_go(view, k):
        k += 1
        if k == view.last:
            k = view.first
    return int(k)


@jit
def next_open(view: RouterView, k: int) -> int:
    """Return the worker after ``k``, in the order of ties, that the request may go to; UNKNOWN after the last."""
    while True:
        k += 1
        if k == view.last:
            k = view.first
        if k == view.begin:
            return UNKNOWN
        if may_go(view, k):
            return int(k)


@jit
def is_cached(view: RouterView, k: int, content: int) -> bool:
    """Return whether a content is in the prefix cache of worker ``k``, as the router knows it.

    A router that knows caches late does not know the last change of a content until that time has passed.
    """
    cached = view.contents[k, content].unit != UNKNOWN
    if view.changed.shape[1] > 0 and view.changed[k, content] > view.caches_known:
        cached = not cached
    return bool(cached)


@jit
def units_to_find(view: RouterView, k: int) -> int:
    """Return how many units of the request to be routed worker ``k`` could have; 0 without a prefix cache."""
    unit, r = view.problems[k].prefix_unit, view.requests[view.request]
    if unit == 0:
        return 0
    tokens = r.num_kv_tokens if r.num_kv_tokens > 0 else r.num_prefill_left - 1
    return int(min(tokens // unit, view.prefix[view.request].length))


@jit
def hit_of(view: RouterView, k: int) -> int:
    """Return how many tokens of the request to be routed worker ``k`` has in its prefix cache.

    These are the prompt tokens that it need not compute, of a request that is handed over the KV tokens that need not
    be transferred. It takes a step for each unit of the prefix cache that is found.
    """
    most, found = units_to_find(view, k), 0
    while found < most and is_cached(view, k, view.chain[view.prefix[view.request].chain + found]):
        found += 1
    return int(found * view.problems[k].prefix_unit)


@jit
def found_of(view: RouterView, k: int) -> int:
    """Return how many tokens of the request worker ``k`` has in its prefix cache or below its GPU.

    The router knows what is below as it is, even if it knows the caches late.
    """
    most, found = units_to_find(view, k), 0
    while found < most:
        content = view.chain[view.prefix[view.request].chain + found]
        if not (
            is_cached(view, k, content) or (view.below.shape[1] > 0 and view.below[k, content].there > 0)
        ):
            break
        found += 1
    return int(found * view.problems[k].prefix_unit)


@jit
def missing_of(view: RouterView, k: int) -> int:
    """Return how many tokens worker ``k`` lacks: to be computed, or of a request that is handed over, transferred."""
    r = view.requests[view.request]
    return int(r.num_kv_tokens + r.num_prefill_left - hit_of(view, k))


@jit
def prefills_left(w: Any, requests: Any, active: Any) -> int:
    """Return how many tokens the waiting and active requests of a worker have yet to prefill."""
    tokens, i = 0, w.queue_head
    while i != UNKNOWN:
        tokens += requests[i].num_prefill_left
        i = requests[i].queue_next
    if w.num_prefilling > 0:
        for j in range(w.num_active):
            tokens += active[j].num_prefill_left
    return int(tokens)


@jit
def prefill_backlog(view: RouterView, k: int) -> int:
    """Return how many tokens the requests of worker ``k`` have yet to prefill, as the router knows it."""
    if view.backlog.shape[0] > 0:
        return int(view.backlog[k])
    return prefills_left(view.workers[k], view.requests, view.active[k])


def session_tables(table: RequestTable) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the number of each row's session, and room for the workers of sessions; empty without sessions."""
    ids = np.zeros(0, np.int64) if table.session_id is None else table.session_id
    sessions, numbers = np.unique(ids, return_inverse=True)
    return numbers.astype(np.int32), np.full(2 * len(sessions), UNKNOWN, np.int32)
