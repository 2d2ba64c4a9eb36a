"""``knobs``: settings of a rule that runs for the next ``hold`` iterations; MultiDiscrete.

The settings are protection margin, admission cap, token budget and quantum. The rule runs decodes first, then prefill
chunks within the budget, then admits in the order of the window. If the first request of the window does not fit, a
quantum lets the rule evict an active request to make room for it. The rule chooses the one with the most output
tokens, among those that would free enough memory. It must have generated at least the quantum, and at least twice the
most that the first request of the window ever had. This is least attained service; doubling bounds the work lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.compiling.places import places
from kvgym.envs.scheduling.actions.composing import (
    add_admission,
    add_eviction,
    can_admit,
    must_admit,
    settle,
    settle_overflow,
    use_of,
)
from kvgym.envs.scheduling.actions.kind import (
    COMPLETE,
    ActionConfig,
    ActionKind,
    ActionPart,
    apply_kernel,
    mask_kernel,
)
from kvgym.envs.scheduling.opening import open_environment
from kvgym.envs.scheduling.tables import MARKED, Env
from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.kernels import stays, view_of
from kvgym.simulator.apply_decision import shared_by
from kvgym.simulator.kernels.future_memory import first_use
from kvgym.simulator.tables import UNKNOWN

PROTECTION_LEVELS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
"""Levels of the first knob: protected fraction of memory."""

ADMISSION_CAPS = (0, 1, 2, 4, 8, 16, 64, 2**31 - 1)
"""Levels of the second knob: maximum admissions per iteration."""

TOKEN_BUDGETS = (64, 128, 192, 256, 320, 384, 448, 512, 1024, 2**31 - 1)
"""Levels of the third knob: tokens per iteration; decodes come first, prefill chunks get the rest."""

QUANTA = (2**31 - 1, 1024, 512, 256, 128)
"""Levels of the fourth knob: output tokens from which a request may be evicted; the first means never."""

LEVELS = {
    "protection": PROTECTION_LEVELS,
    "cap": ADMISSION_CAPS,
    "budget": TOKEN_BUDGETS,
    "quantum": QUANTA,
}
"""Levels of each knob, in the order of the action."""
KNOB = places(LEVELS)

_PROTECTION = np.array(PROTECTION_LEVELS)
_CAPS = np.array(ADMISSION_CAPS, np.int64)
_BUDGETS = np.array(TOKEN_BUDGETS, np.int64)
_QUANTA = np.array(QUANTA, np.int64)
_NUM_LEVELS = tuple(len(levels) for levels in LEVELS.values())


def knob_levels() -> tuple[int, ...]:
    """Return the number of levels of each knob."""
    return _NUM_LEVELS


@jit_inline
def allowed(e: Env, knob: int, level: int) -> int:
    """Return 1 if a level of a knob is allowed, else 0."""
    return (int(e.settings.options[knob]) >> level) & 1


@mask_kernel
def write_mask(where: Any, mask: Any) -> None:
    """Mask the levels that are not allowed, and a cap of 0 if it would leave the worker idle."""
    e = open_environment(where)
    at = 0
    for j, levels in enumerate(_NUM_LEVELS):
        for k in range(levels):
            mask[at + k] = allowed(e, j, k)
        at += levels
    if must_admit(e):
        mask[_NUM_LEVELS[KNOB.protection]] = 0


@jit
def evict_longest(e: Env, limit: int, quantum: int) -> int:
    """Evict the active request with the most output tokens to admit the first of the window, if the quantum allows it.

    The eviction must free enough memory. Otherwise the evicted request would be admitted again at once, and its work
    would be lost. Return the tokens that it would have processed in the next iteration.
    """
    if e.episode.num_window == 0:
        return 0
    first = e.run.requests[e.window[0]]
    if can_admit(e, e.window[0]) and (
        e.episode.need + use_of(e, e.window[0]) <= limit or e.episode.need == 0
    ):
        return 0
    longest = UNKNOWN
    most = max(np.int64(quantum), 2 * np.int64(first.num_delivered_tokens))
    for k in range(e.run.w.num_active):
        slot = e.run.active[k]
        if slot.num_output_tokens < most:
            continue
        left = e.episode.need - first_use(e.run.problem, slot) + shared_by(e.run, slot.request_id, True)
        if left == 0 or left + use_of(e, e.window[0]) <= limit:
            longest, most = k, np.int64(slot.num_output_tokens) + 1
        stays(view_of(e.run, None, None), slot)
    if longest == UNKNOWN:
        return 0
    tokens = e.run.active[longest].planned
    add_eviction(e, longest)
    return tokens


@apply_kernel
def apply(where: Any, action: Any) -> int:
    """Apply the rule with these knobs for one iteration."""
    e = open_environment(where)
    run, d = e.run, e.run.decision
    if e.episode.held == 0:
        if action[KNOB.cap] == 0 and must_admit(e):
            e.episode.num_ignored += 1
        e.episode.valid = 1
        for j in range(len(KNOB)):
            if not 0 <= action[j] < 63 or allowed(e, j, int(action[j])) == 0:
                e.episode.valid = 0
    if e.episode.valid == 0:  # admit nothing and run the active requests
        e.episode.num_ignored += 1
        settle(e)
        return COMPLETE
    limit = int(run.problem.kv_capacity * (1.0 - _PROTECTION[int(action[KNOB.protection])]))
    cap, budget = _CAPS[int(action[KNOB.cap])], _BUDGETS[int(action[KNOB.budget])]
    settle_overflow(e)
    overflowed = d.num_evict > 0
    d.explicit = 1
    if run.w.num_prefilling == 0 and not overflowed:  # the usual case: all decode
        for k in range(run.w.num_active):
            run.active[k].planned = 1
        budget -= run.w.num_active
    else:
        for k in range(run.w.num_active):  # decodes first
            slot = run.active[k]
            if slot.num_prefill_left == 0 and slot.planned != MARKED:
                slot.planned = 1
                budget -= 1
        for k in range(run.w.num_active):
            slot = run.active[k]
            if slot.num_prefill_left > 0 and slot.planned != MARKED:
                slot.planned = min(max(budget, 0), slot.num_prefill_left)
                budget -= slot.planned
    if action[KNOB.quantum] > 0 and cap > 0 and budget > 0 and not overflowed:
        budget += evict_longest(e, limit, _QUANTA[int(action[KNOB.quantum])])
    while e.episode.num_window > 0 and d.num_admit < cap and budget > 0 and not overflowed:
        r = run.requests[e.window[0]]
        beyond = e.episode.need + use_of(e, e.window[0]) > limit
        if not can_admit(e, e.window[0]) or (beyond and e.episode.need > 0):
            break  # an empty worker admits the first despite the margin, so that it does not wait for ever
        tokens = min(budget, max(r.num_prefill_left, 1))
        run.admit_tokens[d.num_admit] = tokens
        budget -= tokens
        add_admission(e, 0)
    settle(e)
    return COMPLETE


class Knobs(ActionKind):
    """Protection margin, admission cap, token budget and quantum of a rule for the next iterations."""

    name = "knobs"
    own_options = ("knobs",)
    holds = True
    plans = True
    write_mask = write_mask
    apply = apply

    def space(self, config: ActionConfig) -> spaces.MultiDiscrete:
        """Return MultiDiscrete of the numbers of levels."""
        return spaces.MultiDiscrete(list(knob_levels()))

    def parts(self, config: ActionConfig) -> tuple[ActionPart, ...]:
        """Return the meaning and the levels of each knob."""
        explained = {
            "protection": ("memory kept free of new requests", "share of memory"),
            "cap": ("maximum admissions per iteration", "requests"),
            "budget": ("maximum tokens per iteration, decodes first", "tokens"),
            "quantum": ("output from which a request may be evicted for another", "tokens"),
        }
        listed = {
            name: ", ".join("no limit" if level == 2**31 - 1 else f"{level:,}" for level in levels)
            for name, levels in LEVELS.items()
        }
        return tuple(
            ActionPart(
                f"{k}",
                f"{name}, {explained[name][0]}: {listed[name]}",
                f"level of {explained[name][1]}",
                0,
                count - 1,
            )
            for k, (name, count) in enumerate(zip(LEVELS, knob_levels(), strict=True))
        )

    def mask_size(self, config: ActionConfig) -> int:
        """Return the sum of the numbers of levels."""
        return sum(knob_levels())

    def check(self, config: ActionConfig) -> None:
        """Check the allowed levels.

        Raises:
            ConfigError: a knob or a level is unknown, the only cap is 0, or an option of another kind is given.
        """
        super().check(config)
        for name, levels in config.knobs.items():
            if name not in LEVELS:
                raise UnknownNameError("knob", name, LEVELS)
            count = len(LEVELS[name])
            if not levels or not all(0 <= level < count for level in levels):
                raise ConfigError(
                    f"knobs: {name} = {shown(list(levels))}; expected levels from 0 to {count - 1}"
                )
        if set(config.knobs.get("cap", (1,))) == {0}:
            raise ConfigError("knobs: cap = [0] never admits a request; allow another level")

    def options(self, config: ActionConfig) -> tuple[float, ...]:
        """Return a number for each knob; its bit k is 1 if level k is allowed."""
        return tuple(
            float(sum(1 << level for level in set(config.knobs.get(name, range(len(levels))))))
            for name, levels in LEVELS.items()
        )

    def greedy(self, config: ActionConfig, mask: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Choose the lowest protection, the highest cap and budget, and no quantum, if allowed."""
        knobs = [np.flatnonzero(part) for part in np.split(mask, np.cumsum(knob_levels())[:-1])]
        return np.array(
            [knobs[KNOB.protection][0], knobs[KNOB.cap][-1], knobs[KNOB.budget][-1], knobs[KNOB.quantum][0]],
            np.int64,
        )

    def idle(self, config: ActionConfig) -> Any:
        """Fail, because the rule decides at every iteration.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("knobs set a rule, which has no action that admits nothing for one decision")
