"""Figures of a comparison. Each function returns a matplotlib Figure; nothing global is touched or shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from kvgym.errors import ConfigError
from kvgym.experiments.comparison import Comparison, label_of
from kvgym.metrics import metric_info
from kvgym.report import series
from kvgym.report.numbers import figures
from kvgym.runner import SimulationResult

Runs = Comparison | SimulationResult | Mapping[str, SimulationResult]
"""What a figure can be made of; a comparison needs ``keep_examples=True`` for all but the bars."""

INK = "#1f2328"
"""Colour of text and axes."""
GRID = "#8c959f"
# Okabe and Ito's palette, safe for colour-blind readers, without its yellow and black, which vanish on light
# and on dark pages.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
THROUGHPUT_BINS = 60
MAX_DOTS = 50
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


class LineStyle(NamedTuple):
    """How a policy is drawn, everywhere."""

    color: str
    dashes: Any


def styled(function: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorate a figure function so that it draws in :data:`STYLE`, whatever the user's settings."""

    @wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with mpl.rc_context(STYLE):
            return function(*args, **kwargs)

    return inner


def policy_styles(policies: Sequence[str]) -> dict[str, LineStyle]:
    """Return a colour and dashes for each policy by its place in the list; no two alike up to 28."""
    count = len(PALETTE)
    return {
        p: LineStyle(PALETTE[i % count], DASHES[i // count % len(DASHES)]) for i, p in enumerate(policies)
    }


def text_of(label: str) -> str:
    """Return a label to be drawn as it is: no formulas, and not wider than the figure can bear."""
    short = label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"
    return short.replace("$", r"\$")


def examples_of(runs: Runs) -> tuple[dict[str, SimulationResult], dict[str, LineStyle]]:
    """Return the single runs to draw, by policy, and how to draw them.

    Raises:
        ConfigError: a comparison that kept no examples.
    """
    if isinstance(runs, SimulationResult):
        runs = {label_of(runs.policy): runs}
    if isinstance(runs, Comparison):
        if not runs.examples:
            raise ConfigError("this comparison kept no example runs; call compare(..., keep_examples=True)")
        return {p: runs.examples[p] for p in runs.policies if p in runs.examples}, policy_styles(
            runs.policies
        )
    return dict(runs), policy_styles(tuple(runs))


def end_of(results: Mapping[str, SimulationResult]) -> float:
    """Return when the last iteration of all runs ended, in seconds; 1 where there is none."""
    ends = [float(series.iteration_log(r)["end_time"].max(initial=0.0)) for r in results.values()]
    return max(ends, default=0.0) or 1.0


@styled
def latency_bars(comparison: Comparison, metric: str = "e2e_latency_mean") -> Figure:
    """Bars of a metric by policy: mean over seeds, 95 % interval, and the single seeds as dots.

    Args:
        comparison: the comparison.
        metric: any metric, see :mod:`kvgym.metrics`.
    """
    figure = Figure(figsize=(8, 0.9 + 0.42 * len(comparison.policies)), layout="constrained")
    draw_bars(figure.add_subplot(), comparison, metric)
    return figure


@styled
def latency_distribution(runs: Runs, name: str = "e2e_latency") -> Figure:
    """Empirical distribution of the requests' latencies; requests that never finished stay missing from 1.

    Args:
        runs: what to draw.
        name: ``"e2e_latency"`` or ``"ttft"``.
    """
    results, styles = examples_of(runs)
    figure, ax = _single()
    for policy, result in results.items():
        x, y = series.distribution(series.latencies(result, name), len(result.table))
        if len(x):
            start = (np.insert(x, 0, x[0]), np.insert(y, 0, 0.0))
            ax.plot(*start, drawstyle="steps-post", **_line(policy, styles))
    ax.set_xlabel({"e2e_latency": "End-to-end latency (s)", "ttft": "Time to first token (s)"}[name])
    ax.set_ylabel("Share of requests")
    ax.set_ylim(0, 1.02)
    ax.set_xlim(left=0)
    _legend(figure, results, styles)
    return figure


@styled
def kv_memory(runs: Runs) -> Figure:
    """KV memory in use over time, one strip per policy, against the capacity."""
    results, styles = examples_of(runs)
    n = len(results)
    figure = Figure(figsize=(8, 0.8 + 0.85 * n), layout="constrained")
    axes = figure.subplots(n, 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for ax, (policy, result) in zip(axes, results.items(), strict=True):
        draw_memory(ax, result, policy, styles[policy])
        ax.set_title(text_of(policy), pad=3)
        ax.label_outer()
    axes[-1].set_xlim(0, end_of(results))
    axes[-1].set_xlabel("Time (s)")
    figure.supylabel("KV memory in use (tokens)", fontsize="medium")
    return figure


@styled
def waiting_queue(runs: Runs) -> Figure:
    """Waiting requests over time, counted after the admissions of each iteration."""
    results, styles = examples_of(runs)
    figure, ax = _single()
    for policy, result in results.items():
        x, y = series.thin_steps(*series.step_series(series.iteration_log(result), "num_waiting"))
        ax.plot(x, y, drawstyle="steps-post", **_line(policy, styles))
    ax.set_xlabel("Time (s)")
    ax.set_ylabel("Waiting requests")
    ax.set_ylim(bottom=0)
    ax.set_xlim(0, end_of(results))
    _thousands(ax)
    _legend(figure, results, styles)
    return figure


@styled
def token_throughput(runs: Runs) -> Figure:
    """Output tokens per second over time, below the output tokens that arriving requests ask for."""
    results, styles = examples_of(runs)
    edges = np.linspace(0.0, end_of(results), THROUGHPUT_BINS + 1)
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    top, ax = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2.2))
    table = next(iter(results.values())).table
    arriving = series.rate_bins(table.arrival_time, table.output_len, edges)
    top.stairs(arriving, edges, fill=True, color=GRID, alpha=0.6, label="arriving")
    top.set_title("Arriving work: output tokens that new requests ask for", pad=3)
    for policy, result in results.items():
        log = series.iteration_log(result)
        rate = series.rate_bins(log["end_time"], log["num_output_tokens"], edges)
        ax.plot(edges, np.append(rate, rate[-1]), drawstyle="steps-post", **_line(policy, styles))
    ax.set_title("Output tokens generated, repeats after evictions included", pad=3)
    ax.set_xlabel("Time (s)")
    for panel in (top, ax):
        panel.set_ylabel("Tokens/s")
        panel.set_ylim(bottom=0)
        panel.set_xlim(0, edges[-1])
        _thousands(panel)
    _legend(figure, results, styles)
    return figure


def draw_bars(ax: Axes, comparison: Comparison, metric: str, *, dots: bool = True) -> None:
    """Draw the bars of :func:`latency_bars` into axes, the first policy on top."""
    styles = policy_styles(comparison.policies)
    failed = comparison.errors()
    unit = metric_info(metric).unit
    room = 0.0
    for row, policy in enumerate(comparison.policies):
        estimate, color = comparison.estimate(policy, metric), styles[policy].color
        if not np.isfinite(estimate.value):
            note = "failed" if policy in failed else "no value"
            ax.annotate(note, (0, row), (4, 0), textcoords="offset points", va="center", style="italic")
            continue
        ax.barh(row, estimate.value, height=0.62, color=color, alpha=0.85, label=text_of(policy))
        values, right = comparison.values(policy, metric), estimate.value
        if dots and 1 < len(values) <= MAX_DOTS:
            ax.plot(
                values, np.full(len(values), row + 0.2), "o", ms=3, mfc="white", mec=INK, mew=0.5, zorder=3
            )
            right = max(right, float(values.max()))
        if np.isfinite(estimate.low):
            ends = [[estimate.value - estimate.low], [estimate.high - estimate.value]]
            ax.errorbar(estimate.value, row, xerr=ends, ecolor=INK, elinewidth=1.3, capsize=3.5)
            right = max(right, estimate.high)
        ax.annotate(figures(estimate.value), (right, row), (6, 0), textcoords="offset points", va="center")
        room = max(room, right)
    ax.set_yticks(range(len(comparison.policies)), [text_of(p) for p in comparison.policies])
    ax.set_ylim(len(comparison.policies) - 0.5, -0.5)
    ax.set_xlim(0, room * 1.12 if room > 0 else 1.0)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    name = "Mean end-to-end latency" if metric == "e2e_latency_mean" else metric
    ax.set_xlabel(name if unit == "1" else f"{name} ({unit})")


def draw_memory(ax: Axes, result: SimulationResult, policy: str, style: LineStyle) -> None:
    """Draw one strip of :func:`kv_memory` into axes."""
    capacity = result.system.usable_capacity * len(result.worker)
    x, y = series.thin_steps(*series.step_series(series.iteration_log(result), "kv_tokens"))
    ax.plot(x, y, drawstyle="steps-post", color=style.color, linewidth=1.0, label=text_of(policy))
    if len(x) > 1:
        ax.stairs(y[:-1], x, fill=True, color=style.color, alpha=0.22, linewidth=0)
    ax.axhline(capacity, color=INK, linewidth=1.0, linestyle=(0, (4, 2)), label="capacity")
    ax.set_ylim(0, capacity * 1.12)
    ax.set_yticks([0, capacity])
    _thousands(ax)


def _single() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 3.3), layout="constrained")
    return figure, figure.add_subplot()


def _line(policy: str, styles: Mapping[str, LineStyle]) -> dict[str, Any]:
    return {"label": text_of(policy), "color": styles[policy].color, "linestyle": styles[policy].dashes}


def _legend(figure: Figure, results: Mapping[str, Any], styles: Mapping[str, LineStyle]) -> None:
    """Put one legend above the axes, in as many columns as fit."""
    names = [text_of(policy) for policy in results]
    lines = [
        Line2D([], [], color=styles[p].color, linestyle=styles[p].dashes, linewidth=2.2) for p in results
    ]
    columns = max(1, min(len(names), int(105 / (max(map(len, names), default=1) + 7))))
    figure.legend(lines, names, loc="outside upper left", ncols=columns, handlelength=2.2)


def _thousands(ax: Axes) -> None:
    """Write the numbers of the vertical axis with a comma between thousands."""
    ax.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if value == int(value) else f"{value:g}")
    )
