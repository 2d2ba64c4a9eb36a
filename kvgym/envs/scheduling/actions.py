"""What an action means: masks, and the decision it becomes. Compiled, one branch per kind of action.

- *Admit/evict one at a time*, Discrete(Q + W + 1): admit the request at a window position, evict the request
  at an active position (0 = the latest activated), or run the batch. Positions behind a chosen request move
  up, so that any number can be admitted or evicted. Time passes only when the batch runs.
- *Admit count*, Discrete(Q + 1): admit the first k of the window, then run.
- *Flags*, MultiBinary(Q + W): admit the flagged window positions in order as far as they fit, after evicting
  the flagged active positions; then run.
- *Knobs*, MultiDiscrete: protection margin, admission cap, token budget and quantum of a rule that runs for
  the coming ``hold`` iterations: decodes first, then prefill chunks within the budget, then admissions in the
  order of the window. With a quantum, where the first of the window does not fit but could be admitted in the
  place of one other, the active request with the most tokens of these gives way, if it has generated the quantum
  and twice what the first of the window once had (least attained service; doubling bounds the work lost).

A choice outside the mask adds nothing to the decision and is counted in ``info["ignored"]``; with one choice
per action the batch then runs as it stands. Whatever the agent does, the coming iteration fits: if the
ongoing requests alone do not, the overflow rule evicts. Admission needs room in the coming iteration only;
planning ahead is the agent's task.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.envs.scheduling.levels import ADMISSION_CAPS, PROTECTION_LEVELS, QUANTA, TOKEN_BUDGETS
from kvgym.envs.scheduling.tables import ADMIT_COUNT, ADMIT_EVICT, FLAGS, KNOBS, MARKED, OVERFLOW_CLEAR
from kvgym.envs.scheduling.window import Env, window_take
from kvgym.kernels import need_of_active, view_of
from kvgym.simulator.compiled import jit, jit_inline
from kvgym.simulator.lookahead import first_use
from kvgym.simulator.tables import RUN, UNKNOWN, WAIT

_PROTECTION = np.array(PROTECTION_LEVELS)
_CAPS = np.array(ADMISSION_CAPS, np.int64)
_BUDGETS = np.array(TOKEN_BUDGETS, np.int64)
_QUANTA = np.array(QUANTA, np.int64)


@jit_inline
def room_left(e: Env) -> int:
    """Return how many more requests can be active under the decision so far."""
    return e.run.active.shape[0] - e.run.w.num_active + e.run.decision.num_evict - e.run.decision.num_admit


@jit_inline
def can_admit(e: Env, i: int) -> bool:
    """Whether request ``i`` fits into the coming iteration with what is decided so far."""
    use = first_use(e.run.problem, e.run.requests[i])
    return bool(room_left(e) > 0 and e.episode.need + use <= e.run.problem.kv_capacity)


@jit
def add_admission(e: Env, q: int) -> None:
    """Add the request at window position ``q`` to the decision."""
    d = e.run.decision
    i = window_take(e.settings, e.episode, e.window, e.heap, e.run.requests, q)
    e.episode.need += first_use(e.run.problem, e.run.requests[i])
    e.run.admit[d.num_admit] = i
    d.num_admit += 1


@jit
def add_eviction(e: Env, k: int) -> None:
    """Add the request in slot ``k`` to the decision."""
    d, slot = e.run.decision, e.run.active[k]
    slot.planned = MARKED
    e.episode.need -= first_use(e.run.problem, slot)
    e.run.evict[d.num_evict] = k
    d.num_evict += 1


@jit
def active_position(e: Env, position: int) -> int:
    """Return the slot at a position of the active window (latest first, marked ones skipped), or UNKNOWN."""
    for k in range(e.run.w.num_active - 1, -1, -1):
        if e.run.active[k].planned != MARKED:
            if position == 0:
                return k
            position -= 1
    return UNKNOWN


@jit_inline
def number_fitting(e: Env) -> int:
    """Return how many requests from the front of the window fit together into the coming iteration."""
    need, room = e.episode.need, e.run.admit.shape[0] - e.run.w.num_active
    count = 0
    while count < e.episode.num_window and count < room:
        need += first_use(e.run.problem, e.run.requests[e.window[count]])
        if need > e.run.problem.kv_capacity:
            break
        count += 1
    return count


@jit_inline
def somebody_must_go(e: Env) -> bool:
    """Whether to admit nobody would leave an empty worker idle while requests wait."""
    return bool(e.run.w.num_active == 0 and e.episode.num_window > 0)


@jit_inline
def write_mask(e: Env, mask: Any) -> None:
    """Write which choices are possible into ``mask``, uint8.

    Layout as sb3-contrib's: Discrete (n,); MultiBinary (2n,), for every flag "0 possible" and "1 possible";
    MultiDiscrete (sum of nvec,).
    """
    kind, queue, active = e.settings.action, e.settings.queue_window, e.settings.active_window
    if kind == KNOBS:
        at = 0
        for j, levels in enumerate(
            (_PROTECTION.shape[0], _CAPS.shape[0], _BUDGETS.shape[0], _QUANTA.shape[0])
        ):
            for k in range(levels):
                mask[at + k] = (e.settings.knobs[j] >> k) & 1
            at += levels
        if somebody_must_go(e):
            mask[_PROTECTION.shape[0]] = 0
    elif kind == ADMIT_COUNT:
        fitting = number_fitting(e)
        for k in range(queue + 1):
            mask[k] = 1 if k <= fitting else 0
    else:
        left = e.run.w.num_active - e.run.decision.num_evict
        for q in range(queue):
            possible = 1 if q < e.episode.num_window and can_admit(e, e.window[q]) else 0
            if kind == FLAGS:
                mask[2 * q], mask[2 * q + 1] = 1, possible
            else:
                mask[q] = possible
        for a in range(active):
            possible = 1 if a < left else 0
            if kind == FLAGS:
                mask[2 * (queue + a)], mask[2 * (queue + a) + 1] = 1, possible
            else:
                mask[queue + a] = possible
        if kind == ADMIT_EVICT:
            mask[queue + active] = 1


@jit_inline
def apply_choice(e: Env, choice: int) -> bool:
    """Apply one admit/evict choice; True if the batch is to run."""
    queue, active = e.settings.queue_window, e.settings.active_window
    if 0 <= choice < queue:
        if choice < e.episode.num_window and can_admit(e, e.window[choice]):
            add_admission(e, choice)
            return False
    elif queue <= choice < queue + active:
        k = active_position(e, choice - queue)
        if k != UNKNOWN:
            add_eviction(e, k)
            return False
    elif choice == queue + active:
        return True
    e.episode.num_ignored += 1
    return True


@jit_inline
def apply_count(e: Env, count: int) -> None:
    """Admit the first ``count`` of the window, or none if they do not all fit."""
    if not 0 <= count <= number_fitting(e):
        e.episode.num_ignored += 1
        return
    for _ in range(count):
        add_admission(e, 0)


@jit
def apply_flags(e: Env, action: Any) -> None:
    """Evict flagged active positions, then admit flagged window positions in order as far as they fit."""
    queue, active = e.settings.queue_window, e.settings.active_window
    num_active = e.run.w.num_active
    for a in range(active):
        if action[queue + a] == 1:
            if a < num_active:
                add_eviction(e, num_active - 1 - a)
            else:
                e.episode.num_ignored += 1
    taken = 0  # positions move up as requests are taken
    present = e.episode.num_window
    for q in range(queue):
        if action[q] == 1:
            if q < present and can_admit(e, e.window[q - taken]):
                add_admission(e, q - taken)
                taken += 1
            else:
                e.episode.num_ignored += 1


@jit
def give_way(e: Env, limit: int, quantum: int) -> int:
    """Evict the active request with the most output tokens for the first of the window, where the rule says so.

    Only a request whose leaving makes room is evicted; else it would return to the same place, its work lost.
    Returns the tokens it would have processed in the coming iteration.
    """
    if e.episode.num_window == 0:
        return 0
    first = e.run.requests[e.window[0]]
    use = first_use(e.run.problem, first)
    if can_admit(e, e.window[0]) and (e.episode.need + use <= limit or e.episode.need == 0):
        return 0
    longest = UNKNOWN
    most = max(np.int64(quantum), 2 * np.int64(first.num_delivered_tokens))
    for k in range(e.run.w.num_active):
        slot = e.run.active[k]
        left = e.episode.need - first_use(e.run.problem, slot)
        if slot.num_output_tokens >= most and (left == 0 or left + use <= limit):
            longest, most = k, np.int64(slot.num_output_tokens) + 1
    if longest == UNKNOWN:
        return 0
    tokens = e.run.active[longest].planned
    add_eviction(e, longest)
    return tokens


@jit
def apply_knobs(e: Env, action: Any) -> None:
    """Follow the rule of the given knobs for one iteration."""
    run, d = e.run, e.run.decision
    valid = True
    for j in range(4):
        valid = valid and 0 <= action[j] < 63 and (e.settings.knobs[j] >> action[j]) & 1 == 1
    if not valid:  # admit nobody and run what is active
        e.episode.num_ignored += 1
        settle_overflow(e)
        return
    limit = int(run.problem.kv_capacity * (1.0 - _PROTECTION[action[0]]))
    cap, budget = _CAPS[action[1]], _BUDGETS[action[2]]
    settle_overflow(e)
    overflowed = d.num_evict > 0
    d.explicit = 1
    for k in range(run.w.num_active):  # decodes first
        slot = run.active[k]
        if slot.num_prefill_left == 0 and slot.planned != MARKED:
            slot.planned = 1
            budget -= 1
    for k in range(run.w.num_active):
        slot = run.active[k]
        if slot.num_prefill_left > 0 and slot.planned != MARKED:
            slot.planned = min(max(budget, 0), slot.num_prefill_left)
            budget -= slot.planned
    if action[3] > 0 and cap > 0 and budget > 0 and not overflowed:
        budget += give_way(e, limit, _QUANTA[action[3]])
    while e.episode.num_window > 0 and d.num_admit < cap and budget > 0 and not overflowed:
        r = run.requests[e.window[0]]
        beyond = e.episode.need + first_use(run.problem, r) > limit
        if not can_admit(e, e.window[0]) or (beyond and e.episode.need > 0):
            break  # an empty worker takes the first whatever the margin, or it might wait for ever
        tokens = min(budget, max(r.num_prefill_left, 1))
        run.admit_tokens[d.num_admit] = tokens
        budget -= tokens
        add_admission(e, 0)


@jit
def settle_overflow(e: Env) -> None:
    """Evict by the overflow rule if the coming iteration does not fit."""
    if e.episode.need <= e.run.problem.kv_capacity:
        return
    for k in range(e.run.w.num_active - 1, -1, -1):
        if e.run.active[k].planned != MARKED and (
            e.settings.overflow == OVERFLOW_CLEAR or e.episode.need > e.run.problem.kv_capacity
        ):
            add_eviction(e, k)


@jit
def settle(e: Env) -> None:
    """Make the composed decision complete: overflow, and what a worker does that has nothing to run.

    After evictions an empty batch is a lost round, as with the policies that clear; else the worker waits
    for the next arrival, ``idle_time`` at the longest.
    """
    settle_overflow(e)
    d, w = e.run.decision, e.run.w
    d.act = RUN
    if d.num_admit == 0 and w.num_active == 0:
        d.act = WAIT
        d.wait_until = w.clock + e.settings.idle_time


@jit_inline
def start_decision(e: Env) -> None:
    """Start composing a decision: nothing is admitted or evicted, everybody runs in full."""
    e.episode.need = need_of_active(view_of(e.run))


@jit
def something_to_decide(e: Env) -> bool:
    """Whether a request could be admitted now, or the coming iteration does not fit."""
    if e.episode.need > e.run.problem.kv_capacity:
        return True
    for q in range(e.episode.num_window):  # noqa: SIM110 (Numba has no generator expressions)
        if can_admit(e, e.window[q]):
            return True
    return False
