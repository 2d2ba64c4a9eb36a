"""Ao, Luo, Simchi-Levi, Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory Constraints"."""

from harness import Paper
from papers.wait import (
    demand,
    examples,
    grouped,
    lengths,
    limits,
    low_demand,
    memory,
    overload,
    problem_3,
    queue_bounds,
    segments,
    theorem_1,
    theorem_2,
    timeline,
    varying,
)

PAPER = Paper(
    name="wait",
    title="Ao, Luo, Simchi-Levi, Wang, “Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory "
    "Constraints”",
    page="wait.md",
    experiments=(
        *lengths.EXPERIMENTS,
        examples.EXPERIMENT,
        overload.EXPERIMENTS[0],
        theorem_1.EXPERIMENT,
        theorem_2.EXPERIMENT,
        queue_bounds.EXPERIMENT,
        *limits.EXPERIMENTS,
        timeline.EXPERIMENT,
        *demand.EXPERIMENTS,
        memory.EXPERIMENT,
        overload.EXPERIMENTS[1],
        low_demand.EXPERIMENT,
        problem_3.EXPERIMENT,
        varying.EXPERIMENT,
        *grouped.EXPERIMENTS,
        *segments.EXPERIMENTS,
    ),
    figures=("Figure 3", *(f"Figure {k}" for k in range(6, 19))),
    theorems=(
        *(f"Proposition {k}" for k in range(1, 6)),
        *(f"Theorem {k}" for k in range(1, 5)),
        *(f"Lemma {k}" for k in range(1, 10)),
        *(f"Example {k}" for k in range(1, 4)),
        "Remark 1",
    ),
)
