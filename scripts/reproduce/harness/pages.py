"""Generated blocks of the documentation, between markers; the text around them is written by hand."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.experiment import Experiment, Finding, Outcome, Paper, Table, Verdict
from harness.figures import draw_to
from harness.store import keep
from kvgym.utils.files import write_text

PICTURES = "images/reproductions"  # in docs/
OUTCOMES = "reproductions/outcomes"  # in docs/: all that the other generated files are made from
TABLES = "tables"  # in docs/
LONG = 12  # rows; longer tables are CSV files

FINDINGS = ("claim", "published", "ours", "seeds", "verdict", "why")
MATRIX = ("where", "claim", "published", "ours", "seeds", "verdict")
SUMMARY = "summary"  # the block that counts the verdicts of the matrix


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
    """Return the content of a block; empty if there is none."""
    found = re.search(
        rf"<!-- begin {re.escape(name)} -->\n(.*?)<!-- end {re.escape(name)} -->", text, re.DOTALL
    )
    return found[1].strip() if found else ""


def picture(paper: Paper, experiment: Experiment) -> str:
    """Return the name of an experiment's picture in docs/."""
    return f"{PICTURES}/{paper.name}-{experiment.name}.png"


def outcome_file(paper: Paper, experiment: Experiment) -> str:
    """Return the name of an experiment's outcome in docs/."""
    return f"{OUTCOMES}/{paper.name}-{experiment.name}.json"


def csv_files(paper: Paper, experiment: Experiment, outcome: Outcome) -> dict[str, Table]:
    """Return an experiment's long tables by their file in docs/."""
    tables = enumerate(outcome.tables, 1)
    return {
        f"{TABLES}/{paper.name}-{experiment.name}-{number}.csv": table
        for number, table in tables
        if len(table.rows) > LONG
    }


def experiment_block(paper: Paper, experiment: Experiment, outcome: Outcome) -> str:
    """Return the block of an experiment: headline, source, findings, tables, picture; links to long tables."""
    parts = [
        f"## {experiment.title}",
        f"{experiment.source}. `python scripts/reproduce {paper.name} --only {experiment.name}`",
        findings_table(outcome.findings),
    ]
    files = {id(table): file for file, table in csv_files(paper, experiment, outcome).items()}
    for table in outcome.tables:
        if file := files.get(id(table)):
            caption = table.caption.strip().rstrip(":.") + ". " if table.caption else ""
            parts.append(f"{caption}[{len(table.rows)} rows as CSV](../{file})")
        else:
            parts += [table.caption] if table.caption else []
            parts.append(markdown_rows(table.head, table.rows))
    if experiment.draw is not None:
        parts.append(f"![{experiment.title}](../{picture(paper, experiment)})")
    return "\n\n".join(part.strip() for part in parts)


def matrix_block(paper: Paper, outcomes: Mapping[str, Outcome], before: str) -> str:
    """Return a paper's block of the matrix: one row per claim.

    Args:
        paper: the paper.
        outcomes: outcomes by name of the experiment.
        before: the present block; rows of experiments that are not in ``outcomes`` are kept.
    """
    kept: dict[str, list[str]] = {}
    for line in before.splitlines():
        if match := re.match(r"\| \[[^]]*\]\([^)#]*#([^)]*)\) \|", line):
            kept.setdefault(match[1], []).append(line.strip())
    lines = []
    for experiment in paper.experiments:
        if experiment.name in outcomes:
            where = f"[{experiment.source}](reproductions/{paper.page}#{anchor(experiment)})"
            rows = [(where, *_cells(row)[:-1]) for row in outcomes[experiment.name].findings]
            lines += markdown_rows(MATRIX, rows).splitlines()[2:]
        else:
            lines += kept.get(anchor(experiment), [])
    head = markdown_rows(MATRIX, []).splitlines()
    return "\n".join([f"### [{paper.title}](reproductions/{paper.page})", "", *head, *lines])


def summary_block(matrix: str) -> str:
    """Return the table that counts the verdicts of each paper in the matrix page."""
    rows = []
    others = matrix.replace(read_block(matrix, SUMMARY), "")
    for block in re.split(r"^### ", others, flags=re.MULTILINE)[1:]:
        title, _, rest = block.partition("\n")
        counts = [len(re.findall(rf"\| {verdict.value} \|$", rest, re.MULTILINE)) for verdict in Verdict]
        rows.append([title, str(sum(counts)), *map(str, counts)])
    return markdown_rows(["paper", "claims", *(verdict.value for verdict in Verdict)], rows)


def write_all(docs: Path, paper: Paper, experiment: Experiment, outcome: Outcome) -> None:
    """Write an experiment's outcome, its picture, and what :func:`write_pages` writes.

    All are made from the outcome as it is read back, so that it determines them. Where it has no data, as those of runs
    before outcomes had them, the present picture stays.
    """
    outcome = keep(docs / outcome_file(paper, experiment), outcome)
    if experiment.draw is not None and outcome.data:
        draw_to(docs / picture(paper, experiment), experiment.draw, outcome.data)
    write_pages(docs, paper, {experiment.name: outcome})


def write_pages(docs: Path, paper: Paper, outcomes: Mapping[str, Outcome]) -> None:
    """Write the blocks of experiments into the page of the paper, their long tables, and their rows of the matrix.

    Args:
        docs: the folder docs/.
        paper: the paper.
        outcomes: outcomes by name of the experiment.
    """
    page = docs / "reproductions" / paper.page
    text = page.read_text(encoding="utf-8")
    for experiment in paper.experiments:
        if (outcome := outcomes.get(experiment.name)) is not None:
            text = write_block(text, experiment.name, experiment_block(paper, experiment, outcome))
            for name, table in csv_files(paper, experiment, outcome).items():
                (docs / TABLES).mkdir(exist_ok=True)
                write_text(docs / name, _csv(table))
    write_text(page, text)
    matrix = docs / "reproductions.md"
    text = matrix.read_text(encoding="utf-8")
    text = write_block(text, paper.name, matrix_block(paper, outcomes, read_block(text, paper.name)))
    write_text(matrix, write_block(text, SUMMARY, summary_block(text)))


def anchor(experiment: Experiment) -> str:
    """Return the anchor of an experiment's headline on the paper's page."""
    return re.sub(r"[^\w\- ]", "", experiment.title.lower()).replace(" ", "-")


def markdown_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"a row has {len(row)} cells, the table's head {len(head)}: {row}")
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _csv(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([cell.replace("`", "") for cell in row] for row in (table.head, *table.rows))
    return text.getvalue()


def findings_table(rows: Sequence[Finding]) -> str:
    """Return a page's table of findings; a reason equal to the one above is not repeated."""
    cells = [_cells(row) for row in rows]
    for above, row in enumerate(rows[1:]):
        if row.why and row.why == rows[above].why:
            cells[above + 1] = (*cells[above + 1][:-1], "as above")
    return markdown_rows(FINDINGS, cells)


def _cells(row: Finding) -> tuple[str, ...]:
    return row.claim, row.published, row.ours, row.seeds or "–", row.verdict.value, row.why
