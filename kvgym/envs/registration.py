"""Registration of environments that schedule one worker, kinds of action, reward terms and observation parts.

Other distributions add kinds of action with :func:`register_action`, reward terms with :func:`register_reward` and
observation parts with :func:`register_observation`, in modules that they name in the entry-point groups
``kvgym.actions``, ``kvgym.rewards`` and ``kvgym.observations``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gymnasium as gym

from kvgym.envs.scheduling.actions.catalogue import ACTIONS, BUILT_IN, ActionEntry, action_kind
from kvgym.errors import ConfigError, shown
from kvgym.utils.arguments import explained

if TYPE_CHECKING:
    from kvgym.envs.scheduling.actions.kind import ActionKind
    from kvgym.envs.scheduling.components import ObservationPart, RewardTerm

__all__ = ["ACTIONS", "action_kind", "register_action", "register_observation", "register_reward"]


@explained
def register_action(
    name: str,
    id: str,  # noqa: A002
    kind: ActionKind | str,
    summary: str,
    max_episode_steps: int | None = None,
) -> None:
    """Register a kind of action, and its scalar and vector environments with Gymnasium.

    Args:
        name: value of the environment argument ``action``.
        id: Gymnasium id, e.g. ``"mine/Halves-v0"``.
        kind: an :class:`~kvgym.envs.scheduling.actions.kind.ActionKind`, or ``"module:Class"``.
        summary: one line for listings.
        max_episode_steps: steps after which Gymnasium truncates an episode; None for no limit.

    Raises:
        ConfigError: the name or the id is taken, or ``kind`` is not a kind of action.
    """
    if not (":" in kind if isinstance(kind, str) else _is_kind(kind)):
        raise ConfigError(
            f"action {shown(name)}: kind = {shown(kind)}; expected an ActionKind, or 'module:Class'"
        )
    if id in gym.registry and gym.registry[id].kwargs.get("action") != name:
        raise ConfigError(f"action {shown(name)}: the id {shown(id)} is already registered with Gymnasium")
    _register_id(name, ACTIONS.add(name, ActionEntry(id, kind, summary, max_episode_steps)))


def _is_kind(given: object) -> bool:
    from kvgym.envs.scheduling.actions.kind import ActionKind  # takes a while to load

    return isinstance(given, ActionKind)


def _register_id(name: str, entry: ActionEntry) -> None:
    """Register the environment of a kind of action with Gymnasium, once."""
    if entry.id not in gym.registry:
        gym.register(
            entry.id,
            entry_point="kvgym.envs.scheduling.environment:ServingEnv",
            vector_entry_point="kvgym.envs.scheduling.vector_environment:ServingVectorEnv",
            max_episode_steps=entry.max_episode_steps,
            kwargs={"action": name},
        )


def register_reward(term: RewardTerm) -> None:
    """Register a reward term, for the environment argument ``reward``.

    Raises:
        ConfigError: the name is taken, or ``term`` is not a RewardTerm.
    """
    from kvgym.envs.scheduling.components import REWARDS, RewardTerm

    if not isinstance(term, RewardTerm):
        raise ConfigError(f"reward term {shown(term)}; expected a kvgym.envs.RewardTerm")
    REWARDS.add(term.name, term)


def register_observation(part: ObservationPart) -> None:
    """Register an observation part, for the environment argument ``features``.

    Raises:
        ConfigError: the name is taken, or ``part`` is not an ObservationPart.
    """
    from kvgym.envs.scheduling.components import OBSERVATIONS, ObservationPart

    if not isinstance(part, ObservationPart):
        raise ConfigError(f"observation {shown(part)}; expected a kvgym.envs.ObservationPart")
    OBSERVATIONS.add(part.name, part)


for _name, _entry in BUILT_IN.items():
    _register_id(_name, _entry)
