"""The interface, and the executor that stays in this process."""

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
"""A task that was at work in so many processes when they died is given up."""


class Work(Protocol[TaskIn, ResultOut]):
    """What is done with a task: an object that is sent once to each process, where it may keep things."""

    def __call__(self, task: TaskIn, /) -> ResultOut:
        """Do a task; what it returns may depend on the task alone."""


class Executor(ABC, Generic[Task, Result]):
    """Does tasks somewhere; a context manager that ends what it started."""

    @abstractmethod
    def stream(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Do tasks, and return the place and the result of each as soon as it is there, in any order.

        Whoever stops reading stops the tasks that have not begun. An error that a task raises comes out here.

        Raises:
            KVGymError: a task was at work in :data:`MOST_ATTEMPTS` processes that died.
        """

    def map(self, tasks: Sequence[Task]) -> list[Result]:
        """Return the results of tasks in their order."""
        found = dict(self.stream(tasks))
        return [found[place] for place in range(len(tasks))]

    def close(self) -> None:
        """End what was started; tasks that have not begun are dropped."""
        return None

    def __enter__(self) -> Executor[Task, Result]:
        """Return the executor."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what was started."""
        self.close()


class InProcess(Executor[Task, Result]):
    """Does one task after the other, in this process."""

    def __init__(self, work: Work[Task, Result]) -> None:
        self._work = work

    def stream(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Do tasks in their order, see :meth:`Executor.stream`."""
        for place, task in enumerate(tasks):
            yield place, self._work(task)


def call(work: Work[Task, Result], task: Task) -> Result:
    """Do a task in another process.

    Raises:
        KVGymError: with the words of an error that cannot be sent: it would be taken for the death of the process.
    """
    try:
        return work(task)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # whatever an error's own objects raise
            raise KVGymError(f"{type(error).__qualname__}: {error}") from None
        raise


def given_up(task: object, where: str) -> KVGymError:
    """Return the error for a task whose processes keep dying.

    Args:
        task: the task.
        where: what died, in the plural.
    """
    text = repr(task)
    short = text if len(text) <= 200 else f"{text[:199]}…"
    return KVGymError(
        f"{MOST_ATTEMPTS} {where} ended while one was at {short}. Was there too little memory? A script "
        'that starts processes must do so under if __name__ == "__main__":, or take jobs=1'
    )
