"""What evolution can learn the weights of, policies and routers, and what stands beside them in a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvgym.policy import POLICIES, Policy, make_policy
from kvgym.routing import ROUTERS, Router, make_router
from kvgym.utils.registry import Registry


@dataclass(frozen=True)
class Kind:
    """Something with weights.

    Attributes:
        registry: classes by name; each has ``weights(**fixed)``.
        make: from a spec and hyperparameters to an object.
    """

    registry: Registry[Any]
    make: Callable[..., Any]


KINDS: Mapping[str, Kind] = {"policy": Kind(POLICIES, make_policy), "router": Kind(ROUTERS, make_router)}
"""What can be evolved, by the name it has in configurations and files."""


@dataclass(frozen=True)
class Role:
    """What a contender is, and what it plays with.

    Attributes:
        kind: name in :data:`KINDS`.
        policy: of a router, the spec of the policy that schedules on the workers; else "".
    """

    kind: str = "policy"
    policy: str = ""

    def cast(
        self, spec: str, hyperparameters: Mapping[str, Any], router: Router | None
    ) -> tuple[Policy, Router | None]:
        """Return the policy and the router of a run.

        Args:
            spec: name or spec of the contender.
            hyperparameters: beside those of the spec.
            router: of the service; a contender that is a router takes its place.

        Raises:
            UnknownNameError: nothing of that name.
            ConfigError: a hyperparameter is wrong.
        """
        made = KINDS[self.kind].make(spec, **hyperparameters)
        return (make_policy(self.policy), made) if isinstance(made, Router) else (made, router)


AS_POLICY = Role()
"""The role of a policy."""
