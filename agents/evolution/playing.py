"""Run policies or routers on services, in one or several processes with equal results."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from kvgym.agents.evolution.objective import Measurement, measure, measure_reference
from kvgym.agents.evolution.predictor import Predictor
from kvgym.agents.evolution.role import AS_POLICY, Role
from kvgym.agents.evolution.services import Service, Services
from kvgym.utils.execution import cores, make_executor

CACHED = 256
"""Latest services that a process keeps, so that held-out services are drawn once."""


@dataclass(frozen=True)
class Task:
    """Candidates or a reference to run on one service.

    Attributes:
        seed: of the service.
        spec: name or spec.
        names: metrics to keep.
        role: policy or router.
        candidates: hyperparameters of each.
        reference: whether it is a reference, which may lack information that it needs.
    """

    seed: int
    spec: str
    names: tuple[str, ...]
    role: Role = AS_POLICY
    candidates: tuple[Mapping[str, Any], ...] = ({},)
    reference: bool = False


class Player:
    """Run tasks in one process; called by an executor.

    Args:
        services: distribution of services.
        predictor: of the output lengths that candidates observe; None = those of the services.
    """

    def __init__(self, services: Services, predictor: Predictor | None = None) -> None:
        self._services, self._predictor = services, predictor
        self._known: dict[int, tuple[Service, Service]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out drawn services when sent to another process."""
        return {"_services": self._services, "_predictor": self._predictor, "_known": {}}

    def service(self, seed: int) -> tuple[Service, Service]:
        """Return the service of a seed, as references and as candidates get it."""
        found = self._known.pop(seed, None)
        if found is None:
            drawn = self._services.draw(seed)
            found = drawn, drawn if self._predictor is None else self._predictor.predicted(drawn)
        self._known[seed] = found
        while len(self._known) > CACHED:
            del self._known[next(iter(self._known))]
        return found

    def __call__(self, task: Task, /) -> tuple[list[Measurement], float]:
        """Return the measurements of a task, and the CPU seconds it took."""
        started = time.process_time()
        plain, service = self.service(task.seed)
        if task.reference:
            found = [measure_reference(plain, task.spec, task.names, task.role)]
        else:
            found = [measure(service, task.spec, c, task.names, task.role) for c in task.candidates]
        return found, time.process_time() - started


class Players:
    """Run tasks in several processes; a context manager that ends them.

    Args:
        services: distribution of services.
        jobs: number of processes; 1 = this one, 0 = one per core.
        ray: use a Ray cluster instead, see :func:`kvgym.utils.execution.make_executor`.
        predictor: of the output lengths that candidates observe; None = those of the services.

    Attributes:
        jobs: number of processes.
        cpu_seconds: spent on tasks so far.
    """

    def __init__(
        self, services: Services, jobs: int, ray: str | None = None, predictor: Predictor | None = None
    ) -> None:
        self.jobs = jobs or cores()
        self.cpu_seconds = 0.0
        self._executor = make_executor(Player(services, predictor), jobs if ray else self.jobs, ray=ray)

    def __enter__(self) -> Players:
        """Return the players."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes."""
        self._executor.close()

    def play(self, tasks: Sequence[Task]) -> list[list[Measurement]]:
        """Return the measurements of each task, in order."""
        found = []
        for measurements, seconds in self._executor.map(tasks):
            found.append(measurements)
            self.cpu_seconds += seconds
        return found

    def compete(
        self,
        seeds: Sequence[int],
        spec: str,
        candidates: Sequence[Mapping[str, Any]],
        reference: Sequence[str],
        names: Sequence[str],
        role: Role = AS_POLICY,
    ) -> tuple[list[list[Measurement]], list[list[Measurement]]]:
        """Run candidates and references on the service of each seed.

        Args:
            seeds: of the services.
            spec: name or spec of the candidates.
            candidates: hyperparameters of each.
            reference: names or specs of the same kind.
            names: metrics to keep.
            role: policy or router.

        Returns:
            Measurements (seeds, candidates) and (seeds, references).
        """
        share = -(-len(candidates) // self.jobs)
        parts = [tuple(candidates[k : k + share]) for k in range(0, len(candidates), share)]
        tasks = [Task(seed, spec, tuple(names), role, part) for seed in seeds for part in parts]
        own = len(tasks)
        tasks += [
            Task(seed, other, tuple(names), role, reference=True) for seed in seeds for other in reference
        ]
        outcomes = self.play(tasks)
        found, others = iter(outcomes[:own]), iter(outcomes[own:])
        return (
            [[m for _ in parts for m in next(found)] for _ in seeds],
            [[next(others)[0] for _ in reference] for _ in seeds],
        )
