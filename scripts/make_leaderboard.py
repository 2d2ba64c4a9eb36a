"""Run all entries of the published table again, and write docs/benchmark.

    python scripts/make_leaderboard.py            # all
    python scripts/make_leaderboard.py hpa fcfs   # some, by the names of the table; the others stay

Entries are all rules with their published settings, the rules with settings by task of docs/benchmark/settings, the
shipped agents, and those that learn nothing. The suite's file gets their scores, for the rank of a new entry.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from freeze_benchmark import SETTINGS, agents, names, text_of

from kvgym.experiments.runs import Player
from kvgym.studies.benchmark.entries import load_entry
from kvgym.studies.benchmark.leaderboard import leaderboard, read_results, standings
from kvgym.studies.benchmark.running import run_benchmark
from kvgym.studies.benchmark.tasks import load_suite, suite_file
from kvgym.utils.files import plain_name, write_text

RESULTS = SETTINGS.parent

PLAYERS = {
    "random": "kvgym.studies.benchmark.players:RandomAnswers",
    "constant": "kvgym.studies.benchmark.players:ConstantAnswer",
    "random_sizes": "kvgym.studies.benchmark.players:RandomSizes",
}
"""Entries that learn nothing, by name; of routers it is ``uniform_random``."""


def entries() -> dict[str, str]:
    """Return the specs of all entries by name."""
    found = dict(PLAYERS)
    for role in ("scheduler", "router", "autoscaler"):
        found |= {name: name for name in (*names(role), *agents(role))}
    return found | {
        f"{path.stem}, {'learned' if path.stem == 'linear' else 'tuned'}": str(path.relative_to(Path.cwd()))
        for path in sorted(SETTINGS.glob("*.yaml"))
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run entries and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="entries by name (default: all)")
    given = parser.parse_args(arguments)
    every, player = entries(), Player(tables=100)
    for name in given.names or every:
        started = time.perf_counter()
        found = run_benchmark([load_entry(every[name])], name=name, jobs=1, player=player)
        found.save(RESULTS / f"{plain_name(name)}.json")
        print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
    results = read_results(RESULTS)
    write_text(RESULTS / "leaderboard.md", leaderboard(results))
    suite = load_suite()
    suite = suite.model_copy(update={"standings": standings(results)})
    write_text(suite_file(suite.name), text_of(suite, suite.tasks))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
