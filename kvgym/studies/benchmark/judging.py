"""Verdicts on validation seeds, for programs that write schedulers and for choosing an agent, as JSON.

A process with limits runs the entry and answers questions about single decisions; this process simulates, so that
scores come from records of its own (:mod:`kvgym.studies.benchmark.remote`). Code of the entry can still do anything
that this user can: the process is no sandbox.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvgym.errors import ConfigError, shown
from kvgym.studies.benchmark.process import LostError, Nursery, Process, in_a_line
from kvgym.utils.arguments import explained
from kvgym.utils.checks import check_seed, whole_number

if TYPE_CHECKING:
    from kvgym.studies.benchmark.tasks import Task

DEFAULT_TASK = "hidden-kinds"

FIRST_SEED = 1_000_000
"""The first validation seed."""


class Judge:
    """Scores policies and routers, each in a process of its own with limits, on validation seeds of tasks.

    It keeps what verdicts share: the loaded simulator, the process from which those of candidates are forked, the
    requests, and the values of the plain rules. Use it in a ``with`` statement.

    Args:
        tasks: names of tasks.
        seeds: number of seeds of each task.
        first_seed: the first of them; a candidate that does not know it cannot sample the requests itself.
        seconds: time limit of an entry.
        memory_mib: limit of the address space of its process, MiB.

    Raises:
        ConfigError: no such task, or a changed one.
    """

    @explained
    def __init__(
        self,
        *,
        tasks: tuple[str, ...] = (DEFAULT_TASK,),
        seeds: int = 3,
        first_seed: int = FIRST_SEED,
        seconds: float = 60.0,
        memory_mib: int = 4096,
    ) -> None:
        self._seeds = whole_number(seeds, "seeds", "a number of seeds from 1 to 1000", most=1000)
        check_seed(first_seed, "first_seed")
        self._first_seed, self._seconds, self._memory_mib = first_seed, seconds, memory_mib
        self._plain: dict[tuple[str, int], float] = {}
        self._nursery = Nursery()
        try:  # meanwhile the other process loads the simulator, too
            from kvgym.experiments.runs import Player
            from kvgym.simulator.loop import step_worker
            from kvgym.studies.benchmark.tasks import load_suite

            self._suite, self._player = load_suite(), Player()
            self._names = tuple(tasks)
            self._tasks(self._names)
            step_worker.compiled  # noqa: B018  # compiled once on a machine, which takes longer than the limit may be
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Judge:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the process that starts those of candidates."""
        self.close()

    def close(self) -> None:
        """End the process that starts those of candidates."""
        self._nursery.close()

    def _tasks(self, names: tuple[str, ...]) -> list[Task]:
        from kvgym.studies.benchmark.tasks import SUITE

        chosen = [self._suite.task(name) for name in names]
        for task in chosen:
            task.check(SUITE)
        return chosen

    def verdict(
        self, entry: str | Path, *, tasks: tuple[str, ...] | None = None, seeds: int | None = None
    ) -> dict[str, Any]:
        """Return the verdict on an entry, see :func:`judge`.

        Args:
            entry: as for :func:`judge`.
            tasks: names of other tasks, for a first stage that costs little; None = those of the judge.
            seeds: another number of seeds; None = that of the judge.

        Raises:
            ConfigError: no such file or task.
        """
        from kvgym.studies.benchmark.remote import remote

        spec = _existing(entry)
        chosen = self._tasks(self._names if tasks is None else tuple(tasks))
        number = (
            self._seeds
            if seeds is None
            else whole_number(seeds, "seeds", "a number from 1 to 1000", most=1000)
        )
        started = time.perf_counter()
        found: dict[str, Any] = {"score": None, "clairvoyant": False, "tasks": {}, "failure": ""}
        process = None
        try:
            process = self._start(spec)
            made = remote(process)
            found["clairvoyant"] = bool(getattr(made.info, "clairvoyant", False))
            for task in chosen:
                seeds_of = range(self._first_seed, self._first_seed + number)
                found["tasks"][task.name] = self._judged(made, task, seeds_of)
        except LostError as error:
            found["failure"] = str(error)
        finally:
            if process is not None:
                process.close()
        scores = [score for task in found["tasks"].values() for score in task["scores"]]
        if scores and not found["failure"]:
            found["score"] = float(np.mean(scores))
        return {**found, "seconds": round(time.perf_counter() - started, 3)}

    def _start(self, spec: str) -> Process:
        """Return the process of a candidate; one that ended the nursery costs the next one a new nursery."""
        try:
            return Process(self._nursery, spec, self._seconds, self._memory_mib)
        except LostError:
            self._nursery.close()
            self._nursery = Nursery()
            return Process(self._nursery, spec, self._seconds, self._memory_mib)

    def _value(self, task: Task, made: Any, seed: int) -> tuple[float, str]:
        """Return the signed metric of a run, and its failure."""
        from kvgym.experiments.runs import PlannedRun
        from kvgym.studies.benchmark.running import value_of
        from kvgym.studies.benchmark.tasks import SUITE

        scenario, router = task.scenario(SUITE), task.role == "router"
        policy = scenario.policies[0] if router else made
        run = PlannedRun(scenario, policy, made if router else None, seed, "candidate")
        (played,) = self._player([run])
        return value_of(task, played)

    def _judged(self, made: Any, task: Task, seeds: range) -> dict[str, Any]:
        """Return scores, values, failures and seconds of a policy or router on a task."""
        from kvgym.policies.routing import Router
        from kvgym.studies.benchmark.scoring import scores_of

        if task.role != ("router" if isinstance(made, Router) else "scheduler"):
            raise LostError(f"task {task.name} is for {task.played_by}, and {made.info.name} is none")
        started = time.perf_counter()
        for seed in seeds:
            if (task.name, seed) not in self._plain:
                self._plain[task.name, seed] = self._value(task, task.plain, seed)[0]
        plain = [self._plain[task.name, seed] for seed in seeds]
        runs = {seed: self._value(task, made, seed) for seed in seeds}
        values = [value for value, _ in runs.values()]
        failures = {str(seed): error for seed, (_, error) in runs.items() if error}
        distance = float(np.mean(np.subtract(task.plain_values, task.reference_values)))
        scores = scores_of(values, plain, np.asarray(plain) - distance)
        return {
            "scores": [float(score) for score in scores],
            "value": None if failures else task.mean(values),
            "plain": task.mean(plain),
            "failures": failures,
            "seconds": round(time.perf_counter() - started, 3),
        }


def _existing(entry: str | Path) -> str:
    """Return an entry as text; a file must exist."""
    spec = str(entry)
    if spec.endswith(".py") and not Path(spec).is_file():
        raise ConfigError(f"no file {shown(spec)} with a policy to judge")
    return spec


_COMPILES = """import sys
try:
    compile(open(sys.argv[1], "rb").read(), sys.argv[1], "exec", dont_inherit=True)
except SyntaxError as error:
    print(f"SyntaxError: {error}")"""


def syntax_error(path: str) -> str:
    """Return the syntax error of a file in a line, "" if it has none; a bare interpreter looks for it in 20 ms."""
    command = [sys.executable, "-I", "-S", "-c", _COMPILES, path]
    try:
        found = subprocess.run(command, capture_output=True, timeout=10, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return in_a_line(found.stdout.decode(errors="replace")) if found.stdout else ""


@explained
def judge(entry: str | Path, **options: Any) -> dict[str, Any]:
    """Score a policy or router that runs in a process of its own, with limits, on validation seeds of tasks.

    Args:
        entry: a Python file that defines one class derived from :class:`kvgym.Policy` or :class:`kvgym.Router`; or what
            :func:`kvgym.studies.benchmark.entries.load_entry` takes: a name, ``"module:Class"`` or the folder of an
            agent.
        **options: arguments of :class:`Judge`, which is faster for several entries.

    Returns:
        JSON-able: ``score``, the mean over tasks and seeds, null if the whole entry failed; ``clairvoyant``, whether it
        declares true lengths; ``tasks``, each with ``scores`` by seed (-1 = failed), ``value`` and ``plain``, the mean
        metric of the entry (null if a run failed) and of the plain rule, ``failures`` by seed and ``seconds``;
        ``failure`` of the whole entry, or ""; ``seconds`` of all.

    Raises:
        ConfigError: no such file or task, or a changed one.
    """
    started, spec = time.perf_counter(), _existing(entry)
    wrong = syntax_error(spec) if spec.endswith(".py") else ""
    if wrong:
        failure = f"{Path(spec).name} cannot be imported: {wrong}"
        found: dict[str, Any] = {"score": None, "clairvoyant": False, "tasks": {}, "failure": failure}
    else:
        with Judge(**options) as made:
            found = made.verdict(spec)
    return {**found, "seconds": round(time.perf_counter() - started, 3)}
