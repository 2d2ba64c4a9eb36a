"""The report of a sweep, see :func:`kvgym.studies.reports.write_sweep_report`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvgym.errors import ConfigError, UnknownNameError
from kvgym.metrics.catalogue import metric_info, metric_names
from kvgym.policies.policy import REFERENCE_ONLY
from kvgym.report.names import metric_name
from kvgym.report.names import title as title_of
from kvgym.report.numbers import figures
from kvgym.report.page import Page
from kvgym.report.sections import mean_cell, text_cell, unit_of
from kvgym.studies.sweeping.report.fronts import front_figure, front_of
from kvgym.studies.sweeping.report.maps import heat_maps
from kvgym.studies.sweeping.report.plots import curves
from kvgym.studies.sweeping.report.runs import AXIS_RULE, NOTHING, Point, SweepRuns, written
from kvgym.studies.sweeping.report.slices import cut, numeric_pairs, varying

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
    """Return the report as text, see :func:`kvgym.studies.reports.write_sweep_report`."""
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
    left_out = _add_curves(page, runs, chosen)
    _add_maps(page, runs, chosen[0])
    fronts = _add_fronts(page, runs)
    return page.render(
        "sweep.html",
        configuration.items(),
        command,
        title=title or f"Sweep of {_listed(_swept(runs))}",
        lead=lead or summary(runs, chosen[0]),
        failures=runs.failures(),
        setting=_setting(runs, left_out),
        notes=notes,
        fronts=fronts,
        columns=[*_heads(runs), ("Seeds", ""), *((metric_title(name), unit_of(name)) for name in needed)],
        rows=_rows(runs, needed),
        metrics=[(metric_title(name), metric_info(name).summary) for name in needed],
        one_seed=len(runs.seeds) == 1,
        axis_rule=AXIS_RULE,
    )


def summary(runs: SweepRuns, metric: str) -> str:
    """Return a sentence on the outcome, one on the runs, and one on failures."""
    policies, points, seeds = len(runs.policies), len(_whole_points(runs)), len(runs.seeds)
    text = (
        f"{len(runs):,} run{_s(len(runs))}: {policies} polic{'ies' if policies > 1 else 'y'} at {points:,} "
        f"point{_s(points)} of {_listed(_swept(runs))}, {seeds} seed{_s(seeds)}."
    )
    failed = sum(len(row["seeds"]) for row in runs.failures())
    broken = f"{failed:,} run{_s(failed)} failed; the reasons are below." if failed else ""
    return " ".join(filter(None, (outcome(runs, metric), text, broken)))


def outcome(runs: SweepRuns, metric: str) -> str:
    """Return a sentence on which policies have the best mean at how many points, "" if nothing was compared."""
    lower = metric_info(metric).lower_is_better
    wins = dict.fromkeys((p for p in runs.policies if p not in runs.clairvoyant), 0)
    for point in _whole_points(runs):
        means = {
            p: runs.estimate(p, own, metric).value for p in wins if (own := runs.own(p, point)) is not None
        }
        known = {p: mean for p, mean in means.items() if math.isfinite(mean)}
        if len(known) > 1:
            wins[(min if lower else max)(known, key=lambda p: known[p])] += 1
    total = sum(wins.values())
    if lower is None or not total:
        return ""
    ranked = sorted((p for p in wins if wins[p]), key=lambda p: -wins[p])
    where = _listed([f"{p} at {wins[p]:,}" for p in ranked])
    return f"{'Lowest' if lower else 'Highest'} {metric_name(metric)}: {where} of {total:,} point{_s(total)}."


def _whole_points(runs: SweepRuns) -> list[Point]:
    """Return the points without those of which another has the same values and more."""
    return [point for point in runs.points if not any(_covers(point, other) for other in runs.points)]


def _covers(point: Point, other: Point) -> bool:
    """Whether another point has the values of a point, and more."""
    return other != point and all(a in (b, None) for a, b in zip(point, other, strict=True))


def _swept(runs: SweepRuns) -> list[str]:
    """Return the names of the fields that vary."""
    return [runs.fields[i].title for i in varying(runs)] or [field.title for field in runs.fields]


def metric_title(metric: str) -> str:
    """Return the name of a metric as the beginning of a line."""
    return title_of(metric_name(metric))


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _add_curves(page: Page, runs: SweepRuns, metrics: Sequence[str]) -> dict[str, list[str]]:
    """Add a figure of each metric against the first field; return the metrics without one, by reason.

    If the values of a field make the panels of these figures, that field has a figure of the first metric only.
    """
    known = [m for m in metrics if any(_has_value(runs, policy, m) for policy in runs.policies)]
    drawn = [m for m in known if any(_has_value(runs, policy, m, zero=False) for policy in runs.policies)]
    panels: set[int | None] = set()
    for place in varying(runs):
        field = runs.fields[place]
        piece = cut(runs, (place,), panels=True)
        there = [point for _, points in piece.panels for point in points]
        by = "" if piece.split is None else f", by {runs.fields[piece.split].title}"
        for number, metric in enumerate(drawn[:1] if place in panels else drawn):
            how = "Means over seeds, 95 % intervals" if len(runs.seeds) > 1 else "One seed, so no intervals"
            page.add(
                f"curve-{place}-{number}",
                curves(runs, piece, metric),
                " ".join((f"{how}.", *piece.remarks)),
                title=f"{metric_title(metric)}, against {field.title}{by}",
                legend=[p for p in runs.policies if _has_value(runs, p, metric, there)],
            )
        panels.add(piece.split)
    return {
        "Without values": [metric_name(m) for m in metrics if m not in known],
        "Always 0": [metric_name(m) for m in known if m not in drawn],
    }


def _has_value(
    runs: SweepRuns, policy: str, metric: str, points: Sequence[Point] | None = None, *, zero: bool = True
) -> bool:
    """Whether a policy has a mean of a metric at any of some points; None = all. Without ``zero``, one other than 0."""
    shown = [
        figures(runs.estimate(policy, p, metric).value) for p in (runs.points if points is None else points)
    ]
    return any(text != NOTHING and (zero or text != "0") for text in shown)


def _add_maps(page: Page, runs: SweepRuns, metric: str) -> None:
    """Add heat maps of the main metric for each pair of numeric fields."""
    for a, b in numeric_pairs(runs):
        piece = cut(runs, (a, b), panels=False)
        maps = heat_maps(runs, piece, metric)
        if maps:
            names = f"{runs.fields[a].title} and {runs.fields[b].title}"
            caption = f"{metric_title(metric)}, mean over seeds; one colour scale for all policies."
            page.add(
                f"map-{a}-{b}",
                maps,
                " ".join((caption, *piece.remarks)),
                title=f"{metric_title(metric)}, over {names}",
                wide=True,
            )


def _add_fronts(page: Page, runs: SweepRuns) -> list[dict[str, Any]]:
    """Add the Pareto fronts; return their members for tables."""
    tables = []
    for number, (x, y) in enumerate(FRONTS):
        front = front_of(runs, x, y)
        if not front:
            continue
        better = [
            f"{'lower' if metric_info(m).lower_is_better else 'higher'} {metric_name(m)}" for m in (x, y)
        ]
        page.add(
            f"front-{number}",
            front_figure(runs, x, y, front),
            f"Every policy at every point of the sweep. Rings and line: the Pareto front; no other point has both "
            f"{better[0]} and {better[1]}. It includes all policies, also hidden ones"
            f"{', except clairvoyant ones' if runs.clairvoyant else ''}.",
            title=f"{metric_title(y)}, against {metric_name(x)}",
            legend=[p for p in runs.policies if _has_value(runs, p, x) and _has_value(runs, p, y)],
        )
        metrics = (metric_title(x), metric_title(y))
        rows = [_row(runs, *member, (x, y)) for member in front]
        columns = [*_heads(runs), *((name, "") for name in metrics)]
        tables.append({"metrics": metrics, "columns": columns, "rows": rows})
    return tables


def _setting(runs: SweepRuns, left_out: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return the setup of the sweep: pairs of a term and its description."""
    rows = [
        (
            title_of(field.title) + f", {field.quantity.unit}" * bool(field.quantity.unit),
            ", ".join(written(v) for v in field.known) + (" (logarithmic axis)" if field.log else ""),
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
    wanted = [
        (policy, point) for policy in runs.policies for point in runs.points if runs.applies(policy, point)
    ]
    gaps = sum(not runs.has(*pair) for pair in wanted)
    if gaps:
        rows.append(("Not run", f"{gaps:,} of {len(wanted):,} combinations of policy and point"))
    return rows + [(why, f"{', '.join(names)} in all runs") for why, names in left_out.items() if names]


def _heads(runs: SweepRuns) -> list[tuple[str, str]]:
    """Return titles and units of the columns of the fields."""
    return [(field.quantity.label, field.quantity.unit) for field in runs.fields]


def _rows(runs: SweepRuns, metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Return the table: a row for each policy at each point."""
    return [
        _row(runs, policy, point, metrics, f"{len(runs.seeds_of(policy, point))}")
        for point in runs.points
        for policy in runs.policies
        if runs.has(policy, point)
    ]


def _row(runs: SweepRuns, policy: str, point: Point, metrics: Sequence[str], *texts: str) -> dict[str, Any]:
    """Return a row of a table: values of the fields, further texts, and means of metrics."""
    known = [text_cell(text) for text in (*(written(v) for v in point), *texts)]
    means = [mean_cell(runs.estimate(policy, point, metric)) for metric in metrics]
    return {"policy": policy, "marks": runs.marks(policy, point), "cells": known + means}
