"""The tables of a cluster, and how compiled code opens them by address.

A call costs the same for any number of workers, see :mod:`kvgym.compiling.pointers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from numba import types

from kvgym.compiling.kernel import jit_expand
from kvgym.compiling.pointers import function_at, view_at
from kvgym.compiling.tables import Table, declared, opener
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE
from kvgym.simulator.boundary import RUN_TABLES, Run
from kvgym.simulator.policy_interface import POLICY_SIGNATURE, RuleMemory, table_type
from kvgym.simulator.tables import (
    ITERATION,
    MOVE,
    PROBLEM,
    REQUEST,
    SLOT,
    TRACKER,
    WORKER,
    WORKLOAD,
)

ROUTER_SIGNATURE = types.int64(
    table_type(PROBLEM),
    table_type(WORKER),
    table_type(REQUEST),
    types.int64,  # the request
    types.int64,  # first worker it may go to
    types.int64,  # last one, exclusive
    types.float64[::1],  # params: hyperparameters
    types.int64[::1],  # state: whole numbers the router keeps
)
"""Signature of a compiled router, which returns the worker for a request.

``(problems, workers, requests, i, first, last, params, state) -> worker``. Called when request ``i`` arrives, and
again when its prefill has ended on a prefill worker. It may change only ``state``.
"""

REASSIGN_SIGNATURE = types.int64(
    table_type(PROBLEM),
    table_type(WORKER),
    table_type(REQUEST),
    table_type(SLOT, 2),  # the active sets
    types.int64,  # the worker
    types.float64[::1],  # params
    types.int64[::1],  # state
)
"""Signature of the second kernel of a compiled router that reassigns: it returns a move, or UNKNOWN for none.

``(problems, workers, requests, active, k, params, state) -> move``. Called when a batch or a wait of worker ``k`` has
ended, before any worker decides, and again after every move that it returns. A move is request times the
number of workers plus worker, see :func:`kvgym.kernels.move_to`. It must change nothing but ``state``.
"""

_policy_at, _batch_time_at, _router_at, _reassign_at = map(
    function_at, (POLICY_SIGNATURE, BATCH_TIME_SIGNATURE, ROUTER_SIGNATURE, REASSIGN_SIGNATURE)
)
_i4_at, _f8_at, _slots_at = view_at("i4"), view_at("f8"), view_at(SLOT, 2)


class Cluster(NamedTuple):
    """The tables that all workers share, and addresses of each worker's own; ``events``: the event queue.

    Attributes:
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
    router_params: Annotated[Any, Table("f8", "params")]
    router_state: Annotated[Any, Table("i8", "state")]
    rows: Any
    sizes: Any
    handles: Any


SHARED = dict(zip(declared(Cluster), Cluster._fields, strict=False))
"""Names of the shared tables, in the order of the address array, and of their fields."""

MEMORY_TABLES = declared(RuleMemory)
ROW = (*RUN_TABLES, *MEMORY_TABLES, "batch_params")
"""Names of the tables of a worker, of its run, policy and batch times, in the order of its row of addresses."""

_ACTIVE, _QUEUED, _BATCH_PARAMS = map(ROW.index, ("active", "queued", "batch_params"))

POLICY, BATCH_TIME, ROUTER, REASSIGNING = 0, 2, 4, 6
"""Columns of the handles, two for each function; ROUTER, and REASSIGNING for moves, are only in row 0."""

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

run_of: Callable[[Cluster, int], Run] = opener(
    Run,
    "def run_of(c, k):\n    a, n = c.rows[k], c.sizes[k]",
    "Open the tables of worker ``k``.",
    [
        (f"c.{SHARED[name]}" if table.shared else f"c.{SHARED[name]}[k]")
        if name in SHARED
        else table.opening(f"a[{j}]", f"n[{j}]")
        for j, (name, table) in enumerate(RUN_TABLES.items())
    ],
)

memory_of: Callable[[Cluster, int], RuleMemory] = opener(
    RuleMemory,
    "def memory_of(c, k):\n    a, n = c.rows[k], c.sizes[k]",
    "Open what the policy of worker ``k`` remembers.",
    [
        table.opening(f"a[{j}]", f"n[{j}]")
        for j, table in enumerate(MEMORY_TABLES.values(), start=len(RUN_TABLES))
    ],
)


@jit_expand
def batch_params_of(c: Cluster, k: int) -> Any:
    """Open the parameters of the batch-time kernel of worker ``k``."""
    return _f8_at(c.rows[k][_BATCH_PARAMS], c.sizes[k][_BATCH_PARAMS])


@jit_expand
def queued_of(c: Cluster, k: int) -> Any:
    """Open the list of requests that joined the queue of worker ``k``."""
    return _i4_at(c.rows[k][_QUEUED], c.sizes[k][_QUEUED])


@jit_expand
def active_sets(c: Cluster) -> Any:
    """Open the active sets of all workers, SLOT (r, A), which are contiguous in memory."""
    return _slots_at(c.rows[0, _ACTIVE], c.workers.shape[0], c.sizes[0, _ACTIVE])


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
    return _reassign_at(c.handles[0, REASSIGNING], c.handles[0, REASSIGNING + 1])
