"""Samples of a run: the running requests and their KV memory at moments all over it, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Samples:
    """Running requests of all workers before some decisions.

    Attributes:
        time: the moments, seconds, ascending, float64 (s,).
        start: place of each moment's first entry in the arrays below, and their length, int64 (s + 1,).
        request_id: the requests by worker, in order of activation, int32 (m,).
        kv_tokens: their KV tokens, int32 (m,).
    """

    time: NDArray[np.float64]
    start: NDArray[np.int64]
    request_id: Ids
    kv_tokens: Ids

    def at(self, k: int) -> tuple[Ids, Ids]:
        """Return the requests of a moment, and their KV tokens."""
        there = slice(int(self.start[k]), int(self.start[k + 1]))
        return self.request_id[there], self.kv_tokens[there]


class Sampler:
    """Takes samples of a simulation at equal numbers of decisions; the run is the same as any other.

    When it has reached its limit, it drops every other sample and doubles the number of decisions between two, so that
    a run of any length ends with between half of the limit and the limit.

    Args:
        simulation: not started yet.
        limit: upper limit of samples, even.
    """

    def __init__(self, simulation: Any, limit: int) -> None:
        self._simulation, self._limit = simulation, limit
        self._stride, self._due = 1, 0
        self._taken: list[tuple[float, Ids, Ids]] = []

    def pace(self) -> int:
        """Return the number of decisions until the next update."""
        return max(1, self._due - self._decisions())

    def update(self) -> None:
        """Take a sample if one is due; a worker is about to decide."""
        made = self._decisions()
        if made < self._due:
            return
        if len(self._taken) == self._limit:
            del self._taken[1::2]
            self._stride *= 2
        simulation = self._simulation
        rows = zip(simulation.active, simulation.workers["num_active"], strict=True)
        active = [slots[:count] for slots, count in rows]
        ids, tokens = (
            np.concatenate([own[name] for own in active]) for name in ("request_id", "num_kv_tokens")
        )
        self._taken.append((float(simulation.worker["clock"]), ids, tokens))
        self._due = made + self._stride

    def samples(self) -> Samples:
        """Return the samples so far."""
        counts = [len(ids) for _, ids, _ in self._taken]
        none = [np.zeros(0, np.int32)]
        return Samples(
            time=np.array([time for time, _, _ in self._taken], np.float64),
            start=np.cumsum([0, *counts], dtype=np.int64),
            request_id=np.concatenate([ids for _, ids, _ in self._taken] or none),
            kv_tokens=np.concatenate([tokens for _, _, tokens in self._taken] or none),
        )

    def _decisions(self) -> int:
        return int(self._simulation.workers["decisions"].sum())
