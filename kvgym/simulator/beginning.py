"""The tables of a run at its beginning."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.records import sparse_zeros
from kvgym.simulator.boundary import RUN_TABLES, blank_requests
from kvgym.simulator.drafts.settings import draft_tables
from kvgym.simulator.fleet import ROLES
from kvgym.simulator.prefix.empty import empty_caches
from kvgym.simulator.prefix.host_memory import empty_tiers
from kvgym.simulator.recording.gaps import empty_histogram
from kvgym.simulator.sessions import empty_sessions
from kvgym.simulator.system import System
from kvgym.simulator.tables import UNKNOWN
from kvgym.workloads.forecasts import extra_tables
from kvgym.workloads.table import RequestTable


def tables_at_first(
    system: System, table: RequestTable, needs: frozenset[str], *, log: bool, seed: int
) -> dict[str, NDArray[Any]]:
    """Return the tables of a run by name, see :class:`~kvgym.simulator.boundary.Run`; arguments as of ``Simulation``.

    Raises:
        WorkloadError: the requests lack what their sessions, caches or drafts need.
        ConfigError: a table would be too large.
    """
    n, r = len(table), len(system.all_workers)
    slots = max(1, min(n, int(system.usable_capacities.max())))
    given = {
        "problem": system.to_record(table, needs, log),
        "workload": table.to_records(),
        "requests": blank_requests(n),
        **empty_caches(table, system.prefix_unit, system.usable_capacities, system.caches_late),
        **extra_tables(table, needs),
        **draft_tables(system.speculation, table, slots, seed),
    }
    given |= empty_tiers(system.host_memory, system.prefix_unit, given.get("contents"), n)
    given["gap_counts"], given["gap_sums"] = empty_histogram()
    closed, exposed = system.sessions == "closed", "session" in needs or system.follows_turns(table)
    given |= empty_sessions(table, given.get("prefix"), closed=closed, exposed=exposed)
    lengths = {"": 1, "num_requests": n, "slots": slots, "queued": max(1, 2 * n), "log": 4096 * log}
    for name, kind in _ROWS.items():
        if name not in given:
            length = lengths[kind.length]
            single = (length,) if kind.shared else (r, length)
            given[name] = sparse_zeros(single if kind.length else single[:1], kind.dtype)
    workers = given["workers"]
    workers["index"] = np.arange(r)
    workers["role"] = [ROLES[worker.role] for worker in system.all_workers]
    workers["queue_head"] = workers["queue_tail"] = UNKNOWN
    return _without_rows(r) | given


_LENGTHS = ("", "num_requests", "slots", "queued", "log")
_ROWS = {name: kind for name, kind in RUN_TABLES.items() if kind.length in _LENGTHS}
"""The tables that every run has, but for those of gaps."""


@functools.cache
def _without_rows(workers: int) -> dict[str, NDArray[Any]]:
    """Return the tables of which a run may need none, without rows."""
    shapes = {name: (0,) if kind.shared else (workers, 0) for name, kind in RUN_TABLES.items() if kind.length}
    return {name: sparse_zeros(shape, RUN_TABLES[name].dtype) for name, shape in shapes.items()}
