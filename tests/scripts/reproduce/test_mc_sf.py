"""The MC-SF experiments, by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from kvgym.experiments.scenario import load_scenario
from kvgym.experiments.statistics import Estimate
from kvgym.simulator.tables import ITERATION


@pytest.fixture
def setting(reproduce):
    return reproduce("papers.mc_sf.setting")


def verdict_of(finding):
    return finding.verdict.value


def test_table_1_has_the_rows_of_the_scenario(reproduce, setting):
    published = reproduce("papers.mc_sf.table_1").PUBLISHED
    scenario = load_scenario("mc-sf-table-1")
    assert [setting.POLICIES[policy] for policy in scenario.policies] == list(published)
    assert len(published) == 8
    for mean, std, highest, lowest in published.values():
        assert lowest < mean - std < mean + std < highest


def test_figures_as_text(setting):
    assert setting.number(1234.5) == "1,234.50"
    assert setting.number(float("nan")) == setting.number(float("inf")) == "–"
    assert setting.interval(Estimate(2.0, 1.5, 2.25, 3), 1) == "2.0 (1.5 – 2.2)"
    assert setting.fraction(Estimate(0.5, 0.25, 1.0, 3)) == "1/2 (1/4 – 1/1)"
    assert setting.fraction(Estimate(0.5, -0.25, 1.0, 3)) == "1/2 (-0.25000 – 1/1)"


def test_slopes_are_those_of_lines(setting):
    found = setting.slope([1, 2, 4], [[3, 5], [5, 5], [9, 5]])  # seeds of slopes 2 and 0
    assert found.value == pytest.approx(1)
    assert found.low < 1 < found.high


def run_with(rows, **table):
    log = np.zeros(len(rows), ITERATION)
    for row, (start, end, prefill, decodes) in zip(log, rows, strict=True):
        row["start_time"], row["end_time"] = start, end
        row["prefill_tokens"], row["num_decodes"] = prefill, decodes
    return SimpleNamespace(log=log, table=SimpleNamespace(**table))


def test_tokens_of_a_batch_are_spread_over_its_time(reproduce):
    throughput = reproduce("papers.mc_sf.throughput")
    # 6 tokens over half a second to second 2, a pause, then 4 within the fourth second.
    run = run_with([(0.5, 2.0, 6, 0), (3.25, 3.75, 1, 3)])
    assert throughput.tokens_per_second(run).tolist() == pytest.approx([2, 4, 0, 4])
    table = {"arrival_time": np.array([0.1, 0.9, 2.0]), "prompt_len": [1, 2, 3], "output_len": [10, 20, 30]}
    table = {name: np.asarray(column) for name, column in table.items()}
    assert throughput.arriving_per_second(run_with([], **table)).tolist() == [33, 0, 33]


def test_throughput_of_a_run_adds_up(reproduce):
    series = reproduce("papers.mc_sf.throughput").measure(0)
    assert sum(series["mc_sf"]) == pytest.approx(sum(series["mc_benchmark"]))
    assert len(series["mc_sf"]) > len(series["arrivals"])


def test_memory_of_a_run(reproduce):
    found = reproduce("papers.mc_sf.memory").measure(("high", 1000, 0))
    assert max(found["memory"]) == found["peak"] <= 1
    assert 0.5 < found["use"] < found["queued"] < found["peak"]
    assert found["time"] == sorted(found["time"])
    assert 0 < found["waiting"] < 1
    assert 0 < found["most"] <= 1


def test_the_smallest_margin_is_the_first_after_the_last_failure(reproduce):
    smallest = reproduce("papers.mc_sf.protection")._smallest
    grid = (0.1, 0.2, 0.3)
    assert smallest(grid, np.array([True, True, True])) == 0.1
    assert smallest(grid, np.array([True, False, True])) == 0.3
    assert smallest(grid, np.array([True, True, False])) == float("inf")


def test_verdicts_of_sweeps(reproduce):
    sweeps = reproduce("papers.mc_sf.sweeps")
    alphas = np.array([0.05, 0.09, 0.15, 0.3])
    best, edge = sweeps._findings_alpha("high", 0.1, alphas, np.array([np.inf, 14.0, 10.0, 11.0]))
    assert (verdict_of(best), verdict_of(edge)) == ("reproduced", "reproduced")
    assert "livelock at α = 0.05; a quarter or more up to α = 0.09" in edge.ours
    best, edge = sweeps._findings_alpha("high", 0.1, alphas, np.array([20.0, 10.0, 11.0, 12.0]))
    assert (verdict_of(best), verdict_of(edge)) == ("not reproduced", "with conditions")
    best, edge = sweeps._findings_alpha("high", 0.1, alphas, np.array([10.0, 10.5, 11.0, 12.0]))
    assert verdict_of(edge) == "not reproduced"
    betas = np.array([0.01, 0.05, 0.2, 0.4])
    for latency, expected in (
        ([20.0, 10.0, 10.0, np.inf], "reproduced"),
        ([10.0, 10.0, 10.0, np.inf], "with conditions"),
        ([10.0, 10.0, 12.0, np.inf], "not reproduced"),
        ([10.0, 10.0, 10.0, 10.0], "not reproduced"),  # β does nothing: no range is better than another
    ):
        assert verdict_of(sweeps._finding_beta("high", 0.1, betas, np.array(latency))) == expected


def test_instances_are_within_theorem_4_3(reproduce):
    bounds = reproduce("papers.mc_sf.bounds")
    for seed in range(20):
        for alpha in bounds.ALPHAS:
            s, predicted, outputs, kv_capacity = bounds.draw_instance(50, alpha, seed)
            assert (outputs >= 1).all()
            assert ((outputs <= predicted) & (predicted <= alpha * outputs)).all()
            assert kv_capacity >= 2 * (s + predicted.max())


def test_the_same_requests_meet_other_arrivals(reproduce, setting):
    table_1 = reproduce("papers.mc_sf.table_1")
    scenario = load_scenario("mc-sf-table-1")
    work = table_1.SameRequests(scenario, "mc_sf")
    first = setting.compare(scenario, ["mc_sf"], seeds=[0]).values("mc_sf", setting.LATENCY)[0]
    assert work(0) == first
    assert work(1) != first


@pytest.mark.parametrize(
    ("model", "worse", "optimal", "expected"),
    [
        (1, 87, 113, "refuted"),  # 114 cannot be optimal any more
        (1, 86, 0, "with conditions"),
        (2, 200, 0, "not reproduced"),  # the best ratio is 1.000
        (2, 199, 0, "with conditions"),
    ],
)
def test_numbers_of_optimal_instances_are_judged_by_what_is_certain(
    reproduce, model, worse, optimal, expected
):
    trials = reproduce("papers.mc_sf.hindsight_synthetic")
    found = trials._optimal(model, trials.PUBLISHED[model], worse, optimal, 200)
    assert verdict_of(found) == expected
    assert f"certified optimal {optimal}, certified not optimal {worse}, of 200" in found.ours
