"""How figures look: colours, dashes, fonts; the same for every figure of the project."""

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
    """A shape of points: matplotlib's name, and a path about (13, 5), 8 units across."""

    name: str
    path: str


MARKERS = (
    Marker("o", "M9 5a4 4 0 1 0 8 0a4 4 0 1 0-8 0z"),
    Marker("s", "M9.5 1.5h7v7h-7z"),
    Marker("^", "M13 .5L17.5 9h-9z"),
    Marker("D", "M13 0l5 5l-5 5l-5-5z"),
)
"""As many as there are dashes; a policy's is in the place of its dashes."""

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
"""Numbers at an axis: no exponents, commas between thousands."""

P = ParamSpec("P")
F = TypeVar("F", bound=Figure)


class LineStyle(NamedTuple):
    """How a policy is drawn, everywhere; the marker is that of points, and of lines where colours do not suffice."""

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
    """Return colour, dashes and marker for each policy by its place in the list; no two alike up to 28."""
    turns = [divmod(i, len(PALETTE)) for i in range(len(policies))]
    return {
        p: LineStyle(PALETTE[i], DASHES[turn % len(DASHES)], MARKERS[turn % len(MARKERS)])
        for p, (turn, i) in zip(policies, turns, strict=True)
    }


def marked_lines(policies: Collection[str]) -> bool:
    """Whether lines of so many policies have markers, as colours alone do not tell them apart."""
    return len(policies) > len(PALETTE)


def text_of(label: str) -> str:
    """Return a label to be drawn as it is: no formulas, and not wider than the figure can bear."""
    short = label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"
    return short.replace("$", r"\$")


def log_ticks(axis: Any) -> None:
    """Put plain numbers at a logarithmic axis, whose limits are set."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 500 else (1.0,)))
    axis.set_major_formatter(PLAIN)
    axis.set_minor_formatter(NullFormatter())
