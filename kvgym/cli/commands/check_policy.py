"""``kvgym check-policy``: run the conformance checks on a policy."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from kvgym.cli import console
from kvgym.cli.options.shared import time_option
from kvgym.cli.tables import ResultTable


def check_policy(
    policy: Annotated[
        str,
        typer.Argument(
            help="Policy, with hyperparameters as in alpha_greedy:alpha=0.3, or module:Class if it is not registered; "
            "modules in this folder are found."
        ),
    ],
    check: Annotated[
        list[str] | None, typer.Option("--check", "-c", help="Run only this check. May be repeated.")
    ] = None,
    timeout: Annotated[float, time_option("--timeout", "Time limit of a check", least=1)] = 300.0,
) -> None:
    """Run the conformance checks on a policy, with bounds checking.

    Checks compiled code against plain Python, step by step, under all engine rules; determinism; the observable
    information; the engine's invariants; and requests moved between workers. A failed check is shown with the smallest
    workload found that fails, and the exit status is 1.
    """
    from kvgym.policies.contract import CHECKS, examine

    table = ResultTable(policy)
    for heading in ("check", "", "requirement"):
        table.column(heading, words=True)
    failed = []
    with console.err.status("") as status:
        begins = lambda name: status.update(f"{name}: {CHECKS[name].what}")  # noqa: E731
        for finding in examine(policy, check or (), timeout=timeout, begins=begins):
            result = Text("failed", "red") if finding.fault else "skipped" if finding.skipped else "passed"
            table.row(finding.name, result, CHECKS[finding.name].what)
            if finding.fault:
                failed.append(finding)
    console.print_table(table)
    for finding in failed:
        console.print_line(f"{finding.name}: {finding.fault}\n")
    if failed:
        raise typer.Exit(1)
