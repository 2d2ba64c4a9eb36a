"""Figures of a comparison. Each function returns a :class:`~kvgym.report.chart.Chart`, which is a matplotlib Figure.

No global state is changed, and nothing is displayed. ``width`` is the width of the figure in inches; without ``legend``
the page must show one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import StepPatch
from matplotlib.ticker import FuncFormatter

from kvgym.errors import ConfigError
from kvgym.experiments.comparison import BOUNDED, Comparison, label_of
from kvgym.metrics import metric_info, scope_of
from kvgym.report import series
from kvgym.report.chart import Chart, Quantity
from kvgym.report.names import metric_name, title
from kvgym.report.numbers import figures
from kvgym.report.style import (
    GRID,
    INK,
    LineStyle,
    log_ticks,
    marked_lines,
    policy_styles,
    styled,
    text_of,
)
from kvgym.runner import SimulationResult

Runs = Comparison | SimulationResult | Mapping[str, SimulationResult]
"""Runs that can be drawn; a comparison needs ``keep_examples=True`` for all figures but the bars."""

THROUGHPUT_BINS = 60
MAX_DOTS = 50
MARKS_APART = 0.15
"""Distance between the markers of a line, as a share of the axes' diagonal."""
WIDTH = 8.0
TIME = Quantity("Time", "s")
LATENCIES = {
    "e2e_latency": Quantity("End-to-end latency", "s"),
    "ttft": Quantity("Time to first token", "s"),
    "tpot": Quantity("Time per output token", "s"),
    "tbt": Quantity("Time between tokens", "s"),
    "longest_gap": Quantity("Longest time between tokens of a request", "s"),
}
FAR = 20.0
"""Ratio between policies above which an axis is logarithmic, or a time axis is cut."""
TAIL = 100.0
"""Ratio of the largest value to a median above which the axis of a distribution is logarithmic."""
CUT = 5.0
"""End of a cut time axis, as a multiple of the shortest run."""


def examples_of(runs: Runs) -> tuple[dict[str, SimulationResult], dict[str, LineStyle]]:
    """Return the single runs to draw by policy, and their styles.

    Raises:
        ConfigError: the comparison has no examples.
    """
    if isinstance(runs, SimulationResult):
        runs = {label_of(runs.policy): runs}
    if isinstance(runs, Comparison):
        if not runs.examples:
            raise ConfigError("this comparison has no example runs; call compare(..., keep_examples=True)")
        return {p: runs.examples[p] for p in runs.policies if p in runs.examples}, policy_styles(
            runs.policies
        )
    return dict(runs), policy_styles(tuple(runs))


def end_of(results: Mapping[str, SimulationResult]) -> float:
    """Return the end of the time axis, in seconds; 1 without runs.

    It is the end of the last iteration of all runs. If one run is much longer than another, see :data:`FAR`, the axis
    is cut so that the others remain visible.
    """
    ends = [float(series.iteration_log(r)["end_time"].max(initial=0.0)) for r in results.values()]
    run = [end for end in ends if end > 0]
    return (CUT * min(run) if far_apart(run) else max(run)) if run else 1.0


def cut_off(results: Mapping[str, SimulationResult]) -> list[str]:
    """Return the policies with runs beyond the end of the time axis."""
    end = end_of(results)
    return [p for p, r in results.items() if series.iteration_log(r)["end_time"].max(initial=0.0) > end]


def far_apart(values: Iterable[float], ratio: float = FAR) -> bool:
    """Whether the largest value is at least ``ratio`` times the smallest positive one."""
    positive = [value for value in values if 0 < value < np.inf]
    return bool(positive) and max(positive) >= ratio * min(positive)


@styled
def latency_bars(
    comparison: Comparison, metric: str = "e2e_latency_mean", *, width: float = WIDTH, dots: bool = True
) -> Chart:
    """Bars of a metric by policy: mean over seeds, 95 % interval, and the single seeds as dots.

    Args:
        comparison: the comparison.
        metric: any metric, see :mod:`kvgym.metrics`.
        width: width in inches.
        dots: whether to draw single seeds.
    """
    size = (width, 0.9 + 0.42 * len(comparison.policies))
    chart = Chart(comparison.policies, figsize=size, layout="constrained")
    draw_bars(chart, chart.add_subplot(), comparison, metric, dots=dots)
    return chart


@styled
def latency_distribution(
    runs: Runs, name: str = "e2e_latency", *, width: float = WIDTH, legend: bool = True
) -> Chart:
    """Empirical distribution of the requests' latencies; with unfinished requests the curve ends below 1.

    Args:
        runs: the runs.
        name: a key of :data:`LATENCIES`; ``"tbt"`` is over all tokens, the others are over requests.
        width: width in inches.
        legend: whether to draw a legend.
    """
    results, styles = examples_of(runs)
    what = "tokens" if name == "tbt" else "requests"
    chart, ax = _single(styles, width, LATENCIES[name], Quantity(f"Share of {what}"))
    draw_distributions(chart, ax, {p: _distribution(result, name) for p, result in results.items()}, styles)
    if legend:
        draw_legend(chart, results, styles)
    return chart


def _distribution(result: SimulationResult, name: str) -> tuple[series.Floats, series.Floats]:
    if name == "tbt":
        return series.token_gaps(result)
    values = series.latencies(result, name)
    counted = int(np.broadcast_to(scope_of(result).counted, len(result.table)).sum())
    return series.distribution(values, counted if name in series.LATENCY_COLUMNS else len(values))


def draw_distributions(
    chart: Chart,
    ax: Axes,
    curves: Mapping[str, tuple[series.Floats, series.Floats]],
    styles: Mapping[str, LineStyle],
) -> None:
    """Draw distribution functions, values and shares by policy, on a logarithmic axis if they are far apart."""
    shown = {policy: (x, y) for policy, (x, y) in curves.items() if len(x)}
    for policy, (x, y) in shown.items():
        draw_steps(chart, ax, np.insert(x, 0, x[0]), np.insert(y, 0, 0.0), policy, styles)
    ax.set_ylim(0, 1.02)
    medians = [float(x[np.searchsorted(y, 0.5 * y[-1])]) for x, y in shown.values()]
    if far_apart(medians) or far_apart([*medians, *(x[-1] for x, _ in shown.values())], TAIL):
        ax.set_xscale("log")
        log_ticks(ax.xaxis)
    else:
        ax.set_xlim(left=0)


@styled
def kv_memory(runs: Runs, *, policies: Sequence[str] | None = None, width: float = WIDTH) -> Chart:
    """KV memory in use over time, one strip per policy, against the capacity.

    Args:
        runs: the runs.
        policies: policies to draw; None = all. The time axis covers all runs in any case.
        width: width in inches.
    """
    results, styles = examples_of(runs)
    drawn = [p for p in results if policies is None or p in policies]
    n = len(drawn)
    chart = Chart(tuple(styles), figsize=(width, 0.8 + 0.85 * n), layout="constrained")
    axes = chart.subplots(n, 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for ax, policy in zip(axes, drawn, strict=True):
        draw_memory(chart, ax, results[policy], policy, styles[policy])
        ax.set_title(text_of(policy), pad=3)
        ax.label_outer()
    axes[-1].set_xlim(0, end_of(results))
    axes[-1].set_xlabel(axis_label(TIME))
    if n > 1:
        chart.supylabel("KV memory in use (tokens)", fontsize="medium")
    else:
        axes[0].set_ylabel("Tokens")
    return chart


@styled
def waiting_queue(runs: Runs, *, width: float = WIDTH, legend: bool = True) -> Chart:
    """Waiting requests over time, counted after the admissions of each iteration.

    Args:
        runs: the runs.
        width: width in inches.
        legend: whether to draw a legend.
    """
    results, styles = examples_of(runs)
    chart, ax = _single(styles, width, TIME, Quantity("Waiting requests"))
    longest = []
    for policy, result in results.items():
        x, y = series.thin_steps(*series.step_series(series.iteration_log(result), "num_waiting"))
        draw_steps(chart, ax, x, y, policy, styles)
        longest.append(float(y.max(initial=0.0)))
    if far_apart(longest):
        ax.set_yscale("log", nonpositive="clip")
        log_ticks(ax.yaxis)
        ax.set_ylim(bottom=0.8)
        ax.set_ylabel(f"{ax.get_ylabel()} (none: below)")
    else:
        ax.set_ylim(bottom=0)
        thousands(ax)
    ax.set_xlim(0, end_of(results))
    if legend:
        draw_legend(chart, results, styles)
    return chart


@styled
def token_throughput(runs: Runs, *, width: float = WIDTH, legend: bool = True) -> Chart:
    """Output tokens per second over time, below the output tokens of arriving requests.

    Args:
        runs: the runs.
        width: width in inches.
        legend: whether to draw a legend.
    """
    results, styles = examples_of(runs)
    edges = np.linspace(0.0, end_of(results), THROUGHPUT_BINS + 1)
    chart = Chart(tuple(styles), figsize=(width, 4.6), layout="constrained")
    top, ax = chart.subplots(2, 1, sharex=True, height_ratios=(1, 2.2))
    table = next(iter(results.values())).table
    arriving = series.rate_bins(table.arrival_time, table.output_len, edges)
    top.stairs(arriving, edges, fill=True, color=GRID, alpha=0.6, label="arriving")
    top.set_title("Arriving work: output tokens of new requests", pad=3)
    chart.panel(top, TIME, Quantity("Tokens arriving", "1/s"))
    chart.record(top, None, "steps", {"x": edges, "y": np.append(arriving, arriving[-1])}, name="arriving")
    chart.panel(ax, TIME, Quantity("Output tokens", "1/s"))
    for policy, result in results.items():
        log = series.iteration_log(result)
        rate = series.rate_bins(log["end_time"], log["num_output_tokens"], edges)
        draw_steps(chart, ax, edges, np.append(rate, rate[-1]), policy, styles)
    ax.set_title("Generated output tokens, including repeats after evictions", pad=3)
    ax.set_xlabel(axis_label(TIME))
    for panel in (top, ax):
        panel.set_ylabel("Tokens/s")
        panel.set_ylim(bottom=0)
        panel.set_xlim(0, edges[-1])
        thousands(panel)
    if legend:
        draw_legend(chart, results, styles)
    return chart


def draw_bars(chart: Chart, ax: Axes, comparison: Comparison, metric: str, *, dots: bool = True) -> None:
    """Draw the bars of :func:`latency_bars` into axes, the first policy on top, with a dashed line for the bound.

    A star marks clairvoyant policies.
    """
    styles = policy_styles(comparison.policies)
    failed = comparison.errors()
    quantity = metric_quantity(metric)
    chart.panel(ax, quantity, Quantity("Policy", names=comparison.policies))
    log = far_apart(comparison.estimate(policy, metric).value for policy in comparison.policies)
    room, least = 0.0, np.inf
    for row, policy in enumerate(comparison.policies):
        estimate, color = comparison.estimate(policy, metric), styles[policy].color
        if not np.isfinite(estimate.value):
            note = "failed" if policy in failed else "no value"
            nothing = ax.annotate(
                note, (0, row), (4, 0), textcoords="offset points", va="center", style="italic"
            )
            chart.assign(policy, [nothing])
            continue
        alpha = 0.4 if policy in comparison.clairvoyant else 0.85
        artists: list[Artist]
        if log:  # a logarithmic axis has no zero for bars to start at
            artists = [
                *ax.plot(estimate.value, row, "o", ms=8, color=color, alpha=alpha, label=text_of(policy))
            ]
        else:
            artists = [
                *ax.barh(row, estimate.value, height=0.62, color=color, alpha=alpha, label=text_of(policy))
            ]
        values, right = comparison.values(policy, metric), estimate.value
        if dots and 1 < len(values) <= MAX_DOTS:
            artists += ax.plot(
                values, np.full(len(values), row + 0.2), "o", ms=3, mfc="white", mec=INK, mew=0.5, zorder=3
            )
            right = max(right, float(values.max()))
        if np.isfinite(estimate.low):
            ends = [[estimate.value - estimate.low], [estimate.high - estimate.value]]
            whisker = ax.errorbar(estimate.value, row, xerr=ends, ecolor=INK, elinewidth=1.3, capsize=3.5)
            artists += whisker.get_children()
            right = max(right, estimate.high)
        artists.append(
            ax.annotate(
                figures(estimate.value), (right, row), (6, 0), textcoords="offset points", va="center"
            )
        )
        room = max(room, right)
        if estimate.value > 0:
            least = min(least, estimate.value, estimate.low if estimate.low > 0 else np.inf)
        values_shown = {"x": estimate.value, "x_low": estimate.low, "x_high": estimate.high, "y": row}
        chart.record(ax, policy, "bars", values_shown, artists=artists)
    marked = [text_of(p) + " *" * (p in comparison.clairvoyant) for p in comparison.policies]
    ax.set_yticks(range(len(comparison.policies)), marked)
    ax.set_ylim(len(comparison.policies) - 0.5, -0.5)
    if comparison.bounds and metric == BOUNDED:
        ax.axvline(comparison.bound().value, color=INK, linewidth=1.2, linestyle=(0, (4, 2)), label="bound")
        least = min(least, comparison.bound().value)
    if log:
        ax.set_xscale("log")
        ax.set_xlim(least / 1.5, room * (room / least) ** 0.15)
        log_ticks(ax.xaxis)
    else:
        ax.set_xlim(0, room * 1.12 if room > 0 else 1.0)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    for policy, label in zip(comparison.policies, ax.get_yticklabels(), strict=True):
        chart.assign(policy, [label])
    ax.set_xlabel(axis_label(quantity) + ", logarithmic" * log)


def draw_memory(chart: Chart, ax: Axes, result: SimulationResult, policy: str, style: LineStyle) -> None:
    """Draw one strip of :func:`kv_memory` into axes."""
    capacity = capacity_of(result)
    x, y = series.thin_steps(*series.step_series(series.iteration_log(result), "kv_tokens"))
    chart.panel(ax, TIME, Quantity("KV memory in use", "tokens"), title=policy)
    artists: list[Artist] = [
        *ax.plot(x, y, drawstyle="steps-post", color=style.color, linewidth=1.0, label=text_of(policy))
    ]
    if len(x) > 1:
        area = StepPatch(y[:-1], x, color=style.color, alpha=0.22, linewidth=0)
        artists.append(ax.add_artist(area))  # faster than stairs, which updates limits at every step
    chart.record(ax, policy, "steps", {"x": x, "y": y}, artists=artists)
    ax.axhline(capacity, color=INK, linewidth=1.0, linestyle=(0, (4, 2)), label="capacity")
    ax.set_ylim(0, capacity * 1.12)
    ax.set_yticks([0, capacity])
    thousands(ax)


def capacity_of(result: SimulationResult) -> int:
    """Return the KV memory of all workers, tokens."""
    return result.system.usable_capacity * len(result.worker)


def draw_legend(chart: Chart, policies: Iterable[str], styles: Mapping[str, LineStyle]) -> None:
    """Draw one legend above the axes, in as many columns as fit."""
    names = [text_of(policy) for policy in policies]
    marked = marked_lines(styles)
    lines = [
        Line2D(
            [], [], color=styles[p].color, linestyle=styles[p].dashes, linewidth=2.2,
            marker=styles[p].marker.name if marked else "",
        )
        for p in policies
    ]  # fmt: skip
    room = 13.1 * chart.get_figwidth()  # letters that fit side by side
    columns = max(1, min(len(names), int(room / (max(map(len, names), default=1) + 7))))
    chart.legend(lines, names, loc="outside upper left", ncols=columns, handlelength=2.2)


def axis_label(quantity: Quantity) -> str:
    """Return the label of an axis."""
    return f"{quantity.label} ({quantity.unit})" if quantity.unit else quantity.label


def metric_quantity(metric: str) -> Quantity:
    """Return a metric as a quantity, see :mod:`kvgym.metrics`."""
    unit = metric_info(metric).unit
    return Quantity(title(metric_name(metric)), "" if unit == "1" else unit)


def _single(styles: Mapping[str, LineStyle], width: float, x: Quantity, y: Quantity) -> tuple[Chart, Axes]:
    chart = Chart(tuple(styles), figsize=(width, 3.3), layout="constrained")
    ax = chart.add_subplot()
    chart.panel(ax, x, y)
    ax.set_xlabel(axis_label(x))
    ax.set_ylabel(axis_label(y))
    return chart, ax


def draw_steps(
    chart: Chart, ax: Axes, x: series.Floats, y: series.Floats, policy: str, styles: Mapping[str, LineStyle]
) -> None:
    """Draw a policy's step function."""
    style = styles[policy]
    marks: dict[str, Any] = {}
    if marked_lines(styles):
        start = list(styles).index(policy) / len(styles)  # different places for each policy
        marks = {"marker": style.marker.name, "markevery": (start * MARKS_APART, MARKS_APART), "ms": 4.5}
    lines = ax.plot(
        x,
        y,
        drawstyle="steps-post",
        label=text_of(policy),
        color=style.color,
        linestyle=style.dashes,
        **marks,
    )
    chart.record(ax, policy, "steps", {"x": x, "y": y}, artists=lines)


def thousands(ax: Axes) -> None:
    """Format the numbers of the vertical axis with thousands separators."""
    ax.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if value == int(value) else f"{value:g}")
    )
