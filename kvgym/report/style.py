"""Style of all figures: colours, dashes, fonts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from kvgym.report.colours import GRID as GRID
from kvgym.report.colours import INK as INK
from kvgym.report.colours import PALETTE as PALETTE

DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
MAX_LABEL = 36


class Marker(NamedTuple):
    """A marker: matplotlib's name, and an SVG path around (13, 5), 8 units wide."""

    name: str
    path: str


MARKERS = (
    Marker("o", "M9 5a4 4 0 1 0 8 0a4 4 0 1 0-8 0z"),
    Marker("s", "M9.5 1.5h7v7h-7z"),
    Marker("^", "M13 .5L17.5 9h-9z"),
    Marker("D", "M13 0l5 5l-5 5l-5-5z"),
)
"""One per dash pattern, in the same order."""

STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "figure.dpi": 100,
    "svg.fonttype": "none",
    "svg.hashsalt": "kvgym",
}

PLAIN = FuncFormatter(lambda value, _: f"{value:,.10g}")
"""Axis numbers without exponents, with thousands separators."""

P = ParamSpec("P")
F = TypeVar("F", bound=Figure)


class LineStyle(NamedTuple):
    """Style of a policy in all figures; the marker is for points, and for lines if colours do not suffice."""

    color: str
    dashes: Any
    marker: Marker = MARKERS[0]


def styled(function: Callable[P, F]) -> Callable[P, F]:
    """Decorate a figure function so that it draws in :data:`STYLE`, whatever the user's settings."""

    @wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> F:
        with mpl.rc_context(STYLE):
            return function(*args, **kwargs)

    return inner


def policy_styles(policies: Sequence[str]) -> dict[str, LineStyle]:
    """Return colour, dashes and marker of each policy by its index; all different up to 28 policies."""
    turns = [divmod(i, len(PALETTE)) for i in range(len(policies))]
    return {
        p: LineStyle(PALETTE[i], DASHES[turn % len(DASHES)], MARKERS[turn % len(MARKERS)])
        for p, (turn, i) in zip(policies, turns, strict=True)
    }


def marked_lines(policies: Collection[str]) -> bool:
    """Whether lines of these policies need markers, as there are more policies than colours."""
    return len(policies) > len(PALETTE)


def text_of(label: str) -> str:
    """Return a label for a figure, with formulas escaped, shortened if it is too wide."""
    short = label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"
    return short.replace("$", r"\$")


def log_ticks(axis: Any) -> None:
    """Use plain numbers on a logarithmic axis; its limits must be set."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 500 else (1.0,)))
    axis.set_major_formatter(PLAIN)
    axis.set_minor_formatter(NullFormatter())
