"""Entry points of the compiled core for one worker: run under a compiled policy, or one boundary at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvgym.compiling.kernel import Kernel, jit_expand, jit_inline, kernel, uncompiled
from kvgym.compiling.pointers import address_of, function_at, function_handle, view_at
from kvgym.compiling.references import by_address
from kvgym.compiling.tables import declared, in_rows, opener
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE
from kvgym.simulator.boundary import RUN_TABLES, PlainRun, Run, SpecRun, next_boundary
from kvgym.simulator.engine import carry_out, clear_decision
from kvgym.simulator.policy_interface import POLICY_SIGNATURE, PolicyMemory, decision_of, view_of
from kvgym.simulator.tables import BUDGET, DECIDE, OK

_NUM_TABLES, _MEMORY_TABLES = len(RUN_TABLES), declared(PolicyMemory)
_BATCH_TIME = 2 * _NUM_TABLES
_PARAMS, _POLICY, _MEMORY = _BATCH_TIME + 2, _BATCH_TIME + 4, _BATCH_TIME + 6

ROW_LENGTH = _MEMORY + 2 * len(_MEMORY_TABLES)
"""Length of the row of :func:`worker_row`."""

_batch_time_at, _policy_at = function_at(BATCH_TIME_SIGNATURE), function_at(POLICY_SIGNATURE)
_f8_at = view_at("f8")

_PLACES = {
    field: (table, k, _NUM_TABLES + k)
    for k, (field, table) in enumerate(zip(Run._fields, RUN_TABLES.values(), strict=True))
}
_full_at, _plain_at, _spec_at = (in_rows(kind, _PLACES) for kind in (Run, PlainRun, SpecRun))


@jit_expand
def open_full(where: Any) -> Run:
    """Open the tables of a row of addresses."""
    return _full_at(where, where)


@jit_expand
def open_plain(where: Any) -> PlainRun:
    """Open the tables of a run without prefix cache and sessions."""
    return _plain_at(where, where)


@jit_expand
def open_spec(where: Any) -> SpecRun:
    """Open the tables of a run with speculation."""
    return _spec_at(where, where)


open_memory: Callable[[Any], PolicyMemory] = opener(
    PolicyMemory,
    "def open_memory(where):",
    "Open the memory of the policy.",
    [
        table.opening(f"where[{_MEMORY + 2 * k}]", f"where[{_MEMORY + 2 * k + 1}]")
        for k, table in enumerate(_MEMORY_TABLES.values())
    ],
)


@jit_expand
def open_batch_time(where: Any) -> Any:
    """Return the batch-time kernel."""
    return _batch_time_at(where[_BATCH_TIME], where[_BATCH_TIME + 1])


@jit_expand
def open_params(where: Any) -> Any:
    """Open the parameters of the batch-time kernel."""
    return _f8_at(where[_PARAMS], where[_PARAMS + 1])


@jit_expand
def open_policy(where: Any) -> Any:
    """Return the kernel of the policy."""
    return _policy_at(where[_POLICY], where[_POLICY + 1])


def worker_row(
    tables: Run,
    batch_time: Kernel,
    batch_params: NDArray[np.float64],
    policy: Kernel | None,
    memory: PolicyMemory,
    *,
    compiled: bool,
) -> NDArray[np.int64]:
    """Return the addresses of all that a worker needs, int64 (k,); the caller keeps all tables alive.

    A call from Python into compiled code pays for each array and function, so entry points get one row instead.

    Args:
        tables: of one worker, with or without a leading axis of length 1.
        batch_time: its batch-time kernel.
        batch_params: the parameters of that.
        policy: kernel of the policy; None = it decides in Python.
        memory: memory of the policy.
        compiled: whether the row is for compiled code.
    """

    def handle(function: Kernel | None, signature: Any) -> tuple[int, int]:
        if function is None:
            return 0, 0
        return function_handle(
            function.compiled if compiled else uncompiled(function), signature, compiled=compiled
        )

    sizes = [array.size for array in tables]
    places = [address_of(array) if size else 0 for array, size in zip(tables, sizes, strict=True)]
    places += sizes
    places += handle(batch_time, BATCH_TIME_SIGNATURE)
    places += (address_of(batch_params), batch_params.size, *handle(policy, POLICY_SIGNATURE))
    places += (number for array in memory for number in (address_of(array), array.size))
    return np.array(places, np.int64)


@jit_inline
def run_worker(run: Run, where: Any, budget: int) -> int:
    """Run one worker; arguments and result as of :func:`run_loop`."""
    batch_time, batch_params, policy = open_batch_time(where), open_params(where), open_policy(where)
    view = by_address(view_of(run, batch_time, batch_params))
    decision, known = by_address(decision_of(run)), by_address(open_memory(where))
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


_LOOP = types.int64(types.int64[::1], types.int64)


@kernel(_LOOP, "simulator")
def run_loop(where: Any, budget: int) -> int:
    """Run a worker until the run ends, an error occurs, or ``budget`` decisions have been made.

    This is without prefix cache and sessions; their code costs time even where it is not used, so runs with them have a
    kernel of their own.

    Args:
        where: the row of :func:`worker_row`.
        budget: decisions.

    Returns:
        DONE, HORIZON, LOG_FULL (call again with a longer log), BUDGET, STALLED, DEADLOCK, or the code of a
        refused decision, with details in ``tracker``.
    """
    return int(run_worker(open_plain(where), where, budget))


@kernel(_LOOP, "simulator")
def run_full_loop(where: Any, budget: int) -> int:
    """Run a worker with a prefix cache or sessions; arguments and result as of :func:`run_loop`."""
    return int(run_worker(open_full(where), where, budget))


@kernel(types.int64(types.int64[::1]), "simulator")
def decide(where: Any) -> int:
    """Call a worker's policy once: it writes its decision, which nothing executes. Return OK."""
    run = open_full(where)
    view = by_address(view_of(run, open_batch_time(where), open_params(where)))
    open_policy(where)(view, by_address(decision_of(run)), by_address(open_memory(where)))
    return OK


@kernel(_LOOP, "simulator")
def step_worker(where: Any, act: int) -> int:
    """Execute the decision in the tables if ``act`` is 1, then advance to the next boundary.

    Returns:
        DECIDE with the decision reset, or a reason to stop as in :func:`run_loop`.
    """
    run = open_full(where)
    if act == 1:
        status = carry_out(run, open_batch_time(where), open_params(where))
        if status != OK:
            return status
    status = next_boundary(run)
    if status == DECIDE:
        clear_decision(run)
    return status


STEPS, ADVANCES = -2, -1
"""What :func:`run_spec_loop` does in place of decisions of a kernel: as :func:`step_worker` with ``act`` 1 and 0."""


@kernel(_LOOP, "simulator")
def run_spec_loop(where: Any, budget: int) -> int:
    """Run a worker with speculation; arguments and result as of :func:`run_loop`.

    With :data:`STEPS` or :data:`ADVANCES` as ``budget`` it is :func:`step_worker`, so that both share compiled code.
    """
    run = open_spec(where)
    batch_time, batch_params, policy = open_batch_time(where), open_params(where), open_policy(where)
    view = by_address(view_of(run, batch_time, batch_params))
    decision, known = by_address(decision_of(run)), by_address(open_memory(where))
    decided, made = budget == STEPS, 0
    while True:
        if decided:
            status = carry_out(run, batch_time, batch_params)
            if status != OK:
                return int(status)
            made += 1
        if made == budget:
            return BUDGET
        status = next_boundary(run)
        if status != DECIDE:
            return int(status)
        clear_decision(run)
        if budget < 0:
            return DECIDE
        policy(view, decision, known)
        decided = True
