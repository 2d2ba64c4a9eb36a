"""List of the kinds of action, with their ids and summaries.

Kinds are listed by name and imported on first use, so that ``import kvgym`` stays light. Other distributions add
theirs with :func:`kvgym.envs.registration.register_action`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kvgym.utils.registry import Registry, load_plugins
from kvgym.utils.user_code import calling

if TYPE_CHECKING:
    from kvgym.envs.scheduling.actions.kind import ActionKind


@dataclass(frozen=True)
class ActionEntry:
    """A kind of action and its environment.

    Attributes:
        id: Gymnasium id.
        kind: the kind, or its location ``"module:Class"``.
        summary: one line for listings.
        max_episode_steps: steps after which Gymnasium truncates an episode, None for no limit.
    """

    id: str
    kind: ActionKind | str
    summary: str
    max_episode_steps: int | None = None

    def make(self) -> ActionKind:
        """Return the kind."""
        if not isinstance(self.kind, str):
            return self.kind
        module, _, name = self.kind.partition(":")
        with calling(self.kind, "kind of action", "it"):
            made: ActionKind = getattr(importlib.import_module(module), name)()
        return made


ACTIONS: Registry[ActionEntry] = Registry("action", partial(load_plugins, "kvgym.actions", "kinds of action"))
"""All kinds of action by name: the values of the environment argument ``action``."""

_KINDS: dict[str, ActionKind] = {}


def action_kind(name: str) -> ActionKind:
    """Return a kind of action.

    Raises:
        UnknownNameError: there is none of this name.
    """
    if name not in _KINDS:
        _KINDS[name] = ACTIONS[name].make()
    return _KINDS[name]


# Five to ten times the steps of a good agent in a default episode (1,000 requests, about 200 s): 2,500 iterations,
# 5,000 choices one at a time, 500 actions that hold for several iterations.
_STEPS, _HELD_STEPS = 25_000, 5_000

_AT = "kvgym.envs.scheduling.actions"

BUILT_IN: dict[str, ActionEntry] = {
    "admit_evict": ActionEntry(
        "kvgym/AdmitEvict-v0",
        f"{_AT}.one_at_a_time:AdmitEvict",
        "admit one waiting request, evict one active request, or run the batch (Discrete)",
        _STEPS,
    ),
    "admit_count": ActionEntry(
        "kvgym/AdmitCount-v0",
        f"{_AT}.count:AdmitCount",
        "how many requests to admit from the front of the queue window (Discrete)",
        _STEPS,
    ),
    "flags": ActionEntry(
        "kvgym/Flags-v0",
        f"{_AT}.flags:Flags",
        "admit and evict flags for the queue and active windows (MultiBinary)",
        _STEPS,
    ),
    "keep": ActionEntry(
        "kvgym/Cache-v0",
        f"{_AT}.keep:Keep",
        "how long the KV of a finished request stays in the prefix cache, for a scheduler below (Discrete)",
        _STEPS,
    ),
    "knobs": ActionEntry(
        "kvgym/Knobs-v0",
        f"{_AT}.knobs:Knobs",
        "protection margin, admission cap, token budget, quantum of a rule (MultiDiscrete)",
        _HELD_STEPS,
    ),
    "rank": ActionEntry(
        "kvgym/Rank-v0",
        f"{_AT}.rank:Rank",
        "weights of the scores of the scheduler ranked (Box)",
        _HELD_STEPS,
    ),
    "rank_scores": ActionEntry(
        "kvgym/RankScores-v0",
        f"{_AT}.rank:RankScores",
        "additions to the scores that ranked gives the requests of both windows (Box)",
        _STEPS,
    ),
    "priority": ActionEntry(
        "kvgym/Priority-v0",
        f"{_AT}.priority:Priority",
        "a number for each request when it arrives, which a scheduler takes as length, score or class (Box)",
        _STEPS,
    ),
    "tokens": ActionEntry(
        "kvgym/Tokens-v0",
        f"{_AT}.tokens:Tokens",
        "tokens for every request of both windows, orders, and waiting: everything a policy can decide (Box)",
        _STEPS,
    ),
}
"""The kinds of action of the library, by name."""

for _name, _entry in BUILT_IN.items():
    ACTIONS.add(_name, _entry)
