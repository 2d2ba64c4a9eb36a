"""Executors: run many tasks in this process, in worker processes or on a Ray cluster, and stream their results.

A :class:`~kvgym.utils.execution.executor.Work` is sent once to every process and then called with one task after
another, so it can cache data that tasks share. :func:`make_executor` chooses the place. Results do not depend on the
place or on the order of completion. Tasks of a process or node that dies are run again.
May import :mod:`kvgym.errors` only.
"""

from __future__ import annotations

from typing import TypeVar

from kvgym.errors import ConfigError, shown
from kvgym.utils.execution.executor import Executor, InProcess, Work
from kvgym.utils.execution.processes import Growing, Processes, cores

__all__ = ["Executor", "Work", "cores", "make_executor"]

Task = TypeVar("Task")
Result = TypeVar("Result")


def make_executor(
    work: Work[Task, Result], jobs: int | None = None, *, ray: str | None = None
) -> Executor[Task, Result]:
    """Return an executor, a context manager that stops the processes it started.

    Args:
        work: called with each task; picklable unless ``jobs`` is 1.
        jobs: 1 = this process only; more = this number of worker processes; 0 = one worker process per core; None =
            this process, and one worker process per core as soon as they save time.
            With ``ray``: number of parallel tasks; None and 0 = as many as the cluster has cores for.
        ray: None = no Ray; ``"local"`` = a cluster on this machine that stops with the executor; else the address of a
            running cluster, ``"auto"`` for the one on this machine.

    Raises:
        ConfigError: ``jobs`` is below 0, Ray is not installed, or there is no cluster at the address.
    """
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 0):
        raise ConfigError(
            f"jobs = {shown(jobs)}; expected a whole number ≥ 0, 0 for as many as there are cores"
        )
    if ray is not None:
        from kvgym.utils.execution.ray_cluster import OnRay

        return OnRay(work, ray, jobs or 0)
    if jobs is None:
        return Growing(work, cores())
    return InProcess(work) if jobs == 1 else Processes(work, jobs or cores())
