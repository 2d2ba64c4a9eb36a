"""Policies, routers and autoscalers as learners of evolution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvgym.policies.policy import POLICIES, Policy, make_policy
from kvgym.policies.routing import ROUTERS, Router, make_router
from kvgym.policies.scaling import AUTOSCALERS, Autoscaler, make_autoscaler
from kvgym.utils.registry import Registry


@dataclass(frozen=True)
class Kind:
    """A kind of learner.

    Attributes:
        registry: classes by name; each has ``weights(**fixed)``.
        make: from a spec and hyperparameters to an object.
    """

    registry: Registry[Any]
    make: Callable[..., Any]


KINDS: Mapping[str, Kind] = {
    "policy": Kind(POLICIES, make_policy),
    "router": Kind(ROUTERS, make_router),
    "autoscaler": Kind(AUTOSCALERS, make_autoscaler),
}
"""Kinds of learners, by their name in configurations and files."""


class Cast(NamedTuple):
    """What runs on a service; None = as the service says."""

    policy: Policy
    router: Router | None
    autoscaler: Autoscaler | None


@dataclass(frozen=True)
class Role:
    """Whether a learner is a policy, a router or an autoscaler.

    Attributes:
        kind: name in :data:`KINDS`.
        policy: for a router and an autoscaler, spec of the policy on the workers; else "".
    """

    kind: str = "policy"
    policy: str = ""

    def cast(self, spec: str, hyperparameters: Mapping[str, Any], router: Router | None) -> Cast:
        """Return what runs.

        Args:
            spec: name or spec of the learner.
            hyperparameters: in addition to those of the spec.
            router: of the service; a learner that is a router replaces it.

        Raises:
            UnknownNameError: nothing of that kind and name.
            ConfigError: a hyperparameter is wrong.
        """
        made = KINDS[self.kind].make(spec, **hyperparameters)
        if isinstance(made, Router):
            return Cast(make_policy(self.policy), made, None)
        if isinstance(made, Autoscaler):
            return Cast(make_policy(self.policy), router, made)
        return Cast(made, router, None)


AS_POLICY = Role()
"""The role of a policy."""
