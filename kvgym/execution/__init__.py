"""Many calls of one function, here, in other processes or on a Ray cluster; results come as they are ready.

What is run is a :class:`~kvgym.execution.executor.Work`: an object that is sent once to every process and then called
with one task after the other, so that it may keep what tasks share. :func:`make_executor` chooses where. Results do not
depend on where, nor on the order in which they come; a process or node that dies costs the tasks it was at, which are
run again. May import :mod:`kvgym.errors` only.
"""

from __future__ import annotations

from typing import TypeVar

from kvgym.errors import ConfigError, shown
from kvgym.execution.executor import Executor, InProcess, Work
from kvgym.execution.processes import Growing, Processes, cores

__all__ = ["Executor", "Work", "cores", "make_executor"]

Task = TypeVar("Task")
Result = TypeVar("Result")


def make_executor(
    work: Work[Task, Result], jobs: int | None = None, *, ray: str | None = None
) -> Executor[Task, Result]:
    """Return an executor, a context manager that ends what it started.

    Args:
        work: what is called with each task; picklable unless ``jobs`` is 1.
        jobs: processes. 1 = this one alone; more = so many others; 0 = as many others as there are cores; None =
            this one, and as many others as there are cores once it turns out that they are worth their start.
            With ``ray``: tasks at a time, None and 0 = as many as the cluster has cores for.
        ray: None = no Ray; ``"local"`` = a cluster on this machine that ends with the executor; else the address of a
            running one, ``"auto"`` for that of the machine.

    Raises:
        ConfigError: ``jobs`` is below 0, Ray is not installed, or there is no cluster at the address.
    """
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 0):
        raise ConfigError(
            f"jobs = {shown(jobs)}; expected a whole number ≥ 0, 0 for as many as there are cores"
        )
    if ray is not None:
        from kvgym.execution.ray_cluster import OnRay

        return OnRay(work, ray, jobs or 0)
    if jobs is None:
        return Growing(work, cores())
    return InProcess(work) if jobs == 1 else Processes(work, jobs or cores())
