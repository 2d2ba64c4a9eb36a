"""Compare learned agents with schedulers and fixed knobs: the figures of docs/agents_tables.md.

    python scripts/compare_agents --agent ranked_latency --slo-agent ranked_slo --json results/agents.json \
        --markdown docs/agents_tables.md --tables docs/tables/agents
    python scripts/compare_agents --agent results/ranked-0 --tasks latency mixed --seeds 5     some tasks
    python scripts/compare_agents --agent results/ranked-0 --quick          seconds, to test that it runs
    python scripts/compare_agents --json results/agents.json --markdown page.md     the page again, no runs
    python scripts/compare_agents --curves results/ranked-0 results/ranked-1 --figure curves.png

Runs that the file of --json has for the same scenario, seeds and weights are not repeated: an interrupted comparison
continues, and another agent is added without tuning the schedulers again. The tasks are in tasks.py and studies.py.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from compare_agents.contests import Contest, Seeds
from compare_agents.pages import page_of
from compare_agents.running import run_contests
from compare_agents.store import Store
from compare_agents.studies import TASKS
from compare_agents.tables import write_tables
from compare_agents.tasks import Plan
from kvgym.agents.curves import draw_curves, read_curve
from kvgym.agents.library import load_agent
from kvgym.errors import ConfigError, KVGymError


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = found.add_argument
    add("--agent", help="agent for mean latency: a name, a file, or a training folder")
    add("--slo-agent", default="", help="agent for objectives")
    add(
        "--also",
        nargs="+",
        default=(),
        metavar="AGENT",
        help="further agents, in the tasks latency and default",
    )
    add("--training-seeds", nargs="+", default=(), metavar="AGENT", help="agents of other training seeds")
    add(
        "--slo-training-seeds",
        nargs="+",
        default=(),
        metavar="AGENT",
        help="the same for the agent for objectives",
    )
    add("--traces", nargs="+", default=(), type=Path, metavar="PATH", help="trace files to replay")
    add("--tasks", nargs="+", choices=list(TASKS), help="default: all that the other options allow")
    add("--seeds", type=int, help="held-out seeds, default 30")
    add("--tuning-seeds", type=int, help="seeds that schedulers and knobs are tuned on, default 5")
    add("--quick", action="store_true", help="few requests, rates and schedulers; two seeds")
    add("--jobs", type=int, default=0, help="processes; 0 = one per core")
    add("--ray", help="run on Ray: local, auto, or the address of a cluster")
    add("--json", type=Path, help="file of the figures, read first and written after every scenario")
    add("--markdown", type=Path, help="file of the page; default: standard output")
    add("--tables", type=Path, metavar="FOLDER", help="folder for the tables, CSV")
    add("--title", default="Learned agents in figures", help="title of the page")
    add(
        "--curves",
        nargs="+",
        default=(),
        type=Path,
        metavar="FOLDER",
        help="training folders to list on the page",
    )
    add("--figure", type=Path, help="picture of their learning curves to write")
    return found


def contests_of(options: argparse.Namespace) -> list[Contest]:
    """Return the contests to run.

    Raises:
        ConfigError: an agent or a trace cannot be read, or a task has no contest.
    """
    for agent in (
        options.agent,
        options.slo_agent,
        *options.also,
        *options.training_seeds,
        *options.slo_training_seeds,
    ):
        if agent:
            load_agent(agent)  # refuse a wrong one before anything runs
    plan = Plan(
        options.agent,
        options.slo_agent,
        others=tuple(options.also),
        trained=tuple(options.training_seeds),
        slo_trained=tuple(options.slo_training_seeds),
        traces=tuple(options.traces),
        seeds=Seeds(
            options.seeds or (2 if options.quick else 30), options.tuning_seeds or (1 if options.quick else 5)
        ),
        quick=options.quick,
    )
    contests = []
    for name in options.tasks or TASKS:
        found = TASKS[name](plan)
        if not found and options.tasks:
            needed = {"traces": "--traces", "spread": "--training-seeds or --slo-training-seeds"}
            raise ConfigError(f"task {name}: nothing to compare; give {needed[name]}")
        contests += found
    return contests


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    reader = parser()
    options = reader.parse_args(arguments)
    if not (options.agent or options.curves or options.json):
        reader.error("nothing to do: give --agent, --curves, or the --json of an earlier run")
    if options.figure and not options.curves:
        reader.error("--figure draws learning curves: give --curves FOLDER ...")
    if any(
        value is not None and value < least
        for value, least in ((options.seeds, 1), (options.tuning_seeds, 1))
    ):
        reader.error("--seeds and --tuning-seeds are at least 1")
    if options.jobs < 0:
        reader.error(f"--jobs {options.jobs}: expected 0 for all cores, or a number of processes")
    try:
        store = Store() if options.json is None else Store.load(options.json)
        if options.curves:
            store.curves = [read_curve(folder) for folder in options.curves]
        if options.agent:
            run_contests(
                contests_of(options), store, path=options.json, jobs=options.jobs, ray=options.ray,
                progress=lambda text: print(text, file=sys.stderr, flush=True),
            )  # fmt: skip
        elif options.json is not None:
            store.save(options.json)
        if options.figure:
            draw_curves(store.curves, options.figure)
    except KVGymError as error:
        raise SystemExit(f"compare_agents: {error}") from None
    tables = ""
    if options.tables is not None:
        write_tables(store, options.tables)
        tables = os.path.relpath(options.tables, (options.markdown or Path("page")).parent)
    page = page_of(store, options.title, tables)
    if options.markdown is None:
        print(page)
    else:
        options.markdown.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
