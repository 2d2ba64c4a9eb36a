"""The rule of the scheduler ``ranked`` inside an environment: what it remembers, when it looks, what it decides.

Its memory lies in the environment's tables and begins each episode as that of the scheduler does. At every iteration
boundary :func:`follow` brings it up to date, before anything is observed or decided there, so that scores are known
when an agent chooses; :func:`decide` is the decision. With nothing changed in between, both together are the kernel of
:class:`kvgym.baselines.ranked.Ranked`, and the schedule is the same bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvgym.baselines.ranked.batching import carry_out, rank
from kvgym.baselines.ranked.layout import (
    BUSY,
    FOOTPRINT,
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
from kvgym.compiling.kernel import jit_inline
from kvgym.envs.scheduling.actions.kind import boundary_kernel, features_kernel
from kvgym.envs.scheduling.opening import open_environment, open_rule, open_view
from kvgym.envs.scheduling.revealed import MOMENT_FEATURES, RULE_FEATURES, half_way
from kvgym.envs.scheduling.tables import MARKED, ORDER_RANK
from kvgym.envs.scheduling.window import Env, window_forget
from kvgym.simulator.policy_interface import RuleMemory, RuleView, decision_of
from kvgym.simulator.tables import UNKNOWN

_ROW, _MOMENT = len(RULE_FEATURES), len(MOMENT_FEATURES)


@jit_inline
def show_best(e: Env, view: RuleView, memory: RuleMemory) -> None:
    """Fill the queue window with the waiting requests of the best scores, best first; no score is made anew."""
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
    """Note what has happened since the last boundary, and score who has come."""
    e = open_environment(where)
    view, memory = open_view(e), open_rule(where)
    rate_all(view, memory)
    if e.settings.order == ORDER_RANK:
        show_best(e, view, memory)


@jit_inline
def decide(e: Env, view: RuleView, memory: RuleMemory) -> None:
    """Write the decision of the rule; who is admitted leaves the queue window."""
    decision = decision_of(e.run)
    rank(view, decision, memory)
    carry_out(view, decision, memory)
    for j in range(e.run.decision.num_admit):
        window_forget(e.settings, e.episode, e.window, e.heap, e.run.requests, e.run.admit[j])


@jit_inline
def around(x: float, scale: float) -> Any:
    """Return x / (|x| + scale)."""
    return np.float32(x / (abs(x) + scale))


@jit_inline
def write_row(view: RuleView, memory: RuleMemory, row: Any, i: int, out: Any, at: int) -> None:
    """Write what the rule makes of a request; ``row`` is its slot, or its request where it waits."""
    reals = memory.reals
    mean, output = mean_log_output(memory), reals[notes_of(view, i) + OUTPUT]
    score = reals[SCORES + i] - reals[outside_at(view) + i]
    slack, lost = urgency(view, memory, row, view.requests[i])
    out[at] = around(score - (1.0 + memory.params[FOOTPRINT]) * mean, 4.0)
    out[at + 1] = around(math.log(output) - mean, 1.0)
    out[at + 2] = half_way(output, float(generated(row)))
    out[at + 3] = np.float32(1.0 - slack / MOST_SLACK)
    out[at + 4] = np.float32(lost)


@features_kernel
def write_features(where: Any, out: Any) -> None:
    """Write the last columns of each row that holds a request, and what is said of the moment."""
    e = open_environment(where)
    s, w, view, memory = e.settings, e.run.w, open_view(e), open_rule(where)
    active_at = out.shape[0] - s.active_window * s.active_features
    queue_at = active_at - s.queue_window * s.queue_features
    out[queue_at - _MOMENT] = half_way(memory.reals[PRESSURE], 1.0)
    out[queue_at - _MOMENT + 1] = np.float32(memory.reals[BUSY])
    out[queue_at - _MOMENT + 2] = half_way(mean_log_output(memory), 5.0)
    out[queue_at - _MOMENT + 3] = half_way(float(memory.state[SEEN]), 64.0)
    for q in range(e.episode.num_window):
        i = e.window[q]
        queue_at += s.queue_features
        write_row(view, memory, e.run.requests[i], i, out, queue_at - _ROW)
    shown, k = 0, w.num_active - 1
    while shown < s.active_window and k >= 0:
        slot = e.run.active[k]
        k -= 1
        if slot.planned == MARKED:
            continue
        shown += 1
        active_at += s.active_features
        write_row(view, memory, slot, slot.request_id, out, active_at - _ROW)
