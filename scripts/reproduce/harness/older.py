"""What the commands of the reproductions share: the command line, Markdown tables, files of results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kvgym.execution import make_executor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Task = TypeVar("Task")
Result = TypeVar("Result")


def command_line(doc: str | None, seeds: int) -> argparse.ArgumentParser:
    """Return a parser of --quick and --seeds.

    Args:
        doc: the script's docstring, shown by --help.
        seeds: the default number of seeds, for the help; the option itself is None unless it is given.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="seconds: shows that it runs, the figures mean nothing"
    )
    parser.add_argument("--seeds", type=int, help=f"seeds per figure (default {seeds})")
    parser.add_argument(
        "--jobs",
        type=int,
        help="processes; 0 = one for each core; default: cores, where runs take long enough",
    )
    parser.add_argument("--ray", help="run on Ray: local, auto, or the address of a cluster")
    return parser


class Where(NamedTuple):
    """Where runs are done, see :func:`kvgym.execution.make_executor`."""

    jobs: int | None = 1
    ray: str | None = None


HERE = Where()


def where(options: argparse.Namespace) -> Where:
    """Return where the command line wants runs to be done."""
    return Where(options.jobs, options.ray)


def do_all(work: Callable[[Task], Result], tasks: Sequence[Task], place: Where) -> list[Result]:
    """Return what each task gives, in their order.

    Args:
        work: a function of a module, or an object of a class of one.
        tasks: what it is called with.
        place: where.
    """
    with make_executor(work, place.jobs, ray=place.ray) as executor:
        return executor.map(tasks)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, its last line ended."""
    return "".join("| " + " | ".join(row) + " |\n" for row in (head, ["---"] * len(head), *rows))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table and an empty line."""
    print(markdown_table(head, rows), flush=True)


def write_json(
    path: Path, found: object, default: Callable[[Any], Any] | None = None, *, indent: int = 1
) -> None:
    """Write figures as JSON, NaN as null.

    Args:
        path: the file; its folder is made.
        found: the figures.
        default: what makes JSON values of others.
        indent: spaces per level.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, indent=indent, default=default).replace("NaN", "null")
    path.write_text(text + "\n", encoding="utf-8")


def save_figure(figure: Figure, path: Path, dpi: int) -> None:
    """Write a picture; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
