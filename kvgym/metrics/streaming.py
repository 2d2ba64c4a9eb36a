"""Metrics of a run in pieces: sums, and histograms for quantiles, in place of records.

Means and standard deviations equal those of :func:`~kvgym.metrics.compute.compute_metrics` to 1e-12 relative. Quantiles
are between values that are right to 2^-10 relative, as those of ``tbt`` are in all runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvgym.metrics.attainment import has_targets, met_slo, slo_met
from kvgym.metrics.catalogue import SCALARS, STANDARD_METRICS
from kvgym.metrics.measured import STATISTICS, Measured, gap_statistics, ratio
from kvgym.policies.policy import Policy
from kvgym.policies.results import SimulationResult
from kvgym.policies.streaming import Draw, PiecewiseRun
from kvgym.simulator.system import System
from kvgym.simulator.tables import GAP_BINS, GAP_MIN_EXPONENT
from kvgym.utils.arguments import explained

TOTALS = (
    "generated_token_throughput", "processed_token_throughput", "evictions", "recomputed_tokens", "put_back",
    "overflows", "kv_utilisation", "kv_peak", "batch_size", "active_requests", "busy_fraction", "iterations",
)  # fmt: skip
"""Metrics that the worker counts itself."""

KINDS = ("ttft", "tbt", "e2e")


@dataclass(frozen=True)
class Streamed:
    """The outcome of a run in pieces.

    Attributes:
        metrics: those of :data:`STANDARD_METRICS` that do not need records, in that order.
        num_requests: requests of the run; all have finished.
        policy: the policy.
    """

    metrics: dict[str, float]
    num_requests: int
    policy: Policy


class Sketch:
    """Sums and a histogram of numbers ≥ 0.

    Attributes:
        count: how many.
        total: their sum, as a sum and what rounding has lost of it.
        mean: their mean.
        squares: sum of the squares of their differences from the mean.
        largest: the largest one.
        bins: how many fall into each bin of :mod:`kvgym.simulator.recording.gaps`.
        sums: their sums by bin.
    """

    def __init__(self) -> None:
        self.count, self.total, self.mean, self.squares = 0, (0.0, 0.0), 0.0, 0.0
        self.largest = 0.0
        self.bins, self.sums = np.zeros(GAP_BINS, np.int64), np.zeros(GAP_BINS)

    def add(self, values: NDArray[np.float64]) -> None:
        """Add numbers, float64 (k,)."""
        k = len(values)
        if not k:
            return
        added = float(np.add.reduce(values))
        mean = added / k
        apart, both = mean - self.mean, self.count + k
        self.squares += float(np.add.reduce((values - mean) ** 2)) + apart * apart * self.count * k / both
        self.count, self.total = both, _sum(self.total, added)
        self.mean = (self.total[0] + self.total[1]) / both
        self.largest = max(self.largest, float(values.max()))
        bits = np.ascontiguousarray(values).view(np.int64) >> 42  # as in `gap_bin`
        places = np.clip(bits - ((1022 + GAP_MIN_EXPONENT) << 10), 0, GAP_BINS - 1)
        first = int(places.min())
        places -= first
        counts = np.bincount(places)
        self.bins[first : first + len(counts)] += counts
        self.sums[first : first + len(counts)] += np.bincount(places, values)

    def statistics(self, run: Measured) -> dict[str, float]:
        """Return the :data:`STATISTICS` of the numbers."""
        found = gap_statistics(
            replace(run.scope, gap_counts=self.bins, gap_sums=self.sums, longest_gap=self.largest)
        )
        if self.count:
            found |= {"mean": self.mean, "std": math.sqrt(self.squares / self.count)}
        return found


def _sum(total: tuple[float, float], added: float) -> tuple[float, float]:
    """Return a sum with a further term, and what rounding has lost of it (Neumaier)."""
    large, lost = total
    both = large + added
    small = (large - both) + added if abs(large) >= abs(added) else (added - both) + large
    return both, lost + small


class _Sums:
    """What is kept of the requests of a run."""

    def __init__(self) -> None:
        self.latencies = {name: Sketch() for name in ("e2e_latency", "ttft", "tpot", "queueing_delay")}
        self.rates, self.rate_squares = (0.0, 0.0), (0.0, 0.0)
        self.finished = self.met = self.input = self.output = 0
        self.targets, self.within, self.having = False, dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
        self.first, self.end, self.longest_gap = math.inf, 0.0, 0.0

    def add(self, result: SimulationResult, run: Measured) -> None:
        """Add a piece."""
        table = result.table
        values = {"e2e_latency": run.e2e, "ttft": run.ttft, "tpot": run.tpot(), "queueing_delay": run.waited}
        for name, sketch in self.latencies.items():
            sketch.add(values[name])
        rates = table.output_len / np.maximum(run.e2e, 1e-12)
        self.rates = _sum(self.rates, float(np.add.reduce(rates)))
        self.rate_squares = _sum(self.rate_squares, float(np.add.reduce(rates**2)))
        self.finished += len(table)
        self.input, self.output = (
            self.input + int(table.prompt_len.sum()),
            self.output + int(table.output_len.sum()),
        )
        self.targets = self.targets or has_targets(table)
        self.met += int(np.count_nonzero(slo_met(result)))
        for kind in KINDS:
            within, having = met_slo(result, kind)
            self.within[kind] += int(np.count_nonzero(within))
            self.having[kind] += int(np.count_nonzero(having))
        self.first = min(self.first, float(table.arrival_time[0]))
        self.end = max(self.end, float(result.requests["finish_time"].max()))
        self.longest_gap = max(self.longest_gap, float(result.requests["max_token_gap"].max()))

    def scalars(self, span: float) -> dict[str, float]:
        """Return metrics with one value that need no totals of the worker."""
        met = float(self.met) if self.targets else math.nan
        rates, squares = sum(self.rates), self.finished * sum(self.rate_squares)
        return {
            "request_throughput": ratio(self.finished, span),
            "token_throughput": ratio(self.output, span),
            "goodput": ratio(met, span),
            "slo_attainment": ratio(met, self.finished),
            **{f"{kind}_attainment": ratio(self.within[kind], self.having[kind]) for kind in KINDS},
            "makespan": span,
            "duration": self.end,
            "input_tokens": float(self.input),
            "output_tokens": float(self.output),
            "jain_fairness": ratio(rates**2, squares),
            "max_wait": self.latencies["queueing_delay"].largest,
            "finished": float(self.finished),
            "unfinished": 0.0,
        }


@explained
def stream(system: System, draw: Draw, policy: str | Policy, *, seed: int = 0) -> Streamed:
    """Run a policy on requests in pieces, in memory that does not grow with their number, and measure it.

    The schedule is the one of :func:`kvgym.simulate`. The memory is that of the pieces with requests that have not
    finished, 255 bytes each, and of what a policy keeps for every request.

    Args:
        system: one worker, see :class:`~kvgym.policies.streaming.PiecewiseRun`.
        draw: returns the pieces each time it is called, in order of arrival, such as
            ``lambda: pieces_of(workload, 0, 65536)``.
        policy: a compiled policy, or its name.
        seed: seed of the policy's own randomness.

    Raises:
        ConfigError: the run cannot be played in pieces.
        WorkloadError: a request can never be served.
        InvalidDecisionError: the policy returned an impossible decision.
        LivelockError: the policy makes no progress.
    """
    run, sums = PiecewiseRun(system, draw, policy, seed=seed), _Sums()
    measured: Measured | None = None
    for result in run.pieces():
        measured = Measured(result)
        sums.add(result, measured)
    assert measured is not None
    span = max(sums.end - sums.first, 0.0)
    counts, gap_sums = run.gaps()
    measured.scope = replace(
        measured.scope, span=span, counting=span, by_worker=[span], gap_counts=counts, gap_sums=gap_sums,
        longest_gap=sums.longest_gap,
    )  # fmt: skip
    families = {name: sketch.statistics(measured) for name, sketch in sums.latencies.items()}
    families["tbt"] = gap_statistics(measured.scope)
    found = {f"{family}_{name}": values[name] for family, values in families.items() for name in STATISTICS}
    found |= {name: float(SCALARS[name].compute(measured)) for name in TOTALS} | sums.scalars(span)
    return Streamed({name: found[name] for name in STANDARD_METRICS if name in found}, run.count, run.policy)
