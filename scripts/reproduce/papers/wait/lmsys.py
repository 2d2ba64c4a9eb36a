"""The lengths of conversations."""

from __future__ import annotations

import argparse

from harness import print_table
from kvgym import compare
from kvgym.experiments.scenario import load_scenario
from papers.wait.tables import HEADS, result_rows, short_names


def lmsys(options: argparse.Namespace) -> None:
    """The real-lengths setting: the printed thresholds, thresholds that fit the memory, and the baselines."""
    s = load_scenario("wait-lmsys")
    if options.quick:
        s = s.override(workload={**dict(s.workload), "num_requests": 200})  # type: ignore[arg-type]
    outcome = compare(s, seeds=min(options.seeds, 3), jobs=options.jobs, ray=options.ray)
    print_table(
        ("policy", *HEADS, "throughput / vLLM"), result_rows(outcome, short_names(s.policies), "vllm")
    )
