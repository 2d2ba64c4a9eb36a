"""Output of the command line: consoles, tables and notes."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

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


# Piped output is not bound to a terminal's width; 140 columns hold every table.
out = Terminal(highlight=False, width=None if sys.stdout.isatty() else 140)
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


def make_table(title: str | None = None, caption: str | None = None) -> Table:
    """Return an empty table of results."""
    return Table(
        title=None if title is None else escape(title),
        caption=caption,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
    )


def heading(metric: str) -> str:
    """Return a short column heading, with the unit if it is seconds."""
    from kvgym.metrics import LATENCIES, METRICS, SCALARS, STATISTICS

    if metric not in SCALARS and metric in METRICS:
        unit = METRICS[metric].info.unit
        return metric.replace("_", " ") + f" ({unit})" * (unit != "1")
    family, _, statistic = metric.rpartition("_")
    if statistic in STATISTICS and family in LATENCIES:
        return f"{_HEADINGS[family]} {statistic} (s)"
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


def comparison_table(comparison: Comparison, columns: Sequence[str] = DEFAULT_COLUMNS) -> Table:
    """Return the table of a comparison: the first metric with intervals and ratios, the others as means.

    If the comparison has bounds, the table also has the bound, and each policy's maximum ratio to the optimum.
    """
    from kvgym.experiments.comparison import BOUNDED
    from kvgym.experiments.describing import titled

    many = len(comparison.seeds) > 1
    first, *rest = columns
    bounded = bool(comparison.bounds)
    table = make_table(titled(comparison.scenario.heading, comparison.scenario), _caption(comparison))
    table.add_column("policy", no_wrap=True)
    table.add_column(heading(first), justify="right")
    if many:
        table.add_column("95 % interval", justify="right", style="dim", no_wrap=True)
    table.add_column("×", justify="right")
    if bounded:
        table.add_column("× optimum", justify="right")
    for name in rest:
        table.add_column(heading(name), justify="right")
    errors = comparison.errors()
    reference = comparison.reference(first)
    for policy in comparison.policies:
        estimate = comparison.estimate(policy, first)
        if policy in errors and math.isnan(estimate.value):
            table.add_row(escape(policy), "[red]failed[/]")
            continue
        known = policy in comparison.clairvoyant
        table.add_row(
            escape(policy + comparison.signs(policy)),
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
        table.add_row(
            "no scheduler below", number(comparison.bound().value), *spans, number(ratio), style="italic"
        )
    return table


_MARK = "; * clairvoyant: knows the true lengths, a reference only"


def _caption(comparison: Comparison) -> str:
    many = len(comparison.seeds) > 1
    over = f"means over {len(comparison.seeds)} seeds" if many else "one seed"
    real = " that is not clairvoyant" * (comparison.policies[0] in comparison.clairvoyant)
    text = f"{over}; × = ratio to the first result{real}" + (", paired by seed" if many else "")
    if comparison.bounds:
        text += "; × optimum: mean E2E over its lower bound"
    return text + _MARK * bool(comparison.clairvoyant)


def agent_table(comparison: Comparison, agent: str, metric: str) -> Table:
    """Return the table of an agent: means of one metric, and its improvement on each policy, paired by seed."""
    from kvgym.experiments.describing import titled

    caption = (
        f"means over {len(comparison.seeds)} seeds from {comparison.seeds[0]:,}, 95 % intervals, paired by seed; "
        "positive = the agent is better" + _MARK * bool(comparison.clairvoyant)
    )
    table = make_table(titled(comparison.scenario.heading, comparison.scenario), caption)
    table.add_column("policy", no_wrap=True)
    for text in (heading(metric), "95 % interval", "agent better by", "95 % interval", "unfinished"):
        table.add_column(text, justify="right", no_wrap=True)
    for policy in comparison.policies:
        estimate, left = comparison.estimate(policy, metric), comparison.estimate(policy, "unfinished")
        gain = comparison.improvement(agent, policy, metric)
        own = policy == agent
        table.add_row(
            escape(policy + comparison.signs(policy)),
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
) -> Table:
    """Return a table with a name and texts per row; markup in them is escaped.

    Args:
        title: title.
        rows: texts by name.
        headings: column headings.
        one_line: truncate texts instead of wrapping them.
    """
    table = Table(title=escape(title), title_justify="left", box=None, pad_edge=False)
    table.add_column(
        escape(headings[0]), style="bold", no_wrap=True, min_width=max(map(len, rows), default=0)
    )
    for text in headings[1:]:
        table.add_column(escape(text), no_wrap=one_line)
    for name, texts in rows.items():
        table.add_row(*map(escape, (name, *texts)))
    return table


def markdown_table(headings: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Return a table as :func:`mapping_table` does, in Markdown, names as code."""
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    for name, texts in rows.items():
        cells = [f"`{name}`", *(text.replace("|", "\\|") for text in texts)]
        lines.append(f"| {' | '.join(cells)} |")
    return printable("\n".join(lines))


def metrics_table(metrics: Mapping[str, float]) -> Table:
    """Return a table of one run's metrics: latencies by statistic, then the others."""
    from kvgym.metrics import LATENCIES, METRICS, SCALARS, STATISTICS

    table = Table(box=None, pad_edge=False)
    table.add_column("seconds")
    for statistic in STATISTICS:
        table.add_column(statistic, justify="right")
    for family in LATENCIES:
        table.add_row(family, *(number(metrics[f"{family}_{s}"]) for s in STATISTICS))
    table.add_section()
    for name, info in {**SCALARS, **{name: METRICS[name].info for name in METRICS}}.items():
        table.add_row(name, number(metrics[name]), info.unit if info.unit != "1" else "")
    return table


def workers_table(workers: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of the workers of a cluster."""
    table = Table(title="by worker", title_justify="left", box=None, pad_edge=False)
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
        table.add_column(name)
    for name in names:
        table.add_column(heading(name), justify="right")
    for row in workers:
        figures = (float("nan") if row[name] is None else float(row[name]) for name in names)
        table.add_row(str(row["worker"]), row["role"], *(number(x) for x in figures))
    return table


def print_remarks(comparison: Comparison) -> None:
    """Print the notes of a comparison, and the errors of policies that failed."""
    for note in comparison.notes:
        out.print(f"note: {note}", markup=False)
    for policy, message in comparison.errors().items():
        out.print(f"{policy}: {message}", style="red", markup=False)
