"""One iteration of a worker: check the decision, apply it, run the batch or wait.

The engine owns queue, memory and clock. Its functions take one :class:`~kvgym.simulator.boundary.Run`, a named
tuple of tables, which costs nothing when compiled; helpers take only the tables they use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.simulator.batch import run_batch
from kvgym.simulator.boundary import Run, advance_clock, next_arrival_time
from kvgym.simulator.compiled import jit_inline
from kvgym.simulator.decisions import activate, apply_evictions, check_decision
from kvgym.simulator.tables import (
    DEADLOCK,
    OK,
    RUN,
    STALLED,
    UNKNOWN,
    WAIT,
)


@jit_inline
def carry_out(run: Run, batch_time: Any, batch_params: Any) -> int:
    """Check and apply the decision, then run the batch or wait; the events of the last step are used up."""
    w, d = run.w, run.decision
    status = check_decision(run)
    if status != OK:
        return status
    w.num_queued = w.num_finished = 0
    w.decisions += 1
    if d.num_evict > 0:
        apply_evictions(run)
    for j in range(d.num_admit):
        activate(run, run.admit[j], run.admit_tokens[j] if d.explicit == 1 else UNKNOWN)
    w.total_admitted += d.num_admit
    if d.act == WAIT:
        for k in range(w.num_active):
            run.active[k].planned = UNKNOWN
        until = min(
            d.wait_until, next_arrival_time(run.problem, run.tracker, run.workload), run.problem.horizon
        )
        if until == np.inf:
            return DEADLOCK
        advance_clock(run.w, until)
    else:
        status = run_batch(run, batch_time, batch_params)
        if status != OK:
            return status
    return STALLED if w.decisions - w.last_progress > run.problem.stall_limit else OK


@jit_inline
def clear_decision(run: Run) -> None:
    """Start from the decision to run everything that is active and admit nothing."""
    d = run.decision
    d.act, d.explicit, d.num_admit, d.num_evict = RUN, 0, 0, 0
    d.wait_until = np.inf
