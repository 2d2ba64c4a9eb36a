"""The rate that a scheduler sustains: backlogs by hand, against the searched capacity, and in comparisons."""

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvgym.experiments.changes import build_scenario
from kvgym.experiments.comparison import compare
from kvgym.experiments.load.sustained import Backlogs, backlog_figures, load_note, mean_work, with_load
from kvgym.experiments.marks import OVERLOADED
from kvgym.experiments.runs import Played, Player, RunRecord
from kvgym.policies.policy import Policy, PolicyInfo, make_policy
from kvgym.simulator.tables import ITERATION
from kvgym.studies.capacity.finding import find_capacity
from kvgym.workloads.table import RequestTable


def test_a_backlog_by_hand():
    """Until 6 s requests wait: 30 of 40 tokens and 45 of 80 KV tokens times batches are done, of 4 requests."""
    log = np.zeros(4, ITERATION)
    log["end_time"] = [2, 4, 6, 10]
    log["num_waiting"] = [2, 0, 1, 0]
    log["prefill_tokens"] = [10, 0, 5, 0]
    log["num_output_tokens"] = [5, 5, 5, 10]
    log["kv_tokens"] = [15, 15, 15, 35]
    table = RequestTable([0.0] * 4, [4] * 4, [6] * 4)
    result: Any = SimpleNamespace(log=log, table=table)
    figures = backlog_figures(result)
    assert figures["sustained"] == pytest.approx(4 * math.sqrt(30 / 40 * 45 / 80) / 6)
    assert figures["work"] == pytest.approx(math.sqrt(10 * (4 + 3) * 6))
    log["num_waiting"] = [1, 0, 0, 0]
    log["end_time"] = [2, 4, 6, 10.1]  # requests wait for less than a fifth of the time
    assert math.isnan(backlog_figures(result)["sustained"])
    log["num_waiting"] = 0
    assert math.isnan(backlog_figures(result)["sustained"])


def test_work_of_a_request():
    short = RequestTable([0.0], [10], [2])
    long = RequestTable([0.0], [20], [4])
    assert mean_work([short, long]) == pytest.approx(math.sqrt((12 + 24) / 2 * (11 * 2 + 22 * 4) / 2))


SERVER = "vllm-v1"


def test_the_estimate_is_close_to_the_searched_capacity():
    scenario = build_scenario(SERVER, rate=3.0, num_requests=1000)
    found = compare(scenario, ["fcfs", "sarathi", "vllm_v1"], seeds=2)
    searched = find_capacity(
        scenario, (), ["fcfs", "sarathi", "vllm_v1"], seeds=2, num_requests=4000, curve=()
    )
    for capacity in searched.capacities:
        assert 3.0 / found.loads[capacity.policy] == pytest.approx(capacity.estimate.value, rel=0.1)
    (note,) = (note for note in found.notes if note.startswith("Load:"))
    assert note.startswith("Load: 3/s is 0.8")
    assert "times what each scheduler sustains (by a backlog of such requests, ±15%" in note


@pytest.mark.parametrize(("rate", "count"), [(16.0, 400), (12.0, 400), (50.0, 100)])
def test_overload_is_marked_in_short_runs(rate, count):
    """The default scenario sustains some 8/s; no backlog shows in these runs, or under some schedulers alone."""
    scenario = build_scenario("a100-llama2-70b", rate=rate, num_requests=count)
    found = compare(scenario, ["fcfs", "sarathi", "vllm_v1", "mc_sf"], seeds=2)
    assert all(OVERLOADED in found.marks[label] for label in found.policies)
    assert "Too short" not in "".join(found.notes)


def test_near_what_is_sustained_a_short_run_does_not_say(tmp_path):
    near = compare(
        build_scenario("a100-llama2-70b", rate=9.0, num_requests=300), ["fcfs", "sarathi"], seeds=4
    )
    assert near.marks == {}
    assert any("Too short to tell if requests pile up: fcfs, sarathi;" in note for note in near.notes)
    loads = json.loads((near.save(tmp_path) / "summary.json").read_text())["loads"]
    assert loads == pytest.approx(near.loads)
    low = compare(build_scenario("a100-llama2-70b", rate=1.0, num_requests=100), ["fcfs", "sarathi"], seeds=2)
    assert low.marks == {}
    (note,) = (note for note in low.notes if note.startswith("Load:"))
    assert "Too short" not in note
    assert note.endswith("full: schedulers hardly differ here, token budgets may.")


def test_workers_share_a_load():
    one = compare(build_scenario(SERVER, rate=3.0, num_requests=200), ["fcfs"], seeds=1)
    four = compare(
        build_scenario(SERVER, rate=3.0, num_requests=200, workers=4),
        ["fcfs"],
        routers=["round_robin", "join_shortest_queue"],
        seeds=1,
    )
    assert set(four.loads) == {"round_robin", "join_shortest_queue"}
    assert [*four.loads.values()] == pytest.approx([one.loads["fcfs"] / 4] * 2)


class InPython(Policy):
    """First come, first served in plain Python."""

    info = PolicyInfo(name="in_python", summary="first come, first served")

    def schedule(self, view: Any) -> Any:
        """Never called here."""
        raise NotImplementedError


def backlogs(scenario: Any, *policies: Policy) -> Backlogs:
    system, table = Player().requests(scenario, 0)
    named = {f"{k}": (scenario, policy) for k, policy in enumerate(policies)}
    return Backlogs(named, system, [table], 3.0, 0)


def test_sizes_of_backlogs():
    scenario = build_scenario(SERVER, rate=3.0, num_requests=600)
    fcfs = make_policy("fcfs")
    found = backlogs(scenario, fcfs, fcfs, InPython())
    sizes = [run.scenario.make_workload().spec.num_requests for run in found.runs]
    assert sizes == [1000, 60]  # the second label shares the first run; a tenth for a policy in Python
    assert all(Player().requests(run.scenario, 0)[1].arrival_time.max() == 0 for run in found.runs)
    # Four times what fits: the memory has room for more short requests.
    short = build_scenario("a100-llama3-8b", workload="wait-low", num_requests=50)
    (run,) = backlogs(short, fcfs).runs
    assert run.scenario.make_workload().spec.num_requests == 10_000  # at most


def test_loads_without_an_estimate(tmp_path):
    at_once = build_scenario("a100-llama2-70b", workload="mcsf-model-1", batch_time="unit", kv_capacity=40)
    assert backlogs(at_once, make_policy("fcfs")).runs == []
    groups = build_scenario("a100-llama3-8b-disaggregated", num_requests=30)
    assert backlogs(groups, make_policy("fcfs")).runs == []
    log = tmp_path / "log.csv"
    log.write_text("timestamp,input_tokens,output_tokens\n" + "".join(f"{k},50,9\n" for k in range(30)))
    few = compare(build_scenario(SERVER, trace=log), ["fcfs"], seeds=1)
    assert few.loads == {}
    assert "Load: 1/s; these requests are too few to estimate what schedulers sustain." in few.notes


def played(load: float, peak: float, short: bool = False) -> Played:
    metrics = {"kv_peak": peak, "evictions": 0.0}
    record = RunRecord("", 0, metrics, "", True, 0.1)
    return with_load(Played(record, 100, measured={"short": float(short), "queues": 0.0}), load)


def test_the_note_by_hand():
    loads = {"a": 2.0, "b": 0.5, "c": 0.48, "d": math.nan}
    runs = {label: [played(load, 0.06)] for label, load in loads.items()}
    assert load_note(1.44, loads, runs) == [
        "Load: 1.44/s is 2 times what a sustains; 0.48 to 0.50 times what b, c sustain (by a backlog of such requests, "
        "±15%, without regard to targets). Memory is at most 6% full: schedulers hardly differ here, token budgets may."
    ]
    (note,) = load_note(1.0, {"a": 1.1}, {"a": [played(1.1, 0.9, short=True)]})
    assert note == (
        "Load: 1/s is 1.10 times what a sustains (by a backlog of such requests, ±15%, without regard to targets). Too "
        "short to tell if requests pile up: a; run more requests."
    )
    assert load_note(1.0, {}, {"a": [played(math.nan, 0.9)]}) == []
