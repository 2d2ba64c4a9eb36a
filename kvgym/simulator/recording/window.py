"""The measured part of a run: when it starts and ends, and the engine's counters at both ends.

docs/metrics.md defines the metrics of a window. May import :mod:`kvgym.simulator`, :mod:`kvgym.workloads` and
:mod:`kvgym.errors`; may be imported from :mod:`kvgym.policies.runner` and above.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError, shown
from kvgym.simulator.tables import BUSY, GAP_BINS
from kvgym.utils.arguments import explained_class
from kvgym.utils.specs import PER_SECOND
from kvgym.workloads.table import RequestTable

Extent = float | str
"""A time, as a number of seconds or ``"30"``, ``"30s"`` or ``"500ms"``, or requests, ``"200r"``, ``"200 requests"``."""

_EXTENT = re.compile(r"([0-9.]+(?:e[+-]?\d+)?) *(s|seconds|ms|r|req|requests?|)", re.IGNORECASE)

SHARE = 1 / 8
"""Fraction of the estimated decisions until an end of the window after which the clock is checked again.

If batches become much longer between two checks, the next check comes some decisions late.
"""


def parse_extent(value: Extent, name: str) -> tuple[float, bool]:
    """Return the amount omitted at an end of a run, and whether it counts requests.

    Args:
        value: see :data:`Extent`.
        name: its name in messages.

    Raises:
        ConfigError: it has another form, is negative, or is not a whole number of requests.
    """
    match = _EXTENT.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    try:
        amount = float(match[1]) / PER_SECOND.get(match[2].lower(), 1.0) if match else math.nan
    except ValueError:
        amount = math.nan
    requests = bool(match and match[2].lower().startswith("r"))
    if not 0 <= amount < math.inf or (requests and amount != int(amount)):
        raise ConfigError(
            f"{name} = {shown(value)}: expected seconds ≥ 0, as in 30 or 500ms, or requests, as in 200r"
        )
    return amount, requests


@explained_class
@dataclass(frozen=True)
class Window:
    """The parts omitted at the ends of a run, measured from its first and last arrival.

    Attributes:
        warm_up: seconds, or requests, from the first arrival to the start of the window.
        cool_down: seconds, or requests, from the end of the window to the last arrival.

    Raises:
        ConfigError: one of them is neither.
    """

    warm_up: Extent = 0.0
    cool_down: Extent = 0.0

    def __post_init__(self) -> None:
        """Check the extents."""
        parse_extent(self.warm_up, "warm_up")
        parse_extent(self.cool_down, "cool_down")

    def span(self, table: RequestTable, *, closed: bool = False) -> tuple[float, float]:
        """Return the start and the end of the window for a request table, seconds.

        Args:
            table: the requests.
            closed: whether later turns of sessions arrive when the turns before them have finished; then only first
                turns count, as no other times are known before the run.

        Raises:
            ConfigError: the window is empty.
        """
        times = table.arrival_time[table.roots] if closed else table.arrival_time
        amount, requests = parse_extent(self.warm_up, "warm_up")
        count = len(times)
        if requests:
            start = float(times[int(amount)]) if amount < count else math.inf
        else:
            start = float(times[0]) + amount if count else math.inf
        amount, requests = parse_extent(self.cool_down, "cool_down")
        if requests:
            end = float(times[count - max(int(amount), 1)]) if amount <= count else -math.inf
        else:
            end = float(times[-1]) - amount if count else -math.inf
        if not start < end:
            arrivals = f"between {times[0]:.4g} s and {times[-1]:.4g} s" if count else "never"
            what = "first turns of sessions" if closed else "requests"
            raise ConfigError(
                f"warm_up = {self.warm_up} and cool_down = {self.cool_down} leave nothing to measure of {count:,} "
                f"{what}, which arrive {arrivals}"
            )
        return start, end

    def note(self, table: RequestTable, *, closed: bool = False) -> str:
        """Return a sentence that describes the window for a request table; arguments as of :meth:`span`."""
        start, end = self.span(table, closed=closed)
        inside = int(((table.arrival_time >= start) & (table.arrival_time < end)).sum())
        return (
            f"Measured from {start:,.2f} s to {end:,.2f} s: latencies of the {inside:,} of {len(table):,} requests "
            "that arrive then."
        )


@dataclass(frozen=True)
class Counts:
    """The engine's counters at a moment of a run.

    Attributes:
        worker: totals of the workers, dtype WORKER, (r,).
        clock: time up to which each of them has counted, seconds, float64 (r,).
        gap_counts: int64, token gaps by bin.
        gap_sums: float64, their sums in seconds.
    """

    worker: NDArray[Any]
    clock: NDArray[np.float64]
    gap_counts: NDArray[np.int64]
    gap_sums: NDArray[np.float64]

    @classmethod
    def of(cls, simulation: Any, moment: float = math.inf) -> Counts:
        """Return a copy of the counters of a simulation.

        Args:
            simulation: at a decision, or at its end.
            moment: time up to which counters are wanted, seconds. A worker with no active request counts nothing, so
                its counters hold up to any time since its last batch.
        """
        worker = simulation.workers.copy()
        now = max(float(simulation.tracker[0]["clock"]), float(worker["clock"].max()))
        idle = (worker["phase"] != BUSY) & (worker["num_active"] == 0)
        clock = np.where(idle, np.clip(moment, worker["last_batch_end"], now), worker["clock"])
        return cls(
            worker, clock, simulation.gap_counts[:GAP_BINS].copy(), simulation.gap_sums[:GAP_BINS].copy()
        )


@dataclass(frozen=True)
class Measured:
    """The window of a run.

    Attributes:
        start: when it opens, seconds.
        end: when it closes, at the latest when the run ends.
        opening: counters at the first decision from ``start`` on.
        closing: counters at the first decision from ``end`` on.
    """

    start: float
    end: float
    opening: Counts
    closing: Counts


class Watch:
    """Records the counters of a simulation when its window starts and ends; the run is the same as any other.

    Args:
        simulation: not started yet.
        window: window of the run.

    Raises:
        ConfigError: the window is empty.
    """

    def __init__(self, simulation: Any, window: Window) -> None:
        closed = simulation.system.sessions == "closed"
        self._simulation, self._ends = simulation, window.span(simulation.table, closed=closed)
        self._taken: list[Counts] = []
        self._since, self._due = (0, 0.0), 0

    def pace(self) -> int | None:
        """Return the number of decisions until the next update; None = all remaining ones."""
        return None if len(self._taken) == 2 else max(1, self._due - self._decisions())

    def update(self) -> None:
        """Record the counters if an end of the window has passed; does nothing if called too early."""
        made = self._decisions()
        if made < self._due or len(self._taken) == 2:
            return
        clock = self._now()
        while len(self._taken) < 2 and clock >= self._ends[len(self._taken)]:
            self._taken.append(Counts.of(self._simulation, self._ends[len(self._taken)]))
        if len(self._taken) < 2:
            before, then = self._since
            seconds = (clock - then) / max(made - before, 1)
            left = self._ends[len(self._taken)] - clock
            likely = min(SHARE * left / seconds, self._before_idle()) if seconds > 0 else 1
            self._since, self._due = (made, clock), made + max(1, int(likely))

    def measured(self) -> Measured:
        """Return the window of the run, up to now if it has not ended."""
        start, end = self._ends
        taken = self._taken
        opening, closing = taken if len(taken) == 2 else [*taken, *[Counts.of(self._simulation)] * 2][:2]
        return Measured(start, min(end, max(self._now(), start)), opening, closing)

    def _before_idle(self) -> int:
        """Return the least number of decisions until no request is active: each makes one token per decision."""
        simulation, most = self._simulation, 0
        for slots, count in zip(simulation.active, simulation.workers["num_active"], strict=True):
            own = slots[:count]
            left = simulation.workload["output_len"][own["request_id"]] - own["num_output_tokens"]
            most = max(most, int(left.max(initial=0)))
        return most

    def _decisions(self) -> int:
        return int(self._simulation.workers["decisions"].sum())

    def _now(self) -> float:
        simulation = self._simulation
        return max(float(simulation.tracker[0]["clock"]), float(simulation.workers["clock"].min()))
