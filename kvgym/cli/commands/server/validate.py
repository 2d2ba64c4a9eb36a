"""``kvgym server validate``: compare a log of a real server with the simulator on the same requests."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgym.cli import console
from kvgym.cli.fields import group
from kvgym.cli.options.scenario import ScenarioOption, scenario_options
from kvgym.cli.options.shared import one_policy, policies_option
from kvgym.cli.progress import run_progress
from kvgym.cli.result_folder import OutOption, command_line, default_folder, make_folder, replacing
from kvgym.cli.tables import ResultTable
from kvgym.errors import ConfigError
from kvgym.experiments.scenario_options import SERVER_SCENARIO, ScenarioOptions

WORST_FIT = 0.5
"""Mean error of token times and latencies above which a fitted overhead is not recommended."""

if TYPE_CHECKING:
    from kvgym.servers.validation.overhead_fit import OverheadFit
    from kvgym.servers.validation.replay import Replay
    from kvgym.servers.validation.served import ServedLog


SYSTEM = tuple(name for name in group("hardware", "cluster") if name not in ("hardware", "engine"))
"""Fields of the simulated server other than hardware and engine."""

SchedulerOption = Annotated[
    list[str] | None,
    policies_option("The server's scheduler, e.g. vllm_v1:max_num_seqs=128 (default: vllm_v1)."),
]
DropLongOption = Annotated[
    bool, typer.Option("--drop-long", help="Skip requests longer than the KV capacity.")
]
SkipOption = Annotated[
    int | None,
    typer.Option(
        "--skip",
        min=0,
        metavar="N",
        help="Replay the first N requests, but do not compare them: a server just started is slower (default: those of "
        "observe --warm-up).",
    ),
]
FitOption = Annotated[
    bool, typer.Option("--fit-overhead", help="Also fit the engine's overhead (base_ms, per_request_ms).")
]
PictureOption = Annotated[bool, typer.Option(help="Write validation.png (needs kvgym\\[pictures]).")]


@scenario_options("columns", "time_unit", "hardware", "engine", *SYSTEM)
def validate(
    options: ScenarioOptions,
    log: Annotated[
        Path,
        typer.Argument(
            metavar="LOG",
            help="A log of kvgym server observe (or its folder), vllm bench serve --save-detailed, GuideLLM, AIPerf or "
            "inference-perf, or any CSV, JSONL or Parquet with a row per request: arrival_time, prompt_len, "
            "output_len, first_token_time (or ttft), finish_time (or e2e_latency).",
        ),
    ],
    scenario: ScenarioOption = SERVER_SCENARIO,
    policies: SchedulerOption = None,
    drop_long: DropLongOption = False,
    skip: SkipOption = None,
    fit_overhead: FitOption = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of policy and router.")] = 0,
    out: OutOption = None,
    picture: PictureOption = True,
    progress: Annotated[bool, typer.Option(help="Show a progress bar while fitting.")] = True,
) -> None:
    """Replay a log of a real server and show the simulator's errors.

    Shows first which part of the error comes from the client, the queue and the batches, and names a start-up phase.
    Compares TTFT, TBT (mean time per output token of a request), E2E latency, throughput and evictions, by quantile,
    with 95 % bootstrap intervals, and over the time of the log. Writes config.json, requests.csv (observed and
    simulated, by request), summary.json and validation.png. docs/validation.md lists what to log.
    """
    from kvgym.experiments.changes import parse_columns
    from kvgym.servers.validation.served import read_served

    policy = one_policy(policies or ["vllm_v1"], "server validate")
    names = {} if options.columns is None else parse_columns(options.columns)
    served = read_served(log, columns=names, time_unit=options.time_unit)
    served = served if skip is None else served.skipping(skip)
    settings = replace(options, columns=None, time_unit=None)
    folder = make_folder(out or default_folder("validate", log.stem))
    if log.is_dir() and log.resolve() == folder.resolve():
        raise ConfigError(f"--out {folder} has the log, and results would replace it; choose another folder")
    check = Check(served, settings, scenario, policy, drop_long=drop_long, seed=seed)
    if fit_overhead:
        check.fit(progress)
    with replacing(folder, log):
        check.save(folder)
    check.show(folder, picture=picture)


class Check:
    """The replay of a log on the server that options describe.

    Args:
        log: the log.
        options: hardware and system.
        scenario: name or file of the scenario that they change.
        policy: the scheduler.
        drop_long: whether to skip requests longer than the KV capacity.
        seed: seed of policy and router.
    """

    def __init__(
        self,
        log: ServedLog,
        options: ScenarioOptions,
        scenario: str,
        policy: str,
        *,
        drop_long: bool,
        seed: int,
    ) -> None:
        from kvgym.experiments.changes import build_scenario
        from kvgym.servers.validation.replay import replay_log, without_long

        self._options, self._scenario, self._policy, self._seed = options, scenario, policy, seed
        self._chosen = build_scenario(scenario, options)
        self._log = without_long(log, self._chosen.make_system().usable_capacity) if drop_long else log
        self._fit: OverheadFit | None = None
        self._replay = replay_log(self._log, self._chosen, policy, seed=seed)

    def fit(self, progress: bool) -> None:
        """Fit the overhead of the engine to the log."""
        from kvgym.servers.validation.overhead_fit import MOST_REPLAYS, fit_overhead

        with run_progress(MOST_REPLAYS, progress) as advance:
            self._fit = fit_overhead(self._log, self._chosen, self._policy, seed=self._seed, progress=advance)

    def save(self, folder: Path) -> None:
        """Write the results."""
        from kvgym.servers.validation.results import save_replay

        save_replay(self._replay, folder, fit=self._fit, seed=self._seed, command=command_line())

    def show(self, folder: Path, *, picture: bool) -> None:
        """Print tables and notes, and write the picture."""
        from kvgym.servers.validation.results import save_picture

        if (table := parts_table(self._replay)) is not None:
            console.print_table(table)
        console.print_table(difference_table(self._replay))
        if (table := drift_table(self._replay)) is not None:
            console.print_table(table)
        settings = {
            "scenario": self._scenario,
            **{name: getattr(self._options, name) for name in ("hardware", "engine", *SYSTEM)},
            "trace": folder / "requests.csv",
        }
        console.print_line(setup_line(self._replay, self._scenario, self._policy, settings))
        if self._fit is not None:
            print_fit(self._fit)
        for note in self._log.compared().notes:
            console.out.print(f"note: {note}", markup=False)
        if (slow := self._replay.start_up()) > self._log.skip:
            console.out.print(
                f"note: start-up phase: the first {slow:,} requests were slower than later ones, compared with the "
                f"simulation; leave them out by --skip {slow}",
                markup=False,
            )
        if picture:
            with console.optional("picture"):
                save_picture(self._replay, folder / "validation.png", fit=self._fit)
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


def parts_table(replay: Replay) -> ResultTable | None:
    """Return the table of what the error of the mean end-to-end latency consists of, None if it is not known."""
    parts = replay.parts()
    if not parts:
        return None
    table = ResultTable(
        "where the error of the mean end-to-end latency comes from",
        "seconds per request, the largest part first; all parts add up to the error",
    )
    for text in ("", "observed", "simulated", "difference", "of the latency"):
        table.column(text, words=not text)
    whole = sum(part.observed for part in parts)
    for part in parts:
        difference = part.simulated - part.observed
        figures = (console.number(x) for x in (part.observed, part.simulated, difference))
        table.row(part.name, *figures, console.percent(difference / whole if whole > 0 else math.nan))
    return table


def drift_table(replay: Replay) -> ResultTable | None:
    """Return the table of errors by quarter of a log, None for a short log."""
    from kvgym.servers.validation.replay import QUARTERS

    drifts = replay.drifts()
    if not drifts:
        return None
    table = ResultTable(
        "error of the mean by quarter of the log",
        "drift: from the first to the last quarter the error changes by 1 % or more, and by more than chance",
    )
    for text in ("", *(f"{k} of {QUARTERS}" for k in range(1, QUARTERS + 1)), "drift"):
        table.column(text, words=not text)
    for drift in drifts:
        errors = (console.percent(error.value) for error in drift.errors)
        table.row(console.heading(drift.metric), *errors, "yes" if drift.is_clear else "no")
    return table


def difference_table(replay: Replay, *, explained: bool = True) -> ResultTable:
    """Return the table of observed and simulated values and errors, for every statistic and total.

    Args:
        replay: the replay.
        explained: whether to explain errors and intervals in the caption.
    """
    from kvgym.experiments.comparison import label_of
    from kvgym.experiments.describing import titled

    table = ResultTable(
        titled(f"{label_of(replay.result.policy)} on {replay.setup}", replay.scenario),
        "error = simulated / observed - 1; intervals by bootstrap over blocks of consecutive requests"
        if explained
        else "",
    )
    for text in ("", "", "observed", "simulated", "error", "95 % interval", "rank correlation"):
        table.column(text, words=not text)
    last = ""
    for metric, statistic, observed, simulated, error in replay.differences():
        table.row(
            f"{metric} (s)" if metric != last else "",
            statistic,
            console.number(observed),
            console.number(simulated),
            console.percent(error.value),
            "" if math.isnan(error.low) else f"{console.percent(error.low)} – {console.percent(error.high)}",
            "" if metric == last else console.number(replay.rank_correlation(metric)),
        )
        last = metric
    table.section()
    for name, (observed, simulated) in replay.totals().items():
        figures = (
            console.number(observed),
            console.number(simulated),
            console.percent(simulated / observed - 1 if observed > 0 else math.nan),
        )
        table.row(console.heading(name), "", *figures, "", "")
    return table


def print_fit(fit: OverheadFit) -> None:
    """Print a fit: its values, their uncertainty, errors before and after, and how to use it."""
    from kvgym.servers.validation.overhead_fit import TOLERANCE
    from kvgym.servers.validation.replay import mean_error

    console.print_table(difference_table(fit.after, explained=False))
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
