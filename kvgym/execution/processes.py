"""Worker processes on this machine; one that dies is replaced, and what it was at is done again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import BaseContext
from typing import Any

from kvgym.execution.executor import MOST_ATTEMPTS, Executor, InProcess, Result, Task, Work, call, given_up

START = 4.0
"""Seconds that processes must save: what importing the library and loading compiled code costs them, and some more."""

AHEAD = 2
"""Tasks that wait in front of each process: enough that none is idle, few enough that little is in doubt."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Processes(Executor[Task, Result]):
    """Does tasks in processes of their own, none a copy of this one, so that its threads do no harm.

    Args:
        work: what is called with each task, picklable.
        jobs: number of processes, ≥ 1.
    """

    def __init__(self, work: Work[Task, Result], jobs: int) -> None:
        self._work, self.jobs = work, jobs
        self._pool: ProcessPoolExecutor | None = None
        self._lifeline: Connection | None = None
        self._under_way: Collection[Future[Any]] = ()

    def stream(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Do tasks, see :meth:`Executor.stream`."""
        left = deque(range(len(tasks)))
        attempts: Counter[int] = Counter()
        running: dict[Future[Any], int] = {}
        self._under_way = running
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
        """End the processes, in the middle of tasks whose results nobody has waited for."""
        if self._pool is not None:
            if self._lifeline is not None and not all(future.done() for future in self._under_way):
                self._lifeline.close()
            self._pool.shutdown(cancel_futures=True)
            self._let_go()

    def _submit(self, task: Task) -> Future[Any]:
        """Hand a task to the pool, a new one where the last has broken unnoticed."""
        for _ in range(MOST_ATTEMPTS):
            if self._pool is None:
                context = _context(self._work)
                ours, self._lifeline = context.Pipe(duplex=False)
                self._pool = ProcessPoolExecutor(
                    self.jobs, mp_context=context, initializer=_begin, initargs=(self._work, ours)
                )
            try:
                # Processes that start inherit it: Ctrl-C is for this one, which ends them.
                with _no_interrupts():
                    return self._pool.submit(_do, task)
            except BrokenProcessPool:
                self._replace()
        raise given_up(task, "worker processes")

    def _replace(self) -> None:
        """Let go of a pool that has broken; the next task makes another."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._let_go()

    def _let_go(self) -> None:
        if self._lifeline is not None:
            self._lifeline.close()
        self._pool = self._lifeline = None


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


def _context(work: Work[Any, Any]) -> BaseContext:
    """Return how processes are started: from a server that has imported what the work needs once for all of them.

    The server has one thread, so that nothing is copied in the middle of what another thread does. Where the system
    has no such servers, each process is spawned and imports for itself.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    module = getattr(work, "__module__", None) or type(work).__module__
    if module != "__main__":
        context.set_forkserver_preload([module])  # of no effect on a server that runs already
    return context


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Hold back Ctrl-C while the block runs, where the system can; it comes afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_work: Any = None  # of a worker process


def _begin(work: Work[Any, Any], lifeline: Connection) -> None:
    """Prepare a worker process."""
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    _work = work


def _end_with_parent(lifeline: Connection) -> None:
    """End this process when its parent is gone or says so, whatever it is at: nobody waits for it."""
    parent = multiprocessing.parent_process()
    wait_for([lifeline] if parent is None else [lifeline, parent.sentinel])
    os._exit(1)


def _do(task: Any) -> Any:
    return call(_work, task)
