"""An environment's tables, opened inside compiled code from the row of numbers that a call hands over.

A row of control is int64 (2 T + 1,): the addresses of the T tables of :class:`~kvgym.envs.scheduling.memory.Block`,
their lengths, and the address of the SETTINGS record.
"""

from __future__ import annotations

from typing import Any

from numba import types

from kvgym.compiling.kernel import jit_expand, jit_inline
from kvgym.compiling.pointers import function_at, prefetch, view_at
from kvgym.envs.scheduling.memory import LINE, NUM_TABLES
from kvgym.envs.scheduling.tables import EPISODE, SEEN, SETTINGS
from kvgym.envs.scheduling.window import Env
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE
from kvgym.simulator.boundary import Run
from kvgym.simulator.gaps import fine_bin, sparse_home
from kvgym.simulator.policy_interface import RuleMemory, RuleView, view_of
from kvgym.simulator.tables import (
    DECISION,
    ITERATION,
    LOAD,
    PROBLEM,
    REQUEST,
    SLOT,
    TRACKER,
    WORKER,
    WORKLOAD,
)

problem_at, tracker_at, worker_at = view_at(PROBLEM), view_at(TRACKER), view_at(WORKER)
decision_at, load_at, episode_at = view_at(DECISION), view_at(LOAD), view_at(EPISODE)
workload_at, requests_at, slots_at = view_at(WORKLOAD), view_at(REQUEST), view_at(SLOT)
log_at, settings_at, seen_at = view_at(ITERATION), view_at(SETTINGS), view_at(SEEN)
i4_at, i8_at, f8_at = view_at("i4"), view_at("i8"), view_at("f8")
batch_time_at = function_at(BATCH_TIME_SIGNATURE)

WHERE = types.int64[::1]
"""Numba type of a row of control: addresses of the tables, their lengths, and the address of the SETTINGS record."""


@jit_expand
def open_run(where: Any) -> Run:
    """Open the simulator's tables; what is not used costs nothing."""
    return Run(
        problem_at(where[0], 1)[0],
        tracker_at(where[1], 1)[0],
        worker_at(where[2], 1)[0],
        decision_at(where[3], 1)[0],
        load_at(where[4], 1)[0],
        workload_at(where[8], where[NUM_TABLES + 8]),
        requests_at(where[9], where[NUM_TABLES + 9]),
        slots_at(where[10], where[NUM_TABLES + 10]),
        i4_at(where[11], where[NUM_TABLES + 11]),
        i4_at(where[12], where[NUM_TABLES + 12]),
        i4_at(where[13], where[NUM_TABLES + 13]),
        i4_at(where[14], where[NUM_TABLES + 14]),
        i4_at(where[15], where[NUM_TABLES + 15]),
        i4_at(where[16], where[NUM_TABLES + 16]),
        i8_at(where[17], where[NUM_TABLES + 17]),
        f8_at(where[18], where[NUM_TABLES + 18]),
        log_at(where[19], where[NUM_TABLES + 19]),
    )


@jit_expand
def open_environment(where: Any) -> Env:
    """Open all tables of an environment."""
    return Env(
        open_run(where),
        settings_at(where[2 * NUM_TABLES], 1)[0],
        episode_at(where[5], 1)[0],
        i4_at(where[6], where[NUM_TABLES + 6]),
        i8_at(where[7], where[NUM_TABLES + 7]),
        seen_at(where[25], where[NUM_TABLES + 25]),
        seen_at(where[26], where[NUM_TABLES + 26]),
    )


_SLOT_BYTES, _REQUEST_BYTES, _WORKLOAD_BYTES = SLOT.itemsize, REQUEST.itemsize, WORKLOAD.itemsize


@jit_inline
def fetch_lines(address: int, size: int) -> None:
    """Have ``size`` bytes brought into the cache while the work goes on."""
    for line in range(address, address + size, LINE):
        prefetch(line)


@jit_inline
def fetch_environment(soon: Any, later: Any) -> None:
    """Have what steps touch of two environments brought into the cache, while another one is stepped.

    Tables that are in use as a whole (:data:`~kvgym.envs.scheduling.memory.NEAR`) come one environment earlier than the
    rest: which part of the rest a step touches stands in them.
    """
    fetch_lines(later[0], later[10] - later[0])
    tracker, w = tracker_at(soon[1], 1)[0], worker_at(soon[2], 1)[0]
    fetch_lines(soon[10], w.num_active * _SLOT_BYTES)
    fetch_lines(soon[11], w.num_active * 4)
    for table in range(12, 15):  # lists of requests: their beginnings
        prefetch(soon[table])
    # Batches take about as long as the one before.
    usual = sparse_home(fine_bin(w.batch_duration), 1, soon[NUM_TABLES + 17])
    prefetch(soon[17] + 8 * usual)
    prefetch(soon[18] + 8 * usual)
    prefetch(soon[8] + tracker.next_arrival * _WORKLOAD_BYTES)
    fetch_lines(soon[9] + tracker.next_arrival * _REQUEST_BYTES, _REQUEST_BYTES)
    fetch_lines(soon[9] + w.queue_head * _REQUEST_BYTES, _REQUEST_BYTES)
    fetch_lines(soon[9] + w.queue_tail * _REQUEST_BYTES, _REQUEST_BYTES)


@jit_expand
def open_rule(where: Any) -> RuleMemory:
    """Open the memory of the kind's rule; empty arrays where it has none."""
    return RuleMemory(
        f8_at(where[20], where[NUM_TABLES + 20]),
        i8_at(where[21], where[NUM_TABLES + 21]),
        f8_at(where[22], where[NUM_TABLES + 22]),
        i4_at(where[23], where[NUM_TABLES + 23]),
    )


@jit_expand
def open_term_memory(where: Any, at: int, size: int) -> Any:
    """Open what a registered reward term remembers, from number ``at`` of all terms on."""
    return f8_at(where[24] + 8 * at, size)


@jit_expand
def open_view(e: Env) -> RuleView:
    """Return what a rule sees of an environment, the batch-time model of the worker included."""
    s = e.settings
    return view_of(
        e.run,
        batch_time_at(s.batch_time_function[0], s.batch_time_function[1]),
        f8_at(s.batch_params[0], s.batch_params[1]),
    )
