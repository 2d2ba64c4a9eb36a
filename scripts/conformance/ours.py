"""The schedule of a policy of kvgym, batch by batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.cases import BATCH_TIME, Case, Schedule, Step
from kvgym.policy import make_policy
from kvgym.runner import prepare_run
from kvgym.simulator.system import System
from kvgym.simulator.tables import FINISHED
from kvgym.workloads.table import RequestTable


def play(case: Case, policy: str, by_priority: bool = False, **system: Any) -> Schedule:
    """Return the schedule of a compiled policy.

    Args:
        case: the workload and the policy's hyperparameters.
        policy: name of the policy.
        by_priority: whether waiting requests are recorded by priority, arrival and number, not in queue order.
        **system: settings of the system.

    Raises:
        KVGymError: the policy refuses the settings, or the run does not end.
    """
    table = RequestTable.from_columns(
        arrival_time=case.arrival, prompt_len=case.prompt, output_len=case.output, priority=case.priority
    )
    memory = {"kv_capacity": case.blocks * case.block_size, "block_size": case.block_size}
    built = System(batch_time=BATCH_TIME, **(memory | system))
    simulation, _ = prepare_run(built, table, make_policy(policy, **case.settings), log=True)
    steps: list[Step] = []
    while simulation.start():
        view, before = simulation.view, _progress(simulation)
        clock, running, waiting = (
            view.clock,
            view.active.request_id.tolist(),
            view.waiting.request_id.tolist(),
        )
        if by_priority:
            waiting.sort(key=lambda i: (-case.priority[i], i))
        evicted, admitted = (int(simulation.worker[f"total_{what}"]) for what in ("evicted", "admitted"))
        simulation.run(budget=1)
        after = _progress(simulation)
        count = int(simulation.worker["total_evicted"]) - evicted
        preempted = [running[k] for k in simulation.evict[0, :count].tolist()]
        count = int(simulation.worker["total_admitted"]) - admitted
        members = [i for i in running if i not in preempted] + simulation.admit[0, :count].tolist()
        tokens = tuple((i, done) for i in members if (done := _tokens(before[i], after[i])) > 0)
        used = int(simulation.log[len(steps)]["kv_tokens"]) // case.block_size
        steps.append(Step(clock, tuple(running), tuple(waiting), tuple(preempted), tokens, used))
    records = simulation.requests
    return Schedule(
        tuple(steps), tuple(records["first_token_time"].tolist()), tuple(records["finish_time"].tolist())
    )


def _progress(simulation: Any) -> list[tuple[int, int]]:
    """Return tokens left to prefill and output tokens of all requests."""
    rows, count = simulation.requests, int(simulation.worker["num_active"])
    left = np.where(rows["status"] == FINISHED, 0, rows["num_prefill_left"])
    found = list(zip(left.tolist(), rows["num_output_tokens"].tolist(), strict=True))
    slots = simulation.active[0, :count]
    state = zip(slots["num_prefill_left"].tolist(), slots["num_output_tokens"].tolist(), strict=True)
    for i, values in zip(slots["request_id"].tolist(), state, strict=True):
        found[i] = values
    return found


def _tokens(before: tuple[int, int], after: tuple[int, int]) -> int:
    """Return the tokens that a request processed between two states: of its prefill, or one that it decoded."""
    return before[0] - after[0] if before[0] > 0 else after[1] - before[1]
