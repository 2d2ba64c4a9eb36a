"""Compute the hashes, references and headroom of a benchmark's tasks, and write the suite's file.

python scripts/freeze_benchmark.py                      # the current suite, about ten minutes
python scripts/freeze_benchmark.py --traces FOLDER      # with the tasks that need a trace
python scripts/freeze_benchmark.py --standings docs/benchmark  # only the scores of the published table
python scripts/freeze_benchmark.py --table              # print the table of docs/benchmark-suite.md, compute nothing

The tasks, with role, metric and plain rule, are those of the suite's file; a new task needs only these and its
scenario. The reference of a seed is the best run found in hindsight: of all rules, agents and routers, with true
lengths, and of weights of ``ranked`` (or of the weighted router) drawn around those of the agents.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from kvgym.agents.library import agent_names, is_router, load_agent, load_model, load_router
from kvgym.baselines.ranked.weights import WEIGHTS
from kvgym.baselines.routing.weighted import WEIGHTS as ROUTING_WEIGHTS
from kvgym.envs.scheduling.actions.priority import HIGHEST
from kvgym.errors import KVGymError
from kvgym.experiments.scenario import Scenario
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import POLICIES, Policy, make_policy
from kvgym.policies.routing import ROUTERS, Router, make_router
from kvgym.policies.runner import check_needs, simulate
from kvgym.studies.benchmark.leaderboard import read_results, standings
from kvgym.studies.benchmark.tasks import SUITE, Suite, Task, load_suite, suite_file
from kvgym.theory.hindsight.bounds import unbeatable
from kvgym.utils.files import write_text
from kvgym.workloads.mixtures import fit_predictor
from kvgym.workloads.table import RequestTable

DRAWS = 24
"""Weights drawn for each seed."""

FITTED = 40
"""Training seeds that the predictor is fitted to."""

RULE, RANKED, NEWER, PREDICTOR, TRUE, BOUND = "rule", "ranked", "newer", "predictor", "true lengths", "bound"

RANDOM = "random"
"""Random answers in kvgym/Priority-v0; for routers, the random one."""

BELOW = "ranked_latency"
"""The scheduler below random answers."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Freeze the suite, or print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--suite", default=SUITE, help="name of the suite")
    parser.add_argument("--traces", type=Path, help="folder of traces; without it, tasks that need one stay")
    parser.add_argument("--tasks", default="", help="comma-separated; the others stay (default: all)")
    parser.add_argument("--draws", type=int, default=DRAWS, help="weights drawn for each seed")
    parser.add_argument("--table", action="store_true", help="print the table of tasks and compute nothing")
    parser.add_argument(
        "--standings", type=Path, help="folder of results: write their scores, compute nothing"
    )
    given = parser.parse_args(arguments)
    suite = load_suite(given.suite)
    if given.table:
        print(table(suite))
        return 0
    if given.standings is not None:
        suite = suite.model_copy(update={"standings": standings(read_results(given.standings))})
        write_text(suite_file(suite.name), text_of(suite, suite.tasks))
        return 0
    chosen = set(filter(None, given.tasks.split(","))) or {task.name for task in suite.tasks}
    tasks = list(suite.tasks)
    for place, task in enumerate(tasks):
        if task.name in chosen and (task.needs is None or given.traces is not None):
            tasks[place] = frozen(task, task.scenario(suite.name, given.traces), suite.name, given.draws)
            write_text(suite_file(suite.name), text_of(suite, tasks))
            print(task.name, tasks[place].headroom, flush=True)
    return 0


def frozen(task: Task, scenario: Scenario, suite: str, draws: int) -> Task:
    """Return a task with its hash, values of the plain rule and the reference, and headroom."""
    system, workload = scenario.make_system(), scenario.make_workload()
    tables = [scenario.sample(workload, seed, system.usable_capacity) for seed in task.seeds]
    values: dict[tuple[str, str], list[float]] = {}
    paces: list[float] = []
    for place, (seed, requests) in enumerate(zip(task.seeds, tables, strict=True)):
        shown = [(kind, name, made, requests) for kind, name, made in competing(task)]
        exact = requests.replace(
            predicted_output_len=requests.output_len, predicted_low=None, predicted_high=None, forecasts=None
        )
        if task.role == "scheduler":
            shown += predicted(scenario, requests)
            shown.append((RANDOM, RANDOM, load_agent(BELOW), answered(requests, seed)))
            shown += [(TRUE, name, made, exact) for name, made in clairvoyants(draws, seed)]
        else:
            shown += [(TRUE, name, made, exact) for _, name, made in competing(task)]
            shown += [(TRUE, name, made, exact) for name, made in drawn_routers(draws, seed)]
        for kind, name, made, table in shown:
            started = time.process_time()
            found = value(task, scenario, system, table, made, seed)
            if (kind, name) in ((RANDOM, RANDOM), (RULE, "uniform_random")):
                paces.append((time.process_time() - started) / len(table))
            values.setdefault((kind, name), [np.nan] * task.test_seeds)[place] = found
    plain = next(found for (kind, name), found in values.items() if name == task.plain)
    headroom: dict[str, float | str] = {}
    drawn = values.get((RANDOM, RANDOM)) or values[RULE, "uniform_random"]
    headroom[RANDOM] = task.mean(drawn)
    for kind in (RULE, RANKED, NEWER, PREDICTOR):
        means = {
            name: float(np.mean(v)) for (of, name), v in values.items() if of == kind and np.isfinite(v).all()
        }
        if means:
            best = min(means, key=lambda name: means[name])
            headroom |= {kind: task.sign * means[best], f"{kind}: name": best}
    reference = [
        min(v[place] for v in values.values() if np.isfinite(v[place])) for place in range(task.test_seeds)
    ]
    of_true = [
        [v[place] for (kind, _), v in values.items() if kind == TRUE] for place in range(task.test_seeds)
    ]
    headroom[TRUE] = task.sign * float(np.mean([np.nanmin(each) for each in of_true]))
    try:
        bounds = [unbeatable(requests, system, task.metric).value for requests in tables]
        if scenario.window is None:
            headroom[BOUND] = float(np.mean(bounds))
    except KVGymError:
        pass  # no bound on this metric or system
    return task.model_copy(
        update={
            "hash": task.digest(suite),
            "plain_values": tuple(float(f"{x:.10g}") for x in plain),
            "reference_values": tuple(float(f"{x:.10g}") for x in reference),
            "headroom": headroom,
            "cpu_minutes": float(f"{np.median(paces) * task.budget / 60:.2g}"),
        }
    )


def value(
    task: Task, scenario: Scenario, system: object, requests: RequestTable, made: Policy | Router, seed: int
) -> float:
    """Return the signed metric of a run, NaN if it failed."""
    try:
        if isinstance(made, Router):
            result = simulate(
                system, requests, scenario.policies[0], router=made, seed=seed, window=scenario.window
            )
        else:
            check_needs(made, requests)
            result = simulate(
                system, requests, made, router=scenario.make_router(), seed=seed, window=scenario.window
            )
    except KVGymError:
        return np.nan
    if not result.completed and not task.metric.endswith("attainment"):
        return np.nan
    return task.sign * float(compute_metrics(result, [task.metric])[task.metric])


def competing(task: Task) -> Iterator[tuple[str, str, Policy | Router]]:
    """Yield everything that enters a task, with its kind and name."""
    agents = agent_names()
    if task.role == "router":
        for name in ROUTERS:
            yield RULE, name, make_router(name)
        for name in agents:
            if is_router(name):
                yield RANKED, name, load_router(name)
        return
    for name in POLICIES:
        if not POLICIES[name].info.clairvoyant:
            newer = ".newer." in POLICIES[name].__module__
            yield NEWER if newer else RANKED if name.startswith("ranked") else RULE, name, make_policy(name)
    for name in agents:
        if not is_router(name):
            yield RANKED, name, load_agent(name)


def predicted(
    scenario: Scenario, requests: RequestTable
) -> list[tuple[str, str, Policy | Router, RequestTable]]:
    """Return agents on requests with a predicted length: the mean output by class and twentieth of training prompts."""
    workload, capacity = scenario.make_workload(), scenario.make_system().usable_capacity
    seen = [scenario.sample(workload, seed, capacity) for seed in range(FITTED)]
    lengths = requests.output_len.copy()
    for chosen, logs in zip(of_class(requests), zip(*map(of_class, seen), strict=True), strict=True):
        prompts = np.concatenate([table.prompt_len[rows] for table, rows in zip(seen, logs, strict=True)])
        outputs = np.concatenate([table.output_len[rows] for table, rows in zip(seen, logs, strict=True)])
        guessed = fit_predictor(prompts, outputs).apply(requests, np.random.default_rng(0))
        lengths[chosen] = guessed.predicted_output_len[chosen]
    table = requests.replace(predicted_output_len=lengths, predicted_low=None, predicted_high=None)
    return [(PREDICTOR, name, load_agent(name), table) for name in agent_names() if evolved(name)]


def answered(requests: RequestTable, seed: int) -> RequestTable:
    """Return requests with predictions that are uniform random answers in kvgym/Priority-v0."""
    answers = np.random.default_rng(seed).uniform(0, HIGHEST, len(requests))
    lengths = np.maximum(np.rint(2.0**answers), 1).astype(np.int64)
    return requests.replace(
        predicted_output_len=lengths, predicted_low=None, predicted_high=None, forecasts=None
    )


def of_class(requests: RequestTable) -> list[np.ndarray]:
    """Return a mask of the requests of each class; of all requests without classes."""
    if requests.class_id is None:
        return [np.ones(len(requests), bool)]
    return [requests.class_id == c for c in range(max(1, len(requests.classes)))]


def evolved(name: str) -> bool:
    """Return whether an agent is evolved weights of ``ranked``."""
    return name.startswith("ranked") and not is_router(name)


def clairvoyants(draws: int, seed: int) -> Iterator[tuple[str, Policy]]:
    """Yield policies that are given true lengths: agents, references, and drawn weights of ``ranked``."""
    yield from (
        (name, make_policy(name)) for name in ("clairvoyant", "ranked", "mc_sf", "work_conserving_sjf")
    )
    agents = [name for name in agent_names() if evolved(name)]
    yield from ((name, load_agent(name)) for name in agents)
    rng = np.random.default_rng(seed)
    for draw in range(draws):
        base = load_model(agents[draw % len(agents)]).weights  # type: ignore[union-attr]
        weights = {
            w.name: float(
                np.clip(base.get(w.name, w.default) + w.step * rng.standard_normal(), w.low, w.high)
            )
            for w in WEIGHTS
        }
        yield f"draw {draw}", make_policy("ranked", **weights)


def drawn_routers(draws: int, seed: int) -> Iterator[tuple[str, Router]]:
    """Yield weighted routers with weights drawn around the default and the agents'."""
    rng = np.random.default_rng(seed)
    bases = [{}, *(load_model(name).weights for name in agent_names() if is_router(name))]  # type: ignore[union-attr]
    for draw in range(draws):
        base = bases[draw % len(bases)]
        weights = {
            w.name: float(
                np.clip(base.get(w.name, w.default) + w.step * rng.standard_normal(), w.low, w.high)
            )
            for w in ROUTING_WEIGHTS
        }
        yield f"draw {draw}", make_router("weighted", **weights)


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
    """Return the headroom of each task, Markdown; percentages are relative to the best deployable one."""
    lines = [
        "| task | plain rule | best rule | ranked, agent | newer | predictor | true lengths | reference | left "
        "| bound |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for task in suite.tasks:
        if not task.headroom:
            continue
        plain, reference = task.mean(task.plain_values), task.mean(task.reference_values)
        cells = [f"{plain:.3g}"]
        for kind in (RULE, RANKED, NEWER, PREDICTOR):
            name = task.headroom.get(f"{kind}: name")
            cells.append("–" if name is None else f"{task.headroom[kind]:.3g} `{name}`")
        best = task.best(RULE, RANKED, NEWER)[0]
        left = abs(best - reference) / abs(best) if best else 0.0
        bound = task.headroom.get(BOUND)
        cells += [
            f"{task.headroom[TRUE]:.3g}",
            f"{reference:.3g}",
            f"{left:.1%}",
            "–" if bound is None else f"{bound:.3g}",
        ]
        lines.append(f"| `{task.name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
