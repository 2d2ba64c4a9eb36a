"""Runs of entries on the tasks of a suite, and their results."""

from __future__ import annotations

import copy
import functools
import json
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field

from kvgym.errors import ConfigError, ContractError, KVGymError, cut, shown
from kvgym.experiments.result_files import installed_versions
from kvgym.experiments.runs import PlannedRun, Played, Player, play_runs
from kvgym.experiments.scenario import Scenario
from kvgym.policies.contract.checking import check_information
from kvgym.policies.policy import Policy
from kvgym.policies.routing import Router
from kvgym.policies.runner import check_needs
from kvgym.policies.scaling import Autoscaler
from kvgym.studies.benchmark.scoring import Scores, interval_of, scores_of
from kvgym.studies.benchmark.tasks import SUITE, Suite, Task, load_suite
from kvgym.utils.arguments import explained
from kvgym.utils.execution import make_executor
from kvgym.utils.files import write_text
from kvgym.utils.reading import Description, mapping, parse_json, read_bytes, validate_fields
from kvgym.utils.user_code import is_foreign
from kvgym.utils.version import __version__
from kvgym.workloads.table import RequestTable

if TYPE_CHECKING:
    from kvgym.studies.benchmark.entries import Entry, Playing  # it loads agents

FORMAT = "kvgym-benchmark-result"

LONGEST_NAME = 100
"""Most characters of the name of an entry."""

COUNTED = ("slo_attainment", "fleet_cost")
"""Metrics that count requests that did not finish."""

_Value = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]

PACKAGES = ("numpy", "numba", "gymnasium", "torch", "stable-baselines3")
"""Packages with versions in results, as far as they are installed."""


@dataclass(frozen=True)
class BenchmarkResult:
    """Values of an entry on the test seeds of tasks.

    Attributes:
        name: of the entry.
        specs: what was run: one policy or router, or several trainings of one.
        role: ``"scheduler"``, ``"router"`` or ``"autoscaler"``.
        clairvoyant: whether it observes what no real scheduler has.
        below: name of the entry that it is built on, "" = none.
        settings: by task what plays it, where that is another than ``specs``.
        suite: name of the suite.
        suite_hash: hash of the suite's tasks for its role.
        values: by task and training, the metric by test seed, signed so that smaller is better; NaN = failed.
        errors: first error by task.
        versions: of kvgym, Python and packages.
        seconds: of all runs together, without sampling requests.
    """

    name: str
    specs: tuple[str, ...]
    role: str
    clairvoyant: bool
    suite: str
    suite_hash: str
    values: dict[str, list[list[float]]]
    below: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def scores(self, section: str = "") -> Scores:
        """Return the scores (trainings, seeds) of each task.

        Args:
            section: only of the tasks of this section.

        Raises:
            ConfigError: the results are of another version of the suite, or incomplete.
        """
        suite = load_suite(self.suite)
        self.check(f"results of {self.name}")
        tasks = {name: suite.task(name) for name in self.values}
        return {
            name: scores_of(self.values[name], task.plain_values, task.reference_values)
            for name, task in tasks.items()
            if section in ("", task.section)
        }

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections with tasks that were run, in the order of the suite."""
        suite = load_suite(self.suite)
        return tuple(dict.fromkeys(task.section for task in suite.tasks if task.name in self.values))

    def check(self, origin: str) -> None:
        """Check that the results are of the suite as it is here, and complete.

        Args:
            origin: the file, for messages.

        Raises:
            ConfigError: they are not.
        """
        check_entry_name(self.name, origin)
        try:
            suite = load_suite(self.suite)
        except ConfigError as error:
            raise ConfigError(f"{origin}: {error}") from None
        if (own := suite.hash_of(self.role)) != self.suite_hash:
            raise ConfigError(
                f"{origin}: of another {self.suite} ({cut(self.suite_hash, 20)}, here {own}); run it again"
            )
        tasks = {task.name: task for task in suite.tasks if task.role == self.role}
        for name, runs in self.values.items():
            if name not in tasks:
                raise ConfigError(f"{origin}: {self.suite} has no task {shown(name)} for {self.role}s")
            shape, seeds = (len(self.specs), tasks[name].test_seeds), {len(run) for run in runs}
            if len(runs) != shape[0] or seeds != {shape[1]}:
                raise ConfigError(
                    f"{origin}: task {name} must have the values of {shape[0]} trainings on {shape[1]} seeds each"
                )

    def save(self, path: str | Path) -> None:
        """Write the results as JSON; failed runs are null."""
        sections = {section: self.scores(section) for section in self.sections}
        estimates = {name: interval_of(found, np.random.default_rng(0)) for name, found in sections.items()}
        content = {
            "format": FORMAT,
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
            "values": {
                task: [[None if np.isnan(x) else x for x in run] for run in runs]
                for task, runs in self.values.items()
            },
            "scores": {
                name: {"value": found.value, "low": found.low, "high": found.high}
                for name, found in estimates.items()
            },
            "task_scores": {task: float(np.mean(found)) for task, found in self.scores().items()},
        }
        write_text(path, json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> BenchmarkResult:
        """Read results.

        Raises:
            ConfigError: the file has another format, is damaged, or is of another version of the suite.
        """
        place = Path(path)
        content = mapping(parse_json(read_bytes(place, "results"), str(place)), str(place))
        if content.get("format") != FORMAT:
            raise ConfigError(f"{place}: not a file of results of kvgym benchmark (format is not {FORMAT})")
        stored = validate_fields(_Stored, content, str(place))
        fields: dict[str, Any] = {name: getattr(stored, name) for name in cls.__dataclass_fields__}
        fields["values"] = {
            task: [[np.nan if x is None else x for x in run] for run in runs]
            for task, runs in stored.values.items()
        }
        found = cls(**fields)
        found.check(str(place))
        return found


class _Stored(Description):
    """The fields of a file of results."""

    model_config = ConfigDict(strict=True)

    name: str
    specs: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    role: Literal["scheduler", "router", "autoscaler"]
    clairvoyant: bool
    below: str
    settings: dict[str, str]
    suite: str
    suite_hash: str
    values: Annotated[dict[str, list[list[_Value | None]]], Field(min_length=1)]
    errors: dict[str, str]
    versions: dict[str, str]
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


@explained
def run_benchmark(
    entries: Sequence[Entry],
    *,
    name: str | None = None,
    suite: str = SUITE,
    tasks: Iterable[str] = (),
    jobs: int | None = None,
    player: Player | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> BenchmarkResult:
    """Run an entry on all test seeds of the tasks that it can enter.

    Schedulers, routers and autoscalers enter different tasks. A policy that needs information the requests of a task do
    not carry has the plain rule's values there, and a note in ``errors``. A run that fails, or leaves requests
    unfinished where latencies are measured, has no value and the lowest score.

    Args:
        entries: a policy, router or autoscaler, or several trainings of one: each is a run of the entry.
        name: of the entry in tables; None = the first one's spec.
        suite: name of the suite.
        tasks: names of tasks; empty = all of its role.
        jobs: as for :func:`kvgym.utils.execution.make_executor`.
        player: executes the runs; one that is shared by entries samples the requests once if ``jobs`` is 1.
        progress: called with finished and all runs.

    Raises:
        ConfigError: the entries differ in role, a task is not the frozen one, the name cannot stand
            in a table, or a policy from outside kvgym depends on what it does not declare to observe.
    """
    made, name = load_suite(suite), name or entries[0].spec
    check_entry_name(name, "the entry; choose another with --name")
    roles = {entry.role for entry in entries}
    if len(roles) != 1:
        raise ConfigError(
            "an entry is one policy, router or autoscaler, or several trainings of one; got several kinds, or none"
        )
    role = roles.pop()
    chosen = _tasks(made, role, tuple(tasks))
    for task in chosen:
        task.check(suite)
    for entry in entries:
        if unknown := entry.by_task.keys() - {task.name for task in made.tasks}:
            made.task(min(unknown))  # its error lists the tasks
        _check_information(entry)
    runs, places = [], []
    values = {task.name: [[float("nan")] * task.test_seeds for _ in entries] for task in chosen}
    errors: dict[str, str] = {}
    player = player or Player()
    for task in chosen:
        scenario = task.scenario(suite)
        if lacking := _lacking(entries[0].on(task.name), player.requests(scenario, task.seeds[0])[1]):
            values[task.name] = [list(task.plain_values) for _ in entries]
            errors[task.name] = f"scored as {task.plain}: {lacking}"
            continue
        for seed in task.seeds:
            for k, entry in enumerate(entries):
                runs.append(planned_run(scenario, entry.on(task.name), seed, entry.spec))
                places.append((task, k, seed - task.seeds[0]))
    seconds = 0.0
    with make_executor(player, jobs) as executor:
        for done, (place, played) in enumerate(play_runs(runs, executor), start=1):
            task, k, seed = places[place]
            seconds += played.record.wall_time
            found, error = value_of(task, played)
            values[task.name][k][seed] = found
            if error:
                errors.setdefault(task.name, f"seed {task.seeds[seed]}: {error}")
            if progress is not None:
                progress(done, len(runs))
    return BenchmarkResult(
        name,
        tuple(entry.spec for entry in entries),
        role,
        any(entry.clairvoyant for entry in entries),
        suite,
        made.hash_of(role),
        values,
        entries[0].below,
        dict(entries[0].settings),
        errors,
        {"kvgym": __version__, "python": platform.python_version(), **installed_versions(PACKAGES)},
        round(seconds, 2),
    )


def planned_run(scenario: Scenario, made: Playing, seed: int, label: str) -> PlannedRun:
    """Return a run in which a policy, router or autoscaler plays its part of a scenario."""
    return PlannedRun(
        scenario,
        made if isinstance(made, Policy) else scenario.policies[0],
        made if isinstance(made, Router) else None,
        seed,
        label,
        autoscaler=made if isinstance(made, Autoscaler) else None,
    )


def check_entry_name(name: str, what: str) -> None:
    """Check that the name of an entry can stand in a table in Markdown.

    Raises:
        ConfigError: it cannot.
    """
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable() or set(name) & set("<>&|`"):
        raise ConfigError(
            f"name {shown(name)} of {what}: at most {LONGEST_NAME} printable characters, none of < > & | `"
        )


def _check_information(entry: Entry) -> None:
    """Check that a policy from outside kvgym depends on nothing that it does not declare.

    Raises:
        ConfigError: it does.
    """
    for made in entry.players:
        if not isinstance(made, Policy) or not is_foreign(made):
            continue
        try:
            check_information(functools.partial(copy.deepcopy, made))
        except ContractError as error:
            raise ConfigError(
                f"entry {shown(entry.spec)}: {error}; declare it in PolicyInfo.needs (kvgym check-policy shows a case)"
            ) from None


def _lacking(made: Playing, requests: RequestTable) -> str:
    """Return what a policy needs and the requests of a task do not carry, "" if nothing."""
    try:
        if isinstance(made, Policy):
            check_needs(made, requests)
    except KVGymError as error:
        return str(error)
    return ""


def _tasks(suite: Suite, role: str, names: Sequence[str]) -> list[Task]:
    """Return the tasks to run."""
    chosen = [suite.task(name) for name in names] or [task for task in suite.tasks if task.role == role]
    if wrong := [task for task in chosen if task.role != role]:
        raise ConfigError(
            f"task {wrong[0].name} is for {wrong[0].played_by}, and the entry is no {wrong[0].role}"
        )
    return chosen


def value_of(task: Task, played: Played) -> tuple[float, str]:
    """Return the signed metric of a run, NaN if it has none, and why."""
    record = played.record
    if record.error:
        return float("nan"), record.error
    if not record.completed_once and task.metric not in COUNTED:
        return float("nan"), "requests are left at the horizon"
    value = task.sign * record.metrics[task.metric]
    return (value, "") if np.isfinite(value) else (float("nan"), "the metric has no value")
