"""Tables of docs/capacity.md: the capacity of every policy under two sets of targets, with LMSYS and Azure lengths.

python scripts/capacity_tables.py azure_2023_conv.csv
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from typing import Any

from kvgym.cli.console import interval, markdown_table, number
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.experiments.scenario_options import OVERLOAD_SCENARIO
from kvgym.studies.capacity.finding import find_capacity
from kvgym.studies.capacity.result import Capacity, CapacityResult

SLOS = {"lmsys": {"ttft": 1.0, "tbt": 0.2}, "azure": {"ttft": 10.0, "tbt": 0.5}}
"""SLOs in seconds by workload; Azure's prompts are 28 times as long, and no policy starts 99 % within a second."""


KNOWN = {"kind": "interval", "epsilon": 0.0, "point": "middle"}
"""Exact lengths, as numbers and as intervals, so that every policy has the predictions that it needs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the searches and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trace", help="the Azure 2023 conversation trace, or another")
    parser.add_argument("--policies", default="all", help="separated by spaces")
    parser.add_argument("--num-requests", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args(arguments)
    for name, slos in SLOS.items():
        scenario = _scenario(name, given.trace)
        bounds = f"ttft_p99<{slos['ttft']:g},tbt_p99<{slos['tbt']:g}"
        found, started = [], time.process_time()
        for targets in (bounds, "goodput>=0.9"):
            found.append(
                find_capacity(
                    scenario,
                    targets,
                    given.policies.split(),
                    seeds=given.seeds,
                    num_requests=given.num_requests,
                    request_slos=slos,
                    jobs=given.jobs,
                )
            )
        _print(name, bounds, found, time.process_time() - started)
    return 0


def _scenario(name: str, trace: str) -> Scenario:
    """Return the default scenario, with the lengths of a trace for ``"azure"``."""
    base = load_scenario(OVERLOAD_SCENARIO)
    workload: dict[str, Any] = {
        "name": "azure lengths",
        "arrivals": {"kind": "poisson", "rate": 1.0},
        "lengths": {"kind": "trace", "path": trace, "mode": "resample"},
        "num_requests": 2000,
    }
    if name == "lmsys":
        assert isinstance(base.workload, dict)
        workload = base.workload
    return base.override(workload={**workload, "predictions": KNOWN}, too_long="drop")


def _print(name: str, bounds: str, found: list[CapacityResult], seconds: float) -> None:
    """Print a table with a row per policy, best first."""
    headings = ["policy", f"{bounds}: requests/s", "95 % interval", "fails next", "goodput ≥ 90 %: requests/s",
                "95 % interval", "fails next"]  # fmt: skip
    first, second = ({c.label: c for c in result.capacities} for result in found)
    labels = sorted({**first, **second}, key=lambda x: -first[x].estimate.value if x in first else 0.0)
    rows = {label: [*_cells(first.get(label)), *_cells(second.get(label))] for label in labels}
    runs = [probe for result in found for probe in result.probes]
    simulated = sum(probe.played.record.wall_time for probe in runs)
    print(f"\n## {name}\n\n{markdown_table(headings, rows)}\n")
    print(
        f"{len(runs):,} runs, {simulated:.0f} s of simulation, {seconds:.0f} s of processor time in this process."
    )
    for note in dict.fromkeys(note for result in found for note in result.notes):
        print(f"- {note}")
    odd = sum(any("not monotone" in note for note in c.notes) for result in found for c in result.capacities)
    print(
        f"- {odd} of {sum(len(r.capacities) for r in found)} searches had a rate that passed above one that failed."
    )


def _cells(capacity: Capacity | None) -> list[str]:
    """Return rate, interval and limit of a policy."""
    if capacity is None:
        return ["–", "", "cannot run"]
    # For a target its metric, for a failure its text.
    names = [reason if " " in reason else re.split("[<>]", reason)[0] for reason, _ in capacity.limits[:2]]
    limit = ", ".join("no progress" if " " in name else name for name in names)
    return [number(capacity.estimate.value), interval(capacity.estimate), limit]


if __name__ == "__main__":
    raise SystemExit(main())
