"""What a workload is like: rates, lengths, sessions, and how much of its prompts a prefix cache reuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.errors import WorkloadError
from kvgym.utils.arguments import explained
from kvgym.workloads.prefix.reuse import Reuse, hashes_of, repeated_hashes, replay
from kvgym.workloads.table import GAP_KINDS, RequestTable

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""Quantiles of a distribution by name."""

_BINS = 20  # of the rate over time, at least
_MOST_UNITS = (
    500_000  # of all chains together, for which plain Python takes about a second per size of a cache
)


def distribution(values: ArrayLike) -> dict[str, float]:
    """Return mean, quantiles and maximum of some numbers; zeros without numbers."""
    numbers = np.asarray(values, np.float64)
    if not len(numbers):
        return dict.fromkeys(("mean", *QUANTILES, "max"), 0.0)
    quantiles = {name: float(np.quantile(numbers, q)) for name, q in QUANTILES.items()}
    return {"mean": float(numbers.mean()), **quantiles, "max": float(numbers.max())}


@dataclass(frozen=True)
class Summary:
    """Description of a workload's requests.

    Attributes:
        table: the requests.
        bin_seconds: width of the bins of ``rates``, seconds; 0 if all arrive at once.
        rates: float64 (bins,), requests per second in each.
        reuse: reuse of a prefix cache one request after another, by its size, the infinite one last; empty without
            hashes.
        repeated: hashes that an earlier request had, and all; None without hashes.
    """

    table: RequestTable
    bin_seconds: float
    rates: NDArray[np.float64]
    reuse: tuple[Reuse, ...]
    repeated: tuple[int, int] | None

    @property
    def sessions(self) -> dict[str, Any] | None:
        """Number of sessions, turns of a session, and seconds between turns by kind; None without sessions."""
        session_id, turn, think = self.table.session_id, self.table.turn, self.table.think_time
        if session_id is None or turn is None:
            return None
        _, first, turns = np.unique(session_id, return_index=True, return_counts=True)
        gaps = {}
        if think is not None:
            later = np.ones(len(turn), bool)
            later[first] = False
            kinds = np.zeros(len(turn), np.int64) if self.table.gap_kind is None else self.table.gap_kind
            gaps = {
                name: {"count": int(chosen.sum()), **distribution(think[chosen])}
                for k, name in enumerate(GAP_KINDS)
                if (chosen := later & (kinds == k)).any()
            }
        return {"count": len(turns), "turns": distribution(turns), "gaps": gaps}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values; times in seconds, lengths and sizes in tokens."""
        table, reuse = self.table, None
        span = float(table.arrival_time[-1] - table.arrival_time[0]) if len(table) else 0.0
        gaps = np.diff(table.arrival_time)
        if self.repeated is not None:
            reuse = {
                "unit": self.reuse[0].unit,
                "hashes": self.repeated[1],
                "repeated_hashes": self.repeated[0],
                "caches": [
                    {
                        "capacity": r.capacity,
                        "hit_tokens": int(r.hits.sum()),
                        "hit_rate": r.hit_rate,
                        "units_evicted": r.units_evicted,
                        "too_long": r.too_long,
                    }
                    for r in self.reuse
                ],
            }
        return {
            "requests": len(table),
            "seconds": span,
            "rate": {
                "mean": (len(table) - 1) / span if span else None,
                "highest": float(self.rates.max()) if self.bin_seconds else None,
                "bin_seconds": self.bin_seconds,
                "gap_variation": float(gaps.std() / gaps.mean()) if span else None,
            },
            "prompt_len": {**distribution(table.prompt_len), "total": int(table.prompt_len.sum())},
            "output_len": {**distribution(table.output_len), "total": int(table.output_len.sum())},
            "sessions": self.sessions,
            "reuse": reuse,
            "notes": list(table.notes),
        }


@explained
def summarise(
    table: RequestTable, *, unit: int | None = None, capacities: Sequence[int] | None = None
) -> Summary:
    """Describe requests.

    Args:
        table: the requests.
        unit: tokens that a cache shares at a time; None = those of a hash, or a multiple if that would take long.
        capacities: sizes of caches, tokens; None = a few between the longest request and all that is different. An
            infinite cache is always among them.

    Raises:
        WorkloadError: no requests; or a unit or sizes, but no hashes.
    """
    if not len(table):
        raise WorkloadError("there are no requests to describe; give more requests, or a longer duration")
    span = float(table.arrival_time[-1] - table.arrival_time[0])
    rates, width = np.array([], np.float64), 0.0
    if span:
        bins = int(np.clip(len(table) // 50, _BINS, 200))
        width = span / bins
        rates = np.histogram(table.arrival_time, bins)[0] / width
    if table.hashes is None and unit is None and capacities is None:
        return Summary(table, width, rates, (), None)
    hashes = hashes_of(table)
    if unit is None:
        unit = hashes.block
        while int((hashes.chain_tokens // unit).sum()) > _MOST_UNITS:
            unit *= 2
    if capacities is None:
        longest = int((table.prompt_len + table.output_len).max())
        capacities = _sizes(longest, hashes.chains(unit).num_contents * unit)
    reuse = tuple(replay(table, unit, capacity) for capacity in (*sorted(capacities), None))
    return Summary(table, width, rates, reuse, repeated_hashes(table))


def _sizes(low: int, high: int) -> list[int]:
    """Return the sizes 1, 2 and 5 times a power of ten from ``low`` to the first one that is at least ``high``."""
    sizes = [k * 10**e for e in range(18) for k in (1, 2, 5)]
    last = next(size for size in sizes if size >= max(high, low))
    return [size for size in sizes if low <= size <= last][-10:]
