"""The SLAI paper: its model and theorems, Section 7 and Appendix F."""

from harness import Paper
from papers.slai.chunks import CHUNKS
from papers.slai.lengths import LENGTHS
from papers.slai.memory import MEMORY
from papers.slai.mixes import FIFTY, FIVE, NINETY_FIVE
from papers.slai.overheads import SENSITIVITY
from papers.slai.parameters import PARAMETERS
from papers.slai.planner import PLANNER
from papers.slai.principles import PRINCIPLES
from papers.slai.priority import PRIORITY
from papers.slai.prompts import PROMPTS
from papers.slai.stability import LEMMAS, THEOREMS

PAPER = Paper(
    name="slai",
    title='Bari, Hegde, de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and Practice"',
    page="slai.md",
    experiments=(
        PLANNER, CHUNKS, THEOREMS, LEMMAS, PRINCIPLES, LENGTHS, PARAMETERS, FIVE, MEMORY, PROMPTS, PRIORITY, FIFTY,
        NINETY_FIVE, SENSITIVITY,
    ),
    figures=(
        "Table 1", "Figure 6a", "Figure 6b", "Figure 6c", "Figure 7a", "Figure 7b", "Figure 7c", "Figure 8",
        "Figure 9a", "Figure 9b", "Figure 9c", "Figure 10a", "Figure 10b", "Figure 11", "Figure 12",
    ),
    theorems=("Theorem 1", "Theorem 2", "Proposition 1", *(f"Lemma {k}" for k in range(1, 5))),
)  # fmt: skip
