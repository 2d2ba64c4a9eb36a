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
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from kvgym.experiments.capacity.probing import Probe
from kvgym.experiments.capacity.result import Capacity, CapacityResult
from kvgym.experiments.capacity.targets import Target
from kvgym.experiments.capacity.verdict import BACKLOG
from kvgym.metrics import metric_info
from kvgym.report.chart import Chart, Quantity
from kvgym.report.names import metric_name, title
from kvgym.report.numbers import figures
from kvgym.report.plots import metric_quantity
from kvgym.report.style import INK, STYLE, policy_styles, styled, text_of
from kvgym.utils.files import whole_file

WIDTH, HEIGHT = 9.0, 3.4
TITLE, TITLE_WIDTH = 0.35, 110
"""Height of the figure's title, inches, and width of its lines, characters."""

GROWTH = Quantity("Growth of the backlog")

BEYOND = 30.0
"""End of a logarithmic axis, as a multiple of the target: beyond it, latencies only show an overload."""


@styled
def capacity_curves(result: CapacityResult) -> Chart:
    """Draw the metric of each target against the rate: means over seeds, the target, and the capacity of each policy.

    Only rates that were run on every seed are drawn. A dot marks the capacity with its interval, at the mean of the
    metric there.

    Args:
        result: the search; without targets the growth of the backlog is drawn.
    """
    panels: list[Target | None] = [*result.targets] or [None]
    labels = [c.label for c in result.capacities]
    legend = 0.22 * math.ceil(len(labels) / 4) + 0.1
    chart = Chart(labels, figsize=(WIDTH, HEIGHT * len(panels) + legend + TITLE), layout="constrained")
    chart.suptitle(
        textwrap.fill(result.heading, TITLE_WIDTH).replace("$", r"\$"), x=0.01, ha="left", fontsize=10
    )
    axes = chart.subplots(len(panels), 1, squeeze=False)[:, 0]
    for ax, target in zip(axes, panels, strict=True):
        _draw(chart, ax, result, BACKLOG if target is None else target.metric, target)
    handles, names = axes[0].get_legend_handles_labels()
    chart.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8.5)
    return chart


@styled
def metric_curve(result: CapacityResult, metric: str, *, width: float) -> Chart:
    """Draw one metric against the rate as :func:`capacity_curves` does, with its target if it has one.

    Args:
        result: the search.
        metric: a metric, or :data:`~kvgym.experiments.capacity.verdict.BACKLOG`.
        width: width in inches.
    """
    target = next((t for t in result.targets if t.metric == metric), None)
    chart = Chart([c.label for c in result.capacities], figsize=(width, 0.62 * width), layout="constrained")
    _draw(chart, chart.add_subplot(), result, metric, target)
    return chart


def shown_metrics(result: CapacityResult) -> tuple[str, ...]:
    """Return the metrics of a report: TTFT and TBT, by their targets if they have any, then all other targets."""
    targets = [t.metric for t in result.targets]
    first = [next((m for m in targets if m.startswith(kind)), f"{kind}_p99") for kind in ("ttft", "tbt")]
    return tuple(dict.fromkeys((*first, *targets, *(() if targets else (BACKLOG,)))))


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


def _draw(chart: Chart, ax: Axes, result: CapacityResult, metric: str, target: Target | None) -> None:
    """Draw a metric against the rate: a curve and a mark for each policy, and the target."""
    styles = policy_styles(chart.policies)
    chart.panel(ax, Quantity("Arrivals", "1/s"), GROWTH if metric == BACKLOG else metric_quantity(metric))
    for capacity in result.capacities:
        label, style = capacity.label, styles[capacity.label]
        rates, values = _curve(result, label, metric)
        line = ax.plot(rates, values, color=style.color, linestyle=style.dashes, label=text_of(label))
        chart.record(ax, label, "points", {"x": rates, "y": values}, artists=line)
        _mark(chart, ax, capacity, _at_capacity(result, capacity, metric), style.color)
    _label_axes(ax, metric, target, _range(result))


def _values(probe: Probe, metric: str) -> float:
    """Return a metric of a run, or the growth of its backlog."""
    if metric == BACKLOG:
        return probe.played.measured.get("backlog_growth", math.nan)
    return probe.played.record.metrics[metric]


def _curve(result: CapacityResult, label: str, metric: str) -> tuple[list[float], list[float]]:
    """Return rates, ascending, and the means over seeds of a metric."""
    by_rate: dict[float, list[float]] = defaultdict(list)
    for probe in result.probes:
        if probe.label == label:
            by_rate[probe.rate].append(_values(probe, metric))
    rates = sorted(rate for rate, found in by_rate.items() if len(found) == len(result.seeds))
    return rates, [float(np.mean(by_rate[rate])) for rate in rates]


def _at_capacity(result: CapacityResult, capacity: Capacity, metric: str) -> float:
    """Return the mean over seeds of a metric at the highest rates that passed; NaN if none did."""
    held = dict(zip(result.seeds, capacity.held, strict=True))
    found = [
        _values(probe, metric)
        for probe in result.probes
        if probe.label == capacity.label and probe.rate == held[probe.seed]
    ]
    return float(np.mean(found)) if found else math.nan


def _mark(chart: Chart, ax: Axes, capacity: Capacity, at: float, color: str) -> None:
    """Draw the capacity with its interval, at the value of the metric there."""
    e = capacity.estimate
    if not (e.value > 0 and math.isfinite(at)):
        return
    artists = ax.plot([e.value], [at], "o", color=color, markersize=6)
    if math.isfinite(e.low):
        artists += ax.plot([e.low, e.high], [at, at], color=color, linewidth=4, alpha=0.35)
    values = {"x": [e.value], "y": [at], "x_low": [e.low], "x_high": [e.high]}
    chart.record(
        ax,
        capacity.label,
        "points",
        values,
        artists=artists,
        name=f"{capacity.label}: capacity",
        text=["capacity"],
    )


def _label_axes(ax: Axes, metric: str, target: Target | None, rates: tuple[float, float]) -> None:
    """Draw the target, and label the axes."""
    ax.set_xscale("log")
    ax.set_xlim(*rates)
    _number(ax.xaxis)
    ax.set_xlabel("arrivals per second")
    bound = 0.0 if target is None else target.bound
    if target is not None or metric == BACKLOG:
        ax.axhline(bound, color=INK, linewidth=1, linestyle=(0, (4, 2)))
    if metric == BACKLOG:
        ax.set_title("growth of the backlog, share of the arriving requests")
        return
    info = metric_info(metric)
    unit = "" if info.unit == "1" else f", {info.unit}"
    aim = "no target" if target is None else f"target {str(target)[len(metric) :]}"
    ax.set_title(f"{title(metric_name(metric))}{unit} ({aim})")
    if info.lower_is_better and (target is None or bound > 0):
        ax.set_yscale("log")
        if target is not None:
            low, high = ax.get_ylim()
            ax.set_ylim(max(low, bound / BEYOND), min(high, bound * BEYOND))
        _number(ax.yaxis)


def _number(axis: Axis) -> None:
    """Label a logarithmic axis at 1, 2 and 5 times the powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: figures(float(value), 2)))
    axis.set_minor_formatter(NullFormatter())
