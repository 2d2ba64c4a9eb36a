"""Executors with worker processes on this machine; dead workers are replaced and their tasks run again."""

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

from kvgym.utils.execution.executor import (
    MOST_ATTEMPTS,
    Executor,
    InProcess,
    Result,
    Task,
    Work,
    call,
    given_up,
)

START = 4.0
"""Time that worker processes must save, seconds: more than they need to import kvgym and load compiled code."""

AHEAD = 2
"""Submitted tasks per process: enough to keep it busy, few enough that little is repeated after a death."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Processes(Executor[Task, Result]):
    """Runs tasks in worker processes, which are not forked from this one, so its threads do no harm.

    Args:
        work: called with each task; picklable.
        jobs: number of processes, ≥ 1.
    """

    def __init__(self, work: Work[Task, Result], jobs: int) -> None:
        self._work, self.jobs = work, jobs
        self._pool: ProcessPoolExecutor | None = None
        self._lifeline: Connection | None = None
        self._submitted: Collection[Future[Any]] = ()

    def stream(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Run tasks, see :meth:`Executor.stream`."""
        left = deque(range(len(tasks)))
        attempts: Counter[int] = Counter()
        running: dict[Future[Any], int] = {}
        self._submitted = running
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
                    lost = sorted([*broken, *running.values()])
                    running.clear()
                    self._discard_pool()
                    attempts.update(lost)
                    for place in lost:
                        if attempts[place] >= MOST_ATTEMPTS:
                            raise given_up(tasks[place], "worker processes")
                    left.extendleft(reversed(lost))
        finally:
            for future in running:
                future.cancel()

    def close(self) -> None:
        """Stop the processes, even within tasks that are still running."""
        if self._pool is not None:
            if self._lifeline is not None and not all(future.done() for future in self._submitted):
                self._lifeline.close()
            self._pool.shutdown(cancel_futures=True)
            self._reset()

    def _submit(self, task: Task) -> Future[Any]:
        """Submit a task; start a new pool if there is none or the last one has broken."""
        for _ in range(MOST_ATTEMPTS):
            if self._pool is None:
                context = _context(self._work)
                ours, self._lifeline = context.Pipe(duplex=False)
                self._pool = ProcessPoolExecutor(
                    self.jobs, mp_context=context, initializer=_begin, initargs=(self._work, ours)
                )
            try:
                # New processes inherit the mask: Ctrl-C goes to this process, which stops them.
                with _no_interrupts():
                    return self._pool.submit(_do, task)
            except BrokenProcessPool:
                self._discard_pool()
        raise given_up(task, "worker processes")

    def _discard_pool(self) -> None:
        """Discard a broken pool; the next task starts a new one."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._reset()

    def _reset(self) -> None:
        if self._lifeline is not None:
            self._lifeline.close()
        self._pool = self._lifeline = None


class Growing(Executor[Task, Result]):
    """Runs tasks in this process, and moves to worker processes once they would save time.

    A few short runs end before another process would have started; thousands use all cores.

    Args:
        work: called with each task; picklable if there is more than one core.
        jobs: number of worker processes, ≥ 1.
    """

    def __init__(self, work: Work[Task, Result], jobs: int) -> None:
        self._here = InProcess(work)
        self._others = Processes(work, jobs) if jobs > 1 else None
        self._grown = False

    def stream(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Run tasks, see :meth:`Executor.stream`."""
        done, spent = 0, 0.0
        if not self._grown:
            results = self._here.stream(tasks)
            while done < len(tasks) and not self._worth_it(done, len(tasks), spent):
                started = time.perf_counter()  # without the time between two reads
                found = next(results)
                if done:  # the first task may load or compile code
                    spent += time.perf_counter() - started
                done += 1
                yield found
        if done < len(tasks) and self._others is not None:
            self._grown = True
            for place, result in self._others.stream(tasks[done:]):
                yield done + place, result

    def close(self) -> None:
        """Stop the processes, if any were started."""
        if self._others is not None:
            self._others.close()

    def _worth_it(self, done: int, total: int, spent: float) -> bool:
        """Return whether the remaining tasks should run in worker processes."""
        if self._others is None or done < 2:
            return False
        left = (total - done) * spent / (done - 1)
        return left - left / self._others.jobs > START


def _context(work: Work[Any, Any]) -> BaseContext:
    """Return the start method: fork server with the work's module imported once, else spawn.

    The fork server has one thread, so no fork copies another thread's half-done state.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    module = getattr(work, "__module__", None) or type(work).__module__
    if module != "__main__":
        context.set_forkserver_preload([module])  # no effect if the server is already running
    return context


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the context ends, on systems that support it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_work: Any = None  # in a worker process


def _begin(work: Work[Any, Any], lifeline: Connection) -> None:
    """Prepare a worker process."""
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    _work = work


def _end_with_parent(lifeline: Connection) -> None:
    """End this process at once when its parent has died or closed the lifeline."""
    parent = multiprocessing.parent_process()
    wait_for([lifeline] if parent is None else [lifeline, parent.sentinel])
    os._exit(1)


def _do(task: Any) -> Any:
    return call(_work, task)
