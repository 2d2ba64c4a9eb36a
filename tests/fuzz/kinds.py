"""Base class of fuzzed inputs: valid inputs to mutate, and a function that uses them."""

from __future__ import annotations

import contextlib
import copy
import importlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.judging import SilentError
from fuzz.trees import mutate, revive
from kvgym.errors import KVGymError


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    Attributes:
        name: name on the command line.
        seeds: returns valid inputs as trees; called once.
        play: uses a revived input as users do, in its own folder; raises errors.
        odd: whether mutations may contain Python objects that no file can hold.
        weight: relative frequency.
        quick: whether it is part of short runs.
    """

    name: str
    seeds: Callable[[], Sequence[Any]]
    play: Callable[[Any, Path], object]
    odd: bool = False
    weight: float = 1.0
    quick: bool = True

    def make(self, seed: int, index: int) -> Any:
        """Return the tree of a numbered input, determined by the arguments alone."""
        rng = random.Random(f"{self.name}:{seed}:{index}")
        if self.name not in _SEEDS:
            _SEEDS[self.name] = list(self.seeds())
        tree = copy.deepcopy(rng.choice(_SEEDS[self.name]))
        return mutate(tree, rng, odd=self.odd)

    def ready(self, folder: Path) -> None:
        """Play the valid inputs, so that loading and compiling is not charged to a mutation."""
        self.make(0, 0)
        if self.name not in _READY:
            _READY.add(self.name)
            for tree in _SEEDS[self.name] if self.quick else ():
                with contextlib.suppress(KVGymError):
                    self.run(tree, folder)

    def run(self, tree: Any, folder: Path) -> None:
        """Play an input."""
        self.play(revive(tree), folder)


MODULES = (
    "file", "calibration", "result", "benchmark", "agent", "learner", "api", "state", "command", "folder", "user",
    "engine", "server",
)  # fmt: skip
"""Modules of the kinds, without ``_kinds``."""

_SEEDS: dict[str, list[Any]] = {}
_READY: set[str] = set()


def all_kinds() -> dict[str, Kind]:
    """Import all kinds and return them by name."""
    modules = [importlib.import_module(f"fuzz.{name}_kinds") for name in MODULES]
    found = [kind for module in modules for kind in vars(module).values() if isinstance(kind, Kind)]
    return {kind.name: kind for kind in found}


def refuse(condition: bool, what: str) -> None:
    """Raise :class:`SilentError` if a wrong input was accepted."""
    if condition:
        raise SilentError(what)


def written(folder: Path, name: str, content: Any) -> Path:
    """Write a file and return its path: bytes unchanged, anything else as YAML."""
    import yaml

    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(
            yaml.safe_dump(content, sort_keys=False, allow_unicode=True), "utf-8", "surrogatepass"
        )
    return path


def raw(content: Any) -> Any:
    """Return the tree of a text or of bytes, so that mutations change single bytes."""
    data = content if isinstance(content, bytes) else str(content).encode()
    return {"$bytes": data.decode("latin-1")}
