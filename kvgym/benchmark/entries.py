"""Entries: policies and routers by name, module:Class, agent or file."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgym.agents.library import is_agent, is_router, load_agent, load_router
from kvgym.contract.checking import policy_maker
from kvgym.errors import ConfigError, shown
from kvgym.policy import POLICIES, Policy
from kvgym.routing import ROUTERS, Router, make_router
from kvgym.utils.hyperparameters import construct
from kvgym.utils.specs import parse_spec


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
    return Entry(spec, _own(name, rest, spec))


def _own(module: str, rest: str, spec: str) -> Policy | Router:
    """Return a policy or router of the user's, also from a module beside the current folder."""
    attribute, _, options = rest.partition(",")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"entry {shown(spec)}: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Policy | Router)):
        raise ConfigError(
            f"entry {shown(spec)}: {attribute} of {module} is not a class derived from kvgym.Policy or kvgym.Router"
        )
    _, hyperparameters = parse_spec(f"{attribute}:{options}", "entry")
    made: Any = construct(found, hyperparameters, f"entry {spec!r}")
    assert isinstance(made, Policy | Router)
    return made
