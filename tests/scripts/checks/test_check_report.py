"""Reports in a real browser, where there is one: what is right passes, what is wrong is found."""

import re
import shutil
import sys

import pytest

from helpers.amount import number
from kvgym.experiments.comparison import compare
from kvgym.metrics.catalogue import metric_names
from kvgym.report import write_report
from kvgym.studies import write_sweep_report
from kvgym.utils.frame import Frame

LOOKS = [("desktop", "light"), ("phone", "dark"), ("desktop", "dark"), ("phone", "light")][: number(4, 2)]


@pytest.fixture(scope="module")
def script(checks):
    return checks("check_report")


@pytest.fixture(scope="module")
def browser(script):
    program = next(filter(None, map(shutil.which, script.NAMES)), None)
    if program is None:
        pytest.skip("needs Chromium")
    chromium = script.Chromium(program)
    yield chromium
    chromium.close()


@pytest.fixture(scope="module")
def comparison_report(tmp_path_factory):
    made = compare("mc-sf-model-2", ["mc_sf", "fcfs"], seeds=2, keep_examples=True)
    return write_report(made, tmp_path_factory.mktemp("comparison") / "report.html")


def sweep_frame():
    rows = []
    for rate in (1, 2, 4):
        for capacity in (100, 200):
            for hardware in ("a-long-name-of-hardware", "b"):
                for j, policy in enumerate(("mc_sf", "fcfs")):
                    for seed in (0, 1):
                        value = rate * (j + 1) + capacity / 100 + seed
                        point = {"rate": rate, "capacity": capacity, "hardware": hardware}
                        metrics = dict.fromkeys(metric_names(), value)
                        rows.append({**point, "policy": policy, "seed": seed, "error": "", **metrics})
    return Frame.from_rows(rows)


def test_a_comparison_works_in_a_browser(script, browser, comparison_report, tmp_path):
    assert list(script.check(browser, comparison_report, tmp_path, LOOKS)) == []
    assert len(list(tmp_path.glob("*.png"))) == len(LOOKS)


def test_a_sweep_works_in_a_browser(script, browser, tmp_path):
    path = write_sweep_report(sweep_frame(), ["rate", "capacity", "hardware"], tmp_path / "sweep.html")
    assert list(script.check(browser, path, looks=LOOKS)) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("<main>", "<main><div style='width: 3000px'>wide</div>", "the screen"),
        ("<main>", "<main><script>1</script>", "console"),
        ("<main>", "<main><img src='https://example.org/x.png'>", "console"),
        ('addEventListener("pointermove"', 'addEventListener("nothing"', "expected, not"),
        (".p0 { display: none; }", "", "stays visible"),
        ("color-scheme: dark; }", "color-scheme: light; }", "dark does not work"),
        ('mark(svg, "text", { x: left - 5,', 'mark(svg, "text", { x: left - 900,', "cut off"),
    ],
)
def test_faults_are_found(script, browser, comparison_report, tmp_path, old, new, fault):
    text = comparison_report.read_text("utf-8")
    assert old in text
    text = text.replace(old, new)
    if "addEventListener" in old or "mark(" in old:  # another script has another hash
        text = re.sub("script-src '[^']*'", "script-src 'unsafe-inline'", text)
    broken = tmp_path / "broken.html"
    broken.write_text(text, "utf-8")
    assert any(fault in found for found in script.check(browser, broken, looks=LOOKS))


def test_without_a_browser_it_says_what_to_do(script, monkeypatch):
    with pytest.raises(SystemExit, match="no Chromium at /no/such"):
        script.find_browser("/no/such")
    monkeypatch.setattr(script.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="apt-get install chromium"):
        script.find_browser(None)


def test_files_that_are_not_there_are_named(script, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["check_report.py", "no.html"])
    with pytest.raises(SystemExit, match=r"no such file: no\.html"):
        script.main()
