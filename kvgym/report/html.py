"""The report of a comparison as one self-contained HTML file."""

from __future__ import annotations

from kvgym.errors import UnknownNameError
from kvgym.experiments.comparison import Comparison
from kvgym.experiments.describing import titled
from kvgym.report import breakdown, caching, content, fleets, inside, plots
from kvgym.report.numbers import figures
from kvgym.report.page import Page
from kvgym.report.plots import busiest_minute


def render(comparison: Comparison, *, command: str = "", reference: str | None = None) -> str:
    """Return the report as text, see :func:`kvgym.report.write_report`."""
    if reference is not None and reference not in comparison.policies:
        raise UnknownNameError("policy of this comparison", reference, comparison.policies)
    comparison = content.with_cache(comparison)
    chosen = reference or comparison.reference(content.REFERENCE_METRIC)
    page = Page(comparison.policies)
    _add_figures(page, comparison)
    return page.render(
        "comparison.html",
        content.configuration(comparison),
        command,
        title=f"Scheduler comparison: {comparison.scenario.name}",
        lead=content.lead(comparison),
        failures=content.failures(comparison),
        unfinished=content.unfinished_policies(comparison),
        about=titled(comparison.scenario.heading, comparison.scenario),
        setting=content.setting(comparison),
        notes=comparison.notes,
        completion=content.completion(comparison),
        policies=content.policy_rows(comparison),
        table=content.main_table(comparison, chosen),
        reference=chosen,
        num_seeds=len(comparison.seeds),
        no_examples=not comparison.examples,
        metrics=content.full_table(comparison),
        workers=content.worker_table(comparison),
        code=content.repeat_code(comparison),
    )


def _add_figures(page: Page, comparison: Comparison) -> None:
    """Add the figures with their captions."""
    over = (
        "mean over seeds with 95 % interval; dots: single seeds"
        if len(comparison.seeds) > 1
        else "one seed, so no interval"
    )
    if comparison.bounds:
        over += f"; dashed: {figures(comparison.bound().value)} s, a lower bound for any scheduler"
    if comparison.clairvoyant:
        over += f"; * clairvoyant: knows {comparison.foreknown}; a reference, not a deployable scheduler"
    page.add(
        "bars", plots.latency_bars(comparison), f"Mean end-to-end latency by policy: {over}.",
        title="Mean end-to-end latency",
    )  # fmt: skip
    if any(run.workers for run in comparison.runs):
        page.add(
            "workers",
            breakdown.worker_points(comparison),
            "Metrics of each worker, means over seeds; Details has the table by worker.",
            title="By worker",
            legend=[p for p in comparison.policies if comparison.worker_means(p)],
        )
    if any(result.fleet is not None for result in comparison.examples.values()):
        page.add(
            "fleet", fleets.fleet_pictures(comparison),
            "Workers by state and the target of the autoscaler; arrivals and completions; time to first token by "
            f"arrival. Seed {comparison.seeds[0]}.",
            title="The fleet over time", wide=True,
        )  # fmt: skip
    if comparison.examples:
        _add_inside(page, comparison)
        _add_single_runs(page, comparison)


def _add_single_runs(page: Page, comparison: Comparison) -> None:
    """Add figures of the runs of the first seed: distributions, also by class, and plots over time."""
    first = f"seed {comparison.seeds[0]}"
    ran = [p for p in comparison.policies if p in comparison.examples]
    absent = [p for p in comparison.policies if p not in comparison.examples]
    without = f" Not shown, as the run failed: {', '.join(absent)}." if absent else ""
    long = plots.cut_off(comparison.examples)
    cut = f" Cut off, as the run is much longer: {', '.join(long)}." if long else ""
    part = " Shown at first: the busiest minute." if busiest_minute(comparison.examples) else ""
    distributions = {
        "e2e_latency": "requests completed within a given end-to-end latency",
        "ttft": "requests with their first token within a given time",
        "tpot": "finished requests with at most a given mean time per output token",
        "tbt": "gaps between consecutive tokens, over all requests, of at most a given length",
    }
    for name, what in distributions.items():
        page.add(
            name.replace("_", ""),
            plots.latency_distribution(comparison, name),
            f"Share of {what}, {first}.{without}",
            title=f"{plots.LATENCIES[name].label}, distribution",
            legend=ran,
        )
    over_time = [
        ("queue", "Requests waiting", plots.waiting_queue, f"Requests waiting over time, {first}."),
        (
            "tokens",
            "Work over time",
            plots.token_throughput,
            f"Arriving work and generated output tokens over time, {first}. Tokens that were lost in an eviction and "
            "generated again count again.",
        ),
    ]
    if caching.is_cached(comparison):
        found = (
            f"Tokens found in the prefix cache, and cached memory that no request holds, over time, {first}."
        )
        over_time.append(("cache", "Prefix cache over time", caching.cache_use, found))
    if caching.speculates(comparison):
        drafts = f"Drafts that a request verifies in a batch, and the share of them that is right, {first}."
        over_time.append(("drafts", "Speculation over time", caching.draft_use, drafts))
    for name, title, draw, caption in over_time:
        page.add(name, draw(comparison), caption + part + without + cut, title=title, legend=ran)
    if breakdown.class_names(next(iter(comparison.examples.values())).table):
        for name in ("e2e_latency", "ttft", "tpot", "longest_gap"):
            page.add(
                f"class{name.replace('_', '')}",
                breakdown.class_distributions(comparison, name),
                f"Share of the class's finished requests within a given time, {first}.{without}",
                title=f"{plots.LATENCIES[name].label}, by class",
                legend=ran,
            )


def _add_inside(page: Page, comparison: Comparison) -> None:
    """Add figures of what happens inside the runs of the first seed."""
    cluster = any(len(result.worker) > 1 for result in comparison.examples.values())
    several = " of all workers" if cluster else ""
    part = " of those in the system in the busiest minute" if busiest_minute(comparison.examples) else ""
    page.add(
        "timeline", inside.timelines(comparison),
        f"Above: requests in order of arrival, at most {inside.ROWS} of them, evenly chosen{part}. "
        f"Below: KV memory{several} by request; line: all memory in use, dashed: capacity. Seed {comparison.seeds[0]}.",
        title="Requests and their memory over time", wide=True,
    )  # fmt: skip
    first = "the first worker that decodes" if several else "the worker"
    middle = f"the middle of the {'busiest minute' if part else 'arrivals'}"
    page.add(
        "batches", inside.batch_bars(comparison),
        f"Tokens in {inside.BATCHES} successive batches of {first}, from {middle} on, seed "
        f"{comparison.seeds[0]}. A bar is as wide as its batch takes: running requests wait that long for a token.",
        title="Batches", wide=True,
    )  # fmt: skip
