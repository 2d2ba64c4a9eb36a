"""Mutation testing: make one small change to a module, run its nearest tests, and list undetected changes.

    python scripts/checks/mutate.py                         60 mutations of each module of mutating/modules.yaml
    python scripts/checks/mutate.py batch metrics           of these modules only
    python scripts/checks/mutate.py --number 100 --seed 1   another sample

Each mutation is tried in a separate process without compilation; the working tree does not change. Results go to a
file: the next call skips mutations with a result, and tries survivors again once their tests have changed. Survivors
that alter no result are listed with the reason in scripts/checks/mutating/equivalent.yaml. Exits with 1 if any other
mutation survives.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MUTATING = ROOT / "scripts" / "checks" / "mutating"

PRELOADED = ("pytest", "hypothesis", "numba.np.arrayobj", "gymnasium", "pydantic.main", "yaml")
"""Libraries that every test needs. They are loaded once, and forked processes share them."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="MODULE", help="e.g. batch; default: all modules")
    parser.add_argument("--number", type=int, default=60, help="mutations of each module (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default 0)")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "runs" / "mutations.jsonl", help="file of results"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also ends the process of the mutation
    os.environ |= {"NUMBA_DISABLE_JIT": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    sys.path[:0] = [str(ROOT)]

    from mutating.campaign import Campaign, read_equivalent, read_modules
    from mutating.trying import preload

    modules = read_modules(MUTATING / "modules.yaml")
    known = {Path(module).stem: module for module in modules}
    if wrong := [name for name in options.names if name not in known]:
        parser.error(f"unknown module {wrong[0]!r}; valid: {', '.join(known)}")
    preload(PRELOADED)
    campaign = Campaign(
        root=ROOT,
        modules={known[name]: modules[known[name]] for name in options.names or known},
        equivalent=read_equivalent(MUTATING / "equivalent.yaml"),
        results=options.results,
    )
    sys.exit(1 if campaign.run(options.number, options.seed) else 0)


if __name__ == "__main__":
    main()
