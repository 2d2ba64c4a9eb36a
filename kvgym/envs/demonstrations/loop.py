"""The compiled loop of demonstrations: a policy plays an episode, and each of its steps is recorded."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

from kvgym.compiling.kernel import jit, kernel
from kvgym.compiling.pointers import function_at
from kvgym.compiling.references import by_address
from kvgym.envs.scheduling.actions.composing import settle, something_to_decide
from kvgym.envs.scheduling.actions.expressing import (
    AT,
    EVICTION,
    IDLE,
    NUM_ACTIVE,
    NUM_ADMIT,
    NUM_EVICT,
    ORDER,
    REQUEST_ID,
    UNASKED,
    UNFIT,
    in_full,
    refused,
)
from kvgym.envs.scheduling.actions.kind import ENCODE_SIGNATURE, MORE
from kvgym.envs.scheduling.opening import WHERE, open_environment, open_view
from kvgym.envs.scheduling.stepping import RUNNING, advance, apply_at, observe, reset_terms, total_reward
from kvgym.envs.scheduling.tables import MARKED, Env
from kvgym.simulator.policy_interface import MEMORY, POLICY_SIGNATURE, PolicyDecision, PolicyMemory
from kvgym.simulator.tables import DECISION, REQUEUE_ARRIVAL, RUN, UNKNOWN, WAIT

policy_at, encode_at = function_at(POLICY_SIGNATURE), function_at(ENCODE_SIGNATURE)


@jit
def difference(e: Env, decision: PolicyDecision) -> int:
    """Return 0 if the composed decision equals the policy's, else the reason.

    The order of evictions matters only if it determines the order of the queue.
    """
    own, d, admit, evict = e.run.decision, decision.record, decision.admit, decision.evict
    if own.act != d.act or (own.act == WAIT and min(own.wait_until, d.wait_until) < d.wait_until):
        return IDLE
    if own.num_evict != d.num_evict:
        return EVICTION
    for j in range(d.num_evict):
        same = e.run.evict[j] == evict[j]
        if e.run.problem.requeue == REQUEUE_ARRIVAL:
            same = e.run.active[evict[j]].planned == MARKED
        if not same:
            return EVICTION
    if own.num_admit != d.num_admit:
        return UNFIT
    for j in range(d.num_admit):
        if e.run.admit[j] != admit[j]:
            return ORDER
    return 0


_I4, _I8, _F8 = types.int32[::1], types.int64[::1], types.float64[::1]
_F8_2D, _F4_2D, _U8_2D = types.float64[:, ::1], types.float32[:, ::1], types.uint8[:, ::1]
_DECISION = types.Array(numba.from_dtype(DECISION), 1, "C")


@kernel(
    types.int64(
        WHERE, _I8, _DECISION, _I4, _I4, _I4, MEMORY, _F4_2D, _U8_2D, _F8_2D, _F8, _F8, _I8
    ),
    "demonstrations",
)  # fmt: skip
def demonstrate_episode(
    where: Any,
    handles: Any,
    record: Any,
    admit: Any,
    admit_tokens: Any,
    evict: Any,
    memory: PolicyMemory,
    observations: Any,
    masks: Any,
    actions: Any,
    rewards: Any,
    terms: Any,
    report: Any,
) -> int:
    """Play a started episode with a policy, until it ends or the record is full.

    Args:
        where: the environment's row of control.
        handles: int64 (4,), of the policy and of the kernel that encodes actions, see
            :func:`~kvgym.compiling.pointers.function_handle`.
        record: DECISION (1,), output of the policy, like the following three, int32 (A,).
        admit: request ids.
        admit_tokens: tokens of each.
        evict: slots.
        memory: hyperparameters and memory of the policy.
        observations: float32 (n, D), written from row ``report[AT]`` on, like the following three.
        masks: uint8 (n, K).
        actions: float64 (n, a).
        rewards: float64 (n,).
        terms: float64 (5 + registered terms,), scratch.
        report: int64 (5,), written: the next free row, and the request and the numbers of an error.

    Returns:
        RUNNING if the record is full, TERMINATED, TRUNCATED, FAILED, or the reason why the actions cannot express a
        decision.
    """
    e = open_environment(where)
    run, s, episode = e.run, e.settings, e.episode
    policy = policy_at(handles[0], handles[1])
    encode = encode_at(handles[2], handles[3])
    apply = apply_at(s.apply_function[0], s.apply_function[1])
    d = record[0]
    decision, known = by_address(PolicyDecision(d, admit, admit_tokens, evict)), by_address(memory)
    outcome, pending = RUNNING, UNKNOWN  # pending: the row with an incomplete reward
    first = True  # an episode begins with a step, even if there is nothing to decide
    while True:
        asked = outcome != RUNNING or first or s.skip == 0 or something_to_decide(e)
        if asked and pending != UNKNOWN:
            rewards[pending] = total_reward(e, terms)
            pending = UNKNOWN
        if outcome != RUNNING or (asked and report[AT] == observations.shape[0]):
            return outcome
        first = False
        d.act, d.explicit, d.num_admit, d.num_evict, d.num_put_back, d.wait_until = RUN, 0, 0, 0, 0, np.inf
        policy(by_address(open_view(e)), decision, known)
        report[NUM_ADMIT], report[NUM_EVICT], report[NUM_ACTIVE] = d.num_admit, d.num_evict, run.w.num_active
        reason = refused(e, decision)
        if reason != 0:
            return reason
        if not asked:
            reason = in_full(e, decision)
            if reason != 0:
                return reason
            settle(e)
        done, complete = 0, not asked
        while not complete:
            row = report[AT]
            if row == observations.shape[0]:
                return RUNNING  # in the middle of a decision
            report[REQUEST_ID] = UNKNOWN
            reason = encode(where, decision, done, actions[row], report)
            if reason < 0:
                return reason
            observe(e, where, observations[row], masks[row])
            episode.num_ignored = 0
            complete = apply(where, actions[row]) != MORE
            reset_terms(e)
            rewards[row] = total_reward(e, terms)
            pending = row
            report[AT] += 1
            done += 1
        reason = difference(e, decision)
        if reason != 0:
            return reason if asked or reason == IDLE else UNASKED
        outcome = advance(e, where)
