"""The active requests of a ranking: who leaves where memory is too tight, and the list of those that stay, in order.

The list lasts from decision to decision, as the order hardly changes, with the scores beside it.
"""

from __future__ import annotations

import math
from typing import Any

from kvgym.baselines.ranked.layout import (
    DUES_LISTED,
    EVICT_KV,
    LAST_LISTED,
    RENEWED,
    SCORES,
    dues_at,
    list_at,
    listed_dues_at,
    listed_scores_at,
    slots_at,
)
from kvgym.kernels import (
    UNKNOWN,
    RuleDecision,
    RuleMemory,
    RuleView,
    allocated,
    claim_of,
    evict,
    held_by,
    jit,
    jit_inline,
    kv_growth,
    ranked_insert,
    ranked_sink,
    ranked_sort,
)

MOST_MOVES = 4
"""Places by which listed requests move on average, from which on sorting them all anew is quicker."""

LEAVES = -2
"""In SLOT.planned while a decision is made: this one is evicted."""


@jit_inline
def as_listed(view: RuleView, memory: RuleMemory) -> bool:
    """Return whether the active requests are those of the list, in the slots they had.

    They stand in order of activation. If the last one is who it was nobody new is there, and if they are as many as
    they were nobody has left.
    """
    number = view.worker.num_active
    if number != memory.state[list_at(view)]:
        return False
    return bool(number == 0 or view.active[number - 1].request_id == memory.state[LAST_LISTED])


@jit
def claim_beyond(view: RuleView, slot: Any) -> Any:
    """Return the memory that an active request will certainly take and does not hold, allocated tokens.

    What is left of its prompt and a token; of a decode, its next token.
    """
    if slot.num_prefill_left > 0:
        return claim_of(view, slot) - held_by(view, slot)
    return kv_growth(view.problem, slot, 1)


@jit_inline
def certain_memory(view: RuleView) -> Any:
    """Return the memory that the active requests hold or will certainly take, allocated tokens."""
    p, w = view.problem, view.worker
    used = w.kv_allocated + p.block_size * w.num_full  # if everybody decodes one token
    prefills, k = w.num_prefilling, w.num_active
    while prefills > 0:  # they come last as a rule
        k -= 1
        slot = view.active[k]
        if slot.num_prefill_left > 0:
            used += claim_of(view, slot) - allocated(p, slot.num_kv_tokens + 1)
            prefills -= 1
    return used


@jit
def evict_worst(view: RuleView, decision: RuleDecision, memory: RuleMemory, used: int) -> int:
    """Evict the worst while what the active set will certainly take does not fit; return what is used then, tokens."""
    w, active = view.worker, view.active
    while used > view.problem.kv_capacity:
        worst, at = -math.inf, 0
        for k in range(w.num_active):
            if active[k].planned != LEAVES:
                weight = memory.params[EVICT_KV] * math.log(1.0 + active[k].num_kv_tokens)
                score = memory.reals[SCORES + active[k].request_id] + weight
                if score > worst:
                    worst, at = score, k
        used -= held_by(view, active[at]) + claim_beyond(view, active[at])
        active[at].planned = LEAVES
        evict(decision, at)
    return used


@jit_inline
def relist(view: RuleView, memory: RuleMemory, leaving: int) -> int:
    """Take who has left or leaves out of the list, and put who is new behind it; returns how many stay in it."""
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
        # A place that is free by now, taken for good if this one stays.
        state[first + count], reals[scores + count] = i, reals[scores + j]
        present += 1 if here else 0
        count += 1 if stays else 0
    known = count
    for k in range(present, w.num_active):
        if leaving == 0 or active[k].planned != LEAVES:
            state[first + count] = active[k].request_id
            count += 1
    state[first - 1] = count
    # Whoever is evicted leaves its slot to others.
    state[LAST_LISTED] = active[w.num_active - 1].request_id if leaving == 0 and w.num_active > 0 else UNKNOWN
    return known


@jit_inline
def order_known(memory: RuleMemory, first: int, scores: int, known: int) -> None:
    """Put their scores beside listed requests, and bring these into order."""
    state, reals = memory.state, memory.reals
    last, moves = -math.inf, 0
    for j in range(known):
        score = reals[SCORES + state[first + j]]
        reals[scores + j] = score
        if score <= last and moves <= MOST_MOVES * known:
            moves += ranked_sink(state, first, reals, scores, j)
        last = max(last, score)
    if moves > MOST_MOVES * known:
        ranked_sort(state, first, known, reals, scores)


@jit_inline
def list_active(view: RuleView, decision: RuleDecision, memory: RuleMemory) -> None:
    """Bring the list up to date and into order: most scores are what they were or hardly differ."""
    state, reals, first, scores = memory.state, memory.reals, list_at(view) + 1, listed_scores_at(view)
    leaving, known = decision.record.num_evict, state[list_at(view)]
    if leaving > 0 or not as_listed(view, memory):
        known = relist(view, memory, leaving)
    if state[RENEWED] > 0:
        order_known(memory, first, scores, known)
    state[RENEWED] = 0
    for j in range(known, state[first - 1]):
        reals[scores + j] = reals[SCORES + state[first + j]]
        ranked_insert(state, first, reals, scores, j)
    state[DUES_LISTED] = 0


@jit_inline
def list_dues(view: RuleView, memory: RuleMemory) -> Any:
    """Put when their next tokens are due beside the listed requests, once a decision; returns the place."""
    state, reals, due = memory.state, memory.reals, dues_at(view)
    listed, first = listed_dues_at(view), list_at(view) + 1
    if state[DUES_LISTED] == 0:
        state[DUES_LISTED] = 1
        for j in range(state[first - 1]):
            reals[listed + j] = reals[due + state[first + j]]
    return listed
