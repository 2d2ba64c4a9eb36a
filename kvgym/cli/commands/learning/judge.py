"""``kvgym benchmark judge``: a verdict on validation seeds, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from kvgym.cli.options.shared import split_names
from kvgym.errors import KVGymError


def judge(
    entry: Annotated[
        str,
        typer.Argument(
            help="Python file that defines one policy or router; or what kvgym benchmark takes; or -, to read entries "
            "from standard input, one a line."
        ),
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

    With - each entry has one, in a line of its own. An entry runs in a process of its own, with limits on time and
    memory, and only decides: scores come from the simulation here. The process is no sandbox.
    """
    from kvgym.studies.benchmark.judging import DEFAULT_TASK, FIRST_SEED, Judge
    from kvgym.studies.benchmark.judging import judge as verdict_on

    options: dict[str, Any] = {
        "tasks": tuple(split_names(tasks)) or (DEFAULT_TASK,),
        "seeds": seeds,
        "first_seed": FIRST_SEED if first_seed is None else first_seed,
        "seconds": seconds,
        "memory_mib": memory,
    }
    if entry != "-":
        print(json.dumps(verdict_on(entry, **options), indent=1))
        return
    with Judge(**options) as judging:
        for line in sys.stdin:
            if spec := line.strip():
                try:
                    found = judging.verdict(spec)
                except KVGymError as error:
                    found = {"score": None, "failure": str(error)}
                print(json.dumps({"entry": spec, **found}), flush=True)
