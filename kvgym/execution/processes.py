"""Worker processes on this machine; one that dies is replaced, and what it was at is done again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from kvgym.execution.executor import MOST_ATTEMPTS, Executor, Result, Task, Work, given_up

AHEAD = 2
"""Tasks that wait in front of each process: enough that none is idle, few enough that little is in doubt."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Processes(Executor[Task, Result]):
    """Does tasks in processes of their own, started afresh (spawned), so that threads of this one do no harm.

    Args:
        work: what is called with each task, picklable.
        jobs: number of processes, ≥ 1.
    """

    def __init__(self, work: Work[Task, Result], jobs: int) -> None:
        self._work, self.jobs = work, jobs
        self._pool: ProcessPoolExecutor | None = None

    def stream(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Do tasks, see :meth:`Executor.stream`."""
        left = deque(range(len(tasks)))
        attempts: Counter[int] = Counter()
        running: dict[Future[Any], int] = {}
        try:
            while left or running:
                while left and len(running) < AHEAD * self.jobs:
                    future = self._submit(tasks[left[0]])
                    running[future] = left.popleft()
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                broken = []
                for future in done:
                    place = running.pop(future)
                    try:
                        result = future.result()
                    except BrokenProcessPool:
                        broken.append(place)
                    else:
                        yield place, result
                if broken:
                    in_doubt = sorted([*broken, *running.values()])
                    running.clear()
                    self._replace()
                    attempts.update(in_doubt)
                    for place in in_doubt:
                        if attempts[place] >= MOST_ATTEMPTS:
                            raise given_up(tasks[place], "worker processes")
                    left.extendleft(reversed(in_doubt))
        finally:
            for future in running:
                future.cancel()

    def close(self) -> None:
        """End the processes, once they are through with the tasks they are at."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _submit(self, task: Task) -> Future[Any]:
        """Hand a task to the pool, a new one where the last has broken unnoticed."""
        for _ in range(MOST_ATTEMPTS):
            if self._pool is None:
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(
                    self.jobs, mp_context=context, initializer=_begin, initargs=(self._work,)
                )
            try:
                return self._pool.submit(_do, task)
            except BrokenProcessPool:
                self._replace()
        raise given_up(task, "worker processes")

    def _replace(self) -> None:
        """Let go of a pool that has broken; the next task makes another."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


_work: Any = None  # of a worker process


def _begin(work: Work[Any, Any]) -> None:
    """Prepare a worker process."""
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _work = work


def _end_with_parent() -> None:
    """End this process when its parent is gone: one that was killed could not end its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do(task: Any) -> Any:
    return _work(task)
