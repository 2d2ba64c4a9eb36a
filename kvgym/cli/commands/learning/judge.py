"""``kvgym benchmark judge``: a verdict on validation seeds, as JSON."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from kvgym.cli.options.shared import split_names


def judge(
    entry: Annotated[
        str,
        typer.Argument(help="Python file that defines one policy or router; or what kvgym benchmark takes."),
    ],
    tasks: Annotated[
        list[str] | None,
        typer.Option("--tasks", help="Comma-separated (kvgym list tasks; default: hidden-kinds)."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Validation seeds of each task.")] = 3,
    first_seed: Annotated[
        int | None,
        typer.Option(min=0, help="The first of them (default: 1000000), to be kept from the candidate."),
    ] = None,
    seconds: Annotated[float, typer.Option("--time-limit", min=0.1, help="Time limit, seconds.")] = 60.0,
    memory: Annotated[int, typer.Option("--memory-limit", min=512, help="Memory limit, MiB.")] = 4096,
) -> None:
    """Score a policy, router or agent on validation seeds; print a verdict as JSON.

    It runs in a process of its own, with limits on time and memory, and only decides: scores come from the simulation
    here. The process is no sandbox.
    """
    from kvgym.studies.benchmark.judging import DEFAULT_TASK, FIRST_SEED
    from kvgym.studies.benchmark.judging import judge as verdict_on

    chosen = tuple(split_names(tasks)) or (DEFAULT_TASK,)
    first = FIRST_SEED if first_seed is None else first_seed
    found = verdict_on(entry, tasks=chosen, seeds=seeds, first_seed=first, seconds=seconds, memory_mib=memory)
    print(json.dumps(found, indent=1))
