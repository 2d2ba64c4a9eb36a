"""Entry points of the compiled core: run to completion under a compiled policy, or one boundary at a time.

Arrays carry a leading worker axis of length r; a policy sees the row of its own worker.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE
from kvgym.simulator.boundary import Run, next_boundary
from kvgym.simulator.compiled import kernel
from kvgym.simulator.engine import carry_out, clear_decision
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


def _table(dtype: np.dtype[np.void], dimensions: int = 1) -> Any:
    return types.Array(numba.from_dtype(dtype), dimensions, "C")


_I4, _I4_2D, _I8, _F8 = types.int32[::1], types.int32[:, ::1], types.int64[::1], types.float64[::1]

POLICY_SIGNATURE = types.void(
    numba.from_dtype(PROBLEM),
    numba.from_dtype(WORKER),
    _table(REQUEST),
    _table(SLOT),
    _I4,  # queued: ids that joined the queue since the last decision, first num_queued entries
    _I4,  # finished: ids that finished since the last decision, first num_finished entries
    numba.from_dtype(DECISION),
    _I4,  # admit: request ids, in order
    _I4,  # admit_tokens: tokens of each admitted request, read where explicit is 1; UNKNOWN = all
    _I4,  # evict: slot indices, in order
    _F8,  # params: hyperparameters
    _I8,  # state: whole numbers the policy keeps between decisions
    _F8,  # reals: real numbers the policy keeps between decisions
    _I4,  # profile: its future-memory profile
)
"""Signature of a compiled policy: it fills ``decision``, ``admit``, ``evict`` and ``active[k].planned``.

``(problem, worker, requests, active, queued, finished, decision, admit, admit_tokens, evict, params, state,
reals, profile)``. It is called at every iteration boundary with the decision to run everything and admit
nothing, must not touch any other field, and keeps what it wants to remember in the last three arrays.
"""

_TABLES = (
    _table(PROBLEM),
    _table(TRACKER),
    _table(WORKER),
    _table(DECISION),
    _table(LOAD),
    _table(WORKLOAD),
    _table(REQUEST),
    _table(SLOT, 2),
    _I4_2D,
    _I4_2D,
    _I4_2D,
    _I4_2D,
    _I4_2D,
    _I4_2D,
    _I8,
    _F8,
    _table(ITERATION),
)
"""Types of the arrays behind :class:`Run`, with the leading worker axis where there is one."""

_BATCH_TIME = types.FunctionType(BATCH_TIME_SIGNATURE)


@kernel(
    types.int64(
        *_TABLES, types.FunctionType(POLICY_SIGNATURE), _F8, _I8, _F8, _I4, _BATCH_TIME, _F8, types.int64
    )
)
def run_loop(
    problem: Any,
    tracker: Any,
    workers: Any,
    decision: Any,
    load: Any,
    workload: Any,
    requests: Any,
    active: Any,
    targets: Any,
    queued: Any,
    finished: Any,
    admit: Any,
    admit_tokens: Any,
    evict: Any,
    gap_counts: Any,
    gap_sums: Any,
    log: Any,
    policy: Any,
    params: Any,
    state: Any,
    reals: Any,
    profile: Any,
    batch_time: Any,
    batch_params: Any,
    budget: int,
) -> int:
    """Run until all is done, something is wrong, or ``budget`` decisions have been made.

    Returns:
        DONE, HORIZON, LOG_FULL (call again with a longer log), BUDGET, STALLED, DEADLOCK, or the code of a
        refused decision, whose details are in ``tracker``.
    """
    run = Run(
        problem[0], tracker[0], workers[0], decision[0], load[0], workload, requests, active[0], targets[0],
        queued[0], finished[0], admit[0], admit_tokens[0], evict[0], gap_counts, gap_sums, log,
    )  # fmt: skip
    for _ in range(budget):
        status = next_boundary(run)
        if status != DECIDE:
            return status
        clear_decision(run)
        policy(
            run.problem, run.w, run.requests, run.active, run.queued, run.finished, run.decision, run.admit,
            run.admit_tokens, run.evict, params, state, reals, profile,
        )  # fmt: skip
        status = carry_out(run, batch_time, batch_params)
        if status != OK:
            return status
    return BUDGET


@kernel(types.int64(*_TABLES, _BATCH_TIME, _F8, types.int64))
def step_worker(
    problem: Any,
    tracker: Any,
    workers: Any,
    decision: Any,
    load: Any,
    workload: Any,
    requests: Any,
    active: Any,
    targets: Any,
    queued: Any,
    finished: Any,
    admit: Any,
    admit_tokens: Any,
    evict: Any,
    gap_counts: Any,
    gap_sums: Any,
    log: Any,
    batch_time: Any,
    batch_params: Any,
    act: int,
) -> int:
    """Carry out the decision in the tables if ``act`` is 1, then go to the next boundary.

    Returns:
        DECIDE with the decision reset, or a reason to stop as in :func:`run_loop`.
    """
    run = Run(
        problem[0], tracker[0], workers[0], decision[0], load[0], workload, requests, active[0], targets[0],
        queued[0], finished[0], admit[0], admit_tokens[0], evict[0], gap_counts, gap_sums, log,
    )  # fmt: skip
    if act == 1:
        status = carry_out(run, batch_time, batch_params)
        if status != OK:
            return status
    status = next_boundary(run)
    if status == DECIDE:
        clear_decision(run)
    return status
