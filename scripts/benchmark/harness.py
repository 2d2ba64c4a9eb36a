"""What the benchmarks share: options, runs timed in process CPU time, results as JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgym import RequestTable, System, make_policy
from kvgym.runner import prepare_run
from kvgym.simulator.simulation import Simulation

AFFINE = {"kind": "affine", "constant": 0.02, "per_prefill_token": 1e-4, "per_context_token": 1e-6}


def command_line(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of --smoke and --json; ``doc``, the script's docstring, is shown by --help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    return parser


def write_json(path: Path | None, results: dict[str, Any]) -> None:
    """Write the results to the file of --json, if it was given."""
    if path is not None:
        path.write_text(json.dumps(results, indent=2) + "\n")


@dataclass(frozen=True)
class Timing:
    """Times of equal runs.

    Attributes:
        set_up: median CPU seconds of making the policy and the simulation.
        run: median CPU seconds of the run.
        simulation: the last one, at its end.
    """

    set_up: float
    run: float
    simulation: Simulation

    @property
    def iterations(self) -> int:
        """Return the iterations of all workers."""
        return int(self.simulation.workers["iteration"].sum())


def time_runs(
    system: System, table: RequestTable, policy: str, repeats: int, *, compiled: bool = True
) -> Timing:
    """Run a policy some times, each from the start, and time it."""
    set_up, running = [], []
    for _ in range(repeats):
        started = time.process_time()
        simulation, run = prepare(system, table, policy, compiled)
        ready = time.process_time()
        run()
        ended = time.process_time()
        set_up.append(ready - started)
        running.append(ended - ready)
    return Timing(statistics.median(set_up), statistics.median(running), simulation)


def prepare(
    system: System, table: RequestTable, policy: str, compiled: bool
) -> tuple[Simulation, Callable[..., bool]]:
    """Return a simulation ready to run, and what runs it to its end or for so many decisions; True if it has ended.

    It goes below ``kvgym.simulate``, whose result would be part of the time.
    """
    simulation, _ = prepare_run(system, table, make_policy(policy), compiled=compiled)
    return simulation, lambda budget=None: simulation.run(budget=budget)
