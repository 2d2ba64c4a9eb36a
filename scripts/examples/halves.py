"""Example of a kind of action: admit none, half or all of the waiting requests that fit.

Its functions are explained in docs/actions.md. Importing the module registers ``acme/Halves-v0``.
"""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from kvgym.envs import (
    COMPLETE,
    ActionKind,
    add_admission,
    apply_kernel,
    mask_kernel,
    number_fitting,
    open_environment,
    register_action,
    settle,
)


@mask_kernel
def write_mask(where: Any, mask: Any) -> None:
    """Allow half only if two requests fit, all only if one does."""
    e = open_environment(where)
    fitting = number_fitting(e)
    mask[0] = 1
    mask[1] = 1 if fitting > 1 else 0
    mask[2] = 1 if fitting > 0 else 0


@apply_kernel
def apply(where: Any, action: Any) -> int:
    """Admit from the front of the window, never more than fit."""
    e = open_environment(where)
    choice, count = int(action[0]), number_fitting(e)
    if choice == 1 and count > 1:
        count = count // 2
    elif choice != 2 or count == 0:
        e.episode.num_ignored += 1 if choice != 0 else 0
        count = 0
    for _ in range(count):
        add_admission(e, 0)
    settle(e)
    return COMPLETE


class Halves(ActionKind):
    """Admit none, half or all of the requests that fit."""

    name = "halves"
    write_mask = write_mask
    apply = apply

    def space(self, config: Any) -> spaces.Space[Any]:
        """Return the action space."""
        return spaces.Discrete(3)

    def mask_size(self, config: Any) -> int:
        """Return the length of the mask."""
        return 3

    def greedy(self, config: Any, mask: Any) -> int:
        """Return the action that admits the most."""
        return 2 if mask[2] else 0

    def idle(self, config: Any) -> int:
        """Return the action that admits none."""
        return 0


register_action("halves", "acme/Halves-v0", Halves(), "none, half or all of the requests that fit (Discrete)")
