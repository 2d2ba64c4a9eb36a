"""Figures by class and by worker."""

import numpy as np
import pytest

from kvgym.experiments.comparison import compare
from kvgym.metrics.compute import WORKER_METRICS, compute_metrics
from kvgym.report import breakdown, content, inside, plots, series
from kvgym.report.html import render
from kvgym.workloads.table import RequestTable

from .conftest import scenario

CLASSES = {
    "arrivals": {"kind": "poisson", "rate": 2.0},
    "classes": [
        {
            "name": name,
            "prompt": {"kind": "constant", "value": size},
            "output": {"kind": "constant", "value": 2 * size},
        }
        for name, size in (("<i>short", 2), ("long", 5))
    ],
    "num_requests": 30,
}


@pytest.fixture(scope="module")
def cluster():
    return compare(scenario(workload=CLASSES, workers=3), ["fcfs", "mc_sf"], keep_examples=True)


def test_classes_are_named_with_their_sizes(cluster):
    table = cluster.examples["fcfs"].table
    sizes = np.bincount(table.class_id)
    assert breakdown.class_names(table) == {
        0: f"class <i>short: {sizes[0]} requests",
        1: f"class long: {sizes[1]} requests",
    }
    one = RequestTable([0.0], [1], [1], class_id=[0])
    assert breakdown.class_names(one) == {}
    many = RequestTable(np.zeros(9), np.ones(9, int), np.ones(9, int), class_id=range(9))
    assert len(breakdown.class_names(many)) == breakdown.MAX_CLASSES


@pytest.mark.parametrize("name", ["e2e_latency", "ttft", "tpot", "longest_gap"])
def test_distributions_of_classes(cluster, name):
    panels = breakdown.class_distributions(cluster, name).panels
    result = cluster.examples["fcfs"]
    assert len(panels) == 2
    parts = []
    for panel, number in zip(panels, (0, 1), strict=True):
        (line,) = (line for line in panel.series if line.policy == "fcfs")
        parts.append(series.latencies(result, name, result.table.class_id == number))
        assert np.array_equal(line.values["x"][1:], parts[-1])
    assert np.array_equal(np.sort(np.concatenate(parts)), series.latencies(result, name))


def test_workers_are_shown_with_their_means(cluster):
    means = cluster.worker_means("mc_sf")
    rows = [row for row in cluster.worker_frame().rows() if (row["policy"], row["worker"]) == ("mc_sf", 1)]
    assert means[1]["kv_utilisation"] == pytest.approx(sum(row["kv_utilisation"] for row in rows) / len(rows))
    assert sum(own["finished"] for own in means) == pytest.approx(30)
    for panel, name in zip(breakdown.worker_points(cluster).panels, breakdown.WORKER_PANELS, strict=True):
        (points,) = (points for points in panel.series if points.policy == "mc_sf")
        assert points.values["y"] == [own[name] for own in means]
        assert np.round(points.values["x"]).tolist() == [0, 1, 2]


def test_the_report_has_both(cluster):
    text = render(cluster)
    table = content.worker_table(cluster)
    assert len(table["rows"]) == 2 * 3
    names = [name.replace("_", " ") for name in WORKER_METRICS]
    assert [title for title, _ in table["columns"]] == ["Worker", *names]
    assert "<summary>By worker</summary>" in text
    assert (
        text.count("data-chart=") == 8 + 4 + 2 * 2
    )  # bars, workers and six lines; by class; timelines and batches
    assert "<i>" not in text


def test_separate_prefill_and_decode_workers():
    workers = [{"role": "prefill", "count": 1}, {"role": "decode", "count": 1}]
    made = compare(scenario(workers=workers), ["fcfs"], seeds=1, keep_examples=True)
    text = render(made)
    assert "the first worker that decodes" in text
    assert set(inside.batches_of(made.examples["fcfs"])["worker"]) == {1}
    assert "1 (decode)" in text


def test_no_figures_without_classes_and_workers(single):
    text = render(single)
    assert "By worker" not in text
    assert "by class" not in text
    assert content.worker_table(single)["rows"] == []


def test_token_times_have_the_means_of_the_metrics(single):
    result = single.examples["fcfs"]
    metrics = compute_metrics(result)
    assert series.latencies(result, "tpot").mean() == pytest.approx(metrics["tpot_mean"])
    assert series.latencies(result, "longest_gap").max() == metrics["tbt_max"]
    gaps, share = series.token_gaps(result)
    assert (gaps * np.diff(share, prepend=0)).sum() == pytest.approx(metrics["tbt_mean"])
    for name in ("tpot", "tbt"):
        (panel,) = plots.latency_distribution(single, name).panels
        assert panel.series[0].values["y"][-1] == 1


def test_distributions_use_the_window_of_the_metrics():
    windowed = compare(
        scenario(workload=CLASSES, workers=3, warm_up=4.0, cool_down=4.0),
        ["fcfs"],
        seeds=1,
        keep_examples=True,
    )
    result = windowed.examples["fcfs"]
    metrics = compute_metrics(result)
    for name in ("e2e_latency", "ttft", "tpot"):
        assert series.latencies(result, name).mean() == pytest.approx(metrics[f"{name}_mean"])
        (panel,) = plots.latency_distribution(windowed, name).panels
        assert panel.series[0].values["y"][-1] == 1
    assert 0 < len(series.latencies(result, "ttft")) < 30
    gaps, share = series.token_gaps(result)
    assert (gaps * np.diff(share, prepend=0)).sum() == pytest.approx(metrics["tbt_mean"])


def test_targets_are_named_if_there_are_any(single):
    classes = [{**own, "ttft_slo": 4.0, "tbt_slo": k + 1.0} for k, own in enumerate(CLASSES["classes"])]
    given = compare(scenario(workload={**CLASSES, "classes": classes}), ["fcfs"], keep_examples=True)
    assert dict(content.setting(given))["Targets"] == "TTFT 4 s, TBT 1 to 2 s"
    assert content.main_table(given, "fcfs")["columns"][2] == ("Within SLOs", "")
    assert "Targets" not in dict(content.setting(single))
    titles = [title for title, _ in content.main_table(single, "fcfs")["columns"]]
    assert "Within SLOs" not in titles
