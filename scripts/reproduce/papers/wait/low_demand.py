"""Far below saturation, with the whole memory."""

from __future__ import annotations

import argparse

import numpy as np

from harness import print_table
from kvgym import compare, load_hardware, make_workload
from kvgym.theory.fluid import batch_memory, wait_thresholds
from kvgym.theory.nested import nested_thresholds, segment_memory
from papers.wait.equilibrium import rate_at
from papers.wait.setting import ENGINE, HARDWARE, scenario_of
from papers.wait.tables import HEADS, result_rows, short_names


def low_demand(options: argparse.Namespace) -> None:
    """Run the three types of the high-demand setting far below saturation, with the whole memory."""
    hardware = load_hardware(HARDWARE)
    classes = make_workload("wait-high").class_statistics
    most = rate_at(classes, hardware.kv_capacity, hardware.batch_time(engine=ENGINE))
    rows = []
    for share in (0.5,) if options.quick else (0.1, 0.5, 0.9):
        horizon = 20 if options.quick else 600
        workload = {"preset": "wait-high", "rate": share * most, "duration": horizon}
        s = scenario_of("low", workload, hardware.kv_capacity, None)
        policies = short_names(
            (
                "fcfs",
                "vllm:max_batch_requests=1024",
                "sarathi:token_budget=2048,max_batch_requests=1024",
                "wait",
                "wait:rule=practical,batch_limit=1024",
                "nested_wait",
            )
        )
        known = wait_thresholds(s.make_workload().class_statistics, hardware.batch_time(engine=ENGINE))
        nested = nested_thresholds(
            share * most * np.array([3, 2, 1]) / 6, 20, [100, 200, 300], hardware.batch_time(engine=ENGINE)
        )
        print(
            f"Share {share:g}: thresholds (11) {'/'.join(map(str, known))}, M^pi {batch_memory(classes, known):,.0f}; "
            f"(12) {'/'.join(map(str, nested))}, M^pi {segment_memory(nested, 20, [100, 200, 300]):,.0f}.\n"
        )
        outcome = compare(s, list(policies.values()), seeds=options.seeds, jobs=options.jobs, ray=options.ray)
        rows += [[f"{share:g}", r[0], *r[1:6], r[7]] for r in result_rows(outcome, policies, "vllm")]
    print(f"Share of the rate at which M* = C, {most:.1f} requests/s on this hardware; until all are done.\n")
    print_table(("share", "policy", *HEADS[:5], "throughput / vLLM"), rows)
