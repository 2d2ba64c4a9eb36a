"""Marks on results: growing queues by hand, exact lengths, collapse and advice, and what comparisons do with them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvgym.experiments.changes import build_scenario
from kvgym.experiments.comparison import compare
from kvgym.experiments.marks import (
    COLLAPSED,
    EXACT,
    OVERLOADED,
    PREDICTED,
    find_marks,
    mark_notes,
    measure_marks,
    relief_of,
    undecided,
)
from kvgym.experiments.runs import Played, RunRecord
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import observes_exact_lengths
from kvgym.report.content import main_table
from kvgym.workloads.table import RequestTable

NOTHING = {"evictions": 0.0, "recomputed_tokens": 0.0, "input_tokens": 600.0, "output_tokens": 400.0}


def measured(start: Any, finish: Any, policy: str = "fcfs", prefill_workers: int = 0) -> dict[str, float]:
    """Figures of 40 requests that arrive once a second."""
    records = np.zeros(40, [("start_time", "f8"), ("finish_time", "f8")])
    records["start_time"], records["finish_time"] = start, finish
    ones = np.ones(40, int)
    table = RequestTable(np.arange(40.0), ones, ones)
    system = SimpleNamespace(num_prefill_workers=prefill_workers)
    result: Any = SimpleNamespace(table=table, requests=records, policy=make_policy(policy), system=system)
    return measure_marks(result)


def played(figures: dict[str, float] | None = None, error: str = "", **metrics: float) -> Played:
    record = RunRecord("fcfs", 0, {**NOTHING, **metrics}, error, not error, 0.1)
    return Played(record, 100, measured=figures or {})


def test_an_overload_is_a_backlog_that_waits():
    arrival = np.arange(40.0)
    # Half of the arrivals pile up. If all of them start at once, the system only fills: the run is too short to tell.
    waiting = measured(start=2 * arrival, finish=2 * (arrival + 1))
    filling = measured(start=arrival, finish=2 * (arrival + 1))
    assert waiting["backlog_growth"] == filling["backlog_growth"] == 0.5
    assert find_marks([played(waiting)]) == (OVERLOADED,)
    assert find_marks([played(filling)]) == ()
    # Behind prefill workers requests wait for decode workers, too.
    assert find_marks([played(measured(arrival, 2 * (arrival + 1), prefill_workers=1))]) == (OVERLOADED,)
    # Most seeds decide, and failed runs do not count.
    steady = measured(start=arrival, finish=arrival + 1)
    assert find_marks([played(waiting), played(steady)]) == ()
    assert find_marks([played(waiting), played(steady, error="livelock")]) == (OVERLOADED,)


def test_the_load_decides_where_a_run_is_too_short():
    """40 requests in 39 s with latencies of 10 s; half of the arrivals would pile up at twice what is sustained."""
    arrival = np.arange(40.0)
    short = measured(start=arrival, finish=arrival + 10)
    assert (short["short"], short["backlog_growth"]) == (1, 0)
    assert measured(start=arrival, finish=arrival + 9.7)["short"] == 0
    assert measured(start=arrival, finish=np.where(arrival > 30, np.nan, arrival + 1))["short"] == 1

    def of_load(load, figures=short):
        return played({**figures, "load": load})

    marks = {load: find_marks([of_load(load)]) for load in (0.5, 0.85, 1.15, 1.2)}
    assert marks == {0.5: (), 0.85: (), 1.15: (), 1.2: (OVERLOADED,)}
    assert [undecided([of_load(load)]) for load in (0.8, 0.9, 1.1, 1.2)] == [False, True, True, False]
    waiting = measured(
        start=2 * arrival, finish=2 * (arrival + 1)
    )  # latencies grow to 40 s: too short as well
    assert find_marks([of_load(0.5, waiting)]) == ()
    assert find_marks([played(waiting)]) == (OVERLOADED,)
    # A run that is long enough decides by its backlog.
    assert find_marks([of_load(2.0, measured(start=arrival, finish=arrival + 1))]) == ()
    assert not undecided([of_load(1.0, measured(start=arrival, finish=arrival + 1))])
    (note,) = mark_notes({"fcfs": [[of_load(2.0)]]}, {"fcfs": make_policy("fcfs")})
    assert "(share of arrivals): fcfs (50%). A longer" in note


def test_requests_that_arrive_at_once_or_are_few_are_not_judged():
    result: Any = SimpleNamespace(
        table=RequestTable([0.0] * 30, [1] * 30, [1] * 30), policy=make_policy("fcfs")
    )
    assert measure_marks(result) == {"exact_lengths": 0.0, "predicted_lengths": 0.0}


@pytest.mark.parametrize(
    ("metrics", "marks"),
    [
        ({"evictions": 500.0}, ()),
        ({"evictions": 500.0, "recomputed_tokens": 170.0}, ()),
        ({"recomputed_tokens": 1000.0}, ()),
        ({"recomputed_tokens": 1001.0}, (COLLAPSED,)),
    ],
)
def test_collapse(metrics, marks):
    """100 requests with 1,000 tokens."""
    assert find_marks([played(**metrics)]) == marks


def test_exact_lengths():
    lengths = {"arrival_time": [0, 1], "prompt_len": [3, 3], "output_len": [2, 5]}
    exact = RequestTable.from_columns(
        **lengths, predicted_output_len=[2, 5], predicted_low=[2, 4], predicted_high=[2, 5]
    )
    wrong = exact.replace(predicted_output_len=np.array([2, 4]))
    for name, found in {
        "mc_sf": (True, False), "ranked": (True, False), "fcfs": (False, False), "clairvoyant": (False, False),
        "mc_longest": (False, False),
    }.items():  # fmt: skip
        policy = make_policy(name)
        assert (observes_exact_lengths(policy, exact), observes_exact_lengths(policy, wrong)) == found, name
    ends = exact.replace(predicted_low=np.array([2, 5]))
    assert observes_exact_lengths(make_policy("mc_longest"), ends)


def test_predicted_lengths():
    assert find_marks([played({"exact_lengths": 0.0, "predicted_lengths": 1.0})]) == (PREDICTED,)
    assert find_marks([played({"exact_lengths": 1.0, "predicted_lengths": 1.0})]) == (EXACT,)
    assert mark_notes({"mc_sf": [[played({"predicted_lengths": 1.0})]]}, {"mc_sf": make_policy("mc_sf")}) == [
        "§ Observed predicted output lengths, with errors: mc_sf. Schedulers without the sign decide without them."
    ]


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        ("mc_sf:protection=0,overrun=ignore", "try mc_sf:protection=0.15,overrun=extend"),
        ("mc_sf:protection=0.3,overrun=ignore", "try mc_sf:protection=0.3,overrun=extend"),
        ("mc_sf", "kvgym tune mc_sf searches its options"),
        ("fcfs", "try fcfs:protection=0.15"),
        ("alpha_greedy", "try alpha_greedy:alpha=0.4"),
        ("vllm_v1:max_num_seqs=64", "try vllm_v1:max_num_seqs=64,watermark=0.05"),
        ("request_level", "kvgym tune request_level searches its options"),
    ],
)
def test_advice_against_evictions(spec, advice):
    assert relief_of(make_policy(spec)) == advice


def test_notes():
    arrival = np.arange(40.0)
    over = played(measured(2 * arrival, 2 * (arrival + 1)))
    gone = played({"exact_lengths": 1.0}, evictions=5432.0, recomputed_tokens=5432.0)
    policies = {name: make_policy(name) for name in ("fcfs", "mc_sf")}
    assert mark_notes({"fcfs": [[over]], "mc_sf": [[gone]]}, policies) == [
        "† The predictions are exact: mc_sf observed the true output lengths, which no server knows in advance. For "
        "predictions with errors: --predictions noisy:epsilon=0.5.",
        "‡ Overload, requests pile up (share of arrivals): fcfs (50%). A longer run has larger means; kvgym capacity "
        "finds the rate that each policy sustains.",
        "! Collapsed, more was repeated than done: mc_sf (5,432 tokens lost by evictions, 1,000 of finished "
        "requests; kvgym tune mc_sf searches its options).",
    ]
    (note,) = mark_notes({"fcfs": [[over], [played()]], "mc_sf": [[over], [over]]}, policies)
    assert "(share of arrivals): fcfs (50%) at 1 of 2 points, mc_sf (50%). A longer" in note
    assert mark_notes({"fcfs": [[played()]]}, policies) == []


@pytest.fixture(scope="module")
def found():
    """Exact predictions, half a second of arrivals; then noisy ones under the paper's rule."""
    exact = build_scenario("a100-llama2-70b", num_requests=40, rate=2.0)
    paper = build_scenario("a100-llama2-70b", num_requests=300, rate=50.0, kv_capacity=3000, horizon=300.0,
                           predictions="noisy:epsilon=0.5", too_long="clip")  # fmt: skip
    return compare(exact, ["mc_sf", "fcfs"], seeds=2), compare(
        paper, ["mc_sf:protection=0,overrun=ignore", "mc_sf", "fcfs"], seeds=2
    )


def test_comparisons_carry_marks(found, tmp_path):
    exact, paper = found
    assert exact.marks == {"mc_sf": (EXACT,)}
    assert exact.signs("mc_sf") == "†"
    assert exact.signs("fcfs") == ""
    assert exact.notes[0].startswith("† The predictions are exact: mc_sf observed")
    assert exact.hyperparameters["mc_sf"] == {"protection": 0.0, "overrun": "ignore", "strict": False}
    assert [row["marks"] for row in main_table(exact, "mc_sf")["rows"]] == [("† exact lengths",), ()]
    collapsing = "mc_sf:protection=0,overrun=ignore"
    assert paper.marks[collapsing] == (PREDICTED, OVERLOADED, COLLAPSED)
    auto = "mc_sf:protection=0.15,overrun=extend"
    assert paper.marks[auto] == (PREDICTED, OVERLOADED)
    assert paper.notes[0].startswith("§ Observed predicted output lengths, with errors: mc_sf:")
    assert "try mc_sf:protection=0.15,overrun=extend" in paper.notes[2]
    assert paper.hyperparameters[auto] == {"protection": 0.15, "overrun": "extend", "strict": False}
    content = json.loads((paper.save(tmp_path) / "summary.json").read_text())
    assert content["marks"][collapsing] == ["predicted_lengths", "overloaded", "collapsed"]
