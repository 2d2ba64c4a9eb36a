"""Memory that requests need, and decisions about them: admit, evict and pause."""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.compiling.references import by_address
from kvgym.simulator.blocks import allocated, written_tokens
from kvgym.simulator.kernels.drafts import need_of_slot
from kvgym.simulator.kernels.future_memory import first_use
from kvgym.simulator.kernels.heap import heap_first, heap_pop
from kvgym.simulator.kernels.loads import held_in_queue
from kvgym.simulator.policy_interface import PolicyDecision, PolicyView
from kvgym.simulator.prefix.plan import (
    begins_like_marked,
    plan_active,
    plan_admission,
    plan_change,
    plan_units,
    planned_size,
    units_of_others,
)
from kvgym.simulator.prefix.tree import look_up
from kvgym.simulator.tables import UNKNOWN, WAITING

NO_LIMIT = 2**31 - 1
"""More than any number of requests or tokens in a run."""


@jit_inline
def first_waiting(view: PolicyView) -> int:
    """Return the first request of the queue, UNKNOWN if it is empty."""
    return view.worker.queue_head


@jit_inline
def next_waiting(view: PolicyView, i: int) -> int:
    """Return the request behind ``i`` in the queue, UNKNOWN if there is none."""
    return view.requests[i].queue_next


@jit_inline
def next_to_admit(view: PolicyView, decision: PolicyDecision, heap: Any, from_heap: bool) -> int:
    """Return the next request after those admitted so far, UNKNOWN if none is waiting.

    Args:
        view: the kernel's view.
        decision: its decision.
        heap: waiting requests in the policy's own order, a heap of :func:`request_key` at place 0, from which the
            kernel pops the requests it admits. Entries of requests that are no longer waiting are removed.
        from_heap: whether to use the heap's order instead of the queue's.
    """
    d = decision.record
    if not from_heap:
        return (
            first_waiting(view) if d.num_admit == 0 else next_waiting(view, decision.admit[d.num_admit - 1])
        )
    while heap[0] > 0 and view.requests[heap_first(heap, 0)].status != WAITING:
        heap_pop(heap, 0)
    return heap_first(heap, 0)


@jit_inline
def need_of(view: PolicyView, row: Any) -> int:
    """Return the memory that a request needs in the next iteration if it runs in full, allocated tokens.

    Args:
        view: the kernel's view.
        row: an active request (``view.active[k]``) or a waiting one (``view.requests[i]``).
    """
    return first_use(view.problem, row)


@jit_inline
def need_of_tokens(view: PolicyView, row: Any, tokens: int) -> int:
    """Return the memory that a request needs in the next iteration if it processes ``tokens``, allocated tokens."""
    return allocated(
        view.problem, row.num_kv_tokens + written_tokens(view.problem, row.num_prefill_left, tokens)
    )


@jit_inline
def held_by(view: PolicyView, row: Any) -> int:
    """Return the memory that a request holds before the iteration, or gets on admission, in allocated tokens."""
    return allocated(view.problem, row.num_kv_tokens)


@jit_inline
def kept_by_others(view: PolicyView, slot: Any) -> int:
    """Return how much of the memory of a request that the decision evicts stays in use, in allocated tokens.

    These are its units in the prefix cache that other requests hold. Call it once for each request that the decision
    evicts: each call counts that request among those that have given up their units.

    Args:
        view: the kernel's view.
        slot: the active request.
    """
    if view.problem.prefix_unit == 0:
        return 0
    return plan_change(by_address(view.cache), slot.request_id, True) * view.problem.prefix_unit


@jit_inline
def shared_units(view: PolicyView, slot: Any) -> int:
    """Return how many KV tokens of an active request other requests hold as well under the decision so far."""
    if view.problem.prefix_unit == 0:
        return 0
    return units_of_others(by_address(view.cache), slot.request_id, True) * view.problem.prefix_unit


@jit_inline
def stays(view: PolicyView, slot: Any) -> None:
    """Take back a call of :func:`kept_by_others`: the decision does not evict the request after all."""
    if view.problem.prefix_unit > 0:
        plan_units(by_address(view.cache), slot.request_id, True, 1)


@jit_inline
def all_stay(view: PolicyView) -> None:
    """Take it back for all requests: the decision starts afresh."""
    if view.problem.prefix_unit > 0:
        view.cache.pool.stamp += 1


@jit_inline
def shared_hit(view: PolicyView, i: int) -> int:
    """Return how much of the hit of a waiting request in the prefix cache other requests hold, allocated tokens."""
    if view.problem.prefix_unit == 0 or view.cache.prefix[i].num_units == 0:
        return 0
    return units_of_others(by_address(view.cache), i, False) * view.problem.prefix_unit


@jit_inline
def begins_like_another(view: PolicyView, i: int, tokens: int) -> bool:
    """Return whether a waiting request begins with the same tokens as one for which this was called before it.

    A call that returns True leaves no trace: later requests are not compared with that one.

    Args:
        view: the kernel's view; the system has a prefix cache.
        i: the request.
        tokens: number of tokens, rounded up to units of the prefix cache.
    """
    row, unit = view.requests[i], view.problem.prefix_unit
    units = (tokens + unit - 1) // unit
    full = min((row.num_kv_tokens + row.num_prefill_left) // unit, view.cache.prefix[i].length)
    return units <= full and begins_like_marked(by_address(view.cache), i, units)


@jit_inline
def look_up_prefix(view: PolicyView, i: int) -> int:
    """Return the tokens of a waiting request in the prefix cache, as a scheduler that looks for them sees them.

    It is the hit. With ``prefix_cache="radix"`` it is all whole units that are there, also with the last token, and
    they count as used now, as in SGLang.
    """
    unit = view.problem.prefix_unit
    if view.problem.prefix_tree == 1:
        return look_up(by_address(view.cache), view.requests, unit, i)
    return view.cache.prefix[i].num_units * unit


@jit_inline
def plan_in_order(view: PolicyView, decision: PolicyDecision, in_use: int, kept: int = 0) -> bool:
    """Begin to follow what starts find one after the other, where a decision takes effect in order.

    That is with ``prefix_cache="scheduled"``. After evictions, starts count by their hits before the decision.

    Args:
        view: the kernel's view.
        decision: its decision, with the tokens of running requests, and nothing admitted.
        in_use: memory in use with these tokens, allocated tokens.
        kept: units that only requests hold that have just finished, where a decision is made ahead.

    Returns:
        Whether starts are to be followed, by :func:`size_of_start` and :func:`plan_next`.
    """
    d, w, p = decision.record, view.worker, view.problem
    if p.prefix_in_order == 0 or d.num_evict > 0:
        return False
    plan_active(by_address(view.cache), p, d, w, view.active, view.requests, in_use, kept)
    return True


@jit_inline
def size_of_start(view: PolicyView, i: int, in_order: bool) -> tuple[int, int, int, int]:
    """Return the size of a waiting request that starts after those admitted so far.

    Args:
        view: the kernel's view.
        i: the request.
        in_order: result of :func:`plan_in_order`; if not, by the hit before the decision.

    Returns:
        The units that it finds (0 if not in order), its KV tokens and the tokens that it has left to prefill, and
        how much of its memory others hold, in allocated tokens.
    """
    if in_order:
        return planned_size(by_address(view.cache), view.problem, view.requests[i], i)
    row = view.requests[i]
    return 0, row.num_kv_tokens, row.num_prefill_left, shared_hit(view, i)


@jit_inline
def plan_next(
    view: PolicyView,
    decision: PolicyDecision,
    i: int,
    found: int,
    kv: int,
    left: int,
    tokens: int,
    in_use: int,
) -> None:
    """Follow the start of request ``i``, in order; what later starts find depends on it.

    Args:
        view: the kernel's view.
        decision: its decision.
        i: the request.
        found: its first results of :func:`size_of_start`: the units that it finds.
        kv: its KV tokens.
        left: its tokens left to prefill.
        tokens: those that it processes.
        in_use: memory in use afterwards, allocated tokens.
    """
    plan_admission(by_address(view.cache), view.problem, decision.record, i, found, kv, left, tokens, in_use)


@jit_inline
def prefill_without_cache(view: PolicyView, i: int) -> int:
    """Return the tokens that a waiting request would prefill without the cache; its hit may change while it waits."""
    left: int = view.requests[i].num_prefill_left
    if view.problem.prefix_unit > 0:
        left += view.cache.prefix[i].num_units * view.problem.prefix_unit
    return left


@jit_inline
def taken_by(view: PolicyView, i: int) -> int:
    """Return the memory that a waiting request takes from what is free if it starts and runs in full, allocated tokens.

    It is :func:`need_of` less :func:`shared_hit`. Several requests together take at most the sum.
    """
    return need_of(view, view.requests[i]) - shared_hit(view, i)


@jit_inline
def claim_of(view: PolicyView, row: Any) -> int:
    """Return the memory of a request with its whole prompt and one more token, allocated tokens.

    Policies with chunked prefill reserve this memory, so that a prefill never gets stuck.
    """
    unwritten = view.problem.prefill_emits - view.problem.prefill_writes
    return allocated(view.problem, row.num_kv_tokens + row.num_prefill_left + 1 - unwritten)


@jit_inline
def claim_to_start(view: PolicyView, i: int) -> int:
    """Return :func:`claim_of` a waiting request, less what it holds already, tokens."""
    return claim_of(view, view.requests[i]) - held_in_queue(view, i)


@jit_inline
def needs_block(view: PolicyView, row: Any) -> bool:
    """Return whether the next token of a request needs a new block, because its blocks are full."""
    return bool(allocated(view.problem, row.num_kv_tokens) == row.num_kv_tokens)


@jit_inline
def need_of_active(view: PolicyView) -> int:
    """Return the memory that the active set needs in the next iteration if all run in full, allocated tokens."""
    w = view.worker
    if w.num_prefilling == 0 and view.problem.drafts == 0:
        return w.kv_allocated + view.problem.block_size * w.num_full
    need = -w.kv_shared
    for k in range(w.num_active):
        need += need_of_slot(view, k)
    return need


@jit_inline
def need_of_decodes(view: PolicyView) -> int:
    """Return the memory that the active set needs if all decodes run and all prefills pause, allocated tokens."""
    w, block_size = view.worker, view.problem.block_size
    if block_size == 1:
        return w.kv_tokens + max(0, -w.kv_shared) + w.num_active - w.num_prefilling
    need = w.kv_allocated + block_size * w.num_full
    for k in range(w.num_active if w.num_prefilling > 0 else 0):
        slot = view.active[k]
        if slot.num_prefill_left > 0 and needs_block(view, slot):
            need -= block_size
    return need


@jit_inline
def chunk_that_fits(view: PolicyView, row: Any, most: int, room: int) -> int:
    """Return the largest prefill chunk within a token budget and the free memory, tokens; 0 = none fits.

    The chunk that completes the prompt may also write the first output token, which needs memory as well.

    Args:
        view: the kernel's view.
        row: the request, with prompt tokens left to process.
        most: largest chunk, tokens.
        room: free memory in whole blocks, without the rest of the request's last block.
    """
    left, free = row.num_prefill_left, room + held_by(view, row) - row.num_kv_tokens
    chunk = max(0, min(left, most, free))
    if chunk == left and left + view.problem.prefill_writes > free:
        chunk -= 1
    return chunk


@jit_inline
def has_place(view: PolicyView, decision: PolicyDecision) -> bool:
    """Return whether the active set has a free slot, not counting the slots of requests admitted so far."""
    return view.worker.num_active + decision.record.num_admit < decision.admit.shape[0]


@jit_inline
def admit(decision: PolicyDecision, i: int) -> None:
    """Admit the waiting request ``i`` after those admitted so far; it runs in full."""
    d = decision.record
    decision.admit[d.num_admit] = i
    decision.admit_tokens[d.num_admit] = UNKNOWN
    d.num_admit += 1


@jit_inline
def admit_tokens(decision: PolicyDecision, i: int, tokens: int) -> None:
    """Admit request ``i`` with a number of tokens in the next iteration: a chunk of its prefill, 1, or 0."""
    d = decision.record
    d.explicit = 1
    decision.admit[d.num_admit] = i
    decision.admit_tokens[d.num_admit] = tokens
    d.num_admit += 1


@jit_inline
def admit_while_fits(
    view: PolicyView,
    decision: PolicyDecision,
    need: int,
    limit: int,
    most: int = NO_LIMIT,
    strict: bool = False,
) -> int:
    """Admit requests in queue order until one does not fit.

    Args:
        view: the kernel's view.
        decision: its decision.
        need: memory that the next iteration needs so far, allocated tokens.
        limit: memory that it may need; the first request may use the whole capacity if it would be alone, see
            :func:`room_to_admit`.
        most: largest number of admitted requests.
        strict: whether the limit also holds for a request that would be alone.

    Returns:
        The memory that the next iteration needs afterwards, allocated tokens.
    """
    d = decision.record
    i = first_waiting(view)
    room = room_to_admit(view, decision, limit, strict)
    while i != UNKNOWN and d.num_admit < most and has_place(view, decision):
        use = taken_by(view, i)
        if need + use > room:
            break
        need += use
        admit(decision, i)
        room = limit
        i = next_waiting(view, i)
    return need


@jit_inline
def room_to_admit(view: PolicyView, decision: PolicyDecision, limit: int, strict: bool = False) -> int:
    """Return how much memory may be in use after one more admission, allocated tokens.

    This is ``limit``, the capacity without a margin or watermark; or the whole capacity if the request would be
    alone. A margin is room for other requests to grow, and a request longer than the limit would wait forever.

    Args:
        view: the kernel's view.
        decision: its decision.
        limit: memory that may be in use if other requests are active.
        strict: whether the limit also holds for a request that would be alone, as policies in papers are stated.
    """
    d = decision.record
    alone = view.worker.num_active - d.num_evict + d.num_admit == 0
    return view.problem.kv_capacity if alone and not strict else limit


@jit_inline
def evict(decision: PolicyDecision, k: int) -> None:
    """Evict the request in slot ``k``."""
    d = decision.record
    decision.evict[d.num_evict] = k
    d.num_evict += 1


@jit
def evict_latest(view: PolicyView, decision: PolicyDecision, need: int) -> None:
    """Evict the most recently activated requests until the next iteration of the others fits (LIFO).

    Args:
        view: the kernel's view.
        decision: its decision.
        need: memory that the next iteration of the whole active set needs, all in full, allocated tokens.
    """
    k = view.worker.num_active - 1
    while need > view.problem.kv_capacity and k >= 0:
        need -= need_of_slot(view, k) - kept_by_others(view, view.active[k])
        evict(decision, k)
        k -= 1


@jit_inline
def put_back(decision: PolicyDecision, count: int) -> None:
    """Count requests selected before the memory check that then did not fit."""
    decision.record.num_put_back += count


@jit
def clear_all(view: PolicyView, decision: PolicyDecision) -> None:
    """Evict all active requests and admit none: the iteration is lost."""
    decision.record.num_admit = decision.record.num_evict = 0
    for k in range(view.worker.num_active):
        evict(decision, k)


@jit_inline
def pause(decision: PolicyDecision, slot: Any) -> None:
    """Pause an active request, given by its slot, in the next iteration; its KV stays."""
    decision.record.explicit = 1
    slot.planned = 0


@jit_inline
def pause_all(view: PolicyView, decision: PolicyDecision) -> None:
    """Pause all active requests in the next iteration."""
    decision.record.explicit = 1
    for k in range(view.worker.num_active):
        view.active[k].planned = 0
