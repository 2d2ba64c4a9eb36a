"""Fuzz kvgym: mutated inputs of every kind must succeed or end in a clear error.

    python scripts/checks/fuzz.py --cases 2000                 # about a minute
    python scripts/checks/fuzz.py --cases 100000 --jobs 2 --seed 7  # some minutes
    python scripts/checks/fuzz.py --kinds trace,scenario --cases 5000
    python scripts/checks/fuzz.py --case trace:7:421           # one input again, with its traceback
    python scripts/checks/fuzz.py --replay fuzz-found/x.json   # a saved input

Kind, seed and number determine an input. A failure is a foreign exception, a hang (more than 20 s of CPU time),
excessive memory, accepting a known error, or a message of more than 300 characters. The smallest input of each failure
is written to ``--out`` when it is found, and printed at the end. After the fix, move its file to ``tests/fuzz/corpus``,
which the tests play. The exit status is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from fuzz.campaign import Report, failures, play, prepare, run, save, shrink  # noqa: E402
from fuzz.kinds import all_kinds  # noqa: E402
from kvgym.cli.warming import all_kernels  # noqa: E402


def main() -> int:
    """Play inputs and report the outcomes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2000, help="about how many inputs")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutations")
    parser.add_argument("--kinds", default="", help="comma-separated (default: all)")
    parser.add_argument(
        "--case", default="", metavar="KIND:SEED:NUMBER", help="play one input and show its traceback"
    )
    parser.add_argument("--replay", type=Path, help="play a saved input and show its traceback")
    parser.add_argument("--out", type=Path, default=Path("fuzz-found"), help="folder for failing inputs")
    options = parser.parse_args()
    kinds = all_kinds()
    if options.case or options.replay:
        return _one(options.case, options.replay)
    unknown = set(filter(None, options.kinds.split(","))) - set(kinds)
    if unknown:
        parser.error(f"unknown kinds {', '.join(sorted(unknown))}; choose from {', '.join(kinds)}")
    chosen = {name: kinds[name] for name in (options.kinds.split(",") if options.kinds else kinds)}

    def progress(report: Report, total: int) -> None:
        done, failed = sum(report.counts.values()), sum(f.count for f in report.findings.values())
        begins = f"; preparing {', '.join(report.preparing)}" if report.preparing else ""
        _print(f"{done:,} of {total:,}, {report.seconds:,.0f} s, {failed} failures{begins}")
        save(report, options.out)

    kernels = all_kernels()
    missing = sum(not kernel.cached for kernel in kernels)
    if missing:
        _print(
            f"{missing} of {len(kernels)} functions are not compiled for this machine yet; each is compiled once, when"
            " an input needs it: minutes in all (kvgym warm-up does it beforehand)"
        )

    report = run(chosen, options.cases, options.seed, options.jobs, progress)
    for paragraph in failures(report):
        print(paragraph, end="\n\n")
    if report.findings:
        print(f"written to {options.out}: {len(save(report, options.out))} files")
    print(f"python {' '.join(sys.argv)}\n{report.table()}")
    return 1 if report.findings else 0


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _one(case: str, path: Path | None) -> int:
    prepare()
    if path is not None:
        content = json.loads(path.read_text("utf-8"))
        kind, tree = all_kinds()[content["kind"]], content["input"]
    else:
        name, seed, number = case.split(":")
        kind = all_kinds()[name]
        tree = kind.make(int(seed), int(number))
    verdict = play(kind, tree)
    if verdict.failed:
        tree, verdict = shrink(tree, verdict, lambda candidate: play(kind, candidate))
    print(json.dumps(tree, indent=1), verdict.trace, f"{verdict.outcome}: {verdict.message}", sep="\n")
    return int(verdict.failed)


if __name__ == "__main__":
    sys.exit(main())
