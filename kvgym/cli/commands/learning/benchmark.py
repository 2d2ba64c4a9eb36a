"""``kvgym benchmark``: score schedulers, routers, autoscalers and agents on frozen tasks; tables of entries."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvgym.cli import console
from kvgym.cli.options.shared import JobsOption, ProgressOption, split_names
from kvgym.cli.progress import progress_bar
from kvgym.cli.tables import ResultTable
from kvgym.errors import ConfigError
from kvgym.utils.files import plain_name

if TYPE_CHECKING:
    from kvgym.studies.benchmark.running import BenchmarkResult


def benchmark(
    entries: Annotated[
        list[str] | None,
        typer.Argument(
            help="Schedulers, routers, autoscalers or agents by name (kvgym list policies, routers, autoscalers, "
            "agents), module:Class of your own, the folder, .npz, .json or .zip of an agent, or a .yaml of settings "
            "by task."
        ),
    ] = None,
    suite: Annotated[str | None, typer.Option(help="The suite (default: the current one).")] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option("--tasks", help="Comma-separated tasks (default: all that the entry can enter)."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the entry; several entries are then trainings of this one."),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--table",
            help="Folder of results: write leaderboard.md there, with the entries run now included.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for results (default: results/benchmark).")
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(
            help="Kind of action of the environment that a .zip was trained in: priority, admit_count."
        ),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Read a .zip, which can run any code: only your own.")
    ] = False,
    jobs: JobsOption = None,
    progress: ProgressOption = True,
) -> None:
    """Score schedulers, routers, autoscalers and agents on the tasks of the benchmark.

    Writes a JSON file of results per entry, with values by test seed, versions and the hash of the suite.
    Schedulers, routers and autoscalers enter different tasks. docs/benchmark-suite.md has the definitions and says how
    to submit an entry.
    """
    from kvgym.studies.benchmark.entries import load_entry
    from kvgym.studies.benchmark.leaderboard import leaderboard, places_of, read_results
    from kvgym.studies.benchmark.running import run_benchmark
    from kvgym.studies.benchmark.tasks import SUITE
    from kvgym.utils.files import write_text

    if not entries and table is None:
        raise ConfigError("nothing to do: give entries to score, or --table with a folder of results")
    made = [load_entry(spec, trusted=trust, action=action) for spec in entries or ()]
    folder = out or table or Path("results/benchmark")
    results = []
    for group in [made] if name is not None and made else [[entry] for entry in made]:
        label = name or group[0].spec
        with progress_bar(1, progress) as steps:
            found = run_benchmark(
                group, name=label, suite=suite or SUITE, tasks=split_names(tasks), jobs=jobs,
                progress=None if steps is None else functools.partial(steps.update, label),
            )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{plain_name(label)}.json"
        found.save(path)
        results.append((found, path))
    if results:
        console.print_table(_scores([found for found, _ in results], files=f"{folder}"))
    for found, path in results:
        scores = ", ".join(f"{task} {each.mean():.2f}" for task, each in found.scores().items())
        console.print_line(f"{found.name}: {scores}")
        for section, place in places_of(found).items():
            console.print_line(f"{found.name}, {section}: {place}")
        for task, error in found.errors.items():
            console.print_line(f"note: {found.name}, {task}: {error}")
        console.print_line(f"results: {path}")
    if table is not None:
        write_text(table / "leaderboard.md", leaderboard(read_results(table)))
        console.print_line(f"table: {table / 'leaderboard.md'}")


def _scores(results: Sequence[BenchmarkResult], *, files: str) -> ResultTable:
    """Return the table of scores."""
    import numpy as np

    from kvgym.experiments.labels import short_labels
    from kvgym.studies.benchmark.scoring import interval_of

    table = ResultTable(files=files)
    for head in ("entry", "tasks of", "score", "95 % interval", "tasks", "seconds"):
        table.column(head, words=head in ("entry", "tasks of"))
    short = short_labels(found.name for found in results)
    for found in results:
        for section in found.sections:
            scores = found.scores(section)
            estimate = interval_of(scores, np.random.default_rng(0))
            table.row(
                f"{short[found.name]}{' †' if found.clairvoyant else ''}", section, f"{estimate.value:.3f}",
                f"{estimate.low:.3f} – {estimate.high:.3f}", str(len(scores)), f"{found.seconds:.1f}",
            )  # fmt: skip
    return table
