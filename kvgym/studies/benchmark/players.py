"""Entries that learn nothing, which every learned one has to beat: random answers and constant ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvgym.envs.agents import AgentPolicy
from kvgym.policies.scaling import Autoscaler, AutoscalerInfo
from kvgym.simulator.cluster.fleet_view import FleetView
from kvgym.simulator.fleet import Fleet

BELOW = "ranked_latency"
"""The scheduler below answers in kvgym/Priority-v0."""

_ENVIRONMENT: dict[str, Any] = {
    "action": "priority", "scheduler": BELOW, "information": (), "scenario": "hidden-kinds",
}  # fmt: skip
"""Arguments of that environment; nothing is observed of requests."""

CONSTANT = 0.0
"""The constant answer, in the middle of its range: every request is taken to have 2^8.5 = 362 output tokens."""


class _Answers:
    """A model of kvgym/Priority-v0 that reads nothing.

    Args:
        constant: the answer; None = uniform ones.
    """

    def __init__(self, constant: float | None) -> None:
        self.constant = constant
        self._generator = np.random.default_rng(0)

    def predict(self, observation: Any, deterministic: bool = True) -> tuple[Any, None]:
        """Return an answer."""
        answer = self._generator.uniform(-1, 1) if self.constant is None else self.constant
        return np.array([answer], np.float32), None


class RandomAnswers(AgentPolicy):
    """Uniform answers in kvgym/Priority-v0, of the same sequence in every run."""

    def __init__(self) -> None:
        super().__init__(_Answers(None), name="random", **_ENVIRONMENT)

    def reset(self, system: Any) -> None:
        """Begin a run."""
        super().reset(system)
        self.model._generator = np.random.default_rng(0)  # type: ignore[attr-defined]


class ConstantAnswer(AgentPolicy):
    """One answer in kvgym/Priority-v0 for every request."""

    def __init__(self) -> None:
        super().__init__(_Answers(CONSTANT), name="constant", **_ENVIRONMENT)


class RandomSizes(Autoscaler):
    """Uniform numbers of workers, every interval new ones."""

    info = AutoscalerInfo(name="random_sizes", summary="uniform numbers of workers")

    def reset(self, fleet: Fleet, seed: np.random.SeedSequence) -> None:
        """Prepare for a run."""
        super().reset(fleet, seed)
        self._generator, self._pools = np.random.default_rng(seed), fleet.pools

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return uniform targets."""
        return [int(self._generator.integers(pool.least, pool.most + 1)) for pool in self._pools]
