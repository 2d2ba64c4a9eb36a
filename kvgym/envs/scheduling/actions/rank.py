"""``rank`` and ``rank_scores``: steer the scheduler ``ranked`` for the next ``hold`` iterations.

``rank`` is a Box, float64: the weights of :data:`kvgym.baselines.ranked.weights.WEIGHTS`, in that order, between
their bounds. A changed weight recomputes all scores.

``rank_scores`` is Box(Q + W) in [-10, 10], float64: a number added to the score of the request at each position of
the queue window, then of the active window (0 = the latest activated); lower scores are better. It stays with the
request until the next action, even if the request moves; requests in neither window get 0. Requests with a changed
addition are scored again, and any change ranks all active requests at that iteration. Additions of 0 are ``ranked``
with the environment's ``weights``.

The rule decides at every iteration, even if an action spans several. With equal weights and the scheduler's
``information``, the schedule equals the one of :func:`kvgym.simulate`, bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.baselines.ranked.layout import SCORES
from kvgym.baselines.ranked.scheduler import Ranked, empty_memory, renew
from kvgym.baselines.ranked.weights import NUM_WEIGHTS, WEIGHTS
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
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.policies.policy import SystemInfo
from kvgym.simulator.policy_interface import PolicyMemory

MOST_ADDED = 10.0
"""Largest absolute addition to a score: e^10 times the work."""

USUALLY_ADDED = 0.5
"""Typical change of a score."""

# Requests with an addition, in `memory.profile`: their number, then the requests.
NUM_ADDED, ADDED = 0, 1


@mask_kernel
def write_ones(where: Any, mask: Any) -> None:
    """Allow every weight."""
    for k in range(mask.shape[0]):
        mask[k] = 1


@mask_kernel
def write_rows(where: Any, mask: Any) -> None:
    """Allow the positions that hold a request."""
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
def add_to_score(memory: PolicyMemory, n: int, i: int, added: float) -> None:
    """Set the addition to the score of a request, and mark the score for recomputation."""
    memory.reals[SCORES + n + i] = added
    memory.reals[SCORES + i] = math.nan


@apply_kernel
def apply_scores(where: Any, action: Any) -> int:
    """Let the rule decide with these additions; ``memory.profile`` lists the requests that have one."""
    e = open_environment(where)
    view, memory = open_view(e), open_rule(where)
    if e.episode.held == 0:
        n, queue, added = view.requests.shape[0], e.settings.queue_window, memory.profile
        changed = added[NUM_ADDED] > 0
        for j in range(added[NUM_ADDED]):
            add_to_score(memory, n, added[ADDED + j], 0.0)
        added[NUM_ADDED] = 0
        for row in range(queue + e.settings.active_window):
            a = row - queue
            if action[row] == 0.0 or (row < queue and row >= e.episode.num_window):
                continue
            if row >= queue and a >= e.run.w.num_active:
                break
            i = e.window[row] if row < queue else e.run.active[e.run.w.num_active - 1 - a].request_id
            add_to_score(memory, n, i, action[row])
            added[ADDED + added[NUM_ADDED]] = i
            added[NUM_ADDED] += 1
        if changed or added[NUM_ADDED] > 0:
            renew(view, memory, False)
    decide(e, view, memory)
    return COMPLETE


_DEFAULTS = {"queue_order": "rank", "features": ("rank",), "unit_actions": True, "token_scale": "log"}


class _Ranking(ActionKind):
    """Base class of both kinds: the rule, its memory and its features."""

    holds = True
    plans = True
    at_boundary = follow
    write_features = write_features

    def _weights(self, config: ActionConfig) -> tuple[float, ...]:
        """Return the initial weights of an episode."""
        given: dict[str, Any] = dict(config.weights)
        return Ranked(**given).values

    def policy_memory(self, config: ActionConfig, system: SystemInfo) -> PolicyMemory:
        """Return the initial memory of ``ranked``."""
        memory = empty_memory(np.array([*self._weights(config), 0.0]), system.max_requests)
        rows = config.queue_window + config.active_window
        return memory._replace(profile=np.zeros(1 + rows, np.int32))

    def idle(self, config: ActionConfig) -> Any:
        """Fail, because the rule decides at every iteration.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{self.name} steers a rule, which has no action that admits nothing for one decision"
        )


class Rank(_Ranking):
    """Weights of the scheduler ``ranked`` for the next iterations."""

    name = "rank"
    defaults = _DEFAULTS
    write_mask = write_ones
    apply = apply_weights

    def space(self, config: ActionConfig) -> spaces.Box:
        """Return the Box of the weights between their bounds, float64 (number of weights,)."""
        low, high = (np.array([getattr(w, end) for w in WEIGHTS]) for end in ("low", "high"))
        return spaces.Box(low, high, dtype=np.float64)

    def parts(self, config: ActionConfig) -> tuple[ActionPart, ...]:
        """Return the meaning of each weight."""
        return tuple(
            ActionPart(f"{k}", f"{w.name}: {w.meaning}.", "–", w.low, w.high) for k, w in enumerate(WEIGHTS)
        )

    def mask_size(self, config: ActionConfig) -> int:
        """Return the number of weights; all can be set at any time."""
        return len(WEIGHTS)

    def usual(self, config: ActionConfig) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the default weights and their steps."""
        return np.array([w.default for w in WEIGHTS]), np.array([w.step for w in WEIGHTS])

    def greedy(self, config: ActionConfig, mask: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return the default weights of ``ranked``."""
        return self.usual(config)[0]


class RankScores(_Ranking):
    """Additions to the scores that ``ranked`` gives the requests of both windows, for the next iterations."""

    name = "rank_scores"
    own_options = ("weights",)
    defaults = {**_DEFAULTS, "hold": 1}  # noqa: RUF012
    write_mask = write_rows
    apply = apply_scores

    def check(self, config: ActionConfig) -> None:
        """Check the weights.

        Raises:
            ConfigError: a weight is unknown or out of its range, or an option of another kind is given.
        """
        super().check(config)
        names = [w.name for w in WEIGHTS]
        for name in config.weights:
            if name not in names:
                raise UnknownNameError("weight", name, names)
        self._weights(config)

    def space(self, config: ActionConfig) -> spaces.Box:
        """Return Box(Q + W) in [-10, 10], float64."""
        return spaces.Box(-MOST_ADDED, MOST_ADDED, (config.queue_window + config.active_window,), np.float64)

    def parts(self, config: ActionConfig) -> tuple[ActionPart, ...]:
        """Return the meaning of the additions."""
        queue, size = config.queue_window, config.queue_window + config.active_window
        added, unit = "added to the score of the request at this position of the", "logarithm of work"
        return (
            ActionPart(
                f"0 … {queue - 1}",
                f"{added} queue window; the lowest score comes first",
                unit,
                -MOST_ADDED,
                MOST_ADDED,
            ),
            ActionPart(
                f"{queue} … {size - 1}", f"{added} active window, latest first", unit, -MOST_ADDED, MOST_ADDED
            ),
        )

    def mask_size(self, config: ActionConfig) -> int:
        """Return Q + W, one per position."""
        return config.queue_window + config.active_window

    def usual(self, config: ActionConfig) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return zero additions, and half an e-fold of work as the typical change."""
        rows = config.queue_window + config.active_window
        return np.zeros(rows), np.full(rows, USUALLY_ADDED)

    def greedy(self, config: ActionConfig, mask: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Add nothing, which is ``ranked`` itself."""
        return self.usual(config)[0]
