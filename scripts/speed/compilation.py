"""Time compilation: first runs, the first comparison, a run after an edit of a policy, and everything.

Each begins with an empty cache. Seconds are CPU time of all processes together, unless called wall seconds. To compare
two versions on a machine that does other things, run the script in both in turn: only ratios are reliable.

    python scripts/speed/compilation.py                                  # minutes, most of them for everything
    python scripts/speed/compilation.py --only "first run" "after an edit of a policy"
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import command_line, write_json

SHORT = "import kvgym; kvgym.compare(policies=['{}'], scenario='mc-sf-model-2', seeds=1, jobs=1)"
"""A short run: beyond the import, it only compiles or loads code."""

FIRST = SHORT.format("mc_sf")

COMPARISON = "import kvgym; kvgym.compare(seeds=1, jobs=1)"
"""The schedulers and the scenario of the first command of the README."""

EDITED = "baselines/memory_constrained.py"
"""Where the policy of :data:`FIRST` is."""

WARM_UP = """
from kvgym.cli.warming import warm_up
kinds = {}
for title, seconds in warm_up(jobs=1).items():
    kinds.setdefault(title.rpartition(" ")[0], []).append(seconds)
for kind, each in sorted(kinds.items()):
    print(f"  {kind}: {len(each)} functions, {sum(each):.1f} s", flush=True)
"""
"""Compiles all kernels of kvgym and prints the time by kind."""


def spend(code: str, processes: int, folder: Path, path: str = "") -> dict[str, float]:
    """Run a program in several processes at once with a cache folder; return seconds and compiled functions.

    Args:
        code: the program.
        processes: number of processes.
        folder: of the cache.
        path: where the package is imported from; "" = as in this process.
    """
    environment = {**os.environ, "KVGYM_CACHE_DIR": str(folder)}
    if path:
        environment["PYTHONPATH"] = path
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    running = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
        for _ in range(processes)
    ]
    ended = [process.wait() for process in running]
    if any(ended):
        raise SystemExit(f"a process failed: {code}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "wall_s": time.perf_counter() - start,
        "kept": len(list(folder.glob("code-*/*.compiled"))),
    }


def measure(code: str, processes: int) -> dict[str, float]:
    """Return a program's seconds with an empty and with a full cache, and the number of functions it compiles."""
    with tempfile.TemporaryDirectory() as name:
        cold, warm = (spend(code, processes, Path(name)) for _ in range(2))
    return {
        "processes": processes,
        "functions": cold["kept"],
        "cold_s": cold["cpu_s"],
        "warm_s": warm["cpu_s"],
        "cold_wall_s": cold["wall_s"],
        "warm_wall_s": warm["wall_s"],
    }


def after_an_edit() -> dict[str, float]:
    """Return the seconds of a run after its policy was edited, in a copy of the package."""
    import kvgym

    with tempfile.TemporaryDirectory() as name:
        copy, cache = Path(name) / "kvgym", Path(name) / "cache"
        shutil.copytree(Path(kvgym.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        before = spend(FIRST, 1, cache, name)["kept"]
        with open(copy / EDITED, "a") as source:
            source.write("\n")
        edited = spend(FIRST, 1, cache, name)
        warm = spend(FIRST, 1, cache, name)
    return {
        "functions": edited["kept"] - before,
        "cold_s": edited["cpu_s"],
        "warm_s": warm["cpu_s"],
        "cold_wall_s": edited["wall_s"],
        "warm_wall_s": warm["wall_s"],
    }


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("--processes", type=int, default=8, help="number of processes that start at once")
    parser.add_argument("--only", nargs="+", help="names of what to measure")
    options = parser.parse_args()
    processes = 2 if options.smoke else options.processes
    measured: dict[str, Callable[[], dict[str, float]]] = {
        "first run": lambda: measure(FIRST, 1),
        f"{processes} at once": lambda: measure(FIRST, processes),
    }
    if not options.smoke:
        measured["first comparison"] = lambda: measure(COMPARISON, 1)
        measured["after an edit of a policy"] = after_an_edit
        measured["everything"] = lambda: measure(WARM_UP, 1)
    results: dict[str, Any] = {}
    for name in options.only or measured:
        results[name] = measured[name]()
        print(name, "  ".join(f"{key} {value:.4g}" for key, value in results[name].items()), flush=True)
    write_json(options.json, results)


if __name__ == "__main__":
    main()
