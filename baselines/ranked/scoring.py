"""The score of a request, lower is sooner: remaining work and memory, KV that it holds, and its deadlines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvgym.baselines.ranked.layout import (
    BASE,
    BUSY,
    DUE,
    GAP,
    LAST,
    OUTPUT,
    PRESSURE,
    PROMPT_TIME,
    SCORES,
    SHORTEST,
    notes_of,
    outside_at,
)
from kvgym.baselines.ranked.lengths import mean_log_output, output_to_come
from kvgym.baselines.ranked.weights import NETWORK, NETWORK_INPUTS, weights_in
from kvgym.kernels import PolicyMemory, PolicyView, jit, jit_inline

MOST_SLACK = 8.0
"""Slack, logarithm of batches, from which a deadline does not press; also the slack without a deadline."""

SAMPLE_PROMPT, SAMPLE_DECODES = 512, 64
"""Sizes of the two batches that compare the time added by a prompt token and by a decode."""

_LOGS = np.array([math.log(1.0 + k) for k in range(4096)])
"""log(1 + k) of the most frequent whole numbers."""


@jit_inline
def log_beyond(tokens: int) -> Any:
    """Return log(1 + tokens)."""
    return _LOGS[tokens] if tokens < _LOGS.shape[0] else math.log(1.0 + tokens)


@jit
def prompt_seconds(view: PolicyView, tokens: int) -> Any:
    """Return the duration of a batch of one prompt of ``tokens`` tokens, s."""
    load = view.load
    load.prefill_context = load.prefill_products = load.num_decodes = load.decode_context = 0
    load.num_prefills, load.prefill_tokens, load.prefill_squares = 1, tokens, tokens * tokens
    return view.batch_time(load, view.batch_params)


@jit
def decode_seconds(view: PolicyView, number: int, context: int) -> Any:
    """Return the duration of a batch of ``number`` decodes with ``context`` tokens each, s."""
    load = view.load
    load.num_prefills = load.prefill_tokens = load.prefill_context = 0
    load.prefill_squares = load.prefill_products = 0
    load.num_decodes, load.decode_context = number, number * context
    return view.batch_time(load, view.batch_params)


@jit
def observe_moment(view: PolicyView, memory: PolicyMemory) -> None:
    """Store the worker's state that scores need: waiting requests, batch durations, and time per prompt token."""
    w, reals = view.worker, memory.reals
    if reals[SHORTEST] == 0.0:
        reals[SHORTEST] = max(decode_seconds(view, 1, 1), 1e-9)
        reals[PROMPT_TIME] = (prompt_seconds(view, SAMPLE_PROMPT) - reals[SHORTEST]) / SAMPLE_PROMPT
    reals[LAST] = max(w.batch_duration, reals[SHORTEST])
    reals[BUSY] = 1.0 - reals[SHORTEST] / reals[LAST]
    reals[PRESSURE] = math.log(1.0 + w.num_waiting / (1.0 + w.num_active)) if w.num_waiting > 0 else 0.0


@jit
def prompt_ratio(view: PolicyView, memory: PolicyMemory) -> Any:
    """Return the time that a prompt token adds to a batch, relative to a decode with the usual context."""
    w, reals = view.worker, memory.reals
    context = w.kv_tokens // max(w.num_active, 1) + 1
    decode_time = (decode_seconds(view, SAMPLE_DECODES, context) - reals[SHORTEST]) / (SAMPLE_DECODES - 1)
    return min(reals[PROMPT_TIME] / decode_time, 10.0) if decode_time > 0.0 else 1.0


@jit
def deadline_of(view: PolicyView, row: Any, request: Any) -> Any:
    """Return when the next token of a request is due, s; inf without an objective, -inf if one has been missed.

    Args:
        view: what the policy observes.
        row: the slot of an active request, or the row of a waiting one.
        request: its row among the requests.
    """
    if math.isnan(row.last_token_time):
        return request.arrival_time + request.ttft_slo
    late = request.first_token_time - request.arrival_time > request.ttft_slo
    if late or row.max_token_gap > request.tbt_slo:
        return -math.inf
    return row.last_token_time + request.tbt_slo


@jit_inline
def has_objective(request: Any) -> bool:
    """Return whether a request has a TTFT or a TBT objective."""
    return bool(request.ttft_slo < math.inf or request.tbt_slo < math.inf)


@jit_inline
def spare_until(view: PolicyView, memory: PolicyMemory, row: Any, due: float) -> Any:
    """Return the time until ``due``, less the time for the request's prompt and the shortest batch, s."""
    needed = memory.reals[SHORTEST] + memory.reals[PROMPT_TIME] * row.num_prefill_left
    return due - view.worker.clock - needed


@jit_inline
def time_to_spare(view: PolicyView, memory: PolicyMemory, row: Any, request: Any) -> Any:
    """Return the time until the next deadline of a request, less the time for its prompt and the shortest batch, s."""
    return spare_until(view, memory, row, deadline_of(view, row, request))


@jit_inline
def slack_of(memory: PolicyMemory, spare: float) -> Any:
    """Return a spare time, at least 0, as a logarithm of batches, up to MOST_SLACK."""
    return min(math.log(1.0 + spare / memory.reals[LAST]), MOST_SLACK)


@jit_inline
def urgency(view: PolicyView, memory: PolicyMemory, row: Any, request: Any) -> tuple[float, float]:
    """Return the slack of the next deadline of a request, and whether it is lost.

    Args:
        view: what the policy observes.
        memory: the policy's memory.
        row: the slot of an active request, or the row of a waiting one.
        request: its row among the requests.

    Returns:
        Slack, logarithm of batches, up to MOST_SLACK; 1 if the deadline cannot be met, else 0.
    """
    if not has_objective(request):
        return MOST_SLACK, 0.0
    spare = time_to_spare(view, memory, row, request)
    return (slack_of(memory, spare), 0.0) if spare >= 0.0 else (MOST_SLACK, 1.0)


@jit_inline
def added_until(view: PolicyView, memory: PolicyMemory, row: Any, due: float) -> tuple[float, float]:
    """Return what a deadline adds to the score of a request, and the deadline, s: inf if it cannot be met."""
    reals, p = memory.reals, weights_in(memory.params)
    spare = spare_until(view, memory, row, due)
    if spare < 0.0:
        return p.lost, math.inf
    # A decode that cannot wait for another batch:
    urgent = p.urgent if row.num_prefill_left == 0 and spare < 2.0 * reals[LAST] else 0.0
    return p.slack * (slack_of(memory, spare) - MOST_SLACK) - urgent, due


@jit_inline
def press(view: PolicyView, memory: PolicyMemory, row: Any, request_id: int) -> None:
    """Write the score of a request, base plus deadline, when its next token is due, and the gap allowed between tokens.

    The due time is inf without a deadline, or if it cannot be met.
    """
    reals, request, notes = memory.reals, view.requests[request_id], notes_of(view, request_id)
    score, gap = reals[notes + BASE], request.tbt_slo
    if has_objective(request):
        due = deadline_of(view, row, request)
        if math.isnan(row.last_token_time):
            gap = math.nan
        elif due == -math.inf:
            gap = -math.inf
        added, due = added_until(view, memory, row, due)
        score += added
        reals[notes + DUE] = due
    reals[SCORES + request_id], reals[notes + GAP] = score, gap


@jit_inline
def network_score(memory: PolicyMemory, features: Any) -> Any:
    """Return the output of the network: one hidden layer of tanh units, shared by all requests.

    Args:
        memory: its parameters hold, for each unit, the feature weights, a bias, and the output weight.
        features: the NETWORK_INPUTS features.
    """
    numbers = memory.params
    total, at = 0.0, NETWORK
    for _ in range(weights_in(numbers).hidden):
        x = numbers[at + NETWORK_INPUTS]
        for f in range(NETWORK_INPUTS):
            x += numbers[at + f] * features[f]
        total += numbers[at + NETWORK_INPUTS + 1] * math.tanh(x)
        at += NETWORK_INPUTS + 2
    return total


@jit_inline
def terms_of(memory: PolicyMemory, row: Any, output: float, waiting: bool) -> Any:
    """Return the terms of the base of a score.

    Args:
        memory: the policy's memory, with the weights.
        row: the slot of an active request, or the row of a waiting one.
        output: the estimate of its remaining output, tokens.
        waiting: whether the request waits.

    Returns:
        Logarithms of its remaining work, memory, output so far, and KV held.
    """
    left, kv = float(row.num_prefill_left), float(row.num_kv_tokens)
    log_work = math.log(output + weights_in(memory.params).prompt * left)
    log_memory = math.log(kv + left + 0.5 * output)
    log_held = 0.0 if waiting else log_beyond(row.num_kv_tokens)
    return log_work, log_memory, log_beyond(row.num_output_tokens), log_held


@jit_inline
def weighted(memory: PolicyMemory, terms: Any) -> Any:
    """Return the weighted sum of the terms of a request, see :func:`terms_of`."""
    p = weights_in(memory.params)
    log_work, log_memory, log_attained, log_held = terms
    return log_work + (p.footprint * log_memory - p.attained * log_attained - p.held * log_held)


@jit_inline
def features_of(
    view: PolicyView, memory: PolicyMemory, row: Any, request: Any, output: float, waiting: bool, terms: Any
) -> Any:
    """Return the network's input for a request, NETWORK_INPUTS features.

    Args:
        view: what the policy observes.
        memory: the policy's memory.
        row: the slot of an active request, or the row of a waiting one.
        request: its row among the requests.
        output: the estimate of its remaining output, tokens.
        waiting: whether the request waits.
        terms: the result of :func:`terms_of`.
    """
    reals, mean = memory.reals, mean_log_output(memory)
    _, log_memory, log_attained, log_held = terms
    slack, lost = urgency(view, memory, row, request)
    return (
        math.log(output) - mean,
        math.log(1.0 + row.num_prefill_left) - mean,
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
    )


@jit_inline
def base_of(
    view: PolicyView, memory: PolicyMemory, row: Any, request_id: int, output: float, waiting: bool
) -> Any:
    """Return the base of a score: external addition, weighted terms, and the network's output."""
    terms = terms_of(memory, row, output, waiting)
    base = memory.reals[outside_at(view) + request_id] + weighted(memory, terms)
    if weights_in(memory.params).hidden > 0:
        request = view.requests[request_id]
        base += network_score(memory, features_of(view, memory, row, request, output, waiting, terms))
    return base


@jit_inline
def lesson_of(
    view: PolicyView, memory: PolicyMemory, row: Any, request_id: int, length: int, waiting: bool
) -> Any:
    """Return the network's input for a request, and its target: the change of the score by the true length.

    Args:
        view: what the policy observes.
        memory: the policy's memory.
        row: the slot of an active request, or the row of a waiting one.
        request_id: id of the request.
        length: its total output, tokens.
        waiting: whether the request waits.
    """
    output = output_to_come(view, memory, row, request_id)
    terms = terms_of(memory, row, output, waiting)
    left = max(float(length - row.num_output_tokens), 1.0)
    true = weighted(memory, terms_of(memory, row, left, waiting))
    features = features_of(view, memory, row, view.requests[request_id], output, waiting, terms)
    return features, true - weighted(memory, terms)


@jit_inline
def entry_bias(memory: PolicyMemory) -> Any:
    """Return how far a waiting request ranks behind an active one with the same score."""
    p = weights_in(memory.params)
    return p.waiting + p.waiting_pressure * memory.reals[PRESSURE]


@jit_inline
def too_long(memory: PolicyMemory, output: float) -> bool:
    """Return whether a request with this remaining output, tokens, is too long to begin while the worker is busy."""
    p = weights_in(memory.params)
    return bool(memory.reals[BUSY] > p.gate_busy and math.log(output) > mean_log_output(memory) + p.gate)


@jit_inline
def _rebase(view: PolicyView, memory: PolicyMemory, row: Any, i: int, waiting: bool) -> None:
    """Write the remaining output and the base of a request."""
    notes, output = notes_of(view, i), output_to_come(view, memory, row, i)
    memory.reals[notes + OUTPUT] = output
    memory.reals[notes + BASE] = base_of(view, memory, row, i, output, waiting)


@jit
def rate_request(view: PolicyView, memory: PolicyMemory, i: int) -> None:
    """Write the remaining output, base and score of a waiting request."""
    row = view.requests[i]
    _rebase(view, memory, row, i, True)
    press(view, memory, row, i)


@jit
def rebase_slot(view: PolicyView, memory: PolicyMemory, k: int) -> None:
    """Write the remaining output and the base of an active request."""
    _rebase(view, memory, view.active[k], view.active[k].request_id, False)


@jit
def rate_slot(view: PolicyView, memory: PolicyMemory, k: int) -> None:
    """Write the remaining output, base and score of an active request."""
    rebase_slot(view, memory, k)
    press(view, memory, view.active[k], view.active[k].request_id)
