"""``kvgym server observe``: send a workload to an OpenAI-compatible server and log what every request experiences."""

from __future__ import annotations

import math
import os
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvgym.cli import console
from kvgym.cli.commands.server.validate import (
    SYSTEM,
    Check,
    DropLongOption,
    FitOption,
    PictureOption,
    SchedulerOption,
)
from kvgym.cli.fields import group
from kvgym.cli.options.scenario import ScenarioOption, scenario_options
from kvgym.cli.options.shared import ProgressOption, one_policy, time_option
from kvgym.cli.progress import run_progress
from kvgym.cli.result_folder import OutOption, command_line, default_folder, make_folder, replacing
from kvgym.cli.tables import ResultTable
from kvgym.errors import ConfigError, TraceFormatError
from kvgym.experiments.scenario_options import SERVER_SCENARIO, ScenarioOptions

if TYPE_CHECKING:
    from kvgym.servers.endpoint.client import Measured, Server
    from kvgym.servers.validation.served import ServedLog
    from kvgym.workloads.table import RequestTable

_REQUESTS = tuple(name for name in group("requests") if name != "predictions")


@dataclass
class _Stage:
    """A workload that is sent, and its results."""

    name: str  # folder in the results, "" = the results themselves
    workload: str
    table: RequestTable
    closed: bool  # whether turns of sessions wait for the answers before them
    sent: int = 0
    log: ServedLog | None = None


@scenario_options(
    *_REQUESTS,
    "hardware",
    "engine",
    *SYSTEM,
)
def observe(
    options: ScenarioOptions,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Address of the server, as in http://localhost:8000.")
    ],
    scenario: ScenarioOption = SERVER_SCENARIO,
    rates: Annotated[
        str | None, typer.Option(help="Send the workload at each of these rates, one after the other: 1,2,4.")
    ] = None,
    api: Annotated[
        str | None,
        typer.Option(
            help="Kind of requests: completions or chat (default: as in the URL, else completions)."
        ),
    ] = None,
    served_model: Annotated[
        str, typer.Option(help="Name of the model at the server (default: the first in its list).")
    ] = "",
    api_key_env: Annotated[
        str | None,
        typer.Option(
            help="Environment variable with the API key (default: OPENAI_API_KEY, if set); no file or message has it."
        ),
    ] = None,
    timeout: Annotated[
        float, time_option("--timeout", "Longest time for a complete answer", least=0.001)
    ] = 600.0,
    validate: Annotated[
        bool, typer.Option("--validate", help="Then replay the log, as kvgym server validate does.")
    ] = False,
    policies: SchedulerOption = None,
    drop_long: DropLongOption = False,
    warm_up: Annotated[
        int,
        typer.Option(
            "--warm-up",
            min=0,
            metavar="N",
            help="Mark the first N requests as warm-up of the server: sent, logged and replayed, but not compared.",
        ),
    ] = 0,
    fit_overhead: FitOption = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of workload and prompts.")] = 0,
    out: OutOption = None,
    picture: PictureOption = True,
    progress: ProgressOption = True,
) -> None:
    """Send a workload to an OpenAI-compatible server and log every request, for validation.

    Requests are sent at their times, whether or not earlier ones are answered, and answers are streamed. Writes
    requests.jsonl (times sent, TTFT, gaps between tokens, lengths as the server counts them, or why an answer cannot be
    compared) and observed.json, with --rates in a folder per rate. A row is written when its answer ends; Ctrl-C,
    SIGTERM and a kill keep what was measured. Prompts are random words; equal block hashes give equal text. With
    --set sessions=closed a turn waits for the answer before it and its think time.
    """
    from kvgym.experiments.changes import build_scenario

    if find_spec("aiohttp") is None:
        raise ConfigError('kvgym server observe needs aiohttp; install it with: pip install "kvgym[observe]"')
    from kvgym.servers.endpoint.client import meet
    from kvgym.servers.endpoint.target import KEY_VARIABLE, Target
    from kvgym.servers.validation.log_formats import REQUESTS
    from kvgym.simulator.sessions import check_closed

    policy = one_policy(policies or ["vllm_v1"], "server observe")
    if api_key_env is not None and not os.environ.get(api_key_env):
        raise ConfigError(
            f"--api-key-env {api_key_env}: there is no such environment variable, or it is empty"
        )
    variable = api_key_env or KEY_VARIABLE
    key = os.environ.get(variable, "").strip()
    target = Target.of(url, api=api, model=served_model, key=key, key_variable=variable)
    stages = []
    for rate in _rates(rates):
        chosen = build_scenario(scenario, options, **({} if rate is None else {"rate": rate}))
        source = chosen.make_workload()
        name = "" if rate is None else f"rate-{rate:g}"
        table, closed = source.sample(seed), chosen.system.sessions == "closed"
        if closed:
            check_closed(table)
            if table.parents is not None:
                raise ConfigError(
                    "sessions = closed, but the requests have parents, and a server is not asked by them; set sessions "
                    "to open, or leave the column parents out so that a turn follows only the turn before it"
                )
        stages.append(_Stage(name, source.spec.name, table, closed))
    if warm_up >= len(stages[0].table):
        raise ConfigError(
            f"--warm-up {warm_up}: {len(stages[0].table):,} requests are sent{' at the first rate' if rates else ''}, "
            "none is left to compare; send more with -n"
        )
    server = meet(target, seed=seed, timeout=timeout)
    folder = make_folder(out or default_folder("observe", target.base.partition("//")[2].partition("/")[0]))
    simulated = ScenarioOptions(**{name: getattr(options, name) for name in ("hardware", "engine", *SYSTEM)})
    checks = []
    with replacing(folder, options.trace):
        stopped = _run(server, stages, folder, timeout, warm_up, progress)
        if any(stage.log is not None for stage in stages):
            console.print_table(_summary(server, stages, files=f"{folder}"))
        if validate and not stopped:
            for stage in stages:
                if stage.log is None:
                    continue
                console.print_line(f"log: {folder / stage.name / REQUESTS}")  # also if the replay fails
                check = Check(stage.log, simulated, scenario, policy, drop_long=drop_long, seed=seed)
                if fit_overhead:
                    check.fit(progress)
                check.save(folder / stage.name)
                checks.append((check, folder / stage.name))
    for check, place in checks:
        check.show(place, picture=picture)
    if not checks:
        for stage in stages:
            for note in stage.log.compared().notes if stage.log is not None else ():
                console.out.print(f"note: {f'{stage.name}: ' if stage.name else ''}{note}", markup=False)
        console.print_line(f"results: {folder}")
    if stopped:
        raise KeyboardInterrupt
    if all(stage.log is None for stage in stages):
        raise typer.Exit(1)


def _rates(text: str | None) -> list[float | None]:
    """Return the rates of ``--rates``, [None] for the workload's own.

    Raises:
        ConfigError: a rate is not a positive number.
    """
    if text is None:
        return [None]
    found: list[float | None] = []
    for part in text.split(","):
        try:
            rate = float(part)
        except ValueError:
            rate = math.nan
        if not 0 < rate < math.inf or rate in found:
            raise ConfigError(f"--rates {text}: expected different requests per second > 0, as in 1,2,4")
        found.append(rate)
    return found


def _run(
    server: Server, stages: list[_Stage], folder: Path, timeout: float, warm_up: int, progress: bool
) -> bool:
    """Send all stages and write their logs; return whether Ctrl-C stopped them.

    The first ``warm_up`` requests of the first stage warm the server up.
    """
    from kvgym.cli.stopping import interruptible
    from kvgym.servers.endpoint.client import read_counters, send
    from kvgym.servers.endpoint.log import RequestLog, save_observed
    from kvgym.servers.endpoint.target import Counters
    from kvgym.servers.validation.served import read_served

    total = sum(len(stage.table) for stage in stages)
    seconds = sum(float(stage.table.arrival_time[-1] - stage.table.arrival_time[0]) for stage in stages)
    console.print_line(
        f"{server.target.url}, model {server.target.model}: {total:,} requests over {seconds / server.speed:,.0f} s; "
        "Ctrl-C keeps what was measured"
    )
    if not server.reports_usage:
        console.print_to_stderr(
            "warning: the answers of this server have no usage, so lengths are not known and nothing can be compared"
        )
    with run_progress(total, progress) as advance:
        for stage in stages:
            before, stopped = read_counters(server.target), False
            found: list[Measured] = []
            place = folder / stage.name
            about = {"workload": stage.workload, "command": command_line()}
            save_observed(place, server, None, (before, Counters()), **about)
            with closing(RequestLog(place)) as log:

                def ended(request: Measured, log: RequestLog = log) -> None:
                    log.add(request)
                    advance(f"request {request.number}")

                try:
                    with interruptible():
                        send(
                            server, stage.table, timeout=timeout, closed=stage.closed, found=found, ended=ended,
                            warm_up=warm_up if stage is stages[0] else 0,
                        )  # fmt: skip
                except KeyboardInterrupt:
                    stopped = True
            stage.sent = len(found)
            save_observed(place, server, found, (before, read_counters(server.target)), **about)
            try:
                stage.log = read_served(place) if found else None
            except (TraceFormatError, ConfigError) as error:
                console.print_to_stderr(f"warning: {error}")
            if stopped:
                console.print_to_stderr(
                    f"stopped: {len(found):,} of {len(stage.table):,} requests were sent and are in {place}"
                )
                return True
    return False


def _summary(server: Server, stages: list[_Stage], *, files: str) -> ResultTable:
    """Return the table of what was measured, a row per stage."""
    import numpy as np

    table = ResultTable(
        f"{server.target.model} at {server.target.url}", "seconds; TBT by request", files=files
    )
    headings = (
        "",
        "sent",
        "complete",
        "requests/s",
        "tokens/s",
        "TTFT mean",
        "TTFT p50",
        "TTFT p99",
        "TBT mean",
        "TBT p99",
    )
    for text in (*headings, "E2E mean", "E2E p99", "evictions"):
        table.column(text, words=not text)
    for stage in stages:
        if stage.log is None:
            table.row(stage.name or stage.workload, f"{stage.sent:,}", "0")
            continue
        log = stage.log.compared()
        times = [
            (log.ttft.mean(), *np.quantile(log.ttft, (0.5, 0.99))),
            *((values.mean(), np.quantile(values, 0.99)) if len(values) else (np.nan, np.nan)
              for values in (log.tbt[np.isfinite(log.tbt)], log.e2e_latency)),
        ]  # fmt: skip
        figures = (
            len(log) / log.makespan,
            log.output_len.sum() / log.makespan,
            *(x for each in times for x in each),
        )
        evictions = np.nan if log.num_evictions is None else log.num_evictions
        table.row(
            stage.name or stage.workload,
            f"{stage.sent:,}",
            f"{len(stage.log):,}",
            *(console.number(float(x)) for x in (*figures, evictions)),
        )
    return table
