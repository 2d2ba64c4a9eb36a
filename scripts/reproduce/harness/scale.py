"""How much an experiment does, and where."""

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
    """How much an experiment does, and where its runs are done.

    Attributes:
        quick: a second or two, to see that it runs; its figures mean nothing.
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
        """Return how many seeds to run: as asked for, or the experiment's own number."""
        return self.seeds or self.pick(full, quick)

    def do_all(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """Return what each task gives, in their order.

        Args:
            work: a function of a module, or an object of a class of one.
            tasks: what it is called with.
        """
        with make_executor(work, self.jobs, ray=self.ray) as executor:
            return executor.map(tasks)
