"""Entry points of the compiled core: run to completion under a compiled policy, or one boundary at a time.

Arrays carry a leading worker axis of length r; a policy sees the row of its own worker.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from kvgym.compiling.kernel import jit_expand, kernel
from kvgym.compiling.references import by_address
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE
from kvgym.simulator.boundary import Run, next_boundary
from kvgym.simulator.engine import carry_out, clear_decision
from kvgym.simulator.policy_interface import (
    MEMORY,
    POLICY_SIGNATURE,
    decision_of,
    table_type,
    tuple_type,
    view_of,
)
from kvgym.simulator.tables import (
    BUDGET,
    DECIDE,
    DECISION,
    ITERATION,
    LOAD,
    OK,
    PROBLEM,
    REQUEST,
    SLOT,
    TRACKER,
    WORKER,
    WORKLOAD,
)


class Tables(NamedTuple):
    """The tables of a simulation of r workers; fields as of :class:`~kvgym.simulator.boundary.Run`.

    ``problem``, ``workers``, ``decision`` and ``load`` have shape (r,), ``tracker`` (1,); ``active``,
    ``targets``, ``queued``, ``finished``, ``admit``, ``admit_tokens`` and ``evict`` have a row for each worker.
    """

    problem: Any
    tracker: Any
    workers: Any
    decision: Any
    load: Any
    workload: Any
    requests: Any
    active: Any
    targets: Any
    queued: Any
    finished: Any
    admit: Any
    admit_tokens: Any
    evict: Any
    gap_counts: Any
    gap_sums: Any
    log: Any


_TABLES = tuple_type(
    Tables,
    *map(table_type, (PROBLEM, TRACKER, WORKER, DECISION, LOAD, WORKLOAD, REQUEST)),
    table_type(SLOT, 2),
    *(types.int32[:, ::1],) * 6,
    types.int64[::1],
    types.float64[::1],
    table_type(ITERATION),
)
_BATCH_TIME = (types.FunctionType(BATCH_TIME_SIGNATURE), types.float64[::1])


@jit_expand
def first_worker(t: Tables) -> Run:
    """Return the tables of the first worker."""
    return Run(
        t.problem[0],
        t.tracker[0],
        t.workers[0],
        t.decision[0],
        t.load[0],
        t.workload,
        t.requests,
        t.active[0],
        t.targets[0],
        t.queued[0],
        t.finished[0],
        t.admit[0],
        t.admit_tokens[0],
        t.evict[0],
        t.gap_counts,
        t.gap_sums,
        t.log,
    )


@kernel(
    types.int64(_TABLES, types.FunctionType(POLICY_SIGNATURE), MEMORY, *_BATCH_TIME, types.int64), "simulator"
)
def run_loop(
    tables: Tables, policy: Any, memory: Any, batch_time: Any, batch_params: Any, budget: int
) -> int:
    """Run until all is done, something is wrong, or ``budget`` decisions have been made.

    Args:
        tables: those of one worker.
        policy: first-class function of :data:`~kvgym.simulator.policy_interface.POLICY_SIGNATURE`.
        memory: the policy's :class:`~kvgym.simulator.policy_interface.RuleMemory`.
        batch_time: first-class function of :data:`~kvgym.simulator.batch_time.BATCH_TIME_SIGNATURE`.
        batch_params: its parameters, float64 (k,).
        budget: decisions.

    Returns:
        DONE, HORIZON, LOG_FULL (call again with a longer log), BUDGET, STALLED, DEADLOCK, or the code of a
        refused decision, whose details are in ``tracker``.
    """
    run = first_worker(tables)
    view = by_address(view_of(run, batch_time, batch_params))
    decision, known = by_address(decision_of(run)), by_address(memory)
    for _ in range(budget):
        status = next_boundary(run)
        if status != DECIDE:
            return status
        clear_decision(run)
        policy(view, decision, known)
        status = carry_out(run, batch_time, batch_params)
        if status != OK:
            return status
    return BUDGET


@kernel(types.int64(_TABLES, *_BATCH_TIME, types.int64), "simulator")
def step_worker(tables: Tables, batch_time: Any, batch_params: Any, act: int) -> int:
    """Carry out the decision in the tables if ``act`` is 1, then go to the next boundary.

    Returns:
        DECIDE with the decision reset, or a reason to stop as in :func:`run_loop`.
    """
    run = first_worker(tables)
    if act == 1:
        status = carry_out(run, batch_time, batch_params)
        if status != OK:
            return status
    status = next_boundary(run)
    if status == DECIDE:
        clear_decision(run)
    return status
