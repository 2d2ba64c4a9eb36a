"""``kvgym evaluate``: compare a learned agent with baselines on held-out seeds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from kvgym.cli import console
from kvgym.cli.fields import ALL, ROUTERS
from kvgym.cli.options.scenario import scenario_options
from kvgym.cli.options.shared import (
    JobsOption,
    ProgressOption,
    RayOption,
    metrics_option,
    names,
    policies_option,
    split_names,
)
from kvgym.cli.progress import run_progress
from kvgym.cli.result_folder import OutOption, command_line, default_folder, make_folder, replacing
from kvgym.errors import ConfigError
from kvgym.experiments.scenario_options import ScenarioOptions
from kvgym.utils.specs import split_specs

if TYPE_CHECKING:
    from kvgym.policies.policy import Policy

HELD_OUT = 30
"""Default number of seeds of ``kvgym evaluate``."""

FIRST_HELD_OUT = 2_000_000
"""The first seed, far from the seeds of training (drawn from the run's seed), tuning and periodic evaluations."""


@scenario_options(*ALL, instead={"router": ROUTERS})
def evaluate(
    options: ScenarioOptions,
    agent: Annotated[
        str,
        typer.Argument(
            help="Agent: name (kvgym list agents), .npz or .json file, or folder of a training run; with "
            ":deterministic=false its actions are drawn, not the most probable ones.",
            autocompletion=names("agents"),
        ),
    ],
    scenario: Annotated[
        str | None,
        typer.Option(
            "--scenario",
            "-s",
            help="Name or YAML file of a scenario; default: the scenario of the agent's training.",
            autocompletion=names("scenarios"),
        ),
    ] = None,
    policies: Annotated[
        list[str] | None,
        policies_option(
            "Baselines; default: those of the training. With a router: the scheduler on every worker."
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        metrics_option(
            "Metrics to compare, comma-separated, a table each; default: the metric of the training."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help=f"Number of held-out seeds (default: {HELD_OUT}; of a trace 1).")
    ] = None,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = FIRST_HELD_OUT,
    jobs: JobsOption = None,
    ray: RayOption = None,
    out: OutOption = None,
    progress: ProgressOption = True,
) -> None:
    """Compare a learned agent with baselines on held-out seeds, paired by seed.

    The baselines of a router are routers: those of --router, else those of its training.

    Shows each policy's mean with a 95 % interval, and how much better or worse the agent is, with the paired
    interval. Writes the same files as kvgym compare.
    """
    from kvgym.agents.library import background, is_router, load_agent, load_router
    from kvgym.experiments.changes import build_scenario
    from kvgym.experiments.comparison import compare, label_of
    from kvgym.experiments.statistics import less_is_better
    from kvgym.policies.routing import Router

    loaded = load_router(agent) if is_router(agent) else load_agent(agent)
    trained = background(agent, loaded)
    routers = split_specs(options.router or "")
    columns = split_names(metrics) or [trained.metric]
    for name in columns:
        less_is_better(name)  # raises an error before anything is run
    if options.horizon is None and scenario is None and options.workload is None and options.trace is None:
        options = replace(options, horizon=trained.horizon)
    chosen = build_scenario(
        trained.scenario if scenario is None else scenario, options, router=routers[0] if routers else None
    )
    specs: list[str | Policy] = [*split_names(policies)]
    others: list[str | Router] | None = None
    if isinstance(loaded, Router):
        specs = specs or [trained.policy]
        if len(specs) != 1:
            raise ConfigError(f"--policies {', '.join(map(str, specs))}: expected one policy with a router")
        others = [loaded, *(routers or trained.baselines)]
    else:
        specs = [loaded, *(specs or (trained.baselines if scenario is None else ()) or chosen.policies)]
    count = seeds if seeds is not None else (1 if options.trace is not None or chosen.replays else HELD_OUT)
    folder = make_folder(out or default_folder("evaluate", loaded.info.name))
    numbers = range(first_seed, first_seed + count)
    with run_progress(len(specs) * len(others or (None,)) * count, progress) as advance:
        comparison = compare(
            chosen, specs, seeds=numbers, routers=others, folder=folder, jobs=jobs, ray=ray, progress=advance
        )
    with replacing(folder, options.trace, kept=True):
        comparison.save(folder, command=command_line())
    label = label_of(loaded)
    for name in columns:
        files = f"{folder / 'summary.json'}"
        console.print_table(console.agent_table(comparison, label, name, files=files))
    console.print_remarks(comparison)
    console.print_line(f"results: {folder}")
    if label in comparison.errors():
        raise typer.Exit(1)
