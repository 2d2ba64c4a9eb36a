"""The figure of the prefix cache: what requests find, and what it holds, over time."""

from __future__ import annotations

import numpy as np

from kvgym.report import series
from kvgym.report.chart import Chart, Quantity
from kvgym.report.plots import (
    THROUGHPUT_BINS,
    TIME,
    WIDTH,
    Runs,
    axis_label,
    capacity_of,
    draw_legend,
    draw_steps,
    end_of,
    examples_of,
)
from kvgym.report.style import styled


def is_cached(runs: Runs) -> bool:
    """Return whether any run has a prefix cache."""
    return any(result.system.prefix_unit for result in examples_of(runs)[0].values())


@styled
def cache_use(runs: Runs, *, width: float = WIDTH, legend: bool = True) -> Chart:
    """Share of the tokens to prefill that requests find in the cache, and below it the cached memory without a holder.

    Args:
        runs: the runs.
        width: width in inches.
        legend: whether to draw a legend.
    """
    results, styles = examples_of(runs)
    edges = np.linspace(0.0, end_of(results), THROUGHPUT_BINS + 1)
    chart = Chart(tuple(styles), figsize=(width, 4.6), layout="constrained")
    top, ax = chart.subplots(2, 1, sharex=True)
    chart.panel(top, TIME, Quantity("Found of the tokens to prefill"))
    chart.panel(ax, TIME, Quantity("Cached memory / capacity"))
    for policy, result in results.items():
        log = series.iteration_log(result)
        hits, computed = (
            series.rate_bins(log["start_time"], log[name], edges) for name in ("hit_tokens", "prefill_tokens")
        )
        share = hits / np.maximum(hits + computed, 1e-12)
        draw_steps(chart, top, edges, np.append(share, share[-1]), policy, styles)
        x, y = series.thin_steps(*series.step_series(log, "kv_cached"))
        draw_steps(chart, ax, x, y / capacity_of(result), policy, styles)
    top.set_title("Found in the cache, of the tokens to prefill", pad=3)
    ax.set_title("Cached memory that no request holds, share of the capacity", pad=3)
    ax.set_xlabel(axis_label(TIME))
    for panel in (top, ax):
        panel.set_ylim(0, 1)
        panel.set_xlim(0, edges[-1])
    if legend:
        draw_legend(chart, results, styles)
    return chart
