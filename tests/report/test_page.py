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

from helpers.pages import HOSTILE, data_of, pictures_of
from kvgym.report import series
from kvgym.report.chart import DASHES, MARKERS, Axis, Chart, Panel, Quantity, Series
from kvgym.report.html import render
from kvgym.report.page import Page


@pytest.fixture(scope="module")
def text(comparison):
    return render(comparison)


def test_every_picture_has_its_numbers_and_no_other(text):
    assert list(data_of(text)["charts"]) == pictures_of(text)


def test_every_picture_shows_its_policies(text, comparison):
    data = data_of(text)
    assert data["policies"] == list(comparison.policies)
    assert len({style["color"] for style in data["styles"]}) == 3
    for name, chart in data["charts"].items():
        shown = {s["policy"] for panel in chart["panels"] for s in panel["series"]} - {None}
        expected = {"timeline": {int(name[-1])}, "batches": set()} if "-" in name else {}
        assert shown == expected.get(name.partition("-")[0], {0, 1, 2})


def test_a_policy_has_its_rules_and_its_checkbox(text, comparison):
    for i, _ in enumerate(comparison.policies):
        assert f":root:has(#show-{i}:not(:checked)) .p{i} {{ display: none; }}" in text
        assert text.count(f'type="checkbox" id="show-{i}"') == 1
    assert f"show-{len(comparison.policies)}" not in text


def test_numbers_are_those_of_the_results(text, comparison):
    charts = data_of(text)["charts"]
    (bars,), (first_tokens,) = charts["bars"]["panels"], charts["ttft"]["panels"]
    for row, (policy, bar) in enumerate(zip(comparison.policies, bars["series"], strict=True)):
        estimate = comparison.estimate(policy, "e2e_latency_mean")
        shown = (bar["x"][0], bar["x_low"][0], bar["x_high"][0])
        assert shown == pytest.approx((estimate.value, estimate.low, estimate.high), rel=1e-5)
        assert bar["y"] == [row]
    for line in first_tokens["series"]:
        values = series.latencies(comparison.examples[line["name"]], "ttft")
        assert line["x"][1:] == pytest.approx(values.tolist(), rel=1e-5)
        assert (line["y"][0], line["y"][-1]) == (0, 1)
    (queue,) = charts["queue"]["panels"]
    for line in queue["series"]:
        log = comparison.examples[line["name"]].log
        x, y = series.thin_steps(*series.step_series(log, "num_waiting"))
        assert line["x"] == pytest.approx(x, rel=1e-5)
        assert line["y"] == y.tolist()


def test_only_the_pages_own_script_may_run(text):
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'\"" in text
    assert "default-src 'none'" in text


def test_hostile_names_stay_within_the_data(with_failure):
    text = render(with_failure)
    assert HOSTILE in data_of(text)["policies"]
    assert text.count("</script>") == 2


def test_a_single_policy_needs_no_choice(single):
    from kvgym.experiments.comparison import compare

    text = render(compare(single.scenario, ["fcfs"], seeds=1))
    assert "Policies shown" not in text
    assert "show-0" not in re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.DOTALL)


def test_the_script_uses_only_existing_elements(text):
    script = (files("kvgym.report") / "assets" / "page.js").read_text()
    for name in re.findall(r'getElementById\("([^"]+)"\)', script):
        assert f'id="{name}"' in text, name
    for opening, closing in ("()", "[]", "{}"):
        assert script.count(opening) == script.count(closing)
    assert "innerHTML" not in script
    assert "</script" not in script


TWO_POINTS = Chart(
    [
        Panel(
            Axis(Quantity("rate", "1/s"), 1, 100, log=True), Axis(Quantity("latency", "s"), 0, 4),
            [Series("b", "b", "points", {"x": [1, 10, 100], "y": [2.0, 4.0, np.nan]}, ("t", "u", "v"), {"line": True})],
            height=100, title="one",
        )
    ]
)  # fmt: skip


def test_panels_have_their_scales_and_no_values_outside_json():
    (panel,) = TWO_POINTS.data(["a", "b"], "two points")["panels"]
    assert (panel["x"]["log"], panel["y"]["log"]) == (True, False)
    assert panel["series"] == [
        {"name": "b", "policy": 1, "kind": "points", "text": ["t", "u", "v"], "x": [1, 10, 100], "y": [2, 4, None],
         "line": True}
    ]  # fmt: skip


DOCUMENT = """
class Element {
  constructor(tag) { Object.assign(this, { tag, attributes: {}, children: [], textContent: "" }); }
  setAttribute(name, value) { this.attributes[name] = value; }
  append(child) { this.children.push(child); }
  getContext() { return { measureText: (text) => ({ width: 5 * text.length }) }; }
}
const document = { createElement: (tag) => new Element(tag), createElementNS: (_, tag) => new Element(tag) };
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_figures_are_drawn_from_the_numbers():
    """By hand: labels are 5 wide a letter, so the axes are 14 to 392 wide; 35 are above them."""
    page = Page(["a", "b"])
    page.add("c", TWO_POINTS, "two points")
    script = (files("kvgym.report") / "assets" / "figures.js").read_text()
    run = f'const svg = figures.show(new Element("div"), "c", {page.data}); console.log(JSON.stringify(svg));'
    whole = DOCUMENT.join((script[:13], script[13:])) + run
    done = subprocess.run(["node", "-"], input=whole, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    svg = json.loads(done.stdout)
    assert svg["attributes"]["aria-label"] == "two points"
    texts = [e["textContent"] for e in svg["children"] if e["tag"] == "text"]
    assert texts == [
        "one",
        "latency (s)",
        "1",
        "2",
        "5",
        "10",
        "20",
        "50",
        "100",
        "0",
        "1",
        "2",
        "3",
        "4",
        "rate (1/s)",
    ]
    (group,) = (e for e in svg["children"] if e["attributes"].get("class") == "p1")
    line, *dots = group["children"]
    assert line["attributes"]["d"] == "M14 85L203 35"
    assert line["attributes"]["stroke"] == page.styles["b"].color
    assert [dot["attributes"]["transform"][:16] for dot in dots] == ["translate(14 85)", "translate(203 35"]


def test_legends_show_dashes_and_markers():
    page = Page([f"policy {i}" for i in range(28)], markers=True)
    keys = {re.sub("policy \\d+|k\\d+|show-\\d+", "", str(page.key(p))) for p in page.policies}
    assert len(keys) == 28
    assert len(MARKERS) == len(DASHES)
