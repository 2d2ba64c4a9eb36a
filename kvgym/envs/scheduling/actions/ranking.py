"""The scheduler ``ranked`` inside an environment: memory, updates, decisions and features.

Its memory is in the environment's tables and starts each episode like the scheduler's. At every iteration boundary
:func:`follow` updates it before the observation and the decision, so that an agent's choice can use the scores;
:func:`decide` makes the decision. Without changes in between, both together are the kernel of
:class:`kvgym.baselines.ranked.Ranked`, and the schedule is the same bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvgym.baselines.ranked.batching import carry_out, rank
from kvgym.baselines.ranked.layout import (
    BUSY,
    OUTPUT,
    PRESSURE,
    SCORES,
    SEEN,
    notes_of,
    outside_at,
)
from kvgym.baselines.ranked.lengths import generated, mean_log_output
from kvgym.baselines.ranked.scheduler import rate_all
from kvgym.baselines.ranked.scoring import MOST_SLACK, urgency
from kvgym.baselines.ranked.waiting import best_waiting, end_walk, pass_first
from kvgym.baselines.ranked.weights import weights_in
from kvgym.compiling.kernel import jit_inline
from kvgym.compiling.places import places
from kvgym.envs.scheduling.actions.kind import boundary_kernel, features_kernel
from kvgym.envs.scheduling.opening import open_environment, open_rule, open_view
from kvgym.envs.scheduling.revealed import MOMENT, RULE_FEATURES, saturate, saturate_signed
from kvgym.envs.scheduling.tables import MARKED, ORDER_RANK, Env
from kvgym.envs.scheduling.window import window_remove
from kvgym.simulator.policy_interface import PolicyMemory, PolicyView, decision_of
from kvgym.simulator.tables import UNKNOWN

_RULE = places(RULE_FEATURES)


@jit_inline
def show_best(e: Env, view: PolicyView, memory: PolicyMemory) -> None:
    """Fill the queue window with the best-scored waiting requests, best first, without scoring them again."""
    count = 0
    while count < e.window.shape[0]:
        i = best_waiting(view, memory)
        if i == UNKNOWN:
            break
        pass_first(view, memory, i)
        e.window[count] = i
        count += 1
    end_walk(view, memory)
    e.episode.num_window = count


@boundary_kernel
def follow(where: Any) -> None:
    """Update the memory with the events since the last boundary, and score new arrivals."""
    e = open_environment(where)
    view, memory = open_view(e), open_rule(where)
    rate_all(view, memory)
    if e.settings.order == ORDER_RANK:
        show_best(e, view, memory)


@jit_inline
def decide(e: Env, view: PolicyView, memory: PolicyMemory) -> None:
    """Write the decision of the rule; admitted requests leave the queue window."""
    decision = decision_of(e.run)
    rank(view, decision, memory)
    carry_out(view, decision, memory)
    for j in range(e.run.decision.num_admit):
        window_remove(e.settings, e.episode, e.window, e.heap, e.run.requests, e.run.admit[j])


@jit_inline
def write_row(view: PolicyView, memory: PolicyMemory, row: Any, i: int, out: Any, at: int) -> None:
    """Write the rule's features of a request; ``row`` is its slot, or its request record while it waits."""
    reals = memory.reals
    mean, output = mean_log_output(memory), reals[notes_of(view, i) + OUTPUT]
    score = reals[SCORES + i] - reals[outside_at(view) + i]
    slack, lost = urgency(view, memory, row, view.requests[i])
    out[at + _RULE.rank_score] = saturate_signed(
        score - (1.0 + weights_in(memory.params).footprint) * mean, 4.0
    )
    out[at + _RULE.relative_output] = saturate_signed(math.log(output) - mean, 1.0)
    out[at + _RULE.share_to_come] = saturate(output, float(generated(row)))
    out[at + _RULE.urgency] = np.float32(1.0 - slack / MOST_SLACK)
    out[at + _RULE.lost] = np.float32(lost)


@features_kernel
def write_features(where: Any, out: Any) -> None:
    """Write the rule's columns of each row that holds a request, and the features with the key ``rule``."""
    e = open_environment(where)
    s, w, view, memory = e.settings, e.run.w, open_view(e), open_rule(where)
    active_at = out.shape[0] - s.active_window * s.active_features
    queue_at = active_at - s.queue_window * s.queue_features
    moment_at = queue_at - len(MOMENT)
    out[moment_at + MOMENT.pressure] = saturate(memory.reals[PRESSURE], 1.0)
    out[moment_at + MOMENT.busy] = np.float32(memory.reals[BUSY])
    out[moment_at + MOMENT.usual_output] = saturate(mean_log_output(memory), 5.0)
    out[moment_at + MOMENT.learned] = saturate(float(memory.state[SEEN]), 64.0)
    for q in range(e.episode.num_window):
        i = e.window[q]
        queue_at += s.queue_features
        write_row(view, memory, e.run.requests[i], i, out, queue_at - len(_RULE))
    shown, k = 0, w.num_active - 1
    while shown < s.active_window and k >= 0:
        slot = e.run.active[k]
        k -= 1
        if slot.planned == MARKED:
            continue
        shown += 1
        active_at += s.active_features
        write_row(view, memory, slot, slot.request_id, out, active_at - len(_RULE))
