"""The paper's setting: memory, scenarios, the printed figures, and equation (1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness import HERE, Where
from kvgym.experiments.scenario import load_scenario
from kvgym.theory.stability import mean_cumulative_memory_uniform, memory_slack, service_rate
from kvgym.workloads.workload import Workload

M = 131_000
CHUNK = 512  # prompt tokens per chunk, the schedulers' default; the paper does not print its own
LONGEST = 3200  # largest prompt + output of 1:1; the other ratios end at 3199 and 3200
SLACK = memory_slack(M, LONGEST)  # δ
FCFS, LOOKAHEAD = "work_conserving_fcfs", "work_conserving_fcfs_lookahead"
SINGLE = (FCFS, LOOKAHEAD, "work_conserving_sjf", "work_conserving_sjf_lookahead")
# Tables 1, 2 and 4: printed b̄ (s), service rate in theory and as measured (requests per second).
PRINTED = {
    "stab-1-1": (0.0372, 3.226, 3.387),
    "stab-2-1": (0.0430, 4.015, 3.650),
    "stab-1-2": (0.0337, 2.926, 2.969),
}
PRINTED_8_GPUS = (25.808, 26.710)  # the same two rates of eight workers


@dataclass(frozen=True)
class Plan:
    """How much to run: seeds, and requests per run on one and on eight workers."""

    seeds: int = 10
    requests: int = 10_000
    requests_8: int = 56_000
    where: Where = HERE
    margin: int = 1000  # requests left out at each end where a rate is measured, Section 5.2


def bounds_of(workload: Workload) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the (lowest, highest) prompt and output lengths of a workload with uniform lengths."""
    lengths: Any = workload.spec.lengths
    return (lengths.prompt.low, lengths.prompt.high), (lengths.output.low, lengths.output.high)


def rate_of(name: str, batch_time: float, chunk: int = CHUNK) -> float:
    """Return μ of one worker of a scenario from equation (1), requests per second."""
    prompt, output = bounds_of(load_scenario(name).make_workload())
    return service_rate(M, batch_time, mean_cumulative_memory_uniform(prompt, output, chunk))


def replace_workload(name: str, rate: float, requests: int) -> Workload:
    """Return the workload of a scenario at another rate and length."""
    source = load_scenario(name).workload
    fields = {"preset": source} if isinstance(source, str) else dict(source)
    return (
        load_scenario(name)
        .override(workload={**fields, "rate": rate, "num_requests": requests})
        .make_workload()
    )
