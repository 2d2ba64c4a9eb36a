"""Curves of capacities."""

import numpy as np
import pytest

from kvgym.experiments.scenario import load_scenario
from kvgym.studies.capacity.finding import find_capacity
from kvgym.studies.capacity.plots import metric_curve

LMSYS = load_scenario("a100-llama2-70b").override(workload={"preset": "lmsys", "num_requests": 100})


@pytest.fixture(scope="module")
def result():
    return find_capacity(
        LMSYS, "ttft_p99<1,tbt_p99<0.2", ["fcfs", "mc_sf"], seeds=2, num_requests=100, curve=(0.5, 0.9)
    )


def test_a_curve_and_a_dot_for_each_policy(result):
    for target in result.targets:
        (panel,) = metric_curve(result, target.metric).panels
        assert panel.rules == [("y", target.bound, f"target <{target.bound:g}")]
        assert (panel.x.log, panel.y.log) == (True, True)
        assert panel.y.low < target.bound < panel.y.high
        for k, capacity in enumerate(result.capacities):
            curve, dot = panel.series[2 * k : 2 * k + 2]
            assert curve.policy == dot.policy == capacity.label
            rates, values = curve.values["x"], curve.values["y"]
            assert (np.diff(rates) > 0).all()
            shared = [p for p in result.probes if p.label == capacity.label and p.rate == rates[0]]
            assert len(shared) == 2
            assert values[0] == np.mean([p.played.record.metrics[target.metric] for p in shared])
            assert dot.values["x"] == capacity.estimate.value


def test_without_targets_the_growth_of_the_backlog_is_drawn():
    result = find_capacity(LMSYS, (), ["fcfs"], seeds=1, num_requests=100, curve=(0.5,))
    (panel,) = metric_curve(result, "backlog").panels
    assert "backlog" in panel.y.quantity.label
    assert panel.rules == [("y", 0, "")]
    assert metric_curve(result, "ttft_p99").panels[0].rules == []


def test_the_rate_of_a_replayed_trace_is_drawn(azure_trace):
    source = {"name": "t", "lengths": {"kind": "trace", "path": str(azure_trace)}}
    replayed = load_scenario("a100-llama3-8b").override(workload=source)
    result = find_capacity(replayed, "ttft_p99<1", ["fcfs"], curve=(0.5,))
    times = replayed.make_workload().sample(0).arrival_time
    rate = (len(times) - 1) / (times[-1] - times[0])
    (panel,) = metric_curve(result, "ttft_p99").panels
    assert panel.rules == [("x", pytest.approx(rate), "the trace"), ("y", 1.0, "target <1")]
    assert panel.x.low < rate < panel.x.high
    assert metric_curve(result, "tbt_p99").panels[0].rules == panel.rules[:1]
    assert result.summary()["own_rate"] == pytest.approx(rate)


def test_all_rates_are_shown_without_a_capacity():
    result = find_capacity(LMSYS, "tbt_mean<0.0001", ["fcfs"], seeds=1, num_requests=100)
    (panel,) = metric_curve(result, "tbt_mean").panels
    rates = [p.rate for p in result.probes]
    assert (panel.x.low, panel.x.high) == (min(rates), max(rates))
