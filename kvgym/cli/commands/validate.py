"""``kvgym validate``: compare a log of a real server with the simulator on the same requests."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from kvgym.cli import console
from kvgym.cli.options.scenario import ScenarioOption, group, scenario_options
from kvgym.cli.options.shared import one_policy, policies_option
from kvgym.cli.progress import run_progress
from kvgym.cli.result_folder import OutOption, command_line, default_folder, make_folder, replacing
from kvgym.experiments.scenario_options import SERVER_SCENARIO, ScenarioOptions

WORST_FIT = 0.5
"""Mean error of token times and latencies above which a fitted overhead is not recommended."""

if TYPE_CHECKING:
    from kvgym.validation.overhead_fit import OverheadFit
    from kvgym.validation.replay import Replay


_SYSTEM = tuple(name for name in group("hardware", "cluster") if name not in ("hardware", "engine"))


@scenario_options(
    after={"requests": ["columns", "time_unit"], "scenario": ["hardware", "engine"], "policies": _SYSTEM}
)
def validate(
    options: ScenarioOptions,
    requests: Annotated[
        Path,
        typer.Option(
            "--requests",
            help="CSV, JSONL or Parquet with a row per served request: arrival_time, prompt_len, output_len, "
            "first_token_time (or ttft), finish_time (or e2e_latency), or the names and times of a trace.",
        ),
    ],
    scenario: ScenarioOption = SERVER_SCENARIO,
    policies: Annotated[
        list[str] | None,
        policies_option("The server's scheduler, e.g. vllm_v1:max_num_seqs=128 (default: vllm_v1)."),
    ] = None,
    drop_long: Annotated[
        bool, typer.Option("--drop-long", help="Skip requests longer than the KV capacity.")
    ] = False,
    fit_overhead: Annotated[
        bool, typer.Option("--fit-overhead", help="Also fit the engine's overhead (base_ms, per_request_ms).")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of policy and router.")] = 0,
    out: OutOption = None,
    picture: Annotated[bool, typer.Option(help="Write validation.png (needs kvgym\\[report]).")] = True,
    progress: Annotated[bool, typer.Option(help="Show a progress bar while fitting.")] = True,
) -> None:
    """Replay a log of a real server and show the simulator's errors.

    Compares TTFT, TBT (mean time per output token of a request) and E2E latency by quantile, with 95 % bootstrap
    intervals, and writes config.json, requests.csv (observed and simulated, by request), summary.json and
    validation.png. docs/validation.md lists what to log.
    """
    from kvgym.experiments.changes import build_scenario, parse_columns
    from kvgym.validation.overhead_fit import MOST_REPLAYS
    from kvgym.validation.overhead_fit import fit_overhead as fit_to
    from kvgym.validation.replay import replay_log, without_long
    from kvgym.validation.results import save_picture, save_replay
    from kvgym.validation.served import read_served, trace_columns
    from kvgym.workloads.traces.reader import detected_format

    policy = one_policy(policies or ["vllm_v1"], "validate")
    names = {} if options.columns is None else parse_columns(options.columns)
    log = read_served(requests, columns=names, time_unit=options.time_unit)
    of_trace = ",".join(f"{key}={name}" for key, name in trace_columns(names).items()) or None
    chosen = build_scenario(scenario, options, trace=requests, trace_format="table", columns=of_trace)
    if drop_long:
        log = without_long(log, chosen.make_system().usable_capacity)
    folder = make_folder(out or default_folder("validate", requests.stem))
    replay = replay_log(log, chosen, policy, seed=seed)
    fit = None
    if fit_overhead:
        with run_progress(MOST_REPLAYS, progress) as advance:
            fit = fit_to(log, chosen, policy, seed=seed, progress=advance)
    with replacing(folder, requests):
        save_replay(replay, folder, fit=fit, seed=seed, command=command_line())
    console.out.print(difference_table(replay))
    settings = {
        "scenario": scenario,
        **{name: getattr(options, name) for name in ("hardware", "engine", *_SYSTEM)},
        "trace": requests,
        "columns": of_trace,
        "time_unit": options.time_unit,
        "too_long": "drop" if drop_long else None,
    }
    if of_trace is None and options.time_unit is None and detected_format(requests) not in ("kvgym", "table"):
        # compare would otherwise detect that format, and read other times from it.
        settings["trace_format"] = "table"
    console.print_line(setup_line(replay, scenario, policy, settings))
    if fit is not None:
        print_fit(fit)
    for note in log.notes:
        console.out.print(f"note: {note}", markup=False)
    if picture:
        with console.optional("picture"):
            save_picture(replay, folder / "validation.png", fit=fit)
    console.print_line(f"results: {folder}")


def setup_line(replay: Replay, scenario: str, policy: str, settings: Mapping[str, Any]) -> str:
    """Return the setup of a replay, and the command that compares schedulers on it.

    Args:
        replay: the replay.
        scenario: name or file of the scenario.
        policy: the scheduler.
        settings: options of ``kvgym compare`` by name, None if not given.
    """
    from kvgym.batch_time.deployments.load import hardware_label
    from kvgym.experiments.describing import with_engine

    found = replay.scenario.resolved()
    where = hardware_label(found.hardware) or f"batch times {found.batch_time.get('kind', '?')}"
    given = [
        part
        for name, value in settings.items()
        if value is not None
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    command = shlex.join(["kvgym", "compare", *given, "-p", policy])
    served = f"{where}{with_engine(replay.scenario)}, blocks of {found.system.block_size}"
    return f"replayed on scenario {scenario}: {served}; to compare schedulers: {command}"


def difference_table(replay: Replay, *, explained: bool = True) -> Table:
    """Return the table of observed and simulated values and errors, for every statistic and total.

    Args:
        replay: the replay.
        explained: whether to explain errors and intervals in the caption.
    """
    from kvgym.experiments.comparison import label_of
    from kvgym.experiments.describing import titled

    table = console.make_table(
        titled(f"{label_of(replay.result.policy)} on {replay.scenario.summary}", replay.scenario),
        "error = simulated / observed - 1; intervals by bootstrap over blocks of consecutive requests"
        if explained
        else None,
    )
    for text in ("", "", "observed", "simulated", "error", "95 % interval", "rank correlation"):
        table.add_column(text, justify="right" if text else "left", no_wrap=True)
    last = ""
    for metric, statistic, observed, simulated, error in replay.differences():
        table.add_row(
            f"{metric} (s)" if metric != last else "",
            statistic,
            console.number(observed),
            console.number(simulated),
            console.percent(error.value),
            "" if math.isnan(error.low) else f"{console.percent(error.low)} – {console.percent(error.high)}",
            "" if metric == last else console.number(replay.rank_correlation(metric)),
        )
        last = metric
    table.add_section()
    for name, (observed, simulated) in replay.totals().items():
        figures = (
            console.number(observed),
            console.number(simulated),
            console.percent(simulated / observed - 1 if observed > 0 else math.nan),
        )
        table.add_row(console.heading(name), "", *figures, "", "")
    return table


def print_fit(fit: OverheadFit) -> None:
    """Print a fit: its values, their uncertainty, errors before and after, and how to use it."""
    from kvgym.validation.overhead_fit import TOLERANCE
    from kvgym.validation.replay import mean_error

    console.out.print(difference_table(fit.after, explained=False))
    console.out.print(
        f"fitted overhead: {fit.overhead.formula()}; mean size of the errors of token times and "
        f"latencies {mean_error(fit.before):.1%} before, {mean_error(fit.after):.1%} after ({fit.replays} replays)",
        markup=False,
    )
    for name, profile in fit.profiles.items():
        console.out.print(
            f"  {name}: {profile.range_text()} are within {TOLERANCE:.0%} of that",
            markup=False,
        )
    if mean_error(fit.after) > WORST_FIT:
        console.out.print(
            f"warning: no overhead brings the simulation within {WORST_FIT:.0%} of the log; check hardware, KV "
            "capacity and policy before using this fit",
            markup=False,
        )
        return
    console.out.print(f"to use it:  --engine {fit.option()}", markup=False)
    console.out.print(f"or in a hardware file:\n{fit.yaml()}", markup=False)
