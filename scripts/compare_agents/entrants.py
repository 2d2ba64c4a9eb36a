"""Who plays on a cell: policies as they are, tuned schedulers, fixed knobs, agents, also with true lengths."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compare_agents.bench import Bench, Outcome, outcome
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
class Entrant(ABC):
    """Whoever plays.

    Attributes:
        group: what it stands for in tables.
        label: what tables call it, different for all entrants of a cell.
    """

    group: str
    label: str

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Return what its outcome depends on besides the bench, JSON-able."""

    @abstractmethod
    def play(self, bench: Bench) -> Outcome:
        """Return what it reaches; what goes wrong is in the outcome."""


@dataclass(frozen=True)
class Given(Entrant):
    """A scheduler of the library, or an agent, as it is.

    Attributes:
        spec: of the scheduler; of an agent its name or file.
        agent: whether it is an agent; an agent may have the name of a scheduler.
        changes: hyperparameters that differ.
        true_lengths: whether predictions are exact for it, of the very same requests.
    """

    spec: str
    agent: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    true_lengths: bool = False

    def description(self) -> dict[str, Any]:
        """Return what it is made of; of an agent its weights."""
        content = weights_of_agent(self.spec) if self.agent else {"spec": self.spec}
        return {"kind": "given", **content, "changes": dict(self.changes), "exact": self.true_lengths}

    def play(self, bench: Bench) -> Outcome:
        """Run it on the bench's seeds."""
        try:
            policy = agent_with(self.spec, self.changes) if self.agent else rule(self.spec, self.changes)
            return bench.run(policy, self.spec, bench.with_true_lengths() if self.true_lengths else None)
        except KVGymError as error:
            return Outcome(self.spec, error=str(error))


@dataclass(frozen=True)
class Tuned(Entrant):
    """A scheduler with the hyperparameters that are best on the bench's tuning seeds.

    Attributes:
        spec: name, and hyperparameters that stay as they are.
        space: values to search; None = the library's.
    """

    spec: str
    space: Mapping[str, tuple[Any, ...]] | None = None

    def description(self) -> dict[str, Any]:
        """Return what is searched."""
        return {"kind": "tuned", "spec": self.spec, "space": None if self.space is None else dict(self.space)}

    def play(self, bench: Bench) -> Outcome:
        """Tune it, and run the best on the bench's seeds."""
        try:
            found = tune(
                self.spec, bench.scenario, space=self.space, metric=bench.metric, seeds=bench.tuning_seeds
            )
            return bench.run(rule(found.best.spec), found.best.spec)
        except KVGymError as error:
            return Outcome(self.spec, error=str(error))


@dataclass(frozen=True)
class FixedKnobs(Entrant):
    """The knobs that are best on the bench's tuning seeds, held for whole episodes.

    Attributes:
        levels: of each knob, to search.
    """

    levels: Mapping[str, tuple[int, ...]]

    def description(self) -> dict[str, Any]:
        """Return what is searched."""
        return {"kind": "knobs", "levels": {name: list(values) for name, values in self.levels.items()}}

    def play(self, bench: Bench) -> Outcome:
        """Search, and play the best knobs on the bench's seeds."""
        try:
            orders = orders_for(bench.tables()[0])
            best = best_knobs(bench.scenario, bench.metric, bench.tuning_seeds, self.levels, orders)
            if best is None:
                return Outcome(self.label, error="all knobs fail on a tuning seed")
            values = KnobPlayer(bench.scenario, best.order, bench.seeds).play(best.knobs, bench.metric)
        except KVGymError as error:
            return Outcome(self.label, error=str(error))
        return outcome(best.text, values.tolist())


def rule(spec: str, changes: Mapping[str, Any] | None = None) -> Policy:
    """Return a scheduler of the library, never an agent of the same name.

    Args:
        spec: name, and hyperparameters.
        changes: hyperparameters that differ.

    Raises:
        UnknownNameError: no such scheduler.
        ConfigError: a hyperparameter is wrong.
    """
    name, given = parse_spec(spec, "policy")
    return construct(POLICIES[name], {**given, **(changes or {})}, f"policy {name!r}")


def agent_with(spec: str, changes: Mapping[str, Any] | None = None) -> Policy:
    """Return an agent, with other hyperparameters if there are changes.

    Args:
        spec: name, file or training folder.
        changes: hyperparameters that differ, of an evolved policy.

    Raises:
        UnknownNameError: no such agent.
        ConfigError: it is damaged, or changes are for a policy that was not evolved.
    """
    if not changes:
        return load_agent(spec)
    name, known = hyperparameters_of(spec)
    return construct(POLICIES[name], {**known, **changes}, f"policy {name!r}")


def hyperparameters_of(spec: str) -> tuple[str, dict[str, Any]]:
    """Return the name of the policy that an evolved agent is, and its hyperparameters.

    Raises:
        UnknownNameError: no such agent.
        ConfigError: it is another kind of agent.
    """
    model = load_model(spec)
    if not isinstance(model, EvolvedModel) or model.kind != "policy":
        raise ConfigError(f"agent {spec} is no evolved policy; its hyperparameters cannot be changed")
    return model.name, {**model.fixed, **model.weights}


def weights_of_agent(spec: str) -> dict[str, Any]:
    """Return what an agent is made of, JSON-able: equal for agents that do the same.

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
