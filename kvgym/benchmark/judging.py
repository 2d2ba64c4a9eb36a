"""Verdicts on validation seeds, for programs that write schedulers and for choosing an agent, as JSON.

A process with limits runs the entry. Its code can do anything that this user can: the limits end runs, they are no
sandbox.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.errors import ConfigError, KVGymError, shown
from kvgym.utils.arguments import explained

DEFAULT_TASK = "hidden-kinds"
MIB = 2**20


@explained
def judge(
    entry: str | Path,
    *,
    tasks: tuple[str, ...] = (DEFAULT_TASK,),
    seeds: int = 3,
    seconds: float = 60.0,
    memory_mib: int = 4096,
) -> dict[str, Any]:
    """Run a policy or router on validation seeds of tasks, in a process with limits.

    Args:
        entry: a Python file that defines one class derived from :class:`kvgym.Policy` or :class:`kvgym.Router`; or what
            :func:`kvgym.benchmark.entries.load_entry` takes: a name, ``"module:Class"`` or the folder of an agent.
        tasks: names of tasks.
        seeds: number of validation seeds of each task.
        seconds: time limit of the process.
        memory_mib: limit of its address space, MiB; not on Windows.

    Returns:
        JSON-able: ``score``, the mean over tasks and seeds, null without any run; ``tasks``, each with ``scores`` by
        seed (-1 = failed), ``value`` and ``plain``, the mean metric of the entry (null if a run failed) and of the
        plain rule, ``failures`` by seed and ``seconds``; ``failure`` of the whole entry, or ""; ``seconds`` of all.

    Raises:
        ConfigError: no such file.
    """
    spec = str(entry)
    if spec.endswith(".py") and not Path(spec).is_file():
        raise ConfigError(f"no file {shown(spec)} with a policy to judge")
    started = time.perf_counter()
    request = json.dumps({"entry": spec, "tasks": tasks, "seeds": seeds, "memory_mib": memory_mib})
    process = subprocess.Popen(
        [sys.executable, "-m", "kvgym.benchmark.judging", request],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    failure = ""
    try:
        out, error = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, error = process.communicate()
        failure = f"it took more than {seconds:g} s"
    found: dict[str, Any] = {"score": None, "tasks": {}, "failure": failure}
    for line in out.splitlines():
        if line.startswith(_MARK):
            name, value = json.loads(line.removeprefix(_MARK))
            if name:
                found["tasks"][name] = value
            else:
                found["failure"] = value
    if process.returncode and not found["failure"]:
        last = error.strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
        found["failure"] = f"its process ended: {last[0][:200]}"
    scores = [score for task in found["tasks"].values() for score in task["scores"]]
    if scores:
        found["score"] = float(np.mean(scores))
    return {**found, "seconds": round(time.perf_counter() - started, 3)}


_MARK = "kvgym-verdict "


def _say(name: str, value: Any) -> None:
    print(_MARK + json.dumps([name, value]), file=sys.__stdout__, flush=True)


def main(request: dict[str, Any]) -> None:
    """Judge an entry in this process; print a line per task."""
    if sys.platform != "win32":
        import resource

        limit = request["memory_mib"] * MIB
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        make = _maker_of(request["entry"])
        for name in request["tasks"]:
            _say(name, _judged(make(), name, request["seeds"]))
    except MemoryError:
        _say("", f"it needs more than {request['memory_mib']} MiB of memory")
    except KVGymError as error:
        _say("", str(error))


def _maker_of(entry: str) -> Callable[[], Any]:
    """Return what makes the policy or router of an entry."""
    if not entry.endswith(".py"):
        from kvgym.benchmark.entries import load_entry

        return lambda: load_entry(entry).made
    from kvgym.utils.hyperparameters import construct

    cls = _class_in(Path(entry))
    return lambda: construct(cls, {}, cls.__name__)


def _class_in(path: Path) -> type[Any]:
    """Return the policy or router class that a file defines."""
    from kvgym.policy import Policy
    from kvgym.routing import Router

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{path.name} cannot be imported: {type(error).__name__}: {error}") from error
    classes = [
        each
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, Policy | Router) and each.__module__ == path.stem
    ]
    if len(classes) != 1:
        raise ConfigError(
            f"{path.name} defines {len(classes)} classes derived from kvgym.Policy or kvgym.Router; expected one"
        )
    return classes[0]


def _judged(made: Any, name: str, seeds: int) -> dict[str, Any]:
    """Return scores, values, failures and seconds of a policy or router on a task."""
    from kvgym.benchmark.running import value_of
    from kvgym.benchmark.scoring import scores_of
    from kvgym.benchmark.tasks import FIRST_VALIDATION, SUITE, load_suite
    from kvgym.experiments.runs import Player, Run
    from kvgym.routing import Router

    task = load_suite().task(name)
    scenario = task.scenario(SUITE)
    if (task.role == "router") != isinstance(made, Router):
        raise ConfigError(f"task {name} is for a {task.role}, and {made.info.name} is none")
    player = Player()
    plain: list[float] = []
    values: list[float] = []
    failures: dict[str, str] = {}
    started = time.perf_counter()
    for seed in range(FIRST_VALIDATION, FIRST_VALIDATION + seeds):
        for entry in (task.plain, made):
            router = task.role == "router"
            policy = scenario.policies[0] if router else entry
            (played,) = player([Run(scenario, policy, entry if router else None, seed, "file")])
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


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
