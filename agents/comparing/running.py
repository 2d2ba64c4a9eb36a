"""Running cells, in this process or in several: a job is all that is missing on one scenario."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from kvgym.agents.comparing.bench import Outcome
from kvgym.agents.comparing.cells import Cell, Job, jobs_for
from kvgym.agents.comparing.store import Store
from kvgym.agents.processes import cores, ended_early, make_pool


def run_job(job: Job) -> tuple[dict[str, Outcome], float]:
    """Return the outcomes of a job by key, and its CPU seconds."""
    started = time.process_time()
    found = {key: entrant.play(job.bench) for key, entrant in job.entrants.items()}
    return found, time.process_time() - started


def _outcomes(jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, dict[str, Outcome], float]]:
    """Run jobs and return what they found, as soon as it is there."""
    if processes == 1 or len(jobs) == 1:
        for job in jobs:
            yield job, *run_job(job)
        return
    pool = make_pool(processes)
    try:
        waiting = {pool.submit(run_job, job): job for job in jobs}
        for done in as_completed(waiting):
            yield waiting[done], *done.result()
    except BrokenProcessPool:
        raise ended_early("call this", "one process") from None
    finally:
        pool.shutdown(cancel_futures=True)


def run_cells(
    cells: Sequence[Cell],
    store: Store,
    *,
    path: Path | None = None,
    processes: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> None:
    """Run what is missing of some cells, and put it into a store.

    Args:
        cells: the cells; the store then consists of them, as far as their tasks go.
        store: outcomes that are there are not run again.
        path: file of the store, written after every job; None = not written.
        processes: 1 = this one, 0 = as many as there are cores.
        progress: called with a line of text after every job.
    """
    jobs = jobs_for(cells, store.runs)
    store.put(cells)
    started, total = time.perf_counter(), len(jobs)
    progress(f"{len(cells)} cells, {sum(len(job.entrants) for job in jobs)} runs to do in {total} jobs")
    for number, (job, found, seconds) in enumerate(_outcomes(jobs, processes or cores()), start=1):
        store.runs |= found
        store.about["cpu_seconds"] = round(store.about.get("cpu_seconds", 0.0) + seconds, 1)
        if path is not None:
            store.save(path)
        elapsed = time.perf_counter() - started
        progress(f"{number}/{total} {job.name}: {seconds:.0f} CPU s; {elapsed:.0f} s so far")
    if path is not None:
        store.save(path)
