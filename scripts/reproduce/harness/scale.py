"""Size of an experiment, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from kvgym.utils.execution import make_executor

if TYPE_CHECKING:
    from harness.experiment import Outcome

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
        requested: the numbers of seeds that the experiment has requested.
    """

    quick: bool = False
    seeds: int | None = None
    jobs: int | None = 1
    ray: str | None = None
    requested: list[int] = field(default_factory=list)

    def pick(self, full: Value, quick: Value) -> Value:
        """Return the one of two settings that applies."""
        return quick if self.quick else full

    def number_of_seeds(self, full: int, quick: int = 2) -> int:
        """Return the number of seeds: the requested number, or the experiment's own."""
        number = self.seeds or self.pick(full, quick)
        self.requested.append(number)
        return number

    def count_seeds(self, outcome: Outcome) -> Outcome:
        """Return an outcome with the number of seeds in every finding that does not state its own."""
        used = f"{self.requested[-1]}" if self.requested else "–"
        return replace(outcome, findings=[replace(row, seeds=row.seeds or used) for row in outcome.findings])

    def do_all(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """Return the result of each task, in order.

        Args:
            work: a function of a module, or an object of a class of one.
            tasks: its arguments.
        """
        with make_executor(work, self.jobs, ray=self.ray) as executor:
            return executor.map(tasks)
