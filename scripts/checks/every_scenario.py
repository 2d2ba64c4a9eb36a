"""Run every policy on every scenario with one seed and print a Markdown table of the outcomes.

python scripts/checks/every_scenario.py           # several minutes
python scripts/checks/every_scenario.py --requests 500  # the first 500 requests of each
python scripts/checks/every_scenario.py --json out.json  # full reasons as well
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from kvgym.errors import ConfigError, LivelockError
from kvgym.experiments.scenario import load_scenario, scenario_names
from kvgym.policies.policy import POLICIES
from kvgym.policies.runner import simulate

FINISHED, HORIZON, LIVELOCK, REFUSED = "yes", "horizon", "livelock", "–"


def outcome(scenario: str, policy: str, requests: int | None) -> tuple[str, str]:
    """Return the outcome of a policy on a scenario, and the reason if it did not finish."""
    chosen = load_scenario(scenario)
    system = chosen.make_system()
    table = chosen.sample(chosen.make_workload(), 0, system.usable_capacity)
    if requests is not None:
        table = table.select(slice(0, requests))
    try:
        result = simulate(system, table, policy, router=chosen.make_router())
    except LivelockError as error:
        return LIVELOCK, str(error)
    except ConfigError as error:
        return REFUSED, str(error)
    return (FINISHED, "") if result.completed else (HORIZON, "stopped at the horizon")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, help="limit on the requests of each scenario")
    parser.add_argument("--scenario", action="append", help="only this one (may be repeated)")
    parser.add_argument("--json", type=Path, help="write outcomes, reasons and seconds to this file")
    options = parser.parse_args()
    details: dict[str, dict[str, dict[str, object]]] = {}
    names = options.scenario or list(scenario_names())
    print(f"| policy | {' | '.join(names)} |")
    print(f"|---|{'---|' * len(names)}")
    for policy in POLICIES:
        cells = []
        for scenario in names:
            started = time.perf_counter()
            what, why = outcome(scenario, policy, options.requests)
            seconds = time.perf_counter() - started
            details.setdefault(scenario, {})[policy] = {"outcome": what, "reason": why, "seconds": seconds}
            cells.append(what)
        print(f"| `{policy}` | {' | '.join(cells)} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(details, indent=2) + "\n")


if __name__ == "__main__":
    main()
