"""Style of pictures that Matplotlib draws, for example for ``kvgym server validate``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from kvgym.report.colours import GRID as GRID
from kvgym.report.colours import INK as INK
from kvgym.report.colours import PALETTE as PALETTE

DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
MAX_LABEL = 36

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

P = ParamSpec("P")
R = TypeVar("R")


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a figure function so that it draws in :data:`STYLE`, whatever the user's settings."""

    @wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        from matplotlib import rc_context

        with rc_context(STYLE):
            return function(*args, **kwargs)

    return inner


def text_of(label: str) -> str:
    """Return a label for a figure, with formulas escaped, shortened if it is too wide."""
    short = label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"
    return short.replace("$", r"\$")
