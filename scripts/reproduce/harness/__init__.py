"""What the reproductions share: what an experiment is, the command line, pages, the matrix, figures."""

from harness.experiment import Experiment, Finding, Outcome, Paper, Table, Verdict
from harness.figures import new_figure, palette, published
from harness.older import (
    HERE,
    Where,
    command_line,
    do_all,
    markdown_table,
    print_table,
    save_figure,
    where,
    write_json,
)
from harness.scale import Scale

__all__ = [
    "HERE",
    "Experiment",
    "Finding",
    "Outcome",
    "Paper",
    "Scale",
    "Table",
    "Verdict",
    "Where",
    "command_line",
    "do_all",
    "markdown_table",
    "new_figure",
    "palette",
    "print_table",
    "published",
    "save_figure",
    "where",
    "write_json",
]
