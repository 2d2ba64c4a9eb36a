"""Running cells, in this process or in several: a job is all that is missing on one scenario."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from compare_agents.bench import Bench, Outcome
from compare_agents.cells import Cell
from compare_agents.entrants import Entrant
from compare_agents.store import Store
from kvgym.execution import make_executor


@dataclass(frozen=True)
class Job:
    """Entrants to be run on one bench, by one process.

    Attributes:
        name: of the first cell that asked for it.
        bench: the bench.
        entrants: by key.
    """

    name: str
    bench: Bench
    entrants: dict[str, Entrant]


def jobs_for(cells: Sequence[Cell], done: Collection[str] = ()) -> list[Job]:
    """Return what has to be run for some cells, each run once however many cells show it.

    Args:
        cells: the cells.
        done: keys of runs that are there.
    """
    known = set(done)
    jobs: dict[str, Job] = {}
    for cell in cells:
        job = jobs.setdefault(
            cell.bench.scenario.model_dump_json() + cell.bench.metric, Job(cell.name, cell.bench, {})
        )
        for key, entrant in zip(cell.run_keys(), cell.entrants, strict=True):
            if key not in known:
                known.add(key)
                job.entrants[key] = entrant
    return [job for job in jobs.values() if job.entrants]


def run_job(job: Job) -> tuple[dict[str, Outcome], float]:
    """Return the outcomes of a job by key, and its CPU seconds."""
    started = time.process_time()
    found = {key: entrant.play(job.bench) for key, entrant in job.entrants.items()}
    return found, time.process_time() - started


def run_cells(
    cells: Sequence[Cell],
    store: Store,
    *,
    path: Path | None = None,
    jobs: int = 0,
    ray: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> None:
    """Run what is missing of some cells, and put it into a store.

    Args:
        cells: the cells; the store then consists of them, as far as their tasks go.
        store: outcomes that are there are not run again.
        path: file of the store, written after every job; None = not written.
        jobs: processes, see :func:`kvgym.execution.make_executor`.
        ray: run on a Ray cluster instead, see there.
        progress: called with a line of text after every job.
    """
    missing = jobs_for(cells, store.runs)
    store.put(cells)
    started, done = time.perf_counter(), 0
    runs = sum(len(job.entrants) for job in missing)
    progress(f"{len(cells)} cells, {runs} runs to do in {len(missing)} jobs")
    with make_executor(run_job, jobs, ray=ray) as executor:
        for place, (found, seconds) in executor.stream(missing):
            done += 1
            store.runs |= found
            store.about["cpu_seconds"] = round(store.about.get("cpu_seconds", 0.0) + seconds, 1)
            if path is not None:
                store.save(path)
            elapsed = time.perf_counter() - started
            progress(
                f"{done}/{len(missing)} {missing[place].name}: {seconds:.0f} CPU s; {elapsed:.0f} s so far"
            )
    if path is not None:
        store.save(path)
