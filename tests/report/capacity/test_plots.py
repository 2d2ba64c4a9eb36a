"""Curves of capacities."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from kvgym.experiments.capacity.finding import find_capacity
from kvgym.experiments.scenario import load_scenario
from kvgym.report.capacity.plots import capacity_curves, write_capacity_figure

LMSYS = load_scenario("a100-llama2-70b").override(workload={"preset": "lmsys", "num_requests": 100})


@pytest.fixture(scope="module")
def result():
    return find_capacity(
        LMSYS, "ttft_p99<1,tbt_p99<0.2", ["fcfs", "mc_sf"], seeds=2, num_requests=100, curve=(0.5, 0.9)
    )


def test_a_panel_for_each_target_with_curves_and_dots(result):
    figure = capacity_curves(result)
    assert len(figure.axes) == 2
    assert " ".join(figure.get_suptitle().split()) == result.heading
    assert "llama2-70b-a100-tp2 (M = 16,492" in result.heading
    for ax, target in zip(figure.axes, result.targets, strict=True):
        name = {
            "ttft_p99": "Time to first token, p99, s (target <1)",
            "tbt_p99": "Time between tokens, p99, s (target <0.2)",
        }
        assert ax.get_title(loc="left") == name[target.metric]
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        for capacity in result.capacities:
            (curve,) = [line for line in ax.lines if line.get_label() == capacity.label]
            rates, values = curve.get_data()
            assert (np.diff(rates) > 0).all()
            shared = [p for p in result.probes if p.label == capacity.label and p.rate == rates[0]]
            assert len(shared) == 2
            assert values[0] == np.mean([p.played.record.metrics[target.metric] for p in shared])
            assert capacity.estimate.value in {
                line.get_xdata()[0] for line in ax.lines if line.get_marker() == "o"
            }
        assert any(set(line.get_ydata()) == {target.bound} for line in ax.lines)


def test_without_targets_the_growth_of_the_backlog_is_drawn():
    result = find_capacity(LMSYS, (), ["fcfs"], seeds=1, num_requests=100, curve=(0.5,))
    (ax,) = capacity_curves(result).axes
    assert "backlog" in ax.get_title(loc="left")
    assert any(set(line.get_ydata()) == {0} for line in ax.lines)


def test_all_rates_are_shown_without_a_capacity():
    result = find_capacity(LMSYS, "tbt_mean<0.0001", ["fcfs"], seeds=1, num_requests=100)
    ax = capacity_curves(result).axes[0]
    rates = [p.rate for p in result.probes]
    assert ax.get_xlim() == (min(rates), max(rates))


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_files(result, tmp_path, ending):
    path = write_capacity_figure(result, tmp_path / "deep" / f"capacity.{ending}")
    first = path.read_bytes()
    assert write_capacity_figure(result, path).read_bytes() == first
    if ending == "svg":
        assert ElementTree.fromstring(first).tag.endswith("svg")
