"""The view of a worker that a policy in plain Python gets."""

from __future__ import annotations

import math

import numpy as np
import pytest

from helpers.runs.runs_by_hand import Make, run
from kvgym.batch_time import UnitBatchTime
from kvgym.errors import InformationError, LivelockError
from kvgym.policies.policy import Decision, Policy, PolicyInfo
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.simulator.view import SystemView
from kvgym.workloads.table import RequestTable

# ---------------------------------------------------------------- access


COLUMNS = {
    "predicted_output_len": [3, 4],
    "predicted_low": [1, 2],
    "predicted_high": [5, 6],
    "class_id": [1, 0],
    "ttft_slo": [2.0, 3.0],
    "tbt_slo": [0.5, 0.25],
    "feature_0": [0.5, -2.0],
    "priority": [7, -7],
}


NEED = {
    "predicted_output_len": "predicted_length",
    "predicted_low": "length_interval",
    "predicted_high": "length_interval",
    "class_id": "class",
    "ttft_slo": "slo",
    "tbt_slo": "slo",
    "output_len": "true_length",
    "feature_0": "features",
}


@pytest.mark.parametrize("column", NEED)
def test_undeclared_columns_cannot_be_read(make: Make, column: str) -> None:
    requests = [(0.0, 2, 3), (0.0, 3, 4)]
    others = frozenset(NEED.values()) - {NEED[column]}
    simulation = make(requests, needs=others, columns=COLUMNS)
    run(simulation, Decision(admit=[1]))
    for side in (simulation.view.waiting, simulation.view.active):
        with pytest.raises(InformationError, match=rf"by_hand.*{column}.*{NEED[column]}"):
            getattr(side, column)
    simulation = make(requests, needs=frozenset({NEED[column]}), columns=COLUMNS)
    run(simulation, Decision(admit=[1]))
    expected = {"output_len": [3, 4], **COLUMNS}[column]
    assert getattr(simulation.view.waiting, column).tolist() == expected[:1]
    assert getattr(simulation.view.active, column).tolist() == expected[1:]


def test_the_view_is_read_only_and_says_what_there_is(make: Make) -> None:
    simulation = make([(0, 2, 3), (0, 3, 4)], columns=COLUMNS)
    run(simulation, Decision(admit=[1]))
    view = simulation.view
    assert (view.kv_capacity, view.kv_tokens, view.num_active, view.num_waiting) == (20, 4, 1, 1)
    assert view.waiting.priority.tolist() == [7]
    assert view.active.arrival_time.tolist() == [0]
    for name in ("request_id", "prompt_len", "num_kv_tokens"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(view.active, name)[0] = 5
    with pytest.raises(AttributeError, match="prompt_len"):
        _ = view.active.promptlen
    with pytest.raises(AttributeError):
        view.clock = 5.0  # type: ignore[misc]


# ---------------------------------------------------------------- a user's policy


class ShortestPromptFirst(Policy):
    """Admits the shortest prompts that fit completely, now and at their end; evicts nothing."""

    info = PolicyInfo(
        name="shortest_prompt", summary="shortest prompt first", needs=frozenset({"predicted_length"})
    )

    def schedule(self, view: SystemView) -> Decision:
        active, waiting = view.active, view.waiting
        room = view.kv_capacity - int((active.prompt_len + active.predicted_output_len).sum())
        admit = []
        for row in np.argsort(waiting.prompt_len, kind="stable"):
            peak = int(waiting.prompt_len[row] + waiting.predicted_output_len[row])
            if peak > room:
                break
            admit.append(int(waiting.request_id[row]))
            room -= peak
        if not (admit or len(active)):
            return Decision(wait_until=math.inf)
        return Decision(admit=admit)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_policy_in_plain_python(compiled: bool) -> None:
    table = RequestTable([0, 0, 0, 1], [6, 2, 3, 1], [2, 3, 1, 2], predicted_output_len=[2, 3, 1, 2])
    # M = 10. t=0: 1 (peak 5), 2 (4), room 1. t=1: 2 is done, room 5: 3 (3), room 2; 0 (8) not. t=3: 1 and 3 are
    # over: 0 until 5.
    result = simulate(
        System(kv_capacity=10, batch_time=UnitBatchTime()), table, ShortestPromptFirst(), compiled=compiled
    )
    assert result.requests["start_time"].tolist() == [3, 0, 0, 1]
    assert result.requests["finish_time"].tolist() == [5, 3, 1, 3]
    assert result.completed
    with pytest.raises(LivelockError, match="shortest_prompt"):
        simulate(
            System(kv_capacity=10, batch_time=UnitBatchTime()),
            table.replace(predicted_output_len=[9, 3, 1, 2]),
            ShortestPromptFirst(),
        )
