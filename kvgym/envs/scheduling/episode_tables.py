"""The tables of an environment's episode in the form of a simulation's, for policies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import Kernel
from kvgym.compiling.records import as_records
from kvgym.envs.scheduling.episodes import Episodes
from kvgym.envs.scheduling.memory import Block
from kvgym.simulator.boundary import RUN_TABLES
from kvgym.simulator.tables import UNKNOWN
from kvgym.workloads.table import RequestTable


class EpisodeTables:
    """An environment's tables in the form that :class:`SystemView` and compiled policies read."""

    def __init__(self, episodes: Episodes, index: int = 0) -> None:
        """Give access to environment ``index``."""
        self._episodes, self._index = episodes, index
        self.needs = frozenset(episodes.config.information)
        self.policy_name = "agent"

    @property
    def _block(self) -> Block:
        return self._episodes.slots[self._index].block

    @property
    def problem(self) -> Any:
        """The PROBLEM record, shape (1,)."""
        return self._block["problem"]

    @property
    def workers(self) -> Any:
        """The WORKER records, shape (1,)."""
        return self._block["workers"]

    @property
    def worker(self) -> Any:
        """The WORKER record."""
        return self.workers[0]

    @property
    def requests(self) -> Any:
        """The request table, shape (n,)."""
        return self._block["requests"]

    @property
    def tracker(self) -> Any:
        """The TRACKER record, shape (1,)."""
        return self._block["tracker"]

    @property
    def extras(self) -> Any:
        """Further facts about requests; empty unless some are observed."""
        return self._block["extras"]

    @property
    def turns(self) -> Any:
        """The turns of sessions, shape (n,); empty where they are not followed."""
        return self._block["turns"]

    @property
    def table(self) -> RequestTable | None:
        """The requests of the episode."""
        return self._episodes.slots[self._index].table

    @property
    def active(self) -> Any:
        """The active set, shape (1, A)."""
        return self._block["active"][None]

    @property
    def queued(self) -> Any:
        """Requests that joined the queue since the last decision, shape (1, 2n)."""
        return self._block["queued"][None]

    @property
    def finished(self) -> Any:
        """Requests that finished since the last decision, shape (1, A)."""
        return self._block["finished"][None]

    def batch_time_of(self, worker: int) -> tuple[Kernel, NDArray[np.float64]]:
        """Return the batch-time kernel and its parameters."""
        return self._episodes.system.batch_time.kernel, self._episodes.batch_params

    def python_tables(self) -> dict[str, Any]:
        """Return copies of the tables that making a decision changes, and views of the rest, for uncompiled kernels."""
        found: dict[str, Any] = {}
        for name, kind in RUN_TABLES.items():
            table = self._block[name]
            if name in ("decision", "load", "active", "admit", "admit_tokens", "evict", "pool", "units"):
                table = table.copy()
            if kind.length and not kind.shared:
                table = table[None]
            found[name] = as_records(table) if table.dtype.names else table
        found["decision"][:] = 0
        for name in ("admit", "admit_tokens", "evict"):
            found[name][:] = UNKNOWN
        return found
