"""Search spaces of policies: the default grids, and their combination with the user's values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvgym.errors import ConfigError, shown
from kvgym.policies.policy import Policy, make_policy
from kvgym.studies.sweeping.fields import number_range
from kvgym.utils.hyperparameters import (
    construct,
    declared,
    describe_arguments,
    given_hyperparameters,
    policy_defaults,
)
from kvgym.utils.specs import parse_spec, parse_value

Space = Mapping[str, Sequence[Any]]

_FORM = "write name=1/2/3, name=low:high:step, or name=4/4/4|8/8/8 where a value is a list"


@dataclass(frozen=True)
class SearchPlan:
    """Fixed and searched hyperparameters of a policy, see :func:`plan_search`.

    Attributes:
        policy: class of the policy.
        fixed: hyperparameters given with the policy.
        defaults: the policy's defaults.
        space: the values to search, by hyperparameter.
    """

    policy: type[Policy]
    fixed: dict[str, Any]
    defaults: dict[str, Any]
    space: dict[str, tuple[Any, ...]]

    def settle(self, resolved: Policy) -> SearchPlan:
        """Return the plan with a resolved policy's defaults in place of ``AUTO``."""
        values, automatic = given_hyperparameters(resolved), {name for name, _ in resolved.info.auto}
        found = {name: _plain(value) for name, value in values.items() if name in automatic - set(self.fixed)}
        return replace(self, defaults={**self.defaults, **found})

    @property
    def start(self) -> dict[str, Any]:
        """The searched hyperparameters of the policy as given."""
        return {name: self.defaults[name] for name in self.space}

    @property
    def size(self) -> int:
        """The number of points of the whole grid."""
        return math.prod(len(values) for values in self.space.values())

    @property
    def on_grid(self) -> bool:
        """Whether the policy as given is a point of the grid."""
        return all(self.start[name] in values for name, values in self.space.items())

    def spec(self, point: Mapping[str, Any]) -> str:
        """Return the spec of a point for :func:`~kvgym.policies.policy.make_policy`, without defaults.

        It is the policy's label in comparisons.
        """
        other = {name: v for name, v in point.items() if v != self.defaults[name]}
        given, places = {**self.fixed, **other}, list(self.defaults)
        ordered = sorted(given, key=lambda name: places.index(name) if name in places else -1)
        text = ",".join(f"{name}={given[name]}" for name in ordered)
        name = self.policy.info.name
        return f"{name}:{text}" if text else name

    def make(self, point: Mapping[str, Any]) -> Policy:
        """Return the policy at a point of the space.

        Raises:
            ConfigError: the values contradict each other.
        """
        return construct(self.policy, {**self.fixed, **point}, f"policy {self.policy.info.name!r}")


def search_space_of(policy: type[Policy]) -> dict[str, tuple[Any, ...]]:
    """Return the default search space of a policy: the values to try of each hyperparameter that declares some."""
    return {name: x.search for name, x in declared(policy).items() if x.search}


def plan_search(policy: str | Policy, space: Space | None = None) -> SearchPlan:
    """Return the search plan of a policy; arguments as in :func:`~kvgym.studies.tuning.tune.tune`.

    Raises:
        ConfigError: a hyperparameter is unknown, the policy never accepts a value, or there is no space.
    """
    made = make_policy(policy)
    cls, name = type(made), made.info.name
    defaults = policy_defaults(cls)
    fixed = {k: _plain(v) for k, v in given_hyperparameters(made).items()}
    if space is None:
        if not search_space_of(cls) and set(defaults) - set(fixed):
            raise ConfigError(
                f"policy {shown(name)} has no default search space; give one, e.g. --grid name=1/2/3, for its "
                f"hyperparameters: {describe_arguments(cls)}"
            )
        space = {k: v for k, v in search_space_of(cls).items() if k not in fixed}
    values: dict[str, tuple[Any, ...]] = {}
    for key, given in space.items():
        if key not in defaults:
            raise ConfigError(
                f"policy {shown(name)} has no hyperparameter {shown(key)}; valid: {describe_arguments(cls)}"
            )
        if key in fixed:
            raise ConfigError(
                f"{key} is to be searched, but {SearchPlan(cls, fixed, defaults, {}).spec({})} fixes it; "
                "remove it from one of them"
            )
        if isinstance(given, str) or not isinstance(given, Iterable) or not list(given):
            raise ConfigError(
                f"{key} = {shown(given)}; expected the values to search, one or more, in a sequence"
            )
        values[key] = tuple(_plain(v) for v in given)
        for value in values[key]:
            if parse_spec(f"{name}:{key}={value}", "policy")[1] != {key: value}:
                raise ConfigError(f"{key} = {shown(value)} cannot be written as in {name}:{key}=…")
        if len(set(values[key])) < len(values[key]):
            raise ConfigError(f"{key} = {', '.join(map(str, values[key]))}: a value is given twice")
    plan = SearchPlan(cls, fixed, {k: _plain(v) for k, v in defaults.items()}, values)
    if plan.size > 10**12:
        raise ConfigError(f"the grid has {plan.size:,} points; search fewer hyperparameters or values")
    _check_values(plan)
    return plan


def parse_space(texts: list[str]) -> dict[str, tuple[Any, ...]]:
    """Read the values to search from texts such as ``"protection=0:0.3:0.05"`` or ``"overrun=ignore/extend"``.

    Ranges include both ends and are exact decimals. Values that are lists of numbers are separated by ``|``.

    Raises:
        ConfigError: a text has another form.
    """
    space: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, equals, rest = (part.strip() for part in text.partition("="))
        if not name or not equals or not rest:
            raise ConfigError(f"--grid {shown(text)}: not name=values; {_FORM}")
        if name in space:
            raise ConfigError(f"--grid {shown(text)}: {name} is given twice; put its values into one")
        parts = [part.strip() for part in rest.split("|" if "|" in rest else "/")]
        if not all(parts):
            raise ConfigError(f"--grid {shown(text)}: a value is missing; {_FORM}")
        if ":" in rest:
            space[name] = number_range(rest, f"--grid {text!r}: ")
        else:
            space[name] = tuple(parse_value(part) for part in parts)
    return space


def _check_values(plan: SearchPlan) -> None:
    """Raise an error for a value that is valid with none of the first 1000 combinations of the others."""
    for name, values in plan.space.items():
        rest = {k: v for k, v in plan.space.items() if k != name}
        for value in values:
            others: Iterator[dict[str, Any]] = (
                dict(zip(rest, point, strict=True)) for point in itertools.product(*rest.values())
            )
            first: ConfigError | None = None
            for other in itertools.chain([{}], itertools.islice(others, 1000)):
                try:
                    plan.make({**other, name: value})
                    break
                except ConfigError as error:
                    first = first or error
            else:
                assert first is not None
                raise ConfigError(f"{shown(plan.policy.info.name)} cannot be tried: {first}") from first


def _plain(value: Any) -> Any:
    """Return a value as in a spec: lists as ``"4/4/4"``, NumPy numbers as Python numbers."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return "/".join(map(str, value)) if isinstance(value, list | tuple) else value
