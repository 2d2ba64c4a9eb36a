"""What tests of schedules worked by hand share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvgym.policy import make_policy
from kvgym.runner import SimulationResult, system_info
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable


def check(
    result: SimulationResult,
    start: Sequence[float],
    finish: Sequence[float],
    first: Sequence[float] | None = None,
    evictions: Sequence[int] | None = None,
) -> None:
    """Compare the records of a run with a schedule; ``evictions`` are none unless given."""
    records = result.requests
    np.testing.assert_array_equal(records["start_time"], start)
    np.testing.assert_array_equal(records["finish_time"], finish)
    np.testing.assert_array_equal(
        records["num_evictions"], [0] * len(start) if evictions is None else evictions
    )
    if first is not None:
        np.testing.assert_array_equal(records["first_token_time"], first)


@dataclass(frozen=True)
class Step:
    """What a scheduler decided at one iteration boundary.

    Attributes:
        time: of the decision, seconds.
        batch: tokens by request id, of those that get any.
        evicted: ids in the order of the decision.
    """

    time: float
    batch: dict[int, int]
    evicted: list[int]


def play(spec: str, system: System, table: RequestTable) -> list[Step]:
    """Run a policy through ``schedule`` and return what it decides, boundary by boundary."""
    policy = make_policy(spec)
    simulation = Simulation(system, table, needs=policy.info.needs, policy_name=spec)
    policy.reset(system_info(system, table, 0, policy.info.needs))
    steps = []
    running = simulation.start()
    while running:
        view, batch = simulation.view, {}
        decision = policy.schedule(view)
        for rows, chosen in ((view.active, None), (view.waiting, decision.admit)):
            for i, left in zip(rows.request_id.tolist(), rows.num_prefill_left.tolist(), strict=True):
                if i not in decision.evict and (chosen is None or i in chosen):
                    batch[i] = decision.tokens.get(i, max(left, 1))
        batch = {i: tokens for i, tokens in batch.items() if tokens > 0}
        steps.append(Step(view.clock, batch, list(decision.evict)))
        running = simulation.step(decision)
    return steps
