"""Entries: policies, routers and autoscalers by name, module:Class, agent or file, or one for each task."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from kvgym.agents.library import SUFFIXES, is_agent, kind_of, load_agent, load_autoscaler, load_router
from kvgym.envs.agents import AgentPolicy
from kvgym.errors import ConfigError
from kvgym.policies.contract.checking import policy_maker
from kvgym.policies.policy import POLICIES, Policy
from kvgym.policies.routing import ROUTERS, Router, make_router
from kvgym.policies.scaling import AUTOSCALERS, Autoscaler, make_autoscaler
from kvgym.utils.hyperparameters import maker_of
from kvgym.utils.reading import Description, parse_fields, read_text, validate_fields

Playing = Policy | Router | Autoscaler


class SettingsByTask(Description):
    """A file of settings: an entry that plays each task with its own.

    Attributes:
        rule: the entry that plays all other tasks, and that a gain is measured from.
        tasks: entries by task; files are relative to the folder of this file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str
    tasks: dict[str, str] = Field(min_length=1)


@dataclass(frozen=True)
class Entry:
    """Something to score.

    Attributes:
        spec: how it was named.
        made: the policy, router or autoscaler.
        below: name of what it is built on: the scheduler below an agent, or a rule with its defaults; "" = none.
        by_task: what plays a task instead of ``made``.
        settings: how each of these was named.
    """

    spec: str
    made: Playing
    below: str = ""
    by_task: Mapping[str, Playing] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def role(self) -> str:
        """``"scheduler"``, ``"router"`` or ``"autoscaler"``: the tasks that it enters."""
        if isinstance(self.made, Router):
            return "router"
        return "autoscaler" if isinstance(self.made, Autoscaler) else "scheduler"

    @property
    def players(self) -> tuple[Playing, ...]:
        """All that play a task."""
        return self.made, *self.by_task.values()

    @property
    def clairvoyant(self) -> bool:
        """Whether it observes what no real server or fleet has: it is then listed apart."""
        return any(not isinstance(made, Router) and bool(made.info.clairvoyant) for made in self.players)

    def on(self, task: str) -> Playing:
        """Return what plays a task."""
        return self.by_task.get(task, self.made)


def load_entry(spec: str, *, trusted: bool = False, action: str | None = None) -> Entry:
    """Return an entry.

    Args:
        spec: a scheduler, router, autoscaler or agent by name, with hyperparameters as in
            ``"sarathi:token_budget=512"``; ``"module:Class"`` of your own; an agent's folder, ``.npz``, ``.json`` or
            ``.zip``; or a ``.yaml`` file of settings by task, see :class:`SettingsByTask`.
        trusted: read a ``.zip`` of Stable-Baselines3, which can run any code.
        action: kind of action of the environment that a ``.zip`` was trained in.

    Raises:
        KVGymError: there is no such entry, or it cannot be made.
    """
    if spec.endswith(".yaml"):
        return _by_task(Path(spec))
    name, _, rest = spec.partition(":")
    if name in POLICIES:
        return Entry(spec, policy_maker(spec)())
    if name in ROUTERS:
        return Entry(spec, make_router(spec))
    if name in AUTOSCALERS:
        return Entry(spec, make_autoscaler(spec))
    if is_agent(spec):
        arguments: dict[str, Any] = {} if action is None else {"action": action}
        kind = kind_of(spec)
        if kind == "router":
            return Entry(spec, load_router(spec), "weighted")
        if kind == "autoscaler":
            return Entry(spec, load_autoscaler(spec))
        made = load_agent(spec, trusted=trusted, **arguments)
        return Entry(spec, made, _below(made))
    if not rest or "=" in rest.partition(",")[0]:
        return Entry(spec, policy_maker(spec)())  # its error lists the names
    if str(Path.cwd()) not in sys.path:  # its module may be in the current folder
        sys.path.insert(0, str(Path.cwd()))
    made = maker_of(spec, "entry", (Policy, Router, Autoscaler))()
    return Entry(spec, made, _below(made))


def _below(made: Playing) -> str:
    """Return the scheduler below an agent, "" without one."""
    if isinstance(made, AgentPolicy):
        return made.config.scheduler if isinstance(made.config.scheduler, str) else ""
    return "ranked" if isinstance(made, POLICIES["ranked"]) else ""


def _by_task(path: Path) -> Entry:
    """Return the entry of a file of settings by task."""
    fields = parse_fields(read_text(path, "settings by task"), str(path))
    found = validate_fields(SettingsByTask, fields, str(path))
    rule = load_entry(found.rule)
    by_task = {}
    for task, spec in found.tasks.items():
        entry = load_entry(str(path.parent / spec) if spec.endswith(SUFFIXES) else spec)
        if entry.role != rule.role:
            raise ConfigError(f"{path}: task {task} wants a {rule.role}, and {spec} is none")
        by_task[task] = entry.made
    return Entry(str(path), rule.made, found.rule, by_task, found.tasks)
