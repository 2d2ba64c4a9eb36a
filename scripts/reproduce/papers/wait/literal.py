"""The paper's settings at its printed rates."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from harness import print_table
from kvgym import compare, load_hardware, make_workload
from kvgym.experiments.scenario import load_scenario
from kvgym.theory.fluid import batch_memory, practical_thresholds, stability_load
from papers.wait.equilibrium import fit_affine, rate_at
from papers.wait.setting import ENGINE, HARDWARE, RULES
from papers.wait.tables import HEADS, number, result_rows, short_names

LITERAL = ("wait-low", "wait-high", "wait-nested", "wait-bins-low", "wait-bins-high")


def literal(options: argparse.Namespace) -> None:
    """Run the paper's settings at its printed rates: over a horizon of arrivals, and until all are done."""
    names = LITERAL[:1] if options.quick else LITERAL
    print_loads(names)
    for name in names:
        s = load_scenario(name)
        for reading in ("horizon", "drained"):
            changed = s
            if options.quick:
                changed = s.override(
                    workload={"preset": name, "duration": 0.5}, system={**RULES, "horizon": 0.5}
                )
            elif reading == "drained":
                changed = s.override(workload={"preset": name, "num_requests": 10_000}, system=RULES)
            outcome = compare(changed, seeds=options.seeds, jobs=options.jobs, ray=options.ray)
            print(f"### {name}, {reading}: {outcome.num_requests[0]:,} requests in seed 0\n")
            print_table(
                ("policy", *HEADS, "throughput / vLLM"), result_rows(outcome, short_names(s.policies), "vllm")
            )


def print_loads(names: Sequence[str]) -> None:
    """Print the load of the printed rates, and the practical thresholds."""
    hardware = load_hardware(HARDWARE)
    d0, d1, *_ = fit_affine(hardware.batch_time(engine=ENGINE), hardware.kv_capacity)
    loads = []
    for name in names:
        s = load_scenario(name)
        system, classes = s.make_system(), s.make_workload().class_statistics
        rate, affine = sum(c.rate for c in classes), stability_load(classes, d1)
        memory = d0 / d1 * affine / (1 - affine) if affine < 1 else float("nan")
        most = rate_at(classes, system.kv_capacity, system.batch_time)
        cells = [rate, sum(c.rate * c.output_len for c in classes), affine, memory, most, rate / most]
        loads.append([name, *(number(x) for x in cells)])
    print("### Load of the printed rates\n")
    head = (
        "requests/s",
        "output tokens/s",
        "load, affine fit",
        "M* (8)",
        "A100 sustains, requests/s",
        "rate over that",
    )
    print_table(("scenario", *head), loads)
    classes = make_workload("wait-high").class_statistics
    practical = practical_thresholds(classes, 1024)
    print(
        f"Practical thresholds of wait-high: {'/'.join(map(str, practical))}, M^pi "
        f"{batch_memory(classes, practical):,.0f}; of wait-low: "
        f"{'/'.join(map(str, practical_thresholds(make_workload('wait-low').class_statistics, 128)))}.\n"
    )
