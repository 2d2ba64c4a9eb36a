"""The active requests of a ranking: evictions when memory is short, and the sorted list of those that remain.

The list and its scores are kept between decisions, because the order hardly changes. With very many active requests,
only some boundaries rank them all; in between, decodes continue and only requests with prompt left are listed.
"""

from __future__ import annotations

import math
from typing import Any

from kvgym.baselines.ranked.layout import (
    DUE,
    DUES_LISTED,
    GAP,
    LAST_LISTED,
    NUM_GAPS,
    RENEWED,
    SCORES,
    list_at,
    listed_dues_at,
    listed_scores_at,
    notes_of,
    prompt_scores_at,
    prompts_at,
    slots_at,
)
from kvgym.baselines.ranked.weights import weights_in
from kvgym.kernels import (
    UNKNOWN,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    allocated,
    claim_of,
    evict,
    held_by,
    jit,
    jit_inline,
    kept_by_others,
    kv_growth,
    ranked_merge,
    ranked_sink,
    ranked_sort,
)

MOST_MOVES = 4
"""Average number of places that listed requests move, above which a full sort is faster."""

LEAVES = -2
"""Value of SLOT.planned that marks a request for eviction while a decision is made."""

MANY, SPARSE = 128, 8
"""Number of active requests from which rankings are sparse, and batches between two of them; both double together."""


@jit_inline
def ranks_now(view: PolicyView) -> bool:
    """Return whether this boundary ranks all active requests; with many, every 8th, 16th … boundary does."""
    w, number, period = view.worker, MANY, SPARSE
    if w.num_active < MANY:
        return True
    while w.num_active >= 2 * number:
        number, period = 2 * number, 2 * period
    return bool(w.iteration % period == 0)


@jit_inline
def none_gone(view: PolicyView, memory: PolicyMemory) -> bool:
    """Return whether all listed requests are still active, in the same slots.

    Slots are in order of activation: if the last listed request has not moved, none before it has left.
    """
    number = memory.state[list_at(view)]
    if number > view.worker.num_active:
        return False
    return bool(number == 0 or view.active[number - 1].request_id == memory.state[LAST_LISTED])


@jit
def claim_beyond(view: PolicyView, slot: Any) -> Any:
    """Return the memory that an active request does not hold yet but will certainly take, allocated tokens.

    For a prefill this is the rest of its prompt and one token; for a decode, its next token.
    """
    if slot.num_prefill_left > 0:
        return claim_of(view, slot) - held_by(view, slot)
    return kv_growth(view.problem, slot, 1)


@jit_inline
def certain_memory(view: PolicyView) -> Any:
    """Return the memory that active requests hold or will certainly take, allocated tokens."""
    p, w = view.problem, view.worker
    used = w.kv_allocated + p.block_size * w.num_full  # if all requests decode one token
    prefills, k = w.num_prefilling, w.num_active
    while prefills > 0:  # usually the last slots
        k -= 1
        slot = view.active[k]
        if slot.num_prefill_left > 0:
            used += claim_of(view, slot) - allocated(p, slot.num_kv_tokens + 1)
            prefills -= 1
    return used


@jit
def evict_worst(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory, used: int) -> int:
    """Evict the worst requests until the certain need of the others fits; return that need, allocated tokens."""
    w, active = view.worker, view.active
    while used > view.problem.kv_capacity:
        worst, at = -math.inf, 0
        for k in range(w.num_active):
            if active[k].planned != LEAVES:
                weight = weights_in(memory.params).evict_kv * math.log(1.0 + active[k].num_kv_tokens)
                score = memory.reals[SCORES + active[k].request_id] + weight
                if score > worst:
                    worst, at = score, k
        used += kept_by_others(view, active[at])
        used -= held_by(view, active[at]) + claim_beyond(view, active[at])
        active[at].planned = LEAVES
        evict(decision, at)
    return used


@jit_inline
def drop_gone(view: PolicyView, memory: PolicyMemory, leaving: int) -> int:
    """Remove requests that left or are leaving from the list, and store slots; return how many are still active."""
    state, reals, active, w = memory.state, memory.reals, view.active, view.worker
    first, slot_of, scores = list_at(view) + 1, slots_at(view), listed_scores_at(view)
    for k in range(w.num_active):
        state[slot_of + active[k].request_id] = k
    count = present = 0
    for j in range(state[first - 1]):
        i = state[first + j]
        k = state[slot_of + i]
        here = k < w.num_active and active[k].request_id == i
        stays = here and (leaving == 0 or active[k].planned != LEAVES)
        # Write into the next free place without a branch; only a request that stays advances it.
        state[first + count], reals[scores + count] = i, reals[scores + j]
        present += 1 if here else 0
        count += 1 if stays else 0
    state[first - 1] = count
    return present


@jit
def forget_active(view: PolicyView, memory: PolicyMemory) -> None:
    """Remove requests that a router has moved away at once: they may return before the next ranking."""
    drop_gone(view, memory, 0)
    count = memory.state[list_at(view)]
    memory.state[LAST_LISTED] = view.active[count - 1].request_id if count > 0 else UNKNOWN


@jit_inline
def list_new(view: PolicyView, memory: PolicyMemory, present: int, leaving: int) -> None:
    """Append the new requests, from slot ``present`` on, to the list, except those that are being evicted."""
    state, active, w = memory.state, view.active, view.worker
    first, slot_of = list_at(view) + 1, slots_at(view)
    count = state[first - 1]
    for k in range(present, w.num_active):
        i = active[k].request_id
        state[slot_of + i] = k
        if leaving == 0 or active[k].planned != LEAVES:
            state[first + count] = i
            count += 1
    state[first - 1] = count
    # An eviction shifts slots, so the last slot proves nothing then.
    state[LAST_LISTED] = active[w.num_active - 1].request_id if leaving == 0 and w.num_active > 0 else UNKNOWN


@jit_inline
def order_known(view: PolicyView, memory: PolicyMemory, known: int) -> None:
    """Store the current scores of the listed requests and sort the list."""
    state, reals, first, scores = memory.state, memory.reals, list_at(view) + 1, listed_scores_at(view)
    last, moves = -math.inf, 0
    for j in range(known):
        score = reals[SCORES + state[first + j]]
        reals[scores + j] = score
        if score <= last and moves <= MOST_MOVES * known:
            moves += ranked_sink(state, first, reals, scores, j)
        last = max(last, score)
    if moves > MOST_MOVES * known:
        ranked_sort(state, first, known, reals, scores, prompts_at(view), prompt_scores_at(view))


@jit_inline
def list_active(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Update and sort the list; most scores have changed little or not at all."""
    state, reals, first, scores = memory.state, memory.reals, list_at(view) + 1, listed_scores_at(view)
    leaving, present = decision.record.num_evict, state[first - 1]
    if leaving > 0 or not none_gone(view, memory):
        present = drop_gone(view, memory, leaving)
    known = state[first - 1]
    list_new(view, memory, present, leaving)
    if state[RENEWED] == 1:
        order_known(view, memory, known)
    state[RENEWED] = 0
    count = state[first - 1]
    for j in range(known, count):
        reals[scores + j] = reals[SCORES + state[first + j]]
    aside, scores_aside = (
        prompts_at(view),
        prompt_scores_at(view),
    )  # unused by a ranking, so free as scratch space
    ranked_sort(state, first + known, count - known, reals, scores + known, aside, scores_aside)
    ranked_merge(state, first, reals, scores, known, count, aside, scores_aside)
    state[DUES_LISTED] = 0


@jit_inline
def list_dues(view: PolicyView, memory: PolicyMemory) -> Any:
    """Store when the next tokens of the listed requests are due, once per decision; return the index in ``reals``."""
    state, reals = memory.state, memory.reals
    listed, first = listed_dues_at(view), list_at(view) + 1
    if state[DUES_LISTED] == 0:
        state[DUES_LISTED] = 1
        for j in range(state[first - 1]):
            reals[listed + j] = reals[notes_of(view, state[first + j]) + DUE]
    return listed


@jit_inline
def list_gaps(view: PolicyView, memory: PolicyMemory) -> None:
    """After a ranking, replace each listed request's due time by the longest gap allowed between its tokens, s.

    The gap is inf without an objective or if the deadline cannot be met, and NaN before the first token.
    """
    state, reals = memory.state, memory.reals
    listed, first = listed_dues_at(view), list_at(view) + 1
    state[NUM_GAPS] = state[first - 1]
    for j in range(state[NUM_GAPS]):
        notes = notes_of(view, state[first + j])
        reals[listed + j] = reals[notes + GAP] if reals[notes + DUE] < math.inf else math.inf


@jit_inline
def list_prompts(view: PolicyView, memory: PolicyMemory) -> Any:
    """List active requests with prompt left, in order of score; return the KV tokens that they hold."""
    state, reals, active, w = memory.state, memory.reals, view.active, view.worker
    first, slot_of, scores = prompts_at(view) + 1, slots_at(view), prompt_scores_at(view)
    k, count, held = w.num_active, 0, 0
    while count < w.num_prefilling:  # usually the last slots
        k -= 1
        slot = active[k]
        if slot.num_prefill_left > 0:
            state[first + count], reals[scores + count] = slot.request_id, reals[SCORES + slot.request_id]
            state[slot_of + slot.request_id] = k
            ranked_sink(state, first, reals, scores, count)
            count, held = count + 1, held + slot.num_kv_tokens
    state[first - 1] = count
    return held
