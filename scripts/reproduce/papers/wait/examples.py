"""Examples 1 and 2 and the instance of Proposition 3."""

from __future__ import annotations

import argparse

import numpy as np

from harness import Where, print_table, where
from kvgym import RequestTable, System, compare, make_batch_time
from kvgym.runner import simulate
from kvgym.theory.fluid import fcfs_overflow_probability, safe_arrivals
from kvgym.workloads.classes import ClassStatistics
from papers.wait.setting import RULES, scenario_of
from papers.wait.tables import fluid_shares, number


def examples(options: argparse.Namespace) -> None:
    """Examples 1 and 2 and the instance of Proposition 3: exact figures, and long runs near C = M*."""
    iterations = 200 if options.quick else 20_000
    pair = (ClassStatistics("1", 1.0, 1.0, 1.0), ClassStatistics("2", 1.0, 1.0, 2.0))
    print(
        f"Proposition 3: overflow probability {fcfs_overflow_probability(pair, [1, 1]):.4f}, "
        f"safe pairs {safe_arrivals(pair, [1, 1])}.\n"
    )
    as_printed(iterations)
    near_capacity(iterations, options.seeds, where(options))


def as_printed(iterations: int) -> None:
    """Run Example 2 with the arrivals of the paper."""
    unit = make_batch_time({"kind": "unit"})
    start = example_table(4, iterations)
    rows = []
    for policy in ("fcfs", "wait:thresholds=4,drain=False", "sarathi:watermark=0.0"):
        system = System(kv_capacity=12, batch_time=unit, horizon=float(iterations), **RULES)
        done = simulate(system, start, policy).worker[0]
        finished, gone = int(done["total_finished"]), int(done["total_evicted"])
        rows.append([policy.partition(":")[0], f"{finished / iterations:.3f}", f"{gone / iterations:.3f}"])
    head = "Example 2 as printed (4 arrivals in every iteration)"
    print_table((head, "completions/iteration", "evictions/iteration"), rows)


def near_capacity(iterations: int, seeds: int, place: Where) -> None:
    """Run both instances with Poisson arrivals and memory from M* upwards."""
    rows = []
    for name, outputs, per_stage, capacities in (
        ("Example 2", (1,), 4, (12, 13, 14, 18)),
        ("Proposition 3", (1, 2), 1, (9, 10, 11, 14)),
    ):
        prompt = {"kind": "constant", "value": 1}
        classes = [
            {"rate": per_stage, "prompt": prompt, "output": {"kind": "constant", "value": o}} for o in outputs
        ]
        workload = {"classes": classes, "duration": iterations}
        policies = {
            "fcfs": "fcfs",
            "wait, n*": f"wait:thresholds={per_stage}",
            "sarathi": "sarathi:watermark=0.0",
        }
        memory, best = capacities[0], per_stage * sum(outputs)
        for d1 in (0.0, 0.05):
            model = {"kind": "affine", "constant": 1 - d1 * memory, "per_context_token": d1}
            for capacity in capacities:
                s = scenario_of(name, workload, capacity, model, horizon=iterations)
                outcome = compare(s, list(policies.values()), seeds=seeds, **place._asdict())
                cells = [name, f"{d1:g}", f"{capacity} ({capacity / memory:.3g} M*)"]
                cells += [f"{share:.3f}" for share in fluid_shares(outcome, policies, best).values()]
                rows.append([*cells, number(outcome.estimate("fcfs", "evictions").value / iterations)])
    head = ("instance, Poisson arrivals", "d1", "C", *(f"{p}, share of fluid" for p in policies))
    print_table((*head, "FCFS evictions per second"), rows)


def example_table(rate: int, iterations: int) -> RequestTable:
    """Return Example 2: 3 requests about to decode, 6 to be prefilled, then ``rate`` in every iteration."""
    times = [0.0] * 3 + [0.5] * 6 + [k + 0.5 for k in range(1, iterations) for _ in range(rate)]
    ones = np.ones(len(times), np.int64)
    return RequestTable.from_columns(
        arrival_time=np.array(times), prompt_len=ones, output_len=ones, class_id=0 * ones,
        classes=(ClassStatistics("hello", float(rate), 1.0, 1.0),),
    )  # fmt: skip
