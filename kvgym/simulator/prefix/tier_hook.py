"""How the engine reaches the memory below the GPU: through a function pointer in the TIER record.

So runs without such a memory compile no more than these lines.
"""

from __future__ import annotations

from typing import Any

from numba import types

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.compiling.pointers import function_at
from kvgym.simulator.tables import UNKNOWN

TIER_SIGNATURE = types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.float64)
"""Of the kernel: address of the row of tables, what happens, a request, two numbers of units, a time in seconds."""

START, BATCH, END, CHOOSE, PLAN, CATCH_UP, DROP = 0, 1, 2, 3, 4, 5, 6
"""A request starts, with units that it finds, on the GPU and below; a batch starts, which ends at the time; a request
has finished, and its KV is kept until the time. A request that starts, or may start, finds units from the first number
to the second one only below: how many of its units does it take as found, and compute no more? Those of a planned start
are loaded. What other workers have written to a memory that they share is found from its arrival on.
The GPU drops a content, which is given in place of the request.
"""

WHOLE, IDLE = 7, 8
"""How many units more does a request take that is about to start, because all of its whole units are found? A decision
is due, and none has been made since the last batch ended. A start says how many units the request has loaded before.
"""

KIND, RESERVE, APART, SUBMIT, EVICTED, RELEASE = 9, 10, 11, 12, 13, 14
"""Where loads are asynchronous: what does a start come to under the plan, with units that it finds? How much memory do
prefills under way still need, tokens? Does a request that the decision starts stay in the queue, where others have
taken a number of tokens? The decision has taken effect; a request has been evicted; a waiting request leaves the queue.
"""

RUNS, WAITS, LOADS = 0, 1, 2
"""What a start comes to: the request joins the batch; it waits for transfers of others, or for its own load; or its
load begins.
"""

_tier_at = function_at(TIER_SIGNATURE)


@jit_inline
def call_tier(tier: Any, what: int, i: int, first: int, last: int, time: float) -> int:
    """Let the memory below do its part, and return its answer; ``tier`` is its TIER record."""
    return int(_tier_at(tier.handle, tier.second_handle)(tier.row, what, i, first, last, time))


@jit_inline
def see_arrivals(tier: Any, time: float) -> None:
    """Show in a worker's tables what others have written by a time to a memory that they share."""
    if tier.shares == 1:
        call_tier(tier, CATCH_UP, UNKNOWN, 0, 0, time)


@jit
def take_hit(run: Any, i: int) -> int:
    """Return how many units of its hit request ``i``, which starts, does not compute, and show that in its row."""
    p, r = run.prefix[i], run.requests[i]
    found, first = int(p.num_units), 0
    if run.tier.cheaper == 0:
        return found + call_tier(run.tier, WHOLE, i, 0, 0, 0.0)
    while first < found and run.contents[run.chain[p.chain + first]].unit != UNKNOWN:
        first += 1
    run.tier.planned = UNKNOWN  # from now on starts take place
    taken = call_tier(run.tier, CHOOSE, i, first, found, 0.0)
    r.num_kv_tokens -= (found - taken) * run.problem.prefix_unit
    r.num_prefill_left += (found - taken) * run.problem.prefix_unit
    return taken


@jit_inline
def wait_for_tier(run: Any, duration: float) -> float:
    """Return the duration of a batch with its transfers, seconds.

    Memory that the batch takes may still be read by a write: it waits for its end, as vLLM does. Then come its loads.

    Args:
        run: the tables.
        duration: of the batch alone.
    """
    t, clock = run.tier, run.w.clock
    stall = max(0.0, t.fence - clock)
    loads = max(0.0, t.loaded_at - clock)
    whole = max(stall + duration, loads) if t.overlaps == 1 else max(stall, loads) + duration
    t.stall_time += stall
    t.wait_time += whole - stall - duration
    t.fence = t.loaded_at = -1.0
    return float(whole)
