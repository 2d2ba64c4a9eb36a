"""The tables of a cluster: which there are, and how compiled code opens them by address.

A call costs the same for any number of workers, see :mod:`kvgym.compiling.pointers`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from kvgym.compiling.kernel import jit_expand
from kvgym.compiling.pointers import function_at, view_at
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE
from kvgym.simulator.boundary import Run
from kvgym.simulator.policy_interface import POLICY_SIGNATURE, RuleMemory, table_type
from kvgym.simulator.tables import (
    DECISION,
    ITERATION,
    LOAD,
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
"""Signature of a compiled router: it returns the worker for a request.

``(problems, workers, requests, i, first, last, params, state) -> worker``. Called when request ``i`` arrives, and
again when its prefill has ended on a prefill worker. It must change nothing but ``state``.
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
ended, before anybody decides, and again after every move that it returns. A move is request times the number of
workers plus worker, see :func:`kvgym.kernels.move_to`. It must change nothing but ``state``.
"""

SHARED = (
    "tracker", "problem", "workers", "workload", "requests", "gap_counts", "gap_sums", "log", "moves", "agenda",
    "router_params", "router_state",
)  # fmt: skip
"""Tables of a cluster, in the order of the address array."""

ROWS = (
    "decision", "load", "active", "targets", "queued", "finished", "admit", "admit_tokens", "evict", "params",
    "state", "reals", "profile", "batch_params",
)  # fmt: skip
"""Tables of each worker, in the order of its row of addresses."""

tracker_at, problem_at, worker_at, workload_at = map(view_at, (TRACKER, PROBLEM, WORKER, WORKLOAD))
request_at, log_at, decision_at, load_at = map(view_at, (REQUEST, ITERATION, DECISION, LOAD))
slot_at, i4_at, i8_at, f8_at, move_at = map(view_at, (SLOT, "i4", "i8", "f8", MOVE))
slots_at = view_at(SLOT, 2)
policy_at, batch_time_at, router_at, reassign_at = map(
    function_at, (POLICY_SIGNATURE, BATCH_TIME_SIGNATURE, ROUTER_SIGNATURE, REASSIGN_SIGNATURE)
)


class Cluster(NamedTuple):
    """The tables all workers share, and where those of each worker lie; of ``agenda`` see that module."""

    tracker: Any
    problems: Any
    workers: Any
    workload: Any
    requests: Any
    gap_counts: Any
    gap_sums: Any
    log: Any
    moves: Any
    agenda: Any
    router_params: Any
    router_state: Any
    rows: Any
    sizes: Any
    handles: Any


@jit_expand
def open_cluster(shared: Any, shared_sizes: Any, rows: Any, sizes: Any, handles: Any) -> Cluster:
    """Open the shared tables."""
    a, n = shared, shared_sizes
    return Cluster(
        tracker_at(a[0], 1)[0],
        problem_at(a[1], n[1]),
        worker_at(a[2], n[2]),
        workload_at(a[3], n[3]),
        request_at(a[4], n[4]),
        i8_at(a[5], n[5]),
        f8_at(a[6], n[6]),
        log_at(a[7], n[7]),
        move_at(a[8], n[8]),
        f8_at(a[9], n[9]),
        f8_at(a[10], n[10]),
        i8_at(a[11], n[11]),
        rows,
        sizes,
        handles,
    )


@jit_expand
def run_of(c: Cluster, k: int) -> Run:
    """Open the tables of worker ``k``."""
    a, n = c.rows[k], c.sizes[k]
    return Run(
        c.problems[k],
        c.tracker,
        c.workers[k],
        decision_at(a[0], 1)[0],
        load_at(a[1], 1)[0],
        c.workload,
        c.requests,
        slot_at(a[2], n[2]),
        i4_at(a[3], n[3]),
        i4_at(a[4], n[4]),
        i4_at(a[5], n[5]),
        i4_at(a[6], n[6]),
        i4_at(a[7], n[7]),
        i4_at(a[8], n[8]),
        c.gap_counts,
        c.gap_sums,
        c.log,
    )


@jit_expand
def memory_of(c: Cluster, k: int) -> RuleMemory:
    """Open what the policy of worker ``k`` remembers."""
    a, n = c.rows[k], c.sizes[k]
    return RuleMemory(f8_at(a[9], n[9]), i8_at(a[10], n[10]), f8_at(a[11], n[11]), i4_at(a[12], n[12]))


@jit_expand
def batch_params_of(c: Cluster, k: int) -> Any:
    """Open the parameters of the batch-time kernel of worker ``k``."""
    return f8_at(c.rows[k][13], c.sizes[k][13])
