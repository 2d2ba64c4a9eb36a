"""Latencies of requests alone on empty workers: no number of workers goes below them.

The least times of :mod:`kvgym.theory.hindsight.calibrated.work` hold whatever else is in the batches, and so for every
scheduler and any number of workers like these. Every request's latency is at least its own, hence so are means and
quantiles over the requests; the same goes for the gaps between tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvgym.simulator.system import System
from kvgym.theory.hindsight.calibrated.bounds import FEW, FILLINGS, AloneByKind, Pools
from kvgym.workloads.table import RequestTable

Floats = NDArray[np.float64]

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}

ROUNDING = 0.002
"""Share by which measured gaps between tokens may be below the true ones, because their histogram has bins."""


@dataclass(frozen=True)
class LeastLatencies:
    """Least seconds of each of n requests.

    Attributes:
        ttft: to the first token, float64 (n,).
        e2e: to the last, (n,).
        gap: between tokens, by the tokens that are cached then, float64 (k,).
        gap_counts: how many gaps there are of each, int64 (k,).
        last_gap: the last gap of each request, 0 where it has none, (n,).
        span: from the first arrival to the end of all.
        num_tokens: output tokens of all.
    """

    ttft: Floats
    e2e: Floats
    gap: Floats
    gap_counts: NDArray[np.int64]
    last_gap: Floats
    span: float
    num_tokens: int

    def best(self, metric: str, table: RequestTable) -> float | None:
        """Return the best value of a metric on any number of workers: the least, of rates and shares the largest.

        Args:
            metric: see :mod:`kvgym.metrics`.
            table: the requests.

        Returns:
            None where it has no bound.
        """
        family, _, statistic = metric.rpartition("_")
        if family in ("ttft", "e2e_latency"):
            return _statistic(self.ttft if family == "ttft" else self.e2e, statistic)
        if family == "tbt" and self.gap_counts.any():
            return self._of_gaps(statistic)
        whole = {
            "makespan": self.span,
            "request_throughput": len(table) / self.span if self.span > 0 else None,
            "token_throughput": self.num_tokens / self.span if self.span > 0 else None,
            "slo_attainment": self._attainment(table),
        }
        return whole.get(metric)

    def _of_gaps(self, statistic: str) -> float | None:
        if statistic == "mean":
            return float(np.average(self.gap, weights=self.gap_counts))
        if statistic not in _QUANTILES:
            return None
        order = np.argsort(self.gap)
        ranks = np.cumsum(self.gap_counts[order])
        place = np.searchsorted(ranks, int(_QUANTILES[statistic] * (ranks[-1] - 1)), side="right")
        return float(self.gap[order][place]) * (1 - ROUNDING)

    def _attainment(self, table: RequestTable) -> float | None:
        if table.ttft_slo is None and table.tbt_slo is None:
            return None
        within = np.ones(len(table), np.bool_)
        for slo, least in ((table.ttft_slo, self.ttft), (table.tbt_slo, self.last_gap)):
            if slo is not None:
                within &= least <= slo
        return float(within.mean())


def least_latencies(table: RequestTable, system: System) -> LeastLatencies:
    """Return the least latencies of requests on any number of workers like those of a system.

    The workers serve whole requests.

    Args:
        table: n ≥ 1 requests that fit.
        system: equal workers, without a horizon.
    """
    alone: AloneByKind = {}
    whole, first = (Pools(table, system, until, alone) for until in ("finish", "first"))
    e2e, ttft = (
        np.max([pools.demand(0, filling, FEW).least for filling in FILLINGS], axis=0)
        for pools in (whole, first)
    )
    time = np.max([whole.costs(0, filling).decode_time for filling in FILLINGS], axis=0)
    begin = whole.first + first.decodes  # the token of the first decode, if there is one, ends no gap
    end = whole.first + whole.decodes
    steps = np.bincount(begin, minlength=len(time) + 1) - np.bincount(end, minlength=len(time) + 1)
    return LeastLatencies(
        ttft=ttft,
        e2e=e2e,
        gap=time,
        gap_counts=np.cumsum(steps)[: len(time)],
        last_gap=np.where(end > begin, time[np.maximum(end - 1, 0)], 0.0),
        span=float((table.arrival_time + e2e).max() - table.arrival_time[0]),
        num_tokens=int(table.output_len.sum()),
    )


def _statistic(values: Floats, name: str) -> float | None:
    if name == "mean":
        return float(values.mean())
    return float(np.quantile(values, _QUANTILES[name])) if name in _QUANTILES else None
