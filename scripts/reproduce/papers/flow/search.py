"""Hyperparameters that the paper searches for.

They are chosen on seeds of their own, never on those that are reported.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness import print_table
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable
from papers.flow.runs import Plan, run_all
from papers.flow.tables import number

TUNING_SEED = 1000
# Rounds without any new token before a search calls it a livelock; no request takes more than 60 slots in
# Section 4.1, a few thousand iterations in 4.2.
PATIENCE = {"4.1": 1000, "4.2": 20_000}


def tuning_seeds(plan: Plan) -> range:
    """Return the seeds of a search."""
    return range(TUNING_SEED, TUNING_SEED + plan.tuning_seeds)


def choose(
    system: System, tables: Sequence[RequestTable], policies: Sequence[str], what: str, plan: Plan
) -> str:
    """Return the policy with the least mean E2E latency, all requests finished; print the grid."""
    found = run_all(system, tables, policies, plan.where)
    scores = [float(np.mean(found[p]["e2e_latency_mean"])) for p in policies]
    # In a grid where everything livelocks the last one, the most cautious α, stands for all.
    best = int(np.nanargmin(scores)) if np.isfinite(scores).any() else len(policies) - 1
    print(f"Search for {what} (mean E2E latency, drained; seeds from {TUNING_SEED}; – = livelock):\n")
    labels = [p.partition("=")[2].partition(",")[0] for p in policies]
    print_table(
        ("value", *(f"**{label}**" if i == best else label for i, label in enumerate(labels))),
        [("E2E", *(number(score) for score in scores))],
    )
    return policies[best]
