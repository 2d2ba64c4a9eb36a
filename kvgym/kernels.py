"""Everything that the rule of a compiled policy is built of, in one place.

A compiled policy is a class with a kernel, a function of what it sees, what it decides and what it remembers
(:class:`RuleView`, :class:`RuleDecision`, :class:`RuleMemory`; their fields are explained there)::

    from kvgym import CompiledPolicy, PolicyInfo, register_policy
    from kvgym.kernels import admit_while_fits, evict_latest, need_of_active, policy_kernel


    @policy_kernel
    def rule(view, decision, memory):
        need = need_of_active(view)
        if need > view.problem.kv_capacity:
            evict_latest(view, decision, need)
        else:
            admit_while_fits(view, decision, need, view.problem.kv_capacity)


    @register_policy
    class MyFCFS(CompiledPolicy):
        info = PolicyInfo(name="my_fcfs", summary="first come, first served", evicts=True)
        kernel = rule

A kernel is called at every iteration boundary with the decision to run everything that is active and to admit
nobody. It is written in Numba's subset of Python, allocates nothing and makes no arrays of its own: what it needs
beyond numbers stands in its memory, see :meth:`kvgym.policy.CompiledPolicy.memory`. Its helpers are functions
with the decorator :func:`jit`, or :func:`jit_inline` where they run at every decision and take the tuples.

What there is:

- The queue: :func:`first_waiting`, :func:`next_waiting`, :func:`next_to_admit`; ids are UNKNOWN where there is none.
- Who has gone: the router of a cluster may take requests away. A rule that remembers who waits or is active forgets
  ``view.worker.num_left`` of them, :func:`left_request`, before it takes in those of ``view.queued``: from heaps by
  :func:`forget_left` and :func:`forget_ranked`, from queues by :func:`unlink`, from a profile by :func:`profile_of`.
- Memory of the coming iteration: :func:`need_of`, :func:`need_of_active`; if not everybody runs in full
  :func:`need_of_tokens`, :func:`need_of_decodes`, :func:`held_by`, :func:`kv_growth`, :func:`claim_of`,
  :func:`chunk_that_fits`, :func:`needs_block`, :func:`full_tokens`.
- Deciding: :func:`has_place`, :func:`admit`, :func:`admit_tokens`, :func:`admit_while_fits`, :func:`room_to_admit`,
  :func:`evict`, :func:`evict_latest`, :func:`clear_all`, :func:`put_back`, :func:`pause`, :func:`pause_all`,
  :func:`drop_full_plan`; to wait, set ``decision.record.act = WAIT`` and, if not for the next arrival, ``wait_until``.
- A column of ``view.requests`` that is needed for all active requests: :func:`follow_slots`.
- Look-ahead over future memory: :mod:`kvgym.simulator.lookahead`, with :func:`first_tokens`.
- Heaps in ``memory.state``: :mod:`kvgym.simulator.heap`. Random numbers: :mod:`kvgym.simulator.random`.
- The constants that records hold: :mod:`kvgym.simulator.tables`.

Memory comes in blocks of ``view.problem.block_size`` tokens, and a request takes whole ones: ``num_kv_tokens`` of a
row and ``view.worker.kv_tokens`` are tokens, but what has to fit into ``view.problem.kv_capacity`` are *allocated
tokens*, those of all blocks that are held. All functions here that speak of memory return these, and
``view.worker.kv_allocated`` holds them for the active set at rest, so that rules built of them need not know about
blocks. :func:`allocated` turns tokens of one request into them; sums of tokens cannot be turned.
"""

from __future__ import annotations

from typing import Any

from kvgym.simulator.apply_decision import full_tokens as full_tokens
from kvgym.simulator.blocks import allocated as allocated
from kvgym.simulator.blocks import kv_growth as kv_growth
from kvgym.simulator.blocks import written_tokens
from kvgym.simulator.compiled import jit as jit
from kvgym.simulator.compiled import jit_inline as jit_inline
from kvgym.simulator.heap import heap_first as heap_first
from kvgym.simulator.heap import heap_forget as heap_forget
from kvgym.simulator.heap import heap_pop as heap_pop
from kvgym.simulator.heap import heap_push as heap_push
from kvgym.simulator.heap import key_request as key_request
from kvgym.simulator.heap import ranked_before as ranked_before
from kvgym.simulator.heap import ranked_forget as ranked_forget
from kvgym.simulator.heap import ranked_keep as ranked_keep
from kvgym.simulator.heap import ranked_merge as ranked_merge
from kvgym.simulator.heap import ranked_pop as ranked_pop
from kvgym.simulator.heap import ranked_push as ranked_push
from kvgym.simulator.heap import ranked_sink as ranked_sink
from kvgym.simulator.heap import ranked_sort as ranked_sort
from kvgym.simulator.heap import request_key as request_key
from kvgym.simulator.leaving import forget_left as forget_left
from kvgym.simulator.leaving import forget_ranked as forget_ranked
from kvgym.simulator.leaving import left_request as left_request
from kvgym.simulator.leaving import move_to as move_to
from kvgym.simulator.leaving import unlink as unlink
from kvgym.simulator.lookahead import blocked_for as blocked_for
from kvgym.simulator.lookahead import empty_profile as empty_profile
from kvgym.simulator.lookahead import first_tokens as first_tokens
from kvgym.simulator.lookahead import first_use
from kvgym.simulator.lookahead import predicted_rounds as predicted_rounds
from kvgym.simulator.lookahead import profile_add as profile_add
from kvgym.simulator.lookahead import profile_clear as profile_clear
from kvgym.simulator.lookahead import profile_forget as profile_forget
from kvgym.simulator.lookahead import profile_of as profile_of
from kvgym.simulator.lookahead import profile_offset as profile_offset
from kvgym.simulator.lookahead import rounds_for as rounds_for
from kvgym.simulator.random import next_uniform as next_uniform
from kvgym.simulator.random import seed_words as seed_words
from kvgym.simulator.rule import RuleDecision as RuleDecision
from kvgym.simulator.rule import RuleMemory as RuleMemory
from kvgym.simulator.rule import RuleView as RuleView
from kvgym.simulator.rule import policy_kernel as policy_kernel
from kvgym.simulator.rule import rule_memory as rule_memory
from kvgym.simulator.rule import view_of as view_of
from kvgym.simulator.slots import drop_full_plan as drop_full_plan
from kvgym.simulator.slots import follow_slots as follow_slots
from kvgym.simulator.tables import ACTIVE as ACTIVE
from kvgym.simulator.tables import FINISHED as FINISHED
from kvgym.simulator.tables import FUTURE as FUTURE
from kvgym.simulator.tables import PROGRESS_KEPT as PROGRESS_KEPT
from kvgym.simulator.tables import PROGRESS_LOST as PROGRESS_LOST
from kvgym.simulator.tables import PROGRESS_RECOMPUTE as PROGRESS_RECOMPUTE
from kvgym.simulator.tables import REQUEUE_ARRIVAL as REQUEUE_ARRIVAL
from kvgym.simulator.tables import REQUEUE_BACK as REQUEUE_BACK
from kvgym.simulator.tables import REQUEUE_FRONT as REQUEUE_FRONT
from kvgym.simulator.tables import ROLE_DECODE as ROLE_DECODE
from kvgym.simulator.tables import ROLE_MIXED as ROLE_MIXED
from kvgym.simulator.tables import ROLE_PREFILL as ROLE_PREFILL
from kvgym.simulator.tables import RUN as RUN
from kvgym.simulator.tables import UNKNOWN as UNKNOWN
from kvgym.simulator.tables import WAIT as WAIT
from kvgym.simulator.tables import WAITING as WAITING

__all__ = [
    "ACTIVE",
    "FINISHED",
    "FUTURE",
    "NO_LIMIT",
    "PROGRESS_KEPT",
    "PROGRESS_LOST",
    "PROGRESS_RECOMPUTE",
    "REQUEUE_ARRIVAL",
    "REQUEUE_BACK",
    "REQUEUE_FRONT",
    "ROLE_DECODE",
    "ROLE_MIXED",
    "ROLE_PREFILL",
    "RUN",
    "UNKNOWN",
    "WAIT",
    "WAITING",
    "RuleDecision",
    "RuleMemory",
    "RuleView",
    "admit",
    "admit_tokens",
    "admit_while_fits",
    "allocated",
    "blocked_for",
    "chunk_that_fits",
    "claim_of",
    "clear_all",
    "drop_full_plan",
    "empty_profile",
    "evict",
    "evict_latest",
    "first_tokens",
    "first_waiting",
    "follow_slots",
    "forget_left",
    "forget_ranked",
    "full_tokens",
    "has_place",
    "heap_first",
    "heap_forget",
    "heap_pop",
    "heap_push",
    "held_by",
    "jit",
    "jit_inline",
    "key_request",
    "kv_growth",
    "left_request",
    "move_to",
    "need_of",
    "need_of_active",
    "need_of_decodes",
    "need_of_tokens",
    "needs_block",
    "next_to_admit",
    "next_uniform",
    "next_waiting",
    "pause",
    "pause_all",
    "policy_kernel",
    "predicted_rounds",
    "profile_add",
    "profile_clear",
    "profile_forget",
    "profile_of",
    "profile_offset",
    "put_back",
    "ranked_before",
    "ranked_forget",
    "ranked_keep",
    "ranked_merge",
    "ranked_pop",
    "ranked_push",
    "ranked_sink",
    "ranked_sort",
    "request_key",
    "room_to_admit",
    "rounds_for",
    "rule_memory",
    "seed_words",
    "unlink",
    "view_of",
]

NO_LIMIT = 2**31 - 1
"""More than any number of requests or tokens in a run."""


@jit_inline
def first_waiting(view: RuleView) -> int:
    """Return the first request of the queue, UNKNOWN if nobody waits."""
    return view.worker.queue_head


@jit_inline
def next_waiting(view: RuleView, i: int) -> int:
    """Return the request behind ``i`` in the queue, UNKNOWN if there is none."""
    return view.requests[i].queue_next


@jit_inline
def next_to_admit(view: RuleView, decision: RuleDecision, heap: Any, from_heap: bool) -> int:
    """Return the request that comes next after those admitted so far, UNKNOWN if none waits.

    Args:
        view: what the rule sees.
        decision: what it decides.
        heap: waiting requests in the rule's own order, a heap of :func:`request_key` at place 0, from which the rule
            pops those it admits. Entries of requests that no longer wait are dropped.
        from_heap: whether that order counts; else the queue's does.
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
def need_of(view: RuleView, row: Any) -> int:
    """Return the memory that a request needs in the coming iteration if it runs in full, allocated tokens.

    Args:
        view: what the rule sees.
        row: of an active request (``view.active[k]``) or of a waiting one (``view.requests[i]``).
    """
    return first_use(view.problem, row)


@jit_inline
def need_of_tokens(view: RuleView, row: Any, tokens: int) -> int:
    """Return the memory that a request needs in the coming iteration if it processes ``tokens``, allocated."""
    return allocated(
        view.problem, row.num_kv_tokens + written_tokens(view.problem, row.num_prefill_left, tokens)
    )


@jit_inline
def held_by(view: RuleView, row: Any) -> int:
    """Return the memory that a request holds at rest, or takes on admission, in allocated tokens."""
    return allocated(view.problem, row.num_kv_tokens)


@jit_inline
def claim_of(view: RuleView, row: Any) -> int:
    """Return the memory that a request holds once all of its prompt and one token more are in it, allocated.

    The claim of rules that process prompts in chunks: a prefill that has it is never stuck.
    """
    return allocated(view.problem, row.num_kv_tokens + row.num_prefill_left + 1)


@jit_inline
def needs_block(view: RuleView, row: Any) -> bool:
    """Return whether the next token of a request needs a new block, because those it holds are full."""
    return bool(allocated(view.problem, row.num_kv_tokens) == row.num_kv_tokens)


@jit_inline
def need_of_active(view: RuleView) -> int:
    """Return the memory that the active set needs in the coming iteration if everybody runs in full, allocated."""
    w = view.worker
    if w.num_prefilling == 0:
        return w.kv_allocated + view.problem.block_size * w.num_full
    need = 0
    for k in range(w.num_active):
        need += need_of(view, view.active[k])
    return need


@jit_inline
def need_of_decodes(view: RuleView) -> int:
    """Return the memory that the active set needs if all decodes run and all prefills rest, allocated tokens."""
    w, block_size = view.worker, view.problem.block_size
    if block_size == 1:
        return w.kv_tokens + w.num_active - w.num_prefilling
    need = w.kv_allocated + block_size * w.num_full
    for k in range(w.num_active if w.num_prefilling > 0 else 0):
        slot = view.active[k]
        if slot.num_prefill_left > 0 and needs_block(view, slot):
            need -= block_size
    return need


@jit_inline
def chunk_that_fits(view: RuleView, row: Any, most: int, room: int) -> int:
    """Return the largest chunk of a prefill within a budget and the memory that is left; 0 = none fits.

    The chunk that completes the prompt may write the first output token too, which needs room as well.

    Args:
        view: what the rule sees.
        row: of the request, which has prompt left to process.
        most: tokens of the chunk at most.
        room: free memory, whole blocks; what is free in the request's last block comes on top.
    """
    left, free = row.num_prefill_left, room + held_by(view, row) - row.num_kv_tokens
    chunk = max(0, min(left, most, free))
    if chunk == left and left + view.problem.prefill_emits > free:
        chunk -= 1
    return chunk


@jit_inline
def has_place(view: RuleView, decision: RuleDecision) -> bool:
    """Return whether the active set has a free slot, beside those for the requests admitted so far."""
    return view.worker.num_active + decision.record.num_admit < decision.admit.shape[0]


@jit_inline
def admit(decision: RuleDecision, i: int) -> None:
    """Admit request ``i``, which must be waiting, after those admitted so far; it runs in full."""
    d = decision.record
    decision.admit[d.num_admit] = i
    decision.admit_tokens[d.num_admit] = UNKNOWN
    d.num_admit += 1


@jit_inline
def admit_tokens(decision: RuleDecision, i: int, tokens: int) -> None:
    """Admit request ``i`` with this many tokens in the coming iteration: a chunk of its prefill, 1, or 0."""
    d = decision.record
    d.explicit = 1
    decision.admit[d.num_admit] = i
    decision.admit_tokens[d.num_admit] = tokens
    d.num_admit += 1


@jit_inline
def admit_while_fits(
    view: RuleView, decision: RuleDecision, need: int, limit: int, most: int = NO_LIMIT, strict: bool = False
) -> int:
    """Admit in queue order, and stop at the first request that does not fit.

    Args:
        view: what the rule sees.
        decision: what it decides.
        need: memory that the coming iteration needs so far, allocated tokens.
        limit: memory that it may need; all of it if the first request would be alone, see :func:`room_to_admit`.
        most: requests admitted at most.
        strict: whether the limit holds for that one too.

    Returns:
        The memory that the coming iteration then needs.
    """
    d = decision.record
    i = first_waiting(view)
    room = room_to_admit(view, decision, limit, strict)
    while i != UNKNOWN and d.num_admit < most and has_place(view, decision):
        use = need_of(view, view.requests[i])
        if need + use > room:
            break
        need += use
        admit(decision, i)
        room = limit
        i = next_waiting(view, i)
    return need


@jit_inline
def room_to_admit(view: RuleView, decision: RuleDecision, limit: int, strict: bool = False) -> int:
    """Return how much memory may be in use once one more request has been admitted.

    That is ``limit``, what a margin or watermark leaves; or all of the memory, if the request would be alone: a
    margin is room for others to grow, and a request longer than the limit would wait for ever.

    Args:
        view: what the rule sees.
        decision: what it decides.
        limit: memory that may be in use beside others.
        strict: whether it holds for a request that would be alone too, as rules of papers are printed.
    """
    d = decision.record
    alone = view.worker.num_active - d.num_evict + d.num_admit == 0
    return view.problem.kv_capacity if alone and not strict else limit


@jit_inline
def evict(decision: RuleDecision, k: int) -> None:
    """Send the request in slot ``k`` back to the queue."""
    d = decision.record
    decision.evict[d.num_evict] = k
    d.num_evict += 1


@jit
def evict_latest(view: RuleView, decision: RuleDecision, need: int) -> None:
    """Evict the latest activated requests until the coming iteration of the others fits (LIFO).

    Args:
        view: what the rule sees.
        decision: what it decides.
        need: memory that the coming iteration of the whole active set needs, everybody in full.
    """
    k = view.worker.num_active - 1
    while need > view.problem.kv_capacity and k >= 0:
        need -= need_of(view, view.active[k])
        evict(decision, k)
        k -= 1


@jit_inline
def put_back(decision: RuleDecision, count: int) -> None:
    """Count requests that were picked without a look at memory and stay in the queue as it does not suffice."""
    decision.record.num_put_back += count


@jit
def clear_all(view: RuleView, decision: RuleDecision) -> None:
    """Evict every active request and admit nobody: the round is lost."""
    decision.record.num_admit = decision.record.num_evict = 0
    for k in range(view.worker.num_active):
        evict(decision, k)


@jit_inline
def pause(decision: RuleDecision, slot: Any) -> None:
    """Leave an active request, given by its slot, out of the coming iteration; its KV stays."""
    decision.record.explicit = 1
    slot.planned = 0


@jit_inline
def pause_all(view: RuleView, decision: RuleDecision) -> None:
    """Leave every active request out of the coming iteration."""
    decision.record.explicit = 1
    for k in range(view.worker.num_active):
        view.active[k].planned = 0
