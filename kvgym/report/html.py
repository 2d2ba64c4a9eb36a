"""The report of a comparison: one HTML file that needs nothing else."""

from __future__ import annotations

from kvgym.errors import UnknownNameError
from kvgym.experiments.comparison import Comparison
from kvgym.report import content, plots
from kvgym.report.numbers import figures
from kvgym.report.page import CHART_WIDTH, Page


def render(comparison: Comparison, *, command: str = "", reference: str | None = None) -> str:
    """Return the report as text, see :func:`kvgym.report.write_report`."""
    if reference is not None and reference not in comparison.policies:
        raise UnknownNameError("policy of this comparison", reference, comparison.policies)
    comparison = content.remember(comparison)
    chosen = reference or comparison.reference(content.REFERENCE_METRIC)
    page = Page(comparison.policies)
    _add_figures(page, comparison)
    return page.render(
        "comparison.html",
        title=f"Scheduler comparison: {comparison.scenario.name}",
        lead=content.lead(comparison),
        failures=content.failures(comparison),
        unfinished=content.unfinished_policies(comparison),
        setting=content.setting(comparison),
        notes=comparison.notes,
        completion=content.completion(comparison),
        policies=content.policy_rows(comparison),
        table=content.main_table(comparison, chosen),
        num_seeds=len(comparison.seeds),
        no_examples=not comparison.examples,
        metrics=content.full_table(comparison),
        definitions=content.definitions(),
        configuration=content.configuration(comparison, command),
        command=command,
        code=content.repeat_code(comparison),
    )


def _add_figures(page: Page, comparison: Comparison) -> None:
    """Add the figures with their captions."""
    over = (
        "mean over seeds with 95 % interval; dots: single seeds"
        if len(comparison.seeds) > 1
        else "one seed, hence no interval"
    )
    if comparison.bounds:
        over += f"; dashed: {figures(comparison.bound().value)} s, which no scheduler can be below"
    if comparison.clairvoyant:
        over += "; * clairvoyant: knows the true lengths, a reference and no scheduler that could be had"
    page.add(
        "bars", plots.latency_bars(comparison, width=CHART_WIDTH), f"Mean end-to-end latency by policy: {over}.",
        title="Mean end-to-end latency",
    )  # fmt: skip
    if not comparison.examples:
        return
    first = f"seed {comparison.seeds[0]}"
    ran = [p for p in comparison.policies if p in comparison.examples]
    absent = [p for p in comparison.policies if p not in comparison.examples]
    without = f" Not shown, as the run failed: {', '.join(absent)}." if absent else ""
    lines = (
        (
            "e2e",
            "End-to-end latency",
            plots.latency_distribution(comparison, "e2e_latency", legend=False, width=CHART_WIDTH),
            f"Share of requests completed within a given end-to-end latency, {first}.",
        ),
        (
            "ttft",
            "Time to first token",
            plots.latency_distribution(comparison, "ttft", legend=False, width=CHART_WIDTH),
            f"Share of requests whose first token came within a given time, {first}.",
        ),
        (
            "queue",
            "Requests waiting",
            plots.waiting_queue(comparison, legend=False, width=CHART_WIDTH),
            f"Requests waiting over time, {first}.",
        ),
        (
            "tokens",
            "Work over time",
            plots.token_throughput(comparison, legend=False, width=CHART_WIDTH),
            f"Work arriving and output tokens generated over time, {first}. The generated ones include tokens "
            "that were lost in an eviction and generated again.",
        ),
    )
    for name, title, chart, caption in lines:
        page.add(name, chart, caption + without, title=title, legend=ran)
    strips = [(plots.kv_memory(comparison, policies=[p], width=CHART_WIDTH), p) for p in ran]
    page.add(
        "memory", strips, f"KV memory in use over time, {first}; dashed: capacity.{without}",
        title="KV memory in use", wide=True,
    )  # fmt: skip
