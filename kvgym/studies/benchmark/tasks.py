"""Suites of tasks: each a frozen scenario with test seeds, a metric, and constants that scores need.

A suite is a file of ``configs/benchmark``; the scenarios of its tasks are the files of the folder of the same name. A
task's hash covers everything that determines its results but the code: an entry's results count for the hash they
were made with.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field

from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.utils.reading import Description, parse_fields, validate_fields

SUITE = "kvgym-bench-2"
"""The current suite."""

GROUPS = {
    "fleet": "how many workers, and which one for each request",
    "server": "one worker at loads that it sustains, with targets",
    "overload": "one worker with more than it sustains",
}
"""Groups of tasks, each with scores of its own."""

LEAST_LEFT = 0.05
"""Share of the value of the best tuned rule that a task must leave, or it tests doing no harm."""

FIRST_TRAINING, FIRST_VALIDATION, FIRST_TEST = 0, 1_000_000, 3_000_000
"""First seeds: those below 1,000,000 are for training, the next 1,000,000 for selection; test seeds serve no choice."""


class Task(Description):
    """A task.

    Attributes:
        name: name in the suite.
        group: what is scored together, of :data:`GROUPS`.
        role: what an entry is here: ``"scheduler"`` of the workers, ``"router"`` of a cluster, or ``"autoscaler"``.
        metric: what is measured, see :mod:`kvgym.metrics`.
        environment: id that :func:`kvgym.make_task` makes without an id; "" = no environment has its scenario.
        plain: the rule that scores 0.
        budget: environment steps, or requests simulated, that training an entry may take.
        test_seeds: number of seeds from :data:`FIRST_TEST`.
        hash: of the task, see :meth:`digest`.
        plain_values: of the plain rule by test seed; better values are smaller (attainment is negative).
        reference_values: of the reference in hindsight by test seed, likewise.
        headroom: means over test seeds, in the metric, by kind of entry, with the name of the best of each kind; and
            the load.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    group: Literal["fleet", "server", "overload"]
    role: Literal["scheduler", "router", "autoscaler"] = "scheduler"
    metric: str = "e2e_latency_mean"
    environment: str = "kvgym/Priority-v0"
    plain: str = "fcfs"
    budget: int = 2_000_000
    test_seeds: int = Field(default=10, ge=1)
    hash: str = ""
    plain_values: tuple[float, ...] = ()
    reference_values: tuple[float, ...] = ()
    headroom: dict[str, float | str] = Field(default_factory=dict)

    @property
    def section(self) -> str:
        """Name of the table that the task belongs to: one score for each group and role."""
        return f"{self.group}, {self.role}s"

    @property
    def played_by(self) -> str:
        """Its role with an article."""
        return f"{'an' if self.role == 'autoscaler' else 'a'} {self.role}"

    @property
    def left(self) -> float:
        """What the reference gains over the best tuned rule, as a share of that rule's value; NaN if unknown."""
        tuned, reference = self.best("tuned")[0], self.mean(self.reference_values)
        return abs(tuned - reference) / abs(tuned) if tuned else math.nan

    @property
    def does_no_harm(self) -> bool:
        """Whether so little is left over tuned rules that the task tests doing no harm."""
        return self.left < LEAST_LEFT

    @property
    def seeds(self) -> range:
        """The test seeds."""
        return range(FIRST_TEST, FIRST_TEST + self.test_seeds)

    @property
    def sign(self) -> int:
        """1 if smaller values of the metric are better, else -1."""
        from kvgym.experiments.statistics import less_is_better

        return 1 if less_is_better(self.metric) else -1

    def mean(self, values: Sequence[float]) -> float:
        """Return the mean of signed values in the metric, NaN if there are none."""
        return self.sign * sum(values) / len(values) if values else math.nan

    def best(self, *kinds: str) -> tuple[float, str]:
        """Return the best mean in the metric, and its name, of kinds in ``headroom``; NaN if there are none."""
        found = [
            (float(self.headroom[kind]), str(self.headroom[f"{kind}: name"]))
            for kind in kinds
            if kind in self.headroom
        ]
        return min(found, key=lambda each: self.sign * each[0], default=(math.nan, ""))

    def scenario(self, suite: str) -> Scenario:
        """Return the scenario; ``suite``: name of the suite."""
        return load_scenario(scenario_file(suite, self.name))

    def digest(self, suite: str) -> str:
        """Return the hash of the expanded scenario, the metric and the seeds; empty fields do not count."""
        scenario = self.scenario(suite)
        content: dict[str, Any] = {
            "scenario": scenario.resolved().model_dump(mode="json", exclude={"name", "summary", "seeds"}),
            "task": self.model_dump(include={"role", "metric", "plain", "test_seeds"}),
            "workload": scenario.make_workload().spec.model_dump(mode="json"),
        }
        text = json.dumps(_filled(content), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def check(self, suite: str) -> None:
        """Check that the task is the frozen one.

        Raises:
            ConfigError: it has changed, so that scores would be of another task.
        """
        found = self.digest(suite)
        if found != self.hash:
            raise ConfigError(
                f"task {self.name} of {suite} has changed: its hash is {found}, the frozen one {self.hash}; restore "
                f"{scenario_file(suite, self.name).name}, or freeze a suite of your own under another name "
                "(scripts/freeze_benchmark.py) and give it with --suite"
            )


def _filled(content: Any) -> Any:
    """Return JSON without keys of zero or empty values, so that an option that is added later changes no hash."""
    if isinstance(content, dict):
        return {key: _filled(value) for key, value in content.items() if value}
    return [_filled(value) for value in content] if isinstance(content, list) else content


class Suite(Description):
    """A suite of tasks.

    Attributes:
        name: name of the suite.
        summary: one line.
        tasks: the tasks.
        standings: by section, the score of each entry of the published table.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    summary: str = ""
    tasks: tuple[Task, ...]
    standings: dict[str, dict[str, float]] = Field(default_factory=dict)

    def task(self, name: str) -> Task:
        """Return a task by name.

        Raises:
            UnknownNameError: there is no such task.
        """
        tasks = {task.name: task for task in self.tasks}
        if name not in tasks:
            raise UnknownNameError("task", name, tasks)
        return tasks[name]

    @property
    def hash(self) -> str:
        """Hash of the tasks' hashes and of the constants of their scores."""
        return self.hash_of("")

    def hash_of(self, role: str) -> str:
        """Return the hash of the tasks of a role alone, which results depend on; "" = all."""
        parts = [
            [task.name, task.hash, task.plain_values, task.reference_values]
            for task in self.tasks
            if role in ("", task.role)
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def scenario_file(suite: str, task: str) -> Path:
    """Return the scenario file of a task."""
    return Path(str(resources.files("kvgym.configs").joinpath("benchmark", suite, f"{task}.yaml")))


def suite_file(name: str = SUITE) -> Path:
    """Return the file of a suite."""
    return Path(str(resources.files("kvgym.configs").joinpath("benchmark", f"{name}.yaml")))


@functools.lru_cache(maxsize=4)
def load_suite(name: str = SUITE) -> Suite:
    """Return a suite.

    Raises:
        UnknownNameError: there is no such suite.
    """
    path = suite_file(name)
    known = [file.stem for file in sorted(suite_file().parent.glob("*.yaml"))]
    if name not in known:
        raise UnknownNameError("suite", name, known)
    fields = parse_fields(path.read_text("utf-8"), str(path))
    return validate_fields(Suite, {"name": name, **fields}, str(path))


TASK_HEADINGS = (
    "name", "for", "metric", "load", "plain rule", "tuned rule", "reference", "left", "what it is",
)  # fmt: skip


def task_rows() -> dict[str, tuple[str, ...]]:
    """Return the tasks of the current suite for ``kvgym list tasks``: means over test seeds, in the metric."""
    rows: dict[str, tuple[str, ...]] = {}
    for task in load_suite().tasks:
        tuned = task.best("tuned")
        rows[task.name] = (
            task.section,
            task.metric,
            str(task.headroom.get("load", "-")),
            f"{task.mean(task.plain_values):.3g}",
            f"{tuned[1]} {tuned[0]:.3g}",
            f"{task.mean(task.reference_values):.3g}",
            f"{task.left:.0%}",
            task.scenario(SUITE).summary,
        )
    return rows
