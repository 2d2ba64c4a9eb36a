"""The file of an evolved agent: JSON with a policy, router or autoscaler and its hyperparameters, checked when read.

The key is ``policy``, ``router`` or ``autoscaler``; its value is the registered name.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvgym.agents.evolution.role import KINDS
from kvgym.agents.evolution.space import Value, checked, weights_of
from kvgym.errors import ConfigError, shown
from kvgym.policies.policy import Policy, policy_defaults
from kvgym.policies.routing import Router
from kvgym.policies.scaling import Autoscaler
from kvgym.utils.files import write_text
from kvgym.utils.reading import parse_json, read_bytes

FORMAT, VERSION = "kvgym-evolved-policy", 1
_MAPPINGS = ("fixed", "weights", "metadata")


@dataclass(frozen=True)
class EvolvedModel:
    """A policy, a router or an autoscaler with learned weights.

    Attributes:
        name: its registered name.
        fixed: hyperparameters that were not learned, JSON-able.
        weights: learned hyperparameters by name.
        metadata: JSON-able: ``name``, ``summary``, ``training`` (its configuration), ``seed``, …
        kind: key of :data:`~kvgym.agents.evolution.role.KINDS`.
    """

    name: str
    fixed: Mapping[str, Any]
    weights: Mapping[str, Value]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "policy"

    def make(self, name: str) -> Policy | Router | Autoscaler:
        """Return it with a name for results.

        Raises:
            ConfigError: a hyperparameter is wrong.
        """
        made: Policy | Router | Autoscaler = KINDS[self.kind].make(self.name, **self.fixed, **self.weights)
        made.info = replace(made.info, name=name)  # type: ignore[misc]
        made.label = name
        return made

    def check(self) -> EvolvedModel:
        """Check the name and the hyperparameters, and return the model with checked weights.

        Raises:
            UnknownNameError: nothing of that kind and name.
            ConfigError: a hyperparameter is wrong.
        """
        declared = weights_of(self.name, self.fixed, self.kind)
        known = {*declared, *policy_defaults(KINDS[self.kind].registry[self.name])}
        for name in (*self.fixed, *self.weights):
            if name not in known:
                raise ConfigError(
                    f"{self.kind} {shown(self.name)} has no hyperparameter {shown(name)}; valid: "
                    f"{', '.join(sorted(known)) or 'none'}"
                )
        if both := self.fixed.keys() & self.weights.keys():
            raise ConfigError(f"{shown(min(both))} is in both fixed and weights")
        found: dict[str, Value] = {}
        for name, value in self.weights.items():
            found[name] = checked(declared[name], value) if name in declared else _finite(name, value)
        model = replace(self, weights=found)
        model.make("check")  # its constructor checks other ranges
        return model

    def to_json(self) -> str:
        """Return the content of the file; equal models give equal text."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            self.kind: self.name,
            **{name: getattr(self, name) for name in _MAPPINGS},
        }
        return json.dumps(content, indent=1, allow_nan=False) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file."""
        write_text(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> EvolvedModel:
        """Read a file.

        Raises:
            ConfigError: there is no such file, it is damaged or has another format, or a hyperparameter is wrong.
        """
        place = Path(path)
        content = parse_json(read_bytes(place, "agent"), f"agent {place}", finite=True)
        try:
            return cls._of(content).check()
        except ConfigError as error:
            raise ConfigError(f"agent {place}: {error}", error.details) from None

    @classmethod
    def _of(cls, content: Any) -> EvolvedModel:
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ConfigError(f"not an evolved agent; expected a mapping with format {FORMAT!r}")
        if content.get("version") != VERSION:
            raise ConfigError(
                f"version {shown(content.get('version'))} of the format; this kvgym reads version {VERSION}"
            )
        kind = next((kind for kind in KINDS if kind in content), "policy")
        fields = ("format", "version", kind, *_MAPPINGS)
        if content.keys() != set(fields):
            wrong = sorted(content.keys() ^ set(fields))
            raise ConfigError(
                f"fields missing or unknown: {', '.join(wrong)}; expected format, version, {' or '.join(KINDS)}, "
                f"{', '.join(_MAPPINGS)}"
            )
        if not isinstance(content[kind], str):
            raise ConfigError(f"{kind} = {shown(content[kind])}; expected a name")
        for name in _MAPPINGS:
            if not isinstance(content[name], dict):
                raise ConfigError(f"{name} must be a mapping, got {type(content[name]).__name__}")
        return cls(content[kind], **{name: content[name] for name in _MAPPINGS}, kind=kind)


def _finite(name: str, value: Any) -> float:
    """Return a finite number; the policy checks its range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"weight {shown(name)} = {shown(value)}; expected a finite number")
    return float(value)
