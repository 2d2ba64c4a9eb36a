"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from kvgym.errors import UnknownNameError
from kvgym.experiments.comparison import Comparison
from kvgym.report import content, plots
from kvgym.report.svg import inline_svg
from kvgym.report.template import CSS, PAGE
from kvgym.version import __version__


def render(comparison: Comparison, *, command: str = "", reference: str | None = None) -> str:
    """Return the report as text, see :func:`kvgym.report.write_report`."""
    if reference is not None and reference not in comparison.policies:
        raise UnknownNameError("policy of this comparison", reference, comparison.policies)
    comparison = content.remember(comparison)
    chosen = reference or comparison.reference(content.REFERENCE_METRIC)
    styles = plots.policy_styles(comparison.policies)

    def swatch(policy: str) -> Markup:
        return Markup('<span class="swatch" style="background:{}"></span>').format(styles[policy].color)

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(PAGE).render(
        title=f"Scheduler comparison: {comparison.scenario.name}",
        css=Markup(CSS),
        lead=content.lead(comparison),
        failures=content.failures(comparison),
        unfinished=content.unfinished_policies(comparison),
        setting=content.setting(comparison),
        notes=comparison.notes,
        completion=content.completion(comparison),
        policies=content.policy_rows(comparison),
        table=content.main_table(comparison, chosen),
        num_seeds=len(comparison.seeds),
        plots=_plots(comparison),
        no_examples=not comparison.examples,
        metrics=content.full_table(comparison),
        definitions=content.definitions(),
        configuration=content.configuration(comparison, command),
        version=__version__,
        command=command,
        code=content.repeat_code(comparison),
        swatch=swatch,
        inline=_inline,
    )


def write_page(comparison: Comparison, path: str | Path, *, command: str, reference: str | None) -> Path:
    """Write the report, see :func:`kvgym.report.write_report`."""
    text = render(comparison, command=command, reference=reference)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target


def _inline(parts: list[dict[str, Any]]) -> Markup:
    """Return a text whose code parts are marked up as such."""
    return Markup("").join(
        Markup("<code>{}</code>").format(p["text"]) if p["code"] else escape(p["text"]) for p in parts
    )


def _plots(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the figures with their captions."""
    seeds = len(comparison.seeds)
    over = (
        "mean over seeds with 95 % interval; dots: single seeds"
        if seeds > 1
        else "one seed, hence no interval"
    )
    made = [("bars", plots.latency_bars(comparison), f"Mean end-to-end latency by policy: {over}.")]
    if comparison.examples:
        first = f"seed {comparison.seeds[0]}"
        absent = [p for p in comparison.policies if p not in comparison.examples]
        without = f" Not shown, as the run failed: {', '.join(absent)}." if absent else ""
        made += [
            (
                "e2e",
                plots.latency_distribution(comparison, "e2e_latency"),
                f"Share of requests completed within a given end-to-end latency, {first}.{without}",
            ),
            (
                "ttft",
                plots.latency_distribution(comparison, "ttft"),
                f"Share of requests whose first token came within a given time, {first}.{without}",
            ),
            ("memory", plots.kv_memory(comparison), f"KV memory in use, {first}; dashed: capacity.{without}"),
            ("queue", plots.waiting_queue(comparison), f"Requests waiting, {first}.{without}"),
            (
                "tokens",
                plots.token_throughput(comparison),
                f"Work arriving and output tokens generated over time, {first}. The generated ones include tokens "
                f"that were lost in an eviction and generated again.{without}",
            ),
        ]
    return [
        {"svg": Markup(inline_svg(figure, name, caption)), "caption": caption}
        for name, figure, caption in made
    ]
