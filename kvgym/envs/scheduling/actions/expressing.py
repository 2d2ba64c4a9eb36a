"""Translation of a scheduler's decision into actions: shared checks, and reasons why it is impossible.

``encode`` kernels get a valid decision in tables of its own, with the plan of each active request in
``e.run.active[k].planned``; the first call reads these plans and resets them.
"""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit
from kvgym.compiling.references import by_address
from kvgym.envs.scheduling.tables import MARKED, OVERFLOW_CLEAR, Env
from kvgym.errors import KVGymError
from kvgym.kernels import all_stay, view_of
from kvgym.simulator.apply_decision import (
    inspect_decision,
    restore_statuses,
    shared_by,
)
from kvgym.simulator.blocks import full_tokens, planned_tokens
from kvgym.simulator.kernels.future_memory import first_use
from kvgym.simulator.policy_interface import PolicyDecision, deciding
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

# Reasons why no action expresses a decision; negative, unlike outcomes of steps.
WAITS, CHUNKS, OUTSIDE, ORDER, EVICTION, INACTIVE, IDLE, UNASKED, UNFIT, BEHIND, IDLING = (
    -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11,
)  # fmt: skip
REFUSED = -100
"""Minus the engine's status: the decision is invalid."""

# Indices of the array in which compiled loops report their position and the subject of an error.
AT, REQUEST_ID, NUM_ADMIT, NUM_EVICT, NUM_ACTIVE = 0, 1, 2, 3, 4


class NotExpressibleError(KVGymError):
    """The actions of an environment cannot express a decision."""


@jit
def position_in_window(e: Env, i: int) -> int:
    """Return the position of request ``i`` in the queue window, UNKNOWN if it is not there."""
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
def refused(e: Env, decision: PolicyDecision) -> int:
    """Return 0 if the decision is valid, else REFUSED minus the engine's status."""
    tried = by_address(deciding(e.run, decision))
    status = inspect_decision(tried)
    restore_statuses(tried)
    all_stay(view_of(e.run, None, None))
    return 0 if status == OK else REFUSED - status


@jit
def in_full(e: Env, decision: PolicyDecision) -> int:
    """Return 0 if a decision runs a batch with all requests in full, else the reason; reset its plans."""
    d, evict, reason = decision.record, decision.evict, 0
    if d.act != RUN:
        reason = WAITS
    for j in range(d.num_admit):
        left = e.run.requests[decision.admit[j]].num_prefill_left
        if reason == 0 and planned_tokens(d, decision.admit_tokens[j], left) != full_tokens(left):
            reason = CHUNKS
    for j in range(d.num_evict):
        e.run.active[evict[j]].planned = UNKNOWN  # it is not in the batch, so its plan has no meaning
    for k in range(e.run.w.num_active):
        slot = e.run.active[k]
        left = slot.num_prefill_left
        if reason == 0 and planned_tokens(d, slot.planned, left) != full_tokens(left):
            reason = CHUNKS
        slot.planned = UNKNOWN
    return reason


@jit
def evicts(decision: PolicyDecision, k: int) -> bool:
    """Whether a decision evicts slot ``k``."""
    for j in range(decision.record.num_evict):  # noqa: SIM110 (Numba has no generator expressions)
        if decision.evict[j] == k:
            return True
    return False


@jit
def overflow_evicts(e: Env, decision: PolicyDecision) -> bool:
    """Whether the overflow rule evicts the same requests as the decision, if nothing is admitted.

    Their order matters only if it determines the order of the queue.
    """
    d, need, count = decision.record, e.episode.need, 0
    if need > e.run.problem.kv_capacity:
        for k in range(e.run.w.num_active - 1, -1, -1):
            if e.settings.overflow == OVERFLOW_CLEAR or need > e.run.problem.kv_capacity:
                if not evicts(decision, k):
                    return False
                if e.run.problem.requeue != REQUEUE_ARRIVAL and decision.evict[count] != k:
                    return False
                slot = e.run.active[k]
                need -= first_use(e.run.problem, slot) - shared_by(e.run, slot.request_id, True)
                count += 1
        all_stay(view_of(e.run, None, None))
    return bool(count == d.num_evict)


_POLICY_ORDER = "the order of the policy as queue_order, e.g. 'predicted' for the shortest predicted first"


def explain(reason: int, config: Any, report: Any) -> str:
    """Describe a decision that the actions cannot express, and a remedy.

    Args:
        reason: one of the reasons above.
        config: the environment's configuration.
        report: int64 (5,), see the indices above.
    """
    request, evicted, active = int(report[REQUEST_ID]), int(report[NUM_EVICT]), int(report[NUM_ACTIVE])
    if reason == WAITS:
        return "waits; only action='tokens' can wait"
    if reason == CHUNKS:
        return "pauses a request or processes part of a prompt; only action='tokens' can do that"
    if reason == OUTSIDE:
        return (
            f"admits request {request}, which is not in the queue window (queue_window={config.queue_window}, "
            f"queue_order={config.queue_order!r}); use a longer queue_window, or {_POLICY_ORDER}"
        )
    if reason == ORDER:
        return (
            f"admits request {request} out of the order of the queue window (queue_order={config.queue_order!r}); "
            f"use action='admit_evict', or {_POLICY_ORDER}"
        )
    if reason == EVICTION:
        remedy = "action='admit_evict'"
        if evicted == active and config.overflow == "lifo":
            remedy = f"overflow='clear' or {remedy}"
        if 0 < evicted < active and config.overflow == "clear":
            remedy = f"overflow='lifo' or {remedy}"
        return (
            f"evicts {evicted} of {active} active requests, which action={config.action!r} with "
            f"overflow={config.overflow!r} does not do; {remedy} may allow it"
        )
    if reason == INACTIVE:
        return (
            f"evicts request {request}, which is not in the active window; use an active_window longer than "
            f"{config.active_window}"
        )
    if reason == BEHIND:
        return (
            f"pauses request {request} or gives it part of its prompt, but it is not in the active window; use an "
            f"active_window longer than {config.active_window}"
        )
    if reason == IDLE:
        return "runs an empty batch on an empty worker; the environment waits there instead"
    if reason == IDLING:
        return "leaves the first of the queue window waiting at an empty worker; use must_admit=False"
    if reason == UNASKED:
        return "evicts or admits in an iteration that the environment skips; use epochs='iteration'"
    return f"admits {int(report[NUM_ADMIT])} requests that do not fit into the next iteration"


def explain_refusal(status: int, tracker: Any) -> str:
    """Return why a decision is invalid, "the decision …".

    Args:
        status: the engine's status.
        tracker: TRACKER record, with the request and the numbers of the error.
    """
    request, needed, available = (int(tracker[f"error_{n}"]) for n in ("request", "needed", "available"))
    subject = "its active requests" if request == UNKNOWN else f"request {request}"
    reasons = {
        BAD_EVICT: f"evicts {'slot ' + str(needed) if request == UNKNOWN else subject + ' twice'}",
        BAD_ADMIT: f"admits {subject}, which is not waiting, or twice",
        BAD_TOKENS: f"gives {subject} {needed} tokens; valid: 0 … {available}",
        NO_MEMORY: f"does not fit: with {subject} it needs {needed} KV tokens, kv_capacity is {available}",
        TOO_MANY: f"makes {needed} requests active; at most {available} can be",
        BAD_WAIT: "waits until a time that is not later than now",
    }
    return f"the decision {reasons[status]}"
