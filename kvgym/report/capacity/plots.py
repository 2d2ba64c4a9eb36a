"""Curves of a capacity search: the metric of each target against the arrival rate. Imports matplotlib."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from kvgym.experiments.capacity.result import Capacity, CapacityResult
from kvgym.experiments.capacity.targets import Target
from kvgym.metrics import metric_info
from kvgym.report.numbers import figures
from kvgym.report.style import INK, STYLE, policy_styles, styled, text_of
from kvgym.utils.files import whole_file

WIDTH, HEIGHT = 9.0, 3.4
TITLE, TITLE_WIDTH = 0.35, 110
"""Height of the figure's title, inches, and width of its lines, characters."""

BEYOND = 30.0
"""End of a logarithmic axis, as a multiple of the target: beyond it, latencies only show an overload."""


@styled
def capacity_curves(result: CapacityResult) -> Figure:
    """Draw the metric of each target against the rate: means over seeds, the target, and the capacity of each policy.

    Only rates that were run on every seed are drawn. A dot marks the capacity with its interval, at the mean of the
    metric there.

    Args:
        result: the search; without targets the growth of the backlog is drawn.
    """
    styles = policy_styles([c.label for c in result.capacities])
    panels: list[Target | None] = [*result.targets] or [None]
    legend = 0.22 * math.ceil(len(result.capacities) / 4) + 0.1
    figure = Figure(figsize=(WIDTH, HEIGHT * len(panels) + legend + TITLE), layout="constrained")
    figure.suptitle(
        textwrap.fill(result.heading, TITLE_WIDTH).replace("$", r"\$"), x=0.01, ha="left", fontsize=10
    )
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for ax, target in zip(axes, panels, strict=True):
        for capacity in result.capacities:
            rates, values = _curve(result, capacity.label, target)
            style = styles[capacity.label]
            ax.plot(rates, values, color=style.color, linestyle=style.dashes, label=text_of(capacity.label))
            _mark(ax, capacity, target, style.color)
        _label_axes(ax, target, _range(result))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8.5)
    return figure


def write_capacity_figure(result: CapacityResult, path: str | Path) -> Path:
    """Write :func:`capacity_curves` to a file that ends in .png, .svg or .pdf; folders are created."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE), whole_file(target) as place:
        capacity_curves(result).savefig(place, metadata={"Date": None} if target.suffix == ".svg" else None)
    return target


def _range(result: CapacityResult) -> tuple[float, float]:
    """Return the range of rates to show: around the capacities, or all rates if there are none."""
    found = [c.estimate.value for c in result.capacities if c.estimate.value > 0]
    rates = [probe.rate for probe in result.probes]
    return (min(found) * 0.45, max(found) * 2.2) if found else (min(rates), max(rates))


def _curve(result: CapacityResult, label: str, target: Target | None) -> tuple[list[float], list[float]]:
    """Return rates, ascending, and the means over seeds of a metric."""
    by_rate: dict[float, list[float]] = defaultdict(list)
    for probe in result.probes:
        if probe.label == label:
            played = probe.played
            found = played.measured.get("backlog_growth", math.nan)
            by_rate[probe.rate].append(found if target is None else played.record.metrics[target.metric])
    rates = sorted(rate for rate, found in by_rate.items() if len(found) == len(result.seeds))
    return rates, [float(np.mean(by_rate[rate])) for rate in rates]


def _mark(ax: Axes, capacity: Capacity, target: Target | None, color: str) -> None:
    """Draw the capacity with its interval, at the value of the metric there."""
    e = capacity.estimate
    at = math.nan if target is None else capacity.values[target.metric]
    if e.value > 0 and math.isfinite(at):
        ax.plot([e.value], [at], "o", color=color, markersize=5)
        if math.isfinite(e.low):
            ax.plot([e.low, e.high], [at, at], color=color, linewidth=4, alpha=0.35)


def _label_axes(ax: Axes, target: Target | None, rates: tuple[float, float]) -> None:
    """Draw the target, and label the axes."""
    ax.set_xscale("log")
    ax.set_xlim(*rates)
    _number(ax.xaxis)
    ax.set_xlabel("arrivals per second")
    bound = 0.0 if target is None else target.bound
    ax.axhline(bound, color=INK, linewidth=1, linestyle=(0, (4, 2)))
    if target is None:
        ax.set_title("growth of the backlog, share of the arriving requests")
        return
    info = metric_info(target.metric)
    unit = "" if info.unit == "1" else f", {info.unit}"
    ax.set_title(f"{target.metric}{unit} (target {str(target)[len(target.metric) :]})")
    if info.lower_is_better and bound > 0:
        ax.set_yscale("log")
        low, high = ax.get_ylim()
        ax.set_ylim(max(low, bound / BEYOND), min(high, bound * BEYOND))
        _number(ax.yaxis)


def _number(axis: Axis) -> None:
    """Label a logarithmic axis at 1, 2 and 5 times the powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: figures(float(value), 2)))
    axis.set_minor_formatter(NullFormatter())
