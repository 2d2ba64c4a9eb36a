"""``flags``: admit and evict flags for both windows at once; MultiBinary(Q + W).

Evict the flagged active positions (0 = the latest activated), then admit the flagged window positions in order if
they fit; then run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.envs.scheduling.actions.composing import (
    add_admission,
    add_eviction,
    can_admit,
    idling_masked,
    settle,
)
from kvgym.envs.scheduling.actions.expressing import (
    EVICTION,
    IDLING,
    INACTIVE,
    ORDER,
    OUTSIDE,
    REQUEST_ID,
    in_full,
    position_in_window,
)
from kvgym.envs.scheduling.actions.kind import (
    CHOOSING_DEFAULTS,
    COMPLETE,
    ActionConfig,
    ActionKind,
    ActionPart,
    apply_kernel,
    encode_kernel,
    mask_kernel,
)
from kvgym.envs.scheduling.opening import open_environment
from kvgym.simulator.policy_interface import PolicyDecision
from kvgym.simulator.tables import REQUEUE_ARRIVAL, UNKNOWN


@mask_kernel
def write_mask(where: Any, mask: Any) -> None:
    """Write, for every flag, whether 0 and whether 1 is possible; ``must_admit`` can require the first one."""
    e = open_environment(where)
    queue, active = e.settings.queue_window, e.settings.active_window
    left = e.run.w.num_active - e.run.decision.num_evict
    for q in range(queue):
        mask[2 * q] = 1
        mask[2 * q + 1] = 1 if q < e.episode.num_window and can_admit(e, e.window[q]) else 0
    for a in range(active):
        mask[2 * (queue + a)] = 1
        mask[2 * (queue + a) + 1] = 1 if a < left else 0
    if idling_masked(e):
        mask[0] = 0


@apply_kernel
def apply(where: Any, action: Any) -> int:
    """Evict flagged active positions, then admit flagged window positions in order if they fit."""
    e = open_environment(where)
    queue, active = e.settings.queue_window, e.settings.active_window
    num_active = e.run.w.num_active
    if action[0] == 0 and idling_masked(e):
        e.episode.num_ignored += 1
    for a in range(active):
        if action[queue + a] == 1:
            if a < num_active:
                add_eviction(e, num_active - 1 - a)
            else:
                e.episode.num_ignored += 1
    taken = 0  # positions move up as requests leave the window
    present = e.episode.num_window
    for q in range(queue):
        if action[q] == 1:
            if q < present and can_admit(e, e.window[q - taken]):
                add_admission(e, q - taken)
                taken += 1
            else:
                e.episode.num_ignored += 1
    settle(e)
    return COMPLETE


@encode_kernel
def encode(where: Any, decision: PolicyDecision, done: int, action: Any, report: Any) -> int:
    """Write the flags of a decision, if it evicts and admits in the order of the windows."""
    e = open_environment(where)
    queue, active = e.settings.queue_window, e.settings.active_window
    d = decision.record
    reason = in_full(e, decision)
    if reason != 0:
        return reason
    for k in range(queue + active):
        action[k] = 0
    for j in range(d.num_evict):
        slot = decision.evict[j]
        position = e.run.w.num_active - 1 - slot
        if position >= active:
            report[REQUEST_ID] = e.run.active[slot].request_id
            return INACTIVE
        if j > 0 and slot > decision.evict[j - 1] and e.run.problem.requeue != REQUEUE_ARRIVAL:
            return EVICTION  # the order of evictions determines the order of the queue
        action[queue + position] = 1
    last = UNKNOWN
    for j in range(d.num_admit):
        report[REQUEST_ID] = decision.admit[j]
        q = position_in_window(e, decision.admit[j])
        if q == UNKNOWN:
            return OUTSIDE
        if q < last:
            return ORDER
        action[q] = 1
        last = q
    return IDLING if action[0] == 0 and idling_masked(e) else COMPLETE


class Flags(ActionKind):
    """Admit and evict flags for the queue and active windows."""

    name = "flags"
    defaults = {**CHOOSING_DEFAULTS, "features": ("saved_duration",), "must_admit": True}  # noqa: RUF012
    forces_admission = True
    write_mask = write_mask
    apply = apply
    encode = encode

    def space(self, config: ActionConfig) -> spaces.MultiBinary:
        """Return MultiBinary(Q + W)."""
        return spaces.MultiBinary(config.queue_window + config.active_window)

    def parts(self, config: ActionConfig) -> tuple[ActionPart, ...]:
        """Return the meaning of the flags."""
        queue, size = config.queue_window, config.queue_window + config.active_window
        admit, evict = (
            "1: admit the request at this position of the queue window",
            "1: evict the request at this position",
        )
        return (
            ActionPart(f"0 … {queue - 1}", admit, "flag", 0, 1),
            ActionPart(f"{queue} … {size - 1}", f"{evict} of the active window, latest first", "flag", 0, 1),
        )

    def mask_size(self, config: ActionConfig) -> int:
        """Return 2 (Q + W): for every flag "0 possible" and "1 possible"."""
        return 2 * (config.queue_window + config.active_window)

    def greedy(self, config: ActionConfig, mask: NDArray[np.uint8]) -> NDArray[np.int8]:
        """Admit every request that fits alone; those that do not fit together are ignored."""
        flags = mask[1::2].astype(np.int8)
        flags[config.queue_window :] = 0
        return flags

    def idle(self, config: ActionConfig) -> NDArray[np.int8]:
        """Set no flag."""
        return np.zeros(config.queue_window + config.active_window, np.int8)
