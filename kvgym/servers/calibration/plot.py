"""Plot the predicted against the measured times of the held-out rows."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from kvgym.batch_time.deployments.deployment import CalibratedHardware
from kvgym.errors import ConfigError
from kvgym.utils.files import whole_file

FORMATS = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Check, before a long calibration, that the plot can be drawn.

    Raises:
        ConfigError: matplotlib is not installed, or the format is unknown.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"a plot must end in {', '.join(FORMATS)}, got {path}")
    if find_spec("matplotlib") is None:
        raise ConfigError('plots need matplotlib: pip install "kvgym[pictures]"')


def draw(hardware: CalibratedHardware, path: Path) -> None:
    """Draw one panel per operator group, on logarithmic axes, with the line of equal times.

    Args:
        hardware: the hardware file.
        path: file to write; its suffix determines the format.

    Raises:
        ConfigError: matplotlib is not installed, the format is unknown, or the file cannot be written.
    """
    check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    groups = hardware.comparisons()
    columns = min(len(groups), 3)
    rows = -(-len(groups) // columns)
    figure = Figure(figsize=(4 * columns, 3.6 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for i, (name, (predicted, measured)) in enumerate(groups.items()):
        axes = figure.add_subplot(rows, columns, i + 1)
        ends = [0.8 * min(predicted.min(), measured.min()), 1.25 * max(predicted.max(), measured.max())]
        axes.plot(ends, ends, color="0.6", linewidth=1)
        axes.plot(measured, predicted, ".", markersize=3, color="#1f77b4")
        error = np.abs(predicted / measured - 1)
        axes.set(
            xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured, ms", ylabel="predicted, ms"
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(numticks=6))
            axis.set_minor_formatter(NullFormatter())
        axes.set_title(
            f"{name}\nmedian error {np.median(error):.1%}, {len(measured):,} held-out rows", fontsize=9
        )
    figure.suptitle(hardware.description)
    try:
        with whole_file(path) as place:
            figure.savefig(place, dpi=120)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
