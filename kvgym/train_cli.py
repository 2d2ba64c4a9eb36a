"""``kvgym train`` and ``kvgym evaluate``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from kvgym import console
from kvgym.errors import ConfigError
from kvgym.run_folder import OutOption, command_line, default_folder, make_folder
from kvgym.scenario_cli import (
    BatchTimeOption,
    CapacityOption,
    HardwareOption,
    HorizonOption,
    NumRequestsOption,
    PredictionsOption,
    RateOption,
    RateScaleOption,
    RouterOption,
    TooLongOption,
    TraceFormatOption,
    TraceOption,
    WorkersOption,
    WorkloadOption,
    build_scenario,
)
from kvgym.specs import split_specs

HELD_OUT = 30
"""Seeds that ``kvgym evaluate`` runs unless told otherwise."""

FIRST_HELD_OUT = 2_000_000
"""The first of them: far from those of training (drawn from the run's seed), tuning and periodic evaluations."""


def train(
    config: Annotated[
        str, typer.Argument(help="Name (kvgym list training) or YAML file of a training configuration.")
    ] = "default",
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes, e.g. total_steps=200000 env.rate=20 hyperparameters.gamma=0.99."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the interrupted run in this folder.")
    ] = None,
    total_steps: Annotated[
        int | None, typer.Option(min=1, help="Environment steps in all, instead of the configuration's.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the run, instead of the configuration's.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the run (default: results/…).")
    ] = None,
    progress: Annotated[bool, typer.Option(help="Show a progress bar.")] = True,
) -> None:
    """Train an agent; watch it with tensorboard --logdir FOLDER.

    The run folder keeps the resolved configuration, versions, curves, checkpoints and the best agent as plain
    weights (best.npz). A run stopped at any moment goes on with --resume FOLDER.
    """
    from kvgym.agents.config import load_training
    from kvgym.agents.training import read_run_config
    from kvgym.agents.training import resume as go_on
    from kvgym.agents.training import train as begin

    if resume is not None:
        if config != "default" or overrides or out is not None or seed is not None:
            raise ConfigError(
                "--resume goes on with a run as it is configured; only --total-steps goes with it"
            )
        folder, chosen = resume, read_run_config(resume)
        steps = total_steps or chosen.total_steps
    else:
        if "=" in config:  # the default configuration with overrides
            config, overrides = "default", [config, *(overrides or [])]
        changes = [*(overrides or [])]
        changes += [] if total_steps is None else [f"total_steps={total_steps}"]
        changes += [] if seed is None else [f"seed={seed}"]
        chosen = load_training(config, changes)
        folder, steps = make_folder(out or default_folder("train", chosen.name)), chosen.total_steps
    console.out.print(f"{chosen.name}: {chosen.summary}", markup=False)
    console.out.print(f"run folder: {folder}", markup=False, soft_wrap=True)
    bar: Any = console.progress_bar(steps, progress)
    try:
        with bar as shown:

            def advance(done: int) -> None:
                if shown is not None:
                    shown.update(shown.task_ids[0], description="training", completed=done)

            if resume is not None:
                result = go_on(folder, total_steps=total_steps, command=command_line(), progress=advance)
            else:
                result = begin(chosen, folder, command=command_line(), progress=advance)
    except KeyboardInterrupt:
        again = f"go on with kvgym train --resume {folder}" if (folder / "config.yaml").exists() else ""
        console.err.print(f"stopped; {again or 'nothing is trained yet'}", markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    except OSError as error:
        raise ConfigError(f"the run folder {folder} cannot be written: {error}") from None
    metric = chosen.evaluation.metric
    console.out.print(f"{metric} on the evaluation's requests:")
    for label, value in result.baselines.items():
        console.out.print(f"  {label}: {'failed' if math.isnan(value) else f'{value:.4g}'}", markup=False)
    best = folder / "best.npz"
    if best.exists():
        console.out.print(
            f"  agent: {result.best:.4g} (best of {len(result.curve)}, after {result.best_step:,} steps)"
        )
    else:
        console.out.print("  agent: left requests unserved in every evaluation; the last one is kept")
        best = folder / "final.npz"
    console.out.print(f"agent: {best}", markup=False, soft_wrap=True)
    console.out.print(f"next:  kvgym evaluate {folder}", markup=False, soft_wrap=True)


def evaluate(
    model: Annotated[
        str, typer.Argument(help="Agent: name (kvgym list agents), .npz file, or folder of a training run.")
    ],
    scenario: Annotated[
        str | None,
        typer.Option("--scenario", "-s", help="Scenario; default: what the agent was trained on."),
    ] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policies",
            "-p",
            help="Baselines beside it; default: those of its training.",
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="What to compare by; default: what it was trained for.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help=f"Number of held-out seeds (default: {HELD_OUT}; of a trace 1).")
    ] = None,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = FIRST_HELD_OUT,
    trace: TraceOption = None,
    trace_format: TraceFormatOption = "auto",
    rate_scale: RateScaleOption = 1.0,
    workload: WorkloadOption = None,
    rate: RateOption = None,
    num_requests: NumRequestsOption = None,
    predictions: PredictionsOption = None,
    too_long: TooLongOption = "error",
    hardware: HardwareOption = None,
    batch_time: BatchTimeOption = None,
    kv_capacity: CapacityOption = None,
    workers: WorkersOption = None,
    router: RouterOption = None,
    horizon: HorizonOption = None,
    out: OutOption = None,
    progress: Annotated[bool, typer.Option(help="Show a progress bar.")] = True,
) -> None:
    """Evaluate a learned agent on held-out seeds beside baselines, paired by seed.

    Shows each policy's mean with a 95 % interval and by how much the agent is better or worse than it, with the
    paired interval. Writes the files that kvgym compare writes.
    """
    from kvgym.agents.library import load_agent
    from kvgym.agents.numpy_model import NumpyModel
    from kvgym.evaluation import compare
    from kvgym.metrics import metric_info

    agent = load_agent(model)
    training: dict[str, Any] = {}
    if isinstance(agent.model, NumpyModel) and not model.endswith(".zip"):
        training = agent.model.header.metadata.get("training", {})
    measured = training.get("evaluation", {})
    by = metric or measured.get("metric", "e2e_latency_mean")
    try:
        better = metric_info(by).lower_is_better
    except KeyError:
        raise ConfigError(f"unknown metric {by!r}; kvgym list metrics shows them") from None
    if better is None:
        raise ConfigError(f"{by} has no better or worse; choose another metric")
    own = agent.config.make_scenario()
    if horizon is None and scenario is None and workload is None and trace is None:
        horizon = agent.config.horizon
    chosen = build_scenario(
        own if scenario is None else scenario, hardware=hardware, batch_time=batch_time, kv_capacity=kv_capacity,
        workload=workload, trace=trace, trace_format=trace_format, rate_scale=rate_scale, rate=rate,
        num_requests=num_requests, predictions=predictions, too_long=too_long, workers=workers, router=router,
        horizon=horizon,
    )  # fmt: skip
    if policies:
        specs = split_specs(",".join(policies))
    else:
        specs = list(measured.get("baselines", ()) if scenario is None else ()) or list(chosen.policies)
    count = seeds if seeds is not None else (1 if trace is not None else HELD_OUT)
    folder = make_folder(out or default_folder("evaluate", agent.info.name))
    with console.run_progress((len(specs) + 1) * count, progress) as advance:
        comparison = compare(
            chosen, [agent, *specs], seeds=range(first_seed, first_seed + count), progress=advance
        )
    console.out.print(console.agent_table(comparison, agent.info.name, by))
    console.print_remarks(comparison)
    comparison.save(folder, command=command_line())
    console.out.print(f"results: {folder}", markup=False, soft_wrap=True)
    if agent.info.name in comparison.errors():
        raise typer.Exit(1)


__all__ = ["evaluate", "train"]
