"""Kinds of input: saved states of environments, and pickled environments."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from fuzz.api_kinds import environment
from fuzz.kinds import Kind, refuse
from kvgym.envs.scheduling.state import EpisodeState, SavedState
from kvgym.errors import ConfigError

NAMES = ("admit", "vector", "route")


@functools.cache
def taken(name: str) -> Any:
    """Return an environment in mid-episode, its saved state, and its pickled state."""
    env = environment(name)
    env.reset(seed=3)
    for _ in range(3):
        env.step(np.ones(2, int) if name == "vector" else 1)
    state = env.get_state()
    return env, state, env.__getstate__()


def described(value: Any) -> Any:
    """Return the tree of a part of a state: JSON values unchanged, others by type and shape."""
    if isinstance(value, np.ndarray):
        return {"$array": value.dtype.str if value.dtype.names is None else "V", "shape": list(value.shape)}
    if isinstance(value, SavedState | EpisodeState):
        return {field.name: described(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: described(x) for name, x in value.items() if isinstance(name, str)}
    if isinstance(value, list | tuple):
        return [described(x) for x in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"$kept": type(value).__name__}


def rebuilt(tree: Any, original: Any) -> Any:
    """Return the original, with the parts replaced that were changed in the tree."""
    if _text(tree) == _text(described(original)):
        return original
    if isinstance(tree, dict) and "$array" in tree:
        return _array(tree)
    if isinstance(tree, dict) and isinstance(original, SavedState | EpisodeState):
        names = {field.name for field in dataclasses.fields(original)}
        kept = {
            name: rebuilt(value, getattr(original, name)) for name, value in tree.items() if name in names
        }
        return dataclasses.replace(original, **kept)
    if isinstance(tree, dict) and isinstance(original, Mapping):
        return {name: rebuilt(value, original.get(name)) for name, value in tree.items()}
    if isinstance(tree, list) and isinstance(original, list | tuple):
        parts = list(original) + [None] * len(tree)
        changed = [rebuilt(value, part) for value, part in zip(tree, parts, strict=False)]
        make = getattr(type(original), "_make", type(original))  # of a named tuple
        return make(changed) if len(changed) == len(original) else tuple(changed)
    return tree


def _text(tree: Any) -> str:
    """Return a tree as text; Python objects that JSON lacks by their classes."""
    try:
        return json.dumps(tree, default=lambda value: f"${type(value)}")
    except ValueError:  # an integer with thousands of digits
        return ""


def _array(tree: dict[str, Any]) -> Any:
    """Return zeros of the given shape and dtype, if they are possible."""
    shape = tree.get("shape")
    fine = isinstance(shape, list) and all(type(n) is int and 0 <= n < 10**5 for n in shape)
    try:
        return np.zeros(shape[:3] if fine else 3, str(tree["$array"])[:20])  # type: ignore[index]
    except (TypeError, ValueError, SyntaxError, MemoryError):
        return np.zeros(2)


def state_seeds() -> list[Any]:
    """Return states to restore, states from a pickle with a flipped bit, and pickled environments."""
    found: list[Any] = []
    for name in NAMES:
        _, state, pickled = taken(name)
        tree = json.loads(json.dumps(described(state)))
        found.append({"env": name, "how": "set", "state": tree})
        found.append({"env": name, "how": "bytes", "place": 1000, "bit": 3, "part": "memory"})
        found.append({"env": name, "how": "pickle", "state": json.loads(json.dumps(described(pickled)))})
    return found


def play_state(content: Any, folder: Path) -> None:
    """Restore a state and take a step."""
    content = content if isinstance(content, dict) else {}
    name = content.get("env")
    name = name if isinstance(name, str) and name in NAMES else "admit"
    env, state, pickled = taken(name)
    how, tree = content.get("how"), content.get("state")
    how = how if isinstance(how, str) else ""
    if how == "pickle":
        again = type(env).__new__(type(env))
        again.__setstate__(rebuilt(tree, pickled))
        again.close()
        return
    if how == "bytes":
        given = damaged(state, content)
        refuse(True, "damaged memory")
    else:
        given = rebuilt(tree, state)
    env.set_state(given)
    _check(given, state)
    try:
        env.step(np.zeros(2, int) if name == "vector" else 0)
    except gym.error.ResetNeeded as error:  # the state of an ended episode
        raise ConfigError(str(error)) from None
    finally:
        env.set_state(state)


def damaged(state: Any, content: Mapping[str, Any]) -> Any:
    """Return a state unpickled with one wrong bit.

    Raises:
        ConfigError: the damage was detected.
    """
    one = state[0] if isinstance(state, tuple) else state
    one = getattr(one, "episode", one)
    parts = dict(one.__getstate__())
    memory = parts["memory"].copy()
    place, bit = content.get("place"), content.get("bit")
    at = place % memory.size if type(place) is int else 0
    memory[at] ^= 1 << (bit % 8 if type(bit) is int else 0)
    part = content.get("part")
    parts[part if isinstance(part, str) else "memory"] = memory
    again = type(one).__new__(type(one))
    again.__setstate__(parts)
    return again


def _check(given: Any, state: Any) -> None:
    """Fail if memory that compiled code trusts is writeable."""
    for one in given if isinstance(given, tuple) else (given,):
        memory = getattr(getattr(one, "episode", one), "memory", None)
        if isinstance(memory, np.ndarray):
            refuse(memory.flags.writeable, "writeable memory")


STATE = Kind("state", state_seeds, play_state, odd=True)
