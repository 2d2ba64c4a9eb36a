"""Run contests in one or several processes; a job has all missing runs of one scenario."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from compare_agents.benchmark import Benchmark, Outcome
from compare_agents.contestants import Contestant
from compare_agents.contests import Contest
from compare_agents.store import Store
from kvgym.execution import make_executor


@dataclass(frozen=True)
class Job:
    """Contestants that one process runs on one benchmark.

    Attributes:
        name: of the first contest that needs it.
        benchmark: the benchmark.
        contestants: by key.
    """

    name: str
    benchmark: Benchmark
    contestants: dict[str, Contestant]


def jobs_for(contests: Sequence[Contest], done: Collection[str] = ()) -> list[Job]:
    """Return the missing runs of some contests; a run that several contests share is done once.

    Args:
        contests: the contests.
        done: keys of finished runs.
    """
    known = set(done)
    jobs: dict[str, Job] = {}
    for contest in contests:
        job = jobs.setdefault(
            contest.benchmark.scenario.model_dump_json() + contest.benchmark.metric,
            Job(contest.name, contest.benchmark, {}),
        )
        for key, contestant in zip(contest.run_keys(), contest.contestants, strict=True):
            if key not in known:
                known.add(key)
                job.contestants[key] = contestant
    return [job for job in jobs.values() if job.contestants]


def run_job(job: Job) -> tuple[dict[str, Outcome], float]:
    """Return the outcomes of a job by key, and its CPU seconds."""
    started = time.process_time()
    found = {key: contestant.play(job.benchmark) for key, contestant in job.contestants.items()}
    return found, time.process_time() - started


def run_contests(
    contests: Sequence[Contest],
    store: Store,
    *,
    path: Path | None = None,
    jobs: int = 0,
    ray: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> None:
    """Run the missing runs of some contests and put them into a store.

    Args:
        contests: they replace the stored contests of their tasks.
        store: its outcomes are not run again.
        path: file of the store, written after every job; None = none.
        jobs: processes, see :func:`kvgym.execution.make_executor`.
        ray: run on a Ray cluster instead, see there.
        progress: called with a line of text after every job.
    """
    missing = jobs_for(contests, store.runs)
    store.put(contests)
    started, done = time.perf_counter(), 0
    runs = sum(len(job.contestants) for job in missing)
    progress(f"{len(contests)} contests, {runs} runs to do in {len(missing)} jobs")
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
