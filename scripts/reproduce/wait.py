"""Reproduce the experiments of the WAIT paper, and measure where WAIT and Nested WAIT win.

Source: R. Ao, G. Luo, D. Simchi-Levi, X. Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling with
Memory Constraints", Sections 4.1, 6 and 7. Prints Markdown tables; docs/reproductions/wait.md discusses them.

    python scripts/reproduce/wait.py                    # everything
    python scripts/reproduce/wait.py --only literal     # one section
    python scripts/reproduce/wait.py --quick            # seconds: shows that it runs, the figures mean nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness import command_line
from papers.wait.examples import examples
from papers.wait.literal import literal
from papers.wait.lmsys import lmsys
from papers.wait.low_demand import low_demand
from papers.wait.multiples import BALANCED, multiples
from papers.wait.segments import segments

SECTIONS = {
    "multiples": multiples,
    "literal": literal,
    "low_demand": low_demand,
    "lmsys": lmsys,
    "examples": examples,
    "segments": segments,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the sections asked for."""
    parser = command_line(__doc__, seeds=5)
    parser.add_argument(
        "--only", choices=list(SECTIONS), action="append", help="run this section (repeatable)"
    )
    parser.add_argument(
        "--preset", choices=[b.preset for b in BALANCED], help="of the section multiples: only this"
    )
    parser.add_argument("--image", type=Path, help="draw throughput against C / M* into this file")
    options = parser.parse_args(arguments)
    options.seeds = options.seeds or (2 if options.quick else 5)
    for name in options.only or SECTIONS:
        print(f"## {name}\n", flush=True)
        result = SECTIONS[name](options)
        if result is not None and options.image:
            from papers.wait.figure import draw  # needs matplotlib

            draw(result, options.image)


if __name__ == "__main__":
    main()
