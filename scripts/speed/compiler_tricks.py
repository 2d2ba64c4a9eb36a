"""Measure each trick of the compiler toolkit: two processes, with and without it, take turns.

Every process has its own empty cache. The ratio is time without the trick over time with it, in CPU seconds; above 1
the trick helps. Ratios are reliable, absolute times depend on the machine. Named tuples by address cannot be switched
off: kernels have them in their signatures.

    python scripts/speed/compiler_tricks.py              # about 40 minutes
    python scripts/speed/compiler_tricks.py prefetch     # one trick
    python scripts/speed/compiler_tricks.py --smoke      # about 15 minutes: shows that it runs
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRICKS = ("helpers", "once", "loading", "wraparound", "refcount", "inline", "prefetch", "all")
COMPILING = ("helpers", "once")
"""Tricks that make the first run faster, not the runs after it."""
LOADED = "import kvgym; kvgym.compare('mc-sf-model-2', ['fcfs', 'mc_sf'], seeds=1)"


def disable(trick: str) -> None:
    """Switch a trick off in this process, before kernels are defined."""
    import numba

    njit: Any = numba.njit
    if trick == "all":  # Numba's public ways
        os.environ["KVGYM_NUMBA_TRICKS"] = "0"
    elif trick == "helpers":  # each helper is compiled on its own, too
        from kvgym.compiling import passes

        def helper(function: Callable[..., Any], **options: Any) -> Any:
            return njit(**passes.NO_REFCOUNT, **options)(function)

        passes.helper, passes._KERNEL = helper, {}
    elif trick == "once":  # each kernel is optimised before linking, after it, and once more
        from kvgym.compiling import passes

        passes._KERNEL = _usual_lowering()
    elif trick == "loading":  # Numba's cache gets ready for compiling before it loads
        from numba.core.caching import Cache

        from kvgym.compiling import numba_internals

        made: Any = numba_internals.kernel_cache

        def usual(locator: type[Any]) -> type[Any]:
            found = made(locator)
            found.load_overload = Cache.load_overload
            return found  # type: ignore[no-any-return]

        numba_internals.kernel_cache = usual
    elif trick == "wraparound":
        from kvgym.compiling import passes

        passes.no_index_wraparound = contextlib.nullcontext
    elif trick == "refcount":
        from kvgym.compiling import passes

        passes.NO_REFCOUNT, passes._KERNEL = {}, _usual_lowering()
    elif trick == "inline":
        from kvgym.compiling import kernel

        kernel.FORCE_INLINE = {}
    elif trick == "prefetch":
        from kvgym.compiling import pointers
        from kvgym.compiling.passes import NO_REFCOUNT

        pointers.prefetch = njit(lambda address: None, **NO_REFCOUNT)


def _usual_lowering() -> dict[str, Any]:
    from numba.core.typed_passes import NativeLowering

    from kvgym.compiling.lowering import compiler_with

    return {"pipeline_class": compiler_with(NativeLowering)}


def runs(n: int) -> dict[str, Callable[[], float]]:
    """Return functions that run a policy on ``n`` chat requests and return CPU seconds."""
    from harness import prepare
    from policies import workloads

    system, table = workloads(n)["lmsys, M = 16,492"]

    def once(policy: str) -> float:
        _, run = prepare(system, table, policy, True)
        started = time.process_time()
        run()
        return time.process_time() - started

    return {
        policy: lambda policy=policy: once(policy)
        for policy in ("fcfs", "mc_sf", "sarathi", "slai", "ranked")
    }


def vectors(steps: int) -> dict[str, Callable[[], float]]:
    """Return functions that step many environments and return CPU seconds."""
    from vectors import AFFINE, QUEUES, play

    arguments = {**QUEUES["full"], "batch_time": AFFINE}
    return {
        f"{count} environments": lambda count=count: sum(
            play({"num_envs": count, **arguments}, steps, wall=False)["seconds"]
        )
        for count in (512, 1024)
    }


def starts(without: bool) -> None:
    """On every line from standard input, print the CPU seconds of a process that loads kernels."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import compiler_tricks; "
    command = [
        sys.executable,
        "-c",
        (code + "compiler_tricks.disable('loading'); " if without else "") + LOADED,
    ]
    subprocess.run(command, check=True)
    print("a process that loads kernels", flush=True)
    for _ in sys.stdin:
        before = os.times()
        subprocess.run(command, check=True)
        after = os.times()
        print(
            after.children_user + after.children_system - before.children_user - before.children_system,
            flush=True,
        )


def serve(trick: str, *, without: bool, smoke: bool) -> None:
    """Prepare the cases of a trick; on every line from standard input, measure all of them."""
    if without:
        disable(trick)
    import kvgym  # noqa: F401

    before = time.process_time()
    if trick == "loading":
        starts(without)
        return
    cases = vectors(20 if smoke else 300) if trick == "prefetch" else runs(2000 if smoke else 40_000)
    if trick in COMPILING:
        from kvgym.compiling.kernel import kernels

        cases["fcfs"]()
        compiled = time.process_time() - before
        print(f"first run, {len(kernels())} kernels known", flush=True)
        sys.stdin.readline()
        print(repr(compiled), flush=True)
        return
    for case in cases.values():
        case()
    print("|".join(cases), flush=True)
    for _ in sys.stdin:
        print(" ".join(repr(case()) for case in cases.values()), flush=True)


def measure(trick: str, *, smoke: bool) -> None:
    """Print the ratios of a trick."""
    with contextlib.ExitStack() as stack:
        players, names = [], ""
        for without in (False, True):
            cache = stack.enter_context(tempfile.TemporaryDirectory())
            command = [
                sys.executable,
                __file__,
                trick,
                "--serve",
                *["--without"] * without,
                *["--smoke"] * smoke,
            ]
            players.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                    env={**os.environ, "KVGYM_CACHE_DIR": cache},
                )
            )  # fmt: skip
            names = players[-1].stdout.readline().strip()  # type: ignore[union-attr]
        times: list[list[list[float]]] = [[], []]
        for turn in range(1 if trick in COMPILING else 3 if smoke else 15):
            for which in (0, 1) if turn % 2 else (1, 0):
                player: Any = players[which]
                player.stdin.write("\n")
                player.stdin.flush()
                times[which].append([float(x) for x in player.stdout.readline().split()])
        for player in players:
            player.communicate()
        for k, name in enumerate(names.split("|")):
            least = [min(row[k] for row in rows) for rows in times]
            ratio = statistics.median(b[k] / a[k] for a, b in zip(*times, strict=True))
            print(
                f"{trick}, {name}: {least[0]:.4f} s with, {least[1]:.4f} s without, ratio {least[1] / least[0]:.3f} "
                f"(median {ratio:.3f})",
                flush=True,
            )


def main() -> None:
    """Measure all tricks, or one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tricks", nargs="*", choices=[*TRICKS, []], help="tricks to measure; default: all")
    parser.add_argument("--smoke", action="store_true", help="few and short repetitions")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--without", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.tricks[0], without=options.without, smoke=options.smoke)
        return
    for trick in options.tricks or TRICKS:
        measure(trick, smoke=options.smoke)


if __name__ == "__main__":
    main()
