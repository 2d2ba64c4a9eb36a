"""Periodic evaluation during training: the agent and baselines on the same requests every time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from kvgym.agents.sb3.config import TrainConfig
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.attainment import check_targets
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.drawing import at_load
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.errors import KVGymError
from kvgym.experiments.comparison import label_of
from kvgym.metrics import compute_metrics, metric_names
from kvgym.policy import make_policy
from kvgym.runner import check_needs, simulate


class Evaluator:
    """Evaluate agents greedily and masked, always on the same requests.

    Args:
        config: of the environments.
        seeds: of the requests, as in ``kvgym compare``.
    """

    def __init__(self, config: EnvConfig, seeds: Sequence[int]) -> None:
        self.seeds = tuple(seeds)
        self.envs = ServingVectorEnv(
            len(self.seeds), autoreset_mode=AutoresetMode.SAME_STEP, **config.model_dump()
        )
        self.metric_names = self.envs.metric_names

    def play(self, model: NumpyModel) -> dict[str, NDArray[np.float64]]:
        """Return each metric, the undiscounted ``return`` and the ``length`` by seed, float64 (seeds,)."""
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


def baseline_metrics(config: TrainConfig) -> dict[str, dict[str, float]]:
    """Return the mean of each metric over the evaluation's requests, by label of the baseline; NaN if it failed.

    Args:
        config: the training configuration; ``evaluation.baselines`` names the policies.

    Raises:
        KVGymError: a baseline is unknown or lacks information; or the metric needs SLOs and there are none.
    """
    evaluation, env = config.evaluation, config.evaluation_config()
    scenario = env.make_scenario()
    workload = scenario.make_workload()
    seeds = evaluation.workload_seeds
    tables = [at_load(workload.sample(seed), env.load, seed) for seed in seeds]
    for table in tables:
        check_targets([evaluation.metric], table)
    # The horizon of the agent's episodes; their limit of steps without a token is only for idle agents.
    system = replace(env.make_system(scenario, workload, len(tables[0])), stall_limit=None)
    found: dict[str, dict[str, float]] = {}
    for policy in [make_policy(spec) for spec in evaluation.baselines]:
        check_needs(policy, tables[0])
        try:
            runs = [simulate(system, table, policy, seed=s) for table, s in zip(tables, seeds, strict=True)]
        except KVGymError:
            found[label_of(policy)] = dict.fromkeys(metric_names(), float("nan"))
            continue
        metrics = [compute_metrics(run) for run in runs]
        found[label_of(policy)] = {
            name: float(np.mean([m[name] for m in metrics])) for name in metric_names()
        }
    return found
