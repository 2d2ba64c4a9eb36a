"""The score of a request, the lower the sooner: what is left to do in time and memory, what it holds, its deadlines."""

from __future__ import annotations

import math
from typing import Any

from kvgym.baselines.ranked.layout import (
    ATTAINED,
    BUSY,
    FOOTPRINT,
    GATE,
    GATE_BUSY,
    HELD,
    HIDDEN,
    LAST,
    LOST,
    NETWORK,
    PRESSURE,
    PROMPT,
    SCORES,
    SHORTEST,
    SLACK,
    WAITING_BIAS,
    WAITING_PRESSURE,
)
from kvgym.baselines.ranked.lengths import mean_log_output, output_to_come
from kvgym.kernels import RuleMemory, RuleView, jit, jit_inline

MOST_SLACK = 8.0
"""Slack, in logarithms of batches, from which a deadline does not press; also that of requests without one."""

NETWORK_INPUTS = 12
"""Features that the network of a score sees, see :func:`network_score`."""


@jit
def observe_moment(view: RuleView, memory: RuleMemory) -> None:
    """Note what scores need of the worker: how many wait, and how long batches take."""
    w, load, reals = view.worker, view.load, memory.reals
    if reals[SHORTEST] == 0.0:
        load.num_prefills = load.prefill_tokens = load.prefill_context = 0
        load.prefill_squares = load.prefill_products = 0
        load.num_decodes = load.decode_context = 1
        reals[SHORTEST] = max(view.batch_time(load, view.batch_params), 1e-9)
    reals[LAST] = max(w.batch_duration, reals[SHORTEST])
    reals[BUSY] = 1.0 - reals[SHORTEST] / reals[LAST]
    reals[PRESSURE] = math.log(1.0 + w.num_waiting / (1.0 + w.num_active))


@jit_inline
def deadline_of(view: RuleView, row: Any, request: Any) -> Any:
    """Return when the next token of a request is due, s; inf without an objective, -inf where one has been missed.

    Args:
        view: what the rule sees.
        row: of an active request (its slot) or of a waiting one (its request).
        request: its row among the requests.
    """
    if math.isnan(row.last_token_time):
        return request.arrival_time + request.ttft_slo
    late = request.first_token_time - request.arrival_time > request.ttft_slo
    if late or row.max_token_gap > request.tbt_slo:
        return -math.inf
    return row.last_token_time + request.tbt_slo


@jit_inline
def urgency(view: RuleView, memory: RuleMemory, row: Any, request: Any) -> tuple[float, float]:
    """Return the slack of a request, in logarithms of batches up to MOST_SLACK, and 1 if it is lost, else 0.

    Args:
        view: what the rule sees.
        memory: what it remembers.
        row: of an active request (its slot) or of a waiting one (its request).
        request: its row among the requests.
    """
    slack, lost = MOST_SLACK, 0.0
    if request.ttft_slo < math.inf or request.tbt_slo < math.inf:
        left_time = deadline_of(view, row, request) - view.worker.clock
        if left_time < memory.reals[SHORTEST]:
            lost = 1.0
        else:
            slack = min(math.log(1.0 + left_time / memory.reals[LAST]), MOST_SLACK)
    return slack, lost


@jit_inline
def network_score(memory: RuleMemory, features: Any) -> Any:
    """Return what the network adds to the score: one hidden layer of tanh units, shared by all requests.

    Args:
        memory: its parameters hold, for each unit, the weights of the features, a bias, and the weight of its output.
        features: NETWORK_INPUTS numbers.
    """
    p = memory.params
    total, at = 0.0, NETWORK
    for _ in range(int(p[HIDDEN])):
        x = p[at + NETWORK_INPUTS]
        for f in range(NETWORK_INPUTS):
            x += p[at + f] * features[f]
        total += p[at + NETWORK_INPUTS + 1] * math.tanh(x)
        at += NETWORK_INPUTS + 2
    return total


@jit_inline
def score_of(
    view: RuleView, memory: RuleMemory, row: Any, request_id: int, output: float, waiting: bool
) -> Any:
    """Return the score of a request.

    Args:
        view: what the rule sees.
        memory: what it remembers, the weights among it.
        row: of an active request (its slot) or of a waiting one (its request).
        request_id: its id.
        output: what its output still to come is reckoned at, tokens.
        waiting: whether it waits.
    """
    p, reals, request = memory.params, memory.reals, view.requests[request_id]
    left, kv = float(row.num_prefill_left), float(row.num_kv_tokens)
    log_work = math.log(output + p[PROMPT] * left)
    log_memory = math.log(kv + left + 0.5 * output)
    log_attained = math.log(1.0 + row.num_output_tokens)
    log_held = 0.0 if waiting else math.log(1.0 + kv)
    score = reals[SCORES + 2 * view.requests.shape[0] + request_id] + log_work
    score += p[FOOTPRINT] * log_memory - p[ATTAINED] * log_attained - p[HELD] * log_held
    slack, lost = urgency(view, memory, row, request)
    if request.ttft_slo < math.inf or request.tbt_slo < math.inf:
        score += p[LOST] * lost + p[SLACK] * (slack - MOST_SLACK)
    if p[HIDDEN] > 0.0:
        mean = mean_log_output(memory)
        score += network_score(
            memory,
            (
                math.log(output) - mean,
                math.log(1.0 + left) - mean,
                log_memory - mean,
                log_attained,
                log_held,
                1.0 if waiting else 0.0,
                math.log(1.0 + request.num_evictions),
                slack / MOST_SLACK,
                lost,
                reals[PRESSURE],
                reals[BUSY],
                view.worker.kv_allocated / view.problem.kv_capacity,
            ),
        )
    return score


@jit_inline
def entry_bias(memory: RuleMemory) -> Any:
    """Return what a waiting request stands behind an active one of the same score."""
    return memory.params[WAITING_BIAS] + memory.params[WAITING_PRESSURE] * memory.reals[PRESSURE]


@jit_inline
def kept_out(memory: RuleMemory, output: float) -> bool:
    """Return whether a request is too long to begin now that the worker is as busy as it is."""
    p = memory.params
    return bool(memory.reals[BUSY] > p[GATE_BUSY] and math.log(output) > mean_log_output(memory) + p[GATE])


@jit_inline
def rate_request(view: RuleView, memory: RuleMemory, i: int) -> None:
    """Write score and output to come of a waiting request."""
    row, n = view.requests[i], view.requests.shape[0]
    output = output_to_come(view, memory, row, i)
    memory.reals[SCORES + n + i] = output
    memory.reals[SCORES + i] = score_of(view, memory, row, i, output, True)


@jit_inline
def rate_slot(view: RuleView, memory: RuleMemory, k: int) -> None:
    """Write score and output to come of an active request."""
    slot, n = view.active[k], view.requests.shape[0]
    i = slot.request_id
    output = output_to_come(view, memory, slot, i)
    memory.reals[SCORES + n + i] = output
    memory.reals[SCORES + i] = score_of(view, memory, slot, i, output, False)
