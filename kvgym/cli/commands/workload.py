"""``kvgym workload``: describe the requests of a trace, a preset or a scenario."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgym.cli import console
from kvgym.cli.fields import group
from kvgym.cli.options.scenario import scenario_options
from kvgym.experiments.scenario_options import DEFAULT_SCENARIO, ScenarioOptions

if TYPE_CHECKING:
    from kvgym.experiments.scenario import Scenario

_REQUESTS = tuple(name for name in group("requests") if name not in ("workload", "predictions"))


@scenario_options(*_REQUESTS)
def workload(
    options: ScenarioOptions,
    source: Annotated[
        str | None,
        typer.Argument(
            help="Trace file, preset (kvgym list workloads), or scenario (kvgym list scenarios, or a YAML file); "
            "or give --trace."
        ),
    ] = None,
    unit: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that a prefix cache shares at a time (default: those of a hash)."),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--cache-sizes", help="Sizes of prefix caches to try, tokens, comma-separated: 1e6,5e6."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the requests.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Write a picture (.png, .svg, .pdf; needs kvgym\\[pictures]).")
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(
            "--fit-lengths",
            help="Write a YAML file with joint prompt and output lengths fitted to the requests.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Describe a workload: its rate, lengths and sessions, and its reuse by a prefix cache.

    Reuse is measured with requests that run one after another through a cache that evicts the least recently used
    blocks. In a run, requests overlap and outputs take memory, so that less is reused.
    """
    from kvgym.workloads.describing import describe_requests
    from kvgym.workloads.summary import summarise

    if (source is None) == (options.trace is None):
        from kvgym.errors import ConfigError

        raise ConfigError("give one workload: a trace file, preset or scenario, or --trace FILE")
    if source is None:
        source, options = str(options.trace), replace(options, trace=None)
    chosen = find_workload(source, options)
    made = chosen.make_workload()
    requests = made.sample(seed)
    summary = summarise(requests, unit=unit, capacities=None if sizes is None else _sizes(sizes))
    found = summary.to_dict()
    if plot is not None:
        from kvgym.report import require
        from kvgym.utils.files import whole_file

        require("matplotlib", "pictures")
        from kvgym.report.workload import workload_figure

        plot.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(plot) as place:
            workload_figure(summary).savefig(place, dpi=130)
    if fit is not None:
        from kvgym.utils.files import whole_file
        from kvgym.workloads.mixtures import fit_lengths, mixture_text

        fitted = mixture_text(fit_lengths(requests.prompt_len, requests.output_len))
        fit.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(fit) as place:
            place.write_text(fitted)
    if as_json:
        print(json.dumps({"workload": made.spec.name, "seed": seed, **found}, indent=2))
        return
    console.print_line(describe_requests(made))
    for table in tables(found):
        console.print_table(table)
    for note in found["notes"]:
        console.print_line(f"note: {note}")
    if plot is not None:
        console.print_line(f"picture: {plot}")
    if fit is not None:
        console.print_line(f"fitted lengths: {fit}; use them as lengths of a workload")


def find_workload(source: str, options: ScenarioOptions) -> Scenario:
    """Return a scenario with the workload that a text names.

    Args:
        source: name of a preset or scenario, or path of a scenario or trace file.
        options: changes to the workload.

    Raises:
        UnknownNameError: there is none of this name.
    """
    from kvgym.errors import UnknownNameError
    from kvgym.experiments.changes import build_scenario
    from kvgym.experiments.scenario import scenario_names
    from kvgym.workloads.inference_perf import is_specification
    from kvgym.workloads.presets import PRESETS

    if source in PRESETS:
        return build_scenario(DEFAULT_SCENARIO, options, workload=source)
    if is_specification(Path(source)):
        return build_scenario(DEFAULT_SCENARIO, options, trace=Path(source))
    if source in scenario_names() or Path(source).suffix in (".yaml", ".yml"):
        return build_scenario(source, options)
    if Path(source).suffix or Path(source).exists():
        return build_scenario(DEFAULT_SCENARIO, options, trace=Path(source))
    raise UnknownNameError("workload, scenario or trace file", source, sorted({*PRESETS, *scenario_names()}))


def _sizes(given: str) -> list[int]:
    """Return sizes of caches from a comma-separated list.

    Raises:
        ConfigError: one is no whole number of tokens.
    """
    from kvgym.errors import ConfigError, shown

    found = []
    for text in given.split(","):
        try:
            size = float(text)
        except ValueError:
            size = 0.0
        if not 1 <= size < 2**53 or size != int(size):
            raise ConfigError(
                f"--cache-sizes: {shown(text)}; expected whole numbers of tokens, as in 1000000,5e6"
            )
        found.append(int(size))
    return found


def tables(found: Mapping[str, Any]) -> list[Any]:
    """Return the tables of a description by :meth:`~kvgym.workloads.summary.Summary.to_dict`."""
    headings = ("", "mean", *("p50", "p90", "p99"), "max")
    rows = {f"{name} (tokens)": _figures(found[f"{name}_len"]) for name in ("prompt", "output")}
    rate, sessions, reuse = found["rate"], found["sessions"], found["reuse"]
    if sessions is not None:
        rows["turns of a session"] = _figures(sessions["turns"])
        rows |= {f"time before a turn, {kind} (s)": _figures(gap) for kind, gap in sessions["gaps"].items()}
    listed = [console.mapping_table("", rows, headings)]
    facts = {"requests": f"{found['requests']:,} in {console.number(found['seconds'])} s"}
    if rate["mean"] is not None:
        facts["rate"] = (
            f"{console.number(rate['mean'])} per second, at most {console.number(rate['highest'])} in "
            f"{console.number(rate['bin_seconds'])} s; gaps vary by {rate['gap_variation']:.2f} (Poisson: 1)"
        )
    facts["tokens"] = (
        f"{found['prompt_len']['total']:,} of prompts, {found['output_len']['total']:,} of outputs"
    )
    if sessions is not None:
        facts["sessions"] = f"{sessions['count']:,}"
    if reuse is None:
        facts["reuse"] = "unknown: no block hashes, so every prompt counts as new"
    else:
        share = reuse["repeated_hashes"] / max(reuse["hashes"], 1)
        facts["hashes"] = (
            f"{reuse['repeated_hashes']:,} of {reuse['hashes']:,} repeat an earlier one ({share:.2%})"
        )
    listed.append(console.mapping_table("", {name: (text,) for name, text in facts.items()}, ("", "")))
    if reuse is not None:
        caches = {
            "infinite" if c["capacity"] is None else f"{c['capacity']:,}": (
                f"{c['hit_tokens']:,}", f"{c['hit_rate']:.2%}", f"{c['units_evicted']:,}",
                f"{c['too_long']:,}" if c["too_long"] else "",
            )
            for c in reuse["caches"]
        }  # fmt: skip
        columns = ("cache (tokens)", "prompt tokens that hit", "share", "units evicted", "too long for it")
        title = f"reuse in units of {reuse['unit']:,} tokens, one request after another"
        listed.append(console.mapping_table(title, caches, columns))
    return listed


def _figures(found: Mapping[str, float]) -> list[str]:
    return [console.number(found[name]) for name in ("mean", "p50", "p90", "p99", "max")]
