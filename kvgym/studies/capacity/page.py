"""The report of a search for capacity as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvgym.experiments.describing import hardware_rows, memory_rows, rule_rows
from kvgym.experiments.scenario import Scenario
from kvgym.metrics.compute import metric_info
from kvgym.report import content
from kvgym.report.alike import hidden_curves
from kvgym.report.chart import Chart
from kvgym.report.names import metric_name, title
from kvgym.report.numbers import figures, interval
from kvgym.report.page import Page
from kvgym.studies.capacity.plots import metric_curve, shown_metrics
from kvgym.studies.capacity.result import Capacity, CapacityResult
from kvgym.workloads.describing import describe_spec


def render_capacity(result: CapacityResult, *, command: str = "") -> str:
    """Return the report as text, see :func:`kvgym.studies.reports.write_capacity_report`."""
    page = Page([c.label for c in result.capacities])
    seeds = "mean over seeds" if len(result.seeds) > 1 else "one seed"
    dots = ", with its 95 % interval" if len(result.seeds) > 1 else ""
    own = " Dashed upright: the rate of the trace." if result.own_rate is not None else ""
    charts = [metric_curve(result, metric) for metric in shown_metrics(result)]
    page.add(
        "rates",
        [(chart, None) for chart in charts],
        f"Metrics against the arrival rate, {seeds}. Dots: the capacity{dots}. Dashed: the target.{own}"
        + _hidden(charts),
        title="Latency by arrival rate",
        legend=page.policies,
        wide=True,
    )
    return page.render(
        "capacity.html",
        title=f"Capacity: {result.scenario.name}",
        lead=lead(result),
        columns=_columns(result),
        rows=[_row(result, c) for c in result.capacities],
        many=len(result.seeds) > 1,
        remarks=[(c.label, text) for c in result.capacities for text in (*c.why, *c.notes)],
        notes=result.notes,
        setting=_setting(result),
        definitions=content.definitions(),
        configuration=content.as_yaml([("Scenario", result.scenario.model_dump(mode="json"))], command),
        command=command,
    )


def _hidden(charts: Iterable[Chart]) -> str:
    """Return sentences that say which curves lie under others, "" if all are visible."""
    found = []
    for panel in (panel for chart in charts for panel in chart.panels):
        over: dict[str, list[str]] = {}
        for own, other in hidden_curves(panel):
            over.setdefault(other, []).append(own)
        for other, below in over.items():
            curves = f"curve{'s' * (len(below) > 1)} of {', '.join(below)} lie{'s' * (len(below) == 1)}"
            found.append(f" {panel.y.quantity.label}: the {curves} under that of {other}.")
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


def _columns(result: CapacityResult) -> list[tuple[str, str]]:
    """Return headings and units of the table behind the policy."""
    found = [("Capacity", "requests/s")]
    found += [("On every seed", "requests/s")] if len(result.seeds) > 1 else []
    found += [("Per worker", "requests/s"), ("Efficiency", "")] if _counted(result) else []
    found.append(("Fails next", ""))
    return found + [
        (title(metric_name(t.metric)), content.unit_of(metric_info(t.metric))) for t in result.targets
    ]


def _counted(result: CapacityResult) -> bool:
    """Return whether capacities are of several numbers of workers."""
    return len({c.workers for c in result.capacities}) > 1


def _row(result: CapacityResult, c: Capacity) -> dict[str, Any]:
    """Return a row of the table."""
    best = max(other.estimate.value for other in result.capacities)
    cells: list[dict[str, Any]] = [
        {
            "text": figures(c.estimate.value),
            "interval": interval(c.estimate),
            "best": c.estimate.value == best > 0,
        }
    ]
    plain = [figures(c.on_every_seed)] if len(result.seeds) > 1 else []
    if _counted(result):
        plain += [figures(c.estimate.value / (c.workers or 1)), f"{result.efficiency(c):.0%}"]
    plain.append(", ".join(reason for reason, _ in c.limits) or "–")
    plain += [figures(c.values[t.metric]) for t in result.targets]
    return {
        "policy": c.label,
        "marks": ["clairvoyant"] * c.clairvoyant + [f"{mark.sign} {mark.words}" for mark in c.marks],
        "cells": cells + [{"text": text, "interval": "", "best": False} for text in plain],
    }


def _setting(result: CapacityResult) -> list[tuple[str, str]]:
    """Return the setup of the search: pairs of a term and its description."""
    sizes = sorted({probe.played.num_requests for probe in result.probes})
    return [
        ("Targets", ", ".join(map(str, result.targets)) or "the backlog must not grow"),
        *scenario_rows(result.scenario),
        ("Requests a run", f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"),
        ("Seeds", ", ".join(map(str, result.seeds))),
        ("Search", f"{len(result.probes):,} runs; rates bisected to {result.tolerance:.1%}"),
    ]


def scenario_rows(scenario: Scenario) -> list[tuple[str, str]]:
    """Return hardware, memory, rules and workload of a scenario."""
    system = scenario.make_system()
    return [
        ("Scenario", scenario.heading),
        *hardware_rows(scenario),
        *memory_rows(scenario, system.kv_capacity),
        ("Workload", describe_spec(scenario.make_workload().spec)),
        *rule_rows(scenario),
    ]
