"""The paper's setting: memory, scenarios, printed figures, equation (1), and runs at a rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvgym.batch_time.deployments.load import load_hardware
from kvgym.experiments.scenario import load_scenario
from kvgym.experiments.statistics import Estimate
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.system import System
from kvgym.theory.stability import mean_cumulative_memory_uniform, memory_slack, service_rate
from kvgym.workloads.workload import Workload

M = 131_000
CHUNK = 512  # prompt tokens per chunk, the schedulers' default; the paper does not print its own
LONGEST = 3200  # largest prompt + output of 1:1; the other ratios end at 3199 and 3200
SLACK = memory_slack(M, LONGEST)  # δ
HARDWARE = "llama3-8b-a100-tp1"  # Section 5.1: Llama-3-8B, one A100 per replica
FCFS, LOOKAHEAD = "work_conserving_fcfs", "work_conserving_fcfs_lookahead"
SJF = "work_conserving_sjf"
SINGLE = (FCFS, LOOKAHEAD, SJF, "work_conserving_sjf_lookahead")
BATCH_TIME = 0.0372  # b̄ of 1:1, seconds, Section 5.1
# Section 5.1 and Table 1: b̄ (s), service rate in theory and as measured (requests per second).
PRINTED = {
    "stab-1-1": (BATCH_TIME, 3.226, 3.387),
    "stab-2-1": (0.0430, 4.015, 3.650),
    "stab-1-2": (0.0337, 2.926, 2.969),
}
PRINTED_8_GPUS = (25.808, 26.710)  # Table 3: the same two rates of eight workers
PRINTED_8_1 = {"trimmed_5": 4.977, "trimmed_10": 5.862}  # Table 4, rates in theory by estimator of b̄
MEASURED_8_1 = 5.470  # Table 4
PRINTED_LONGBENCH = (0.561, 0.610)  # Table 2, in theory and as measured
# The printed GAP, per cent.
PRINTED_GAPS = {"1:1": 4.75, "2:1": 10.0, "1:2": 1.45, "LongBench v2": 8.03, "8 GPUs": 3.38}
PRINTED_GAPS_8_1 = {"trimmed_5": 9.0, "trimmed_10": 7.2}


def ratio_of(name: str) -> str:
    """Return how the paper writes the ratio of a scenario: ``1:1``."""
    return name.removeprefix("stab-").replace("-", ":")


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


def slotted(name: str, workers: int = 1) -> System:
    """Return the paper's model: every batch takes the printed b̄ of a scenario, swapping costs nothing."""
    one = load_scenario(name).make_system()
    return one if workers == 1 else one.replicate(workers)


def calibrated(workers: int = 1) -> System:
    """Return one A100 with Llama-3-8B and the paper's memory and rules, or several."""
    hardware = load_hardware(HARDWARE)
    one = System(M, hardware.batch_time(), first_token="uncounted", progress_on_evict="kept")
    return one if workers == 1 else one.replicate(workers)


def run_at(
    name: str,
    rate: float,
    requests: int,
    seed: int,
    policy: str = FCFS,
    *,
    workers: int = 1,
    engine: str = "slotted",
    to_the_end: bool = True,
) -> SimulationResult:
    """Run the requests of a scenario at an arrival rate, with a log; several workers are behind round robin.

    Args:
        name: of the scenario.
        rate: arrivals per second at all workers together.
        requests: how many.
        seed: of the requests.
        policy: the scheduler of every worker.
        workers: how many.
        engine: ``"slotted"`` or ``"calibrated"``.
        to_the_end: until all have finished; else until the last has arrived.
    """
    table = replace_workload(name, rate, requests).sample(seed)
    system = slotted(name, workers) if engine == "slotted" else calibrated(workers)
    if not to_the_end:
        system = replace(system, horizon=float(table.arrival_time[-1]))
    router = None if workers == 1 else "round_robin"
    return simulate(system, table, policy, router=router, seed=seed, log=True)


def interval(e: Estimate, digits: int = 3) -> str:
    """Return a figure with its 95 % interval over seeds; of one seed there is none."""
    return _with_interval(e, f".{digits}f")


def signed(e: Estimate) -> str:
    """Return a slope with its 95 % interval over seeds; of one seed there is none."""
    return _with_interval(e, "+.4f")


def _with_interval(e: Estimate, form: str) -> str:
    return format(e.value, form) + (f" ({e.low:{form}} – {e.high:{form}})" if e.n > 1 else "")
