"""Frame of all reports: one HTML file with figures, the numbers behind them, styles and a script.

The file is self-contained. Style sheets alone implement the choice of policies and colours. The script draws the
figures from their numbers when the page is opened, and shows the values under the pointer. The tables need no script.
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

from kvgym.experiments.labels import label_note, short_labels, shortener
from kvgym.report.alike import joint_policies
from kvgym.report.chart import Chart, policy_styles
from kvgym.report.colours import PALETTE, RAMP
from kvgym.report.local_paths import in_texts, strip_local_paths
from kvgym.report.sections import as_yaml, definitions
from kvgym.utils.files import write_text as write_whole
from kvgym.utils.version import __version__, install_command

_ASSETS = files("kvgym.report") / "assets"
_WHOLE = ("command", "code", "configuration")
"""Variables of a template that keep whole labels."""


@dataclass(frozen=True)
class ShownChart:
    """The name of a picture, and the policy that hides it as a whole, if any."""

    name: str
    policy: str | None


@dataclass(frozen=True)
class ShownFigure:
    """A figure of the page, with one or several pictures."""

    title: str
    caption: str
    charts: tuple[ShownChart, ...]
    legend: tuple[tuple[str, ...], ...]
    wide: bool


class Page:
    """Contents of a report, collected figure by figure.

    Args:
        policies: all policies, in order, which determines their colours.
        markers: whether legends show the markers of points; always if there are more policies than colours, as lines
            then have markers too.
    """

    def __init__(self, policies: Sequence[str], *, markers: bool = False) -> None:
        self.policies = tuple(policies)
        self._short = short_labels(self.policies)
        self._places = {name: i for i, pair in enumerate(self._short.items()) for name in pair}
        self.shorten = shortener(self.policies)
        self.styles = policy_styles(self.policies)
        self.figures: list[ShownFigure] = []
        self.script = Markup(_asset("figures.js") + _asset("page.js"))
        self._marked_lines = len(self.policies) > len(PALETTE)
        self._markers = markers or self._marked_lines
        self._charts: dict[str, dict[str, Any]] = {}
        self._joint: set[tuple[int, ...]] = set()

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
            name: unique name of letters.
            charts: its picture; or several, consumed one by one, each with the only policy that it shows, or None.
            caption: caption.
            title: heading.
            legend: policies in the legend; those of a joint line share an entry.
            wide: whether it takes the whole width, with pictures side by side.
        """
        pairs: Iterable[tuple[Chart, str | None]] = [(charts, None)] if isinstance(charts, Chart) else charts
        shown, joint = [], []
        for i, (chart, policy) in enumerate(pairs):
            joint += joint_policies([chart])
            own = name if isinstance(charts, Chart) else f"{name}-{i}"
            label = caption if policy is None else f"{policy}: {caption}"
            self._charts[own] = in_texts(chart.data(self.policies, label), self.shorten)
            shown.append(ShownChart(own, policy))
        self._joint.update(tuple(self._places[p] for p in group) for group in joint)
        entries = {policy: next((g for g in joint if policy in g), (policy,)) for policy in legend}
        keys = tuple(dict.fromkeys(entries.values()))
        self.figures.append(ShownFigure(title, caption, tuple(shown), keys, wide))

    @property
    def zooms(self) -> bool:
        """Whether a figure has an axis of which readers can choose a part."""
        return any(axis["start"] for axis in self._x_axes())

    @property
    def starts(self) -> bool:
        """Whether such a figure shows a part at first."""
        return any(axis["start"] not in (None, [axis["low"], axis["high"]]) for axis in self._x_axes())

    def _x_axes(self) -> list[dict[str, Any]]:
        return [panel["x"] for chart in self._charts.values() for panel in chart["panels"]]

    @property
    def css(self) -> Markup:
        """The style sheet: the common part, and rules that hide deselected policies."""
        rules = [
            f":root:has(#show-{i}:not(:checked)) .p{i} {{ display: none; }}\n"
            f":root:has(#show-{i}:not(:checked)) .k{i} {{ opacity: .5; text-decoration: line-through; }}\n"
            for i in range(len(self.policies))
        ]
        for group in sorted(self._joint):
            none = "".join(f":has(#show-{i}:not(:checked))" for i in group)
            rules.append(f":root{none} .j{'-'.join(map(str, group))} {{ display: none; }}\n")
        return Markup(_asset("page.css") + "".join(rules))

    @property
    def script_hash(self) -> str:
        """Hash of the page's script, so that a browser runs no other."""
        digest = hashlib.sha256(self.script.encode()).digest()
        return f"sha256-{base64.b64encode(digest).decode()}"

    @property
    def data(self) -> Markup:
        """The numbers of the figures, as JSON for a script element.

        ``policies`` and their ``styles``, the colours of a ``ramp``, whether lines have markers (``marked``), and
        ``charts`` by the picture's name in ``data-chart``, see :meth:`kvgym.report.chart.Chart.data`.
        """
        content = {
            "policies": [*self._short.values()], "styles": [self.styles[p]._asdict() for p in self.policies],
            "ramp": RAMP, "marked": self._marked_lines, "charts": self._charts,
        }  # fmt: skip
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return Markup(text.replace("<", "\\u003c"))

    def mark(self, policy: str) -> str:
        """Return the CSS class of elements that are hidden with a policy, given by its whole or its short label."""
        return f"p{self._places[policy]}"

    def joint_key(self, policies: Sequence[str]) -> Markup:
        """Return the names of policies that share a line, with the style of the first."""
        first, *others = policies
        names = [self.key(first), *(self.key(policy, plain=True) for policy in others)]
        return Markup("<span>{}{}</span>").format(Markup(", ").join(names), " (one line)" if others else "")

    def key(self, policy: str, *, plain: bool = False) -> Markup:
        """Return a policy's short label with its line style; a click on it hides and shows the policy."""
        number = self._places[policy]
        whole = self.policies[number]
        shown = ("" if plain else self._line(whole)) + _breakable(self._short[whole])
        if len(self.policies) == 1:
            return Markup('<span class="key">{}</span>').format(shown)
        return Markup('<label class="key k{}" for="show-{}">{}</label>').format(number, number, shown)

    def _line(self, policy: str) -> Markup:
        style = self.styles[policy]
        dashes = " ".join(f"{2 * float(length):g}" for length in style.dashes.split())
        drawn = Markup('<path d="M1 5H25" stroke="{}" stroke-width="3" stroke-dasharray="{}"/>').format(
            style.color, dashes
        )
        if self._markers:
            drawn += Markup('<path d="{}" fill="{}" transform="translate(13 5)"/>').format(
                style.marker, style.color
            )
        return Markup('<svg class="swatch" viewBox="0 0 26 10" aria-hidden="true">{}</svg>').format(drawn)

    def render(
        self, template: str, configuration: Iterable[tuple[str, Any]], command: str, **values: Any
    ) -> str:
        """Return the page as text.

        Args:
            template: name of an asset that extends ``page.html``.
            configuration: titled contents that are shown as YAML.
            command: the command line that makes the page, "" if it is unknown.
            values: variables of the template, at least ``title`` and ``lead``.
        """
        values |= {
            "configuration": as_yaml(configuration, command),
            "definitions": definitions(),
            "command": command,
        }
        environment = Environment(
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            loader=FunctionLoader(_asset),
        )
        texts = {name: value for name, value in values.items() if name not in _WHOLE}
        values = strip_local_paths({**values, **in_texts(texts, self.shorten)})
        values["notes"] = [*values.get("notes", ()), *strip_local_paths(label_note(self.policies))]
        shared = {
            "page": self,
            "key": self.key,
            "joint_key": self.joint_key,
            "mark": self.mark,
            "knows": self._places.__contains__,
            "inline": _inline,
        }
        about = {"version": __version__, "install": install_command("report")}
        return environment.get_template(template).render(**shared, **about, **values)


def write_text(text: str, path: str | Path) -> Path:
    """Write a page to a file; folders are created."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, text)
    return target


def _breakable(label: str) -> Markup:
    """Return a label that may be broken between the words of a name and between its options."""
    text = escape(label)
    for sign in ":,_":
        text = text.replace(sign, Markup(f"{sign}<wbr>"))
    return text


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _inline(parts: list[dict[str, Any]]) -> Markup:
    """Return a text with its code parts marked up."""
    return Markup("").join(
        Markup("<code>{}</code>").format(p["text"]) if p["code"] else escape(p["text"]) for p in parts
    )
