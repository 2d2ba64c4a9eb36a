"""Interactive parts of a page: classes, numbers and a script that agree with the figures."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from importlib.resources import files

import numpy as np
import pytest
from matplotlib.figure import Figure

from kvgym.report import plots, series
from kvgym.report.chart import Chart, Quantity
from kvgym.report.html import render
from kvgym.report.page import Page
from kvgym.report.style import DASHES, MARKERS
from kvgym.report.svg import inline_svg

from .conftest import HOSTILE


def data_of(text):
    found = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found.group(1))


def pictures_of(text):
    pattern = r'<svg viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*data-chart="([^"]+)">(.*?)</svg>'
    found = re.findall(pattern, text, re.DOTALL)
    return {name: (float(width), float(height), body) for width, height, name, body in found}


@pytest.fixture(scope="module")
def text(comparison):
    return render(comparison)


def test_every_picture_has_its_numbers_and_no_other(text):
    assert set(data_of(text)["charts"]) == set(pictures_of(text))


def test_every_policy_of_a_picture_has_its_class(text, comparison):
    data = data_of(text)
    assert data["policies"] == list(comparison.policies)
    for name, (_, _, body) in pictures_of(text).items():
        shown = {s["policy"] for panel in data["charts"][name] for s in panel["series"]} - {None}
        drawn = {int(number) for number in re.findall(r'class="p(\d+)"', body)}
        assert shown == drawn, name
        expected = {"timeline": {int(name[-1])}, "batches": set()} if "-" in name else {}
        assert shown == expected.get(name.partition("-")[0], {0, 1, 2})


def test_a_policy_has_its_rules_and_its_checkbox(text, comparison):
    for i, _ in enumerate(comparison.policies):
        assert f":root:has(#show-{i}:not(:checked)) .p{i} {{ display: none; }}" in text
        assert text.count(f'type="checkbox" id="show-{i}"') == 1
    assert f"show-{len(comparison.policies)}" not in text


def test_numbers_are_those_of_the_figures(text, comparison):
    charts = data_of(text)["charts"]
    for row, (policy, bar) in enumerate(zip(comparison.policies, charts["bars"][0]["series"], strict=True)):
        estimate = comparison.estimate(policy, "e2e_latency_mean")
        shown = (bar["x"][0], bar["x_low"][0], bar["x_high"][0])
        assert shown == pytest.approx((estimate.value, estimate.low, estimate.high), rel=1e-5)
        assert bar["y"] == [row]
    for line in charts["ttft"][0]["series"]:
        values = series.latencies(comparison.examples[line["name"]], "ttft")
        assert line["x"][1:] == pytest.approx(values.tolist(), rel=1e-5)
        assert (line["y"][0], line["y"][-1]) == (0, 1)
    queue = plots.waiting_queue(comparison).axes[0].lines
    for line, drawn in zip(charts["queue"][0]["series"], queue, strict=True):
        assert line["x"] == pytest.approx(drawn.get_xdata(), rel=1e-5)
        assert line["y"] == drawn.get_ydata().tolist()


def test_numbers_and_paths_are_in_the_same_place(text):
    # Through the panel's box and limits the first number of a line is the first corner of its path.
    width, height, body = pictures_of(text)["queue"]
    (panel,) = data_of(text)["charts"]["queue"]
    left, top, right, bottom = panel["box"]
    assert 0 < left < right <= width
    assert 0 < top < bottom <= height
    for line in panel["series"]:
        path = re.search(rf'<g class="p{line["policy"]}"><path d="M([\d.]+) ([\d.]+)', body)
        share = [
            (line[axis][0] - panel[axis]["low"]) / (panel[axis]["high"] - panel[axis]["low"]) for axis in "xy"
        ]
        place = (left + share[0] * (right - left), bottom - share[1] * (bottom - top))
        assert place == pytest.approx([float(v) for v in path.groups()], abs=0.11)


def test_only_the_pages_own_script_may_run(text):
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'\"" in text
    assert "default-src 'none'" in text


def test_hostile_names_stay_within_the_data(with_failure):
    text = render(with_failure)
    assert HOSTILE in data_of(text)["policies"]
    assert text.count("</script>") == 2


def test_a_failed_policy_can_be_hidden(with_failure):
    _, _, body = pictures_of(render(with_failure))["bars"]
    assert re.search(r'<g class="p1"><text[^>]*>failed', body)


def test_a_single_policy_needs_no_choice(single):
    from kvgym.experiments.comparison import compare

    text = render(compare(single.scenario, ["fcfs"], seeds=1))
    assert "Policies shown" not in text
    assert "show-0" not in re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.DOTALL)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_script_is_sound(tmp_path):
    target = tmp_path / "page.js"
    target.write_text((files("kvgym.report") / "assets" / "page.js").read_text())
    done = subprocess.run(["node", "--check", target], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_script_uses_only_existing_elements(text):
    script = (files("kvgym.report") / "assets" / "page.js").read_text()
    for name in re.findall(r'getElementById\("([^"]+)"\)', script):
        assert f'id="{name}"' in text, name
    for opening, closing in ("()", "[]", "{}"):
        assert script.count(opening) == script.count(closing)
    assert "innerHTML" not in script
    assert "</script" not in script


def test_panels_have_their_scales_and_no_values_outside_json():
    chart = Chart(["a", "b"], figsize=(4, 3))
    ax = chart.add_subplot()
    chart.panel(ax, Quantity("rate", "1/s"), Quantity("latency", "s"), title="one")
    line = ax.plot([1, 10], [2, 4])
    ax.set_xscale("log")
    chart.record(ax, "b", "points", {"x": [1, 10], "y": [2.0, np.nan]}, artists=line, text=("t", "u"))
    svg, (panel,) = inline_svg(chart, "c", "two points")
    assert (panel["x"]["log"], panel["y"]["log"]) == (True, False)
    assert panel["series"] == [
        {"name": "b", "policy": 1, "kind": "points", "text": ["t", "u"], "x": [1, 10], "y": [2, None]}
    ]
    assert svg.count('class="p1"') == 1
    assert isinstance(chart, Figure)


def test_a_picture_keeps_only_used_ids():
    chart = Chart(["a"], figsize=(4, 3))
    ax = chart.add_subplot()
    chart.panel(ax, Quantity("x"), Quantity("y"))
    chart.record(ax, "a", "points", {"x": 1, "y": 1}, artists=ax.plot([0, 1, 1, 2], [0, 0, 1, 1], marker="o"))
    svg, _ = inline_svg(chart, "c", "a line")
    ids, used = re.findall(r' id="([^"]+)"', svg), re.findall(r'(?:href="|url\()#([^")]+)', svg)
    assert set(ids) == set(used)
    assert len(ids) == len(set(ids))
    assert svg.count("<g") == svg.count("</g>")
    assert re.search(r' d="M[\d.]+ [\d.]+H[\d.]+V[\d.]+H[\d.]+"', svg)  # only horizontal and vertical lines


def test_legends_show_dashes_and_markers():
    page = Page([f"policy {i}" for i in range(28)], markers=True)
    keys = {re.sub("policy \\d+|k\\d+|show-\\d+", "", str(page.key(p))) for p in page.policies}
    assert len(keys) == 28
    assert len(MARKERS) == len(DASHES)
