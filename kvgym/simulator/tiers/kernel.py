"""What the memories below the GPU do: units are written as they are computed, and loaded where a start finds them.

Transfers take their turn on a link in each direction. When one is submitted, its end is known, so there are no further
events: a unit is *coming* until its time. The units of a batch are written from its end on, one transfer for each
request; the loads of its starts begin with it, or when what they read has been written.

A store below the host is another memory with the same rules and links of its own. What has been written to the host is
written on from there when that ends. What a start finds only in the store is read into the host, and then loaded
with the rest; if the host has no room for it, it does not stay there.

Source: the offloading connector of vLLM (``vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py``,
release 0.33): units that are offered with the step that computes them, submitted with the next one, behind the hit on
the GPU, and all again at each start; and its manager of tiers (``vllm/v1/kv_offload/tiering/manager.py``).
Deviations: unless loads are asynchronous (:mod:`kvgym.simulator.tiers.loading`), they hold up the batch instead of the
request, and the last units of a finished request are written with the others and not one step later; the store takes
room when the write to the host is submitted, and drops units by the rules of the host, while vLLM leaves that to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit, kernel, uncompiled
from kvgym.compiling.pointers import address_of, function_at, function_handle, view_at
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE, clear_load
from kvgym.simulator.boundary import Run
from kvgym.simulator.prefix.tier_hook import (
    APART,
    BATCH,
    CATCH_UP,
    CHOOSE,
    DROP,
    END,
    EVICTED,
    IDLE,
    KIND,
    PLAN,
    RELEASE,
    RESERVE,
    START,
    SUBMIT,
    TIER_SIGNATURE,
    WHOLE,
)
from kvgym.simulator.tiers.loading import (
    end_load,
    fence_hit,
    kind_of_start,
    load_whole,
    note_ended,
    release,
    requeue,
    reserve,
    set_apart,
    submit_loads,
)
from kvgym.simulator.tiers.rows import catch_up, list_coming, rows_below, run_with, share, store_of
from kvgym.simulator.tiers.store import begin_use, drop_early, offer, rank_of, use
from kvgym.simulator.tiers.writing import forget, forget_ended, write, write_back

_params_at, _batch_time_at = view_at("f8"), function_at(BATCH_TIME_SIGNATURE)


@jit
def times_of_read(run: Run, lower: Run, i: int, first: int, last: int, free: float) -> tuple[float, float]:
    """Return when those of the units ``first`` … ``last - 1`` that the host lacks are read from the store, seconds.

    Args:
        run: the tables, with those of the host.
        lower: the same with those of the store.
        i: the request.
        first: its first unit that is loaded.
        last: the end of these units, exclusive.
        free: when the link from the store is free, seconds.

    Returns:
        The begin and the end; if the host lacks none, twice the present time.
    """
    now, missing, place = run.w.clock, 0, run.prefix[i].chain
    begin: Any = max(now, free)
    for j in range(first, last):
        content = run.chain[place + j]
        if run.stored[content].rank == 0:
            missing += 1
            begin = max(begin, lower.stored[content].ready_at)
    if missing == 0:
        return now, now
    return begin, begin + (lower.tier.latency + missing * lower.tier.load_time)


@jit
def times_of_load(run: Run, i: int, first: int, last: int, free: float, read: float) -> tuple[float, float]:
    """Return when the load of units ``first`` … ``last - 1`` of request ``i`` begins and ends, seconds.

    Args:
        run: the tables.
        i: the request.
        first: its first unit that is loaded.
        last: the end of these units, exclusive.
        free: when the link is free, seconds.
        read: when those that the host lacks have been read into it.
    """
    place = run.prefix[i].chain
    begin: Any = max(free, read)
    for j in range(first, last):
        begin = max(begin, run.stored[run.chain[place + j]].ready_at)
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
def follow_plan(run: Run) -> None:
    """Forget the starts that are not part of the present plan, when the first one is added to it."""
    tier = run.tier
    if tier.planned != run.pool.stamp:
        tier.planned, tier.plan_free, run.lower.plan_free = run.pool.stamp, tier.up_free, run.lower.up_free


@jit
def end_of_planned(run: Run, i: int, first: int, last: int) -> tuple[float, float]:
    """Return when units ``first`` … ``last - 1`` of request ``i`` are read and loaded after the starts of a plan."""
    follow_plan(run)
    read: Any = run.w.clock
    if run.tier.lower_row != 0:
        lower = run_with(run.tier.lower_row)
        _, read = times_of_read(run, lower, i, first, last, max(lower.tier.plan_free, lower.tier.up_free))
    _, end = times_of_load(run, i, first, last, max(run.tier.plan_free, run.tier.up_free), read)
    return read, end


@jit
def plan_load(run: Run, i: int, first: int, last: int) -> None:
    """Add the load of units ``first`` … ``last - 1`` of request ``i`` to a plan."""
    read, run.tier.plan_free = end_of_planned(run, i, first, last)
    run.lower.plan_free = max(run.lower.plan_free, read)


@jit
def choose(run: Run, i: int, first: int, last: int) -> int:
    """Return the end of the units from ``first`` on that request ``i`` is to load; it finds those before ``last``.

    What the host has comes first, and then the rest, if that is loaded: each if it is there before it could be
    computed, at equal times not.
    """
    place, split = run.prefix[i].chain, first
    while split < last and run.stored[run.chain[place + split]].rank > 0:
        split += 1
    taken = first
    for end in (split, last):
        if end > taken:
            _, there = end_of_planned(run, i, first, end)
            if there >= run.w.clock + time_to_compute(run, taken, end):
                break
            taken = end
    return taken


@jit
def use_units(run: Run, i: int, first: int, last: int, until: float) -> None:
    """Give units ``first`` … ``last - 1`` that are there the rank of request ``i``, and let none go before a time."""
    rank, place = rank_of(run, i), run.prefix[i].chain
    for j in range(first, last):
        b = run.stored[run.chain[place + j]]
        if b.rank > 0:
            use(run, run.chain[place + j], rank)
            b.busy_until = max(b.busy_until, until)
    run.tiered[i].used = max(run.tiered[i].used, last)


@jit
def count_load(run: Run, i: int, units: int, begin: float, end: float) -> None:
    """Let the link carry ``units`` of request ``i`` up."""
    tier = run.tier
    tier.up_time += end - begin
    tier.up_free = end
    tier.total_loads += 1
    tier.total_loaded += units
    if run.requests[i].num_admissions == 0:
        tier.total_first += units


@jit
def read_up(run: Run, lower: Run, i: int, first: int, last: int) -> float:
    """Read the units ``first`` … ``last - 1`` of request ``i`` that the host lacks; return when they are there.

    They take room in the host if there is any.
    """
    place, missing = run.prefix[i].chain, 0
    for j in range(first, last):
        missing += 1 if run.stored[run.chain[place + j]].rank == 0 else 0
    begin, end = times_of_read(run, lower, i, first, last, lower.tier.up_free)
    use_units(lower, i, first, last, end if missing > 0 else -1.0)
    if missing > 0:
        count_load(lower, i, missing, begin, end)
        if offer(run, i, first, last, run.w.clock) > 0:
            for j in range(first, last):
                b = run.stored[run.chain[place + j]]
                if b.written == store_of(run).offer:
                    b.ready_at = b.busy_until = end
                    if run.tier.sharers > 1:
                        list_coming(run, lower.tier, 1, run.chain[place + j])
    return end


@jit
def load(run: Run, i: int, first: int, last: int) -> None:
    """Load the units ``first`` … ``last - 1`` of request ``i``, which starts and holds those before."""
    tier, read = run.tier, float(run.w.clock)
    begin_use(run, i)
    run.tiered[i].first = 0
    if tier.lower_row != 0:
        begin_use(run_with(tier.lower_row), i)
    if first == last:
        return
    if tier.lower_row != 0:
        read = read_up(run, run_with(tier.lower_row), i, first, last)
    begin, end = times_of_load(run, i, first, last, tier.up_free, read)
    use_units(run, i, first, last, end)
    count_load(run, i, last - first, begin, end)
    tier.loaded_at = max(tier.loaded_at, end)
    for j in range(first, last if tier.back == 1 else first):
        drop_early(run, run.chain[run.prefix[i].chain + j])


@kernel(TIER_SIGNATURE, "simulator")
def tier_kernel(row: int, what: int, i: int, first: int, last: int, time: float) -> int:
    """Do what the engine asks for, see :mod:`kvgym.simulator.prefix.tier_hook`."""
    run, answer = run_with(row), 0
    if run.tier.shares == 1 and what in (CATCH_UP, START, BATCH, DROP):
        now = time if what == CATCH_UP else run.w.clock
        catch_up(run, now)
        if run.tier.lower_row != 0:
            catch_up(run_with(run.tier.lower_row), now)
    if what == START and run.prefix[i].kept > 0:
        answer = end_load(run, i)
    elif what == START:
        load(run, i, first, last)
        fence_hit(run, i)
    elif what == WHOLE:
        answer = load_whole(run, i)
    elif what == BATCH:
        write(run, time)
    elif what == DROP:
        write_back(run, i)
    elif what == END and run.tier.asynchronous == 1:
        note_ended(run, i, time)
    elif what == END:
        forget(run, i, time)
    elif what == IDLE:
        forget_ended(run, time, time)
    elif what == CHOOSE:
        answer = choose(run, i, first, last)
    elif what == PLAN:
        plan_load(run, i, first, last)
    elif what == KIND:
        answer = kind_of_start(run, i, first)
    elif what == RESERVE:
        answer = reserve(run)
    elif what == APART:
        answer = set_apart(run, i, first)
    elif what == SUBMIT:
        submit_loads(run)
    elif what == EVICTED:
        requeue(run, i)
    elif what == RELEASE:
        release(run, i)
    return int(answer)


def connect_tiers(simulation: Any, rows: NDArray[np.int64]) -> None:
    """Write into each TIER record of a ``Simulation`` how the engine reaches its memory.

    Args:
        simulation: the simulation; without such a memory nothing is written.
        rows: int64 (r, k), addresses of each worker's tables, then their lengths; to be kept as long as they are used.
    """
    if simulation.system.host_memory is None:
        return
    tier, compiled, workers = simulation.tier, simulation.compiled, np.arange(len(simulation.tier))
    function = tier_kernel.compiled if compiled else uncompiled(tier_kernel)
    tier["handle"], tier["second_handle"] = function_handle(function, TIER_SIGNATURE, compiled=compiled)
    first_row, stride = rows.ctypes.data, rows.strides[0]
    tier["row"] = first_row + workers * stride
    if simulation.system.host_memory.below is not None:
        below = simulation.rows_below = rows_below(simulation, rows)  # addresses of it are kept
        tier["lower_row"] = below.ctypes.data + workers * below.strides[0]
        share(simulation.lower, below, first_row, stride)
    share(tier, rows, first_row, stride)
    for k, own in enumerate(tier):
        kernel_of_times, params = simulation.batch_time_of(k)
        function = kernel_of_times.compiled if compiled else uncompiled(kernel_of_times)
        handles = function_handle(function, BATCH_TIME_SIGNATURE, compiled=compiled)
        own["batch_time"], own["second_batch_time"] = handles
        own["batch_params"], own["num_batch_params"] = address_of(params), len(params)
