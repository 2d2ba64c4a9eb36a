"""Building blocks for policies that know of asynchronous loads from the memory below the GPU.

Other policies start a request that has to load as any other. It stays in the queue then, and what they have reserved
for it in this iteration stays unused.
"""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit_inline
from kvgym.simulator.blocks import allocated, written_tokens
from kvgym.simulator.policy_interface import PolicyView
from kvgym.simulator.prefix.tier_hook import KIND, LOADS, RESERVE, RUNS, WAITS, call_tier
from kvgym.simulator.tables import UNKNOWN

__all__ = [
    "LOADS",
    "RUNS",
    "WAITS",
    "held_in_queue",
    "kind_of_start",
    "memory_reserved",
    "rest_of_start",
]


@jit_inline
def kind_of_start(view: PolicyView, i: int, found: int, in_order: bool) -> int:
    """Return what the start of a waiting request comes to: RUNS, WAITS (nothing happens) or LOADS (a load begins).

    A request that does not run gets no tokens, and takes no place in the batch; one that loads takes the memory of its
    KV tokens, which must fit beside :func:`memory_reserved`.

    Args:
        view: the kernel's view.
        i: the request.
        found: units that it finds, of :func:`~kvgym.simulator.kernels.memory.size_of_start`.
        in_order: result of :func:`~kvgym.simulator.kernels.memory.plan_in_order`; if not, RUNS.
    """
    t = view.cache.tier
    if not in_order or t.asynchronous == 0:
        return RUNS
    return call_tier(t, KIND, i, found, 0, 0.0)


@jit_inline
def memory_reserved(view: PolicyView) -> int:
    """Return what prefills and loads under way need beyond the next batch, without starts of this decision, tokens."""
    return call_tier(view.cache.tier, RESERVE, UNKNOWN, 0, 0, 0.0)


@jit_inline
def held_in_queue(view: PolicyView, i: int) -> int:
    """Return the memory that a waiting request holds, because it loads or has loaded, tokens."""
    if view.problem.prefix_unit == 0:
        return 0
    return int(view.cache.prefix[i].kept * view.problem.prefix_unit)


@jit_inline
def rest_of_start(view: PolicyView, i: int, kv: int, left: int, tokens: int) -> int:
    """Return by how much a start changes :func:`memory_reserved`, allocated tokens.

    Args:
        view: the kernel's view.
        i: the request.
        kv: its KV tokens.
        left: its tokens left to prefill.
        tokens: those that it processes.
    """
    p = view.problem
    whole = allocated(p, kv + written_tokens(p, left, left))
    rest: Any = whole - allocated(p, kv + written_tokens(p, left, tokens)) if left > 0 else 0
    held = held_in_queue(view, i)
    if held > 0:
        rest -= whole - held
    return int(rest)
