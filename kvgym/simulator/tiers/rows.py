"""The tables of a worker, with those of one of its memories below the GPU, and what workers share.

A memory may be shared by workers. Each has links of its own to it, and knows in ``below`` what it finds there: what it
has written or read itself at once, what another one has when that transfer has ended. Until then the unit is in the
list of that transfer's link.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit, jit_expand
from kvgym.compiling.pointers import view_at
from kvgym.compiling.tables import in_rows
from kvgym.simulator.boundary import RUN_TABLES, Run, cache_of
from kvgym.simulator.prefix.cache import is_there, show_found, show_lost
from kvgym.simulator.prefix.host_memory import HOST, TIER
from kvgym.simulator.tables import UNKNOWN

_row_at, _tiers_at = view_at("i8"), view_at(TIER)
NUM_TABLES = len(RUN_TABLES)
_run_at = in_rows(
    Run,
    {
        field: (table, k, NUM_TABLES + k)
        for k, (field, table) in enumerate(zip(Run._fields, RUN_TABLES.values(), strict=True))
    },
)


@jit_expand
def run_with(row: int) -> Run:
    """Open a row of tables."""
    where = _row_at(row, 2 * NUM_TABLES)
    return _run_at(where, where)


@jit_expand
def store_of(run: Run) -> Any:
    """Return the record of what a memory has: of the first of the workers that share it."""
    return _tiers_at(run.tier.owner, 1)[0]


@jit_expand
def sharer(run: Run, k: int) -> Run:
    """Open the tables of the worker number ``k`` that shares a memory, with those of its host."""
    return run_with(run.tier.first_row + k * run.tier.row_stride)


@jit
def lose(run: Run, content: int, mark: int) -> None:
    """Let a worker find a content no more in a memory."""
    if run.below[content].there & mark == 0:
        return
    run.below[content].there -= mark
    c = cache_of(run)
    if not is_there(c, content):
        show_lost(c, run.requests, run.problem.prefix_unit, run.w, content)


@jit
def lose_everywhere(run: Run, content: int) -> None:
    """Let all workers find a content no more in the memory that has dropped it."""
    if run.tier.sharers == 1:
        lose(run, content, run.tier.mark)
        return
    for k in range(run.tier.sharers):
        lose(sharer(run, k), content, run.tier.mark)


@jit
def show(run: Run, content: int, mark: int, position: int) -> None:
    """Let a worker find a content, which has a position in all chains, in a memory; its host may never have had it."""
    if run.below[content].there & mark == 0:
        run.below[content].there += mark
        run.below[content].position = position
        show_found(cache_of(run), run.requests, run.problem.prefix_unit, content)


@jit
def list_coming(run: Run, link: Any, up: int, content: int) -> None:
    """Add a content to the list of a link: of those on the way down to a memory (0), or up to it (1)."""
    run.stored[content].following = UNKNOWN
    if link.first[up] == UNKNOWN:
        link.first[up] = content
    else:
        run.stored[link.last[up]].following = content
    link.last[up] = content


@jit
def show_arrived(run: Run, link: Any, up: int, now: float) -> None:
    """Let all workers find what has come to a memory over a link."""
    while link.first[up] != UNKNOWN and run.stored[link.first[up]].ready_at <= now:
        content = link.first[up]
        link.first[up] = run.stored[content].following
        for k in range(run.tier.sharers):
            show(sharer(run, k), content, run.tier.mark, run.stored[content].position)


@jit
def catch_up(run: Run, now: float) -> None:
    """Let all workers that share a memory find what has come to it."""
    for k in range(run.tier.sharers if run.tier.sharers > 1 else 0):
        other = sharer(run, k)
        if run.tier.mark == HOST:
            show_arrived(run, other.tier, 0, now)
            show_arrived(run, other.lower, 1, now)
        else:
            show_arrived(run, other.lower, 0, now)


# ------------------------------------------------------------ addresses


def rows_below(simulation: Any, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of tables with those of the store in place of those of the host, see :func:`connect_tiers`."""
    lower, place = rows[:, : 2 * NUM_TABLES].copy(), {name: k for k, name in enumerate(RUN_TABLES)}
    lower[:, place["tier"]] = lower[:, place["lower"]]
    before = {
        "stored": simulation.contents.shape[1],
        "drops": int(simulation.tier["room"][0]),
        "tiered": len(simulation.requests),
    }
    for name, rows_before in before.items():
        lower[:, place[name]] += rows_before * RUN_TABLES[name].dtype.itemsize
        lower[:, NUM_TABLES + place[name]] -= rows_before
    return lower


def share(tier: NDArray[Any], rows: NDArray[np.int64], first_row: int, stride: int) -> None:
    """Let the workers that share a memory have its tables in their rows, which have those of each so far."""
    own = [list(RUN_TABLES).index(name) for name in ("stored", "drops")]
    owners = tier["number"]
    rows[:, own] = rows[owners][:, own]
    tier["owner"] = tier.ctypes.data + owners * tier.strides[0]
    tier["first_row"], tier["row_stride"] = first_row + owners * stride, stride
