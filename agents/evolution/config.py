"""Configurations of evolution: the policy, router or autoscaler, its weights, the services and the metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, field_validator

from kvgym.agents.evolution.imitation import Imitation, network_of
from kvgym.agents.evolution.model import EvolvedModel
from kvgym.agents.evolution.predictor import Prediction
from kvgym.agents.evolution.role import AS_POLICY, KINDS, Role
from kvgym.agents.evolution.services import Services
from kvgym.agents.evolution.space import Value, chosen_weights, weights_of
from kvgym.agents.evolution.strategies import Strategy, make_strategy
from kvgym.agents.runs.config import Part, TrainingConfig, known_metric
from kvgym.agents.runs.limits import MAX_COUNT, MAX_REAL, MAX_STEPS
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.errors import ConfigError, shown
from kvgym.metrics.attainment import WITHIN_SLO, check_targets
from kvgym.policies.hyperparameters import Weight
from kvgym.policies.policy import make_policy
from kvgym.utils.checks import MAX_SEEDS


class WeightChoice(Part):
    """Changes to the declaration of a weight; None = unchanged.

    Attributes:
        start: start of the search instead of the default; one number per entry if the size is above 1.
        step: initial standard deviation.
        low: least value.
        high: greatest value.
    """

    start: float | tuple[float, ...] | None = None
    step: float | None = Field(default=None, gt=0, le=MAX_REAL)
    low: float | None = Field(default=None, ge=-MAX_REAL, le=MAX_REAL)
    high: float | None = Field(default=None, ge=-MAX_REAL, le=MAX_REAL)


class HeldOut(Part):
    """Evaluation of the centre of the search on services that are never trained on.

    Attributes:
        services: their number.
        first_seed: seed of the first; drawn like the training services.
        interval: generations between evaluations; a checkpoint follows each.
        patience: evaluations without a better agent before the run stops early; None = never.
    """

    services: int = Field(default=32, ge=1, le=MAX_SEEDS)
    first_seed: int = Field(default=1_000_000, ge=0, le=2**63)
    interval: int = Field(default=10, ge=1, le=MAX_STEPS)
    patience: int | None = Field(default=None, ge=1, le=MAX_COUNT)

    @property
    def seeds(self) -> range:
        """Seeds of the services."""
        return range(self.first_seed, self.first_seed + self.services)


class EvolutionConfig(TrainingConfig):
    """A repeatable run of evolution: JSON-able and frozen; unknown keys are errors.

    Attributes:
        algorithm: ``"cma_es"`` or ``"openai_es"``, see :mod:`kvgym.agents.evolution.strategies`.
        policy: registered name of the evolved policy; if something else is evolved, spec of the policy on the workers.
        router: registered name of the evolved router; None = no router is evolved.
        autoscaler: registered name of the evolved autoscaler; None = no autoscaler is evolved.
        fixed: hyperparameters that are not learned.
        weights: hyperparameters to learn, a list of names, or a mapping of names to changes of their declaration;
            empty = all declared weights.
        start: file of an evolved agent of the same name to start from; overrides ``weights.*.start``.
        imitate: imitation of a ranking by true lengths, for the initial numbers of the policy's network
            (:mod:`kvgym.agents.evolution.imitation`); None = no imitation.
        predictor: a predictor of output lengths for requests that have no predictions, fitted before the search and
            used if the policy is better with it (:mod:`kvgym.agents.evolution.predictor`); None = no predictor.
        hyperparameters: of the algorithm, e.g. ``sigma``.
        population: candidates per generation.
        generations: their number; 0 = only evaluate the start.
        average: evaluate and keep the average of the search's centres; larger values forget early ones faster
            (:class:`~kvgym.agents.evolution.strategies.Averaging`); None = the latest centre itself.
        services: distribution of training services.
        services_per_generation: new services for each generation, the same for all its candidates.
        metric: metric to improve, see :mod:`kvgym.metrics`.
        reference: policies (or routers or autoscalers, if such is evolved); the objective compares with the best of
            them on each service (:mod:`kvgym.agents.evolution.objective`).
        behind: weight of a service on which the best reference is better: 1 optimises the mean, more makes losses
            rarer. Reported improvements do not depend on it.
        held_out: evaluation and early stopping.
        jobs: processes; 0 = one per core. Results do not depend on it.
        ray: use a Ray cluster instead: ``"local"``, ``"auto"`` or an address. Results do not depend on it.
    """

    LENGTH: ClassVar[str] = "generations"
    UNIT: ClassVar[str] = "generation"

    policy: str
    router: str | None = None
    autoscaler: str | None = None
    fixed: dict[str, Any] = Field(default_factory=dict)
    weights: dict[str, WeightChoice] = Field(default_factory=dict)
    start: str | None = None
    imitate: Imitation | None = None
    predictor: Prediction | None = None
    hyperparameters: dict[str, float] = Field(default_factory=dict)
    population: int = Field(default=16, ge=4, le=1_000_000)
    generations: int = Field(default=100, ge=0, le=MAX_STEPS)
    average: float | None = Field(default=None, ge=0.0, le=100.0)
    services: Services
    services_per_generation: int = Field(default=8, ge=1, le=MAX_SEEDS)
    metric: str = "e2e_latency_mean"
    reference: tuple[str, ...] = Field(min_length=1)
    behind: float = Field(default=1.0, ge=1.0, le=1e3)
    held_out: HeldOut = HeldOut()
    jobs: int = Field(default=0, ge=0, le=10_000)
    ray: str | None = None

    @field_validator("weights", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        named = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
        return {name: {} for name in value} if named else value

    @field_validator("metric")
    @classmethod
    def _known(cls, value: str) -> str:
        return known_metric(value)

    @property
    def interval(self) -> int:
        """Generations between two evaluations."""
        return self.held_out.interval

    @property
    def figure(self) -> str:
        """The gain over the references."""
        return f"{self.metric} better by (%)"

    @property
    def role(self) -> Role:
        """What is evolved, and the policy on the workers."""
        if self.autoscaler is not None:
            return Role("autoscaler", self.policy)
        return AS_POLICY if self.router is None else Role("router", self.policy)

    @property
    def learner(self) -> str:
        """Registered name of the evolved policy, router or autoscaler."""
        return self.autoscaler or self.router or self.policy

    def check(self) -> EvolutionConfig:
        """Check everything beyond types, and return the configuration.

        Raises:
            ConfigError: a value is wrong; the message has the valid ones.
        """
        try:
            if self.autoscaler is not None and self.router is not None:
                raise ConfigError("router and autoscaler are both given; only one of them can be evolved")
            others = self.role is not AS_POLICY
            learned, starts = self.learned()
            self.make_strategy(sum(weight.size for weight in learned))
            make = KINDS[self.role.kind].make
            make(self.learner, **self.fixed, **starts)
            if self.imitate is not None:
                if others:
                    raise ConfigError(f"imitate is for the network of a policy; a {self.role.kind} has none")
                network_of(self.policy, learned, starts)
            if self.predictor is not None:
                if others or self.imitate is not None:
                    raise ConfigError("predictor is for a policy, and without imitate; leave one of them out")
                EnvConfig.of(action="priority", scheduler=self.policy)  # the policy uses predicted lengths
            for spec in self.reference:
                make(spec)
            if others:
                make_policy(self.policy)
            self.services.check(clusters=others, fleets=self.autoscaler is not None)
            if self.metric in WITHIN_SLO:
                for family in self.services.families:
                    check_targets((self.metric,), family.typical_requests())
        except ConfigError as error:
            raise ConfigError(f"training {shown(self.name)}: {error}") from None
        return self

    def learned(self) -> tuple[tuple[Weight, ...], dict[str, Value]]:
        """Return the learned weights and the start of their search; the file ``start`` is not read.

        Raises:
            ConfigError: there is nothing to learn, or a number is out of range.
        """
        chosen: Mapping[str, Any] = {name: choice.model_dump() for name, choice in self.weights.items()}
        return chosen_weights(self.learner, self.fixed, chosen, self.role.kind)

    def make_strategy(self, size: int) -> Strategy:
        """Return a new search over vectors of a size.

        Raises:
            ConfigError: a hyperparameter is unknown or out of range.
        """
        return make_strategy(self.algorithm, size, self.population, self.seed, self.hyperparameters)

    def read_start(self) -> dict[str, Value]:
        """Return the weights in the file ``start``; empty if there is none.

        Raises:
            ConfigError: the file cannot be read, or has another policy or other sizes.
        """
        if self.start is None:
            return {}
        model = EvolvedModel.load(self.start)
        if (model.kind, model.name) != (self.role.kind, self.learner):
            raise ConfigError(
                f"start {self.start}: weights of {model.kind} {shown(model.name)}, not of {self.role.kind} "
                f"{shown(self.learner)}"
            )
        declared = weights_of(self.learner, self.fixed, self.role.kind)
        names = [weight.name for weight in self.learned()[0]]
        found = {name: model.weights[name] for name in names if name in model.weights}
        for name, value in found.items():
            size = declared[name].size if name in declared else 1
            if size != (len(value) if isinstance(value, tuple) else 1):
                raise ConfigError(
                    f"start {self.start}: weight {shown(name)} is of another size; expected {size}"
                )
        if not found:
            raise ConfigError(f"start {self.start}: has none of the weights to learn ({', '.join(names)})")
        return found
