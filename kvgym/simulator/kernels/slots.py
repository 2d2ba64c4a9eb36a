"""Building blocks for values that a policy stores by slot, and for plans in which every request runs in full."""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.simulator.policy_interface import PolicyDecision, PolicyView
from kvgym.simulator.tables import UNKNOWN


@jit_inline
def follow_slots(view: PolicyView, state: Any, at: int, values: Any, base: int) -> int:
    """Move values that a policy stores by slot to the current slots of their requests.

    A kernel that needs a column of ``view.requests`` for all active requests at every decision copies the value when a
    request is admitted: rows of requests are far apart in memory, those of slots adjacent.

    Args:
        view: the kernel's view.
        state: ``state[at]`` is the number of slots at the last call, followed by their requests.
        at: place of that number.
        values: ``values[base + k]`` is the value of slot k.
        base: place of the first value.

    Returns:
        The first slot without a value; the caller writes it and all later ones.
    """
    first, known, k = at + 1, state[at], 0
    while k < min(view.worker.num_active, known) and state[first + k] == view.active[k].request_id:
        k += 1
    before = k
    while k < view.worker.num_active and before < known:  # remaining requests keep their order
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
def drop_full_plan(view: PolicyView, decision: PolicyDecision) -> None:
    """Remove the token counts from a decision in which every request runs in full.

    The decision stays the same, and the engine need not check every request. Evicted requests must be in the last
    slots.
    """
    d = decision.record
    for k in range(view.worker.num_active - d.num_evict):
        if view.active[k].planned != UNKNOWN:
            return
    for j in range(d.num_admit):
        if decision.admit_tokens[j] != UNKNOWN:
            return
    d.explicit = 0
