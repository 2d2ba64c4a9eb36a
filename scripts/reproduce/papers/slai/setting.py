"""Compared policies, rates, and the length of runs."""

from __future__ import annotations

from dataclasses import dataclass

from harness import Scale

SCENARIOS = {"slai-5": "5 % paying", "slai-50": "50 % paying", "slai-95": "95 % paying"}
NAMES = {
    "vllm": "vLLM",
    "sarathi": "Sarathi FCFS",
    "sarathi:order=spf": "Sarathi SPF",
    "slai:order=fcfs": "SLAI FCFS, δ = 10",
    "slai": "SLAI SPF, δ = 10",
    "slai:offset=5": "SLAI SPF, δ = 5",
    "slai:low_offset=5": "SLAI SPF, dynamic δ",
    "slai:low_offset=5,paying_first=true": "SLAI SPF, dynamic δ, paying first",
}
VLLM, FCFS, SPF, SLAI_FCFS, FIXED, FIXED_5, DYNAMIC, PAYING_FIRST = NAMES
COMPARED = (VLLM, FCFS, SPF, SLAI_FCFS, FIXED, DYNAMIC)
WATCHED = (VLLM, FCFS, SPF, DYNAMIC)
PAPER_RATES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6)
# Finer where the medians pass 0.5 s, and on to where Sarathi FCFS falls behind for good.
RATES = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0)
PEAK = 1.6  # requests per second: the highest of the paper
TTFT_BOUND, FCFS_AT_HIGH_LOAD = 0.5, 1.5  # seconds: the capacity's constraint; what the paper calls high load


@dataclass(frozen=True)
class Plan:
    """Length of a run, and its measurement windows.

    Attributes:
        duration: seconds of arrivals.
        warm_up: seconds excluded from the measurement.
        window: start and end of the time in which gaps between tokens are recorded by class, seconds.
        window_seeds: seeds for that.
    """

    duration: float = 2100.0
    warm_up: float = 300.0
    window: tuple[float, float] = (1300.0, 1500.0)
    window_seeds: int = 5


QUICK = Plan(120.0, 20.0, (60.0, 61.0), 1)


def plan_of(scale: Scale) -> Plan:
    """Return the plan of a full or a quick run."""
    return scale.pick(Plan(), QUICK)
