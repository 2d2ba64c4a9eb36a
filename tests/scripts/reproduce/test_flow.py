"""The flow-control experiments: readings, searches, and livelocks."""

import numpy as np
import pytest

from kvgym.experiments.scenario import load_scenario


@pytest.fixture(scope="module")
def runs(reproduce):
    return reproduce("papers.flow.runs")


@pytest.fixture(scope="module")
def scale(reproduce):
    return reproduce("harness").Scale(quick=True)


def test_reading_of_the_horizon_decides_the_order(runs, scale):
    """Under overload MC-SF has the least mean latency of what finishes in time, and not of everything."""
    policies = (runs.BUDGETS, "mc_sf")
    means = {}
    for stopped in (True, False):
        found = runs.gather(scale, "flow-classes", policies, (1000,), (0,), stopped=stopped)
        means[stopped] = [runs.mean(found[policy, 1000]["e2e_latency_mean"]) for policy in policies]
    assert means[True][0] > means[True][1]
    assert means[False][0] < means[False][1]


def test_below_the_limit_flow_control_is_far_ahead(runs, scale):
    """λ = 3.9, b = 4, drained: MC-SF and MC-Benchmark lose memory to waves, and their queues grow."""
    policies = (runs.BUDGETS, "mc_sf", "mc_benchmark")
    found = runs.gather(scale, "flow-classes", policies, (3000,), (0,), rate=3 * 3.9)
    own, *others = (runs.mean(found[policy, 3000]["e2e_latency_mean"]) for policy in policies)
    assert own < 46
    assert min(others) > 100


def test_a_livelock_is_missing_and_never_chosen(runs, scale):
    policies = ["alpha_greedy:alpha=0.2", "alpha_greedy:alpha=0.8"]
    found = runs.gather(scale, "flow-classes", policies, (400,), (0,))
    livelock, done = (found[policy, 400] for policy in policies)
    assert np.isnan(livelock["e2e_latency_mean"]).all()
    assert runs.choose({policy: found[policy, 400] for policy in policies}) == policies[1]
    rows = runs.rows_of({policies[0]: livelock, policies[1]: done})
    assert rows[0][1] == "–"
    assert [row[-1] for row in rows] == ["1 of 1", "0 of 1"]
    head, cells = runs.search_table({policies[0]: livelock, policies[1]: done}, "α")
    assert head == ("α", "0.2", "**0.8**")
    assert cells[0][1] == "–"


def test_a_policy_that_livelocks_is_no_benchmark(reproduce):
    judge, harness = reproduce("papers.flow.conversations").judge, reproduce("harness")
    names = reproduce("papers.flow.runs").METRICS
    good, bad, gone = (
        dict(zip(names, ([x, x], [x, x], [1 / x] * 2, [1 / x] * 2), strict=True)) for x in (2, 4, 1)
    )
    gone[names[0]] = [float("nan"), 1.0]
    found = {"mine": good, "mc_sf": bad, "mc_benchmark": bad, "slow": bad, "gone": gone}
    assert judge("10/s", found, ("mine",), ("slow", "gone")).verdict is harness.Verdict.REPRODUCED
    data = {**found, "mc_sf": {key: [1.0, 1.0] for key in names}}
    assert judge("10/s", data, ("mine",), ("slow", "gone")).verdict is harness.Verdict.CONDITIONS
    finished = {**found, "gone": {**gone, names[0]: [1.0, 1.0]}}
    assert judge("10/s", finished, ("mine",), ("slow", "gone")).verdict is harness.Verdict.NOT_REPRODUCED


def test_scenarios_are_those_of_the_paper():
    known, unknown = (load_scenario(name) for name in ("flow-classes", "flow-unknown"))
    for scenario in (known, unknown):
        table = scenario.make_workload().sample(0)
        assert scenario.kv_capacity == 16_492
        assert [c.rate for c in table.classes] == [5, 5, 5]
        assert set(zip(table.prompt_len.tolist(), table.output_len.tolist(), strict=True)) == {
            (10, 20),
            (10, 40),
            (10, 60),
        }
    table = unknown.make_workload().sample(0)
    assert table.predicted_output_len is None
    assert (set(table.predicted_low.tolist()), set(table.predicted_high.tolist())) == ({20}, {60})
    for rate in (10, 50):
        scenario = load_scenario(f"flow-lmsys-{rate}")
        assert scenario.make_workload().mean_rate == rate
        assert scenario.make_system().kv_capacity == 16_492


def test_a_switch_is_judged_where_the_rules_differ_and_each_is_ahead(reproduce):
    judge, verdict = reproduce("papers.flow.adaptive").verdict_of, reproduce("harness").Verdict
    flow, greedy = np.array([2.0, 1.0]), np.array([1.0, 3.0])
    assert judge(flow, greedy, np.array([1.0, 1.005])) is verdict.REPRODUCED
    assert judge(flow, greedy, np.array([1.0, 1.5])) is verdict.CONDITIONS
    assert judge(flow, greedy, np.array([1.7, 3.1])) is verdict.NOT_REPRODUCED
    assert judge(np.array([1.0, 1.0]), greedy + 1, np.array([1.0, 1.0])) is verdict.NOT_REPRODUCED
    assert judge(flow[:0], greedy[:0], flow[:0]) is verdict.NOT_REPRODUCED
