"""The batch of a ranking: who leaves where memory is too tight, who enters, and how many tokens are worth it."""

from __future__ import annotations

import math
from typing import Any

from kvgym.baselines.ranked.layout import (
    COST,
    COST_ACTIVE,
    COST_LEAST,
    COST_PRESSURE,
    COST_ROOM,
    COST_WAITING,
    DEADLINES,
    EVICT_KV,
    FREE,
    GROWTH,
    LATE,
    PREFILL_PRESSURE,
    PREFILL_ROOM,
    PREFILL_VALUE,
    PRESSURE,
    PROMPT_RATIO,
    SCORES,
    SHORTEST,
    VALUE,
    WAITING_HEAP,
)
from kvgym.baselines.ranked.scoring import entry_bias, kept_out
from kvgym.kernels import (
    UNKNOWN,
    WAIT,
    WAITING,
    RuleDecision,
    RuleMemory,
    RuleView,
    admit_tokens,
    claim_of,
    evict,
    full_tokens,
    held_by,
    jit,
    jit_inline,
    kv_growth,
    ranked_pop,
    ranked_push,
    ranked_sort,
)

MOST_TOKENS = 8192
"""Tokens of a batch at most."""

MOST_ASIDE = 8
"""Requests kept out at a decision that others may pass."""

HALF_ROOM = 2048.0
"""Tokens for which there is memory where ``cost_room`` counts half: a few batches of prompts."""

# In SLOT.planned while a decision is made: this one is evicted; it is in the order of the active ones already.
_LEAVES, _LISTED = -2, -3


@jit
def grain(tokens: int) -> int:
    """Return the step of batch sizes that are tried, which meets the tiles of matrix products: powers of 2."""
    if tokens < 64:
        return 8
    if tokens < 512:
        return 32
    return 64 if tokens < 1024 else 256


@jit
def claim_beyond(view: RuleView, slot: Any) -> Any:
    """Return the memory that an active request will certainly take and does not hold, allocated tokens.

    What is left of its prompt and a token; of a decode, its next token.
    """
    if slot.num_prefill_left > 0:
        return claim_of(view, slot) - held_by(view, slot)
    return kv_growth(view.problem, slot, 1)


@jit_inline
def make_room(view: RuleView, decision: RuleDecision, memory: RuleMemory) -> int:
    """Evict the worst while what the active set will certainly take does not fit; return what is left, in tokens."""
    w, active = view.worker, view.active
    used = w.kv_allocated
    for k in range(w.num_active):
        active[k].planned = 0
        used += claim_beyond(view, active[k])
    while used > view.problem.kv_capacity:
        worst, at = -math.inf, 0
        for k in range(w.num_active):
            if active[k].planned != _LEAVES:
                weight = memory.params[EVICT_KV] * math.log(1.0 + active[k].num_kv_tokens)
                score = memory.reals[SCORES + active[k].request_id] + weight
                if score > worst:
                    worst, at = score, k
        used -= held_by(view, active[at]) + claim_beyond(view, active[at])
        active[at].planned = _LEAVES
        evict(decision, at)
    return view.problem.kv_capacity - used


@jit
def first_to_enter(view: RuleView, memory: RuleMemory) -> Any:
    """Return the waiting request with the best score, UNKNOWN if nobody waits."""
    state = memory.state
    while state[WAITING_HEAP] > 0 and view.requests[state[WAITING_HEAP + 1]].status != WAITING:
        ranked_pop(state, WAITING_HEAP, memory.reals, SCORES)
    return state[WAITING_HEAP + 1] if state[WAITING_HEAP] > 0 else UNKNOWN


@jit_inline
def prompt_worth(view: RuleView, memory: RuleMemory) -> Any:
    """Return what a prompt token is worth, decode tokens: by their times, and more while many wait and could enter."""
    p, reals = memory.params, memory.reals
    free = 1.0 - view.worker.kv_allocated / view.problem.kv_capacity
    power = (p[PREFILL_PRESSURE] + p[PREFILL_ROOM] * free) * reals[PRESSURE]
    return p[PREFILL_VALUE] * reals[PROMPT_RATIO] * math.exp(power)


@jit
def number_late(view: RuleView, memory: RuleMemory, seconds: float) -> int:
    """Return how many active requests would get their next token too late by a batch of this duration.

    Those in the batch (marked by ``planned`` = 1) if it outlasts their deadline, the others if it leaves less than the
    shortest batch. Deadlines that cannot be met anyway do not count.
    """
    reals, w, dues = memory.reals, view.worker, SCORES + 3 * view.requests.shape[0]
    late = 0
    for k in range(w.num_active):
        slot = view.active[k]
        end = w.clock + seconds if slot.planned == 1 else w.clock + seconds + reals[SHORTEST]
        if slot.planned != _LEAVES and end > reals[dues + slot.request_id]:
            late += 1
    return late


@jit_inline
def cost_power(view: RuleView, memory: RuleMemory) -> Any:
    """Return the power of a batch's duration that its worth is divided by: by who waits or is active, and memory."""
    p, w = memory.params, view.worker
    free = view.problem.kv_capacity - w.kv_allocated
    waiting = w.num_waiting / (1 + w.num_active + w.num_waiting)
    power = p[COST] + p[COST_PRESSURE] * memory.reals[PRESSURE]
    power += (p[COST_ROOM] + p[COST_WAITING] * waiting) * (free / (free + HALF_ROOM))
    power += p[COST_ACTIVE] * math.log(1.0 + w.num_active)
    return max(power, p[COST_LEAST])


@jit
def worth(view: RuleView, memory: RuleMemory, value: float, power: float) -> Any:
    """Return what the batch described in ``view.load`` is worth: its value over its duration to this power.

    Less for every request whose next token it makes late.
    """
    seconds = max(view.batch_time(view.load, view.batch_params), 1e-9)
    found = value / (seconds / memory.reals[SHORTEST]) ** power
    if memory.state[DEADLINES] == 1:
        found *= math.exp(-memory.params[LATE] * number_late(view, memory, seconds))
    return found


@jit_inline
def order_active(view: RuleView, memory: RuleMemory, slots: int, slot_of: int) -> Any:
    """Bring the active requests that stay into the order of their scores; returns their output to come, in all.

    The list lasts from decision to decision, as the order hardly changes: who has left is taken out, who is new comes
    last, and then it is sorted.

    Args:
        view: what the rule sees; who leaves is marked by ``planned``.
        memory: what it remembers.
        slots: place of the list in ``memory.state``: its length, then ids of requests.
        slot_of: place of the slot of each request.
    """
    state, reals, active, w, n = memory.state, memory.reals, view.active, view.worker, view.requests.shape[0]
    output = 0.0
    for k in range(w.num_active):
        state[slot_of + active[k].request_id] = k
        if active[k].planned != _LEAVES:
            output += reals[SCORES + n + active[k].request_id]
    count = 0
    for j in range(state[slots]):
        i = state[slots + 1 + j]
        k = state[slot_of + i]
        if k < w.num_active and active[k].request_id == i and active[k].planned == 0:
            active[k].planned = _LISTED
            count += 1
            state[slots + count] = i
    for k in range(w.num_active):
        if active[k].planned == 0:
            count += 1
            state[slots + count] = active[k].request_id
        elif active[k].planned == _LISTED:
            active[k].planned = 0
    state[slots] = count
    ranked_sort(state, slots, reals, SCORES)
    return output


@jit_inline
def rank(view: RuleView, decision: RuleDecision, memory: RuleMemory) -> int:
    """Walk the ranking from the best, admit as memory allows, and find the number of tokens worth most.

    Returns:
        That number. Items of the batch stand behind heap and list in ``memory.state``: slots, and ``~id`` of requests
        that enter.
    """
    state, reals, p = memory.state, memory.reals, memory.params
    d, active, requests, load = decision.record, view.active, view.requests, view.load
    n, places = requests.shape[0], active.shape[0]
    slots = WAITING_HEAP + 1 + n
    items, slot_of = slots + 1 + places, slots + 1 + 3 * places
    room = make_room(view, decision, memory)
    output = order_active(view, memory, slots, slot_of)
    staying, next_active = state[slots], 0
    room -= int(p[FREE] * view.problem.kv_capacity + p[GROWTH] * output / max(staying, 1))
    load.num_prefills = load.prefill_tokens = load.prefill_context = 0
    load.prefill_squares = load.prefill_products = load.num_decodes = load.decode_context = 0
    count = entering = aside = tokens = best_tokens = 0
    value, best = 0.0, -1.0
    prompt_value, power = prompt_worth(view, memory), cost_power(view, memory)
    next_size, bias = grain(0), entry_bias(memory)
    i = first_to_enter(view, memory) if d.num_evict == 0 else UNKNOWN
    while tokens < MOST_TOKENS:
        if i != UNKNOWN and staying + entering > 0:
            while i != UNKNOWN and kept_out(memory, reals[SCORES + n + i]):
                if aside == min(MOST_ASIDE, places - 1):
                    i = UNKNOWN
                else:
                    state[items + places + aside] = ranked_pop(state, WAITING_HEAP, reals, SCORES)
                    aside += 1
                    i = first_to_enter(view, memory)
            if i != UNKNOWN and (staying + entering == places or claim_of(view, requests[i]) > room):
                i = UNKNOWN
        if i != UNKNOWN and (
            next_active == staying
            or reals[SCORES + i] + bias < reals[SCORES + state[slots + 1 + next_active]]
        ):
            row = requests[i]
            left, kv, score = row.num_prefill_left, row.num_kv_tokens, reals[SCORES + i]
            room -= claim_of(view, row)
            state[items + count] = ~i
            entering += 1
            ranked_pop(state, WAITING_HEAP, reals, SCORES)
            i = first_to_enter(view, memory)
        elif next_active < staying:
            j = state[slots + 1 + next_active]
            next_active += 1
            slot = active[state[slot_of + j]]
            left, kv, score = slot.num_prefill_left, slot.num_kv_tokens, reals[SCORES + j]
            state[items + count] = state[slot_of + j]
            slot.planned = 1
        else:
            break
        count += 1
        each = math.exp(-p[VALUE] * score) if p[VALUE] != 0.0 else 1.0
        if left > 0:
            each *= prompt_value
            load.num_prefills += 1
            load.prefill_context += kv
        done, full = 0, full_tokens(left)
        while done < full and tokens < MOST_TOKENS:
            step = min(full - done, next_size - tokens)
            if left > 0:
                load.prefill_tokens += step
                load.prefill_squares += step * (2 * done + step)
                load.prefill_products += step * kv
            else:
                load.num_decodes += 1
                load.decode_context += kv
            done += step
            tokens += step
            value += each * step
            if tokens == next_size:
                next_size += grain(tokens)
                found = worth(view, memory, value, power)
                if found > best:
                    best, best_tokens = found, tokens
    if tokens > 0 and worth(view, memory, value, power) > best:
        best_tokens = tokens
    for j in range(aside):
        ranked_push(state, WAITING_HEAP, reals, SCORES, state[items + places + j])
    state[items + 2 * places - 1] = count
    return best_tokens


@jit_inline
def carry_out(view: RuleView, decision: RuleDecision, memory: RuleMemory, tokens: int) -> None:
    """Give the items of the ranking their tokens while these last; what enters and gets none waits on."""
    state, active, d = memory.state, view.active, decision.record
    n, places = view.requests.shape[0], active.shape[0]
    items = WAITING_HEAP + 2 + n + places
    d.explicit = 1
    for j in range(state[items + 2 * places - 1]):
        item = state[items + j]
        row_left = active[item].num_prefill_left if item >= 0 else view.requests[~item].num_prefill_left
        share = min(full_tokens(row_left), tokens)
        tokens -= share
        if item >= 0:
            active[item].planned = share
        elif share > 0:
            admit_tokens(decision, ~item, share)
            memory.reals[SCORES + ~item] = math.nan  # to be rated anew, as an active one
        else:
            ranked_push(state, WAITING_HEAP, memory.reals, SCORES, ~item)
    if view.worker.num_active + d.num_admit == 0:
        d.act = WAIT
