"""Traces in memory, and their conversion to request tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError, WorkloadError, shown
from kvgym.workloads.arrivals import mean_rate_of
from kvgym.workloads.table import RequestTable

Times = NDArray[np.float64]

NO_TIMES = "no arrival times in this trace: all requests arrive at time 0 unless an arrival process is given."
"""The note on traces without times."""


@dataclass(frozen=True, eq=False)
class Trace:
    """The usable rows of a trace file, sorted by time (stable).

    Attributes:
        path: the file.
        format: name of its format.
        sha256: checksum of the file, hexadecimal.
        num_rows: rows in the file, including dropped ones.
        arrival_time: float64 (n,), seconds since the first row (kvgym's own format: as written).
        prompt_len: int64 (n,), tokens, ≥ 1.
        output_len: int64 (n,), tokens, ≥ 1.
        extra: further columns of a request table, by name; ``hashes`` are
            :class:`~kvgym.workloads.hashes.BlockHashes`.
        notes: what was read, ignored and dropped.
        has_times: whether the file has arrival times.
        batched: whether the format records arrivals in batches, so that equal times are an artefact.
    """

    path: str
    format: str
    sha256: str
    num_rows: int
    arrival_time: Times
    prompt_len: NDArray[np.int64]
    output_len: NDArray[np.int64]
    extra: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    has_times: bool = True
    batched: bool = False

    def __len__(self) -> int:
        """Return the number of usable rows."""
        return len(self.arrival_time)

    @property
    def mean_rate(self) -> float:
        """Number of gaps over the span of the times, per second; inf if all times are equal."""
        return mean_rate_of(self.arrival_time)

    def window(self, start: float = 0.0, end: float | None = None) -> NDArray[np.int64]:
        """Return the rows with start ≤ arrival time < end (seconds), int64.

        Raises:
            WorkloadError: no row is in the window.
        """
        inside = self.arrival_time >= start
        if end is not None:
            inside &= self.arrival_time < end
        rows = np.flatnonzero(inside).astype(np.int64)
        if not len(rows):
            raise WorkloadError(
                f"{self.path}: no request between {start} s and {end if end is not None else '∞'} s; "
                f"the trace runs from {self.arrival_time[0]:.3f} s to {self.arrival_time[-1]:.3f} s"
            )
        return rows

    def to_table(
        self,
        *,
        rate_scale: float = 1.0,
        max_requests: int | None = None,
        start: float = 0.0,
        end: float | None = None,
        debatch: bool | None = None,
        rng: np.random.Generator | None = None,
    ) -> RequestTable:
        """Return the requests of a window of the trace.

        Args:
            rate_scale: factor of the rate; times are divided by it.
            max_requests: keep at most this many requests of the window.
            start: start of the window, seconds; it becomes time 0.
            end: end of the window, seconds, exclusive; None = the end of the trace.
            debatch: spread equal times over the gap to the next time; None = only if the format is batched.
            rng: for the spreading; None = seed 0.
        """
        if not 0 < rate_scale < np.inf:
            raise ConfigError(f"rate_scale must be a number > 0, got {shown(rate_scale)}")
        if max_requests is not None and max_requests < 1:
            raise ConfigError(f"max_requests must be at least 1, got {shown(max_requests)}")
        notes = list(self.notes)
        times = self.arrival_time
        if self.batched if debatch is None else debatch:
            times, spread = spread_ties(times, rng or np.random.default_rng(0))
            if spread:
                notes.append(
                    f"{spread:,} of {len(self):,} requests shared their timestamp and were spread "
                    f"at random over the gap to the next timestamp."
                )
        rows = self.window(start, end)
        if len(rows) < len(self):
            notes.append(f"{len(rows):,} of {len(self):,} requests are in the chosen window.")
        if max_requests is not None and max_requests < len(rows):
            notes.append(f"The first {max_requests:,} of {len(rows):,} requests are used.")
            rows = rows[:max_requests]
        columns: dict[str, Any] = {name: column[rows] for name, column in self.extra.items()}
        return RequestTable.from_columns(
            arrival_time=(times[rows] - start) / rate_scale,
            prompt_len=self.prompt_len[rows],
            output_len=self.output_len[rows],
            notes=tuple(notes),
            **columns,
        )


def spread_ties(times: Times, rng: np.random.Generator) -> tuple[Times, int]:
    """Spread equal times uniformly over the gap to the next distinct time; the order of rows stays.

    Equal times at the end have no next time and spread over the mean gap of the distinct times.

    Args:
        times: float64 (n,), seconds, non-decreasing.
        rng: draws one uniform number per row.

    Returns:
        The times, float64 (n,), non-decreasing, and the number of rows that shared a time.
    """
    distinct, index, count = np.unique(times, return_inverse=True, return_counts=True)
    if len(distinct) < 2:
        return times, 0
    gaps = np.diff(distinct, append=distinct[-1] + (distinct[-1] - distinct[0]) / (len(distinct) - 1))
    tied = count[index] > 1
    shift = np.where(tied, rng.random(len(times)), 0.0)
    shift = shift[np.lexsort((shift, index))]  # ascending within equal times, so that rows keep their order
    spread = np.minimum(times + shift * gaps[index], np.nextafter(distinct + gaps, 0)[index])
    return np.where(tied, spread, times), int(tied.sum())
