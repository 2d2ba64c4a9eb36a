"""``kvgym warm-up``: compile everything in advance."""

from __future__ import annotations

import time

from kvgym.cli import console
from kvgym.cli.options.shared import JobsOption, ProgressOption
from kvgym.cli.progress import run_progress


def warm_up(
    jobs: JobsOption = None,
    progress: ProgressOption = True,
) -> None:
    """Compile everything that would otherwise be compiled on first use: for images and CI.

    Shows what was compiled and how long it took; returns at once if everything is cached. The cache is in the folder
    KVGYM_CACHE_DIR (default: ~/.cache/kvgym), for this version and this processor. To build an image for other
    processors, build and run it with NUMBA_CPU_NAME=generic.
    """
    from kvgym.cli.warming import all_kernels, compile_all
    from kvgym.compiling.cache import cache_dir

    start = time.perf_counter()
    known = all_kernels()
    missing = [kernel for kernel in known if not kernel.cached]
    costs: dict[str, list[float]] = {}
    with run_progress(len(missing), progress and bool(missing)) as advance:
        for title, seconds in compile_all(missing, jobs):
            costs.setdefault(title.rpartition(" ")[0], []).append(seconds)
            advance(title)
    if costs:
        rows = {what: (f"{len(each)}", f"{sum(each):.1f}") for what, each in sorted(costs.items())}
        console.print_table(console.mapping_table("compiled", rows, ("what", "functions", "CPU seconds")))
    cpu = sum(map(sum, costs.values()))
    console.print_line(
        f"{len(missing)} compiled in {time.perf_counter() - start:.1f} s ({cpu:.1f} s of CPU), "
        f"{len(known) - len(missing)} already cached: {cache_dir()}"
    )
