"""Reports of searches for capacity and of provisioning: their first picture, answers, tables."""

import pytest

from helpers.pages import data_of
from kvgym.experiments.scenario import load_scenario
from kvgym.studies import write_capacity_report
from kvgym.studies.capacity.finding import find_capacity
from kvgym.studies.capacity.outcome_tables import capacity_table
from kvgym.studies.capacity.plots import shown_metrics
from kvgym.studies.capacity.provisioning import provision

LMSYS = load_scenario("a100-llama2-70b").override(workload={"preset": "lmsys", "num_requests": 100})


@pytest.fixture(scope="module")
def capacity():
    return find_capacity(LMSYS, "ttft_p99<1", ["fcfs", "mc_sf"], seeds=2, num_requests=100, curve=(0.5, 0.9))


@pytest.fixture(scope="module")
def plans():
    scenario = LMSYS.override(workload={"preset": "lmsys", "num_requests": 100, "rate": 20.0})
    return provision(scenario, "ttft_p99<1", ["fcfs", "mc_sf"], prices=4.0, curve=(0.5,))


def test_rates_against_ttft_and_tbt_with_the_capacity_marked(capacity, tmp_path):
    text = write_capacity_report(capacity, tmp_path / "report.html", command="kvgym capacity").read_text(
        "utf-8"
    )
    assert shown_metrics(capacity) == ("ttft_p99", "tbt_p99")
    charts = data_of(text)["charts"]
    assert list(charts) == ["rates-0", "rates-1"]
    for name, metric in zip(charts, ("ttft", "tbt"), strict=True):
        (panel,) = charts[name]["panels"]
        assert (
            panel["y"]["label"]
            == {"ttft": "Time to first token, p99", "tbt": "Time between tokens, p99"}[metric]
        )
        assert panel["x"]["label"] == "Arrivals"
        marks = [s for s in panel["series"] if s["text"] == ["capacity"]]
        for mark, c in zip(marks, capacity.capacities, strict=True):
            assert mark["x"][0] == pytest.approx(c.estimate.value, rel=1e-5)
            curve = next(s for s in panel["series"] if s["name"] == c.label)
            assert len(curve["x"]) >= 2
    best = max(capacity.capacities, key=lambda c: c.estimate.value)
    assert f"Highest rate with ttft_p99&lt;1: {best.label}, " in text
    assert text.index('<h2 id="results"') < text.index("data-chart=") < text.index("Why targets are missed")
    assert all(sentence.split(":")[1][:40] in text for c in capacity.capacities for sentence in c.why)


def test_tables_mark_policies_that_observe_exact_lengths(capacity, tmp_path):
    (note,) = [note for note in capacity.notes if note.startswith("†")]
    assert "mc_sf observed the true output lengths" in note
    assert [row.names for row in capacity_table(capacity).rows] == [("fcfs",), ("mc_sf†",)]
    assert [c["marks"] for c in capacity.summary()["capacities"]] == [[], ["exact_lengths"]]
    text = write_capacity_report(capacity, tmp_path / "report.html").read_text("utf-8")
    assert text.count("† exact lengths") == 1


def test_without_targets_the_backlog_is_shown_too():
    result = find_capacity(LMSYS, (), ["fcfs"], seeds=1, num_requests=100, curve=(0.5,))
    assert shown_metrics(result) == ("ttft_p99", "tbt_p99", "backlog")


def test_costs_against_rates(plans, tmp_path):
    text = write_capacity_report(plans, tmp_path / "report.html").read_text("utf-8")
    charts = data_of(text)["charts"]
    (panel,) = next(iter(charts.values()))["panels"]
    assert panel["y"]["label"] == "Cost per hour"
    for series, plan in zip(panel["series"], plans.plans, strict=True):
        (point,) = [p for p in plans.points if p.plan is plan]
        assert series["x"] == [pytest.approx(plans.rate / 2, rel=1e-5), pytest.approx(plans.rate, rel=1e-5)]
        assert series["y"] == [point.cost_per_hour, plan.cost_per_hour]
    assert f'<p class="lead">{plans.answers()[0]}.</p>' in text
    assert "measured: targets are met, load compressed" in text.partition("<details>")[2]


def test_workers_against_rates_without_prices(tmp_path):
    result = provision(
        LMSYS.override(workload={"preset": "lmsys", "num_requests": 60}), "ttft_p99<1", ["fcfs"]
    )
    (chart,) = data_of(write_capacity_report(result, tmp_path / "r.html").read_text("utf-8"))[
        "charts"
    ].values()
    assert chart["panels"][0]["y"]["label"] == "Workers"
    assert chart["panels"][0]["series"][0]["y"] == [result.plans[0].simulated]
