"""Measure each trick of the compiler toolkit: two processes, with and without it, take turns.

Every process has its own empty cache. The ratio is time without the trick over time with it, in CPU seconds; above 1
the trick helps. Ratios are reliable, absolute times depend on the machine. Named tuples by address cannot be switched
off: kernels have them in their signatures.

    python scripts/speed/compiler_tricks.py              # about 15 minutes
    python scripts/speed/compiler_tricks.py prefetch     # one trick
    python scripts/speed/compiler_tricks.py --smoke      # about 5 minutes: shows that it runs
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
from typing import Any

TRICKS = ("helpers", "wraparound", "prefetch")


def disable(trick: str) -> None:
    """Switch a trick off in this process, before kernels are defined."""
    import numba

    njit: Any = numba.njit
    if trick == "helpers":  # Numba's usual passes: each helper is compiled on its own, too
        from kvgym.compiling import passes

        def helper(function: Callable[..., Any], **options: Any) -> Any:
            return njit(**passes.NO_REFCOUNT, **options)(function)

        def machine_code(signature: Any, **options: Any) -> Any:
            def compiled(function: Callable[..., Any]) -> Any:
                with passes.no_index_wraparound():
                    return njit(signature, **passes.NO_REFCOUNT, **options)(function)

            return compiled

        passes.helper, passes.machine_code = helper, machine_code
    elif trick == "wraparound":
        from kvgym.compiling import passes

        passes.no_index_wraparound = contextlib.nullcontext
    elif trick == "prefetch":
        from kvgym.compiling import pointers
        from kvgym.compiling.passes import NO_REFCOUNT

        pointers.prefetch = njit(lambda address: None, **NO_REFCOUNT)


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


def serve(trick: str, *, without: bool, smoke: bool) -> None:
    """Prepare the cases of a trick; on every line from standard input, measure all of them."""
    if without:
        disable(trick)
    import kvgym  # noqa: F401

    before = time.process_time()
    cases = vectors(20 if smoke else 300) if trick == "prefetch" else runs(2000 if smoke else 40_000)
    if trick == "helpers":
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
        for turn in range(1 if trick == "helpers" else 3 if smoke else 15):
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
