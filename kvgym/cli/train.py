"""``kvgym train``: train an agent, or go on with a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from kvgym.cli import console
from kvgym.cli.result_folder import command_line, default_folder, make_folder
from kvgym.errors import ConfigError


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
