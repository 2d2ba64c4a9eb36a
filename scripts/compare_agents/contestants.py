"""Contestants: given policies and agents, tuned schedulers, fixed knobs."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compare_agents.benchmark import Benchmark, Outcome, outcome
from compare_agents.knobs import KnobPlayer, best_knobs, orders_for
from kvgym.agents.evolution.model import EvolvedModel
from kvgym.agents.library import load_agent, load_model
from kvgym.errors import ConfigError, KVGymError
from kvgym.experiments.tuning.tune import tune
from kvgym.policy import POLICIES, Policy
from kvgym.utils.hyperparameters import construct
from kvgym.utils.specs import parse_spec

AGENT, OTHER_AGENT, TRAINED = "agent", "another agent", "training seed"
SCHEDULER, KNOBS, RULE, BUDGET = "scheduler", "fixed knobs", "ranked by hand", "budget"
TRUE_LENGTHS, ABLATED = "true lengths", "ablated"


@dataclass(frozen=True)
class Contestant(ABC):
    """Something that can be run on a benchmark.

    Attributes:
        group: its role in the tables.
        label: its name in the tables, unique in a contest.
    """

    group: str
    label: str

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Return what determines its outcome besides the benchmark, JSON-able."""

    @abstractmethod
    def play(self, benchmark: Benchmark) -> Outcome:
        """Return its outcome; an error is part of it."""


@dataclass(frozen=True)
class Given(Contestant):
    """A scheduler of the library, or an agent, without tuning.

    Attributes:
        spec: of the scheduler; of an agent its name or file.
        agent: whether it is an agent; an agent may have the name of a scheduler.
        changes: hyperparameters to change.
        true_lengths: give it exact predictions of the same requests.
    """

    spec: str
    agent: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    true_lengths: bool = False

    def description(self) -> dict[str, Any]:
        """Return its spec, or the weights of an agent."""
        content = weights_of_agent(self.spec) if self.agent else {"spec": self.spec}
        return {"kind": "given", **content, "changes": dict(self.changes), "exact": self.true_lengths}

    def play(self, benchmark: Benchmark) -> Outcome:
        """Run it on the benchmark's seeds."""
        try:
            policy = agent_with(self.spec, self.changes) if self.agent else rule(self.spec, self.changes)
            return benchmark.run(
                policy, self.spec, benchmark.with_true_lengths() if self.true_lengths else None
            )
        except KVGymError as error:
            return Outcome(self.spec, error=str(error))


@dataclass(frozen=True)
class Tuned(Contestant):
    """A scheduler with the hyperparameters that are best on the benchmark's tuning seeds.

    Attributes:
        spec: name, and hyperparameters that are not searched.
        space: values to search; None = the library's.
    """

    spec: str
    space: Mapping[str, tuple[Any, ...]] | None = None

    def description(self) -> dict[str, Any]:
        """Return the search."""
        return {"kind": "tuned", "spec": self.spec, "space": None if self.space is None else dict(self.space)}

    def play(self, benchmark: Benchmark) -> Outcome:
        """Tune it, and run the best on the benchmark's seeds."""
        try:
            found = tune(
                self.spec,
                benchmark.scenario,
                space=self.space,
                metric=benchmark.metric,
                seeds=benchmark.tuning_seeds,
            )
            return benchmark.run(rule(found.best.spec), found.best.spec)
        except KVGymError as error:
            return Outcome(self.spec, error=str(error))


@dataclass(frozen=True)
class FixedKnobs(Contestant):
    """The knobs that are best on the benchmark's tuning seeds, fixed for whole episodes.

    Attributes:
        levels: values of each knob to search.
    """

    levels: Mapping[str, tuple[int, ...]]

    def description(self) -> dict[str, Any]:
        """Return the search."""
        return {"kind": "knobs", "levels": {name: list(values) for name, values in self.levels.items()}}

    def play(self, benchmark: Benchmark) -> Outcome:
        """Search, and run the best knobs on the benchmark's seeds."""
        try:
            orders = orders_for(benchmark.tables()[0])
            best = best_knobs(
                benchmark.scenario, benchmark.metric, benchmark.tuning_seeds, self.levels, orders
            )
            if best is None:
                return Outcome(self.label, error="all knobs fail on a tuning seed")
            values = KnobPlayer(benchmark.scenario, best.order, benchmark.seeds).play(
                best.knobs, benchmark.metric
            )
        except KVGymError as error:
            return Outcome(self.label, error=str(error))
        return outcome(best.text, values.tolist())


def rule(spec: str, changes: Mapping[str, Any] | None = None) -> Policy:
    """Return a scheduler of the library, never an agent of the same name.

    Args:
        spec: name, and hyperparameters.
        changes: hyperparameters to change.

    Raises:
        UnknownNameError: no such scheduler.
        ConfigError: a hyperparameter is wrong.
    """
    name, given = parse_spec(spec, "policy")
    return construct(POLICIES[name], {**given, **(changes or {})}, f"policy {name!r}")


def agent_with(spec: str, changes: Mapping[str, Any] | None = None) -> Policy:
    """Return an agent, with changed hyperparameters if given.

    Args:
        spec: name, file or training folder.
        changes: hyperparameters to change, of an evolved policy.

    Raises:
        UnknownNameError: no such agent.
        ConfigError: it is damaged, or changes are for a policy that was not evolved.
    """
    if not changes:
        return load_agent(spec)
    name, known = hyperparameters_of(spec)
    return construct(POLICIES[name], {**known, **changes}, f"policy {name!r}")


def hyperparameters_of(spec: str) -> tuple[str, dict[str, Any]]:
    """Return the policy name and hyperparameters of an evolved agent.

    Raises:
        UnknownNameError: no such agent.
        ConfigError: the agent is not an evolved policy.
    """
    model = load_model(spec)
    if not isinstance(model, EvolvedModel) or model.kind != "policy":
        raise ConfigError(f"agent {spec} is not an evolved policy; its hyperparameters cannot be changed")
    return model.name, {**model.fixed, **model.weights}


def weights_of_agent(spec: str) -> dict[str, Any]:
    """Return the weights of an agent, JSON-able; equal for agents that behave equally.

    Raises:
        UnknownNameError: no such agent.
        ConfigError: it is damaged.
    """
    model = load_model(spec)
    if isinstance(model, EvolvedModel):
        return {model.kind: model.name, "fixed": dict(model.fixed), "weights": dict(model.weights)}
    digest = hashlib.sha256()
    for name in sorted(model.arrays):
        digest.update(model.arrays[name].tobytes())
    return {"network": digest.hexdigest(), "environment": model.header.env_arguments}
