"""``admit_count``: the number of requests to admit; Discrete(Q + 1).

Admit the first k requests of the queue window if they fit together, otherwise none; then run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.envs.scheduling.actions.composing import add_admission, idling_masked, number_fitting, settle
from kvgym.envs.scheduling.actions.expressing import (
    EVICTION,
    IDLING,
    ORDER,
    OUTSIDE,
    REQUEST_ID,
    UNFIT,
    in_full,
    overflow_evicts,
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
from kvgym.simulator.tables import UNKNOWN


@mask_kernel
def write_mask(where: Any, mask: Any) -> None:
    """Allow the numbers of requests that fit together; not 0 if ``must_admit`` excludes it."""
    e = open_environment(where)
    fitting = number_fitting(e)
    for k in range(e.settings.queue_window + 1):
        mask[k] = 1 if k <= fitting else 0
    if idling_masked(e):
        mask[0] = 0


@apply_kernel
def apply(where: Any, action: Any) -> int:
    """Admit the first requests of the window, or none if they do not all fit."""
    e = open_environment(where)
    count = int(action[0])
    if count == 0 and idling_masked(e):
        e.episode.num_ignored += 1
    elif 0 <= count <= number_fitting(e):
        for _ in range(count):
            add_admission(e, 0)
    else:
        e.episode.num_ignored += 1
    settle(e)
    return COMPLETE


@encode_kernel
def encode(where: Any, decision: PolicyDecision, done: int, action: Any, report: Any) -> int:
    """Write the number of admissions, if these are the first of the window and evictions follow the overflow rule."""
    e = open_environment(where)
    d = decision.record
    reason = in_full(e, decision)
    if reason != 0:
        return reason
    for j in range(d.num_admit):
        report[REQUEST_ID] = decision.admit[j]
        if j >= e.episode.num_window:
            return OUTSIDE
        if e.window[j] != decision.admit[j]:
            return OUTSIDE if position_in_window(e, decision.admit[j]) == UNKNOWN else ORDER
    if d.num_admit > number_fitting(e):
        return UNFIT if d.num_evict == 0 else EVICTION
    if not overflow_evicts(e, decision):
        return EVICTION
    if d.num_admit == 0 and idling_masked(e):
        return IDLING
    action[0] = d.num_admit
    return COMPLETE


class AdmitCount(ActionKind):
    """How many requests to admit from the front of the queue window."""

    name = "admit_count"
    defaults = {**CHOOSING_DEFAULTS, "must_admit": True}  # noqa: RUF012
    forces_admission = True
    write_mask = write_mask
    apply = apply
    encode = encode

    def space(self, config: ActionConfig) -> spaces.Discrete:
        """Return Discrete(Q + 1)."""
        return spaces.Discrete(self.mask_size(config))

    def parts(self, config: ActionConfig) -> tuple[ActionPart, ...]:
        """Return the meaning of the number."""
        most = config.queue_window
        meaning = (
            "number of requests to admit from the front of the queue window; none if they do not fit together"
        )
        return (ActionPart(f"0 … {most}", meaning, "requests", 0, most),)

    def mask_size(self, config: ActionConfig) -> int:
        """Return Q + 1."""
        return config.queue_window + 1

    def greedy(self, config: ActionConfig, mask: NDArray[np.uint8]) -> int:
        """Admit as many as fit."""
        return int(np.flatnonzero(mask)[-1])

    def idle(self, config: ActionConfig) -> int:
        """Admit nothing."""
        return 0
