"""Style of the reproductions' figures. matplotlib is imported when they are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = (4.6, 3.0)  # inches
DPI = 100


def new_figure(
    columns: int = 1, rows: int = 1, panel: tuple[float, float] = PANEL
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and its panels, row after row.

    Args:
        columns: panels side by side.
        rows: panels one below the other.
        panel: width and height of a panel, inches.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * panel[0], rows * panel[1]), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def published(axes: Axes, x: Sequence[float], y: Sequence[float], label: str = "published") -> None:
    """Draw a paper's points as black crosses, to distinguish them from ours."""
    axes.plot(x, y, linestyle="none", marker="x", markersize=6, color="black", label=label, zorder=5)


def palette(number: int) -> list[str]:
    """Return the reports' colours; they repeat beyond seven."""
    from kvgym.report.style import PALETTE

    return [PALETTE[place % len(PALETTE)] for place in range(number)]


def draw_to(file: Path, draw: Callable[[Mapping[str, Any]], Figure], data: Mapping[str, Any]) -> None:
    """Draw a figure in the project's style and write it as PNG; create its folder."""
    import matplotlib as mpl

    from kvgym.report.style import STYLE
    from kvgym.utils.files import whole_file

    with mpl.rc_context(STYLE):
        file.parent.mkdir(parents=True, exist_ok=True)
        figure = draw(data)
        _plain_ticks(figure)
        # No software version in the file: equal figures are equal files.
        with whole_file(file) as place:
            figure.savefig(place, dpi=DPI, metadata={"Software": None})


def _plain_ticks(figure: Figure) -> None:
    """Label logarithmic axes that show at most one power of ten with plain numbers, not powers of ten."""
    from matplotlib.ticker import AutoLocator, NullLocator, ScalarFormatter

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            if axis.get_scale() == "log" and math.floor(math.log10(high)) <= math.ceil(math.log10(low)):
                axis.set_major_locator(AutoLocator())
                axis.set_major_formatter(ScalarFormatter(useOffset=False))
                axis.set_minor_locator(NullLocator())
