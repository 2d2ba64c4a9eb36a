"""The interface of executors, and the executor that runs tasks in this process."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from kvgym.errors import KVGymError

Task = TypeVar("Task")
Result = TypeVar("Result")
TaskIn = TypeVar("TaskIn", contravariant=True)
ResultOut = TypeVar("ResultOut", covariant=True)

MOST_ATTEMPTS = 3
"""Attempts at a task that kills its process, before it is an error."""


class Work(Protocol[TaskIn, ResultOut]):
    """A function or object that processes tasks; it is sent once to each process, where it may cache data."""

    def __call__(self, task: TaskIn, /) -> ResultOut:
        """Process a task; the result may depend only on the task."""


class Executor(ABC, Generic[Task, Result]):
    """Runs tasks; a context manager that stops the processes it started."""

    @abstractmethod
    def stream(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Run tasks; yield index and result of each as soon as it completes, in any order.

        Tasks that have not started are dropped when the iterator is closed. Exceptions of tasks are raised here.

        Raises:
            KVGymError: :data:`MOST_ATTEMPTS` processes died while they ran the same task.
        """

    def map(self, tasks: Sequence[Task]) -> list[Result]:
        """Return the results of tasks in their order."""
        found = dict(self.stream(tasks))
        return [found[place] for place in range(len(tasks))]

    def close(self) -> None:
        """Stop the processes; tasks that have not started are dropped."""
        return None

    def __enter__(self) -> Executor[Task, Result]:
        """Return the executor."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the executor."""
        self.close()


class InProcess(Executor[Task, Result]):
    """Runs one task after another in this process."""

    def __init__(self, work: Work[Task, Result]) -> None:
        self._work = work

    def stream(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Run tasks in order, see :meth:`Executor.stream`."""
        for place, task in enumerate(tasks):
            yield place, self._work(task)


def call(work: Work[Task, Result], task: Task) -> Result:
    """Run a task in a worker process.

    Raises:
        KVGymError: with the message of an exception that cannot be pickled, which would look like a dead process.
    """
    try:
        return work(task)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # pickling a user's exception may raise anything
            raise KVGymError(f"{type(error).__qualname__}: {error}") from None
        raise


def given_up(task: object, where: str) -> KVGymError:
    """Return the error for a task that keeps killing its processes.

    Args:
        task: the task.
        where: kind of process, in the plural.
    """
    text = repr(task)
    short = text if len(text) <= 200 else f"{text[:199]}…"
    return KVGymError(
        f"{MOST_ATTEMPTS} {where} died while running {short}. Was there too little memory? A script that starts "
        'processes must do so under if __name__ == "__main__":, or use jobs=1'
    )
