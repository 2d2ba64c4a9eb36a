"""Expected remaining output: hazards learned from finished requests, and the Gittins costs that follow.

The estimate assumes nothing about the workload. As requests finish, it counts their output lengths on a logarithmic
grid and, if a length was predicted, the ratio of output to prediction. Unfinished requests count as censored: their
output is longer than what they have. The hazard of a bin is Kaplan and Meier's (1958): the requests that
finished in it over those that reached it. A few pseudo-observations stand in for missing data. Without a prediction
they form a Pareto tail of index 1, under which half of the requests that reach any length reach twice that length.
With a prediction they spread ratios evenly over the logarithm from 1/2 to 2 (one part in 25 beyond), with the same
tail after it.

Hazards give the Gittins cost (Gittins, Glazebrook, Weber, "Multi-armed Bandit Allocation Indices", 2011; the
reciprocal of the Gittins index): the least ratio, over all amounts of service, of the service spent to the
probability that it completes the request. It generalises shortest remaining time first to uncertain lengths.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvgym.baselines.ranked.layout import (
    ARRIVED,
    CERTAIN,
    COST_BEFORE,
    DEADLINES,
    FIRST_RATIO,
    GROUP_HAZARDS,
    GROUPS,
    HAZARDS,
    LEAST_CHANGE,
    MOST_CHANGE,
    NEXT,
    RATIO_BINS,
    RATIO_CENSORED,
    RATIO_COSTS,
    RATIO_COUNTS,
    RATIO_EDGES,
    RATIOS_PER_OCTAVE,
    SEEN,
    STEPS,
    SUM_LOG_OUTPUT,
    TOKEN_BINS,
    TOKEN_CENSORED,
    TOKEN_COSTS,
    TOKEN_COUNTS,
    TOKEN_EDGES,
    TOKENS_PER_OCTAVE,
    censored_at,
)
from kvgym.kernels import PolicyMemory, PolicyView, jit, jit_inline

TOKEN_PRIOR, RATIO_PRIOR, CLASS_PRIOR = 2.0, 4.0, 8.0
"""Pseudo-observations in each bin: of lengths, of ratios, and, for a class, of the hazards of all classes together."""

LEARN_EVERY = 8
"""Completions between two updates: 8, or an eighth of those seen if that is more."""


def _bin_of(tokens: int) -> int:
    """Return the bin of an output length."""
    return min(int(math.log2(tokens) * TOKENS_PER_OCTAVE), TOKEN_BINS - 1) if tokens > 1 else 0


_BINS = np.array([_bin_of(tokens) for tokens in range(4096)])
"""The bins of short output lengths, which saves a logarithm."""


@jit_inline
def token_bin(tokens: int) -> Any:
    """Return the bin of an output length."""
    if tokens < _BINS.shape[0]:
        return _BINS[tokens]
    return min(int(math.log2(float(tokens)) * TOKENS_PER_OCTAVE), TOKEN_BINS - 1)


@jit
def ratio_bin(ratio: float) -> int:
    """Return the bin of a ratio of an output length to its prediction."""
    if ratio <= FIRST_RATIO:
        return 0
    return min(int(math.log2(ratio / FIRST_RATIO) * RATIOS_PER_OCTAVE), RATIO_BINS - 1)


@jit_inline
def group_of(row: Any) -> int:
    """Return the group of a request: 0 if its class is unknown."""
    return 0 if row.class_id < 0 else 1 + min(row.class_id, GROUPS - 2)


@jit
def gittins_costs(reals: Any, hazards: int, costs: int, edges: int, bins: int) -> None:
    """Write the Gittins cost, tokens or ratios, at the start of every bin and at the end of the last.

    Each is a minimum over stopping points. The inner loop advances all starts at once, so that it vectorises.
    """
    surviving, spent, done, first = STEPS, STEPS + bins, STEPS + 2 * bins, 0
    for b in range(bins):
        reals[surviving + b], reals[spent + b], reals[done + b], reals[costs + b] = 1.0, 0.0, 0.0, math.inf
    for c in range(bins):
        hazard, width = reals[hazards + c], reals[edges + c + 1] - reals[edges + c]
        while first < c and reals[surviving + first] < 1e-3:  # the earlier the start, the fewer survive
            first += 1
        for b in range(first, c + 1):
            before = reals[surviving + b]
            ending = before * hazard
            service = reals[spent + b] + (before - 0.5 * ending) * width
            ended = reals[done + b] + ending
            cost = service / (ended if ended > 0.0 else 1.0)
            better = (before >= 1e-3) & (ended > 0.0) & (cost < reals[costs + b])
            reals[surviving + b], reals[spent + b], reals[done + b] = before - ending, service, ended
            reals[costs + b] = cost if better else reals[costs + b]
    reals[costs + bins] = reals[costs + bins - 1]


@jit
def prior_hazard(b: int, per_octave: int, ratios: bool) -> Any:
    """Return the prior hazard of a bin."""
    tail = 1.0 - 2.0 ** (-1.0 / per_octave)
    if not ratios:
        return tail
    at = b - 3 * per_octave  # bins from 1/2 on
    if at < 0:
        return 0.0
    return 1.0 / (2 * per_octave - at + 1) if at < 2 * per_octave else tail


@jit
def learn_group(
    memory: PolicyMemory,
    g: int,
    counts: int,
    censored: int,
    costs: int,
    edges: int,
    bins: int,
    per_octave: int,
) -> None:
    """Estimate the hazards and costs of a group of requests; group 0, all requests, comes first."""
    state, reals, ratios = memory.state, memory.reals, costs == RATIO_COSTS
    counted, hidden, cost = counts + g * bins, censored + g * bins, costs + g * (bins + 1)
    for b in range(bins + 1):
        reals[COST_BEFORE + b] = reals[cost + b]
    at_risk = finished = 0
    for b in range(bins):
        at_risk += state[counted + b] + state[hidden + b]
        finished += state[counted + b]
    if g == 0 and at_risk == 0 and state[NEXT] > 0:
        return  # no request of the group has finished
    if g > 0 and finished == 0:
        for b in range(bins + 1):
            reals[cost + b] = reals[costs + b]
        note_change(memory, hidden, cost, bins)
        return
    strength = CLASS_PRIOR if g > 0 else RATIO_PRIOR if ratios else TOKEN_PRIOR
    hazards = HAZARDS if g == 0 else GROUP_HAZARDS
    for b in range(bins):
        prior = prior_hazard(b, per_octave, ratios) if g == 0 else reals[HAZARDS + b]
        at_risk -= state[hidden + b]  # these end in this bin or a later one
        reals[hazards + b] = (state[counted + b] + strength * prior) / (at_risk + strength)
        at_risk -= state[counted + b]
    gittins_costs(reals, hazards, cost, edges, bins)
    note_change(memory, hidden, cost, bins)


@jit
def note_change(memory: PolicyMemory, censored: int, costs: int, bins: int) -> None:
    """Extend the smallest and the largest ratio of costs to those before by the ones that a group's requests use.

    These are the first cost, of requests without output, and those at both ends of a bin with a censored request.
    """
    state, reals = memory.state, memory.reals
    least, most = reals[LEAST_CHANGE], reals[MOST_CHANGE]
    for b in range(bins + 1):
        before = reals[COST_BEFORE + b]  # 0 before the first update, when no request has a score
        used = b == 0 or state[censored + b - 1] > 0 or (b < bins and state[censored + b] > 0)
        if used and before > 0.0:
            least, most = min(least, reals[costs + b] / before), max(most, reals[costs + b] / before)
    reals[LEAST_CHANGE], reals[MOST_CHANGE] = least, most


@jit
def count(state: Any, row: Any, tokens: int, lengths: int, ratios: int, number: int) -> None:
    """Count ``number`` requests (-1: uncount one) with ``tokens`` output tokens, in group 0 and in the class."""
    g, b = group_of(row), token_bin(tokens)
    state[lengths + b] += number
    if g > 0:
        state[lengths + g * TOKEN_BINS + b] += number
    if row.predicted_len > 0:
        b = ratio_bin(tokens / row.predicted_len)
        state[ratios + b] += number
        if g > 0:
            state[ratios + g * RATIO_BINS + b] += number


@jit_inline
def generated(row: Any) -> Any:
    """Return the most output tokens that a request has ever had, a lower bound of its output."""
    return max(row.num_delivered_tokens, row.num_output_tokens)


@jit
def count_active(view: PolicyView, memory: PolicyMemory, number: int) -> None:
    """Count the output so far of all active requests as censored; with ``number`` -1, uncount it."""
    for k in range(view.worker.num_active):
        if generated(view.active[k]) > 0:
            row = view.active[k]
            count(memory.state, row, generated(row), TOKEN_CENSORED, RATIO_CENSORED, number)


@jit_inline
def count_waiting(view: PolicyView, memory: PolicyMemory, i: int) -> None:
    """Count the output so far of a request that begins to wait as censored."""
    row = view.requests[i]
    if row.num_delivered_tokens > 0:
        memory.state[censored_at(view) + i] = row.num_delivered_tokens
        count(memory.state, row, row.num_delivered_tokens, TOKEN_CENSORED, RATIO_CENSORED, 1)


@jit
def uncount_waiting(view: PolicyView, memory: PolicyMemory, i: int) -> None:
    """Uncount a request that is being admitted or has been moved away, if :func:`count_waiting` has counted it."""
    tokens = memory.state[censored_at(view) + i]
    if tokens > 0:
        memory.state[censored_at(view) + i] = 0
        count(memory.state, view.requests[i], tokens, TOKEN_CENSORED, RATIO_CENSORED, -1)


@jit
def learn(view: PolicyView, memory: PolicyMemory, all_current: bool) -> None:
    """Learn hazards and costs of all groups from the counts, and note by how much costs have changed.

    Args:
        view: what the policy observes.
        memory: the policy's memory.
        all_current: whether no waiting request has a score by earlier costs; else their changes count, too.
    """
    state, reals = memory.state, memory.reals
    least, most = (1.0, 1.0) if all_current else (reals[LEAST_CHANGE], reals[MOST_CHANGE])
    reals[LEAST_CHANGE] = reals[MOST_CHANGE] = 1.0
    count_active(view, memory, 1)
    for g in range(GROUPS):
        learn_group(
            memory, g, TOKEN_COUNTS, TOKEN_CENSORED, TOKEN_COSTS, TOKEN_EDGES, TOKEN_BINS, TOKENS_PER_OCTAVE
        )
    # A separate loop: the hazards of classes start from those of all requests, which share one place in
    # memory.
    for g in range(GROUPS):
        learn_group(
            memory, g, RATIO_COUNTS, RATIO_CENSORED, RATIO_COSTS, RATIO_EDGES, RATIO_BINS, RATIOS_PER_OCTAVE
        )
    count_active(view, memory, -1)
    reals[LEAST_CHANGE] *= least
    reals[MOST_CHANGE] *= most
    state[NEXT] = state[SEEN] + max(LEARN_EVERY, state[SEEN] // LEARN_EVERY)


@jit
def notice_finished(view: PolicyView, memory: PolicyMemory) -> bool:
    """Count the requests that finished since the last decision; return whether it is time to learn."""
    state, w = memory.state, view.worker
    for j in range(w.num_finished):
        row = view.requests[view.finished[j]]
        count(state, row, row.num_output_tokens, TOKEN_COUNTS, RATIO_COUNTS, 1)
    state[SEEN] += w.num_finished
    return bool(state[SEEN] >= state[NEXT])


@jit
def cost_at(reals: Any, costs: int, edges: int, b: int, x: float) -> Any:
    """Return the Gittins cost at ``x`` in bin ``b``, linear between its edges."""
    low, high = reals[edges + b], reals[edges + b + 1]
    share = min((x - low) / (high - low), 1.0)
    return reals[costs + b] + share * (reals[costs + b + 1] - reals[costs + b])


@jit_inline
def output_to_come(view: PolicyView, memory: PolicyMemory, row: Any, request_id: int) -> Any:
    """Return the estimate of the remaining output, tokens, at least 1.

    It is the Gittins cost at the most tokens that the request has ever had, plus tokens lost by an eviction, within
    the bounds of the length if these are observed. If lengths are known, it is the true remaining output.
    """
    reals, have, most, g = memory.reals, row.num_output_tokens, generated(row), group_of(row)
    if memory.state[CERTAIN] > 0:
        return max(float(view.requests[request_id].output_len - have), 1.0)
    if row.predicted_len > 0:
        x = most / row.predicted_len
        cost = row.predicted_len * cost_at(
            reals, RATIO_COSTS + g * (RATIO_BINS + 1), RATIO_EDGES, ratio_bin(x), x
        )
    else:
        cost = cost_at(reals, TOKEN_COSTS + g * (TOKEN_BINS + 1), TOKEN_EDGES, token_bin(most), float(most))
    left = most - have + max(cost, 1.0)
    request = view.requests[request_id]
    if request.predicted_high > 0:
        left = min(max(left, float(request.predicted_low - have)), float(request.predicted_high - have))
    return max(left, 1.0)


@jit_inline
def notice_arrival(memory: PolicyMemory, row: Any, output: float) -> None:
    """Add a new arrival to the mean of the outputs expected on arrival."""
    if row.ttft_slo < math.inf or row.tbt_slo < math.inf:
        memory.state[DEADLINES] = 1
    if row.num_evictions == 0:
        memory.state[ARRIVED] += 1
        memory.reals[SUM_LOG_OUTPUT] += math.log(output)


@jit_inline
def mean_log_output(memory: PolicyMemory) -> Any:
    """Return the mean, over arrivals, of the logarithm of the output expected on arrival."""
    return memory.reals[SUM_LOG_OUTPUT] / max(memory.state[ARRIVED], 1)
