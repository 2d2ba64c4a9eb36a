"""The experiments of "Online Scheduling for LLM Inference with KV Cache Constraints"."""

from harness import Paper
from papers.mc_sf import (
    bounds,
    decisions,
    demand,
    hindsight_adversary,
    hindsight_exact,
    hindsight_synthetic,
    lengths,
    memory,
    noise,
    protection,
    sweeps,
    table_1,
    throughput,
)

PAPER = Paper(
    name="mc_sf",
    title='P. Jaillet et al., "Online Scheduling for LLM Inference with KV Cache Constraints"',
    page="mc-sf.md",
    experiments=(
        *hindsight_synthetic.EXPERIMENTS,
        *hindsight_exact.EXPERIMENTS,
        *hindsight_adversary.EXPERIMENTS,
        decisions.EXPERIMENT,
        bounds.EXPERIMENT,
        demand.EXPERIMENT,
        memory.EXPERIMENT,
        throughput.EXPERIMENT,
        protection.EXPERIMENT,
        noise.EXPERIMENT,
        table_1.EXPERIMENT,
        lengths.EXPERIMENT,
        *sweeps.EXPERIMENTS,
    ),
    figures=(*(f"Figure {number}" for number in (2, 3, 4, 5, *range(7, 14))), "Table 1"),
    theorems=(
        "Theorem 4.1",
        "Proposition 4.2",
        "Theorem 4.3",
        *(f"Lemma {name}" for name in ("4.4", "4.5", "4.7", "B.1", "B.3", "B.4")),
    ),
)
