"""The live page in a real browser, where there is one: it draws, pauses, changes its speed, and follows dark mode."""

from __future__ import annotations

import importlib.util
import shutil
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "checks" / "check_report.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("check_report", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def browser(script):
    program = next(filter(None, map(shutil.which, script.NAMES)), None)
    if program is None:
        pytest.skip("needs Chromium")
    chromium = script.Chromium(program)
    yield chromium
    chromium.close()


def wait_for(browser, expression):
    deadline = time.monotonic() + 60
    while not browser.value(expression):
        assert time.monotonic() < deadline, expression
        time.sleep(0.05)


def test_a_run_in_a_browser(script, browser, live_run, serve):
    source = live_run(speed=5.0)
    server = serve(source)
    for (size, area), scheme in zip(script.SIZES.items(), script.SCHEMES, strict=True):
        browser.open(server.url, area, scheme, size == "phone")
        wait_for(browser, "document.querySelectorAll('svg path[stroke-linejoin]').length === 7")
        wait_for(browser, "document.querySelector('svg path[stroke-linejoin]').getAttribute('d').length > 20")
        assert browser.value(script.FAULTS) + script.check_colours(browser, scheme) == []
        fetched = [m for m in script.messages(browser) if not m.startswith(f"fetches {server.url}"[:90])]
        assert fetched == []
    browser.click("#pause")
    wait_for(browser, "document.getElementById('status').textContent === 'paused'")
    assert source.paused
    browser.value("(() => { const s = document.getElementById('speed'); s.value = '1000000';"
                  "s.dispatchEvent(new Event('change')); })()")  # fmt: skip
    browser.click("#pause")
    wait_for(browser, "document.getElementById('status').textContent === 'finished'")
    assert source.speed == 1e6
    assert "20 of 20" in browser.value("document.getElementById('tiles').textContent")
    assert browser.value("document.getElementById('pause').hidden")
    server.close()
    wait_for(browser, "document.getElementById('status').textContent === 'kvgym watch has ended'")
