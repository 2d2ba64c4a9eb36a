"""Output of the commands that search by targets: their progress, tables and reports."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from kvgym.cli import console
from kvgym.cli.result_folder import command_line, reporting
from kvgym.cli.tables import ResultTable

if TYPE_CHECKING:
    from kvgym.studies.capacity.outcome_tables import OutcomeTable, Value
    from kvgym.studies.capacity.provisioned import Provisioning
    from kvgym.studies.capacity.result import CapacityResult

LONGEST_REASON = 60
"""Maximum length of a reason in a table, beyond which the text of an error is cut."""


@contextlib.contextmanager
def run_spinner(enabled: bool) -> Iterator[Callable[[str], None]]:
    """Show the latest run and the number of runs on standard error; the total is not known beforehand."""
    if not enabled:
        yield lambda text: None
        return
    with console.err.status("starting") as status:
        done = 0

        def advance(text: str) -> None:
            nonlocal done
            done += 1
            status.update(f"{done:,} runs; {escape(text)}")

        yield advance


def table_texts(table: OutcomeTable) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows of a table as texts; intervals have columns of their own."""
    headings = [column.heading for column in table.names]
    for column in table.columns:
        headings.append(console.heading(column.metric) if column.metric else column.heading)
        headings += ["95 % interval"] if column.spread else []
    rows = []
    for row in table.rows:
        cells = [*row.names]
        for column, value in zip(table.columns, row.cells, strict=True):
            cells += _texts(value, column.spread)
        rows.append(cells)
    return headings, rows


def _texts(value: Value, spread: bool) -> list[str]:
    """Return the text of a value, followed by its interval's if it has a column."""
    if value is None:
        return ["–"]
    if isinstance(value, str | int):
        return [str(value)]
    if isinstance(value, float):
        return [console.number(value)]
    return [console.number(value.value), *([console.interval(value)] if spread else [])]


def terminal_table(table: OutcomeTable, title: str, caption: str = "", *, files: str = "") -> ResultTable:
    """Return a table for a terminal; arguments as for :class:`~kvgym.cli.tables.ResultTable`."""
    shown = ResultTable(title, caption, files=files)
    headings, rows = table_texts(table)
    columns = [
        (column.rank, column.words)
        for column in (*table.names, *table.columns)
        for _ in range(1 + column.spread)
    ]
    for heading, (rank, words) in zip(headings, columns, strict=True):
        shown.column(heading, rank=rank, words=words)
    for row in rows:
        shown.row(*row)
    return shown


def write_outcome_report(result: CapacityResult | Provisioning, folder: Path, wanted: bool) -> None:
    """Write the report, if it is wanted, and print where it and the other results are."""
    if wanted:
        again = f"run the same command with --out {folder}"
        with reporting(folder, "report.html", again), console.optional("report"):
            from kvgym.studies.reports import write_capacity_report

            path = write_capacity_report(result, folder / "report.html", command=command_line())
            console.print_line(f"report:  {path}")
    console.print_line(f"results: {folder}")
