"""``rank`` and ``rank_scores``: what the rule of the scheduler ``ranked`` goes by, for the coming ``hold`` iterations.

``rank`` is a Box, float64: the weights of :data:`kvgym.baselines.ranked.weights.WEIGHTS`, in that order, between
their bounds. All scores are renewed when a weight changes.

``rank_scores`` is Box(Q + W) in [-10, 10], float64: what is added to the score of the request at each position of
the queue window, then of the active window (0 = the latest activated), a lower score being better. It belongs to the
request until the next action, wherever that goes; requests in neither window have 0, and a request with anything added,
or no longer added, is scored anew. Whatever changes, all active requests are ranked at that iteration, however many
there are. 0 everywhere is ``ranked`` with the environment's ``weights``.

The rule decides at every iteration, whatever an action spans, and with equal weights, and as much ``information`` as
the scheduler has, the schedule is that of :func:`kvgym.simulate`, bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.baselines.ranked.layout import NUM_WEIGHTS, SCORES
from kvgym.baselines.ranked.scheduler import Ranked, empty_memory, renew
from kvgym.baselines.ranked.weights import WEIGHTS
from kvgym.compiling.kernel import jit_inline
from kvgym.envs.scheduling.actions.kind import (
    COMPLETE,
    ActionConfig,
    ActionKind,
    ActionPart,
    apply_kernel,
    mask_kernel,
)
from kvgym.envs.scheduling.actions.ranking import decide, follow, write_features
from kvgym.envs.scheduling.opening import open_environment, open_rule, open_view
from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.simulator.policy_interface import RuleMemory

MOST_ADDED = 10.0
"""What is added to a score at most, either way: e^10 times the work."""

USUALLY_ADDED = 0.5
"""What a typical change of a score is."""


@mask_kernel
def write_ones(where: Any, mask: Any) -> None:
    """Allow every weight."""
    for k in range(mask.shape[0]):
        mask[k] = 1


@mask_kernel
def write_rows(where: Any, mask: Any) -> None:
    """Mark the positions that hold a request."""
    e = open_environment(where)
    queue = e.settings.queue_window
    for q in range(queue):
        mask[q] = 1 if q < e.episode.num_window else 0
    for a in range(e.settings.active_window):
        mask[queue + a] = 1 if a < e.run.w.num_active else 0


@apply_kernel
def apply_weights(where: Any, action: Any) -> int:
    """Let the rule decide with these weights."""
    e = open_environment(where)
    view, memory = open_view(e), open_rule(where)
    if e.episode.held == 0:
        changed = False
        for k in range(NUM_WEIGHTS):
            if memory.params[k] != action[k]:
                memory.params[k] = action[k]
                changed = True
        if changed:
            renew(view, memory, True)
    decide(e, view, memory)
    return COMPLETE


@jit_inline
def add_to_score(memory: RuleMemory, n: int, i: int, added: float) -> None:
    """Note what is added to the score of a request from now on, and take its score away, to be reckoned anew."""
    memory.reals[SCORES + n + i] = added
    memory.reals[SCORES + i] = math.nan


@apply_kernel
def apply_scores(where: Any, action: Any) -> int:
    """Let the rule decide with this added to the scores; requests that have anything added stand in the profile."""
    e = open_environment(where)
    view, memory = open_view(e), open_rule(where)
    if e.episode.held == 0:
        n, queue, added = view.requests.shape[0], e.settings.queue_window, memory.profile
        changed = added[0] > 0
        for j in range(added[0]):
            add_to_score(memory, n, added[1 + j], 0.0)
        added[0] = 0
        for row in range(queue + e.settings.active_window):
            a = row - queue
            if action[row] == 0.0 or (row < queue and row >= e.episode.num_window):
                continue
            if row >= queue and a >= e.run.w.num_active:
                break
            i = e.window[row] if row < queue else e.run.active[e.run.w.num_active - 1 - a].request_id
            add_to_score(memory, n, i, action[row])
            added[0] += 1
            added[added[0]] = i
        if changed or added[0] > 0:
            renew(view, memory, False)
    decide(e, view, memory)
    return COMPLETE


class _Ranking(ActionKind):
    """What both kinds share: the rule, its memory, and what it shows."""

    holds = True
    plans = True
    at_boundary = follow
    write_features = write_features

    def _weights(self, config: ActionConfig) -> tuple[float, ...]:
        """Return the weights that an episode begins with."""
        given: dict[str, Any] = dict(config.weights)
        return Ranked(**given).values

    def rule_memory(self, config: ActionConfig, num_requests: int, slots: int) -> RuleMemory:
        """Return the memory of ``ranked`` before it has seen anything."""
        memory = empty_memory(np.array([*self._weights(config), 0.0]), num_requests)
        rows = config.queue_window + config.active_window
        return memory._replace(profile=np.zeros(1 + rows, np.int32))

    def idle(self, config: ActionConfig) -> Any:
        """There is none: a rule decides at every iteration.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{self.name} steers a rule, which cannot be told to admit nobody for one decision")


class Rank(_Ranking):
    """Weights of the rule of ``ranked`` for the coming iterations."""

    name = "rank"
    defaults = {"queue_order": "rank", "features": ("rank",)}  # noqa: RUF012
    write_mask = write_ones
    apply = apply_weights

    def space(self, config: ActionConfig) -> spaces.Box:
        """Return the Box of the weights between their bounds, float64 (number of weights,)."""
        low, high = (np.array([getattr(w, end) for w in WEIGHTS]) for end in ("low", "high"))
        return spaces.Box(low, high, dtype=np.float64)

    def parts(self, config: ActionConfig) -> tuple[ActionPart, ...]:
        """Return what each weight does."""
        return tuple(
            ActionPart(f"{k}", f"{w.name}: {w.meaning}.", "–", w.low, w.high) for k, w in enumerate(WEIGHTS)
        )

    def mask_size(self, config: ActionConfig) -> int:
        """Return the number of weights; all can be set at any time."""
        return len(WEIGHTS)

    def usual(self, config: ActionConfig) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the default weights, and their steps."""
        return np.array([w.default for w in WEIGHTS]), np.array([w.step for w in WEIGHTS])

    def greedy(self, config: ActionConfig, mask: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return the default weights of ``ranked``."""
        return self.usual(config)[0]


class RankScores(_Ranking):
    """What is added to the scores of the requests of both windows, for the coming iterations."""

    name = "rank_scores"
    defaults = {"queue_order": "rank", "features": ("rank",), "hold": 1}  # noqa: RUF012
    write_mask = write_rows
    apply = apply_scores

    def check(self, config: ActionConfig) -> None:
        """Check the weights.

        Raises:
            ConfigError: one that the rule does not have, or out of its range; or knobs.
        """
        if config.knobs:
            raise ConfigError(f"knobs go with action 'knobs', not with {shown(self.name)}")
        names = [w.name for w in WEIGHTS]
        for name in config.weights:
            if name not in names:
                raise UnknownNameError("weight", name, names)
        self._weights(config)

    def space(self, config: ActionConfig) -> spaces.Box:
        """Return Box(Q + W) in [-10, 10], float64."""
        return spaces.Box(-MOST_ADDED, MOST_ADDED, (config.queue_window + config.active_window,), np.float64)

    def parts(self, config: ActionConfig) -> tuple[ActionPart, ...]:
        """Return what is added to whom."""
        queue, size = config.queue_window, config.queue_window + config.active_window
        added, unit = "added to the score of the request at this position of the", "logarithm of work"
        return (
            ActionPart(
                f"0 … {queue - 1}",
                f"{added} queue window; the least score is first",
                unit,
                -MOST_ADDED,
                MOST_ADDED,
            ),
            ActionPart(
                f"{queue} … {size - 1}", f"{added} active window, latest first", unit, -MOST_ADDED, MOST_ADDED
            ),
        )

    def mask_size(self, config: ActionConfig) -> int:
        """Return Q + W, a place per row."""
        return config.queue_window + config.active_window

    def usual(self, config: ActionConfig) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return that nothing is added, and that half an e-fold of work is a typical change."""
        rows = config.queue_window + config.active_window
        return np.zeros(rows), np.full(rows, USUALLY_ADDED)

    def greedy(self, config: ActionConfig, mask: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Add nothing: ``ranked`` itself."""
        return self.usual(config)[0]
