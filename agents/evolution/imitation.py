"""Imitation of a ranking by true lengths, to initialise the network of a policy.

The policy runs on training services with its network at 0 and is paused every few decisions. For requests present then,
the network's features are recorded, and the change of the score if the true remaining output replaced the policy's
estimate. The network is fitted to these changes by least squares (:mod:`kvgym.agents.evolution.fitting`), and so learns
the part of the correction that follows from observable features.

True lengths are used only here; the result is weights like any others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

import numpy as np
from pydantic import Field

from kvgym.agents.evolution.drawing import generator
from kvgym.agents.evolution.fitting import Examples, fit_network, outputs, unexplained
from kvgym.agents.evolution.services import Service, Services
from kvgym.agents.evolution.space import Value
from kvgym.agents.runs.config import Part
from kvgym.agents.runs.limits import MAX_COUNT
from kvgym.errors import ConfigError, shown
from kvgym.policies.hyperparameters import Weight
from kvgym.policies.policy import POLICIES, make_policy
from kvgym.policies.runner import check_needs, prepare_run
from kvgym.simulator.policy_interface import PolicyView
from kvgym.simulator.tables import WAITING
from kvgym.utils.checks import MAX_SEEDS

VALIDATION = 8
"""Every eighth service is left out of the fit to validate it."""


class Imitation(Part):
    """Imitation before the search.

    Attributes:
        services: number of services, drawn as in training but with other seeds.
        every: decisions between two moments at which lessons are recorded.
        requests: largest number per moment, drawn at random.
        emphasis: weight of a squared error is the remaining output to the power -emphasis: 0 weights all requests
            equally, 1 weights those near their end more.
        iterations: largest number of iterations of the fit.
        decay: penalty on large numbers.
    """

    services: int = Field(default=24, ge=2, le=MAX_SEEDS)
    every: int = Field(default=20, ge=1, le=MAX_COUNT)
    requests: int = Field(default=32, ge=2, le=MAX_COUNT)
    emphasis: float = Field(default=1.0, ge=0, le=2)
    iterations: int = Field(default=300, ge=1, le=MAX_COUNT)
    decay: float = Field(default=1e-3, ge=0, le=1e6)


class Student(Protocol):
    """A compiled policy with a network that can imitate, e.g. ``ranked``.

    Attributes:
        NETWORK: the weight with the numbers of the network, by unit: a weight for each feature, a bias, and the weight
            of the unit's output. All 0 = the policy without a network.
    """

    NETWORK: ClassVar[str]

    def lesson(
        self, view: PolicyView, row: Any, request_id: int, length: int
    ) -> tuple[Sequence[float], float]:
        """Return the network's features of a request now, and its target for them.

        Args:
            view: view of the kernel for uncompiled code, with the policy's own memory of the run.
            row: slot of a running request, or request row of a waiting one.
            request_id: its id.
            length: its total output, tokens.
        """


@dataclass(frozen=True)
class ImitationReport:
    """Result of an imitation.

    Attributes:
        services: number of services.
        moments: number of moments with lessons.
        lessons: number of lessons.
        unexplained: share of the variance of the corrections within a moment, on the fitted services.
        unexplained_validation: the same on the validation services; NaN with fewer than eight services.
    """

    services: int
    moments: int
    lessons: int
    unexplained: float
    unexplained_validation: float

    def __str__(self) -> str:
        """Return a sentence for users."""
        held = self.unexplained_validation
        also = "" if np.isnan(held) else f", and {1 - held:.1%} on services that it was not fitted to"
        return (
            f"imitation of true lengths: {self.lessons:,} lessons at {self.moments:,} moments of {self.services} "
            f"services; the network explains {1 - self.unexplained:.1%} of the correction{also}"
        )


def network_of(policy: str, learned: Sequence[Weight], starts: Mapping[str, Value]) -> Weight:
    """Return the weight with the network of a policy.

    Args:
        policy: registered name.
        learned: the learned weights.
        starts: their start without imitation.

    Raises:
        ConfigError: the policy has no network, or the network is not learned or does not start at 0.
    """
    name = getattr(POLICIES[policy], "NETWORK", None)
    if name is None:
        able = sorted(key for key in POLICIES if hasattr(POLICIES[key], "NETWORK"))
        raise ConfigError(
            f"imitate: policy {shown(policy)} has no network that could imitate; policies that have: {', '.join(able)}"
        )
    for weight in learned:
        if weight.name == name:
            if np.any(starts[name]):
                raise ConfigError(
                    f"imitate: {shown(name)}, the network of policy {shown(policy)}, has numbers to start from "
                    "already; leave out these, or imitate"
                )
            return weight
    raise ConfigError(
        f"imitate: {shown(name)}, the network of policy {shown(policy)}, is not among the weights that are learned "
        f"({', '.join(w.name for w in learned)}); give it units (fixed: {{hidden: 4}}), "
        "and name it where weights are listed"
    )


def imitate(
    services: Services,
    policy: str,
    hyperparameters: Mapping[str, Any],
    network: Weight,
    how: Imitation,
    seed: int,
    report: Callable[[str], None] | None = None,
) -> tuple[tuple[float, ...], ImitationReport]:
    """Fit the network of a policy to the changes by true lengths; equal arguments give equal bits.

    Args:
        services: distribution of services.
        policy: registered name of a :class:`Student`.
        hyperparameters: of the policy, with its network at 0.
        network: the weight with its numbers, :func:`network_of`.
        how: amount of data, and settings of the fit.
        seed: seed of all random numbers.
        report: called with a line of progress after each service, and before the fit.

    Returns:
        The numbers of the network, and a report.

    Raises:
        ConfigError: the services give no lessons, or lack information that the policy needs.
        RunError: the policy cannot serve a service.
    """
    rng = generator(seed, "imitation")
    played: list[list[list[_Lesson]]] = []
    validation: list[list[list[_Lesson]]] = []
    for k, own in enumerate(rng.integers(0, 2**63, how.services)):
        made = make_policy(policy, **hyperparameters)
        moments = list(_moments(services.draw(int(own)), made, how, rng))
        if moments:
            (validation if k % VALIDATION == VALIDATION - 1 else played).append(moments)
        if report is not None:
            report(f"imitation: {k + 1:,} of {how.services:,} services")
    if not played:
        raise ConfigError(
            f"imitate: none of {how.services} services had two requests present at a moment; give "
            f"more load, or moments more often than every = {how.every} decisions"
        )
    examples = _together(played, how)
    if report is not None:
        report(f"imitation: fitting the network to {len(examples.features):,} requests")
    features = examples.features.shape[1]
    numbers = fit_network(
        examples,
        network.size // (features + 2),
        seed=np.random.SeedSequence(seed),
        iterations=how.iterations,
        decay=how.decay,
        low=network.low,
        high=network.high,
    )

    def left(examples: Examples) -> float:
        return unexplained(examples, outputs(np.array(numbers), examples.features))

    sizes = [len(moment) for moments in (*played, *validation) for moment in moments]
    held = left(_together(validation, how)) if validation else math.nan
    return numbers, ImitationReport(how.services, len(sizes), sum(sizes), left(examples), held)


_Lesson = tuple[Sequence[float], float, float]  # features, correction, output still to come


def _moments(
    service: Service, policy: Any, how: Imitation, rng: np.random.Generator
) -> Iterator[list[_Lesson]]:
    """Run a service and yield the lessons of each moment with at least two requests."""
    check_needs(policy, service.table)
    simulation, copies = prepare_run(service.system, service.table, policy, service.router, service.seed)
    while not simulation.run(budget=how.every):
        for k, own in enumerate(copies):
            if simulation.workers[k]["decisions"] > 0:
                found = _lessons(simulation, k, cast(Student, own), how, rng)
                if len(found) > 1:
                    yield found


def _lessons(
    simulation: Any, worker: int, policy: Student, how: Imitation, rng: np.random.Generator
) -> list[_Lesson]:
    """Return the lessons of a worker at this moment."""
    view, requests = simulation.view.rule_view(worker), simulation.requests
    waiting = np.flatnonzero((requests["status"] == WAITING) & (requests["worker"] == worker))
    active = int(simulation.workers[worker]["num_active"])
    chosen = np.arange(active + len(waiting))
    if len(chosen) > how.requests:
        chosen = np.sort(rng.choice(len(chosen), how.requests, replace=False))
    found = []
    for j in chosen:
        row = view.active[j] if j < active else view.requests[waiting[j - active]]
        i = int(row.request_id) if j < active else int(waiting[j - active])
        length = int(simulation.workload["output_len"][i])
        features, correction = policy.lesson(view, row, i, length)
        found.append((features, correction, max(float(length - row.num_output_tokens), 1.0)))
    return found


def _together(services: Sequence[Sequence[Sequence[_Lesson]]], how: Imitation) -> Examples:
    """Return the lessons of services as examples with equal total weight per service."""
    moments = [moment for own in services for moment in own]
    features, corrections, to_come = zip(*(lesson for moment in moments for lesson in moment), strict=True)
    weights = np.array(to_come, np.float64) ** -how.emphasis
    lessons = [sum(map(len, own)) for own in services]
    service = np.repeat(np.arange(len(services)), lessons)
    return Examples(
        np.array(features, np.float64),
        np.array(corrections, np.float64),
        np.repeat(np.arange(len(moments)), list(map(len, moments))),
        weights / np.bincount(service, weights)[service],
    )
