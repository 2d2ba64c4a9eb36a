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
from kvgym.compiling.pointers import address_of, function_at, function_handle, view_at
from kvgym.compiling.tables import in_rows
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE, clear_load
from kvgym.simulator.boundary import RUN_TABLES, Run
from kvgym.simulator.prefix.tier_hook import BATCH, CHOOSE, END, PLAN, START, TIER_SIGNATURE
from kvgym.simulator.tables import UNKNOWN
from kvgym.simulator.tiers.store import begin_use, end_use, offer, rank_of, use

_row_at, _params_at = view_at("i8"), view_at("f8")
_batch_time_at = function_at(BATCH_TIME_SIGNATURE)
_NUM_TABLES = len(RUN_TABLES)
_run_at = in_rows(
    Run,
    {
        field: (table, k, _NUM_TABLES + k)
        for k, (field, table) in enumerate(zip(Run._fields, RUN_TABLES.values(), strict=True))
    },
)


@jit
def end_of_load(run: Run, i: int, first: int, last: int, free: float) -> tuple[float, float]:
    """Return when the load of units ``first`` … ``last - 1`` of request ``i`` begins and ends, seconds.

    Args:
        run: the tables.
        i: the request.
        first: its first unit that is loaded.
        last: the end of these units, exclusive.
        free: when the link is free, seconds.
    """
    begin, place = max(run.w.clock, free), run.prefix[i].chain
    for j in range(first, last):
        begin = max(begin, run.below[run.chain[place + j]].ready_at)
    return begin, begin + (run.tier.latency + (last - first) * run.tier.load_time)


@jit
def time_to_compute(run: Run, first: int, last: int) -> float:
    """Return the duration of a batch that computes units ``first`` … ``last - 1`` of a request alone, seconds."""
    tier, load, unit = run.tier, run.load, run.problem.prefix_unit
    tokens, context = (last - first) * unit, first * unit
    clear_load(load)
    load.num_prefills, load.prefill_tokens, load.prefill_context = 1, tokens, context
    load.prefill_squares, load.prefill_products = tokens * tokens, tokens * context
    params = _params_at(tier.batch_params, tier.num_batch_params)
    return float(_batch_time_at(tier.batch_time, tier.second_batch_time)(load, params))


@jit
def planned_free(run: Run) -> float:
    """Return when the link to the GPU is free after the starts that a plan has added to the decision, seconds."""
    tier = run.tier
    if tier.planned != run.pool.stamp:
        tier.planned, tier.plan_free = run.pool.stamp, tier.up_free
    return max(tier.plan_free, tier.up_free)


@jit
def choose(run: Run, i: int, first: int, last: int) -> int:
    """Return ``last`` if request ``i`` is to load the units ``first`` … ``last - 1``, ``first`` if to compute them."""
    if first == last:
        return last
    _, end = end_of_load(run, i, first, last, planned_free(run))
    return last if end < run.w.clock + time_to_compute(run, first, last) else first


@jit
def load(run: Run, i: int, first: int, last: int) -> None:
    """Load the units ``first`` … ``last - 1`` of request ``i``, which starts and holds those before."""
    tier, t = run.tier, run.tiered[i]
    begin_use(run, i)
    if first == last:
        return
    rank, place = rank_of(run, i), run.prefix[i].chain
    for j in range(first, last):
        use(run, run.chain[place + j], rank)
    begin, end = end_of_load(run, i, first, last, tier.up_free)
    for j in range(first, last):
        b = run.below[run.chain[place + j]]
        b.busy_until = max(b.busy_until, end)
    t.used = max(t.used, last)
    tier.up_time += end - begin
    tier.up_free = end
    tier.loaded_at = max(tier.loaded_at, end)
    tier.total_loads += 1
    tier.total_loaded += last - first
    if run.requests[i].num_admissions == 0:
        tier.total_first += last - first


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
def tier_kernel(row: int, what: int, i: int, first: int, last: int, time: float) -> int:
    """Do what the engine asks for, see :mod:`kvgym.simulator.prefix.tier_hook`."""
    where = _row_at(row, 2 * _NUM_TABLES)
    run = _run_at(where, where)
    if what == START:
        load(run, i, first, last)
    elif what == BATCH:
        write(run, time)
    elif what == END:
        end_use(run, i)
    elif what == CHOOSE:
        return choose(run, i, first, last)
    elif what == PLAN:
        _, run.tier.plan_free = end_of_load(run, i, first, last, planned_free(run))
    return last


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
    for k, own in enumerate(tier):
        kernel_of_times, params = simulation.batch_time_of(k)
        function = kernel_of_times.compiled if compiled else uncompiled(kernel_of_times)
        handles = function_handle(function, BATCH_TIME_SIGNATURE, compiled=compiled)
        own["batch_time"], own["second_batch_time"] = handles
        own["batch_params"], own["num_batch_params"] = address_of(params), len(params)
