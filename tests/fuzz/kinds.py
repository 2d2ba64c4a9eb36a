"""Kinds of input that are fuzzed: where mutations start from, and what is done with the result."""

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
        name: its name.
        seeds: returns valid inputs, as trees; it is called once.
        play: does with an input, revived, what users do, in a folder of its own; raises what comes of it.
        odd: whether objects of Python that no file can hold may come in.
        weight: how often it is drawn, relative to the others.
        quick: whether it is part of short runs.
    """

    name: str
    seeds: Callable[[], Sequence[Any]]
    play: Callable[[Any, Path], object]
    odd: bool = False
    weight: float = 1.0
    quick: bool = True

    def make(self, seed: int, index: int) -> Any:
        """Return the input of a number: a tree, a function of its arguments only."""
        rng = random.Random(f"{self.name}:{seed}:{index}")
        if self.name not in _SEEDS:
            _SEEDS[self.name] = list(self.seeds())
        tree = copy.deepcopy(rng.choice(_SEEDS[self.name]))
        return mutate(tree, rng, odd=self.odd)

    def ready(self, folder: Path) -> None:
        """Play the valid inputs, so that what is loaded and compiled once is not put down to a mutation."""
        self.make(0, 0)
        if self.name not in _READY:
            _READY.add(self.name)
            for tree in _SEEDS[self.name] if self.quick else ():
                with contextlib.suppress(KVGymError):
                    self.run(tree, folder)

    def run(self, tree: Any, folder: Path) -> None:
        """Play an input."""
        self.play(revive(tree), folder)


MODULES = ("file", "calibration", "result", "agent", "learner", "api", "state", "command", "folder", "user")
"""Where the kinds are."""

_SEEDS: dict[str, list[Any]] = {}
_READY: set[str] = set()


def all_kinds() -> dict[str, Kind]:
    """Return all kinds by name; they are loaded when they are asked for."""
    modules = [importlib.import_module(f"fuzz.{name}_kinds") for name in MODULES]
    found = [kind for module in modules for kind in vars(module).values() if isinstance(kind, Kind)]
    return {kind.name: kind for kind in found}


def refuse(condition: bool, what: str) -> None:
    """Say that something wrong was accepted, if it was."""
    if condition:
        raise SilentError(what)


def written(folder: Path, name: str, content: Any) -> Path:
    """Return a file with this content: bytes as they are, anything else as YAML."""
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
    """Return the tree of a text or of bytes, so that its letters are mutated."""
    data = content if isinstance(content, bytes) else str(content).encode()
    return {"$bytes": data.decode("latin-1")}
