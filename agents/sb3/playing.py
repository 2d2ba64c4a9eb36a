"""Playing an agent on given requests, many episodes side by side: periodic evaluation during training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv


class Evaluator:
    """Plays agents greedily and masked, on the same requests every time.

    Args:
        config: the environments.
        seeds: seeds of the requests, as in ``kvgym compare``.
    """

    def __init__(self, config: EnvConfig, seeds: Sequence[int]) -> None:
        self.seeds = tuple(seeds)
        self.envs = ServingVectorEnv(
            len(self.seeds), autoreset_mode=AutoresetMode.SAME_STEP, **config.model_dump()
        )
        self.metric_names = self.envs.metric_names

    def play(self, model: NumpyModel) -> dict[str, NDArray[np.float64]]:
        """Return each metric by seed, float64 (seeds,), and of episodes ``return``, undiscounted, and ``length``."""
        observations, _ = self.envs.reset(seed=0, options={"workload_seed": list(self.seeds)})
        count = len(self.seeds)
        metrics = np.full((count, len(self.metric_names)), np.nan)
        returns, lengths, running = np.zeros(count), np.zeros(count), np.ones(count, bool)
        while running.any():
            actions, _ = model.predict(observations, action_masks=self.envs.action_masks())
            observations, rewards, terminated, truncated, info = self.envs.step(actions)
            returns += np.where(running, rewards, 0.0)
            lengths += running
            ended = (terminated | truncated) & running
            if ended.any():
                metrics[ended] = info["final_info"]["metrics"][ended]
                running &= ~ended
        found = {name: metrics[:, k] for k, name in enumerate(self.metric_names)}
        return {"return": returns, "length": lengths, **found}
