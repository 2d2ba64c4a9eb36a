"""Run one policy on requests that come in pieces, in memory that does not grow with their number.

The tables of the run have room for all requests, but a system gives memory only to rows that are written. Before a
piece arrives, its rows are filled; when all of its requests have finished, their memory is given back. In between the
engine runs to the last arrival that it knows, as if that were its horizon, so that every decision is the one of a run
in one piece.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.records import mapped_zeros
from kvgym.errors import ConfigError, LivelockError, shown
from kvgym.policies.policy import KERNEL_SCHEDULES, Policy, make_policy
from kvgym.policies.results import SimulationResult
from kvgym.policies.runner import check_needs, known_to, prepare_run, system_info
from kvgym.simulator.boundary import RUN_TABLES, blank_requests
from kvgym.simulator.recording.gaps import filled_bins
from kvgym.simulator.system import System
from kvgym.simulator.tables import FINISHED, REQUEST, WORKLOAD
from kvgym.workloads.layout import words
from kvgym.workloads.table import RequestTable

Draw = Callable[[], Iterator[RequestTable]]
"""Returns the pieces of a workload from the first on, the same ones at each call."""

_MOST = 2**30 - 1
_NORESERVE = 0x4000 if sys.platform == "linux" else 0


@dataclass(frozen=True)
class _Extent:
    """What a run has to know of all requests before it begins.

    Attributes:
        count: number of requests.
        longest: the most tokens of a request, prompt and output.
        info: what the policy gets before the run.
    """

    count: int
    longest: int
    info: Any

    forecasts = None
    output_len = np.zeros(1, np.int64)

    def __len__(self) -> int:
        """Return the number of requests."""
        return self.count

    @property
    def prompt_len(self) -> NDArray[np.int64]:
        """The longest request, as :meth:`System.to_record` finds it."""
        return np.array([self.longest])


class PiecewiseRun:
    """A run of one worker and a compiled policy on requests in pieces.

    Args:
        system: the worker, without prefix cache, closed sessions, speculation, memory of the host and horizon.
        draw: returns the pieces, in order of arrival, the same ones at every call: the run needs the number of requests
            and the longest one before it begins.
        policy: a compiled policy, or its name.
        seed: seed of the policy's own randomness.

    Attributes:
        system: the worker.
        policy: the policy.
        simulation: the simulation; rows of pieces that have been returned hold nothing.
        count: number of requests.

    Raises:
        ConfigError: the run cannot be played in pieces; the message names the reason.
        WorkloadError: a request can never be served.
    """

    def __init__(self, system: System, draw: Draw, policy: str | Policy, *, seed: int = 0) -> None:
        self.system, self.policy, self._draw = system, make_policy(policy), draw
        first = next((table for table in draw() if len(table)), None)
        if first is None:
            raise ConfigError("there are no requests; give at least one")
        self._check(first)
        needs = known_to(self.policy, first)
        self.simulation, _ = prepare_run(system, first, self.policy, seed=seed)
        if len(self.simulation.extras) or len(self.simulation.turns):
            raise ConfigError(
                f"policy {shown(self.policy.info.name)} observes further facts of these requests (clients, deadlines, "
                "forecasts or sessions), which a run in pieces does not hold; run it in one piece"
            )
        extent = self._measure(seed, needs)
        self.count = extent.count
        self.policy.reset(extent.info)
        self.simulation.set_policies([self.policy])
        stand_in: Any = extent
        self.simulation.problem = system.to_record(stand_in, needs, log=False)
        self._widen(extent.count)

    def _check(self, first: RequestTable) -> None:
        system = self.system
        reasons = {
            "a cluster": bool(system.workers),
            "a prefix cache": bool(system.prefix_unit),
            "closed sessions": system.sessions != "open",
            "speculation": system.speculation is not None,
            "memory of the host": system.host_memory is not None,
            "a horizon": bool(np.isfinite(system.horizon)),
        }
        for reason, holds in reasons.items():
            if holds:
                raise ConfigError(f"a run in pieces is for one worker without {reason}; run it in one piece")
        if type(self.policy).schedule not in KERNEL_SCHEDULES:
            raise ConfigError(
                f"policy {shown(self.policy.info.name)} decides in Python, and runs in pieces are for compiled "
                "policies; run it in one piece"
            )
        check_needs(self.policy, first)

    def _measure(self, seed: int, needs: frozenset[str]) -> _Extent:
        """Read all pieces once."""
        count, longest, predicted, last = 0, 0, 0, 0.0
        underestimates: frozenset[str] = frozenset()
        info: Any = None
        for table in self._draw():
            if not len(table):
                continue
            if table.arrival_time[0] < last:
                raise ConfigError(
                    f"a piece begins at {table.arrival_time[0]:g} s, before the last arrival of the one before"
                )
            last = float(table.arrival_time[-1])
            self.system.check_fits(table)
            info = system_info(self.system, table, seed, needs)
            predicted, underestimates = (
                max(predicted, info.max_predicted_len),
                underestimates | info.underestimates,
            )
            count += len(table)
            longest = max(longest, int((table.prompt_len + table.output_len).max()))
        if count > _MOST:
            raise ConfigError(f"{count:,} requests; a run has at most {_MOST:,}")
        info = replace(info, max_requests=count, max_predicted_len=predicted, underestimates=underestimates)
        return _Extent(count, longest, info)

    def _widen(self, count: int) -> None:
        """Replace tables of the first piece by tables with room for all requests."""
        slots = max(1, min(count, self.system.usable_capacity))
        lengths = {"num_requests": count, "slots": slots, "queued": 2 * count}
        self._mapped: dict[str, Any] = {}
        for name, kind in RUN_TABLES.items():
            if kind.length in lengths:
                shape = (lengths[kind.length],) if kind.shared else (1, lengths[kind.length])
                table, self._mapped[name] = _wide_zeros(shape, kind.dtype)
                setattr(self.simulation, name, table)

    def pieces(self) -> Iterator[SimulationResult]:
        """Play the run, and yield the outcome of each piece when all of its requests have finished, in order.

        The records of an outcome are valid until the next one; its worker has the totals until now, and it has no gaps
        between tokens.

        Raises:
            InvalidDecisionError: the policy returned an impossible decision.
            LivelockError: the policy makes no progress.
        """
        simulation, filled = self.simulation, 0
        waiting: deque[tuple[int, RequestTable]] = deque()
        stalled = -1
        for table in self._draw():
            if not len(table):
                continue
            rows = slice(filled, filled + len(table))
            self._check_same(rows.stop <= self.count)
            words(simulation.workload[rows])[:] = words(table.to_records())
            words(simulation.requests[rows])[:] = words(blank_requests(len(table)))
            waiting.append((filled, table))
            filled = rows.stop
            last = float(table.arrival_time[-1]) + float(simulation.problem[0]["api_time"])
            simulation.problem["horizon"] = np.inf if filled == self.count else last
            try:
                simulation.run()
            except LivelockError:  # perhaps only because the next requests are not known yet
                made = int(simulation.workers[0]["decisions"])
                if filled == self.count or made == stalled:
                    raise
                stalled = made
            while waiting and self._finished(*waiting[0]):
                first, done = waiting.popleft()
                yield self._result(first, done)
                self._release(first + len(done))
        self._check_same(filled == self.count)

    def _check_same(self, same: bool) -> None:
        if not same:
            raise ConfigError(
                "draw returned another number of requests than at first; return the same ones each time"
            )

    def _finished(self, first: int, table: RequestTable) -> bool:
        status = self.simulation.requests["status"][first : first + len(table)]
        return bool((status == FINISHED).all())

    def _result(self, first: int, table: RequestTable) -> SimulationResult:
        nothing = np.zeros(0)
        return SimulationResult(
            policy=self.policy,
            system=self.system,
            table=table,
            requests=self.simulation.requests[first : first + len(table)],
            worker=self.simulation.workers,
            log=None,
            gap_counts=nothing.astype(np.int64),
            gap_sums=nothing,
            completed=first + len(table) == self.count,
        )

    def gaps(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the gaps between tokens so far, as :class:`SimulationResult` has them."""
        return filled_bins(self.simulation.gap_counts, self.simulation.gap_sums, given_up=False)

    def _release(self, end: int) -> None:
        """Give back the memory of the rows before ``end``."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        for name, dtype in (("workload", WORKLOAD), ("requests", REQUEST)):
            whole = end * dtype.itemsize // mmap.PAGESIZE * mmap.PAGESIZE
            if self._mapped[name] is not None and whole:
                self._mapped[name].madvise(mmap.MADV_DONTNEED, 0, whole)


def _wide_zeros(shape: tuple[int, ...], dtype: Any) -> tuple[NDArray[Any], Any]:
    """Return zeros that take memory only where they are written, and their mapping, None where there is none."""
    kind = np.dtype(dtype)
    if not math.prod(shape) or not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.zeros(shape, kind), None
    return mapped_zeros(shape, kind, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
