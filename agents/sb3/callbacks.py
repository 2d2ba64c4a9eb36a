"""Callbacks of training: metrics of episodes for TensorBoard, curriculum, and what a run does between rollouts.

Between rollouts model, optimiser and counters are consistent. At a milestone the agent is evaluated and a checkpoint is
saved; then all random generators are seeded again from the run's seed and the step, and new episodes begin. A resumed
run does the same, and so continues exactly like an uninterrupted run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from kvgym.agents.runs.evaluation import SHOWN
from kvgym.agents.sb3.config import TrainConfig
from kvgym.errors import ConfigError

try:
    from stable_baselines3.common.callbacks import BaseCallback
except ImportError as error:
    raise ConfigError(f'training needs Stable-Baselines3: pip install "kvgym[train]" ({error})') from error

EPISODES = 100
"""Number of latest episodes in the means of training metrics, as in Stable-Baselines3's ``rollout/ep_rew_mean``."""


class MetricsCallback(BaseCallback):
    """Log ``kv/<metric>``: means over the latest finished episodes."""

    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[str, deque[float]] = {name: deque(maxlen=EPISODES) for name in SHOWN}

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "kv/evictions" in info:
                for name, values in self._latest.items():
                    values.append(info[f"kv/{name}"])
        return True

    def _on_rollout_end(self) -> None:
        for name, values in self._latest.items():
            if values and not np.isnan(list(values)).all():
                self.logger.record(f"kv/{name}", float(np.nanmean(list(values))))


class CurriculumCallback(BaseCallback):
    """Set the range of load by the configuration's curriculum."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self._config = config
        self._current: tuple[float, float] | None = None

    def apply(self, steps: int) -> None:
        """Set the range for episodes that begin after ``steps`` environment steps."""
        load = self._config.load_at(min(steps / self._config.total_steps, 1.0))
        if load is not None and load != self._current:
            self.training_env.set_attr("load", load)
            self._current = load

    def _on_rollout_start(self) -> None:
        self.apply(self.num_timesteps)
        if self._current is not None:
            self.logger.record("kv/load_high", self._current[1])

    def _on_step(self) -> bool:
        return True


class BetweenRollouts(BaseCallback):
    """Call a function between rollouts, with the steps done.

    Args:
        between: the function.
    """

    def __init__(self, between: Callable[[int], None]) -> None:
        super().__init__()
        self._between = between

    def _on_rollout_start(self) -> None:
        self._between(self.num_timesteps)

    def _on_step(self) -> bool:
        return True


def fresh_start(model: Any, seed: int, steps: int) -> None:
    """Seed all generators from the run's seed and the step, and begin new episodes."""
    sequence = np.random.SeedSequence([seed, steps])
    model.set_random_seed(int(sequence.generate_state(1)[0] >> 1))
    model._last_obs = model.env.reset()
    model._last_episode_starts = np.ones((model.env.num_envs,), dtype=bool)
    normaliser = model.get_vec_normalize_env()
    if normaliser is not None:
        model._last_original_obs = normaliser.get_original_obs()
