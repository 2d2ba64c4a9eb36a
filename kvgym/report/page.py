"""The frame that all reports share: one HTML file with its figures, the numbers behind them, styles and a script.

The file needs nothing else. Choosing policies and colours is done by style sheets alone; the script adds the values
under the pointer. Without it everything can still be read and printed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from kvgym.report.chart import Chart
from kvgym.report.local_paths import without_folders
from kvgym.report.style import policy_styles
from kvgym.report.svg import inline_svg
from kvgym.utils.files import write_text as write_whole
from kvgym.version import __version__, install_command

CHART_WIDTH = 5.6
"""Inches: as wide as a figure may be so that its text can be read on a phone and beside another one on a screen."""
_ASSETS = files("kvgym.report") / "assets"


@dataclass(frozen=True)
class ShownChart:
    """A picture of a figure: its element, and whose it is alone, if it is hidden with a policy as a whole."""

    svg: Markup
    policy: str | None


@dataclass(frozen=True)
class ShownFigure:
    """A figure of the page, of one or several pictures."""

    title: str
    caption: str
    charts: tuple[ShownChart, ...]
    legend: tuple[str, ...]
    wide: bool


class Page:
    """What a report shows, collected figure by figure.

    Args:
        policies: all policies, in order: their places give them colours.
        markers: whether legends show the markers of points, see :data:`kvgym.report.style.MARKERS`.
    """

    def __init__(self, policies: Sequence[str], *, markers: bool = False) -> None:
        self.policies = tuple(policies)
        self.styles = policy_styles(self.policies)
        self.figures: list[ShownFigure] = []
        self.script = Markup(_asset("page.js"))
        self._markers = markers
        self._charts: dict[str, list[dict[str, Any]]] = {}

    def add(
        self,
        name: str,
        charts: Chart | Iterable[tuple[Chart, str | None]],
        caption: str,
        *,
        title: str = "",
        legend: Sequence[str] = (),
        wide: bool = False,
    ) -> None:
        """Add a figure.

        Args:
            name: letters, of no other figure.
            charts: its picture; or several, each with the policy that it shows alone, or None, taken one by one.
            caption: what it shows.
            title: heading.
            legend: policies to name above it.
            wide: whether it takes the whole width, pictures beside each other.
        """
        pairs: Iterable[tuple[Chart, str | None]] = [(charts, None)] if isinstance(charts, Chart) else charts
        shown = []
        for i, (chart, policy) in enumerate(pairs):
            own = name if isinstance(charts, Chart) else f"{name}-{i}"
            label = caption if policy is None else f"{policy}: {caption}"
            svg, self._charts[own] = inline_svg(chart, own, label)
            shown.append(ShownChart(Markup(svg), policy))
        self.figures.append(ShownFigure(title, caption, tuple(shown), tuple(legend), wide))

    @property
    def css(self) -> Markup:
        """The style sheet: that of all pages, and what hides the policies that are not chosen."""
        rules = [
            f":root:has(#show-{i}:not(:checked)) .p{i} {{ display: none; }}\n"
            f":root:has(#show-{i}:not(:checked)) .k{i} {{ opacity: .5; text-decoration: line-through; }}\n"
            for i in range(len(self.policies))
        ]
        return Markup(_asset("page.css") + "".join(rules))

    @property
    def script_hash(self) -> str:
        """What lets a browser run the page's script and no other."""
        digest = hashlib.sha256(self.script.encode()).digest()
        return f"sha256-{base64.b64encode(digest).decode()}"

    @property
    def data(self) -> Markup:
        """The numbers behind the figures, as JSON that can stand in a script element.

        ``policies`` and their ``colors``, and ``charts`` by the name that the picture has in ``data-chart``, see
        :meth:`kvgym.report.chart.Chart.data`.
        """
        colors = [self.styles[p].color for p in self.policies]
        content = {"policies": self.policies, "colors": colors, "charts": self._charts}
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return Markup(text.replace("<", "\\u003c"))

    def mark(self, policy: str) -> str:
        """Return the class of what is hidden with a policy."""
        return f"p{self.policies.index(policy)}"

    def key(self, policy: str) -> Markup:
        """Return a policy's name with how it is drawn; a click on it hides and shows the policy."""
        number = self.policies.index(policy)
        line = self._line(policy)
        if len(self.policies) == 1:
            return Markup('<span class="key">{}{}</span>').format(line, policy)
        return Markup('<label class="key k{}" for="show-{}">{}{}</label>').format(
            number, number, line, policy
        )

    def _line(self, policy: str) -> Markup:
        style = self.styles[policy]
        dashes = "" if style.dashes == "-" else " ".join(f"{2 * length:g}" for length in style.dashes[1])
        drawn = Markup('<path d="M1 5H25" stroke="{}" stroke-width="3"{}/>').format(
            style.color, Markup(' stroke-dasharray="{}"').format(dashes) if dashes else ""
        )
        if self._markers:
            shape = style.marker.path
            drawn += Markup('<path d="{}" fill="{}"/>').format(shape, style.color)
        return Markup('<svg class="swatch" viewBox="0 0 26 10" aria-hidden="true">{}</svg>').format(drawn)

    def render(self, template: str, **values: Any) -> str:
        """Return the page as text.

        Args:
            template: name of an asset that extends ``page.html``.
            values: what it shows, at least ``title`` and ``lead``.
        """
        environment = Environment(
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            loader=FunctionLoader(_asset),
        )
        values = without_folders(values)
        shared = {"page": self, "key": self.key, "mark": self.mark, "inline": _inline}
        about = {"version": __version__, "install": install_command("report")}
        return environment.get_template(template).render(**shared, **about, **values)


def write_text(text: str, path: str | Path) -> Path:
    """Write a page to a file; folders are created."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, text)
    return target


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _inline(parts: list[dict[str, Any]]) -> Markup:
    """Return a text whose code parts are marked up as such."""
    return Markup("").join(
        Markup("<code>{}</code>").format(p["text"]) if p["code"] else escape(p["text"]) for p in parts
    )
