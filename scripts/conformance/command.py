"""The command ``python scripts/conformance``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance import frozen
from conformance.cases import Case, Schedule, difference
from conformance.engines import NAMES, SGLANG, VARIANTS, VLLM, Comparison, classify, comparison_of
from conformance.wheel import default_cache
from kvgym.errors import KVGymError

EXAMPLES = 5
"""Differences that are printed in full."""


@dataclass
class Outcome:
    """Counts of a campaign.

    Attributes:
        workloads: compared.
        steps: batches of the engine.
        preempted: requests that the engine preempted.
        queues: decisions with more than one waiting request.
        differences: workloads by the class of their first difference; "" = equal.
        seeds: workloads that are not equal.
        examples: the first differences, one line each.
        equal: workloads with equal schedules.
    """

    workloads: int = 0
    steps: int = 0
    preempted: int = 0
    queues: int = 0
    differences: Counter[str] = field(default_factory=Counter)
    seeds: list[int] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)
    equal: list[tuple[Case, Schedule]] = field(default_factory=list)

    def add(self, seed: int, case: Case, theirs: Schedule, kind: str, found: str) -> None:
        """Count a workload and its first difference."""
        self.workloads += 1
        self.steps += len(theirs.steps)
        self.preempted += sum(len(step.preempted) for step in theirs.steps)
        self.queues += sum(len(step.waiting) > 1 for step in theirs.steps)
        self.differences[kind] += 1
        if kind:
            self.seeds.append(seed)
        if not kind:
            self.equal.append((case, theirs))
        elif len(self.examples) < EXAMPLES:
            self.examples.append(f"workload {seed} ({kind}): {found or 'equal as far as compared'}")

    def write(self, path: Path, engine: str, first: int) -> None:
        """Write the counts, and the numbers of the workloads that differ."""
        names = ("workloads", "steps", "preempted", "queues", "differences", "seeds")
        counts: dict[str, Any] = {name: getattr(self, name) for name in names}
        path.write_text(json.dumps({"engine": engine, "first": first, **counts}) + "\n", "utf-8")

    def described(self, engine: str) -> str:
        """Return the counts as text."""
        counts = f"{self.steps} steps, {self.queues} queues, {self.preempted} preemptions"
        lines = [f"{engine}: {self.workloads} workloads, {counts}"]
        for kind, count in sorted(self.differences.items()):
            share = 100 * count / self.workloads
            lines.append(f"  {kind or 'equal'}: {count} ({share:.2f} %)")
        return "\n".join([*lines, *(f"  {line[:600]}" for line in self.examples)])


def compare(comparison: Comparison, seeds: range, at_once: bool, written: Path | None = None) -> Outcome:
    """Play workloads in the engine and in kvgym; return how many schedules are equal.

    Args:
        comparison: the engine.
        seeds: of the workloads.
        at_once: whether the KV of output tokens is written at once in kvgym.
        written: file for the counts, written after every 100 workloads.
    """
    outcome, shown = Outcome(), time.monotonic()
    for seed in seeds:
        case = comparison.draw(seed)
        theirs = comparison.theirs(case)
        found = difference(comparison.ours(case, at_once), theirs, comparison.compared)
        outcome.add(seed, case, theirs, classify(found, theirs, comparison.name), found)
        if written is not None and outcome.workloads % 100 == 0:
            outcome.write(written, comparison.name, seeds.start)
        if sys.stderr.isatty() and time.monotonic() - shown > 1:
            shown = time.monotonic()
            print(f"\r{outcome.workloads} of {len(seeds)}", end="", file=sys.stderr)
    return outcome


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        "python scripts/conformance", description="Compare schedules of kvgym with an engine's."
    )
    add = found.add_argument
    add("engine", choices=("vllm", "sglang", *NAMES))
    add("--version", help=f"release of vLLM, default {VLLM}, or SGLang, default {SGLANG}")
    add(
        "--source",
        type=Path,
        metavar="FOLDER",
        help="checkout of Sarathi-Serve or Vidur; of vLLM or SGLang: in place of its wheel",
    )
    add("--cache", type=Path, metavar="FOLDER", help=f"folder for wheels, default {default_cache()}")
    add("--workloads", type=int, default=100, help="number of random workloads, default 100")
    add("--first", type=int, default=0, metavar="SEED", help="first of them, default 0")
    add(
        "--at-once",
        action="store_true",
        help="leave output_kv at its default: KV of output tokens is written one iteration earlier than in engines",
    )
    add(
        "--prefix-cache",
        action="store_true",
        help="switch on prefix caching in vLLM; requests begin with common texts",
    )
    add(
        "--async-scheduling",
        action="store_true",
        help="let vLLM decide a batch when the one before it starts",
    )
    add("--speculation", action="store_true", help="let vLLM verify drafts, of random depths and acceptance")
    add(
        "--offloading",
        action="store_true",
        help="let vLLM's connector keep KV in the memory of the host, with prefix caching",
    )
    add(
        "--variant",
        choices=VARIANTS,
        help="of SGLang: in-place = its policy sorts the queue that it has sorted before, not one in order of arrival; "
        "touched = what a preempted request leaves counts as used when it leaves, as in kvgym",
    )
    add("--freeze", type=Path, metavar="FILE", help="record some equal schedules for the tests")
    add("--json", type=Path, metavar="FILE", help="write the counts, also while it runs")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 1 if a difference is of no known class."""
    reader = parser()
    options = reader.parse_args(arguments)
    if options.workloads < 1:
        reader.error(f"--workloads {options.workloads}: expected a whole number ≥ 1")
    try:
        comparison = comparison_of(
            options.engine,
            options.version,
            options.source,
            options.cache or default_cache(),
            options.prefix_cache,
            options.async_scheduling,
            options.variant,
            options.speculation,
            options.offloading,
        )
        seeds = range(options.first, options.first + options.workloads)
        outcome = compare(comparison, seeds, options.at_once, options.json)
    except KVGymError as error:
        raise SystemExit(f"error: {error}") from None
    print(outcome.described(comparison.name))
    if options.json:
        outcome.write(options.json, comparison.name, options.first)
    if options.freeze:
        frozen.write(options.freeze, comparison.described, frozen.choose(outcome.equal, 12))
    if "other" in outcome.differences:
        raise SystemExit(1)
