"""The flow-control paper, Sections 3 and 4 and Appendices A and B."""

from harness import Paper
from papers.flow import overflows
from papers.flow.adaptive import ADAPTIVE
from papers.flow.conversations import FIGURE_2, FIGURE_3
from papers.flow.optima import FIGURE_4
from papers.flow.stability import CONDITIONS, THEOREM
from papers.flow.synthetic import ALPHA, FIGURE_1

PAPER = Paper(
    name="flow",
    title="Flow control for LLM inference (stability by controlled activation)",
    page="flow.md",
    experiments=(
        CONDITIONS,
        THEOREM,
        overflows.THEOREM,
        ADAPTIVE,
        FIGURE_1,
        ALPHA,
        FIGURE_2,
        FIGURE_3,
        FIGURE_4,
    ),
    figures=("Figure 1", "Figure 2", "Figure 3", "Figure 4"),
    theorems=("Proposition 3.2", "Theorem 3.3", "Proposition 3.5", "Theorem 3.6"),
)
