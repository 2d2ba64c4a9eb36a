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
Deviations: loads hold up the batch instead of the request (its loads are asynchronous, and a request that finds a
coming unit waits); the last units of a finished request are written with the others and not one step later; the last
whole unit of a prompt is computed, as it is where the GPU has it; the store takes room when the write to the host is
submitted, and drops units by the rules of the host, while vLLM leaves that to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit, kernel, uncompiled
from kvgym.compiling.pointers import address_of, function_at, function_handle, view_at
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE, clear_load
from kvgym.simulator.blocks import planned_tokens
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
from kvgym.simulator.tables import UNKNOWN
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
from kvgym.simulator.tiers.store import begin_use, drop_early, end_use, keep, offer, rank_of, use

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


@jit
def write_units(run: Run, i: int, first: int, last: int, now: float, begin: float) -> float:
    """Offer the units ``first`` … ``last - 1`` of request ``i`` now, and write what is lacking from a time on.

    Returns:
        When it has been written; -1 if nothing is, -2 if there is no room.
    """
    tier, place = run.tier, run.prefix[i].chain
    count = offer(run, i, first, last, now)
    if count == UNKNOWN:
        tier.total_refused += 1
        return -2.0
    if count == 0:
        return -1.0
    begin = max(begin, tier.down_free)
    done = begin + (tier.latency + count * tier.store_time)
    for j in range(first, last):
        b = run.stored[run.chain[place + j]]
        if b.written == store_of(run).offer:
            b.ready_at = b.busy_until = done
            if tier.sharers > 1:
                list_coming(run, tier, 0, run.chain[place + j])
    tier.down_time += done - begin
    tier.down_free = done
    tier.total_stored += count
    return float(done)


@jit
def pass_down(run: Run, content: int, begin: float, now: float) -> float:
    """Write a content that is dropped above from a time on, and on from there; return when it has been written.

    What is written while the link is busy is part of the transfer before. -1 if nothing is written.
    """
    tier = run.tier
    if not keep(run, content, now):
        return -1.0
    latency = tier.latency if tier.down_free <= begin else 0.0
    begin = max(begin, tier.down_free)
    done = begin + (latency + tier.store_time)
    b = run.stored[content]
    b.ready_at = b.busy_until = done
    if tier.sharers > 1:
        list_coming(run, tier, 0, content)
    tier.down_time += done - begin
    tier.down_free = done
    tier.total_stored += 1
    return float(done)


@jit
def write_back(run: Run, content: int) -> None:
    """Write a content that the GPU drops; the memory that it had is free when that has ended."""
    now = float(run.w.clock)
    done = pass_down(run, content, now, now)
    if done >= 0.0:
        run.below[content].safe_at = done
        if run.tier.lower_row != 0:
            end = pass_down(run_with(run.tier.lower_row), content, done, now)
            run.stored[content].busy_until = max(done, end)


@jit
def write_on(run: Run, lower: Run, i: int, first: int, last: int, now: float, done: float) -> None:
    """Write on what the last offer to the host has written there, of units ``first`` … ``last - 1``, from a time on."""
    place, number = run.prefix[i].chain, store_of(run).offer
    while run.stored[run.chain[place + first]].written != number:
        first += 1
    end = write_units(lower, i, first, last, now, done)
    for j in range(first, last):
        if end >= 0.0 and lower.stored[run.chain[place + j]].written == store_of(lower).offer:
            b = run.stored[run.chain[place + j]]
            b.busy_until = max(b.busy_until, end)


@jit
def count_use(run: Run, end: float) -> None:
    """Count what is in use to the end of a batch."""
    tier = store_of(run)
    tier.used_time += tier.used * max(0.0, end - tier.counted_until)
    tier.counted_until = max(end, tier.counted_until)


@jit
def write(run: Run, end: float) -> None:
    """Write the units that the batch completes, or that found no room before, one transfer for each request.

    Args:
        run: the tables.
        end: end of the batch, seconds.
    """
    tier, w = run.tier, run.w
    count_use(run, end)
    if tier.lower_row != 0:
        count_use(run_with(tier.lower_row), end)
    for k in range(0 if tier.back == 1 else w.num_active):
        slot = run.active[k]
        if planned_tokens(run.decision, slot.planned, slot.num_prefill_left) > 0:
            write_computed(run, slot.request_id, run.prefix[slot.request_id].num_units, w.clock, end)
    forget_ended(run, w.clock, end)
    tier.together = 0


@jit
def write_computed(run: Run, i: int, computed: int, now: float, begin: float) -> None:
    """Write the first ``computed`` units of request ``i`` from a time on, without those that it has offered before."""
    tier, p, t = run.tier, run.prefix[i], run.tiered[i]
    last: Any = computed
    if tier.outputs == 0:
        last = min(computed, run.requests[i].prompt_len // run.problem.prefix_unit)
    if t.offered >= last:
        return
    done = write_units(run, i, t.offered, last, now, begin)
    if done == -2.0:
        return
    if done >= 0.0:
        t.stored_at = done
        for j in range(t.offered, last):
            content = run.chain[p.chain + j]
            if run.stored[content].written == store_of(run).offer:
                run.below[content].safe_at, run.below[content].source = done, run.held[p.held + j]
                run.stored[content].writer = i
        if tier.lower_row != 0:
            write_on(run, run_with(tier.lower_row), i, t.offered, last, now, done)
    t.offered = last


@jit
def forget_ended(run: Run, now: float, begin: float) -> None:
    """Offer once more what requests that have finished were refused, and end their use."""
    tier = run.tier
    while tier.first_ended != UNKNOWN:
        i = tier.first_ended
        until, tier.first_ended = run.tiered[i].until, run.tiered[i].following
        write_computed(run, i, run.prefix[i].left, now, begin)
        end_use(run, i, until)


@jit
def forget(run: Run, i: int, until: float) -> None:
    """Let request ``i``, which has finished, use no memory any more; its KV is kept to a time."""
    end_use(run, i, until)
    if run.tier.lower_row != 0:
        end_use(run_with(run.tier.lower_row), i, until)


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
