"""What the memory below the GPU does: it writes units as they are computed, and loads those that a start finds there.

Transfers take their turn on a link in each direction. When one is submitted, its end is known, so there are no further
events: a unit is *coming* until its time. The units of a batch are written from its end on, one transfer for each
request; the loads of its starts begin with it, or when what they read has been written.

Source: the offloading connector of vLLM (``vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py``,
release 0.33): units that are offered with the step that computes them, submitted with the next one, behind the hit on
the GPU, and all again at each start. Deviations: loads hold up the batch instead of the request (its loads are
asynchronous, and a request that finds a coming unit waits); the last units of a finished request are written with the
others and not one step later; the last whole unit of a prompt is computed, as it is where the GPU has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit, kernel, uncompiled
from kvgym.compiling.pointers import function_handle, view_at
from kvgym.compiling.tables import in_rows
from kvgym.simulator.boundary import RUN_TABLES, Run
from kvgym.simulator.tables import UNKNOWN
from kvgym.simulator.tiers.hook import BATCH, START, TIER_SIGNATURE
from kvgym.simulator.tiers.store import begin_use, end_use, offer, rank_of, use

_row_at = view_at("i8")
_NUM_TABLES = len(RUN_TABLES)
_run_at = in_rows(
    Run,
    {
        field: (table, k, _NUM_TABLES + k)
        for k, (field, table) in enumerate(zip(Run._fields, RUN_TABLES.values(), strict=True))
    },
)


@jit
def load(run: Run, i: int, found: int) -> None:
    """Load what request ``i``, which starts, finds below: the units behind those that it holds, up to ``found``."""
    tier, w, p, t = run.tier, run.w, run.prefix[i], run.tiered[i]
    begin_use(run, i)
    count = found - p.num_units
    if count == 0:
        return
    rank, begin = rank_of(run, i), max(w.clock, tier.up_free)
    for j in range(p.num_units, found):
        b = run.below[run.chain[p.chain + j]]
        use(run, run.chain[p.chain + j], rank)
        begin = max(begin, b.ready_at)
    end = begin + (tier.latency + count * tier.load_time)
    for j in range(p.num_units, found):
        b = run.below[run.chain[p.chain + j]]
        b.busy_until = max(b.busy_until, end)
    t.used = max(t.used, found)
    tier.up_time += end - begin
    tier.up_free = end
    tier.loaded_at = max(tier.loaded_at, end)
    tier.total_loads += 1
    tier.total_loaded += count
    if run.requests[i].num_admissions == 0:
        tier.total_first += count


@jit
def write(run: Run, end: float) -> None:
    """Write the units that the batch completes, or that found no room before, one transfer for each request.

    Args:
        run: the tables.
        end: end of the batch, seconds.
    """
    tier, w, unit = run.tier, run.w, run.problem.prefix_unit
    tier.used_time += tier.used * (end - tier.counted_until)
    tier.counted_until = end
    for k in range(w.num_active):
        i = run.active[k].request_id
        p, t = run.prefix[i], run.tiered[i]
        last: Any = p.num_units if tier.outputs == 1 else min(p.num_units, run.requests[i].prompt_len // unit)
        if t.offered >= last:
            continue
        count = offer(run, i, t.offered, last, w.clock)
        if count == UNKNOWN:
            tier.total_refused += 1
            continue
        if count > 0:
            begin = max(end, tier.down_free)
            done = begin + (tier.latency + count * tier.store_time)
            for j in range(t.offered, last):
                b = run.below[run.chain[p.chain + j]]
                if b.written == tier.offer:
                    b.ready_at = b.busy_until = done
            tier.down_time += done - begin
            tier.down_free = done
            tier.total_stored += count
        t.offered = last
        t.used = max(t.used, last)


@kernel(TIER_SIGNATURE, "simulator")
def tier_kernel(row: int, what: int, i: int, units: int, time: float) -> None:
    """Do what the engine asks for, see :mod:`kvgym.simulator.tiers.hook`."""
    where = _row_at(row, 2 * _NUM_TABLES)
    run = _run_at(where, where)
    if what == START:
        load(run, i, units)
    elif what == BATCH:
        write(run, time)
    else:
        end_use(run, i)


def connect_tiers(simulation: Any, rows: NDArray[np.int64]) -> None:
    """Write into each TIER record of a ``Simulation`` how the engine reaches its memory.

    Args:
        simulation: the simulation; without such a memory nothing is written.
        rows: int64 (r, k), addresses of each worker's tables, then their lengths; to be kept as long as they are used.
    """
    if simulation.system.host_memory is None:
        return
    tier, compiled = simulation.tier, simulation.compiled
    function = tier_kernel.compiled if compiled else uncompiled(tier_kernel)
    tier["handle"], tier["second_handle"] = function_handle(function, TIER_SIGNATURE, compiled=compiled)
    tier["row"] = rows.ctypes.data + np.arange(len(tier)) * rows.strides[0]
