"""The options of the command line that say where runs are done."""

from __future__ import annotations

from typing import Annotated

import typer

JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=0,
        help="Processes; 1 = this one, 0 = one for each core. Default: cores, where runs take long enough. Results do "
        "not depend on it.",
    ),
]
RayOption = Annotated[
    str | None,
    typer.Option(help="Run on Ray (kvgym\\[ray]): local, auto, or the address of a cluster."),
]
