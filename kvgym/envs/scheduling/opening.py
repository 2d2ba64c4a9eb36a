"""Opening of an environment's tables inside compiled code, from its row of control.

A row of control is int64 (2 T + 1,): the addresses of the T tables of :class:`~kvgym.envs.scheduling.memory.Block`,
their lengths, and the address of the SETTINGS record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from numba import types

from kvgym.compiling.kernel import jit_expand, jit_inline
from kvgym.compiling.pointers import function_at, prefetch, view_at
from kvgym.compiling.tables import WHOLE, Table, in_rows, opener
from kvgym.envs.scheduling.memory import ENV_TABLES, LINE, NUM_TABLES, PLACE, RULE_TABLES, TABLES
from kvgym.envs.scheduling.tables import SETTINGS, Env
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE
from kvgym.simulator.boundary import RUN_TABLES, Run
from kvgym.simulator.policy_interface import PolicyMemory, PolicyView, view_of
from kvgym.simulator.recording.gaps import gap_bin, sparse_home
from kvgym.simulator.tables import REQUEST, SLOT, TRACKER, WORKER, WORKLOAD

_tracker_at, _worker_at = view_at(TRACKER), view_at(WORKER)
i8_at, f8_at = view_at("i8"), view_at("f8")
batch_time_at = function_at(BATCH_TIME_SIGNATURE)

_TRACKER, _WORKERS, _WORKLOAD, _REQUESTS, _TERMS = map(
    PLACE.__getitem__, ("tracker", "workers", "workload", "requests", "terms")
)
_ACTIVE, _TARGETS, _QUEUED, _FINISHED, _ADMIT = map(
    PLACE.__getitem__, ("active", "targets", "queued", "finished", "admit")
)
_GAP_COUNTS, _GAP_SUMS = PLACE["gap_counts"], PLACE["gap_sums"]
_PARTS = next(k for k, table in enumerate(TABLES.values()) if table.touched != WHOLE)
_SETTINGS = 2 * NUM_TABLES

WHERE = types.int64[::1]
"""Numba type of a row of control: addresses of the tables, their lengths, and the address of the SETTINGS record."""


def _places(names: Iterable[str]) -> list[tuple[Table, int, int]]:
    """Return tables with the indices of their addresses and lengths in a row of control."""
    return [(TABLES[name], PLACE[name], NUM_TABLES + PLACE[name]) for name in names]


_environment_at = in_rows(
    Env,
    {
        "run": in_rows(Run, dict(zip(Run._fields, _places(RUN_TABLES), strict=True))),
        "settings": (Table(SETTINGS), _SETTINGS, _SETTINGS),
        **dict(zip(ENV_TABLES, _places(ENV_TABLES), strict=True)),
    },
)


@jit_expand
def open_environment(where: Any) -> Env:
    """Open the tables of an environment; unused tables cost nothing."""
    return _environment_at(where, where)


open_rule: Callable[[Any], PolicyMemory] = opener(
    PolicyMemory,
    "def open_rule(where):",
    "Open the memory of the kind's rule; empty arrays if it has none.",
    [table.opening(f"where[{k}]", f"where[{length}]") for table, k, length in _places(RULE_TABLES)],
)


_SLOT_BYTES, _REQUEST_BYTES, _WORKLOAD_BYTES = SLOT.itemsize, REQUEST.itemsize, WORKLOAD.itemsize


@jit_inline
def fetch_lines(address: int, size: int) -> None:
    """Prefetch ``size`` bytes into the cache."""
    for line in range(address, address + size, LINE):
        prefetch(line)


@jit_inline
def fetch_environment(soon: Any, later: Any) -> None:
    """Prefetch the memory of two environments' steps into the cache, while another one is stepped.

    Tables that are used as a whole are fetched one environment earlier than the rest, because they determine which
    parts of the rest a step uses.
    """
    fetch_lines(later[0], later[_PARTS] - later[0])
    tracker, w = _tracker_at(soon[_TRACKER], 1)[0], _worker_at(soon[_WORKERS], 1)[0]
    fetch_lines(soon[_ACTIVE], w.num_active * _SLOT_BYTES)
    fetch_lines(soon[_TARGETS], w.num_active * 4)
    for table in (_QUEUED, _FINISHED, _ADMIT):  # the beginnings of lists of requests
        prefetch(soon[table])
    # A batch usually takes about as long as the previous one.
    usual = sparse_home(gap_bin(w.batch_duration), 1, soon[NUM_TABLES + _GAP_COUNTS])
    prefetch(soon[_GAP_COUNTS] + 8 * usual)
    prefetch(soon[_GAP_SUMS] + 8 * usual)
    prefetch(soon[_WORKLOAD] + tracker.next_arrival * _WORKLOAD_BYTES)
    fetch_lines(soon[_REQUESTS] + tracker.next_arrival * _REQUEST_BYTES, _REQUEST_BYTES)
    fetch_lines(soon[_REQUESTS] + w.queue_head * _REQUEST_BYTES, _REQUEST_BYTES)
    fetch_lines(soon[_REQUESTS] + w.queue_tail * _REQUEST_BYTES, _REQUEST_BYTES)


@jit_expand
def open_term_memory(where: Any, at: int, size: int) -> Any:
    """Open the memory of a registered reward term, which begins at number ``at`` of all terms."""
    return f8_at(where[_TERMS] + 8 * at, size)


@jit_expand
def open_view(e: Env) -> PolicyView:
    """Return a rule's view of an environment, including the batch-time model of the worker."""
    s = e.settings
    return view_of(
        e.run,
        batch_time_at(s.batch_time_function[0], s.batch_time_function[1]),
        f8_at(s.batch_params[0], s.batch_params[1]),
    )
