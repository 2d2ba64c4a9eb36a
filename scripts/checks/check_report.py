"""Check reports in headless Chromium, and print what is wrong with them.

python scripts/checks/check_report.py results/report.html            # exit status 1 and a list if anything is wrong
python scripts/checks/check_report.py report.html --screenshots shots  # also write pictures of all sizes and colours

Checks at desktop and phone width, light and dark: no console output, nothing fetched, no page wider than the screen, no
text of a figure cut off or overlapping another, values by pointer, touch and keys, zooming by dragging, selection of
policies, and the colour switch. Needs Chromium or Chrome (Debian: apt-get install chromium).
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
PATIENCE = 60
SCHEMES = ("light", "dark")
LOOKS = tuple(product(SIZES, SCHEMES))

FAULTS = """(() => {
  const faults = [];
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) {
    const wide = [...document.querySelectorAll("body *")].filter((e) => !e.closest(".scroll, pre") &&
      e.getBoundingClientRect().right > root.clientWidth + 1).map((e) => e.outerHTML.slice(0, 80));
    faults.push(`the page is ${root.scrollWidth} wide, the screen ${root.clientWidth}: ${wide[0]}`);
  }
  for (const svg of document.querySelectorAll("[data-chart] svg")) {
    const frame = svg.getBoundingClientRect(), chart = svg.closest("[data-chart]").dataset.chart;
    const texts = [...svg.querySelectorAll("text")].map((e) => [e.textContent.trim(), e.getBoundingClientRect(),
      Number((/rotate\\((-?[\\d.]+)/.exec(e.getAttribute("transform") || "") || [0, 0])[1])]);
    for (const [text, box] of texts) {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 ||
          box.bottom > frame.bottom + 1) faults.push(`${chart}: "${text}" is cut off`);
    }
    // The boxes of slanted texts overlap even if the texts do not.
    const level = texts.filter(([, , angle]) => angle % 90 === 0);
    level.forEach(([text, a], i) => level.slice(i + 1).forEach(([other, b]) => {
      const over = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const under = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (over > 1 && under > 0.35 * Math.min(a.height, b.height)) {
        faults.push(`${chart}: "${text}" and "${other}" overlap`);
      }
    }));
  }
  return faults;
})()"""

PLACES = """(() => {
  const data = JSON.parse(document.getElementById("page-data").textContent);
  return Object.entries(data.charts).flatMap(([name, { panels }]) => panels.flatMap((panel, k) => {
    if (panel.x.start) [panel.x.low, panel.x.high] = panel.x.start;
    const seen = (s, x, i) => x !== null && s.y[i] !== null && (s.kind !== "points" || !panel.x.start ||
      (x > panel.x.low && x < panel.x.high));
    const series = panel.series.find((s) => !s.quiet && s.x.some((x, i) => seen(s, x, i)));
    if (!series) return [];
    const last = series.x.findLastIndex((x) => x <= panel.x.low + 0.97 * (panel.x.high - panel.x.low));
    const i = series.kind === "steps" ? Math.max(0, last) : series.x.findIndex((x, i) => seen(series, x, i));
    const share = (axis, value) => axis.log ? Math.log(value / axis.low) / Math.log(axis.high / axis.low)
      : (value - axis.low) / (axis.high - axis.low);
    const area = document.querySelectorAll(`[data-chart="${name}"] .panel`)[k].getBBox();
    const part = series.kind === "steps" ? 0.97 : share(panel.x, series.x[i]);
    const x = area.x + part * area.width;
    const y = area.y + (1 - share(panel.y, series.y[i])) * area.height;
    return [{ chart: name, panel: k, name: series.name, policy: series.policy, kind: series.kind, x, y }];
  }));
})()"""


class Chromium:
    """A headless browser with one page, driven over its debugging pipe."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        def wire() -> None:  # the browser reads from file 3 and writes to file 4
            spare = (os.dup(to_browser), os.dup(from_browser))
            os.dup2(spare[0], 3)
            os.dup2(spare[1], 4)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"],
            preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._rest = b""
        self._count = 0
        self.events: list[dict[str, Any]] = []
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(20)
        os.close(self._out)
        os.close(self._in)
        self._folder.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol, and return its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], PATIENCE)[0]:
                raise RuntimeError(f"no answer from the browser for {PATIENCE} s")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended; check that it starts from a shell")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def open(self, path: Path | str, size: tuple[int, int], scheme: str, phone: bool) -> None:
        """Open a file or an address with a screen size and a system colour scheme."""
        width, height = size
        scale = 2 if phone else 1
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=phone,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url=path if isinstance(path, str) else path.resolve().as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._read())

    def value(self, expression: str) -> Any:
        """Return what a script on the page evaluates to."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression[:80]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def move(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def tap(self, x: float, y: float) -> None:
        """Touch a position."""
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def click(self, selector: str) -> None:
        """Scroll to an element, and click on its centre."""
        x, y = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path, whole: bool) -> None:
        """Write a picture of the screen, or of the whole page."""
        shot = self.call(
            "Page.captureScreenshot", captureBeyondViewport=whole, **({"clip": self._all()} if whole else {})
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def _all(self) -> dict[str, Any]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}


def messages(browser: Chromium) -> list[str]:
    """Return console messages and network requests of the page."""
    found = []
    for event in browser.events:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded":
                found.append(f"console: {json.dumps(params)[:300]}")
            case "Network.requestWillBeSent" if not params["request"]["url"].startswith(("file://", "data:")):
                found.append(f"fetches {params['request']['url'][:100]}")
    return found


def tip_of(browser: Chromium) -> str:
    """Return the text of the tooltip, "" if there is none, or ``leaves the screen``."""
    return browser.value(
        "(() => { const t = document.getElementById('tip'); if (!t || t.hidden) return '';"
        "const b = t.getBoundingClientRect(), p = document.documentElement;"
        "const inside = b.left >= 0 && b.top >= 0 && b.right <= p.clientWidth && b.bottom <= p.clientHeight;"
        "return inside ? t.textContent : 'leaves the screen'; })()"
    )


def check_values(browser: Chromium, phone: bool) -> list[str]:
    """Point at or touch a number in every panel, then use the keys in every figure."""
    faults = []
    for place in browser.value(PLACES):
        x, y = browser.value(
            f"(() => {{ const s = document.querySelector('[data-chart=\"{place['chart']}\"] svg');"
            "s.scrollIntoView({block: 'center'}); const b = s.getBoundingClientRect();"
            "const u = b.width / s.viewBox.baseVal.width;"
            f"return [b.left + u * {place['x']}, b.top + u * {place['y']}]; }})()"
        )
        browser.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        (browser.tap if phone else browser.move)(x, y)
        shown = tip_of(browser)
        if place["name"] not in shown:
            faults.append(
                f"{place['chart']}, panel {place['panel']}: {place['name']} expected, not {shown!r}"
            )
        browser.value(
            f"document.querySelector('[data-chart=\"{place['chart']}\"] svg').focus({{preventScroll: true}})"
        )
        browser.press("Escape")
        if tip_of(browser):
            faults.append(f"{place['chart']}: Esc does not close the values")
        browser.press("ArrowRight")
        browser.press("ArrowRight")
        if not tip_of(browser):
            faults.append(f"{place['chart']}: arrow keys show no values")
        browser.press("Escape")
    return faults


TIMES = "[...document.querySelectorAll('[data-chart=\"queue\"] text')].map((e) => e.textContent).join(' ')"


def check_zoom(browser: Chromium) -> list[str]:
    """Drag over a plot over time, and double-click it: its part is shown, then the whole, then the start again."""
    if not browser.value("!!document.querySelector('[data-chart=\"queue\"]')"):
        return []
    left, y, width = browser.value(
        "(() => { const e = document.querySelector('[data-chart=\"queue\"] .panel');"
        "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
        "return [b.left, b.top + b.height / 2, b.width]; })()"
    )
    start = browser.value(TIMES)

    def mouse(kind: str, share: float, count: int = 1) -> None:
        place = {"x": left + share * width, "y": y, "button": "left", "buttons": 1, "clickCount": count}
        browser.call("Input.dispatchMouseEvent", type=kind, **place)

    for kind, share in (("mousePressed", 0.4), ("mouseMoved", 0.5), ("mouseReleased", 0.5)):
        mouse(kind, share)
    part = browser.value(TIMES)
    shown = []
    for _ in range(2):
        for count in (1, 2):
            mouse("mousePressed", 0.2, count)
            mouse("mouseReleased", 0.2, count)
        shown.append(browser.value(TIMES))
    faults = [] if part != start else ["dragging over a plot over time does not enlarge it"]
    if shown[0] == part or shown[1] != start:
        faults.append("a double click does not lead back")
    return faults


def check_choice(browser: Chromium) -> list[str]:
    """Hide a policy, check that it is gone, and show it again by its name in a legend or table."""
    if not browser.value("!!document.getElementById('show-0')"):
        return []
    visible = (
        "[...document.querySelectorAll('.p0')].filter((e) => getComputedStyle(e).display !== 'none').length"
    )
    faults = []
    everything = browser.value(visible)
    browser.click("#show-0")
    if everything == 0 or browser.value(visible) != 0:
        faults.append("the first policy stays visible when it is deselected")
    browser.click("#choice label[for='show-0']")
    if browser.value(visible) != everything:
        faults.append("the first policy does not reappear")
    browser.click("#choice button:last-of-type")
    if browser.value("document.querySelectorAll('#choice :checked').length") != 0:
        faults.append("the button for none does not work")
    browser.click("#choice button")
    if browser.value("document.querySelectorAll('#choice input:not(:checked)').length") != 0:
        faults.append("the button for all does not work")
    return faults


def check_colours(browser: Chromium, scheme: str) -> list[str]:
    """Check that the page follows the system's colour scheme, and the switch in any case."""
    light = "(() => { const c = getComputedStyle(document.body).backgroundColor.match(/\\d+/g); return c[0] > 127; })()"
    faults = []
    if browser.value(light) != (scheme == "light"):
        faults.append(f"colours do not follow the system's {scheme} scheme")
    for name in ("light", "dark"):
        browser.click(f"#theme-{name}")
        if browser.value(light) != (name == "light"):
            faults.append(f"the switch to {name} does not work")
    browser.click("#theme-system")
    return faults


def check(
    browser: Chromium,
    path: Path,
    screenshots: Path | None = None,
    looks: Iterable[tuple[str, str]] = LOOKS,
) -> Iterator[str]:
    """Yield the faults of a page, one sentence each, in each look: a size and a colour scheme."""
    for size, scheme in looks:
        phone = size == "phone"
        browser.open(path, SIZES[size], scheme, phone)
        found = browser.value(FAULTS) + check_colours(browser, scheme) + check_choice(browser)
        if screenshots is not None:
            screenshots.mkdir(parents=True, exist_ok=True)
            browser.picture(screenshots / f"{path.stem}-{size}-{scheme}.png", whole=True)
        found += check_values(browser, phone) + ([] if phone else check_zoom(browser)) + messages(browser)
        yield from (f"{path.name}, {size}, {scheme}: {fault}" for fault in found)


def find_browser(given: str | None) -> str:
    """Return the path of the browser.

    Raises:
        SystemExit: there is no browser.
    """
    found = next(filter(None, map(shutil.which, [given] if given else NAMES)), None)
    if found is None:
        where = f"at {given}" if given else f"({', '.join(NAMES)}) on the path"
        raise SystemExit(
            f"no Chromium {where}; install one (Debian: apt-get install chromium) or give it with --browser"
        )
    return found


def main() -> None:
    """Check the given reports."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--browser", help="program; else the first of " + ", ".join(NAMES))
    parser.add_argument("--screenshots", type=Path, help="folder for pictures")
    options = parser.parse_args()
    missing = [str(path) for path in options.reports if not path.is_file()]
    if missing:
        raise SystemExit(f"no such file: {', '.join(missing)}")
    browser = Chromium(find_browser(options.browser))
    try:
        faults = [f for path in options.reports for f in check(browser, path, options.screenshots)]
    finally:
        browser.close()
    print("\n".join(faults) or f"{len(options.reports)} report(s): nothing wrong")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
