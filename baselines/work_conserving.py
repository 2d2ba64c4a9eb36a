"""Work-conserving scheduling with chunked prefill and mixed batches, with and without look-ahead.

Source: "A Queueing-Theoretic Framework for Stability Analysis of LLM Inference with KV Cache Memory Constraints"
(anonymous authors, under review), Section 3. Prompts are processed in chunks. Ongoing requests come first, then new
ones by priority (FCFS or SJF) while memory permits. Requests that later outgrow the memory are swapped out. The proof
of Theorem 2 assumes a look-ahead instead: no request is admitted that would ever make memory overflow. In each
iteration every prefilling request processes one chunk and every decoding request one token; none pauses.

Readings where the paper leaves a choice:

- It prescribes no order of swapping out: here the latest activated requests go first (LIFO). The paper's free swap is
  a system with ``progress_on_evict="kept"``; the other settings work as well. An iteration that swaps out admits no
  request, because that would only exchange one request for another.
- Admission stops at the first request that does not fit.
- SJF orders by prompt plus predicted output. The paper does not define the size of a job; its lifetime memory g(s, o)
  grows with both lengths. Swapped-out requests are ongoing: they return before a new one starts, least work first
  (``resume="first"``). With ``"by_work"`` they queue among the others and shorter new requests overtake them; above
  the service rate, this lasts until no more arrive. The look-ahead swaps out only after too short a prediction, and
  keeps the order by work. ``requeue``, which sets the place in the FCFS order, has no effect here.
- The paper assumes that chunks divide prompts evenly; here the last chunk of a prompt may be shorter.
- The look-ahead uses predicted lengths. A request that has reached its prediction is expected to need one more token.
  A request predicted to outgrow the memory is expected to end when it fills the memory, since every request fits
  alone. So an empty worker never refuses work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from kvgym.kernels import (
    UNKNOWN,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit,
    allocated,
    blocked_for,
    empty_profile,
    evict,
    first_tokens,
    first_waiting,
    forget_left,
    heap_first,
    heap_pop,
    heap_push,
    held_by,
    jit,
    jit_inline,
    kept_by_others,
    kv_growth,
    named_numbers,
    need_of_active,
    next_waiting,
    policy_kernel,
    policy_memory,
    profile_add,
    profile_clear,
    profile_offset,
    request_key,
    shared_hit,
)
from kvgym.policies.hyperparameters import (
    choice,
    whole,
)
from kvgym.policies.policy import CompiledPolicy, PolicyInfo, SystemInfo, register_policy

PAPER = (
    "A Queueing-Theoretic Framework for Stability Analysis of LLM Inference with KV Cache Memory Constraints"
)

RESUME = ("first", "by_work")
"""When SJF resumes swapped-out requests: before any new request, or among them by work."""


class Chunks(NamedTuple):
    """Parameters."""

    chunk: int  # maximum number of prompt tokens of a request in an iteration
    by_work: bool  # whether the order is SJF's
    first: bool  # whether swapped-out requests go first there


chunks = named_numbers(Chunks)

_BEFORE_ALL = np.int64(1) << 31  # exceeds the tokens of any work; keys of requests hold 32 bits and a sign

# Layout of the state array: origin of the profile, iteration until which the head is known to be blocked, the head
# that this was computed for, then the heap of SJF. From the end, by request id: the iteration after the last one for
# which the profile counts the request.
_BLOCKED_UNTIL, _BLOCKED_ID, _HEAP = 1, 2, 3


@jit_inline
def chunk_growth(view: PolicyView, row: Any, chunk: int) -> int:
    """Return the memory that a slot or a waiting request adds in its next iteration."""
    left = row.num_prefill_left
    return kv_growth(view.problem, row, min(left, chunk) if left > 0 else 1)


@jit_inline
def need_of_chunks(view: PolicyView, chunk: int) -> int:
    """Return the memory that the active set needs in the next iteration."""
    w = view.worker
    if w.num_prefilling == 0:
        return need_of_active(view)
    need = w.kv_allocated
    for k in range(w.num_active):
        need += chunk_growth(view, view.active[k], chunk)
    return need


@jit
def swap_out(view: PolicyView, decision: PolicyDecision, need: int, chunk: int) -> None:
    """Evict the latest activated requests until the next iteration of the others fits.

    ``need`` is the need of the whole active set. The oldest request stays, because every request fits alone.
    """
    k = view.worker.num_active
    while need > view.problem.kv_capacity:
        k -= 1
        slot = view.active[k]
        need -= held_by(view, slot) + chunk_growth(view, slot, chunk) - kept_by_others(view, slot)
        evict(decision, k)


@jit_inline
def plan_chunks(view: PolicyView, decision: PolicyDecision, chunk: int) -> None:
    """Give one chunk to each request with more than a chunk to prefill; all others run in full.

    Evicted requests are in the last slots.
    """
    d = decision.record
    if view.worker.num_prefilling > 0:
        for k in range(view.worker.num_active - d.num_evict):
            if view.active[k].num_prefill_left > chunk:
                view.active[k].planned = chunk
                d.explicit = 1
    for j in range(d.num_admit):
        if view.requests[decision.admit[j]].num_prefill_left > chunk:
            decision.admit_tokens[j] = chunk
            d.explicit = 1


@jit_inline
def note_queued(view: PolicyView, memory: PolicyMemory) -> None:
    """Add the requests that joined the queue to the heap, by prompt plus predicted output (SJF only)."""
    if chunks(memory.params).by_work:
        forget_left(view, memory.state, _HEAP)
        for j in range(view.worker.num_queued):
            i = view.queued[j]
            r = view.requests[i]
            work = min(np.int64(r.prompt_len) + r.predicted_len, _BEFORE_ALL - 1)
            if chunks(memory.params).first and r.num_evictions > 0:
                work -= _BEFORE_ALL
            heap_push(memory.state, _HEAP, request_key(work, i))


@jit_inline
def first_in_order(view: PolicyView, memory: PolicyMemory) -> int:
    """Return the waiting request to consider first, UNKNOWN if none waits."""
    return heap_first(memory.state, _HEAP) if chunks(memory.params).by_work else first_waiting(view)


@jit_inline
def next_in_order(view: PolicyView, memory: PolicyMemory, i: int) -> int:
    """Return the request to consider after ``i``, which has been admitted, UNKNOWN if there is none."""
    if chunks(memory.params).by_work:
        heap_pop(memory.state, _HEAP)
        return heap_first(memory.state, _HEAP)
    return next_waiting(view, i)


@jit
def partial_chunks(row: Any, chunk: int) -> int:
    """Return the iterations before the one that completes the prefill; 0 if there is nothing to prefill."""
    return (row.num_prefill_left - 1) // chunk if row.num_prefill_left > 0 else 0


@jit_inline
def expected_iterations(view: PolicyView, r: Any, chunk: int) -> int:
    """Return the iterations a waiting request is expected to run here, at least 1."""
    problem = view.problem
    if problem.hands_over == 1:
        return partial_chunks(r, chunk) + 1
    output = min(max(r.predicted_len, r.num_output_tokens + 1), problem.kv_capacity - r.prompt_len)
    rounds = output - r.num_output_tokens
    if r.num_prefill_left > 0:
        rounds += partial_chunks(r, chunk) + 1 - problem.prefill_emits
    return rounds


@jit_inline
def add_use(
    view: PolicyView, memory: PolicyMemory, offset: int, row: Any, chunk: int, rounds: int, sign: int
) -> None:
    """Add (sign 1) or subtract (sign -1) the memory use of a slot or a waiting request over ``rounds`` iterations.

    The use grows by one chunk per iteration while prompt remains. From the iteration that completes the prefill, or
    at once if the prefill is over, it grows by one token per iteration.
    """
    profile, partial = memory.profile, partial_chunks(row, chunk)
    for k in range(partial):
        use = allocated(view.problem, row.num_kv_tokens + (k + 1) * chunk)
        profile[offset + k] = np.int32(profile[offset + k] + sign * use)
    first = first_tokens(view.problem, row)
    profile_add(profile, offset + partial, first, rounds - partial, sign, view.problem.block_size)


@jit_inline
def chunks_blocked_for(
    view: PolicyView, memory: PolicyMemory, offset: int, r: Any, chunk: int, rounds: int
) -> int:
    """Return a number of iterations for which a request certainly cannot be admitted; 0 = it fits now.

    As in :func:`~kvgym.simulator.kernels.future_memory.blocked_for`, each iteration of waiting lowers the use. At a
    moment before the prefill completes, it falls by one chunk; at a later one by one token, until it is the use of the
    completing iteration. Profile and capacity are whole blocks, so tokens may stand for allocated tokens.
    """
    profile, capacity = memory.profile, view.problem.kv_capacity
    bound, partial = 0, partial_chunks(r, chunk)
    for k in range(partial):
        excess = profile[offset + k] + r.num_kv_tokens + (k + 1) * chunk - capacity
        bound = max(bound, min((excess + chunk - 1) // chunk, k + 1))
    first, block_size = first_tokens(view.problem, r), view.problem.block_size
    later = blocked_for(profile, offset + partial, first, rounds - partial, capacity, block_size)
    return max(bound, later)


@jit
def end_of(state: Any, i: int) -> int:
    """Return the index in the state of the iteration after the last one that the profile counts for ``i``."""
    return state.shape[0] - 1 - i


@jit_inline
def update_use(view: PolicyView, memory: PolicyMemory, chunk: int) -> int:
    """Correct the profile for wrong predictions; return the offset of the present iteration.

    The rest of requests that ended early is removed. After a router has moved requests away, the profile is rebuilt
    from those that remain. Each request that has outlived its prediction is added for the next iteration. Afterwards
    the profile of the next iteration is the need of the active set.
    """
    w, state, profile, block_size = view.worker, memory.state, memory.profile, view.problem.block_size
    offset = profile_offset(profile, state, w.iteration)
    if w.num_left > 0:
        profile_clear(profile)
        state[_BLOCKED_ID] = UNKNOWN
        for k in range(w.num_active):
            slot = view.active[k]
            rest = state[end_of(state, slot.request_id)] - w.iteration
            if rest > 0:
                add_use(view, memory, offset, slot, chunk, rest, 1)
    for j in range(w.num_finished if w.num_left == 0 else 0):
        r = view.requests[view.finished[j]]
        rest = state[end_of(state, view.finished[j])] - w.iteration
        if rest > 0:
            profile_add(profile, offset, r.prompt_len + r.num_output_tokens + 1, rest, -1, block_size)
            state[_BLOCKED_ID] = UNKNOWN
    for k in range(w.num_active):
        slot = view.active[k]
        if slot.num_output_tokens >= slot.predicted_len:
            end = end_of(state, slot.request_id)
            if state[end] <= w.iteration:
                profile_add(profile, offset, slot.num_kv_tokens + 1, 1, 1, block_size)
                state[end] = w.iteration + 1
    return offset


@jit_inline
def admit_if_safe(
    view: PolicyView, decision: PolicyDecision, memory: PolicyMemory, offset: int, i: int, chunk: int
) -> bool:
    """Admit request ``i`` if memory is predicted never to overflow with it; otherwise store when to try again."""
    state, iteration, r = memory.state, view.worker.iteration, view.requests[i]
    may_change = view.problem.prefix_unit > 0  # what the prefix cache gives changes the chunks
    if state[_BLOCKED_ID] == i and iteration < state[_BLOCKED_UNTIL] and not may_change:
        return False
    rounds = expected_iterations(view, r, chunk)
    wait = chunks_blocked_for(view, memory, offset, r, chunk, rounds)
    if wait > 0:
        state[_BLOCKED_ID] = i
        state[_BLOCKED_UNTIL] = iteration + wait
        return False
    add_use(view, memory, offset, r, chunk, rounds, 1)
    state[end_of(state, i)] = iteration + rounds
    admit(decision, i)
    return True


@policy_kernel
def work_conserving_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Run ongoing requests, and swap out the latest on overflow; otherwise admit while the next iteration fits."""
    capacity, chunk = view.problem.kv_capacity, chunks(memory.params).chunk
    note_queued(view, memory)
    need = need_of_chunks(view, chunk)
    if need > capacity:
        swap_out(view, decision, need, chunk)
    else:
        i = first_in_order(view, memory)
        while i != UNKNOWN:
            r = view.requests[i]
            need += held_by(view, r) + chunk_growth(view, r, chunk) - shared_hit(view, i)
            if need > capacity:
                break
            admit(decision, i)
            i = next_in_order(view, memory, i)
    plan_chunks(view, decision, chunk)


@policy_kernel
def lookahead_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Run ongoing requests, and admit while predicted memory never exceeds the capacity.

    Ongoing requests overflow only after too short a prediction.
    """
    state, chunk = memory.state, chunks(memory.params).chunk
    note_queued(view, memory)
    offset = update_use(view, memory, chunk)
    need = need_of_chunks(view, chunk)
    if need > view.problem.kv_capacity:
        swap_out(view, decision, need, chunk)
        for j in range(decision.record.num_evict):
            slot = view.active[decision.evict[j]]
            rest = state[end_of(state, slot.request_id)] - view.worker.iteration
            add_use(view, memory, offset, slot, chunk, rest, -1)
        state[_BLOCKED_ID] = UNKNOWN
    else:
        i = first_in_order(view, memory)
        while i != UNKNOWN and admit_if_safe(view, decision, memory, offset, i, chunk):
            i = next_in_order(view, memory, i)
    plan_chunks(view, decision, chunk)


class _WorkConserving(CompiledPolicy):
    """Base class of the four policies: the chunk, and the heap of SJF."""

    by_work = False
    resume = "by_work"

    parameters = Chunks

    chunk: int = whole(
        512, expected="a whole number of tokens, at least 1", search=(64, 128, 256, 512, 1024, 2048, 4096)
    )
    """maximum number of prompt tokens that a request processes per iteration (ŝ), at least 1. The paper gives no value;
    its processing rates follow from its formula with any value from 128 on."""

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the chunk, capped at the capacity, which no prompt exceeds, and the place of swapped-out requests."""
        return {"chunk": min(self.chunk, system.kv_capacity), "first": self.resume == "first"}

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return a state of the scalars, followed by the heap."""
        state = np.zeros(_HEAP + 1 + self.by_work * system.max_requests, np.int64)
        return policy_memory(self.params(system), state=state)


class _WithLookAhead(_WorkConserving):
    """Base class of both policies with look-ahead: the profile of future memory."""

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return a state of scalars, heap and ends, and a profile two horizons long.

        No request is expected to run longer than the chunks of a prompt that fills the memory, plus the longest
        predicted output.
        """
        state = np.zeros(_HEAP + 1 + 2 * system.max_requests, np.int64)
        state[_BLOCKED_ID] = UNKNOWN
        chunks = system.kv_capacity // min(self.chunk, system.kv_capacity)
        profile = empty_profile(system.max_predicted_len, system.kv_capacity, chunks)
        return policy_memory(self.params(system), state=state, profile=profile)


@register_policy
class WorkConservingFCFS(_WorkConserving):
    """First come, first served while the next iteration fits; swaps out the latest on overflow."""

    info = PolicyInfo(
        name="work_conserving_fcfs",
        summary="chunked prefill, mixed batches, FCFS while the next iteration fits; swaps out the newest (LIFO)",
        paper=PAPER,
        algorithm="Section 3, work-conserving scheduling (FCFS)",
        chunks_prefill=True,
        evicts=True,
        loads=True,
    )
    kernel = work_conserving_kernel


@register_policy
class WorkConservingSJF(_WorkConserving):
    """Least predicted work first while the next iteration fits; swaps out the latest on overflow."""

    info = PolicyInfo(
        name="work_conserving_sjf",
        summary="chunked prefill, mixed batches, SJF while the next iteration fits; swaps out the newest (LIFO)",
        paper=PAPER,
        algorithm="Section 3, work-conserving scheduling (SJF)",
        needs=frozenset({"predicted_length"}),
        chunks_prefill=True,
        evicts=True,
        loads=True,
    )
    kernel = work_conserving_kernel
    by_work = True

    resume: str = choice("first", RESUME, expected=f"one of {', '.join(RESUME)}", search=RESUME)
    """``"first"``: swapped-out requests return before any new one starts, as in Section 3; ``"by_work"``: they queue
    among the new requests by work."""


@register_policy
class WorkConservingFCFSLookahead(_WithLookAhead):
    """First come, first served while predicted memory never overflows."""

    info = PolicyInfo(
        name="work_conserving_fcfs_lookahead",
        summary="chunked prefill, mixed batches, FCFS while predicted memory never overflows",
        paper=PAPER,
        algorithm="Theorem 2, work-conserving scheduling with look-ahead (FCFS)",
        needs=frozenset({"predicted_length"}),
        chunks_prefill=True,
        evicts=True,
    )
    kernel = lookahead_kernel


@register_policy
class WorkConservingSJFLookahead(_WithLookAhead):
    """Least predicted work first while predicted memory never overflows."""

    info = PolicyInfo(
        name="work_conserving_sjf_lookahead",
        summary="chunked prefill, mixed batches, SJF while predicted memory never overflows",
        paper=PAPER,
        algorithm="Theorem 2, work-conserving scheduling with look-ahead (SJF)",
        needs=frozenset({"predicted_length"}),
        chunks_prefill=True,
        evicts=True,
    )
    kernel = lookahead_kernel
    by_work = True
