"""Break down the CPU time of ``kvgym compare``, run in a separate process with a full code cache.

    python scripts/speed/comparing.py                      # the default comparison
    python scripts/speed/comparing.py --seeds 1 -n 200     # any options of kvgym compare
    python scripts/speed/comparing.py --many 1000          # also the time per run of small runs, many in one call

Each line is CPU time of the process without the parts on other lines.
"""

from __future__ import annotations

import builtins
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from harness import command_line, write_json

PARTS: dict[str, str] = {
    "kvgym.compiling.kernel:Kernel._compile": "machine code, loaded",
    "kvgym.experiments.scenario:Scenario.sample": "sampling of requests",
    "kvgym.policies.runner:prepare_run": "set-up of runs",
    "kvgym.policies.runner:_run_to_the_end": "simulation",
    "kvgym.policies.runner:result_of": "results of runs",
    "kvgym.experiments.runs:compute_metrics": "metrics",
    "kvgym.experiments.statistics:_bootstrap": "bootstrap",
    "kvgym.report.html:_add_figures": "figures of the report",
    "kvgym.report.html:render": "rest of the report",
    "kvgym.experiments.comparison:Comparison.save": "records",
}
"""Label of the time in each function (``module:name``)."""


class Stages:
    """Total CPU time by label."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[float] = []

    def around(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the timed function; time in nested timed functions counts only for those."""

        def timed(*args: Any, **options: Any) -> Any:
            self._open.append(0.0)
            start = time.process_time()
            try:
                return function(*args, **options)
            finally:
                spent, inside = time.process_time() - start, self._open.pop()
                self.seconds[label] = self.seconds.get(label, 0.0) + spent - inside
                if self._open:
                    self._open[-1] += spent

        return timed

    def watch(self, where: str, label: str) -> None:
        """Replace a function (``module:name``) by its timed version."""
        module, _, name = where.partition(":")
        owner: Any = importlib.import_module(module)
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, self.around(label, getattr(owner, last)))


def child(options: list[str]) -> None:
    """Run the command in this process; the last line of output has the times as JSON."""
    stages = Stages()
    builtins.__import__ = stages.around("imports", builtins.__import__)
    from kvgym.cli.app import main as command

    for where, label in PARTS.items():
        stages.watch(where, label)
    sys.argv = ["kvgym", "compare", *options]
    try:
        stages.around("everything else", command)()
    except SystemExit as end:
        if end.code:
            raise
    stages.seconds["start of Python"] = time.process_time() - sum(stages.seconds.values())
    print(json.dumps(stages.seconds))


def run_child(options: list[str]) -> dict[str, float]:
    """Run the command in a child process and return its times."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--child", *options, "--jobs", "1", "--no-progress", "--out", folder],
            check=True,
            capture_output=True,
            text=True,
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def many_runs(count: int, num_requests: int) -> dict[str, float]:
    """Return the microseconds per run of many small runs in one call, by label.

    Args:
        count: number of runs.
        num_requests: requests of each; with few, the time is what every run costs.
    """
    from kvgym import compare
    from kvgym.experiments.changes import build_scenario
    from kvgym.experiments.scenario_options import OVERLOAD_SCENARIO

    small = build_scenario(OVERLOAD_SCENARIO, num_requests=num_requests)
    compare(small, ["fcfs"], seeds=2)  # load
    stages = Stages()
    for where, label in PARTS.items():
        if "report" not in where:
            stages.watch(where, label)
    stages.around("everything else", importlib.import_module("kvgym.experiments.comparison").compare)(
        small, ["fcfs"], seeds=count
    )
    rows = {f"{label}, µs per run": 1e6 * s / count for label, s in stages.seconds.items()}
    return {**rows, "together, µs per run": sum(rows.values())}


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
        return
    parser = command_line(__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="repetitions; the fastest counts")
    parser.add_argument(
        "--many", type=int, default=0, help="number of small runs in one call (default: none)"
    )
    options, rest = parser.parse_known_args()
    rest = ["--seeds", "1", "-n", "50"] if options.smoke else rest
    run_child(rest)  # compile, and read files once
    found = [run_child(rest) for _ in range(1 if options.smoke else options.repeats)]
    least = min(found, key=lambda seconds: sum(seconds.values()))
    results: dict[str, Any] = {"seconds": dict(sorted(least.items(), key=lambda item: -item[1]))}
    results["seconds"]["together"] = sum(least.values())
    if options.many or options.smoke:
        for size in (10, 1000):
            results[f"runs of {size:,} requests"] = many_runs(options.many or 5, size)
    for name, rows in results.items():
        print(f"{name}:")
        for label, value in rows.items():
            print(f"{label:32} {value:10.3f}")
    write_json(options.json, results)


if __name__ == "__main__":
    main()
