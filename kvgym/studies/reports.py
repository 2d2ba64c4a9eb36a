"""Self-contained HTML reports of studies; the extra ``kvgym[report]`` is needed only when they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvgym.report import require
from kvgym.utils.arguments import explained

if TYPE_CHECKING:
    from kvgym.studies.capacity.provisioned import Provisioning
    from kvgym.studies.capacity.result import CapacityResult


@explained
def write_sweep_report(
    frame: Any,
    fields: Sequence[str],
    path: str | Path,
    *,
    metrics: Sequence[str] | None = None,
    title: str = "",
    lead: str = "",
    notes: Sequence[str] = (),
    command: str = "",
    configuration: Mapping[str, Any] | None = None,
) -> Path:
    """Write a sweep as one HTML file that works offline.

    It shows metrics against every swept field with 95 % intervals over seeds, heat maps over pairs of numeric fields,
    Pareto fronts, a table, and failures. No figure averages over a field: fields that are not shown are fixed at a
    value, which the caption states.

    Args:
        frame: a row per run: a column for each swept field (numbers, strings or booleans; missing
            if a field does not apply to a run), ``policy`` (str), ``seed`` (int), ``error`` (str, "" if fine),
            ``marks`` (str, optional: names of
            :data:`kvgym.experiments.marks.MARKS`), and a column per metric of :func:`kvgym.metrics.metric_names`.
        fields: names of the swept columns, in order; the first get the most space.
        path: the file; folders are created.
        metrics: metrics of the curves; heat maps show the first. None = mean end-to-end latency, p99 of TTFT and of
            TBT, and token throughput.
        title: heading; "" = the swept fields.
        lead: the outcome in a sentence or two; "" = the best policies and the number of runs.
        notes: remarks, one sentence each.
        command: the command line, shown so that readers can repeat it.
        configuration: settings common to all runs, JSON-able, by title.

    Returns:
        The path.

    Raises:
        ConfigError: Jinja2 is missing; columns are missing or of another type; a run appears twice; a
            metric does not exist; there are no runs.
    """
    require("jinja2")
    from kvgym.report.page import write_text
    from kvgym.studies.sweeping.report.page import render_sweep

    text = render_sweep(
        frame, fields, metrics=metrics, title=title, lead=lead, notes=notes, command=command,
        configuration=configuration or {},
    )  # fmt: skip
    return write_text(text, path)


@explained
def write_capacity_report(
    result: CapacityResult | Provisioning, path: str | Path, *, command: str = ""
) -> Path:
    """Write a search for capacity, or provisioning, as one HTML file that works offline.

    A capacity has TTFT and TBT by rate, provisioning workers or cost by rate, estimates, and windows if there are any.

    Args:
        result: the outcome of :func:`~kvgym.studies.capacity.finding.find_capacity` or
            :func:`~kvgym.studies.capacity.provisioning.provision`; with its ``curve`` the figures have several rates.
        path: the file; folders are created.
        command: the command line, shown so that readers can repeat it.

    Returns:
        The path.

    Raises:
        ConfigError: Jinja2 is missing.
    """
    require("jinja2")
    from kvgym.report.page import write_text
    from kvgym.studies.capacity.page import render

    return write_text(render(result, command=command), path)
