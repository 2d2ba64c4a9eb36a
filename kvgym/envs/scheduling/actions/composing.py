"""Compiled helpers that compose a decision for the next iteration from actions.

A decision grows in the worker's tables, one action at a time. ``e.episode.need`` is the KV memory that the next
iteration needs under the decision so far, in whole blocks, with all requests in full; what requests share in a prefix
cache counts once. The iteration always fits: if the active requests alone do not, :func:`settle` evicts by the overflow
rule. Admission requires only that the next iteration fits; planning further ahead is the agent's task.
"""

from __future__ import annotations

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.envs.scheduling.tables import MARKED, OVERFLOW_CLEAR, Env
from kvgym.envs.scheduling.window import window_take
from kvgym.kernels import need_of_active, taken_by, view_of
from kvgym.simulator.apply_decision import shared_by
from kvgym.simulator.boundary import cache_of, has_cache
from kvgym.simulator.kernels.future_memory import first_use
from kvgym.simulator.prefix.plan import plan_units
from kvgym.simulator.tables import RUN, UNKNOWN, WAIT


@jit_inline
def room_left(e: Env) -> int:
    """Return how many more requests can be active under the decision so far."""
    return e.run.active.shape[0] - e.run.w.num_active + e.run.decision.num_evict - e.run.decision.num_admit


@jit_inline
def use_of(e: Env, i: int) -> int:
    """Return the memory that request ``i`` adds to the next iteration as decided so far, allocated tokens."""
    return taken_by(view_of(e.run, None, None), i)


@jit_inline
def plan_start(e: Env, i: int, change: int) -> None:
    """Add (1) or remove (-1) request ``i``, which waits, among the holders of its hit under the decision."""
    if has_cache(e.run):
        plan_units(cache_of(e.run), i, False, change)


@jit_inline
def can_admit(e: Env, i: int) -> bool:
    """Whether request ``i`` fits into the next iteration as decided so far."""
    return bool(room_left(e) > 0 and e.episode.need + use_of(e, i) <= e.run.problem.kv_capacity)


@jit_inline
def add_admission(e: Env, q: int) -> None:
    """Add the request at window position ``q`` to the decision."""
    d = e.run.decision
    i = window_take(e.settings, e.episode, e.window, e.heap, e.run.requests, q)
    e.episode.need += use_of(e, i)
    plan_start(e, i, 1)
    e.run.admit[d.num_admit] = i
    d.num_admit += 1


@jit
def add_eviction(e: Env, k: int) -> None:
    """Add the request in slot ``k`` to the decision."""
    d, slot = e.run.decision, e.run.active[k]
    slot.planned = MARKED
    e.episode.need -= first_use(e.run.problem, slot) - shared_by(e.run, slot.request_id, True)
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
    """Return how many requests from the front of the window fit together into the next iteration."""
    need, room = e.episode.need, e.run.admit.shape[0] - e.run.w.num_active
    count = 0
    while count < e.episode.num_window and count < room:
        i = e.window[count]
        need += use_of(e, i)
        if need > e.run.problem.kv_capacity:
            break
        plan_start(e, i, 1)
        count += 1
    for q in range(count):
        plan_start(e, e.window[q], -1)
    return count


@jit_inline
def must_admit(e: Env) -> bool:
    """Whether admitting nothing would leave an empty worker idle although the first of the window fits."""
    return bool(
        e.run.w.num_active == 0
        and e.run.decision.num_admit == 0
        and e.episode.num_window > 0
        and can_admit(e, e.window[0])
    )


@jit_inline
def idling_masked(e: Env) -> bool:
    """Whether the worker must admit a request now, see ``EnvConfig.must_admit``."""
    return bool(e.settings.must_admit == 1 and must_admit(e))


@jit
def evict_overflow(e: Env) -> None:
    """Evict by the overflow rule until the next iteration fits."""
    for k in range(e.run.w.num_active - 1, -1, -1):
        if e.run.active[k].planned != MARKED and (
            e.settings.overflow == OVERFLOW_CLEAR or e.episode.need > e.run.problem.kv_capacity
        ):
            add_eviction(e, k)


@jit_inline
def settle_overflow(e: Env) -> None:
    """Evict by the overflow rule if the next iteration does not fit."""
    if e.episode.need > e.run.problem.kv_capacity:
        evict_overflow(e)


@jit_inline
def settle(e: Env) -> None:
    """Complete the composed decision: evict on overflow, and wait if there is nothing to run.

    An empty batch after evictions is a lost iteration, as for policies that evict all requests. Otherwise the worker
    waits for the next arrival, at most ``idle_time``.
    """
    settle_overflow(e)
    d, w = e.run.decision, e.run.w
    d.act = RUN
    if d.num_admit == 0 and w.num_active == 0:
        d.act = WAIT
        d.wait_until = w.clock + e.settings.idle_time


@jit_inline
def start_decision(e: Env) -> None:
    """Start composing a decision: nothing is admitted or evicted, and all active requests run in full."""
    e.episode.need = need_of_active(view_of(e.run, None, None))


@jit_inline
def something_to_decide(e: Env) -> bool:
    """Whether a request could be admitted now, or the next iteration does not fit."""
    if e.episode.need > e.run.problem.kv_capacity:
        return True
    for q in range(e.episode.num_window):  # noqa: SIM110 (Numba has no generator expressions)
        if can_admit(e, e.window[q]):
            return True
    return False
