"""Curves against the arrival rate: the metrics of targets, and the workers or the cost that a load needs."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from kvgym.metrics.catalogue import metric_info
from kvgym.report.chart import Axis, Chart, Panel, Quantity, Series
from kvgym.report.plots import metric_quantity
from kvgym.studies.capacity.probing import Probe
from kvgym.studies.capacity.provisioned import LoadPoint, Provisioning
from kvgym.studies.capacity.result import Capacity, CapacityResult
from kvgym.studies.capacity.verdict import BACKLOG

GROWTH = Quantity("Growth of the backlog, share of the arriving requests")

BEYOND = 30.0
"""End of a logarithmic axis, as a multiple of the target: beyond it, latencies only show an overload."""


def metric_curve(result: CapacityResult, metric: str) -> Chart:
    """Return one metric against the rate: means over seeds, the target if it has one, and the capacity of each policy.

    Only rates that were run on every seed are drawn. A dot marks the capacity with its interval, at the mean of the
    metric there, and a dashed line the own rate of a replayed trace.

    Args:
        result: the search.
        metric: a metric, or :data:`~kvgym.studies.capacity.verdict.BACKLOG`.
    """
    low, high = _range(result)
    drawn, shown = [], []
    for c in result.capacities:
        rates, values = _curve(result, c.label, metric)
        curve = {"x": rates, "y": values}
        drawn.append(Series(c.label, c.label, "points", curve, look={"line": True, "size": 0}))
        shown += [v for rate, v in zip(rates, values, strict=True) if low <= rate <= high]
        at, e = _at_capacity(result, c, metric), c.estimate
        if e.value > 0 and math.isfinite(at):
            mark = {"x": e.value, "y": at, "x_low": e.low, "x_high": e.high}
            drawn.append(Series(f"{c.label}: capacity", c.label, "points", mark, ["capacity"], {"size": 6}))
            shown.append(at)
    x = Axis(Quantity("Arrivals", "1/s"), low, high, log=True)
    target = next((t for t in result.targets if t.metric == metric), None)
    bound = 0.0 if target is None else target.bound
    own = [] if result.own_rate is None else [("x", result.own_rate, "the trace")]
    rules = [*own, ("y", bound, "" if target is None else f"target {str(target)[len(metric) :]}")]
    if metric == BACKLOG:
        return Chart([Panel(x, Axis.over(GROWTH, shown), drawn, 200.0, rules=rules)])
    log = bool(metric_info(metric).lower_is_better) and (target is None or bound > 0)
    y = Axis.over(metric_quantity(metric), shown if target is None else [*shown, bound], log=log)
    if target is None:
        rules = own
    elif log:
        y = y._replace(low=max(y.low, bound / BEYOND), high=min(y.high, bound * BEYOND))
    return Chart([Panel(x, y, drawn, 200.0, rules=rules)])


def shown_metrics(result: CapacityResult) -> tuple[str, ...]:
    """Return the metrics of a report: TTFT and TBT, by their targets if they have any, then all other targets."""
    targets = [t.metric for t in result.targets]
    first = [next((m for m in targets if m.startswith(kind)), f"{kind}_p99") for kind in ("ttft", "tbt")]
    return tuple(dict.fromkeys((*first, *targets, *(() if targets else (BACKLOG,)))))


def _range(result: CapacityResult) -> tuple[float, float]:
    """Return the range of rates to show, with the rate of a trace: around the capacities, or all without capacities."""
    found = [c.estimate.value for c in result.capacities if c.estimate.value > 0]
    rates = [probe.rate for probe in result.probes]
    low, high = (min(found) * 0.45, max(found) * 2.2) if found else (min(rates), max(rates))
    own = result.own_rate
    return (low, high) if own is None else (min(low, 0.8 * own), max(high, 1.25 * own))


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


def plan_curve(result: Provisioning, what: str, name: str) -> Chart:
    """Return workers or a cost against the arrival rate, a line for each plan.

    Args:
        result: the outcome.
        what: ``"workers"``, ``"cost_per_hour"`` or ``"cost_per_million"``.
        name: name of that quantity.
    """
    drawn = []
    ends: tuple[list[float], list[float]] = ([], [])
    for plan in result.plans:
        label = result.label(plan)
        own = LoadPoint(plan, result.rate, plan.simulated)
        points = sorted((own, *(p for p in result.points if p.plan is plan)), key=lambda p: p.rate)
        found = [(p, value) for p in points if (value := _planned(result, p, what)) is not None]
        values = {"x": [p.rate for p, _ in found], "y": [value for _, value in found]}
        sizes = [8.0 if p is own else 3.5 for p, _ in found]
        drawn.append(Series(label, label, "points", values, look={"line": True, "size": sizes}))
        for seen, column in zip(ends, values.values(), strict=True):
            seen += column
    x, y = (
        Axis.over(quantity, seen)
        for quantity, seen in zip((Quantity("Arrivals", "1/s"), Quantity(name)), ends, strict=True)
    )
    return Chart([Panel(x, y, drawn, 200.0)])


def _planned(result: Provisioning, point: LoadPoint, what: str) -> float | None:
    """Return a quantity of :func:`plan_curve` at a point; None if it is unknown."""
    if what == "workers":
        return point.workers
    return point.cost_per_hour if what == "cost_per_hour" else result.cost_per_million_tokens(point)
