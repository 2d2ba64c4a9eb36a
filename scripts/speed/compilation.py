"""Time compilation: of everything, of a process's first run, and of many processes that start at once.

Each begins with an empty cache. Seconds are CPU time of all processes together, unless called wall seconds.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import command_line, write_json

FIRST = "import kvgym; kvgym.compare(policies=['fcfs'], scenario='mc-sf-model-2', seeds=1, jobs=1)"
"""A short run: beyond the import, it only compiles or loads code."""

SMOKE = "from kvgym.batch_time import UnitBatchTime; _ = UnitBatchTime.kernel.compiled"

WARM_UP = """
from kvgym.cli.warming import warm_up
kinds = {}
for title, seconds in warm_up(jobs=1).items():
    kinds.setdefault(title.rpartition(" ")[0], []).append(seconds)
for kind, each in sorted(kinds.items()):
    print(f"  {kind}: {len(each)} functions, {sum(each):.1f} s", flush=True)
"""
"""Compiles all kernels of kvgym and prints the time by kind."""


def spend(code: str, processes: int, folder: Path) -> dict[str, float]:
    """Run a program in several processes at once with a cache folder; return seconds and compiled functions."""
    environment = {**os.environ, "KVGYM_CACHE_DIR": str(folder)}
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


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("--processes", type=int, default=8, help="number of processes that start at once")
    parser.add_argument("--without-all", action="store_true", help="skip compiling everything")
    options = parser.parse_args()
    processes = 2 if options.smoke else options.processes
    programs: dict[str, tuple[str, int]] = {
        "first run": (FIRST, 1),
        f"{processes} at once": (FIRST, processes),
    }
    if not (options.smoke or options.without_all):
        programs["everything"] = (WARM_UP, 1)
    results: dict[str, Any] = {}
    for name, (code, count) in programs.items():
        results[name] = measure(code, count)
        print(name, "  ".join(f"{key} {value:.4g}" for key, value in results[name].items()), flush=True)
    write_json(options.json, results)


if __name__ == "__main__":
    main()
