"""Figures of a comparison by class of request, and by worker of a cluster."""

from __future__ import annotations

import numpy as np

from kvgym.experiments.comparison import Comparison
from kvgym.metrics.compute import WORKER_METRICS
from kvgym.report import series
from kvgym.report.chart import Axis, Chart, Panel, Quantity, Series
from kvgym.report.plots import LATENCIES, Runs, distributions, examples_of, far_apart
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


def class_distributions(runs: Runs, name: str) -> Chart:
    """Distributions of the latencies of each class's finished requests, a panel per class.

    Args:
        runs: the runs; their requests have two classes or more.
        name: ``"e2e_latency"``, ``"ttft"``, ``"tpot"`` or ``"longest_gap"``.
    """
    results = examples_of(runs)
    panels = []
    for number, title in class_names(next(iter(results.values())).table).items():
        curves = {}
        for policy, result in results.items():
            values = series.latencies(result, name, np.asarray(result.table.class_id == number))
            curves[policy] = series.distribution(values, len(values))
        panels.append(distributions(LATENCIES[name], "Share of requests", curves, title=title, height=86.0))
    return Chart(panels)


def worker_points(comparison: Comparison) -> Chart:
    """Metrics of each worker of a cluster by policy, means over seeds, a panel per metric."""
    means = {p: found for p in comparison.policies if (found := comparison.worker_means(p))}
    longest = max(means.values(), key=len, default=[])
    names = tuple(f"{own['worker']}" + f" ({own['role']})" * (own["role"] != "mixed") for own in longest)
    panels = []
    for name, label in WORKER_PANELS.items():
        unit = WORKER_METRICS[name].unit
        points = []
        shown: list[float] = []
        for i, (policy, workers) in enumerate(means.items()):
            y = [own[name] for own in workers]
            x = np.arange(len(y)) + 0.6 * ((i + 0.5) / len(means) - 0.5)  # next to each other
            points.append(Series(policy, policy, "points", {"x": x, "y": y}))
            shown += y
        quantity = Quantity(label, "" if unit == "1" else unit)
        y_axis = Axis.over(quantity, shown, log=far_apart(shown))
        panels.append(Panel(Axis.named(Quantity("Worker", names=names)), y_axis, points, 80.0))
    return Chart(panels)
