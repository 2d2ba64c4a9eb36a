"""``admit_evict``: one choice per action; Discrete(Q + W + 1).

Admit the request at a window position, evict the request at an active position (0 = the latest activated), or run
the batch. Positions after a chosen request move up, so that any number can be admitted or evicted. Time passes only
when the batch runs; a choice outside the mask runs the batch as decided so far.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.envs.scheduling.actions.composing import (
    active_position,
    add_admission,
    add_eviction,
    can_admit,
    idling_masked,
    settle,
)
from kvgym.envs.scheduling.actions.expressing import (
    IDLING,
    INACTIVE,
    OUTSIDE,
    REQUEST_ID,
    UNFIT,
    in_full,
    position_in_active,
    position_in_window,
)
from kvgym.envs.scheduling.actions.kind import (
    CHOOSING_DEFAULTS,
    COMPLETE,
    MORE,
    ActionConfig,
    ActionKind,
    ActionPart,
    apply_kernel,
    encode_kernel,
    mask_kernel,
)
from kvgym.envs.scheduling.opening import open_environment
from kvgym.simulator.policy_interface import PolicyDecision
from kvgym.simulator.tables import UNKNOWN


@mask_kernel
def write_mask(where: Any, mask: Any) -> None:
    """Allow requests that fit, active ones that are not evicted yet, and running unless ``must_admit`` excludes it."""
    e = open_environment(where)
    queue, active = e.settings.queue_window, e.settings.active_window
    left = e.run.w.num_active - e.run.decision.num_evict
    for q in range(queue):
        mask[q] = 1 if q < e.episode.num_window and can_admit(e, e.window[q]) else 0
    for a in range(active):
        mask[queue + a] = 1 if a < left else 0
    mask[queue + active] = 0 if idling_masked(e) else 1


@apply_kernel
def apply(where: Any, action: Any) -> int:
    """Add one admission or eviction, or complete the decision."""
    e = open_environment(where)
    queue, active = e.settings.queue_window, e.settings.active_window
    choice = int(action[0])
    if 0 <= choice < queue:
        if choice < e.episode.num_window and can_admit(e, e.window[choice]):
            add_admission(e, choice)
            return MORE
        e.episode.num_ignored += 1
    elif queue <= choice < queue + active:
        k = active_position(e, choice - queue)
        if k != UNKNOWN:
            add_eviction(e, k)
            return MORE
        e.episode.num_ignored += 1
    elif choice != queue + active or idling_masked(e):
        e.episode.num_ignored += 1
    settle(e)
    return COMPLETE


@encode_kernel
def encode(where: Any, decision: PolicyDecision, done: int, action: Any, report: Any) -> int:
    """Write evictions, then admissions, then run, one per call; positions allow for earlier choices."""
    e = open_environment(where)
    queue, active = e.settings.queue_window, e.settings.active_window
    d = decision.record
    if done == 0:
        reason = in_full(e, decision)
        if reason != 0:
            return reason
        if d.num_admit == 0 and idling_masked(e):
            return IDLING
    if done < d.num_evict:
        position = position_in_active(e, decision.evict[done])
        if position >= active:
            report[REQUEST_ID] = e.run.active[decision.evict[done]].request_id
            return INACTIVE
        action[0] = queue + position
        return MORE
    if done < d.num_evict + d.num_admit:
        i = decision.admit[done - d.num_evict]
        report[REQUEST_ID] = i
        q = position_in_window(e, i)
        if q == UNKNOWN:
            return OUTSIDE
        if not can_admit(e, i):
            return UNFIT
        action[0] = q
        return MORE
    action[0] = queue + active
    return COMPLETE


class AdmitEvict(ActionKind):
    """Admit one waiting request, evict one active request, or run the batch."""

    name = "admit_evict"
    defaults = {**CHOOSING_DEFAULTS, "features": ("saved_duration",), "must_admit": True}  # noqa: RUF012
    forces_admission = True
    write_mask = write_mask
    apply = apply
    encode = encode

    def space(self, config: ActionConfig) -> spaces.Discrete:
        """Return Discrete(Q + W + 1)."""
        return spaces.Discrete(self.mask_size(config))

    def parts(self, config: ActionConfig) -> tuple[ActionPart, ...]:
        """Return the meaning of each choice."""
        queue, run = config.queue_window, config.queue_window + config.active_window
        admit, evict = (
            "admit the request at this position of the queue window",
            "evict the request at this position",
        )
        return (
            ActionPart(f"0 … {queue - 1}", admit, "–", 0, queue - 1),
            ActionPart(
                f"{queue} … {run - 1}", f"{evict} of the active window, latest first", "–", queue, run - 1
            ),
            ActionPart(f"{run}", "run the batch", "–", run, run),
        )

    def mask_size(self, config: ActionConfig) -> int:
        """Return Q + W + 1."""
        return config.queue_window + config.active_window + 1

    def greedy(self, config: ActionConfig, mask: NDArray[np.uint8]) -> int:
        """Admit the first that fits, else run."""
        fits = np.flatnonzero(mask[: config.queue_window])
        return int(fits[0]) if len(fits) else self.idle(config)

    def idle(self, config: ActionConfig) -> int:
        """Run the batch."""
        return config.queue_window + config.active_window
