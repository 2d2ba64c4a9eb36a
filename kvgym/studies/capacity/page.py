"""Reports of capacities and plans as self-contained HTML files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvgym.experiments.statistics import Estimate
from kvgym.report.alike import hidden_curves
from kvgym.report.chart import Chart
from kvgym.report.names import metric_name, title
from kvgym.report.numbers import count_range, figures, interval
from kvgym.report.page import Page
from kvgym.report.sections import Cell, mean_cell, scenario_rows, text_cell, unit_of
from kvgym.studies.capacity.outcome_tables import (
    OutcomeTable,
    Value,
    capacity_table,
    estimate_table,
    fleet_table,
    plan_table,
    window_table,
)
from kvgym.studies.capacity.plots import metric_curve, plan_curve, shown_metrics
from kvgym.studies.capacity.provisioned import Provisioning
from kvgym.studies.capacity.result import Capacity, CapacityResult

NO_TABLE: dict[str, Any] = {"columns": [], "rows": []}


def render(result: CapacityResult | Provisioning, *, command: str = "") -> str:
    """Return the report as text, see :func:`kvgym.studies.reports.write_capacity_report`."""
    content = _of_capacities(result) if isinstance(result, CapacityResult) else _of_plans(result)
    page = Page(content.pop("policies"))
    charts = content.pop("charts")
    page.add(
        "rates",
        [(chart, None) for chart in charts],
        content.pop("caption"),
        title=content.pop("figure"),
        legend=page.policies,
        wide=len(charts) > 1,
    )
    scenario = result.scenario.model_dump(mode="json")
    return page.render("targets.html", [("Scenario", scenario)], command, notes=result.notes, **content)


def _of_capacities(result: CapacityResult) -> dict[str, Any]:
    """Return the contents of the report of a search for capacity."""
    many = len(result.seeds) > 1
    means, dots = ("mean over seeds", ", with its 95 % interval") if many else ("one seed", "")
    own = " Dashed upright: the rate of the trace." if result.own_rate is not None else ""
    charts = [metric_curve(result, metric) for metric in shown_metrics(result)]
    spread = (
        "Means over seeds; small: 95 % bootstrap intervals over seeds."
        if many
        else "One seed, so there are no intervals and the variation is unknown."
    )
    return {
        "title": f"Capacity: {result.scenario.name}",
        "lead": lead(result),
        "policies": [c.label for c in result.capacities],
        "charts": charts,
        "figure": "Latency by arrival rate",
        "caption": f"Metrics against the arrival rate, {means}. Dots: the capacity{dots}. Dashed: the target.{own}"
        + _hidden(charts),
        "table": shown_table(capacity_table(result)),
        "explanation": f"{spread} Fails next: what the next higher rate misses. Metrics are those at the capacity. "
        "Bold: the highest.",
        "setting": [
            ("Targets", ", ".join(map(str, result.targets)) or "the backlog must not grow"),
            *scenario_rows(result.scenario),
            ("Requests a run", count_range([probe.played.num_requests for probe in result.probes])),
            ("Seeds", ", ".join(map(str, result.seeds))),
            ("Search", f"{len(result.probes):,} runs; rates bisected to {result.tolerance:.1%}"),
        ],
        "remarks_title": "Why targets are missed",
        "remarks": [(c.label, text) for c in result.capacities for text in (*c.why, *c.notes)],
        "windows": NO_TABLE,
        "fleets": NO_TABLE,
        "estimates": NO_TABLE,
    }


def _of_plans(result: Provisioning) -> dict[str, Any]:
    """Return the contents of the report of provisioning."""
    priced = any(plan.price is not None for plan in result.plans)
    shown = [("cost_per_hour", "Cost per hour"), ("cost_per_million", "Cost per million output tokens")]
    shown = shown if priced else [("workers", "Workers")]
    return {
        "title": f"Provisioning: {result.scenario.name}",
        "lead": f"{result.answers()[0]}.",
        "policies": [result.label(plan) for plan in result.plans],
        "charts": [plan_curve(result, *each) for each in shown],
        "figure": f"{shown[0][1]} by arrival rate",
        "caption": "Against the arrival rate: the smallest number of workers that meets the targets, with the load "
        "compressed or stretched. Large dots: the load as it is.",
        "table": shown_table(plan_table(result)),
        "explanation": "Workers: the smallest number that meets the targets, by simulation of the whole load. Theory: "
        "⌈λ/μ⌉ of equation (1) of the stability paper. Per worker: the rate of the load divided by the rate at which "
        "one worker meets the targets.",
        "setting": [
            ("Targets", ", ".join(map(str, result.targets))),
            ("Load", f"{result.num_requests:,} requests, {figures(result.rate)}/s"),
            *scenario_rows(result.scenario),
        ],
        "remarks_title": "Remarks",
        "remarks": [(result.label(plan), note) for plan in result.plans for note in plan.notes],
        "windows": shown_table(window_table(result, figures)),
        "fleets": shown_table(fleet_table(result)),
        "estimates": shown_table(estimate_table(result)),
    }


def shown_table(table: OutcomeTable) -> dict[str, Any]:
    """Return a table for the template: ``columns`` (title, unit) and ``rows`` (policy, marks, cells)."""
    heads = [
        (title(metric_name(column.metric)), unit_of(column.metric)) if column.metric else column[1:3]
        for column in table.columns
    ]
    best = [
        max((cell.value for cell in cells if isinstance(cell, Estimate)), default=0.0)
        for cells in zip(*(row.cells for row in table.rows), strict=True)
    ]
    rows = [
        {"policy": row.label, "marks": row.marks, "cells": list(map(_cell, row.cells, best))}
        for row in table.rows
    ]
    return {"columns": heads, "rows": rows}


def _cell(value: Value, best: float) -> Cell:
    if isinstance(value, Estimate):
        return mean_cell(value, value.value == best > 0)
    if isinstance(value, float):
        return text_cell(figures(value))
    return text_cell("–" if value is None else f"{value:,}" if isinstance(value, int) else value)


def _hidden(charts: Iterable[Chart]) -> str:
    """Return sentences that say which curves lie under others, "" if all are visible."""
    found = []
    for panel in (panel for chart in charts for panel in chart.panels):
        over: dict[str, list[str]] = {}
        for own, other in hidden_curves(panel):
            over.setdefault(other, []).append(own)
        for other, below in over.items():
            curves = f"curve{'s' * (len(below) > 1)} of {', '.join(below)} lie{'s' * (len(below) == 1)}"
            found.append(f" {panel.y.quantity.label}: the {curves} under the one of {other}.")
    return "".join(found)


def lead(result: CapacityResult) -> str:
    """Return the outcome in a sentence: the policy with the highest rate, and the next one."""
    ranked = sorted(result.capacities, key=lambda c: -c.estimate.value)
    best = ranked[0]
    aims = ", ".join(map(str, result.targets)) or "no growing backlog"
    if not best.estimate.value > 0:
        return f"No policy meets {aims} at any rate that was tried."
    text = f"Highest rate with {aims}: {best.label}, {_rate(best)}."
    if len(ranked) > 1:
        text += f" Next: {ranked[1].label}, {_rate(ranked[1])}."
    return text


def _rate(capacity: Capacity) -> str:
    span = interval(capacity.estimate)
    return f"{figures(capacity.estimate.value)} requests/s" + (f" (95 % interval {span})" if span else "")
