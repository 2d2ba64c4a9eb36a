"""Size of an experiment, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kvgym.execution import make_executor

Value = TypeVar("Value")
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Scale:
    """Size of an experiment, and where it runs.

    Attributes:
        quick: takes a second or two, to check that it runs; its figures mean nothing.
        seeds: instead of the experiment's own number of seeds.
        jobs: processes; ``None`` = cores, where runs take long enough.
        ray: run on Ray: ``local``, ``auto`` or an address.
    """

    quick: bool = False
    seeds: int | None = None
    jobs: int | None = 1
    ray: str | None = None

    def pick(self, full: Value, quick: Value) -> Value:
        """Return the one of two settings that applies."""
        return quick if self.quick else full

    def number_of_seeds(self, full: int, quick: int = 2) -> int:
        """Return the number of seeds: the requested number, or the experiment's own."""
        return self.seeds or self.pick(full, quick)

    def do_all(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """Return the result of each task, in order.

        Args:
            work: a function of a module, or an object of a class of one.
            tasks: its arguments.
        """
        with make_executor(work, self.jobs, ray=self.ray) as executor:
            return executor.map(tasks)
