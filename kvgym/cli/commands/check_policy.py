"""``kvgym check-policy``: what every policy must do, tried on one."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from kvgym.cli import console
from kvgym.cli.options.shared import time_option


def check_policy(
    policy: Annotated[
        str,
        typer.Argument(
            help="A policy's name, with hyperparameters as in alpha_greedy:alpha=0.3, or module:Class of one that is "
            "not registered; modules of this folder are found."
        ),
    ],
    check: Annotated[
        list[str] | None, typer.Option("--check", "-c", help="Only this check. May be repeated.")
    ] = None,
    timeout: Annotated[float, time_option("--timeout", "How long a check may take", least=1)] = 300.0,
) -> None:
    """Try a policy on what every policy must do, in a process whose compiled code checks every index.

    Compiled against plain Python and step by step, all rules of the engine, determinism, what it may know, the engine's
    invariants, and requests moved between workers. What does not hold is told with the smallest workload found that
    shows it; the exit status is then 1.
    """
    from kvgym.contract import CHECKS, examine

    table = Table(title=escape(policy), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("check", "", "what it says"):
        table.add_column(heading)
    faults = []
    with console.err.status("") as status:
        begins = lambda name: status.update(f"{name}: {CHECKS[name].what}")  # noqa: E731
        for finding in examine(policy, check or (), timeout=timeout, begins=begins):
            result = "[red]failed[/red]" if finding.fault else "skipped" if finding.skipped else "fine"
            table.add_row(finding.name, result, escape(CHECKS[finding.name].what))
            if finding.fault:
                faults.append(finding)
    console.out.print(table)
    for finding in faults:
        console.out.print(f"{finding.name}: {finding.fault}\n", markup=False, soft_wrap=True)
    if faults:
        raise typer.Exit(1)
