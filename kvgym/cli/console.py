"""Output of the command line: consoles, tables and notes."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from kvgym.cli.tables import ResultTable
from kvgym.errors import ConfigError, printable

if TYPE_CHECKING:
    from kvgym.experiments.comparison import Comparison
    from kvgym.experiments.statistics import Estimate

for _name in ("stdout", "stderr"):
    if getattr(sys, _name) is None:  # closed, as by >&-
        setattr(sys, _name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115

for _stream in (sys.stdout, sys.stderr):
    if hasattr(_stream, "reconfigure"):  # characters that a terminal cannot show become "?", not an error
        _stream.reconfigure(errors="replace")


class Terminal(Console):
    """A console for untrusted text: control characters in it have no effect."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the printed segments; Rich's own control segments are kept."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


PIPED = 80
"""Width of output that is no terminal, unless the environment variable COLUMNS has another."""


def _width() -> int | None:
    """Return the width of standard output, None for the terminal's."""
    if sys.stdout.isatty():
        return None
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isdigit() and int(given) else PIPED


out = Terminal(highlight=False, width=_width())
err = Terminal(stderr=True, highlight=False)

DEFAULT_COLUMNS = (
    "e2e_latency_mean",
    "ttft_p50",
    "ttft_p99",
    "tbt_p99",
    "token_throughput",
    "kv_utilisation",
    "evictions",
)
URGENT = ("ttft_p99", "tbt_p99")
"""Metrics that keep their columns longer than the ratios and the other metrics where a table is too wide."""
_HEADINGS = {
    "e2e_latency": "E2E",
    "ttft": "TTFT",
    "tbt": "TBT",
    "tpot": "TPOT",
    "queueing_delay": "queueing",
    "job_completion_time": "job",
    "service_time": "service",
    "first_turn_ttft": "TTFT, first turns",
    "later_turn_ttft": "TTFT, later turns",
    "first_turn_latency": "E2E, first turns",
    "later_turn_latency": "E2E, later turns",
    "token_throughput": "tokens/s",
    "request_throughput": "requests/s",
    "kv_utilisation": "KV use",
    "slo_attainment": "within SLOs",
}


def set_width(columns: int | None) -> None:
    """Set the width of tables and notes: the option ``--width``; None leaves it."""
    if columns is not None:
        out.width = columns


def print_table(table: RenderableType) -> None:
    """Print a table; one that is wider than the terminal is not cut."""
    out.print(table, crop=False)


def print_line(text: str, style: str | None = None) -> None:
    """Print a text to standard output, without markup and without wrapping."""
    out.print(text, style=style, markup=False, soft_wrap=True)


def print_to_stderr(text: str, style: str | None = None) -> None:
    """Print a text to standard error, without markup and without wrapping."""
    err.print(text, style=style, markup=False, soft_wrap=True)


@contextlib.contextmanager
def optional(what: str) -> Iterator[None]:
    """Write an optional output in the block; a ConfigError is printed, and the command continues."""
    try:
        yield
    except ConfigError as error:
        err.print(f"no {what}: {error}", markup=False)


def heading(metric: str) -> str:
    """Return a short column heading, with the unit if it is seconds."""
    from kvgym.metrics.catalogue import LATENCIES, METRICS, SCALARS
    from kvgym.metrics.measured import STATISTICS

    if metric not in SCALARS and metric in METRICS:
        unit = METRICS[metric].info.unit
        return metric.replace("_", " ") + f" ({unit})" * (unit != "1")
    family, _, statistic = metric.rpartition("_")
    if statistic in STATISTICS and family in LATENCIES:
        unit = " (s)" * (LATENCIES[family].unit == "s")
        return f"{_HEADINGS.get(family, family.replace('_', ' '))} {statistic}{unit}"
    seconds = metric in SCALARS and SCALARS[metric].unit == "s"
    return _HEADINGS.get(metric, metric.replace("_", " ")) + " (s)" * seconds


def number(value: float) -> str:
    """Return a figure with about four significant digits."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if (value == round(value) and abs(value) >= 10) or value == 0:
        return f"{value:,.0f}"
    if abs(value) < 10:
        return f"{value:.3f}"
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def interval(estimate: Estimate) -> str:
    """Return the ends of an interval, "" if there is none."""
    if math.isnan(estimate.low):
        return ""
    return f"{number(estimate.low)} – {number(estimate.high)}"


def comparison_table(
    comparison: Comparison, columns: Sequence[str] = DEFAULT_COLUMNS, *, files: str = ""
) -> ResultTable:
    """Return the table of a comparison: the first metric with intervals and ratios, the others as means.

    If the comparison has bounds, the table also has the bound, and each policy's maximum ratio to the optimum.

    Args:
        comparison: the comparison.
        columns: metrics, the most important first.
        files: where all columns are.
    """
    from kvgym.experiments.comparison import BOUNDED
    from kvgym.experiments.describing import titled
    from kvgym.experiments.labels import short_labels

    many = len(comparison.seeds) > 1
    first, *rest = columns
    bounded = bool(comparison.bounds)
    short = short_labels(comparison.policies)
    title = titled(comparison.scenario.heading, comparison.scenario)
    table = ResultTable(title, _caption(comparison), files=files)
    kept = URGENT if set(URGENT) <= set(rest) else rest  # before the ratio
    table.column("policy", words=True)
    table.column(heading(first), rank=1)
    if many:
        table.column("95 % interval", rank=2, style="dim")
    table.column("×", rank=4)
    if bounded:
        table.column("× optimum", rank=4)
    for name in rest:
        table.column(heading(name), rank=3 if name in kept else 5)
    errors = comparison.errors()
    reference = comparison.reference(first)
    for policy in comparison.policies:
        estimate = comparison.estimate(policy, first)
        if policy in errors and math.isnan(estimate.value):
            table.row(short[policy], Text("failed", "red"))
            continue
        known = policy in comparison.clairvoyant
        table.row(
            short[policy] + comparison.signs(policy),
            number(estimate.value),
            *([interval(estimate)] if many else []),
            number(comparison.ratio(policy, reference, first).value),
            *([f"≤ {number(comparison.at_most(policy))}"] if bounded else []),
            *(number(comparison.estimate(policy, name).value) for name in rest),
            style="dim" if known else None,
        )
    if bounded and first == BOUNDED:
        ratio = comparison.bound().value / comparison.estimate(reference, first).value
        spans = [interval(comparison.bound())] if many else []
        table.row(
            "no scheduler below", number(comparison.bound().value), *spans, number(ratio), style="italic"
        )
    return table


def _mark(comparison: Comparison) -> str:
    known = f"; * clairvoyant: knows {comparison.foreknown}, a reference only"
    return known * bool(comparison.clairvoyant)


def _caption(comparison: Comparison) -> str:
    many = len(comparison.seeds) > 1
    over = f"means over {len(comparison.seeds)} seeds" if many else "one seed"
    real = " that is not clairvoyant" * (comparison.policies[0] in comparison.clairvoyant)
    text = f"{over}; × = ratio to the first result{real}" + (", paired by seed" if many else "")
    if comparison.bounds:
        text += "; × optimum: mean E2E over its lower bound"
    return text + _mark(comparison)


def agent_table(comparison: Comparison, agent: str, metric: str, *, files: str = "") -> ResultTable:
    """Return the table of an agent: means of one metric, and its improvement on each policy, paired by seed."""
    from kvgym.experiments.describing import titled
    from kvgym.experiments.labels import short_labels

    caption = (
        f"means over {len(comparison.seeds)} seeds from {comparison.seeds[0]:,}, 95 % intervals, paired by seed; "
        "positive = the agent is better" + _mark(comparison)
    )
    short = short_labels(comparison.policies)
    table = ResultTable(titled(comparison.scenario.heading, comparison.scenario), caption, files=files)
    table.column("policy", words=True)
    table.column(heading(metric), rank=1)
    table.column("95 % interval", rank=4)
    table.column("agent better by", rank=2)
    table.column("95 % interval", rank=3)
    table.column("unfinished", rank=5)
    for policy in comparison.policies:
        estimate, left = comparison.estimate(policy, metric), comparison.estimate(policy, "unfinished")
        gain = comparison.improvement(agent, policy, metric)
        own = policy == agent
        table.row(
            short[policy] + comparison.signs(policy),
            number(estimate.value),
            interval(estimate),
            "" if own else percent(gain.value),
            "" if own or math.isnan(gain.low) else f"{percent(gain.low)} – {percent(gain.high)}",
            number(left.value),
            style="bold" if own else None,
        )
    return table


def percent(share: float) -> str:
    """Return a signed percentage with one decimal."""
    return "–" if math.isnan(share) else f"{100 * share:+.1f} %"


def mapping_table(
    title: str, rows: Mapping[str, Sequence[str]], headings: Sequence[str], *, one_line: bool = False
) -> RenderableType:
    """Return a table with a name and texts per row; markup in them is escaped.

    Args:
        title: title.
        rows: texts by name.
        headings: column headings.
        one_line: truncate texts instead of wrapping them.
    """
    if one_line:
        lines = Table(title=escape(title), title_justify="left", box=None, pad_edge=False)
        for place, text in enumerate(headings):
            lines.add_column(escape(text), style=None if place else "bold", no_wrap=True)
        lines.columns[0].min_width = max(map(len, rows), default=0)
        for name, texts in rows.items():
            lines.add_row(*map(escape, (name, *texts)))
        return lines
    table = ResultTable(title, plain=True)
    for place, text in enumerate(headings):
        table.column(text, words=True, style=None if place else "bold")
    for name, texts in rows.items():
        table.row(name, *texts)
    return table


def markdown_table(headings: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Return a table as :func:`mapping_table` does, in Markdown, names as code."""
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    for name, texts in rows.items():
        cells = [f"`{name}`", *(text.replace("|", "\\|") for text in texts)]
        lines.append(f"| {' | '.join(cells)} |")
    return printable("\n".join(lines))


def metrics_table(metrics: Mapping[str, float]) -> ResultTable:
    """Return a table of those metrics that one run has: latencies by statistic, then the others."""
    from kvgym.metrics.catalogue import LATENCIES, METRICS, SCALARS
    from kvgym.metrics.measured import STATISTICS

    table = ResultTable(plain=True)
    table.column("seconds", words=True)
    for statistic in STATISTICS:
        table.column(statistic)
    for family in (f for f in LATENCIES if f"{f}_mean" in metrics):
        table.row(family, *(number(metrics[f"{family}_{s}"]) for s in STATISTICS))
    table.section()
    for name, info in {**SCALARS, **{name: METRICS[name].info for name in METRICS}}.items():
        if name in metrics:
            table.row(name, number(metrics[name]), info.unit if info.unit != "1" else "")
    return table


def workers_table(workers: Sequence[Mapping[str, Any]], *, files: str = "") -> ResultTable:
    """Return the table of the workers of a cluster."""
    table = ResultTable("by worker", files=files, plain=True)
    names = (
        "kv_capacity",
        "finished",
        "e2e_latency_mean",
        "ttft_mean",
        "evictions",
        "kv_utilisation",
        "busy_fraction",
    )
    for name in ("worker", "role"):
        table.column(name, words=True)
    for name in names:
        table.column(heading(name))
    for row in workers:
        figures = (float("nan") if row[name] is None else float(row[name]) for name in names)
        table.row(str(row["worker"]), row["role"], *(number(x) for x in figures))
    return table


def print_remarks(comparison: Comparison) -> None:
    """Print the notes of a comparison, and the errors of policies that failed."""
    print_notes(comparison.notes, comparison.policies, comparison.errors())


def print_notes(notes: Iterable[str], labels: Sequence[str], errors: Mapping[str, str] | None = None) -> None:
    """Print notes and the errors by label with short labels, and a note that gives the whole ones.

    Args:
        notes: the notes.
        labels: whole labels of the results.
        errors: an error by label.
    """
    from kvgym.experiments.labels import label_note, shortener

    shorten = shortener(labels)
    for note in [*map(shorten, notes), *label_note(labels)]:
        out.print(f"note: {note}", markup=False)
    for label, message in (errors or {}).items():
        out.print(f"{shorten(label)}: {message}", style="red", markup=False)
