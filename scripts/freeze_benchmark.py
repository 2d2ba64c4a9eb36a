"""Compute the hashes, references and headroom of a benchmark's tasks, and write the suite's file.

python scripts/freeze_benchmark.py                      # all tasks
python scripts/freeze_benchmark.py --tasks scale-bursts # some, the others stay
python scripts/freeze_benchmark.py --jobs 2 --settings  # two processes search in hindsight; rules keep their settings
python scripts/freeze_benchmark.py --table              # print the table of docs/benchmark-suite.md, compute nothing

The tasks, with group, role, metric and plain rule, are those of the suite's file; a new task needs only these and its
scenario. Settings of rules are searched on training seeds (scripts/benchmark_searches.py), and written to
docs/benchmark/settings, a file for each rule that is an entry of the table. The reference of a seed is the best run
found in hindsight, of everything that was run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from benchmark_searches import GRIDS, Runs, hindsight

from kvgym.agents.library import agent_names, kind_of
from kvgym.baselines.autoscalers.engines import Engine
from kvgym.errors import KVGymError
from kvgym.experiments.scenario import Scenario
from kvgym.policies.policy import POLICIES
from kvgym.policies.routing import ROUTERS
from kvgym.policies.scaling import AUTOSCALERS
from kvgym.studies.benchmark.entries import load_entry
from kvgym.studies.benchmark.tasks import SUITE, Suite, Task, load_suite, suite_file
from kvgym.theory.hindsight.bounds import unbeatable
from kvgym.utils.execution import make_executor
from kvgym.utils.files import write_text

SETTINGS = Path(__file__).resolve().parent.parent / "docs" / "benchmark" / "settings"

EFFORT = {"autoscaler": 60, "router": 200, "scheduler": 200}
"""Runs of the search in hindsight for each test seed."""

DRAWS = 40
"""Weights drawn for a rule that is tuned by draws."""

PLAIN, RULE, TUNED, AGENT, BOUND = "plain", "rule", "tuned", "agent", "bound"

REFERENCES = ("clairvoyant", "ranked", "mc_sf", "work_conserving_sjf")
"""Schedulers that are given true lengths, besides the agents."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Freeze the suite, or print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--suite", default=SUITE, help="name of the suite")
    parser.add_argument("--tasks", default="", help="comma-separated; the others stay (default: all)")
    parser.add_argument("--effort", type=float, default=1.0, help="factor on the runs of each search")
    parser.add_argument("--jobs", type=int, default=1, help="processes of the searches in hindsight")
    parser.add_argument("--settings", action="store_true", help="take the settings of rules from their files")
    parser.add_argument("--table", action="store_true", help="print the table of tasks and compute nothing")
    given = parser.parse_args(arguments)
    suite = load_suite(given.suite)
    if given.table:
        print(table(suite))
        return 0
    chosen = set(filter(None, given.tasks.split(","))) or {task.name for task in suite.tasks}
    runs = Runs(suite.name)
    for task in suite.tasks:
        if task.name in chosen:
            started = time.process_time()
            found = frozen(task, runs, given.effort, given.jobs, searched=not given.settings)
            load_suite.cache_clear()  # other processes may have frozen other tasks
            suite = load_suite(suite.name)
            tasks = [found if each.name == task.name else each for each in suite.tasks]
            write_text(suite_file(suite.name), text_of(suite, tasks))
            minutes = (time.process_time() - started) / 60
            print(f"{task.name}: {minutes:.1f} CPU minutes, {found.headroom}", flush=True)
    return 0


def frozen(task: Task, runs: Runs, effort: float, jobs: int, *, searched: bool) -> Task:
    """Return a task with its hash, values of the plain rule and the reference, and headroom."""
    scenario = task.scenario(runs.suite)
    tuned = runs.tuned(task, max(2, round(DRAWS * effort))) if searched else read_settings(task)
    if task.role == "autoscaler":
        tuned["fixed"] = runs.best_fixed(task)
        task = task.model_copy(update={"plain": tuned["fixed"]})
    write_settings(task.name, tuned)
    specs = {RULE: list(names(task.role)), TUNED: list(tuned.values()), AGENT: list(agents(task.role))}
    values = {
        (kind, spec): [runs.value(task, load_entry(spec).made, seed) for seed in task.seeds]
        for kind, some in specs.items()
        for spec in some
    }
    plain = [runs.value(task, load_entry(task.plain).made, seed) for seed in task.seeds]
    values[PLAIN, task.plain] = plain
    headroom: dict[str, float | str] = {"load": runs.load(task)}
    for kind in (RULE, TUNED, AGENT):
        means = {spec: float(np.mean(v)) for (of, spec), v in values.items() if of == kind}
        if means and np.isfinite(min(means.values())):
            best = min(means, key=lambda spec: means[spec])
            headroom |= {kind: task.sign * means[best], f"{kind}: name": best}
    known = min(values, key=lambda each: (float(np.mean(values[each])), each))[1]
    most = max(2, round(EFFORT[task.role] * effort))
    policies = (*REFERENCES, *(name for name in agents("scheduler") if name.startswith("ranked")))
    search = partial(hindsight, task, scenario, effort=most, first=known, policies=policies)
    with make_executor(search, jobs) as executor:
        searches = executor.map(list(task.seeds))
    reference = [
        min(found, *(each[place] for each in values.values())) for place, found in enumerate(searches)
    ]
    if (bound := bound_of(task, scenario)) is not None:
        headroom[BOUND] = bound
    return task.model_copy(
        update={
            "hash": task.digest(runs.suite),
            "plain_values": tuple(float(f"{x:.10g}") for x in plain),
            "reference_values": tuple(float(f"{x:.10g}") for x in reference),
            "headroom": headroom,
        }
    )


def names(role: str) -> Iterator[str]:
    """Yield the rules of a role with their published settings, none of which knows more than a server does."""
    if role == "router":
        yield from (name for name in ROUTERS if name not in ("shedding", "conditional_prefill"))
    elif role == "autoscaler":
        yield from (
            n for n in AUTOSCALERS if not AUTOSCALERS[n].info.clairvoyant and n not in ("plan", "fixed")
        )
    else:
        yield from (name for name in POLICIES if not POLICIES[name].info.clairvoyant)


def agents(role: str) -> Iterator[str]:
    """Yield the shipped agents of a role."""
    kind = "policy" if role == "scheduler" else role
    yield from (name for name in agent_names() if kind_of(name) == kind)


def read_settings(task: Task) -> dict[str, str]:
    """Return the setting of each rule of a task's role from the rules' files."""
    import yaml

    files = [SETTINGS / f"{rule}.yaml" for rule in GRIDS[task.role]]
    contents = [yaml.safe_load(path.read_text("utf-8")) for path in files if path.is_file()]
    return {each["rule"]: each["tasks"][task.name] for each in contents if task.name in each["tasks"]}


def write_settings(task: str, tuned: dict[str, str]) -> None:
    """Write the setting of each rule on a task into the rule's file."""
    import yaml

    for rule, spec in tuned.items():
        path = SETTINGS / f"{rule}.yaml"
        tasks = yaml.safe_load(path.read_text("utf-8"))["tasks"] if path.is_file() else {}
        content = {"rule": rule, "tasks": {**tasks, task: spec}}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, yaml.safe_dump(content, sort_keys=False, width=1000))


def bound_of(task: Task, scenario: Scenario) -> float | None:
    """Return the mean of what nothing beats, None without a bound; of a fleet what the work alone takes."""
    system, workload = scenario.make_system(), scenario.make_workload()
    tables = [scenario.sample(workload, seed, system.usable_capacity) for seed in task.seeds]
    if task.role == "autoscaler":
        if task.metric != "fleet_cost":
            return None
        hours = []
        for requests in tables:
            lengths = float(requests.prompt_len.mean()), float(requests.output_len.mean())
            rate = Engine(system.workers[0], 8192, 1024).rate(*lengths)
            hours.append(len(requests) / rate / 3600 * system.fleet.pools[0].gpus)  # type: ignore[union-attr]
        return float(np.mean(hours))
    try:
        return float(np.mean([unbeatable(requests, system, task.metric).value for requests in tables]))
    except KVGymError:
        return None  # there is none on this metric or system


def text_of(suite: Suite, tasks: Sequence[Task]) -> str:
    """Return the suite's file."""
    import yaml

    fields = [
        task.model_dump(mode="json", exclude_defaults=True, exclude={"headroom"})
        | {"headroom": {k: v if isinstance(v, str) else float(f"{v:.5g}") for k, v in task.headroom.items()}}
        for task in tasks
    ]
    head = (
        "# Written by scripts/freeze_benchmark.py: hashes, values of the plain rule and of the reference by test seed\n"
        "# (smaller is better), and headroom in the metric. Results count only for these hashes.\n"
    )
    content = {"summary": suite.summary, "tasks": fields, "standings": suite.standings}
    return head + yaml.safe_dump(content, sort_keys=False, width=118, default_flow_style=None)


def table(suite: Suite) -> str:
    """Return the headroom of each task, Markdown; what is left is relative to the best tuned rule."""
    lines = [
        "| task | group | measured | load | plain rule | best rule, untuned | best rule, tuned | best shipped agent "
        "| hindsight | left | bound |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for task in suite.tasks:
        if not task.headroom:
            continue
        cells = [task.group, f"`{task.metric}`", str(task.headroom["load"])]
        cells.append(f"{task.mean(task.plain_values):.3g} `{task.plain}`")
        for kind in (RULE, TUNED, AGENT):
            value, name = task.best(kind)
            cells.append(f"{value:.3g} `{name.partition(':')[0]}`" if name else "–")
        bound = task.headroom.get(BOUND)
        cells += [
            f"{task.mean(task.reference_values):.3g}",
            f"{task.left:.1%}{', no harm' if task.does_no_harm else ''}",
            "–" if bound is None else f"{bound:.3g}",
        ]
        lines.append(f"| `{task.name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
