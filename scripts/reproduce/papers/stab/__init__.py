"""The stability paper, Sections 3 to 6 and Appendices A to C."""

from harness import Paper
from papers.stab.batch_times import FIGURE_1, FIGURE_5, FIGURE_7
from papers.stab.drift import DRIFT
from papers.stab.equation import EQUATION_1
from papers.stab.measured import LONGBENCH, MEASURED
from papers.stab.provisioning import PROVISIONING
from papers.stab.rates import FIGURE_2, FIGURE_4, FIGURE_6
from papers.stab.theorems import ORDER, THEOREMS

PAPER = Paper(
    name="stab",
    title="A Queueing-Theoretic Framework for Stability Analysis of LLM Inference with KV Cache Memory Constraints",
    page="stab.md",
    experiments=(
        EQUATION_1,
        THEOREMS,
        DRIFT,
        ORDER,
        FIGURE_2,
        FIGURE_4,
        FIGURE_6,
        FIGURE_1,
        FIGURE_5,
        FIGURE_7,
        MEASURED,
        LONGBENCH,
        PROVISIONING,
    ),
    figures=(*(f"Figure {number}" for number in range(1, 9)), *(f"Table {number}" for number in range(1, 5))),
    theorems=("Theorem 1", "Theorem 2"),
)
