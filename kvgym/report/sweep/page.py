"""The report of a sweep, see :func:`kvgym.report.write_sweep_report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvgym.errors import ConfigError, UnknownNameError
from kvgym.metrics import metric_info, metric_names
from kvgym.policy import REFERENCE_ONLY
from kvgym.report import content
from kvgym.report.numbers import figures, interval
from kvgym.report.page import CHART_WIDTH, Page
from kvgym.report.sweep.fronts import front_figure, front_of
from kvgym.report.sweep.maps import heat_maps
from kvgym.report.sweep.plots import curves
from kvgym.report.sweep.runs import AXIS_RULE, NOTHING, SweepRuns, written
from kvgym.report.sweep.slices import cut, numeric_pairs, varying

METRICS = ("e2e_latency_mean", "ttft_p99", "tbt_p99", "token_throughput")
FRONTS = (("ttft_p99", "tbt_p99"), ("token_throughput", "e2e_latency_mean"))
"""Pairs of metrics, for the horizontal and the vertical axis."""


def render_sweep(
    frame: Any,
    fields: Sequence[str],
    *,
    metrics: Sequence[str] | None,
    title: str,
    lead: str,
    notes: Sequence[str],
    command: str,
    configuration: Mapping[str, Any],
) -> str:
    """Return the report as text, see :func:`kvgym.report.write_sweep_report`."""
    chosen = tuple(metrics or METRICS)
    needed = tuple(dict.fromkeys((*chosen, *(name for pair in FRONTS for name in pair))))
    for name in chosen:
        if name not in metric_names():
            raise UnknownNameError("metric", name, metric_names())
    absent = [name for name in needed if name not in frame.columns]
    if absent:
        raise ConfigError(f"the runs of the sweep lack the metrics {', '.join(absent)}")
    runs = SweepRuns(frame, fields)
    page = Page(runs.policies, markers=True)
    empty = _add_curves(page, runs, chosen)
    _add_maps(page, runs, chosen[0])
    fronts = _add_fronts(page, runs)
    return page.render(
        "sweep.html",
        title=title,
        lead=lead or summary(runs),
        failures=runs.failures(),
        setting=_setting(runs, empty),
        notes=notes,
        fronts=fronts,
        columns=[
            {"name": name, "unit": _unit(name), "summary": metric_info(name).summary} for name in needed
        ],
        fields=[field.name for field in runs.fields],
        rows=_rows(runs, needed),
        one_seed=len(runs.seeds) == 1,
        axis_rule=AXIS_RULE,
        definitions=content.definitions(),
        configuration=content.as_yaml(configuration.items(), command),
        command=command,
    )


def summary(runs: SweepRuns) -> str:
    """Return a sentence on the runs, and one on failures."""
    names = [runs.fields[i].name for i in varying(runs)] or [field.name for field in runs.fields]
    policies, points, seeds = len(runs.policies), len(runs.points), len(runs.seeds)
    text = (
        f"{len(runs):,} run{_s(len(runs))}: {policies} polic{'ies' if policies > 1 else 'y'} at {points:,} "
        f"point{_s(points)} of {_listed(names)}, {seeds} seed{_s(seeds)}."
    )
    failed = sum(len(row["seeds"]) for row in runs.failures())
    return f"{text} {failed:,} run{_s(failed)} failed; the reasons are below." if failed else text


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _unit(metric: str) -> str:
    unit = metric_info(metric).unit
    return "" if unit == "1" else unit


def _add_curves(page: Page, runs: SweepRuns, metrics: Sequence[str]) -> list[str]:
    """Add a figure for each field and metric; return the metrics without values."""
    drawn = [m for m in metrics if any(_has_value(runs, policy, m) for policy in runs.policies)]
    for place in varying(runs):
        field = runs.fields[place]
        piece = cut(runs, (place,), panels=True)
        for number, metric in enumerate(drawn):
            how = "Means over seeds, 95 % intervals" if len(runs.seeds) > 1 else "One seed, so no intervals"
            page.add(
                f"curve-{place}-{number}",
                curves(runs, piece, metric, width=CHART_WIDTH),
                " ".join((f"{how}.", *piece.remarks)),
                title=f"{metric} against {field.name}",
                legend=[p for p in runs.policies if _has_value(runs, p, metric)],
            )
    return [m for m in metrics if m not in drawn]


def _has_value(runs: SweepRuns, policy: str, metric: str) -> bool:
    """Whether a policy has a mean of a metric at any point."""
    return any(figures(runs.estimate(policy, p, metric).value) != NOTHING for p in runs.points)


def _add_maps(page: Page, runs: SweepRuns, metric: str) -> None:
    """Add heat maps of the main metric for each pair of numeric fields."""
    for a, b in numeric_pairs(runs):
        piece = cut(runs, (a, b), panels=False)
        maps = heat_maps(runs, piece, metric, width=CHART_WIDTH)
        if maps:
            names = f"{runs.fields[a].name} and {runs.fields[b].name}"
            caption = f"{metric} over {names}, mean over seeds; one colour scale for all policies."
            page.add(
                f"map-{a}-{b}",
                maps,
                " ".join((caption, *piece.remarks)),
                title=f"{metric} over {names}",
                wide=True,
            )


def _add_fronts(page: Page, runs: SweepRuns) -> list[dict[str, Any]]:
    """Add the Pareto fronts; return their members for tables."""
    tables = []
    for number, (x, y) in enumerate(FRONTS):
        front = front_of(runs, x, y)
        if not front:
            continue
        better = [f"{'lower' if metric_info(m).lower_is_better else 'higher'} {m}" for m in (x, y)]
        page.add(
            f"front-{number}",
            front_figure(runs, x, y, front, width=CHART_WIDTH),
            f"Every policy at every point of the sweep. Rings and line: the Pareto front; no other point has both "
            f"{better[0]} and {better[1]}. It includes all policies, also hidden ones"
            f"{', except clairvoyant ones' if runs.clairvoyant else ''}.",
            title=f"{y} against {x}",
            legend=[p for p in runs.policies if _has_value(runs, p, x) and _has_value(runs, p, y)],
        )
        rows = [
            {
                "policy": policy,
                "star": runs.star(policy),
                "point": [written(v) for v in point],
                "cells": [_cell(runs, policy, point, m) for m in (x, y)],
            }
            for policy, point in front
        ]
        tables.append({"metrics": (x, y), "rows": rows})
    return tables


def _setting(runs: SweepRuns, empty: Sequence[str]) -> list[tuple[str, str]]:
    """Return the setup of the sweep: pairs of a term and its description."""
    rows = [
        (
            field.name,
            ", ".join(written(v) for v in field.values) + (" (logarithmic axis)" if field.log else ""),
        )
        for field in runs.fields
    ]
    rows.append(("Policies", ", ".join(p + runs.star(p) for p in runs.policies)))
    if runs.clairvoyant:
        rows.append(("*", f"{REFERENCE_ONLY}; not on the fronts"))
    rows.append(("Seeds", ", ".join(map(str, runs.seeds))))
    fewer = sum(
        len(runs.seeds_of(policy, point)) < len(runs.seeds)
        for policy in runs.policies
        for point in runs.points
        if runs.has(policy, point)
    )
    if fewer:
        rows.append(("Seeds missing", f"{fewer:,} means are over fewer seeds; the table has the numbers"))
    gaps = sum(not runs.has(policy, point) for policy in runs.policies for point in runs.points)
    if gaps:
        rows.append(
            (
                "Not run",
                f"{gaps:,} of {len(runs.policies) * len(runs.points):,} combinations of policy and point",
            )
        )
    if empty:
        rows.append(("Without values", f"{', '.join(empty)} in all runs"))
    return rows


def _cell(runs: SweepRuns, policy: str, point: Any, metric: str) -> dict[str, str]:
    estimate = runs.estimate(policy, point, metric)
    return {"text": figures(estimate.value), "interval": interval(estimate)}


def _rows(runs: SweepRuns, metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Return the table: a row for each policy at each point."""
    return [
        {
            "policy": policy,
            "star": runs.star(policy),
            "point": [written(v) for v in point],
            "seeds": len(runs.seeds_of(policy, point)),
            "cells": [_cell(runs, policy, point, m) for m in metrics],
        }
        for point in runs.points
        for policy in runs.policies
        if runs.has(policy, point)
    ]
