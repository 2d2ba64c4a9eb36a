"""Compiled building blocks for what a rule keeps by slot, and for plans in which nobody is left out."""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.simulator.policy_interface import RuleDecision, RuleView
from kvgym.simulator.tables import UNKNOWN


@jit_inline
def follow_slots(view: RuleView, state: Any, at: int, values: Any, base: int) -> int:
    """Move values that a rule keeps by slot to where their requests are now.

    A rule that needs a column of ``view.requests`` for all active requests at every decision looks it up once for each,
    when it is admitted: rows of requests lie far apart, those of slots side by side.

    Args:
        view: what the rule sees.
        state: ``state[at]`` is the number of slots at the last call, and their requests follow.
        at: place of that number.
        values: ``values[base + k]`` is the value of slot k.
        base: place of the first value.

    Returns:
        The first slot whose value is still to be written; all that come after it are new as well.
    """
    first, known, k, before = at + 1, state[at], 0, 0
    while k < view.worker.num_active and before < known:  # those that stay keep their order
        if state[first + before] == view.active[k].request_id:
            state[first + k] = state[first + before]
            values[base + k] = values[base + before]
            k += 1
        before += 1
    for new in range(k, view.worker.num_active):
        state[first + new] = view.active[new].request_id
    state[at] = view.worker.num_active
    return k


@jit
def drop_full_plan(view: RuleView, decision: RuleDecision) -> None:
    """Take token counts off a decision that gives everybody who stays or comes all there is to do.

    It is the same decision, and the engine need not look at every request. Those that are evicted come last.
    """
    d = decision.record
    for k in range(view.worker.num_active - d.num_evict):
        if view.active[k].planned != UNKNOWN:
            return
    for j in range(d.num_admit):
        if decision.admit_tokens[j] != UNKNOWN:
            return
    d.explicit = 0
