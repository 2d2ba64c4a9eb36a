"""Figures of a comparison by class of request, and by worker of a cluster."""

from __future__ import annotations

import numpy as np

from kvgym.experiments.comparison import Comparison
from kvgym.metrics import WORKER_METRICS
from kvgym.report import series
from kvgym.report.chart import Chart, Quantity
from kvgym.report.plots import (
    LATENCIES,
    WIDTH,
    Runs,
    axis_label,
    draw_distributions,
    draw_legend,
    examples_of,
    far_apart,
)
from kvgym.report.style import log_ticks, policy_styles, styled, text_of
from kvgym.workloads.table import RequestTable

MAX_CLASSES = 6
"""Maximum number of classes in a figure, those with the most requests."""
WORKER_PANELS = {
    "finished": "Requests finished",
    "e2e_latency_mean": "Mean end-to-end latency",
    "kv_utilisation": "KV utilisation",
}
"""Metrics in the figure of workers."""


def class_names(table: RequestTable) -> dict[int, str]:
    """Return the classes of the requests by number, with their names and sizes; empty for fewer than two."""
    if table.class_id is None:
        return {}
    counts = np.bincount(table.class_id)
    largest = sorted(np.argsort(-counts, kind="stable")[:MAX_CLASSES])
    names = {k: table.classes[k].name if k < len(table.classes) else str(k) for k in largest if counts[k]}
    if len(names) < 2:
        return {}
    return {int(k): f"class {name}: {counts[k]:,} requests" for k, name in names.items()}


@styled
def class_distributions(runs: Runs, name: str, *, width: float = WIDTH, legend: bool = True) -> Chart:
    """Distributions of the latencies of each class's finished requests, a panel per class.

    Args:
        runs: the runs; their requests have two classes or more.
        name: ``"e2e_latency"``, ``"ttft"``, ``"tpot"`` or ``"longest_gap"``.
        width: width in inches.
        legend: whether to draw a legend.
    """
    results, styles = examples_of(runs)
    classes = class_names(next(iter(results.values())).table)
    chart = Chart(tuple(styles), figsize=(width, 0.6 + 1.75 * len(classes)), layout="constrained")
    axes = chart.subplots(len(classes), 1, squeeze=False)[:, 0]
    for ax, (number, title) in zip(axes, classes.items(), strict=True):
        share = Quantity("Share of requests")
        chart.panel(ax, LATENCIES[name], share, title=title)
        curves = {}
        for policy, result in results.items():
            values = series.latencies(result, name, np.asarray(result.table.class_id == number))
            curves[policy] = series.distribution(values, len(values))
        draw_distributions(chart, ax, curves, styles)
        ax.set_title(text_of(title), pad=3)
        ax.set_ylabel(axis_label(share))
    axes[-1].set_xlabel(axis_label(LATENCIES[name]))
    if legend:
        draw_legend(chart, results, styles)
    return chart


@styled
def worker_points(comparison: Comparison, *, width: float = WIDTH, legend: bool = True) -> Chart:
    """Metrics of each worker of a cluster by policy, means over seeds, a panel per metric.

    Args:
        comparison: a comparison on a cluster.
        width: width in inches.
        legend: whether to draw a legend.
    """
    styles = policy_styles(comparison.policies)
    means = {p: found for p in comparison.policies if (found := comparison.worker_means(p))}
    chart = Chart(comparison.policies, figsize=(width, 0.5 + 1.6 * len(WORKER_PANELS)), layout="constrained")
    axes = chart.subplots(len(WORKER_PANELS), 1, sharex=True, squeeze=False)[:, 0]
    longest = max(means.values(), key=len, default=[])
    names = tuple(f"{own['worker']}" + f" ({own['role']})" * (own["role"] != "mixed") for own in longest)
    worker = Quantity("Worker", names=names)
    for ax, (name, label) in zip(axes, WORKER_PANELS.items(), strict=True):
        unit = WORKER_METRICS[name].unit
        quantity = Quantity(label, "" if unit == "1" else unit)
        chart.panel(ax, worker, quantity, title=label)
        shown: list[float] = []
        for i, (policy, workers) in enumerate(means.items()):
            y = np.array([own[name] for own in workers])
            x = np.arange(len(y)) + 0.6 * ((i + 0.5) / len(means) - 0.5)  # beside each other
            style = styles[policy]
            lines = ax.plot(x, y, style.marker.name, ms=5, color=style.color, label=text_of(policy))
            chart.record(ax, policy, "points", {"x": x, "y": y}, artists=lines)
            shown += y[np.isfinite(y)].tolist()
        if far_apart(shown):
            ax.set_yscale("log")
            log_ticks(ax.yaxis)
        else:
            ax.set_ylim(0, 1.1 * max(shown, default=1.0) or 1.0)
        ax.set_title(axis_label(quantity), pad=3)
    axes[-1].set_xticks(range(0, len(names), -(-len(names) // 16) or 1))
    axes[-1].set_xlabel(worker.label)
    if legend:
        draw_legend(chart, means, styles)
    return chart
