"""What the engine asks the memory below the GPU about loads for which only the request waits."""

from __future__ import annotations

import numpy as np

from kvgym.compiling.kernel import jit_inline
from kvgym.compiling.passes import false_for
from kvgym.simulator.boundary import PlainRun, Run, has_tier
from kvgym.simulator.prefix.tier_hook import APART, EVICTED, IDLE, KIND, RELEASE, RUNS, SUBMIT, call_tier
from kvgym.simulator.tables import UNKNOWN


@jit_inline
def loads_apart(run: Run) -> bool:
    """Return whether there is a memory below, and only the request waits for its load."""
    return bool(has_tier(run) and run.tier.asynchronous == 1)


false_for(PlainRun, loads_apart)


@jit_inline
def kind_of_start(run: Run, i: int, found: int) -> int:
    """Return what the start of request ``i`` comes to under the plan, in which it finds ``found`` units."""
    return call_tier(run.tier, KIND, i, found, 0, 0.0) if loads_apart(run) else RUNS


@jit_inline
def stays_apart(run: Run, i: int, growth: int) -> bool:
    """Return whether request ``i``, which the decision starts, stays in the queue, perhaps to load.

    ``growth`` is the memory in use that is not counted yet, tokens.
    """
    return bool(loads_apart(run) and call_tier(run.tier, APART, i, growth, 0, 0.0) == 1)


@jit_inline
def submit_loads(run: Run) -> None:
    """Submit the loads of the decision, which has taken effect."""
    if loads_apart(run):
        call_tier(run.tier, SUBMIT, UNKNOWN, 0, 0, 0.0)


@jit_inline
def note_evicted(run: Run, i: int) -> None:
    """Let the memory below know that request ``i`` has been evicted."""
    if loads_apart(run):
        call_tier(run.tier, EVICTED, i, 0, 0, 0.0)


@jit_inline
def let_go_in_queue(run: Run, i: int) -> None:
    """Let the waiting request ``i``, which leaves the queue, give up what it has loaded."""
    if loads_apart(run):
        call_tier(run.tier, RELEASE, i, 0, 0, 0.0)


@jit_inline
def end_uses(run: Run) -> None:
    """Be done with requests that finished with the last batch, if no decision was made when it ended."""
    if loads_apart(run) and run.tier.first_ended != UNKNOWN and run.w.clock != run.w.last_batch_end:
        call_tier(run.tier, IDLE, UNKNOWN, 0, 0, run.w.last_batch_end)


@jit_inline
def next_transfer(run: Run) -> float:
    """Return when a transfer ends that a waiting request needs, seconds; inf if there is none."""
    return float(run.tier.wake) if has_tier(run) else np.inf
