"""Figures of comparisons match their data."""

import numpy as np
import pytest

from kvgym.errors import ConfigError
from kvgym.experiments.comparison import compare
from kvgym.report import plots
from kvgym.report.chart import policy_styles

from .conftest import scenario


def panel_of(chart):
    (panel,) = chart.panels
    return panel


def test_bars_are_the_means_and_their_intervals(comparison):
    panel = panel_of(plots.latency_bars(comparison))
    for row, (policy, bar) in enumerate(zip(comparison.policies, panel.series, strict=True)):
        e = comparison.estimate(policy, "e2e_latency_mean")
        assert (bar.policy, bar.kind) == (policy, "bars")
        assert bar.values == {"x": e.value, "x_low": e.low, "x_high": e.high, "y": row}
        assert bar.look["dots"] == comparison.values(policy, "e2e_latency_mean").tolist()
        assert max(e.high, *bar.look["dots"]) <= panel.x.high
    assert panel.y.quantity.names == comparison.policies
    assert (panel.x.quantity.unit, panel.x.low, panel.x.log) == ("s", 0, False)


def test_another_metric_can_be_shown(comparison):
    panel = panel_of(plots.latency_bars(comparison, "request_throughput"))
    assert panel.series[0].values["x"] == comparison.estimate("fcfs", "request_throughput").value
    assert panel.x.quantity[:2] == ("Requests finished", "1/s")


def test_one_seed_has_bars_without_intervals(single):
    bars = panel_of(plots.latency_bars(single)).series
    assert [(np.isnan(bar.values["x_low"]), bar.look["dots"]) for bar in bars] == [(True, [])] * 3


def test_failed_policies_are_named(with_failure):
    bars = panel_of(plots.latency_bars(with_failure)).series
    assert [bar.look["notes"] == ["failed"] for bar in bars] == [False, True, False]
    assert bars[1].text == ("failed",)


def test_queue_and_throughput_lines(comparison):
    queue = panel_of(plots.waiting_queue(comparison))
    log = comparison.examples["fcfs"].log
    assert queue.series[0].values["y"].max() == log["num_waiting"].max()
    ends = [result.log["end_time"].max() for result in comparison.examples.values()]
    assert (queue.x.low, queue.x.high) == (0, max(ends))
    top, bottom = plots.token_throughput(comparison).panels
    for line in bottom.series:
        x, y = line.values["x"], line.values["y"]
        made = comparison.examples[line.policy].log["num_output_tokens"].sum()
        assert (np.diff(x) * y[:-1]).sum() == pytest.approx(made)
        assert y.max() < bottom.y.high
    (arriving,) = top.series
    asked = comparison.examples["fcfs"].table.output_len.sum()
    assert (np.diff(arriving.values["x"]) * arriving.values["y"][:-1]).sum() == pytest.approx(asked)


def test_many_policies_have_different_styles():
    assert len(set(policy_styles([str(i) for i in range(28)]).values())) == 28


@pytest.fixture(scope="module")
def far():
    """One request at a time, or as many as fit, which is much faster."""
    crowd = {**scenario().workload, "num_requests": 500}
    return compare(
        scenario(workload=crowd, kv_capacity=3000), ["fcfs", "request_level:batch=1"], seeds=2,
        keep_examples=True,
    )  # fmt: skip


def test_policies_far_apart_get_logarithmic_axes(far, comparison):
    panel = panel_of(plots.latency_bars(far))
    assert panel.x.log
    means = [far.estimate(p, "e2e_latency_mean").value for p in far.policies]
    assert means[1] > plots.FAR * means[0]
    assert panel.x.low < means[0] < means[1] < panel.x.high
    assert panel_of(plots.latency_distribution(far, "ttft")).x.log
    assert not panel_of(plots.latency_bars(comparison)).x.log
    assert not panel_of(plots.latency_distribution(comparison, "ttft")).x.log


def test_a_queue_far_longer_than_another_is_on_a_logarithmic_axis(far, comparison):
    chart = plots.waiting_queue(
        {"a": far.examples["request_level:batch=1"], "b": comparison.examples["fcfs"]}
    )
    longest = [r.log["num_waiting"].max() for r in (*far.examples.values(), comparison.examples["fcfs"])]
    assert longest[1] > plots.FAR * longest[2] > 0
    assert panel_of(chart).y.log
    assert not panel_of(plots.waiting_queue(comparison)).y.log


def test_time_is_cut_if_one_run_is_much_longer(far, comparison):
    runs = {"long": far.examples["request_level:batch=1"], "short": comparison.examples["fcfs"]}
    ends = {name: result.log["end_time"].max() for name, result in runs.items()}
    assert ends["long"] > plots.FAR * ends["short"]
    assert plots.end_of(runs) == plots.CUT * ends["short"]
    assert plots.cut_off(runs) == ["long"]
    assert plots.cut_off(comparison.examples) == []


def test_single_results_and_mappings_are_accepted(comparison):
    result = comparison.examples["mc_sf"]
    assert [line.policy for line in panel_of(plots.waiting_queue(result)).series] == ["mc_sf"]
    assert [line.policy for line in panel_of(plots.waiting_queue({"mine": result})).series] == ["mine"]


def test_a_comparison_without_examples_is_refused():
    bare = compare(scenario(), ["fcfs"], seeds=1)
    with pytest.raises(ConfigError, match="keep_examples=True"):
        plots.waiting_queue(bare)
    assert len(panel_of(plots.latency_bars(bare)).series) == 1
