"""Example of a reward term and a part of observations, explained in docs/components.md.

Importing the module registers ``acme_headroom`` and ``acme_seniority``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.envs import (
    ObservationPart,
    RewardTerm,
    observation_kernel,
    open_environment,
    register_observation,
    register_reward,
    reward_kernel,
)


@reward_kernel
def earn_headroom(where: Any, before: float, memory: Any) -> float:
    """Return minus the seconds with over nine tenths of the memory in use; longer stretches count more."""
    e = open_environment(where)
    w = e.run.w
    if w.kv_allocated <= 0.9 * e.run.problem.kv_capacity:
        memory[0] = 0.0
        return 0.0
    memory[0] += w.clock - before
    return -(w.clock - before) * (1.0 + memory[0] / 10.0)


@observation_kernel
def write_seniority(where: Any, out: Any) -> None:
    """Write the shares of running requests with more than 16, 64 and 256 output tokens."""
    e = open_environment(where)
    w = e.run.w
    for b in range(3):
        count = 0
        for k in range(w.num_active):
            if e.run.active[k].num_output_tokens > 16 << (2 * b):
                count += 1
        out[b] = np.float32(count / max(w.num_active, 1))


register_reward(RewardTerm("acme_headroom", earn_headroom, "minus seconds with little memory left", memory=1))
register_observation(
    ObservationPart(
        "acme_seniority",
        write_seniority,
        tuple(
            (f"over_{n}", f"share of active requests with more than {n} output tokens") for n in (16, 64, 256)
        ),
    )
)
