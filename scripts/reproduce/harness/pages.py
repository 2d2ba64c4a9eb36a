"""Blocks of the documentation that commands write: between markers, the rest of the page is by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.experiment import Experiment, Finding, Outcome, Paper
from kvgym.utils.files import write_text

PICTURES = "images/reproductions"  # in docs/

FINDINGS = ("claim", "published", "here", "verdict", "why")
MATRIX = ("experiment", "claim", "published", "here", "verdict", "why", "figure", "--only")


def write_block(text: str, name: str, body: str) -> str:
    """Return a page with a block in place of the one of the same name, or at its end."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    block = f"{begin}\n\n{body.strip()}\n\n{end}"
    if begin in text:
        before, _, rest = text.partition(begin)
        if end not in rest:
            raise ValueError(f"{begin} has no {end}")
        return before + block + rest.partition(end)[2]
    return f"{text.rstrip()}\n\n{block}\n"


def read_block(text: str, name: str) -> str:
    """Return what stands in a block, without its markers; empty where there is none."""
    found = re.search(
        rf"<!-- begin {re.escape(name)} -->\n(.*?)<!-- end {re.escape(name)} -->", text, re.DOTALL
    )
    return found[1].strip() if found else ""


def picture(paper: Paper, experiment: Experiment) -> str:
    """Return the name of an experiment's picture in docs/."""
    return f"{PICTURES}/{paper.name}-{experiment.name}.png"


def experiment_block(paper: Paper, experiment: Experiment, outcome: Outcome) -> str:
    """Return the block of an experiment: headline, source, findings, tables, picture."""
    parts = [
        f"## {experiment.title}",
        f"{experiment.source}. `python scripts/reproduce {paper.name} --only {experiment.name}`",
        _table(FINDINGS, [_cells(row) for row in outcome.findings]),
    ]
    for table in outcome.tables:
        parts += [table.caption] if table.caption else []
        parts.append(_table(table.head, table.rows))
    if experiment.draw is not None:
        parts.append(f"![{experiment.title}](../{picture(paper, experiment)})")
    return "\n\n".join(part.strip() for part in parts)


def matrix_block(paper: Paper, outcomes: Mapping[str, Outcome], before: str) -> str:
    """Return the rows of a paper in the matrix.

    Args:
        paper: the paper.
        outcomes: what came out, by name of the experiment.
        before: the block as it is: rows of experiments that are not in ``outcomes`` are kept.
    """
    kept: dict[str, list[str]] = {}
    for line in before.splitlines():
        if match := re.search(r"\| `([\w.-]+)` \|$", line.strip()):
            kept.setdefault(match[1], []).append(line.strip())
    lines = []
    for experiment in paper.experiments:
        if experiment.name in outcomes:
            rows = [_matrix_row(paper, experiment, row) for row in outcomes[experiment.name].findings]
            lines += _table(MATRIX, rows).splitlines()[2:]
        else:
            lines += kept.get(experiment.name, [])
    head = _table(MATRIX, []).splitlines()
    title = f"### [{paper.title}](reproductions/{paper.page})"
    return "\n".join([title, "", f"`python scripts/reproduce {paper.name}`", "", *head, *lines])


def write_pages(docs: Path, paper: Paper, outcomes: Mapping[str, Outcome]) -> None:
    """Write the blocks of experiments into the page of the paper, and their rows into the matrix.

    Args:
        docs: the folder docs/.
        paper: the paper.
        outcomes: what came out, by name of the experiment.
    """
    page = docs / "reproductions" / paper.page
    text = page.read_text(encoding="utf-8")
    for experiment in paper.experiments:
        if experiment.name in outcomes:
            text = write_block(
                text, experiment.name, experiment_block(paper, experiment, outcomes[experiment.name])
            )
    write_text(page, text)
    matrix = docs / "reproductions.md"
    text = matrix.read_text(encoding="utf-8")
    body = matrix_block(paper, outcomes, read_block(text, paper.name))
    write_text(matrix, write_block(text, paper.name, body))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"a row has {len(row)} cells, the table's head {len(head)}: {row}")
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _cells(row: Finding) -> tuple[str, ...]:
    return row.claim, row.published, row.ours, row.verdict.value, row.reason


def _matrix_row(paper: Paper, experiment: Experiment, row: Finding) -> tuple[str, ...]:
    anchor = re.sub(r"[^\w\- ]", "", experiment.title.lower()).replace(" ", "-")
    where = f"[{experiment.source}](reproductions/{paper.page}#{anchor})"
    figure = f"[picture]({picture(paper, experiment)})" if experiment.draw is not None else ""
    return where, *_cells(row), figure, f"`{experiment.name}`"
