"""Tasks as Gymnasium environments."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from kvgym.errors import ConfigError, shown
from kvgym.studies.benchmark.tasks import SUITE, load_suite, scenario_file
from kvgym.utils.arguments import explained


@explained
def make_task(
    name: str,
    num_envs: int | None = None,
    *,
    id: str | None = None,  # noqa: A002
    suite: str = SUITE,
    traces: str | Path | None = None,
    **arguments: Any,
) -> Any:
    """Return a task of the benchmark as an environment for training.

    ``env.reset(options={"workload_seed": s})`` with s below 1,000,000 plays the training seed s, from 1,000,000 a
    validation seed; test seeds (from 3,000,000) are for ``kvgym benchmark`` alone. Without this option, workload seeds
    are drawn below 2³¹. Environments measure whole runs, so tasks with a warm-up are
    trained on whole runs too. The scalar environment's ``spec.reward_threshold`` is minus the mean latency of the
    reference if the task measures the mean latency; it holds for the default reward.

    Args:
        name: of the task, see ``kvgym list tasks``.
        num_envs: None = a scalar environment, else a vector environment of this size.
        id: another environment id than the task's; any that schedules or routes as the task demands.
        suite: name of the suite.
        traces: folder of files that are not shipped.
        **arguments: of the environment, ``observation="dict"``.

    Raises:
        ConfigError: ``scenario`` is given, a file is missing, the task is not the frozen one, or has no environment.
        UnknownNameError: there is no such task.
    """
    task = load_suite(suite).task(name)
    task.check(suite)
    if "scenario" in arguments:
        raise ConfigError(f"make_task({shown(name)}): the task sets the scenario; leave scenario out")
    if not task.environment:
        raise ConfigError(
            f"task {name} has no environment: none schedules all workers of a cluster; train on another task and "
            "score the policy with kvgym benchmark"
        )
    made = task.scenario(suite, traces)
    given: dict[str, Any] = {"scenario": str(scenario_file(suite, name))}
    if task.needs is not None:
        given["workload"] = made.workload
    if task.role == "router":
        given["policy"] = made.policies[0]
    predictions = made.make_workload().spec.predictions
    if predictions is not None and predictions.kind == "none":
        given["information"] = ()
    given |= arguments
    chosen = id or task.environment
    if num_envs is not None:
        return gym.make_vec(chosen, num_envs, vectorization_mode="vector_entry_point", **given)
    spec = copy.deepcopy(gym.spec(chosen))
    if task.metric == "e2e_latency_mean" and task.reference_values:
        spec.reward_threshold = -float(np.mean(task.reference_values))
    return gym.make(spec, **given)
