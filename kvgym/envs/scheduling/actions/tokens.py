"""``tokens``: the whole decision, request by request; Box(2 Q + 2 W + 1) of numbers in [-1, 1], float64.

Two numbers for each position of the queue window, then two for each position of the active window (0 = the latest
activated), then one for the worker:

- ``amount``: below 0 a waiting request stays in the queue and an active one is evicted. Otherwise it is the share of
  the remaining prompt, or of the one token of a decode, that the request processes, rounded to the nearest token. A
  waiting request is admitted with it; 0 pauses.
- ``order``: evictions, and after them admissions, are in ascending order; ties are broken by position.
- ``wait``, in units of 2^30 seconds: up to the current time, the batch runs; a later time makes the worker wait for
  the next arrival, at most until then. 1 sets no limit.

Active requests beyond the window run in full. A request that does not fit is not admitted, and is counted in
``info["ignored"]``. If the active requests do not fit as planned, the overflow rule evicts and nothing is admitted.
This expresses every decision of a policy exactly if the windows are long enough.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit
from kvgym.envs.scheduling.actions.composing import plan_start, room_left
from kvgym.envs.scheduling.actions.expressing import BEHIND, INACTIVE, OUTSIDE, REQUEST_ID, position_in_window
from kvgym.envs.scheduling.actions.kind import (
    CHOOSING_DEFAULTS,
    COMPLETE,
    ActionConfig,
    ActionKind,
    ActionPart,
    apply_kernel,
    encode_kernel,
    mask_kernel,
)
from kvgym.envs.scheduling.opening import open_environment
from kvgym.envs.scheduling.tables import MARKED, OVERFLOW_CLEAR, Env
from kvgym.envs.scheduling.window import window_take
from kvgym.kernels import shared_hit, view_of
from kvgym.simulator.apply_decision import shared_by
from kvgym.simulator.blocks import allocated, full_tokens, kv_growth, planned_tokens
from kvgym.simulator.policy_interface import PolicyDecision
from kvgym.simulator.tables import RUN, UNKNOWN, WAIT

AMOUNT, ORDER, ROW = 0, 1, 2
"""Places of the numbers of a position, and how many they are."""

WAIT_UNIT = 2.0**30
"""Seconds; a power of two, so that every time can be expressed exactly."""


@mask_kernel
def write_mask(where: Any, mask: Any) -> None:
    """Allow the positions that hold a request, and the wait."""
    e = open_environment(where)
    queue, active = e.settings.queue_window, e.settings.active_window
    for q in range(queue):
        mask[q] = 1 if q < e.episode.num_window else 0
    for a in range(active):
        mask[queue + a] = 1 if a < e.run.w.num_active else 0
    mask[queue + active] = 1


@jit
def tokens_of(action: Any, row: int, left: int) -> int:
    """Return the tokens that the request at a position processes, UNKNOWN if it is not admitted or is evicted."""
    amount = action[ROW * row + AMOUNT]
    if amount < 0.0:
        return UNKNOWN
    most = full_tokens(left)
    return min(int(amount * most + 0.5), most)


@jit
def insert_by_order(rows: Any, count: int, action: Any, row: int, shift: int) -> int:
    """Insert a position into the first ``count`` entries of ``rows``, sorted by order; return their new number.

    ``rows`` holds positions counted from ``shift`` on. If it is full, the last one is dropped.
    """
    at = count
    while at > 0 and action[ROW * (shift + rows[at - 1]) + ORDER] > action[ROW * row + ORDER]:
        at -= 1
    if count == rows.shape[0]:
        if at == count:
            return count
        count -= 1
    for k in range(count, at, -1):
        rows[k] = rows[k - 1]
    rows[at] = row - shift
    return count + 1


@jit
def use_as_planned(e: Env, k: int) -> int:
    """Return the memory that slot ``k``, counted alone, needs in the next iteration as planned."""
    slot = e.run.active[k]
    tokens = planned_tokens(e.run.decision, slot.planned, slot.num_prefill_left)
    return allocated(e.run.problem, slot.num_kv_tokens) + kv_growth(e.run.problem, slot, tokens)


@jit
def plan_active(e: Env, action: Any) -> int:
    """Evict and plan by the action, then by the overflow rule; return the memory that the others need.

    UNKNOWN if the overflow rule had to evict.
    """
    d, num_active = e.run.decision, e.run.w.num_active
    queue, rows = e.settings.queue_window, min(e.settings.active_window, e.run.w.num_active)
    for a in range(rows):
        slot, row = e.run.active[num_active - 1 - a], queue + a
        slot.planned = tokens_of(action, row, slot.num_prefill_left)
        if slot.planned == UNKNOWN:
            d.num_evict = insert_by_order(e.run.evict, d.num_evict, action, row, queue)
    for j in range(d.num_evict):
        e.run.evict[j] = num_active - 1 - e.run.evict[j]
        e.run.active[e.run.evict[j]].planned = MARKED
    need: Any = -e.run.w.kv_shared
    for j in range(d.num_evict):
        need += shared_by(e.run, e.run.active[e.run.evict[j]].request_id, True)
    for k in range(num_active):
        if e.run.active[k].planned != MARKED:
            need += use_as_planned(e, k)
    if need <= e.run.problem.kv_capacity:
        return need
    for k in range(num_active - 1, -1, -1):
        slot = e.run.active[k]
        if slot.planned != MARKED and (
            e.settings.overflow == OVERFLOW_CLEAR or need > e.run.problem.kv_capacity
        ):
            need -= use_as_planned(e, k) - shared_by(e.run, slot.request_id, True)
            slot.planned = MARKED
            e.run.evict[d.num_evict] = k
            d.num_evict += 1
    e.episode.need = need
    return UNKNOWN


@jit
def admit_chosen(e: Env, action: Any, need: int) -> int:
    """Admit the chosen requests that fit; return the memory that the next iteration needs."""
    run, d = e.run, e.run.decision
    chosen = 0
    for q in range(min(e.settings.queue_window, e.episode.num_window)):
        if action[ROW * q + AMOUNT] >= 0.0:
            before = chosen
            chosen = insert_by_order(run.admit, chosen, action, q, 0)
            e.episode.num_ignored += 1 if chosen == before else 0  # more than the active set can hold
    for j in range(chosen):  # look up ids before requests leave the window
        q = run.admit[j]
        i = e.window[q]
        run.admit[j] = i
        run.admit_tokens[j] = tokens_of(action, q, run.requests[i].num_prefill_left)
    for j in range(chosen):
        i, tokens = run.admit[j], run.admit_tokens[j]
        r = run.requests[i]
        use = allocated(run.problem, r.num_kv_tokens) - shared_hit(view_of(run, None, None), i)
        if d.act != WAIT:
            use += kv_growth(run.problem, r, tokens)
        if room_left(e) > 0 and need + use <= run.problem.kv_capacity:
            need += use
            window_take(e.settings, e.episode, e.window, e.heap, run.requests, position_in_window(e, i))
            plan_start(e, i, 1)
            run.admit[d.num_admit], run.admit_tokens[d.num_admit] = i, tokens
            d.num_admit += 1
        else:
            e.episode.num_ignored += 1
    return need


@apply_kernel
def apply(where: Any, action: Any) -> int:
    """Write the decision that the action describes."""
    e = open_environment(where)
    d = e.run.decision
    wait = action[ROW * (e.settings.queue_window + e.settings.active_window)]
    d.explicit = 1
    if wait * WAIT_UNIT > e.run.w.clock:
        d.act, d.wait_until = WAIT, wait * WAIT_UNIT if wait < 1.0 else np.inf
    need = plan_active(e, action)
    if need != UNKNOWN:
        e.episode.need = admit_chosen(e, action, need)
    return COMPLETE


@encode_kernel
def encode(where: Any, decision: PolicyDecision, done: int, action: Any, report: Any) -> int:
    """Write the action that describes a decision."""
    e = open_environment(where)
    d, num_active = decision.record, e.run.w.num_active
    queue, active, outcome = e.settings.queue_window, e.settings.active_window, COMPLETE
    for row in range(queue + active):
        action[ROW * row + AMOUNT], action[ROW * row + ORDER] = -1.0, 0.0
    for j in range(d.num_evict):
        slot, position = e.run.active[decision.evict[j]], num_active - 1 - decision.evict[j]
        slot.planned = MARKED
        if position < active:
            action[ROW * (queue + position) + ORDER] = j / d.num_evict
        else:
            report[REQUEST_ID], outcome = slot.request_id, INACTIVE
    for k in range(num_active):
        slot, row = e.run.active[k], num_active - 1 - k
        if slot.planned != MARKED:
            most = full_tokens(slot.num_prefill_left)
            tokens = planned_tokens(d, slot.planned, slot.num_prefill_left)
            if row < active:
                action[ROW * (queue + row) + AMOUNT] = tokens / most
            elif d.act == RUN and tokens != most:
                report[REQUEST_ID], outcome = slot.request_id, BEHIND
        slot.planned = UNKNOWN
    for j in range(d.num_admit):
        i = decision.admit[j]
        q = position_in_window(e, i)
        if q == UNKNOWN:
            report[REQUEST_ID] = i
            return OUTSIDE
        left = e.run.requests[i].num_prefill_left
        action[ROW * q + AMOUNT] = planned_tokens(d, decision.admit_tokens[j], left) / full_tokens(left)
        action[ROW * q + ORDER] = j / d.num_admit
    action[ROW * (queue + active)] = min(d.wait_until / WAIT_UNIT, 1.0) if d.act == WAIT else -1.0
    return outcome


class Tokens(ActionKind):
    """Tokens for each request of both windows, the orders of eviction and admission, and waiting."""

    name = "tokens"
    defaults = {**CHOOSING_DEFAULTS, "features": ("saved_duration",), "unit_actions": True}  # noqa: RUF012
    plans = True
    write_mask = write_mask
    apply = apply
    encode = encode

    def space(self, config: ActionConfig) -> spaces.Box:
        """Return Box(2 Q + 2 W + 1), float64."""
        size = ROW * (config.queue_window + config.active_window) + 1
        return spaces.Box(-1.0, 1.0, (size,), np.float64)

    def parts(self, config: ActionConfig) -> tuple[ActionPart, ...]:
        """Return the meaning of the numbers."""
        queue, active = config.queue_window, config.active_window
        waiting = "request i of the queue window: below 0 it stays; else it is admitted with this share of its prompt"
        running = (
            "request i of the active window: below 0 it is evicted; else it processes this share; 0 pauses"
        )
        place = "its place in the order, ascending"
        wait = "time until which the worker waits for an arrival; a past time runs the batch, 1 sets no limit"
        return (
            ActionPart(f"2 i, i < {queue}", waiting, "share", -1, 1),
            ActionPart(f"2 i + 1, i < {queue}", place, "–", -1, 1),
            ActionPart(f"{ROW * queue} + 2 i, i < {active}", running, "share", -1, 1),
            ActionPart(f"{ROW * queue + 1} + 2 i, i < {active}", place, "–", -1, 1),
            ActionPart(f"{ROW * (queue + active)}", wait, "2^30 s", -1, 1),
        )

    def mask_size(self, config: ActionConfig) -> int:
        """Return Q + W + 1: one per request, and one for the wait."""
        return config.queue_window + config.active_window + 1

    def _rows(self, config: ActionConfig, queue: float) -> NDArray[np.float64]:
        """Return an action with this amount for waiting requests; active ones run in full, without a wait."""
        action = np.zeros((config.queue_window + config.active_window, ROW))
        action[:, 0] = 1.0
        action[: config.queue_window, 0] = queue
        return np.append(action.ravel(), -1.0)

    def greedy(self, config: ActionConfig, mask: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Admit every request that fits, in the order of the window."""
        return self._rows(config, 1.0)

    def idle(self, config: ActionConfig) -> NDArray[np.float64]:
        """Leave all waiting requests in the queue."""
        return self._rows(config, -1.0)
