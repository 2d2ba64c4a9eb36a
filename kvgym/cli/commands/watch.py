"""``kvgym watch``: show a run or a training live in a browser on this machine."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvgym.cli import console
from kvgym.cli.fields import ALL
from kvgym.cli.options.scenario import ScenarioOption, scenario_options
from kvgym.cli.options.shared import one_policy, policies_option
from kvgym.cli.stopping import until_stopped
from kvgym.errors import ConfigError
from kvgym.experiments.scenario_options import DEFAULT_SCENARIO, ScenarioOptions

if TYPE_CHECKING:
    from kvgym.cli.watch.source import Source

DEFAULT_POLICY = "vllm_v1"


@scenario_options(*ALL)
def watch(
    options: ScenarioOptions,
    policies: Annotated[
        list[str] | None,
        policies_option(f"The policy or agent to run, e.g. mc_sf; default: {DEFAULT_POLICY}."),
    ] = None,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    training: Annotated[
        Path | None,
        typer.Option(help="Follow the training run in this folder of kvgym train, instead of a run."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of workload and policy.")] = 0,
    speed: Annotated[
        float, typer.Option(help="Simulated seconds per second; the page can change it.")
    ] = 10.0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 = a free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Show a run or a training live in a browser on this machine.

    Of a run: memory, queues, batches and latencies so far, with pause and speed. Of a training: its curve and log.
    The page is at a secret address that only this machine can open. It loads nothing from the network. Ctrl-C or
    SIGTERM ends it. The run is the one that kvgym run makes; nothing is written.
    """
    from kvgym.cli.watch.server import WatchServer

    if training is not None and policies:
        raise ConfigError("--training follows a training run, --policies shows a run; leave one of them out")
    policy = one_policy(policies or [DEFAULT_POLICY], "watch")
    source = _training(training) if training is not None else _run(options, scenario, policy, seed, speed)
    server = WatchServer(source, port)
    server.start()
    try:
        with until_stopped():
            console.print_line(f"watch: {server.url}  (Ctrl-C ends it)")
            if browser:
                webbrowser.open(server.url)
            threading.Event().wait()
    finally:
        server.close()


def _training(folder: Path) -> Source:
    from kvgym.cli.watch.training import LiveTraining

    return LiveTraining(folder)


def _run(options: ScenarioOptions, scenario: str, policy: str, seed: int, speed: float) -> Source:
    from kvgym.cli.watch.simulation import LiveRun
    from kvgym.cli.watch.source import check_speed
    from kvgym.experiments.changes import build_scenario
    from kvgym.experiments.comparison import label_of
    from kvgym.experiments.resolving import requests_for, resolve_policy
    from kvgym.policies.policy import make_policy
    from kvgym.policies.runner import check_needs

    check_speed(speed)
    chosen = build_scenario(scenario, options).of_seed(seed)
    system, made = chosen.make_system(), make_policy(policy)
    workload = chosen.make_workload()
    table = chosen.sample(workload, seed, system.usable_capacity)
    check_needs(made, table)
    table = requests_for(made, table, workload)
    made = resolve_policy(made, system, table)
    about = [chosen.heading, f"{len(table):,} requests of seed {seed}"]
    return LiveRun(
        system,
        table,
        made,
        router=chosen.make_router(),
        autoscaler=chosen.autoscaler,
        seed=seed,
        speed=speed,
        title=label_of(made),
        about=about,
    )
