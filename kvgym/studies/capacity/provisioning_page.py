"""The report of provisioning as one self-contained HTML file."""

from __future__ import annotations

from typing import Any

from kvgym.metrics.compute import metric_info
from kvgym.report import content
from kvgym.report.chart import Axis, Chart, Panel, Quantity, Series
from kvgym.report.names import metric_name, title
from kvgym.report.numbers import figures
from kvgym.report.page import Page
from kvgym.studies.capacity.page import scenario_rows
from kvgym.studies.capacity.plan import LoadPoint, Plan, Provisioning


def render_provisioning(result: Provisioning, *, command: str = "") -> str:
    """Return the report as text, see :func:`kvgym.studies.reports.write_provisioning_report`."""
    priced = any(plan.price is not None for plan in result.plans)
    page = Page([result.label(plan) for plan in result.plans])
    charts = [("cost_per_hour", "Cost per hour")] if priced else [("workers", "Workers")]
    charts += [("cost_per_million", "Cost per million output tokens")] if priced else []
    page.add(
        "rates",
        ((curve(result, *chart), None) for chart in charts),
        "Against the arrival rate: the smallest number of workers that meets the "
        "targets, with the load compressed or stretched. Large dots: the load as it is.",
        title=f"{charts[0][1]} by arrival rate",
        legend=page.policies,
        wide=len(charts) > 1,
    )
    return page.render(
        "provisioning.html",
        title=f"Provisioning: {result.scenario.name}",
        lead=f"{result.answers()[0]}.",
        columns=_columns(result, priced),
        rows=[_row(result, plan, priced) for plan in result.plans],
        windows=_windows(result),
        estimates=_estimates(result),
        remarks=[(result.label(plan), note) for plan in result.plans for note in plan.notes],
        notes=result.notes,
        setting=_setting(result),
        definitions=content.definitions(),
        configuration=content.as_yaml([("Scenario", result.scenario.model_dump(mode="json"))], command),
        command=command,
    )


def curve(result: Provisioning, what: str, name: str) -> Chart:
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
        found = [(p, value) for p in points if (value := _value(result, p, what)) is not None]
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


def _value(result: Provisioning, point: LoadPoint, what: str) -> float | None:
    """Return a quantity of :func:`curve` at a point; None if it is unknown."""
    if what == "workers":
        return point.workers
    return point.cost_per_hour if what == "cost_per_hour" else result.cost_per_million_tokens(point)


def _columns(result: Provisioning, priced: bool) -> list[tuple[str, str]]:
    """Return headings and units of the table behind the policy."""
    costs = [("Cost", "per hour"), ("Cost", "per million output tokens")] if priced else []
    targets = [(title(metric_name(t.metric)), content.unit_of(metric_info(t.metric))) for t in result.targets]
    return [
        ("Workers", ""),
        *costs,
        *targets,
        ("One fewer misses", ""),
        ("Theory", "workers"),
        ("Per worker", "workers"),
    ]


def _row(result: Provisioning, plan: Plan, priced: bool) -> dict[str, Any]:
    """Return a row of the table."""
    cells = [_count(plan.simulated)]
    if priced:
        cells += [_figure(plan.cost_per_hour), _figure(result.cost_per_million_tokens(plan))]
    cells += [figures(plan.values[t.metric]) for t in result.targets]
    cells += [", ".join(plan.one_fewer) or "–", _count(plan.by_theory), _count(plan.by_targets)]
    return {"policy": result.label(plan), "cells": cells}


def _windows(result: Provisioning) -> list[dict[str, Any]]:
    """Return a row for each window of each plan."""
    return [
        {
            "policy": result.label(plan),
            "cells": [
                f"{w.start:,.0f} – {w.end:,.0f} s",
                figures(w.rate),
                _count(w.by_theory),
                _count(w.simulated),
            ],
        }
        for plan in result.plans
        for w in result.windows_of(plan)
    ]


def _estimates(result: Provisioning) -> list[list[str]]:
    """Return a row for each estimate of a worker's rate, and for the measured rates."""
    rows = []
    for own in result.workers:
        names = [f"{own.policy} on {own.hardware}" if own.hardware else own.policy]
        for e in own.estimates:
            what = f"{e.estimator} batch time, {'saturated' if e.run == 'saturated' else 'trace ' + e.run}"
            rows.append([*names, what, figures(1000 * e.batch_time), figures(e.service), f"{e.error:+.1%}"])
        for what, rate in (
            ("measured: saturated", own.measured),
            ("measured: no growing backlog", own.backlog_rate),
            ("measured: targets are met", own.target_rate),
        ):
            rows.append([*names, what, "", figures(rate), ""])
    return rows


def _setting(result: Provisioning) -> list[tuple[str, str]]:
    """Return the setup: pairs of a term and its description."""
    return [
        ("Targets", ", ".join(map(str, result.targets))),
        ("Load", f"{result.num_requests:,} requests, {figures(result.rate)}/s"),
        *scenario_rows(result.scenario),
    ]


def _count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def _figure(value: float | None) -> str:
    return "–" if value is None else figures(value)
