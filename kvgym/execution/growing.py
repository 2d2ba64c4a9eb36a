"""Begin here; go on in other processes where that is worth their start."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from kvgym.execution.executor import Executor, InProcess, Result, Task, Work
from kvgym.execution.processes import Processes

START = 4.0
"""Seconds that processes must save: what importing the library and loading compiled code costs them, and some more."""


class Growing(Executor[Task, Result]):
    """Does tasks in this process until what is left, at the pace so far, would keep it busy for long.

    A few short runs end before another process has started; thousands get all cores, without being asked for.

    Args:
        work: what is called with each task, picklable where there is more than one core.
        jobs: number of processes, ≥ 1.
    """

    def __init__(self, work: Work[Task, Result], jobs: int) -> None:
        self._here = InProcess(work)
        self._others = Processes(work, jobs) if jobs > 1 else None
        self._grown = False

    def stream(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Do tasks, see :meth:`Executor.stream`."""
        done, spent = 0, 0.0
        if not self._grown:
            results = self._here.stream(tasks)
            while done < len(tasks) and not self._worth_it(done, len(tasks), spent):
                started = time.perf_counter()  # the reader's own time does not count
                found = next(results)
                if done:  # the first may load or compile code, which says nothing of the others
                    spent += time.perf_counter() - started
                done += 1
                yield found
        if done < len(tasks) and self._others is not None:
            self._grown = True
            for place, result in self._others.stream(tasks[done:]):
                yield done + place, result

    def close(self) -> None:
        """End the processes, if any were started."""
        if self._others is not None:
            self._others.close()

    def _worth_it(self, done: int, total: int, spent: float) -> bool:
        """Return whether the tasks that are left should go to other processes."""
        if self._others is None or done < 2:
            return False
        left = (total - done) * spent / (done - 1)
        return left - left / self._others.jobs > START
