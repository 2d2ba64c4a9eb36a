"""Baselines on the requests of an agent's evaluations, for reference lines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvgym.agents.runs.config import TrainConfig
from kvgym.envs.scheduling.drawing import at_load
from kvgym.errors import KVGymError
from kvgym.experiments.comparison import label_of
from kvgym.metrics import check_targets, compute_metrics, metric_names
from kvgym.policy import make_policy
from kvgym.runner import check_needs, simulate


def baseline_metrics(config: TrainConfig) -> dict[str, dict[str, float]]:
    """Return the means of all metrics of each baseline over the evaluation's requests, by label; NaN where it failed.

    Args:
        config: the training configuration; ``evaluation.baselines`` names the policies.

    Raises:
        KVGymError: a baseline is unknown, or lacks what it needs to know; or the metric counts requests within SLOs and
            there are none.
    """
    evaluation, env = config.evaluation, config.evaluation_config()
    scenario = env.make_scenario()
    workload = scenario.make_workload()
    seeds = evaluation.workload_seeds
    tables = [at_load(workload.sample(seed), env.load, seed) for seed in seeds]
    for table in tables:
        check_targets([evaluation.metric], table)
    # The horizon of the agent's episodes, but not their limit of steps without a token: it is for idle agents.
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
