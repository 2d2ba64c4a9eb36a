"""How the engine reaches the memory below the GPU: through a function pointer in the TIER record.

So runs without such a memory compile no more than these lines.
"""

from __future__ import annotations

from numba import types

from kvgym.compiling.kernel import jit_inline
from kvgym.compiling.pointers import function_at
from kvgym.simulator.boundary import Run

TIER_SIGNATURE = types.void(types.int64, types.int64, types.int64, types.int64, types.float64)
"""Of the kernel: address of the row of tables, what happens, a request, a number of units, a time in seconds."""

START, BATCH, END = 0, 1, 2
"""A request starts, with units that it finds, on the GPU and below; a batch starts, which ends at the time; a request
has finished.
"""

_tier_at = function_at(TIER_SIGNATURE)


@jit_inline
def call_tier(run: Run, what: int, i: int, units: int, time: float) -> None:
    """Let the memory below do its part."""
    t = run.tier
    _tier_at(t.handle, t.second_handle)(t.row, what, i, units, time)


@jit_inline
def wait_for_tier(run: Run, duration: float) -> float:
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
