import math
from dataclasses import asdict

import numpy as np
import pytest

from kvgym.errors import TraceFormatError
from kvgym.experiments.runs import FIRST, MOST_AT_A_TIME, PlannedRun, Played, Player, RunRecord, play_runs
from kvgym.experiments.scenario import load_scenario
from kvgym.studies.sweeping.fields import set_fields
from kvgym.utils.execution.executor import InProcess

BASE = load_scenario("a100-llama2-70b")


def run(scenario=BASE, seed=0):
    return PlannedRun(scenario, "fcfs", None, seed, "fcfs")


class Pretended:
    """Player that reports a fixed duration of every run, and records the sizes of batches."""

    def __init__(self, seconds):
        self.seconds, self.sizes = seconds, []

    def __call__(self, given):
        self.sizes.append(len(given))
        return [Played(RunRecord("fcfs", r.seed, {}, "", True, self.seconds), 1) for r in given]


@pytest.mark.parametrize(
    ("seconds", "size"), [(0.0, MOST_AT_A_TIME), (0.005, MOST_AT_A_TIME), (0.02, 5), (0.06, 1), (600.0, 1)]
)
def test_only_short_runs_are_batched(seconds, size):
    work = Pretended(seconds)
    count = FIRST + FIRST * MOST_AT_A_TIME + 3
    found = dict(play_runs([run(seed=k) for k in range(count)], InProcess(work)))
    assert [found[k].record.seed for k in range(count)] == list(range(count))
    assert work.sizes[:FIRST] == [1] * FIRST
    assert work.sizes[FIRST:-1] == [size] * math.ceil((count - FIRST) / size - 1)


def test_few_runs_are_not_batched():
    work = Pretended(0.0)
    few = 2 * FIRST - 1
    assert len(dict(play_runs([run(seed=k) for k in range(few)], InProcess(work)))) == few
    assert work.sizes == [1] * few
    assert list(play_runs([], InProcess(work))) == []


def test_a_missing_file_is_not_a_result(tmp_path):
    trace = tmp_path / "a.csv"
    trace.write_text("request_id,arrival_time,prompt_len,output_len\n0,0.0,10,5\n1,1.0,20,6\n")
    scenario = set_fields(BASE, {"trace": str(trace)})
    (played,) = Player()([run(scenario)])
    assert played.num_requests == 2
    trace.unlink()
    player = Player()
    with pytest.raises(TraceFormatError, match=r"a\.csv"):
        player([run(scenario)])


def test_runs_at_once_are_those_one_by_one_and_errors_are_results():
    small = set_fields(BASE, {"num_requests": 40})
    given = [run(small, 1), run(set_fields(small, {"kv_capacity": 60})), run(small, 1), run(small, 2)]
    together = Player()(given)
    assert [bool(played.record.error) for played in together] == [False, True, False, False]
    for played, one in zip(together, given, strict=True):
        (alone,) = Player()([one])
        assert (played.num_requests, played.notes) == (alone.num_requests, alone.notes)
        records = ({**asdict(each.record), "wall_time": 0.0} for each in (played, alone))
        np.testing.assert_equal(*records)
