"""Periodic evaluation during training: the agent and baselines on the same requests every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from pydantic import Field, field_validator

from kvgym.agents.runs.config import Part, TrainingConfig, known_metric
from kvgym.agents.runs.limits import MAX_STEPS
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.envs.playing import Player
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.drawing import at_load
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.errors import ConfigError, KVGymError, shown
from kvgym.experiments.comparison import label_of
from kvgym.metrics.attainment import check_targets
from kvgym.metrics.catalogue import metric_names
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import check_needs, simulate
from kvgym.utils.checks import MAX_SEEDS

SHOWN = (
    "e2e_latency_mean",
    "ttft_mean",
    "tbt_p99",
    "goodput",
    "slo_attainment",
    "evictions",
    "kv_utilisation",
    "unfinished",
)
"""Metrics of episodes and evaluations in TensorBoard, in addition to the configured one."""


class EvaluationConfig(Part):
    """Periodic evaluation, greedy and masked, always on the same requests.

    Attributes:
        interval: environment steps, or updates of ``reinforce``, between evaluations; a checkpoint follows each.
        seeds: number of workloads.
        first_seed: seed of the first; ``kvgym evaluate`` and ``kvgym compare`` use other seeds by default.
        metric: reported metric, see :mod:`kvgym.metrics`.
        select: criterion for the best agent: ``"metric"``, or ``"return"``, the mean return (with ``reward_reference``
            the relative improvement over it, in which light and heavy load weigh the same).
        env: changes of the environment arguments.
        baselines: policies to report on the same requests.
    """

    interval: int = Field(default=100_000, ge=1, le=MAX_STEPS)
    seeds: int = Field(default=8, ge=1, le=MAX_SEEDS)
    first_seed: int = Field(default=1_000_000, ge=0, le=2**63)
    metric: str = "e2e_latency_mean"
    select: Literal["metric", "return"] = "metric"
    env: dict[str, Any] = Field(default_factory=dict)
    baselines: tuple[str, ...] = ()

    @property
    def workload_seeds(self) -> range:
        """Seeds of the workloads."""
        return range(self.first_seed, self.first_seed + self.seeds)

    @field_validator("metric")
    @classmethod
    def _known(cls, value: str) -> str:
        return known_metric(value)


class EvaluatedConfig(TrainingConfig):
    """Fields of all configurations of training in environments.

    Attributes:
        env: environment arguments, see :class:`~kvgym.envs.scheduling.config.EnvConfig`.
        evaluation: periodic evaluation.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    """Environment arguments where ``env`` has no others."""

    env: dict[str, Any] = Field(default_factory=dict)
    evaluation: EvaluationConfig = EvaluationConfig()

    @property
    def interval(self) -> int:
        """Environment steps or updates between two evaluations."""
        return self.evaluation.interval

    @property
    def figure(self) -> str:
        """The evaluation metric."""
        return self.evaluation.metric

    def env_config(self, **changes: Any) -> EnvConfig:
        """Return the configuration of the environments, with changed arguments."""
        return EnvConfig.of(**{**self.DEFAULTS, **self.env, **changes})

    def evaluation_config(self) -> EnvConfig:
        """Return the environment configuration of evaluations."""
        return self.env_config(**self.evaluation.env)

    def check_evaluation(self, trained: EnvConfig, *fixed: str) -> None:
        """Check that an agent can act in the environments of evaluations.

        Args:
            trained: configuration of the training's environments.
            *fixed: further arguments that must be the same.

        Raises:
            ConfigError: ``evaluation.env`` changes what the agent observes or does.
        """
        measured = self.evaluation_config()
        for name in ("action", "observation", "queue_window", "active_window", *fixed):
            if getattr(measured, name) != getattr(trained, name):
                raise ConfigError(
                    f"training {shown(self.name)}: evaluation.env cannot change {name} "
                    f"({shown(getattr(trained, name))}): the agent would not fit"
                )


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
        act = Player(model)
        while running.any():
            actions = act(observations, self.envs.action_masks())
            observations, rewards, terminated, truncated, info = self.envs.step(actions)
            returns += np.where(running, rewards, 0.0)
            lengths += running
            ended = (terminated | truncated) & running
            if ended.any():
                metrics[ended] = info["final_info"]["metrics"][ended]
                running &= ~ended
        found = {name: metrics[:, k] for k, name in enumerate(self.metric_names)}
        return {"return": returns, "length": lengths, **found}


def baseline_metrics(evaluation: EvaluationConfig, env: EnvConfig) -> dict[str, dict[str, float]]:
    """Return the mean of each metric over the evaluation's requests, by label of the baseline; NaN if it failed.

    Args:
        evaluation: names the policies, and the seeds of the requests.
        env: configuration of the environments.

    Raises:
        KVGymError: a baseline is unknown or lacks information; or the metric needs SLOs and there are none.
    """
    scenario = env.make_scenario()
    workload = scenario.make_workload()
    seeds = evaluation.workload_seeds
    capacity = scenario.make_system().usable_capacity
    tables = [at_load(scenario.requests(workload, seed, capacity), env.load, seed) for seed in seeds]
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
