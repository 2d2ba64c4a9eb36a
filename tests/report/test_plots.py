"""Figures of comparisons match their data."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex

from kvgym.errors import ConfigError
from kvgym.experiments.comparison import compare
from kvgym.report import picture, plots, series
from kvgym.report.overview import overview

from .conftest import scenario


def lines_of(ax):
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def test_bars_are_the_means_and_their_intervals(comparison):
    ax = plots.latency_bars(comparison).axes[0]
    estimates = [comparison.estimate(p, "e2e_latency_mean") for p in comparison.policies]
    assert [bar.get_width() for bar in ax.patches] == [e.value for e in estimates]
    ends = [c.get_segments()[0][:, 0].tolist() for c in ax.collections]
    assert np.allclose(ends, [[e.low, e.high] for e in estimates])
    assert [t.get_text() for t in ax.get_yticklabels()] == list(comparison.policies)
    dots = [line.get_xdata() for line in ax.lines if line.get_marker() == "o"]
    assert np.array_equal(dots, [comparison.values(p, "e2e_latency_mean") for p in comparison.policies])
    assert "(s)" in ax.get_xlabel()


def test_another_metric_can_be_shown(comparison):
    ax = plots.latency_bars(comparison, "request_throughput").axes[0]
    assert ax.patches[0].get_width() == comparison.estimate("fcfs", "request_throughput").value
    assert ax.get_xlabel() == "Requests finished (1/s)"


def test_one_seed_has_bars_without_intervals(single):
    ax = plots.latency_bars(single).axes[0]
    assert len(ax.patches) == 3
    assert len(ax.collections) == 0


def test_failed_policies_are_named(with_failure):
    ax = plots.latency_bars(with_failure).axes[0]
    assert len(ax.patches) == 2
    assert "failed" in [t.get_text() for t in ax.texts]
    assert len(ax.get_yticklabels()) == 3
    assert len(plots.kv_memory(with_failure).axes) == 2


@pytest.mark.parametrize("name", ["e2e_latency", "ttft"])
def test_distribution_lines(comparison, name):
    ax = plots.latency_distribution(comparison, name).axes[0]
    lines = lines_of(ax)
    assert list(lines) == list(comparison.policies)
    for policy, line in lines.items():
        values = series.latencies(comparison.examples[policy], name)
        assert np.array_equal(line.get_xdata()[1:], values)
        assert line.get_ydata()[0] == 0
        assert line.get_ydata()[-1] == 1


def test_memory_stays_below_the_capacity_line(comparison):
    figure = plots.kv_memory(comparison)
    ends = [result.log["end_time"].max() for result in comparison.examples.values()]
    assert len(set(ends)) > 1
    assert figure.axes[0].get_xlim() == (0, max(ends))
    for ax, policy in zip(figure.axes, comparison.policies, strict=True):
        lines = lines_of(ax)
        assert set(lines["capacity"].get_ydata()) == {30}
        used = lines[policy].get_ydata()
        assert used.max() == comparison.examples[policy].log["kv_tokens"].max() <= 30
        assert used[-1] == 0


def test_queue_and_throughput_lines(comparison):
    queue = lines_of(plots.waiting_queue(comparison).axes[0])
    log = comparison.examples["fcfs"].log
    assert queue["fcfs"].get_ydata().max() == log["num_waiting"].max()
    top, bottom = plots.token_throughput(comparison).axes
    for policy, line in lines_of(bottom).items():
        x, y = line.get_xdata(), line.get_ydata()
        made = comparison.examples[policy].log["num_output_tokens"].sum()
        assert (np.diff(x) * y[:-1]).sum() == pytest.approx(made)
    values, edges, _ = top.patches[0].get_data()
    asked = comparison.examples["fcfs"].table.output_len.sum()
    assert (values * np.diff(edges)).sum() == pytest.approx(asked)


def test_a_policy_has_one_colour_everywhere(comparison):
    styles = plots.policy_styles(comparison.policies)
    queue = lines_of(plots.waiting_queue(comparison).axes[0])
    bars = plots.latency_bars(comparison).axes[0].patches
    for bar, (policy, style) in zip(bars, styles.items(), strict=True):
        assert to_hex(bar.get_facecolor()).upper() == style.color
        assert queue[policy].get_color() == style.color


def test_many_policies_have_different_styles():
    assert len(set(plots.policy_styles([str(i) for i in range(28)]).values())) == 28


def test_lines_of_many_policies_have_markers_too(comparison):
    few = lines_of(plots.waiting_queue(comparison).axes[0])
    assert {line.get_marker() for line in few.values()} == {"None"}
    result = comparison.examples["fcfs"]
    many = lines_of(plots.waiting_queue({f"p{i}": result for i in range(12)}).axes[0])
    assert len({(line.get_color(), line.get_marker(), line.get_linestyle()) for line in many.values()}) == 12
    assert {line.get_marker() for line in many.values()} == {"o", "s"}


@pytest.fixture(scope="module")
def far():
    """One request at a time, or as many as fit, which is much faster."""
    crowd = {**scenario().workload, "num_requests": 500}
    return compare(
        scenario(workload=crowd, kv_capacity=3000), ["fcfs", "request_level:batch=1"], seeds=2,
        keep_examples=True,
    )  # fmt: skip


def test_policies_far_apart_get_logarithmic_axes(far, comparison):
    ax = plots.latency_bars(far).axes[0]
    assert ax.get_xscale() == "log"
    assert len(ax.patches) == 0  # bars would need a zero
    means = [far.estimate(p, "e2e_latency_mean").value for p in far.policies]
    assert means[1] > plots.FAR * means[0]
    assert [line.get_xdata()[0] for line in lines_of(ax).values()] == means
    low, high = ax.get_xlim()
    assert low < means[0] < means[1] < high
    assert plots.latency_distribution(far, "ttft").axes[0].get_xscale() == "log"
    assert plots.latency_bars(comparison).axes[0].get_xscale() == "linear"
    assert plots.latency_distribution(comparison, "ttft").axes[0].get_xscale() == "linear"


def test_a_queue_far_longer_than_another_is_on_a_logarithmic_axis(far, comparison):
    chart = plots.waiting_queue(
        {"a": far.examples["request_level:batch=1"], "b": comparison.examples["fcfs"]}
    )
    longest = [r.log["num_waiting"].max() for r in (*far.examples.values(), comparison.examples["fcfs"])]
    assert longest[1] > plots.FAR * longest[2] > 0
    assert chart.axes[0].get_yscale() == "log"
    assert plots.waiting_queue(comparison).axes[0].get_yscale() == "linear"


def test_time_is_cut_if_one_run_is_much_longer(far, comparison):
    runs = {"long": far.examples["request_level:batch=1"], "short": comparison.examples["fcfs"]}
    ends = {name: result.log["end_time"].max() for name, result in runs.items()}
    assert ends["long"] > plots.FAR * ends["short"]
    assert plots.end_of(runs) == plots.CUT * ends["short"]
    assert plots.cut_off(runs) == ["long"]
    assert plots.cut_off(comparison.examples) == []


def test_single_results_and_mappings_are_accepted(comparison):
    result = comparison.examples["mc_sf"]
    assert list(lines_of(plots.waiting_queue(result).axes[0])) == ["mc_sf"]
    assert list(lines_of(plots.waiting_queue({"mine": result}).axes[0])) == ["mine"]


def test_a_comparison_without_examples_is_refused():
    bare = compare(scenario(), ["fcfs"], seeds=1)
    with pytest.raises(ConfigError, match="keep_examples=True"):
        plots.kv_memory(bare)
    assert len(plots.latency_bars(bare).axes[0].patches) == 1


def test_settings_of_the_user_stay_unchanged(comparison):
    with mpl.rc_context({"lines.linewidth": 9.0}):
        plots.kv_memory(comparison)
        assert mpl.rcParams["lines.linewidth"] == 9.0
        assert mpl.rcParams["svg.hashsalt"] is None


def test_overview_lines_up_bars_and_strips(with_failure):
    figure = overview(with_failure)
    bars, strips = figure.axes[0], figure.axes[1:]
    assert len(strips) == len(with_failure.policies)
    ends = [result.log["end_time"].max() for result in with_failure.examples.values()]
    assert strips[0].get_xlim() == (0, max(ends))
    figure.draw_without_rendering()
    for row, ax in enumerate(strips):
        _, bar = bars.transData.transform((0, row))
        _, middle = ax.transAxes.transform((0, 0.5))
        assert bar == pytest.approx(middle, abs=0.5)


def test_picture_has_the_size_of_a_page(comparison, tmp_path):
    from matplotlib.image import imread

    path = picture(comparison, tmp_path / "new" / "comparison.png")
    assert imread(path).shape[1] == 900
    assert picture(comparison, tmp_path / "c.svg").read_text().count("<svg") == 1
    with pytest.raises(ConfigError, match=r"\.png"):
        picture(comparison, tmp_path / "c.bmp")
