import math

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
    ("seconds", "size"), [(0.0, MOST_AT_A_TIME), (0.01, MOST_AT_A_TIME), (0.1, 5), (0.3, 1), (600.0, 1)]
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
    assert len(dict(play_runs([run(seed=k) for k in range(100)], InProcess(work)))) == 100
    assert work.sizes == [1] * 100
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


def test_errors_of_requests_are_results():
    (played,) = Player()([run(set_fields(BASE, {"kv_capacity": 60, "num_requests": 40}))])
    assert played.record.error
