"""Verdicts on validation seeds, for programs that write schedulers and for choosing an agent, as JSON.

A process with limits runs the entry and answers questions about single decisions; this process simulates, so that
scores come from records of its own (:mod:`kvgym.studies.benchmark.remote`). Code of the entry can still do anything
that this user can: the process is no sandbox.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvgym.errors import ConfigError, shown
from kvgym.studies.benchmark.process import LostError, Process
from kvgym.utils.arguments import explained
from kvgym.utils.checks import check_seed, whole_number

if TYPE_CHECKING:
    from kvgym.studies.benchmark.tasks import Task

DEFAULT_TASK = "hidden-kinds"

FIRST_SEED = 1_000_000
"""The first validation seed."""


@explained
def judge(
    entry: str | Path,
    *,
    tasks: tuple[str, ...] = (DEFAULT_TASK,),
    seeds: int = 3,
    first_seed: int = FIRST_SEED,
    seconds: float = 60.0,
    memory_mib: int = 4096,
) -> dict[str, Any]:
    """Score a policy or router that runs in a process of its own, with limits, on validation seeds of tasks.

    Args:
        entry: a Python file that defines one class derived from :class:`kvgym.Policy` or :class:`kvgym.Router`; or what
            :func:`kvgym.studies.benchmark.entries.load_entry` takes: a name, ``"module:Class"`` or the folder of an
            agent.
        tasks: names of tasks.
        seeds: number of seeds of each task.
        first_seed: the first of them; a candidate that does not know it cannot sample the requests itself.
        seconds: time limit, from when this process has loaded its simulator.
        memory_mib: limit of the address space of its process, MiB.

    Returns:
        JSON-able: ``score``, the mean over tasks and seeds, null if the whole entry failed; ``clairvoyant``, whether it
        declares true lengths; ``tasks``, each with ``scores`` by seed (-1 = failed), ``value`` and ``plain``, the mean
        metric of the entry (null if a run failed) and of the plain rule, ``failures`` by seed and ``seconds``;
        ``failure`` of the whole entry, or ""; ``seconds`` of all.

    Raises:
        ConfigError: no such file or task, or a changed one.
    """
    spec = str(entry)
    if spec.endswith(".py") and not Path(spec).is_file():
        raise ConfigError(f"no file {shown(spec)} with a policy to judge")
    whole_number(seeds, "seeds", "a number of seeds from 1 to 1000", most=1000)
    check_seed(first_seed, "first_seed")
    started = time.perf_counter()
    found: dict[str, Any] = {"score": None, "clairvoyant": False, "tasks": {}, "failure": ""}
    process = Process(spec, seconds, memory_mib)
    try:
        from kvgym.simulator.loop import decide, step_worker
        from kvgym.studies.benchmark.remote import (
            remote,  # the simulator: meanwhile the process loads it, too
        )
        from kvgym.studies.benchmark.tasks import SUITE, load_suite

        suite = load_suite()
        chosen = [suite.task(name) for name in tasks]
        for task in chosen:
            task.check(SUITE)
        for entry_point in (step_worker, decide):
            entry_point.compiled  # noqa: B018  # compiled once on a machine, which takes longer than the limit may be
        process.restart_clock()
        made = remote(process)
        found["clairvoyant"] = bool(getattr(made.info, "clairvoyant", False))
        for task in chosen:
            found["tasks"][task.name] = _judged(made, task, range(first_seed, first_seed + seeds))
    except LostError as error:
        found["failure"] = str(error)
    finally:
        process.close()
    scores = [score for task in found["tasks"].values() for score in task["scores"]]
    if scores and not found["failure"]:
        found["score"] = float(np.mean(scores))
    return {**found, "seconds": round(time.perf_counter() - started, 3)}


def _judged(made: Any, task: Task, seeds: range) -> dict[str, Any]:
    """Return scores, values, failures and seconds of a policy or router on a task."""
    from kvgym.experiments.runs import PlannedRun, Player
    from kvgym.policies.routing import Router
    from kvgym.studies.benchmark.running import value_of
    from kvgym.studies.benchmark.scoring import scores_of
    from kvgym.studies.benchmark.tasks import SUITE

    scenario, router = task.scenario(SUITE), task.role == "router"
    if router != isinstance(made, Router):
        raise LostError(f"task {task.name} is for a {task.role}, and {made.info.name} is none")
    player = Player()
    plain: list[float] = []
    values: list[float] = []
    failures: dict[str, str] = {}
    started = time.perf_counter()
    for seed in seeds:
        for entry in (task.plain, made):
            policy = scenario.policies[0] if router else entry
            (played,) = player([PlannedRun(scenario, policy, entry if router else None, seed, "candidate")])
            value, error = value_of(task, played)
            (values if entry is made else plain).append(value)
            if error:
                failures[str(seed)] = error
    distance = float(np.mean(np.subtract(task.plain_values, task.reference_values)))
    scores = scores_of(values, plain, np.asarray(plain) - distance)
    return {
        "scores": [float(score) for score in scores],
        "value": None if failures else task.mean(values),
        "plain": task.mean(plain),
        "failures": failures,
        "seconds": round(time.perf_counter() - started, 3),
    }
