"""Shared code of the reproductions: experiments, the command line, pages, the matrix, figures."""

from harness.experiment import Experiment, Finding, Outcome, Paper, Table, Verdict
from harness.figures import new_figure, palette, published
from harness.scale import Scale

__all__ = [
    "Experiment",
    "Finding",
    "Outcome",
    "Paper",
    "Scale",
    "Table",
    "Verdict",
    "new_figure",
    "palette",
    "published",
]
