"""From the decision of a scheduler to actions: why a decision has no counterpart, and shared checks.

``encode`` kernels get the decision in tables of its own, with the plan of each active request in
``e.run.active[k].planned``; the first call takes these plans over and resets them.
"""

from __future__ import annotations

from typing import Any

from kvgym.envs.scheduling.tables import MARKED, OVERFLOW_CLEAR
from kvgym.envs.scheduling.window import Env
from kvgym.errors import KVGymError
from kvgym.simulator.apply_decision import full_tokens, planned_tokens
from kvgym.simulator.compiled import jit
from kvgym.simulator.lookahead import first_use
from kvgym.simulator.rule import RuleDecision
from kvgym.simulator.tables import REQUEUE_ARRIVAL, RUN, UNKNOWN

# Why a decision has no counterpart among the actions; negative where outcomes of steps are not.
WAITS, CHUNKS, OUTSIDE, ORDER, EVICTION, INACTIVE, IDLE, UNASKED, UNFIT = -1, -2, -3, -4, -5, -6, -7, -8, -9

# Places of the array in which compiled loops report where they are and what an error is about.
AT, REQUEST_ID, NUM_ADMIT, NUM_EVICT, NUM_ACTIVE = 0, 1, 2, 3, 4


class NotExpressibleError(KVGymError):
    """A decision has no counterpart among the actions of an environment."""


@jit
def position_in_window(e: Env, i: int) -> int:
    """Return where request ``i`` stands in the queue window, UNKNOWN if it does not."""
    for q in range(e.episode.num_window):
        if e.window[q] == i:
            return q
    return UNKNOWN


@jit
def position_in_active(e: Env, k: int) -> int:
    """Return the position of slot ``k`` among the active ones not yet evicted, latest first."""
    position = 0
    for j in range(k + 1, e.run.w.num_active):
        if e.run.active[j].planned != MARKED:
            position += 1
    return position


@jit
def in_full(e: Env, decision: RuleDecision) -> int:
    """Return 0 if a decision runs a batch with everybody in full, else the reason; takes its plans back."""
    d, admit, evict = decision.record, decision.admit, decision.evict
    num_active, num_requests = e.run.w.num_active, e.run.problem.num_requests
    if d.act != RUN:
        return WAITS
    if d.num_admit > admit.shape[0] or d.num_evict > num_active:
        return UNFIT
    for j in range(d.num_admit):
        if not 0 <= admit[j] < num_requests:
            return UNFIT
        left = e.run.requests[admit[j]].num_prefill_left
        if planned_tokens(d, decision.admit_tokens[j], left) != full_tokens(left):
            return CHUNKS
    for j in range(d.num_evict):
        if not 0 <= evict[j] < num_active or e.run.active[evict[j]].planned == MARKED:
            return UNFIT
        e.run.active[evict[j]].planned = MARKED  # not in the batch: nothing else is planned for it
    for k in range(num_active):
        slot = e.run.active[k]
        left = slot.num_prefill_left
        if slot.planned != MARKED and planned_tokens(d, slot.planned, left) != full_tokens(left):
            return CHUNKS
        slot.planned = UNKNOWN
    return 0


@jit
def evicts(decision: RuleDecision, k: int) -> bool:
    """Whether a decision evicts slot ``k``."""
    for j in range(decision.record.num_evict):  # noqa: SIM110 (Numba has no generator expressions)
        if decision.evict[j] == k:
            return True
    return False


@jit
def overflow_evicts(e: Env, decision: RuleDecision) -> bool:
    """Whether the overflow rule evicts just whom the decision evicts, if nobody is admitted.

    The order matters only where it decides who is queued before whom.
    """
    d, need, count = decision.record, e.episode.need, 0
    if need > e.run.problem.kv_capacity:
        for k in range(e.run.w.num_active - 1, -1, -1):
            if e.settings.overflow == OVERFLOW_CLEAR or need > e.run.problem.kv_capacity:
                if not evicts(decision, k):
                    return False
                if e.run.problem.requeue != REQUEUE_ARRIVAL and decision.evict[count] != k:
                    return False
                need -= first_use(e.run.problem, e.run.active[k])
                count += 1
    return bool(count == d.num_evict)


_POLICY_ORDER = "the order of the policy as queue_order, e.g. 'predicted' for the shortest predicted first"


def explain(reason: int, config: Any, report: Any) -> str:
    """Return what a policy decided that the actions cannot say, and what would help.

    Args:
        reason: one of the reasons above.
        config: the environment's configuration.
        report: int64 (5,), see the places above.
    """
    request, evicted, active = int(report[REQUEST_ID]), int(report[NUM_EVICT]), int(report[NUM_ACTIVE])
    if reason == WAITS:
        return "waits; of the kinds of action only tokens has waiting"
    if reason == CHUNKS:
        return (
            "pauses a request or processes part of a prompt; of the kinds of action only tokens has pausing"
        )
    if reason == OUTSIDE:
        return (
            f"admits request {request}, which is not in the queue window (queue_window={config.queue_window}, "
            f"queue_order={config.queue_order!r}); a longer queue_window would show it, or {_POLICY_ORDER}"
        )
    if reason == ORDER:
        return (
            f"admits request {request} out of the order of the queue window (queue_order={config.queue_order!r}); "
            f"action='admit_evict' would allow it, or {_POLICY_ORDER}"
        )
    if reason == EVICTION:
        remedy = "action='admit_evict'"
        if evicted == active and config.overflow == "lifo":
            remedy = f"overflow='clear' or {remedy}"
        if 0 < evicted < active and config.overflow == "clear":
            remedy = f"overflow='lifo' or {remedy}"
        return (
            f"evicts {evicted} of {active} active requests, otherwise than action={config.action!r} with "
            f"overflow={config.overflow!r} does; {remedy} may allow it"
        )
    if reason == INACTIVE:
        return (
            f"evicts request {request}, which is not in the active window; a longer active_window than "
            f"{config.active_window} would show it"
        )
    if reason == IDLE:
        return "runs an empty batch on an empty worker; the environment waits there instead"
    if reason == UNASKED:
        return "evicts or admits where the environment does not ask; epochs='iteration' would ask"
    return f"admits {int(report[NUM_ADMIT])} requests that do not fit into the coming iteration"
