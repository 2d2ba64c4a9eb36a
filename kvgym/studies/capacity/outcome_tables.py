"""Tables of capacities and plans, declared once for terminals and for reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kvgym.batch_time.deployments.load import hardware_label
from kvgym.experiments.labels import short_labels
from kvgym.experiments.statistics import Estimate
from kvgym.report.sections import mark_words
from kvgym.studies.capacity.estimates import OBVIOUS, SOUND
from kvgym.studies.capacity.provisioned import Provisioning
from kvgym.studies.capacity.result import Capacity, CapacityResult
from kvgym.studies.capacity.scaled import FIXED
from kvgym.studies.capacity.targets import Target

Value = Estimate | float | int | str | None
"""A cell: a text, a number, a mean with its interval, or None for no value."""


class Column(NamedTuple):
    """A column.

    Attributes:
        heading: heading in a terminal; "" = the metric's.
        title: heading in a report; "" = the metric's.
        unit: unit in a report.
        rank: importance in a terminal, see :mod:`kvgym.cli.tables`; None = by its place.
        words: whether it holds words.
        spread: whether intervals of its means have a column in a terminal.
        metric: the metric that it shows, if it shows one.
    """

    heading: str = ""
    title: str = ""
    unit: str = ""
    rank: int | None = None
    words: bool = False
    spread: bool = False
    metric: str = ""


class Row(NamedTuple):
    """A row.

    Attributes:
        label: what it is about in a report: the label of a policy, or another name.
        names: the same in a terminal, a text for each column of names.
        cells: values, one per column.
        marks: marks of the policy, in words.
    """

    label: str
    names: tuple[str, ...]
    cells: tuple[Value, ...]
    marks: tuple[str, ...] = ()


class OutcomeTable(NamedTuple):
    """A table of a result.

    Attributes:
        names: columns that name the rows in a terminal; a report has one column with the label in their place.
        columns: the other columns.
        rows: the rows.
    """

    names: tuple[Column, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


def capacity_table(result: CapacityResult, longest: int | None = None) -> OutcomeTable:
    """Return a row per capacity.

    Args:
        result: the search.
        longest: maximum length of a reason; longer ones are cut. None = no maximum.
    """
    many = len(result.seeds) > 1
    counted = len({c.workers for c in result.capacities}) > 1
    columns = [Column("requests/s", "Capacity", "requests/s", spread=many)]
    if many:
        columns.append(Column("on every seed", "On every seed", "requests/s", rank=99))
    if counted:
        columns += [Column("per worker", "Per worker", "requests/s"), Column("efficiency", "Efficiency")]
    columns += [Column("fails next", "Fails next", words=True), *_of_targets(result.targets)]
    short = short_labels(c.label for c in result.capacities)
    rows = []
    for c in result.capacities:
        cells: list[Value] = [c.estimate]
        cells += [c.on_every_seed] if many else []
        cells += [c.estimate.value / (c.workers or 1), f"{result.efficiency(c):.0%}"] if counted else []
        cells += [_limits(c, longest), *(c.values[t.metric] for t in result.targets)]
        rows.append(
            Row(c.label, (short[c.label] + c.signs,), tuple(cells), mark_words(c.marks, c.clairvoyant))
        )
    return OutcomeTable((Column("policy", words=True),), tuple(columns), tuple(rows))


def counts_seeds(c: Capacity) -> bool:
    """Return whether the limits of a policy are shown with their number of seeds."""
    return len(c.limits) > 1 and len(c.held) > 1


def _limits(c: Capacity, longest: int | None) -> str:
    """Return what limits a policy, with the number of seeds if that differs between seeds."""
    counts = [f" ({count})" if counts_seeds(c) else "" for _, count in c.limits]
    texts = [_cut(text, longest) for text, _ in c.limits]
    return ", ".join(map("".join, zip(texts, counts, strict=True))) or "–"


def _cut(reason: str, longest: int | None) -> str:
    """Return a reason, shortened if it is too long for a column, as the text of an error can be."""
    return reason if longest is None or len(reason) <= longest else f"{reason[: longest - 1]}…"


def _of_targets(targets: Iterable[Target], rank: int | None = None) -> list[Column]:
    """Return a column for the metric of each target."""
    return [Column(metric=target.metric, rank=rank) for target in targets]


def plan_table(result: Provisioning, longest: int | None = None) -> OutcomeTable:
    """Return a row per plan; arguments as for :func:`capacity_table`."""
    priced = any(plan.price is not None for plan in result.plans)
    named = [name for name in ("hardware", "router") if len({getattr(p, name) for p in result.plans}) > 1]
    columns = [Column("workers", "Workers", rank=2), *_of_targets(result.targets, rank=5)]
    columns.append(Column("one fewer misses", "One fewer misses", rank=6, words=True))
    if priced:
        columns.append(Column("cost/hour", "Cost", "per hour", rank=3))
        columns.append(Column("cost/million output tokens", "Cost", "per million output tokens", rank=4))
    columns.append(Column("theory ⌈λ/μ⌉", "Theory", "workers", rank=7))
    columns.append(Column("by one worker's rate within targets", "Per worker", "workers", rank=8))
    short = short_labels(labels_of(result))
    rows = []
    for plan in result.plans:
        own = {"hardware": hardware_label(plan.hardware) or "–", "router": short[plan.router]}
        cells: list[Value] = [plan.simulated, *(plan.values[t.metric] for t in result.targets)]
        cells.append("; ".join(_cut(text, longest) for text in plan.one_fewer) or "–")
        cells += [plan.cost_per_hour, result.cost_per_million_tokens(plan)] if priced else []
        cells += [plan.by_theory, plan.by_targets]
        names = (*(own[name] for name in named), short[plan.policy])
        rows.append(Row(result.label(plan), names, tuple(cells)))
    return OutcomeTable(_names(*named, "policy"), tuple(columns), tuple(rows))


def labels_of(result: Provisioning) -> list[str]:
    """Return the labels of policies and routers."""
    routers = (plan.router for plan in result.plans)
    return list(dict.fromkeys([*(own.policy for own in result.workers), *routers]))


def _names(*headings: str) -> tuple[Column, ...]:
    return tuple(Column(heading, rank=1, words=True) for heading in headings)


def window_table(result: Provisioning, number: Callable[[float], str]) -> OutcomeTable:
    """Return a row per window, and a summary over the windows of each plan.

    Args:
        result: the outcome.
        number: writes a number.
    """
    columns = (
        Column("window", "Window", rank=1, words=True), Column("requests/s", "Arrivals", "1/s", rank=4),
        Column("theory", "Theory", "workers", rank=7), Column("simulated", "Simulated", "workers", rank=2),
    )  # fmt: skip
    short = short_labels(labels_of(result))
    rows = []
    for plan in result.plans:
        on = f"{hardware_label(plan.hardware)}: " if plan.hardware else ""
        names = f"{on}{short[plan.policy]}", short[plan.router]
        cells: list[tuple[Value, ...]] = [
            (f"{w.start:,.0f} – {w.end:,.0f} s", w.rate, w.by_theory, w.simulated)
            for w in result.windows_of(plan)
        ]
        if (profile := result.window_summary(plan)) is not None:
            cost = "" if plan.price is None else f" (cost/hour {number(profile.mean * plan.price)})"
            cells += [
                ("peak", "", "", str(profile.peak)),
                ("sufficient in 95 % of the windows", "", "", str(profile.p95)),
                ("mean: the instant profile", "", "", f"{profile.mean:.2f}{cost}"),
            ]
        rows += [Row(result.label(plan), names, own) for own in cells]
    return OutcomeTable(_names("policy", "router"), columns, tuple(rows))


def fleet_table(result: Provisioning) -> OutcomeTable:
    """Return a row per autoscaler, for the best fixed size and for the references; GPU-hours relative to the first."""
    priced = any(plan.cost is not None for plan in result.fleets)
    columns = [
        Column("rule", "Rule", rank=1, words=True), Column("GPU-hours", "GPU-hours", rank=2),
        Column("saved", "Saved", rank=3), Column("workers", "Mean workers", rank=6),
        *([Column("cost", "Cost", rank=4)] if priced else []), *_of_targets(result.targets, rank=5),
    ]  # fmt: skip
    named = [name for name in ("hardware", "router") if len({getattr(p, name) for p in result.fleets}) > 1]
    short = short_labels(labels_of(result))
    fixed = {(p.hardware, p.policy, p.router): p.gpu_hours for p in result.fleets if p.rule == FIXED}
    rows = []
    for plan in result.fleets:
        own = {"hardware": hardware_label(plan.hardware) or "–", "router": short[plan.router]}
        saved = 1 - plan.gpu_hours / fixed[plan.hardware, plan.policy, plan.router]
        missed = plan.gpu_hours != plan.gpu_hours
        cells: list[Value] = [f"{plan.rule}{'*' * plan.reference}", None if missed else plan.gpu_hours]
        cells += ["misses the targets" if missed else f"{saved:.0%}", None if missed else plan.workers]
        cells += [plan.cost] if priced else []
        cells += [plan.values.get(target.metric) for target in result.targets]
        names = (*(own[name] for name in named), short[plan.policy])
        rows.append(Row(result.label(plan), names, tuple(cells)))
    return OutcomeTable(_names(*named, "policy"), tuple(columns), tuple(rows))


def estimate_table(result: Provisioning) -> OutcomeTable:
    """Return a row per estimate of a worker's rate, with its error, and the measured rates."""
    columns = (
        Column("estimate", "Estimate", rank=1, words=True), Column("batch time (ms)", "Batch time", "ms", rank=5),
        Column("requests/s", "Requests", "1/s", rank=4), Column("error", "Error", rank=5),
        Column("workers", "Workers", rank=2),
    )  # fmt: skip
    short = short_labels(labels_of(result))
    rows = []
    for own in result.workers:
        label = f"{own.policy} on {own.hardware}" if own.hardware else own.policy
        names = hardware_label(own.hardware) or "–", short[own.policy]
        kinds = {SOUND: " (theory)", OBVIOUS: " (obvious)"}
        cells: list[tuple[Value, ...]] = [
            (
                f"μ, {e.estimator} batch time, {e.run if e.run == SOUND[0] else f'trace {e.run}'}"
                + kinds.get((e.run, e.estimator), ""),
                f"{1000 * e.batch_time:.1f}", e.service, f"{e.error:+.1%}", e.workers,
            )
            for e in own.estimates
        ]  # fmt: skip
        for what, measured in (
            ("measured: throughput of a saturated worker", own.measured),
            ("measured: backlog does not grow, Poisson arrivals", own.backlog_rate),
            ("measured: targets are met, load compressed", own.target_rate),
        ):
            off = "" if measured is own.measured else f"{measured / own.measured - 1:+.1%}"
            cells.append((what, "", measured, off, -int(-result.rate // measured) if measured > 0 else None))
        rows += [Row(label, names, each) for each in cells]
    return OutcomeTable(_names("hardware", "policy"), columns, tuple(rows))
