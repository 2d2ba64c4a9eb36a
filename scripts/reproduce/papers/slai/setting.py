"""Which policies are compared, at which rates, and how much is run."""

from __future__ import annotations

from dataclasses import dataclass

from harness import HERE, Where

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
FCFS, SPF, FIXED, DYNAMIC, PAYING_FIRST = (
    "sarathi", "sarathi:order=spf", "slai", "slai:low_offset=5", "slai:low_offset=5,paying_first=true"
)  # fmt: skip
COMPARED = [name for name in NAMES if name not in ("slai:offset=5", PAYING_FIRST)]
WATCHED = ("vllm", FCFS, SPF, DYNAMIC)
PAPER_RATES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6)
# Finer where the medians pass 0.5 s, and on to where Sarathi FCFS falls behind for good.
RATES = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0)
SENSITIVITY_RATES = tuple(round(0.4 + 0.1 * k, 1) for k in range(25))
OVERHEADS = (0.003, 0.015, 0.028, 0.04)
TTFT_BOUND, FCFS_AT_HIGH_LOAD = 0.5, 1.5  # seconds: the capacity's constraint; what the paper calls high load


@dataclass(frozen=True)
class Plan:
    """How much is run: rates in requests per second, numbers of seeds, seconds of arrivals and of warm-up."""

    rates: tuple[float, ...] = RATES
    seeds: int = 10
    duration: float = 2100.0
    warm_up: float = 300.0
    class_seeds: int = 3
    class_window: tuple[float, float] = (1300.0, 1500.0)
    sensitivity_rates: tuple[float, ...] = SENSITIVITY_RATES
    sensitivity_seeds: int = 5
    overheads: tuple[float, ...] = OVERHEADS
    where: Where = HERE

    @property
    def shown(self) -> list[float]:
        """Return the rates for tables: the paper's, and the one beyond them."""
        return [r for r in self.rates if r in (*PAPER_RATES, 1.8)]


QUICK = Plan((1.2, 1.6), 2, 120.0, 20.0, 1, (60.0, 62.0), (1.0, 2.0), 2, (0.003, 0.028))
