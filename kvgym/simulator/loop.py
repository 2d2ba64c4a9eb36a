"""Entry points of the compiled core for one worker: run under a compiled policy, or one boundary at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types

from kvgym.compiling.kernel import jit_inline, kernel
from kvgym.compiling.references import by_address
from kvgym.compiling.tables import opener
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE
from kvgym.simulator.boundary import RUN_TABLES, PlainRun, Run, next_boundary
from kvgym.simulator.engine import carry_out, clear_decision
from kvgym.simulator.policy_interface import (
    MEMORY,
    POLICY_SIGNATURE,
    decision_of,
    table_type,
    tuple_type,
    view_of,
)
from kvgym.simulator.tables import BUDGET, DECIDE, OK

_TABLES = tuple_type(
    Run, *(table_type(t.dtype, 1 if t.shared or not t.length else 2) for t in RUN_TABLES.values())
)
_BATCH_TIME = (types.FunctionType(BATCH_TIME_SIGNATURE), types.float64[::1])

_FIRST_WORKER = [
    f"tables.{field}" + ("" if table.shared and table.length else "[0]")
    for field, table in zip(Run._fields, RUN_TABLES.values(), strict=True)
]

first_worker: Callable[[Run], Run] = opener(
    Run, "def first_worker(tables):", "Return the tables of the first worker.", _FIRST_WORKER
)

first_plain: Callable[[Run], PlainRun] = opener(
    PlainRun,
    "def first_plain(tables):",
    "Return the tables of the first worker of a run without prefix cache and sessions.",
    _FIRST_WORKER,
)

_LOOP = types.int64(_TABLES, types.FunctionType(POLICY_SIGNATURE), MEMORY, *_BATCH_TIME, types.int64)


@jit_inline
def run_worker(run: Run, policy: Any, memory: Any, batch_time: Any, batch_params: Any, budget: int) -> int:
    """Run one worker; arguments and result as of :func:`run_loop`."""
    view = by_address(view_of(run, batch_time, batch_params))
    decision, known = by_address(decision_of(run)), by_address(memory)
    for _ in range(budget):
        status = next_boundary(run)
        if status != DECIDE:
            return int(status)
        clear_decision(run)
        policy(view, decision, known)
        status = carry_out(run, batch_time, batch_params)
        if status != OK:
            return int(status)
    return BUDGET


@kernel(_LOOP, "simulator")
def run_loop(tables: Run, policy: Any, memory: Any, batch_time: Any, batch_params: Any, budget: int) -> int:
    """Run a worker until the run ends, an error occurs, or ``budget`` decisions have been made.

    This is without prefix cache and sessions; their code costs time even where it is not used, so runs with them have a
    kernel of their own.

    Args:
        tables: the worker's tables, with a leading axis of length 1.
        policy: first-class function of :data:`~kvgym.simulator.policy_interface.POLICY_SIGNATURE`.
        memory: the policy's :class:`~kvgym.simulator.policy_interface.RuleMemory`.
        batch_time: first-class function of :data:`~kvgym.simulator.batch_time.BATCH_TIME_SIGNATURE`.
        batch_params: its parameters, float64 (k,).
        budget: decisions.

    Returns:
        DONE, HORIZON, LOG_FULL (call again with a longer log), BUDGET, STALLED, DEADLOCK, or the code of a
        refused decision, with details in ``tracker``.
    """
    return int(run_worker(first_plain(tables), policy, memory, batch_time, batch_params, budget))


@kernel(_LOOP, "simulator")
def run_full_loop(
    tables: Run, policy: Any, memory: Any, batch_time: Any, batch_params: Any, budget: int
) -> int:
    """Run a worker with a prefix cache or sessions; arguments and result as of :func:`run_loop`."""
    return int(run_worker(first_worker(tables), policy, memory, batch_time, batch_params, budget))


@kernel(types.int64(_TABLES, *_BATCH_TIME, types.int64), "simulator")
def step_worker(tables: Run, batch_time: Any, batch_params: Any, act: int) -> int:
    """Execute the decision in the tables if ``act`` is 1, then advance to the next boundary.

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
