"""``kvgym train``: train an agent, or resume a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvgym.cli import console
from kvgym.cli.options.shared import JobsOption, RayOption, names
from kvgym.cli.progress import progress_bar, run_progress
from kvgym.cli.result_folder import command_line, default_folder, make_folder
from kvgym.errors import ConfigError


def train(
    config: Annotated[
        str,
        typer.Argument(
            help="Name (kvgym list training) or YAML file of a training configuration; several comma-separated.",
            autocompletion=names("training"),
        ),
    ] = "default",
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Changes, e.g. generations=40 metric=ttft_p99; for rank_scores, total_steps=200000 env.rate=20."
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            help="Train for your service: scenario (kvgym list scenarios), its YAML file, or a trace file.",
            autocompletion=names("scenarios"),
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Resume the interrupted run in this folder.")
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            "--total-steps",
            "--generations",
            "--updates",
            min=1,
            help="Total environment steps, updates (reinforce) or generations (evolution), not the configuration's.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the run, instead of the configuration's.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Train a population: this many runs with different seeds, in parallel.")
    ] = 1,
    tracker: Annotated[
        str | None,
        typer.Option(
            help="Send the curves to trackio or wandb (installed by pip), in addition to TensorBoard."
        ),
    ] = None,
    jobs: JobsOption = None,
    ray: RayOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the run (default: results/…).")
    ] = None,
    progress: Annotated[
        bool, typer.Option(help="Show a progress bar; without a terminal, a line a minute.")
    ] = True,
) -> None:
    """Train an agent; follow it with kvgym watch --training FOLDER or tensorboard --logdir FOLDER.

    With --scenario the configuration is used for your own service; by default it fits a predictor of output lengths,
    evolves the weights of ranked with it, and prints what both gain over the best fixed rule on requests that it did
    not train on.

    The run folder contains the resolved configuration, versions, curves, train.log, checkpoints and the best agent as
    plain weights (best.npz, or best.json for evolution without a predictor). A stopped run is resumed with --resume
    FOLDER.

    With --seeds or several configurations, runs are trained in parallel, each in its own folder, on --jobs processes or
    a Ray cluster; the same command with the same --out resumes runs that were stopped.
    """
    from kvgym.agents.runs.config import SERVICE_TRAINING, load_training, read_run_config
    from kvgym.agents.runs.run import resume as go_on
    from kvgym.agents.runs.run import train as begin

    if resume is not None:
        others = (overrides, out, seed, jobs, ray, scenario, tracker)
        if config != "default" or seeds > 1 or any(given is not None for given in others):
            raise ConfigError(
                "--resume continues a run with its own configuration; only the length can be given with it"
            )
        folder, chosen = resume, read_run_config(resume, length)
    else:
        if "=" in config:  # the default configuration with overrides
            config, overrides = "default", [config, *(overrides or [])]
        if scenario is not None and config == "default":
            config = SERVICE_TRAINING
        changes = [*(overrides or [])]
        changes += [] if seed is None else [f"seed={seed}"]
        changes += [] if tracker is None else [f"tracker={tracker}"]
        several = [load_training(name, changes, length, scenario) for name in config.split(",")]
        chosen = several[0]
        folder = make_folder(out or default_folder("train", chosen.name))
        if seeds > 1 or len(several) > 1:
            _population(several, seeds, folder, jobs, ray, progress)
            return
        if hasattr(chosen, "jobs"):
            chosen = chosen.model_copy(update={"jobs": chosen.jobs if jobs is None else jobs, "ray": ray})
        elif ray is not None:
            raise ConfigError(
                f"{chosen.name}: one run of {chosen.algorithm} uses one process; --ray needs --seeds"
            )
    console.out.print(f"{chosen.name}: {chosen.summary}", markup=False)
    console.print_line(f"run folder: {folder}")
    terminal = console.err.is_terminal
    bar: Any = progress_bar(chosen.length, progress and terminal)

    def print_line(line: str) -> None:
        if progress and not terminal:
            console.print_to_stderr(line)

    try:
        with bar as shown:

            def advance(done: int) -> None:
                if shown is not None:
                    shown.update("training", done)

            if resume is not None:
                result = go_on(
                    folder, length=length, command=command_line(), progress=advance, echo=print_line
                )
            else:
                result = begin(chosen, folder, command=command_line(), progress=advance, echo=print_line)
    except KeyboardInterrupt:
        again = f"resume with kvgym train --resume {folder}" if (folder / "config.yaml").exists() else ""
        console.print_to_stderr(f"stopped; {again or 'nothing has been trained yet'}")
        raise typer.Exit(130) from None
    except OSError as error:
        raise ConfigError(f"the run folder {folder} cannot be written: {error}") from None
    for line in result.report():
        console.print_line(line)
    console.print_line(f"next:  kvgym evaluate {folder}")


def _population(
    configs: list[Any], seeds: int, folder: Path, jobs: int | None, ray: str | None, progress: bool
) -> None:
    """Train configurations with several seeds in parallel, and print the result of each."""
    from kvgym.agents.runs.population import make_members, median_of, train_population

    members = make_members(configs, seeds, folder, command_line())
    console.print_line(f"population of {len(members)} runs: {folder}")
    try:
        with run_progress(len(members), progress) as advance:
            found = train_population(
                members, folder, jobs=0 if jobs is None else jobs, ray=ray,
                progress=lambda trained, done, total: advance(f"{trained.name}, seed {trained.seed}"),
            )  # fmt: skip
    except KeyboardInterrupt:
        console.print_to_stderr(f"stopped; run the same command with --out {folder} to resume")
        raise typer.Exit(130) from None
    medians = []
    for config in configs:
        own = [trained for trained in found if trained.name == config.name]
        for trained in own:
            console.out.print(f"{trained.folder.name}: {trained.best:.5g}", markup=False)
            for line in trained.lines:
                if line.startswith("note:"):
                    console.print_line(f"  {line}")
        medians.append(median_of(own).folder)
        console.print_line(f"median of {config.name}: {medians[-1]}")
    console.print_line(f"next:  kvgym evaluate {medians[0]}")
