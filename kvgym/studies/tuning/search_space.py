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
from kvgym.utils.hyperparameters import construct, describe_arguments, given_hyperparameters, policy_defaults
from kvgym.utils.specs import parse_spec, parse_value

Space = Mapping[str, Sequence[Any]]

_FORM = "write name=1/2/3, name=low:high:step, or name=4/4/4|8/8/8 where a value is a list"

_MARGINS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
_LOOK_AHEAD = {"protection": _MARGINS, "overrun": ("ignore", "extend")}
_CHUNKS = {"chunk": (64, 128, 256, 512, 1024, 2048, 4096)}
# Manual thresholds and segments depend on the classes of a workload: users give them as a space.
_THRESHOLDS = {
    "rule": ("fluid", "practical"),
    "batch_limit": (16, 32, 64, 128, 256, 512, 1024, 2048),  # of the practical rule
    "patience": (None, 0.1, 1.0),  # s; matters if few requests arrive
}
# Running prefills and decodes differ by hardware; the paper uses 64 or 128 decodes, and "large" cycles.
_TILES = {"cycle": (50, 200, 1000), "decodes": (16, 32, 64, 128, 256), "chunk": (256, 512, 1024, 2048)}

SEARCH_SPACES: dict[str, dict[str, tuple[Any, ...]]] = {
    "clairvoyant": {
        "rule": ("ranked", "look_ahead"),
        "passed": (0, 1, 8),
        "ranking": ("ranked", "ranked_latency", "ranked_chat", "ranked_documents", "ranked_slo"),
    },
    "dist_serve": {"decodes": (None, 8, 16, 32, 64, 128, 256)},
    "fcfs": {"protection": (*_MARGINS, 0.4, 0.5)},
    "cost_aware": {"protection": (*_MARGINS, 0.4, 0.5)},
    "lpm": {"protection": (*_MARGINS, 0.4, 0.5), "most_waiting": (16, 128, 1024)},
    # Below about 0.2 it livelocks on many workloads (the paper: 0.21 and 0.24), so steps are small there.
    "alpha_greedy": {
        "alpha": (0.05, 0.1, 0.15, 0.18, 0.2, 0.21, 0.22, 0.24, 0.25, 0.28, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7)
    },
    "alpha_beta": {
        "alpha": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6),
        "beta": (
            0.01,
            0.02,
            0.05,
            0.1,
            0.15,
            0.2,
        ),  # with larger values, runs with a small alpha take minutes
    },
    "mc_sf": _LOOK_AHEAD,
    "mc_benchmark": _LOOK_AHEAD,
    "mc_longest": _LOOK_AHEAD,
    "flow_control": {
        "budget": (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 128),
        "random": (False, True),
    },
    # One budget for all classes, then unequal budgets: the last one also applies to all further classes.
    "flow_control_classes": {
        "budgets": (
            *(f"{b}/{b}/{b}" for b in (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)),
            *("2/4/8", "8/4/2", "2/4/4", "4/4/2", "4/2/2", "8/4/4", "4/8/8"),
        )
    },
    "learned_rank": {"guard": (0, 50, 200, 1000), "protection": (*_MARGINS,)},
    "tie": {"batch": (8, 32, 128), "protection": (*_MARGINS,)},
    "trail": {"share": (0.0, 0.2, 0.5, 0.8, 1.0), "protection": (*_MARGINS,)},
    "bounded_srpt": {"most": (0, 1, 2, 4), "protection": (*_MARGINS,)},
    "gamma_boost": {"gamma": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0), "protection": (*_MARGINS,)},
    "after_sagesched": {"protection": (*_MARGINS,)},
    "fast_serve": {
        "token_time": (0.003, 0.01, 0.03, 0.1),
        "guard": (0, 200, 1000),
        "protection": (*_MARGINS,),
    },
    "vtc": {"protection": (*_MARGINS, 0.4, 0.5)},
    "dlpm": {"quantum": (200.0, 1000.0, 2000.0, 5000.0, 20000.0), "protection": (*_MARGINS,)},
    "past_future": {"reserved": (0.0, 0.01, 0.03, 0.05, 0.1, 0.2), "initial": (64, 256, 512, 1024)},
    "vllm": {
        "max_batch_tokens": (1024, 2048, 4096, 8192, 16384),
        "max_batch_requests": (32, 64, 128, 256, 512),
        "watermark": (0.0, 0.01, 0.05, 0.1),
    },
    "sarathi": {
        "token_budget": (128, 256, 384, 512, 1024, 2048, 4096),
        "order": ("fcfs", "spf"),
        "max_batch_requests": (64, 128, 256, 512),
        "watermark": (0.0, 0.05),
    },
    "vllm_v1": {
        "max_num_batched_tokens": (512, 1024, 2048, 4096, 8192),
        "max_num_seqs": (128, 256, 512),
        "long_prefill_token_threshold": (0, 512),
        "watermark": (0.0, 0.02, 0.05, 0.1),
    },
    "wait": _THRESHOLDS,
    "nested_wait": _THRESHOLDS,
    "ageing": {
        "rate": (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),  # tokens/s: from MC-SF's order to first come
        "protection": (0.0, 0.05, 0.1, 0.2),
        "overrun": ("ignore", "extend"),
    },
    "rad": _TILES,
    "rad_batched": _TILES,
    "ranked": {
        "footprint": (1.0, 1.5, 2.0),
        "waiting": (0.5, 5.0),
        "gate": (1.8, 2.1, 100.0),
        "prefill_value": (0.4, 0.7, 1.0),
        "free": (0.0, 0.02),
    },
    "request_level": {"batch": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)},
    # The paper uses offsets of 5 and 10; the caps on requests matter less than these.
    "slai": {
        "order": ("spf", "fcfs"),
        "offset": (5.0, 10.0),
        "low_offset": (None, 5.0),
        "paying_first": (False, True),
        "token_budget": (256, 512, 2048),
        "watermark": (0.0, 0.01),
    },
    "work_conserving_fcfs": _CHUNKS,
    "work_conserving_sjf": _CHUNKS | {"resume": ("first", "by_work")},
    "work_conserving_fcfs_lookahead": _CHUNKS,
    "work_conserving_sjf_lookahead": _CHUNKS,
}
"""Default search space of each policy: finite grids around the papers' values."""


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
        """Return the plan with a resolved policy's defaults in place of :data:`~kvgym.policies.policy.AUTO`."""
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
        if name not in SEARCH_SPACES and set(defaults) - set(fixed):
            raise ConfigError(
                f"policy {shown(name)} has no default search space; give one, e.g. --grid name=1/2/3, for its "
                f"hyperparameters: {describe_arguments(cls)}"
            )
        space = {k: v for k, v in SEARCH_SPACES.get(name, {}).items() if k not in fixed}
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
