"""The conditions of Section 3 in numbers."""

from __future__ import annotations

from harness import print_table
from kvgym.experiments.scenario import load_scenario
from kvgym.theory.flow import (
    class_load,
    largest_budget_unknown,
    largest_budgets,
    peak_memory,
    smallest_budgets,
)
from papers.flow.tables import number


def print_conditions() -> None:
    """Print the conditions of Section 3 for the setting of Section 4.1."""
    scenario = load_scenario("flow-classes")
    table, capacity = scenario.make_workload().sample(0), scenario.kv_capacity or 0
    classes = table.classes
    print("## Conditions, Section 4.1\n")
    rows = [
        ("arriving work per slot, left side of (1)", class_load(classes), f"M = {capacity:,}"),
        ("peak memory with b = (4, 4, 4), left side of (2)", peak_memory(classes, (4, 4, 4)), "below M"),
        ("largest equal budgets that satisfy (2)", largest_budgets(classes, capacity), ""),
        ("smallest budgets with b_k > λ_k", smallest_budgets(classes), "these violate (2)"),
        (
            "peak memory with those",
            peak_memory(classes, smallest_budgets(classes)),
            "so Theorem 3.3 covers no budgets at this load",
        ),
        (
            "requests per slot that fill M, M / E[w]",
            largest_budget_unknown(class_load(classes) / 15, capacity, 1e-12),
            "arrivals: 15",
        ),
    ]
    print_table(("figure", "value", ""), [(name, number(value), note) for name, value, note in rows])
