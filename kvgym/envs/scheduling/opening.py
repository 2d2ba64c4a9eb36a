"""An environment's tables, opened inside compiled code from the row of addresses that a call hands over."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from kvgym.envs.scheduling.tables import EPISODE, SETTINGS
from kvgym.envs.scheduling.window import Env
from kvgym.simulator.addresses import view_at
from kvgym.simulator.boundary import Run
from kvgym.simulator.compiled import jit_expand
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
log_at, settings_at = view_at(ITERATION), view_at(SETTINGS)
i4_at, i8_at, f8_at = view_at("i4"), view_at("i8"), view_at("f8")


class Where(NamedTuple):
    """Where the tables of an environment lie.

    Attributes:
        at: int64 (NUM_TABLES,), addresses, see :class:`~kvgym.envs.scheduling.memory.Block`.
        size: int64 (NUM_TABLES,), lengths.
        settings: address of the SETTINGS record.
    """

    at: Any
    size: Any
    settings: Any


_named_tuple: Any = types.NamedTuple  # untyped in Numba
WHERE = _named_tuple((types.int64[::1], types.int64[::1], types.int64), Where)
"""Numba type of :class:`Where`."""


@jit_expand
def open_run(where: Where) -> Run:
    """Open the simulator's tables; what is not used costs nothing."""
    at, size = where.at, where.size
    return Run(
        problem_at(at[0], 1)[0],
        tracker_at(at[1], 1)[0],
        worker_at(at[2], 1)[0],
        decision_at(at[3], 1)[0],
        load_at(at[4], 1)[0],
        workload_at(at[8], size[8]),
        requests_at(at[9], size[9]),
        slots_at(at[10], size[10]),
        i4_at(at[11], size[11]),
        i4_at(at[12], size[12]),
        i4_at(at[13], size[13]),
        i4_at(at[14], size[14]),
        i4_at(at[15], size[15]),
        i4_at(at[16], size[16]),
        i8_at(at[17], size[17]),
        f8_at(at[18], size[18]),
        log_at(at[19], size[19]),
    )


@jit_expand
def open_environment(where: Where) -> Env:
    """Open all tables of an environment."""
    return Env(
        open_run(where),
        settings_at(where.settings, 1)[0],
        episode_at(where.at[5], 1)[0],
        i4_at(where.at[6], where.size[6]),
        i8_at(where.at[7], where.size[7]),
    )
