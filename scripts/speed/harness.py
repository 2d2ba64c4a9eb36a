"""Common parts of the benchmarks: options, runs timed in process CPU time, results as JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgym import Policy, RequestTable, System, make_policy
from kvgym.policies.runner import check_needs, prepare_run
from kvgym.simulator.simulation import Simulation

AFFINE = {"kind": "affine", "constant": 0.02, "per_prefill_token": 1e-4, "per_context_token": 1e-6}


def command_line(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of --smoke and --json; --help shows ``doc``, the script's docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    return parser


def write_json(path: Path | None, results: dict[str, Any]) -> None:
    """Write the results to the file of --json, if given."""
    if path is not None:
        path.write_text(json.dumps(results, indent=2) + "\n")


@dataclass(frozen=True)
class Timing:
    """Times of identical runs.

    Attributes:
        set_up: median CPU seconds of making the policy and the simulation.
        run: median CPU seconds of the run.
        simulation: the last one, after its run.
    """

    set_up: float
    run: float
    simulation: Simulation

    @property
    def iterations(self) -> int:
        """Return the iterations of all workers."""
        return int(self.simulation.workers["iteration"].sum())


def time_runs(
    system: System, table: RequestTable, policy: str | Policy, repeats: int, *, compiled: bool = True
) -> Timing:
    """Time ``repeats`` runs of a policy, each from the start."""
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
    system: System, table: RequestTable, policy: str | Policy, compiled: bool
) -> tuple[Simulation, Callable[..., bool]]:
    """Return a simulation, and a function that runs it to its end or for ``budget`` decisions; True at its end.

    This leaves out the result of ``kvgym.simulate``, which would be part of the time.

    Raises:
        ConfigError: the requests lack information that the policy needs.
    """
    made = make_policy(policy)
    check_needs(made, table)
    simulation, _ = prepare_run(system, table, made, compiled=compiled)
    return simulation, lambda budget=None: simulation.run(budget=budget)
