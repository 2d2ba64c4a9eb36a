"""The library's reward terms and parts of observations beyond the usual ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.envs.scheduling.components import (
    OBSERVATIONS,
    REWARDS,
    ObservationPart,
    RewardTerm,
    observation_kernel,
    reward_kernel,
)
from kvgym.envs.scheduling.opening import open_environment
from kvgym.envs.scheduling.revealed import half_way
from kvgym.simulator.tables import UNKNOWN


@reward_kernel
def earn_normalized_latency(where: Any, before: float, memory: Any) -> float:
    """Give minus latency per output token of the requests that have finished (W. Kwon et al., SOSP 2023)."""
    e = open_environment(where)
    total = 0.0
    for j in range(e.run.w.num_finished):
        i = e.run.finished[j]
        r = e.run.requests[i]
        total -= (r.finish_time - r.arrival_time) / r.num_output_tokens
    return total


@reward_kernel
def earn_queue_shaping(where: Any, before: float, memory: Any) -> float:
    """Give by how many the waiting requests have become fewer since the last iteration."""
    e = open_environment(where)
    change = memory[0] - e.run.w.num_waiting
    memory[0] = e.run.w.num_waiting
    return change


@observation_kernel
def write_backlog(where: Any, out: Any) -> None:
    """Go through the whole queue, of which the window shows the first."""
    e = open_environment(where)
    run, prompt, predicted = e.run, 0.0, 0.0
    i = run.w.queue_head
    while i != UNKNOWN:
        r = run.requests[i]
        prompt += r.num_prefill_left
        if r.predicted_len != UNKNOWN:
            predicted += max(r.predicted_len - r.num_output_tokens, 1)
        i = r.queue_next
    capacity = float(run.problem.kv_capacity)
    waiting = run.w.num_waiting
    out[0] = half_way(prompt, capacity)
    out[1] = half_way(predicted, capacity)
    out[2] = np.float32(max(waiting - e.settings.queue_window, 0) / max(waiting, 1))


for _term in (
    RewardTerm(
        "normalized_latency",
        earn_normalized_latency,
        "minus end-to-end latency per output token of requests that finish, s per token",
    ),
    RewardTerm(
        "queue_shaping",
        earn_queue_shaping,
        "by how many waiting requests have become fewer; a potential, 0 over a completed episode",
        memory=1,
    ),
):
    REWARDS.add(_term.name, _term)

OBSERVATIONS.add(
    "backlog",
    ObservationPart(
        "backlog",
        write_backlog,
        (
            ("prompt", "tokens to prefill of all waiting requests, half-way at the capacity"),
            (
                "predicted",
                "their predicted output tokens left, half-way at the capacity; 0 without predictions",
            ),
            ("behind", "share of them behind the queue window"),
        ),
    ),
)
