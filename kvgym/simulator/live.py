"""Entry point of the compiled core for a worker with batches that a real engine runs, not the simulator.

:class:`~kvgym.integrations.vllm.mirror.Mirror` keeps the tables of such a worker. A call from Python pays for each
array that it passes, so :func:`operate` gets one row of addresses, which :func:`live_row` makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvgym.compiling.kernel import Kernel, jit_inline, kernel, uncompiled
from kvgym.compiling.pointers import function_at, function_handle, runs_compiled, view_at
from kvgym.compiling.references import by_address
from kvgym.compiling.tables import declared, opener
from kvgym.simulator.apply_decision import free_memory
from kvgym.simulator.batch import close_up, complete, leave_batch
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE
from kvgym.simulator.boundary import RUN_TABLES, PlainRun, Run, depart, next_boundary, withdraw
from kvgym.simulator.engine import carry_out, clear_decision
from kvgym.simulator.policy_interface import POLICY_SIGNATURE, RuleMemory, decision_of, view_of
from kvgym.simulator.queue import queue_remove
from kvgym.simulator.tables import DECIDE, FINISHED, OK, WAITING

DECIDES, STEPS, ARRIVES, ENDS, ABORTS = 0, 1, 2, 3, 4
"""What :func:`operate` does: let the policy decide, execute the decision, queue those that have arrived, remove a
request that has finished, or one that was taken away.
"""

_NUM_TABLES, _MEMORY_TABLES = len(RUN_TABLES), declared(RuleMemory)
_BATCH_TIME = 2 * _NUM_TABLES
_PARAMS, _POLICY, _MEMORY = _BATCH_TIME + 2, _BATCH_TIME + 4, _BATCH_TIME + 6

_batch_time_at, _policy_at = function_at(BATCH_TIME_SIGNATURE), function_at(POLICY_SIGNATURE)
_f8_at = view_at("f8")

open_live: Callable[[Any], Run] = opener(
    PlainRun,
    "def open_live(where):",
    "Open the tables of the worker, which has neither a prefix cache nor sessions.",
    [
        table.opening(f"where[{k}]", f"where[{_NUM_TABLES + k}]")
        for k, table in enumerate(RUN_TABLES.values())
    ],
)

open_memory: Callable[[Any], RuleMemory] = opener(
    RuleMemory,
    "def open_memory(where):",
    "Open the memory of the policy.",
    [
        table.opening(f"where[{_MEMORY + 2 * k}]", f"where[{_MEMORY + 2 * k + 1}]")
        for k, table in enumerate(_MEMORY_TABLES.values())
    ],
)


def live_row(
    tables: Run,
    batch_time: Kernel,
    batch_params: NDArray[np.float64],
    policy: Kernel | None,
    memory: RuleMemory,
) -> NDArray[np.int64]:
    """Return the row of addresses for :func:`operate`, int64 (k,); the caller keeps all tables alive.

    Args:
        tables: of one worker.
        batch_time: its batch-time kernel.
        batch_params: the parameters of that.
        policy: kernel of the policy; None = it decides in Python.
        memory: memory of the policy.
    """
    compiled = runs_compiled(True)

    def handle(function: Kernel | None, signature: Any) -> tuple[int, int]:
        if function is None:
            return 0, 0
        chosen = function.compiled if compiled else uncompiled(function)
        return function_handle(chosen, signature, compiled=compiled)

    places = [*(array.ctypes.data for array in tables), *(array.size for array in tables)]
    places += handle(batch_time, BATCH_TIME_SIGNATURE)
    places += (batch_params.ctypes.data, batch_params.size, *handle(policy, POLICY_SIGNATURE))
    places += (number for array in memory for number in (array.ctypes.data, array.size))
    return np.array(places, np.int64)


@jit_inline
def end(run: Run, i: int) -> None:
    """Remove a running request that has finished."""
    w, k = run.w, 0
    while run.active[k].request_id != i:
        k += 1
    slot = run.active[k]
    w.num_prefilling -= 1 if slot.num_prefill_left > 0 else 0
    free_memory(run, slot)
    complete(w, run.requests, run.finished, slot, w.clock)
    close_up(run.active, run.targets, k + 1, w.num_active, 1)
    w.num_active -= 1


@jit_inline
def abort(run: Run, i: int) -> None:
    """Remove a request that runs or waits; the policy finds it among those that were taken away."""
    w, r = run.w, run.requests[i]
    withdraw(w, run.queued, i)
    depart(w, r)
    if r.status == WAITING:
        queue_remove(w, run.requests, i)
    else:
        leave_batch(run, i)
    r.status = FINISHED


@kernel(types.int64(types.int64[::1], types.int64, types.int64), "simulator")
def operate(where: Any, what: int, i: int) -> int:
    """Do one thing with the tables of a worker.

    Args:
        where: the row of :func:`live_row`.
        what: one of :data:`DECIDES` … :data:`ABORTS`.
        i: the request that has finished or was taken away.

    Returns:
        As :func:`~kvgym.simulator.loop.step_worker`.
    """
    run = open_live(where)
    if what == ENDS:
        end(run, i)
        return OK
    if what == ABORTS:
        abort(run, i)
        return OK
    batch_time = _batch_time_at(where[_BATCH_TIME], where[_BATCH_TIME + 1])
    params = _f8_at(where[_PARAMS], where[_PARAMS + 1])
    if what == DECIDES:
        clear_decision(run)
        view, decision = by_address(view_of(run, batch_time, params)), by_address(decision_of(run))
        _policy_at(where[_POLICY], where[_POLICY + 1])(view, decision, by_address(open_memory(where)))
        return OK
    if what == STEPS:
        status = carry_out(run, batch_time, params)
        if status != OK:
            return int(status)
    status = next_boundary(run)
    if status == DECIDE:
        clear_decision(run)
    return int(status)
