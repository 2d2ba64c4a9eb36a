"""Write the golden traces (one small instance) and scenarios.csv (all scenarios), every policy with its defaults.

The traces of policies in ``RULES`` follow the paper's rule instead.

Run ``PYTHONPATH=. python tests/golden/generate.py [policy ...]`` from the repository root after an intended change of a
policy's decisions, and read the difference before committing it. With names of policies, only their traces are
written.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from kvgym.batch_time import UnitBatchTime
from kvgym.errors import ConfigError, LivelockError
from kvgym.experiments.scenario import Scenario, load_scenario, scenario_names
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import POLICIES, make_policy, policy_defaults
from kvgym.policies.runner import known_to, simulate, system_info
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.forecasts import Forecasts
from kvgym.workloads.table import RequestTable

FOLDER = Path(__file__).parent
SCENARIOS = FOLDER / "scenarios.csv"
NUM_REQUESTS = 80
COUNTS = ("finished", "iterations", "evictions")
FIGURES = ("e2e_latency_mean", "ttft_mean", "kv_utilisation")
CAPACITY = 24
SEED = 0

# Small enough to follow by hand; memory is tight and some predictions are too short, so that every overflow
# rule comes into play. Columns that a policy does not declare are hidden from it.
TABLE = RequestTable.from_columns(
    arrival_time=[2, 2, 2, 4, 4, 4, 5, 5, 6, 7],
    prompt_len=[1, 1, 2, 2, 3, 3, 1, 2, 2, 4],
    output_len=[2, 8, 1, 6, 7, 3, 3, 4, 1, 3],
    predicted_output_len=[1, 7, 1, 4, 4, 3, 3, 5, 1, 3],
    predicted_low=[1, 5, 1, 3, 4, 2, 2, 2, 1, 2],
    predicted_high=[3, 9, 2, 7, 9, 4, 4, 6, 2, 5],
    class_id=[0, 1, 0, 1, 1, 0, 0, 1, 0, 0],
    priority=[0, 0, 1, 0, 0, 1, 0, 0, 0, 1],
    ttft_slo=[4, 8, 4, 8, 8, 4, 4, 8, 4, 4],
    tbt_slo=[2, 3, 2, 3, 3, 2, 2, 3, 2, 2],
    classes=(ClassStatistics("short", 1.0, 2.0, 2.0), ClassStatistics("long", 1.0, 2.0, 6.0)),
)


EXTRAS = {
    "client_id": [0, 1, 0, 0, 1, 1, 0, 0, 1, 1],
    "forecasts": Forecasts.from_rows(
        [np.maximum(1, length - 4 + np.arange(10)) for length in TABLE.predicted_output_len.tolist()],
        [
            np.maximum(1, length + np.arange((length - 1) // 2) % 3 - 1)
            for length in TABLE.output_len.tolist()
        ],
        every=2,
    ),
}
"""Further columns, for policies that need them."""


def table_of(policy: str) -> RequestTable:
    """Return the requests with all that a policy needs."""
    needs = POLICIES[policy].info.needs
    forecasts = needs & {"length_distribution", "renewed_length"}
    found = {"client_id": "client" in needs, "forecasts": bool(forecasts)}
    return TABLE.replace(**{name: EXTRAS[name] for name, needed in found.items() if needed})


RULES = {name: {"protection": 0.0, "overrun": "ignore"} for name in ("mc_sf", "mc_benchmark", "ageing")} | {
    "dlpm": {"quantum": 8.0}
}
"""The paper's rule of policies that choose another one where predictions are too short; a quantum of few requests."""


def _ids(ids: Iterable[int]) -> str:
    return " ".join(str(int(i)) for i in ids) or "-"


def header(policy: str) -> list[str]:
    """Return the lines that describe the instance."""
    values = policy_defaults(POLICIES[policy]) | dict(POLICIES[policy].info.auto) | RULES.get(policy, {})
    defaults = ", ".join(f"{key}={value!r}" for key, value in values.items())
    lines = [
        f"policy    {policy}({defaults}), seed {SEED}",
        f"system    M = {CAPACITY} tokens, one second per iteration, the prefill iteration emits token 1,",
        "          evicted requests lose their progress and requeue by arrival",
    ]
    table = table_of(policy)
    for name, column in table.columns().items():
        lines.append(f"{name:<21}" + "".join(f"{value:>3g}" for value in column))
    if table.forecasts is not None:
        lines.append("predicted_tenths     predicted_output_len - 4 … + 5, at least 1")
        renewed = " ".join(
            "/".join(map(str, table.forecasts.row(i).tolist())) or "-" for i in range(len(table))
        )
        lines.append(f"renewed_lens          {renewed}, after every 2 tokens")
    return [
        *lines,
        "",
        "t         time of the decision, seconds",
        "queue     waiting requests, in order",
        "active    request:KV tokens it holds, in order of activation, before the decision",
        "evict, admit, tokens, wait   the decision; tokens where it departs from one step or a whole prompt",
        "memory    KV tokens in use while the batch runs",
        "finished  requests that finish at the end of the iteration",
        "",
    ]


def trace(name: str) -> str:
    """Return the trace of a registered policy on the instance."""
    policy, table = make_policy(name, **RULES.get(name, {})), table_of(name)
    system = System(kv_capacity=CAPACITY, batch_time=UnitBatchTime())
    simulation = Simulation(
        system, table, needs=known_to(policy, table), policy_name=name, log=True, compiled=False
    )
    policy.reset(system_info(system, table, SEED, known_to(policy, table)))
    view = simulation.view
    rows = [("t", "queue", "active", "evict", "admit", "memory", "finished", "")]
    running = simulation.start()
    while running:
        decision = policy.schedule(view)
        active = view.active
        held = [f"{i}:{kv}" for i, kv in zip(active.request_id, active.num_kv_tokens, strict=True)]
        cells = [f"{view.clock:g}", _ids(view.waiting.request_id), " ".join(held) or "-"]
        cells += [_ids(decision.evict), _ids(decision.admit)]
        note = ""
        if decision.tokens:
            note = "tokens " + " ".join(f"{i}:{count}" for i, count in decision.tokens.items())
        if decision.wait_until is not None:
            note = f"wait until {decision.wait_until:g}"
        logged = int(simulation.tracker[0]["num_log"])
        running = simulation.step(decision)
        ran = int(simulation.tracker[0]["num_log"]) > logged
        cells += [f"{simulation.log[logged]['kv_tokens']}" if ran else "-", _ids(view.finished), note]
        rows.append(tuple(cells))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    body = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    records = simulation.requests
    footer = ["", "request " + "".join(f"{i:>4}" for i in range(len(records)))]
    for label, column in (("start", "start_time"), ("first", "first_token_time"), ("finish", "finish_time")):
        footer.append(f"{label:<8}" + "".join(f"{value:>4g}" for value in records[column]))
    footer.append("evicted " + "".join(f"{value:>4}" for value in records["num_evictions"]))
    lines = [*header(name), *body, *footer]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def outcomes(name: str) -> list[dict[str, str]]:
    """Run every policy on the first requests of a scenario; figures to nine digits, none for what cannot run."""
    scenario = load_scenario(name)
    system = scenario.make_system()
    table = scenario.sample(scenario.make_workload(), 0, system.usable_capacity).select(
        slice(0, NUM_REQUESTS)
    )
    return [outcome(scenario, system, table, policy) for policy in POLICIES]


def outcome(scenario: Scenario, system: System, table: RequestTable, policy: str) -> dict[str, str]:
    """Run a policy and return its row of the file; the outcome is finished, horizon, or the kind of error."""
    row = {"scenario": scenario.name, "policy": policy, **dict.fromkeys(("outcome", *COUNTS, *FIGURES), "")}
    try:
        result = simulate(system, table, policy, router=scenario.make_router())
    except (ConfigError, LivelockError) as error:
        if f"policy {policy!r}" not in str(error):
            raise
        return row | {"outcome": type(error).__name__}
    metrics = compute_metrics(result)
    row["outcome"] = "finished" if result.completed else "horizon"
    row |= {name: str(int(metrics[name])) for name in COUNTS}
    return row | {name: f"{metrics[name]:.9g}" for name in FIGURES}


def main(names: list[str]) -> None:
    """Write the traces of the given policies, or of all and the scenarios."""
    for name in names or POLICIES:
        (FOLDER / f"{name}.txt").write_text(trace(name), encoding="utf-8")
    if not names:
        with SCENARIOS.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(
                file, ("scenario", "policy", "outcome", *COUNTS, *FIGURES), lineterminator="\n"
            )
            writer.writeheader()
            for scenario in scenario_names():
                writer.writerows(outcomes(scenario))


if __name__ == "__main__":
    main(sys.argv[1:])
