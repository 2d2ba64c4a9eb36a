"""Reproduce the experiments of the flow-control paper (Sections 4.1 and 4.2), as Markdown tables.

    python scripts/reproduce/flow.py                      both experiments, a few minutes
    python scripts/reproduce/flow.py --requests 50000     Section 4.2 with the paper's number of requests
    python scripts/reproduce/flow.py --quick              seconds, to see that it runs

Hyperparameters that the paper searches for are chosen on seeds of their own (from 1000), never on those that
are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness import command_line, where, write_json
from papers.flow.conditions import print_conditions
from papers.flow.conversations import conversations
from papers.flow.runs import Plan
from papers.flow.synthetic import synthetic


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line(__doc__, seeds=Plan.seeds)
    parser.add_argument("--requests", type=int, help="requests of Section 4.2 (default 5000; paper 50000)")
    parser.add_argument("--only", choices=("4.1", "4.2"), help="one experiment")
    parser.add_argument("--out", type=Path, help="folder for flow.json with every figure")
    args = parser.parse_args(arguments)
    plan = Plan(horizons=(60, 120), seeds=2, tuning_seeds=1, requests=150) if args.quick else Plan()
    plan = replace(
        plan, seeds=args.seeds or plan.seeds, requests=args.requests or plan.requests, where=where(args)
    )
    found: dict[str, object] = {}
    if args.only != "4.2":
        print_conditions()
        for name in ("flow-classes", "flow-unknown"):
            found[name] = synthetic(name, plan)
    if args.only != "4.1":
        for name in ("flow-lmsys-10", "flow-lmsys-50"):
            found[name] = conversations(name, plan)
    if args.out is not None:
        write_json(args.out / "flow.json", found, default=float)


if __name__ == "__main__":
    main()
