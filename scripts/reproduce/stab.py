"""Reproduce the figures of the stability paper (Section 5, Appendix C), as Markdown tables.

    python scripts/reproduce/stab.py                                     all, a few minutes
    python scripts/reproduce/stab.py --figure docs/images/stab.png       and the picture of the queues
    python scripts/reproduce/stab.py --quick                             seconds, to see that it runs

"A Queueing-Theoretic Framework for Stability Analysis of LLM Inference with KV Cache Memory Constraints".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness import command_line, where, write_json
from papers.stab.batch_times import print_batch_times, print_measured
from papers.stab.provisioning import print_provisioning
from papers.stab.queues import print_queues
from papers.stab.setting import Plan
from papers.stab.theory import print_theory


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line(__doc__, seeds=Plan.seeds)
    parser.add_argument("--figure", type=Path, help="where to draw the queue lengths (PNG; needs matplotlib)")
    parser.add_argument("--out", type=Path, help="folder for stab.json with the simulated figures")
    args = parser.parse_args(arguments)
    plan = Plan(seeds=2, requests=600, requests_8=2400, margin=100) if args.quick else Plan()
    plan = replace(plan, seeds=args.seeds or plan.seeds, where=where(args))
    print_theory()
    found = {"queues": print_queues(plan), "measured": print_measured(plan)}
    print_batch_times(plan)
    found["provisioning"] = print_provisioning(plan)
    if args.figure is not None:
        from papers.stab.figure import draw_queues  # needs matplotlib

        draw_queues(plan, args.figure)
    if args.out is not None:
        write_json(args.out / "stab.json", found, default=vars)


if __name__ == "__main__":
    main()
