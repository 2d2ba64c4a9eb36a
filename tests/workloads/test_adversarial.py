"""The adversarial instance of Theorem 4.1 and the offline schedule for it."""

import numpy as np
import pytest

from kvgym.errors import ConfigError
from kvgym.theory.hindsight.slotted.replay import replay
from kvgym.workloads import make_workload, theorem_4_1_schedule, theorem_4_1_workload


def test_the_instance_by_hand():
    table = make_workload("mcsf-adversarial-64").sample(0)
    assert len(table) == 33
    assert table.arrival_time.tolist() == [0.0] + [64.0 - 4] * 32
    assert table.output_len.tolist() == [63] + [1] * 32
    assert set(table.prompt_len.tolist()) == {1}
    assert theorem_4_1_schedule(64).tolist() == [61] + [60] * 32
    assert theorem_4_1_schedule(64, start=3).tolist() == [0] + [63] * 32


@pytest.mark.parametrize("memory", [4, 5, 16, 63, 64, 256])
@pytest.mark.parametrize("start", [0, 1, 7, 300])
def test_the_schedule_is_feasible_and_has_the_cost_of_the_proof(memory, start):
    table = make_workload(theorem_4_1_workload(memory, start)).sample(0)
    run = replay(table, memory, theorem_4_1_schedule(memory, start)).requests
    total = (run["finish_time"] - table.arrival_time).sum()
    release = int(table.arrival_time[1])
    early = release < memory - 1
    assert total == memory // 2 + (release + memory if early else memory - 1)
    assert total <= 3.5 * memory
    assert (np.diff(table.arrival_time[1:]) == 0).all()


@pytest.mark.parametrize(("memory", "start"), [(3, 0), (64, -1), (64.5, 0), (True, 0)])
def test_bad_input_is_refused(memory, start):
    with pytest.raises(ConfigError, match="whole number"):
        theorem_4_1_workload(memory, start)
