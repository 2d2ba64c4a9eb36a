"""Entries: policies and routers by name, module:Class, agent or file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgym.agents.library import is_agent, is_router, load_agent, load_router
from kvgym.policies.contract.checking import policy_maker
from kvgym.policies.policy import POLICIES, Policy
from kvgym.policies.routing import ROUTERS, Router, make_router
from kvgym.utils.hyperparameters import maker_of


@dataclass(frozen=True)
class Entry:
    """Something to score.

    Attributes:
        spec: how it was named.
        made: the policy, or the router.
    """

    spec: str
    made: Policy | Router

    @property
    def role(self) -> str:
        """``"scheduler"`` or ``"router"``: the tasks that it enters."""
        return "router" if isinstance(self.made, Router) else "scheduler"

    @property
    def clairvoyant(self) -> bool:
        """Whether it observes what no real scheduler has: it is then listed apart."""
        return isinstance(self.made, Policy) and bool(self.made.info.clairvoyant)


def load_entry(spec: str, *, trusted: bool = False, action: str | None = None) -> Entry:
    """Return an entry.

    Args:
        spec: a scheduler, a router or an agent by name, with hyperparameters as in ``"sarathi:token_budget=512"``;
            ``"module:Class"`` of a policy or router of your own; or an agent's folder, ``.npz``, ``.json`` or ``.zip``.
        trusted: read a ``.zip`` of Stable-Baselines3, which can run any code.
        action: kind of action of the environment that a ``.zip`` was trained in.

    Raises:
        KVGymError: there is no such entry, or it cannot be made.
    """
    name, _, rest = spec.partition(":")
    if name in POLICIES:
        return Entry(spec, policy_maker(spec)())
    if name in ROUTERS:
        return Entry(spec, make_router(spec))
    if is_agent(spec):
        if is_router(spec):
            return Entry(spec, load_router(spec))
        arguments: dict[str, Any] = {} if action is None else {"action": action}
        return Entry(spec, load_agent(spec, trusted=trusted, **arguments))
    if not rest or "=" in rest.partition(",")[0]:
        return Entry(spec, policy_maker(spec)())  # its error lists the names
    if str(Path.cwd()) not in sys.path:  # its module may be in the current folder
        sys.path.insert(0, str(Path.cwd()))
    return Entry(spec, maker_of(spec, "entry", (Policy, Router))())
