"""Curves that look the same: joint lines, sentences on hidden ones; the part of time axes that is shown at first."""

from types import SimpleNamespace

import numpy as np
import pytest

from kvgym.report import plots
from kvgym.report.alike import hidden_curves, join_alike, joint_policies
from kvgym.report.chart import Axis, Chart, Panel, Quantity, Series
from kvgym.report.page import Page
from kvgym.studies.capacity.page import _hidden

X = Axis(Quantity("time", "s"), 0, 10, start=(2, 4))
Y = Axis(Quantity("waiting"), 0, 100)
TIMES = np.linspace(0, 10, 30)


def steps(policy, y):
    return Series(policy, policy, "steps", {"x": TIMES, "y": np.broadcast_to(y, TIMES.shape)})


def test_lines_that_look_the_same_are_joined():
    lines = [steps("a:x=1", TIMES), steps("b", 3 * TIMES), steps("c", TIMES + 0.5)]
    (panel,) = join_alike(Chart([Panel(X, Y, lines)])).panels
    assert [(s.name, s.policy, s.also) for s in panel.series] == [
        ("a:x=1, c", "a:x=1", ("c",)),
        ("b", "b", ()),
    ]


def test_lines_that_differ_in_one_panel_or_at_one_moment_are_not_joined():
    alike, apart = [steps("a", TIMES), steps("b", TIMES)], [steps("a", TIMES), steps("b", 3 * TIMES)]
    two = Chart([Panel(X, Y, alike), Panel(X, Y, apart)])
    assert joint_policies([join_alike(two)]) == []
    peak = np.where(np.arange(30) == 8, 90, TIMES)
    assert joint_policies([join_alike(Chart([Panel(X, Y, [steps("a", TIMES), steps("b", peak)])]))]) == []


def test_a_joint_line_has_one_entry_and_is_hidden_with_all_its_policies():
    page = Page(["a:x=1", "b", "c"])
    lines = [steps("a:x=1", TIMES), steps("b", 3 * TIMES), steps("c", TIMES)]
    page.add("queue", join_alike(Chart([Panel(X, Y, lines)])), "caption", legend=page.policies)
    assert page.figures[0].legend == (("a:x=1", "c"), ("b",))
    assert ":root:has(#show-0:not(:checked)):has(#show-2:not(:checked)) .j0-2 { display: none; }" in page.css
    assert '"name":"a 1, c","policy":0' in page.data
    assert '"also":[2]' in page.data
    key = page.joint_key(("a:x=1", "c"))
    assert key.count("<svg") == 1
    assert "(one line)" in key
    assert page.zooms
    assert page.starts


def curve(policy, y):
    x = np.geomspace(1, 10, 8)
    return Series(policy, policy, "points", {"x": x, "y": y * np.ones(8)}, look={"line": True})


def test_a_curve_below_another_is_named():
    x, y = Axis(Quantity("rate"), 1, 10, log=True), Axis(Quantity("latency"), 0.1, 100, log=True)
    panel = Panel(x, y, [curve("a", 2.0), curve("b", 5.0), curve("c", 2.02), curve("beyond", 500.0)])
    assert hidden_curves(panel) == [("a", "c")]


def run_of(arrivals, finish):
    return SimpleNamespace(
        table=SimpleNamespace(arrival_time=np.asarray(arrivals, float)),
        requests={"finish_time": np.asarray(finish, float)},
        log=np.array([(max(finish),)], [("end_time", float)]),
    )


def test_the_busiest_minute():
    """One request is always there, ten more from 301 to 359."""
    found = plots.busiest_minute({"a": run_of([0, *[301] * 10], [600, *[359] * 10])})
    assert found == pytest.approx((300, 360), abs=2.1)


def test_short_runs_are_shown_whole_and_can_be_zoomed(single):
    axis = plots.time_axis(single.examples)
    assert 0 < axis.high < 1.5 * plots.MINUTE
    assert axis.start == (axis.low, axis.high)


def test_a_capacity_report_says_which_curves_are_hidden():
    x, y = Axis(Quantity("rate"), 1, 10, log=True), Axis(Quantity("TTFT, p99"), 0, 10)
    hidden = Chart([Panel(x, y, [curve("a", 2.0), curve("b", 2.0), curve("c", 2.01), curve("d", 5.0)])])
    assert _hidden([hidden]) == " TTFT, p99: the curves of a, b lie under the one of c."
    assert _hidden([Chart([Panel(x, y, [curve("a", 2.0), curve("d", 5.0)])])]) == ""
