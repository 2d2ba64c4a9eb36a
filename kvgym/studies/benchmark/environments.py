"""Tasks as Gymnasium environments."""

from __future__ import annotations

import copy
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
    **arguments: Any,
) -> Any:
    """Return a task of the benchmark as an environment for training.

    ``env.reset(options={"workload_seed": s})`` with s below 1,000,000 plays the training seed s, from 1,000,000 a
    validation seed; test seeds (from 3,000,000) are for ``kvgym benchmark`` alone. Without this option, workload seeds
    are drawn below 2³¹. Environments measure whole runs, so tasks with a warm-up are
    trained on whole runs too. The scalar environment's ``spec.reward_threshold`` is minus the reference's mean latency
    or cost of a fleet if the task measures that; it holds for the default reward.

    Args:
        name: of the task, see ``kvgym list tasks``.
        num_envs: None = a scalar environment, else a vector environment of this size.
        id: another environment id than the task's; any that schedules or routes as the task demands.
        suite: name of the suite.
        **arguments: of the environment, ``observation="dict"``.

    Raises:
        ConfigError: ``scenario`` is given, the task is not the frozen one, or it has no environment.
        UnknownNameError: there is no such task.
    """
    task = load_suite(suite).task(name)
    task.check(suite)
    if "scenario" in arguments:
        raise ConfigError(f"make_task({shown(name)}): the task sets the scenario; leave scenario out")
    made = task.scenario(suite)
    given: dict[str, Any] = {"scenario": str(scenario_file(suite, name))}
    if task.role == "router":
        given["policy"] = made.policies[0]
    predictions = made.make_workload().spec.predictions
    if task.role != "autoscaler" and predictions is not None and predictions.kind == "none":
        given["information"] = ()
    given |= arguments
    chosen = id or task.environment
    if not chosen:
        raise ConfigError(
            f"task {name} has no environment, as none has what its scenario has (host_memory); enter "
            f"{task.played_by} by name or module:Class"
        )
    if num_envs is not None:
        return gym.make_vec(chosen, num_envs, vectorization_mode="vector_entry_point", **given)
    spec = copy.deepcopy(gym.spec(chosen))
    if task.metric in ("e2e_latency_mean", "fleet_cost") and task.reference_values:
        spec.reward_threshold = -float(np.mean(task.reference_values))
    return gym.make(spec, **given)
