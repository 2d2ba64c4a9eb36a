"""Environments of which tests compute numbers by hand: short windows, shares of memory, actions in their own units."""

from __future__ import annotations

from typing import Any

from kvgym.envs.scheduling.environment import ServingEnv

CHOOSING = ("admit_count", "admit_evict", "flags", "tokens")
SHORT = {"scenario": "a100-llama2-70b", "queue_window": 16, "active_window": 16, "features": ()}


def plain(action: str = "admit_count", **arguments: Any) -> dict[str, Any]:
    """Return arguments of an environment, with plain values for those that are not given."""
    usual: dict[str, Any] = {"token_scale": "capacity", "must_admit": False}
    if action in CHOOSING:
        usual |= SHORT
    if action != "priority":
        usual["unit_actions"] = False
    return {"action": action, **usual, **arguments}


def plain_env(**arguments: Any) -> ServingEnv:
    """Return an environment with the arguments of :func:`plain`."""
    options = {name: arguments.pop(name) for name in ("compiled", "render_mode") if name in arguments}
    return ServingEnv(**options, **plain(**arguments))
