"""Policies and routers as learners of evolution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvgym.policies.policy import POLICIES, Policy, make_policy
from kvgym.policies.routing import ROUTERS, Router, make_router
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


KINDS: Mapping[str, Kind] = {"policy": Kind(POLICIES, make_policy), "router": Kind(ROUTERS, make_router)}
"""Kinds of learners, by their name in configurations and files."""


@dataclass(frozen=True)
class Role:
    """Whether a learner is a policy or a router.

    Attributes:
        kind: name in :data:`KINDS`.
        policy: for a router, spec of the policy on the workers; else "".
    """

    kind: str = "policy"
    policy: str = ""

    def cast(
        self, spec: str, hyperparameters: Mapping[str, Any], router: Router | None
    ) -> tuple[Policy, Router | None]:
        """Return the policy and the router of a run.

        Args:
            spec: name or spec of the learner.
            hyperparameters: in addition to those of the spec.
            router: of the service; a learner that is a router replaces it.

        Raises:
            UnknownNameError: no policy or router of that name.
            ConfigError: a hyperparameter is wrong.
        """
        made = KINDS[self.kind].make(spec, **hyperparameters)
        return (make_policy(self.policy), made) if isinstance(made, Router) else (made, router)


AS_POLICY = Role()
"""The role of a policy."""
