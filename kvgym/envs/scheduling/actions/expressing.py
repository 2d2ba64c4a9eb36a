"""From the decision of a scheduler to actions: why a decision has no counterpart, and shared checks.

``encode`` kernels get a decision that the worker could carry out, in tables of its own, with the plan of each active
request in ``e.run.active[k].planned``; the first call takes these plans over and resets them.
"""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit
from kvgym.envs.scheduling.tables import MARKED, OVERFLOW_CLEAR
from kvgym.envs.scheduling.window import Env
from kvgym.errors import KVGymError
from kvgym.kernels.future_memory import first_use
from kvgym.simulator.apply_decision import full_tokens, inspect_decision, planned_tokens, take_marks_back
from kvgym.simulator.boundary import Run
from kvgym.simulator.policy_interface import RuleDecision
from kvgym.simulator.tables import (
    BAD_ADMIT,
    BAD_EVICT,
    BAD_TOKENS,
    BAD_WAIT,
    NO_MEMORY,
    OK,
    REQUEUE_ARRIVAL,
    RUN,
    TOO_MANY,
    UNKNOWN,
)

# Why a decision has no counterpart among the actions; negative where outcomes of steps are not.
WAITS, CHUNKS, OUTSIDE, ORDER, EVICTION, INACTIVE, IDLE, UNASKED, UNFIT, BEHIND = (
    -1, -2, -3, -4, -5, -6, -7, -8, -9, -10,
)  # fmt: skip
REFUSED = -100
"""Less the engine's code: the worker could not carry the decision out."""

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
def refused(e: Env, decision: RuleDecision) -> int:
    """Return 0 if the worker could carry the decision out, else REFUSED less the engine's reason."""
    run = e.run
    tried = Run(
        run.problem, run.tracker, run.w, decision.record, run.load, run.workload, run.requests, run.active,
        run.targets, run.queued, run.finished, decision.admit, decision.admit_tokens, decision.evict,
        run.gap_counts, run.gap_sums, run.log,
    )  # fmt: skip
    status = inspect_decision(tried)
    take_marks_back(tried)
    return 0 if status == OK else REFUSED - status


@jit
def in_full(e: Env, decision: RuleDecision) -> int:
    """Return 0 if a decision runs a batch with everybody in full, else the reason; takes its plans back."""
    d, evict, reason = decision.record, decision.evict, 0
    if d.act != RUN:
        reason = WAITS
    for j in range(d.num_admit):
        left = e.run.requests[decision.admit[j]].num_prefill_left
        if reason == 0 and planned_tokens(d, decision.admit_tokens[j], left) != full_tokens(left):
            reason = CHUNKS
    for j in range(d.num_evict):
        e.run.active[evict[j]].planned = UNKNOWN  # not in the batch: what is planned for it means nothing
    for k in range(e.run.w.num_active):
        slot = e.run.active[k]
        left = slot.num_prefill_left
        if reason == 0 and planned_tokens(d, slot.planned, left) != full_tokens(left):
            reason = CHUNKS
        slot.planned = UNKNOWN
    return reason


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
    if reason == BEHIND:
        return (
            f"pauses request {request} or gives it part of its prompt, but it is not in the active window; a longer "
            f"active_window than {config.active_window} would show it"
        )
    if reason == IDLE:
        return "runs an empty batch on an empty worker; the environment waits there instead"
    if reason == UNASKED:
        return "evicts or admits where the environment does not ask; epochs='iteration' would ask"
    return f"admits {int(report[NUM_ADMIT])} requests that do not fit into the coming iteration"


def explain_refusal(status: int, tracker: Any) -> str:
    """Return why the worker could not carry a decision out, "the decision …".

    Args:
        status: the engine's code.
        tracker: TRACKER record, with the request and the numbers it is about.
    """
    request, needed, available = (int(tracker[f"error_{n}"]) for n in ("request", "needed", "available"))
    who = "its active requests" if request == UNKNOWN else f"request {request}"
    reasons = {
        BAD_EVICT: f"evicts {'slot ' + str(needed) if request == UNKNOWN else who + ' twice'}",
        BAD_ADMIT: f"admits {who}, which is not waiting, or twice",
        BAD_TOKENS: f"gives {who} {needed} tokens; valid: 0 … {available}",
        NO_MEMORY: f"does not fit: with {who} it needs {needed} KV tokens, kv_capacity is {available}",
        TOO_MANY: f"makes {needed} requests active; at most {available} can be",
        BAD_WAIT: "waits until a time that is not later than now",
    }
    return f"the decision {reasons[status]}"
