"""The batch of a ranking: evictions when memory is short, admissions, and the batch size with the best worth."""

from __future__ import annotations

import math
from typing import Any

from kvgym.baselines.ranked.active import (
    MANY,
    certain_memory,
    evict_worst,
    list_active,
    list_gaps,
    list_prompts,
)
from kvgym.baselines.ranked.layout import (
    BETWEEN,
    DEADLINES,
    DECODE_WORTH,
    LAST_SHARE,
    NUM_ENTERING,
    NUM_ITEMS,
    NUM_RUN,
    NUM_TAKEN,
    OUTPUT,
    SCORES,
    SHORTEST,
    items_at,
    list_at,
    listed_scores_at,
    notes_of,
    prompt_scores_at,
    prompts_at,
    slots_at,
)
from kvgym.baselines.ranked.lengths import uncount_waiting
from kvgym.baselines.ranked.scoring import entry_bias, too_long
from kvgym.baselines.ranked.waiting import end_walk, first_waiting, pass_first
from kvgym.baselines.ranked.weights import weights_in
from kvgym.baselines.ranked.worth import (
    Worth,
    cost_power,
    hopeless,
    judge,
    no_deadline_behind,
    pays,
    prompt_worth,
)
from kvgym.kernels import (
    UNKNOWN,
    WAIT,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit,
    admit_tokens,
    claim_to_start,
    full_tokens,
    jit,
    jit_inline,
    pause,
)

MOST_TOKENS = 8192
"""Maximum tokens per batch."""

MOST_ASIDE = 8
"""Maximum number of requests that a decision sets aside so that others may pass."""


@jit
def size_step(tokens: int) -> int:
    """Return the step to the next candidate batch size: a power of 2 that suits the tiles of matrix products."""
    if tokens < 64:
        return 32
    if tokens < 128:
        return 64
    return 128 if tokens < 1024 else 512


@jit_inline
def size_above(tokens: int) -> int:
    """Return the smallest candidate batch size above ``tokens``."""
    size = size_step(0)
    while size <= tokens:
        size += size_step(size)
    return size


@jit_inline
def spare_room(view: PolicyView, memory: PolicyMemory) -> int:
    """Return the memory that admission leaves free, tokens: a share of the capacity, and room for expected outputs.

    Only decisions without evictions use it, because the others admit no request.
    """
    p, w, output = weights_in(memory.params), view.worker, 0.0
    for k in range(w.num_active):
        output += memory.reals[notes_of(view, view.active[k].request_id) + OUTPUT]
    return int(p.free * view.problem.kv_capacity + p.growth * output / max(w.num_active, 1))


@jit_inline
def begin_batch(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> tuple[int, float]:
    """Evict if memory is short, rank the active requests, and describe the first batch in ``view.load``.

    Between two rankings, the first batch holds all decodes, and only requests with prompt left are ranked.

    Returns:
        The memory that entering requests may take, tokens; and the worth of a prompt token, 0 if there can be
        none.
    """
    w, load, capacity = view.worker, view.load, view.problem.kv_capacity
    used, decodes, context = certain_memory(view), 0, 0
    if memory.state[BETWEEN] == 1:
        context = w.kv_tokens - list_prompts(view, memory)
        decodes = w.num_active - w.num_prefilling
    else:
        if used > capacity:
            used = evict_worst(view, decision, memory, used)
        list_active(view, decision, memory)
    enters = decision.record.num_evict == 0 and w.num_waiting > 0
    room = capacity - used - spare_room(view, memory) if enters else 0
    worth = prompt_worth(view, memory) if enters or w.num_prefilling > 0 else 0.0
    load.num_prefills = load.prefill_tokens = load.prefill_context = 0
    load.prefill_squares = load.prefill_products = 0
    load.num_decodes, load.decode_context = decodes, context
    return room, worth


@jit_inline
def next_entering(
    view: PolicyView, memory: PolicyMemory, present: int, aside: int, room: int
) -> tuple[int, int]:
    """Return the next waiting request that may enter, UNKNOWN if none may.

    Args:
        view: what the policy observes.
        memory: the policy's memory.
        present: number of requests that are active or enter before it; if 0, and no request that waits holds memory,
            the first may enter whatever its size.
        aside: number of requests set aside because they are too long to begin now.
        room: memory that it may take, tokens.

    Returns:
        The request, and the number set aside so far.
    """
    places = view.active.shape[0]
    i = first_waiting(view, memory)
    if present == 0 and view.worker.kv_allocated == 0:
        return i, aside
    while i != UNKNOWN and too_long(memory, memory.reals[notes_of(view, i) + OUTPUT]):
        if aside == min(MOST_ASIDE, places - 1):
            return UNKNOWN, aside
        pass_first(view, memory, i)
        aside += 1
        i = first_waiting(view, memory)
    if i != UNKNOWN and (present == places or claim_to_start(view, i) > room):
        return UNKNOWN, aside
    return i, aside


@jit_inline
def take_decodes(
    view: PolicyView, memory: PolicyMemory, taken: int, end: int, entering: int, limit: float, value: float
) -> tuple[int, float]:
    """Take decodes from places ``taken`` to ``end`` of the ranking; stop at a prompt or a score above ``limit``.

    Returns:
        The number of decodes taken, and the value of the batch, to which each decode adds 1.
    """
    state, reals, active, load = memory.state, memory.reals, view.active, view.load
    listed, slot_of, scores = list_at(view) + 1, slots_at(view), listed_scores_at(view)
    j, item, context = taken, items_at(view) + entering, 0
    while j < end and reals[scores + j] <= limit:
        k = state[slot_of + state[listed + j]]
        if active[k].num_prefill_left > 0:
            break
        state[item + j] = k
        context += active[k].num_kv_tokens
        value += 1.0
        j += 1
    load.num_decodes += j - taken
    load.decode_context += context
    return j - taken, value


@jit_inline
def take_active(view: PolicyView, memory: PolicyMemory, i: int, item: int) -> tuple[int, int]:
    """Make an active request an item of the batch; return its remaining prompt and its KV, tokens."""
    k = memory.state[slots_at(view) + i]
    memory.state[items_at(view) + item] = k
    return begin_item(view, view.active[k])


@jit_inline
def take_waiting(view: PolicyView, memory: PolicyMemory, i: int, item: int) -> tuple[int, int]:
    """Make a waiting request an item of the batch; return its remaining prompt and its KV, tokens."""
    memory.state[items_at(view) + item] = ~i
    pass_first(view, memory, i)
    return begin_item(view, view.requests[i])


@jit_inline
def begin_item(view: PolicyView, row: Any) -> tuple[int, int]:
    """Add a request to ``view.load``, without prompt tokens so far; return its remaining prompt and its KV, tokens."""
    load, left, kv = view.load, row.num_prefill_left, row.num_kv_tokens
    if left == 0:
        load.num_decodes += 1
        load.decode_context += kv
    else:
        load.num_prefills += 1
        load.prefill_context += kv
    return left, kv


@jit_inline
def grow_prompt(view: PolicyView, kv: int, done: int, step: int) -> None:
    """Add ``step`` prompt tokens to ``view.load``, after ``done`` others and the request's KV."""
    load = view.load
    load.prefill_tokens += step
    load.prefill_squares += step * (2 * done + step)
    load.prefill_products += step * kv


@jit_inline
def rank(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Walk the ranking from the best, admit as memory allows, and find the batch size with the best worth.

    Writes to ``memory.state`` the items of the batch (slots, and ``~id`` of requests that enter), how many of them
    run, and how many tokens the last one gets. Between two rankings all decodes come first and are not items.
    """
    state, reals, load, between = memory.state, memory.reals, view.load, memory.state[BETWEEN] == 1
    room, prompt_value = begin_batch(view, decision, memory)
    here = view.worker.num_active - decision.record.num_evict
    listed, scores = list_at(view), listed_scores_at(view)
    if between:
        listed, scores = prompts_at(view), prompt_scores_at(view)
    staying = state[listed]
    power, bias, discount = cost_power(view, memory), entry_bias(memory), weights_in(memory.params).value
    best = Worth(-math.inf, reals[SHORTEST])
    tokens = judged = load.num_decodes
    size, value = size_above(tokens), tokens * reals[DECODE_WORTH]
    decode_value = value
    if tokens > 0:
        best = judge(view, memory, value, 0)
    i, search = UNKNOWN, decision.record.num_evict == 0 and view.worker.num_waiting > 0
    taken = entering = aside = left = kv = done = full = state[NUM_RUN] = 0
    each = 1.0
    while tokens < MOST_TOKENS:
        if done == full:  # the next item
            if search:
                i, aside = next_entering(view, memory, here + entering, aside, room)
                search = False
            # The waiting request precedes active ones with scores above this.
            limit = reals[SCORES + i] + bias if i != UNKNOWN else math.inf
            if discount == 0.0 and not between:  # each decode is worth 1
                end = min(staying, taken + size - 1 - tokens)
                number, value = take_decodes(view, memory, taken, end, entering, limit, value)
                taken, tokens, decode_value = taken + number, tokens + number, decode_value + number
                if number > 0:
                    done = full = 1
            if i != UNKNOWN and (taken == staying or limit < reals[scores + taken]):
                score = reals[SCORES + i]
                left, kv = take_waiting(view, memory, i, taken + entering)
                room -= claim_to_start(view, i)
                entering += 1
                search = True
            elif taken < staying:
                score = reals[scores + taken]
                left, kv = take_active(view, memory, state[listed + 1 + taken], taken + entering)
                taken += 1
            else:
                break
            each = math.exp(-discount * score) if discount != 0.0 else 1.0
            if left == 0:
                decode_value += each
            else:
                each *= prompt_value
            done, full = 0, full_tokens(left)
        step = min(full - done, size - tokens)
        if left > 0:
            grow_prompt(view, kv, done, step)
        done += step
        tokens += step
        value += each * step
        if tokens == size:
            judged = tokens
            size += size_step(tokens)
            batch = judge(view, memory, value, taken)
            if pays(memory, batch, best, power):
                best = batch
                state[NUM_RUN], state[LAST_SHARE] = taken + entering, done
            elif between or (hopeless(batch, best, power) and no_deadline_behind(view, memory, taken)):
                break
    if tokens > judged and pays(memory, judge(view, memory, value, taken), best, power):
        state[NUM_RUN], state[LAST_SHARE] = taken + entering, done
    state[NUM_ITEMS], state[NUM_TAKEN], state[NUM_ENTERING] = taken + entering, taken, entering
    if not between and here + entering >= MANY:
        reals[DECODE_WORTH] = decode_value / load.num_decodes if load.num_decodes > 0 else 1.0
        if state[DEADLINES] == 1:
            list_gaps(view, memory)


@jit_inline
def carry_out(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Run the items of the best batch, the last one possibly in part; requests after them keep waiting."""
    state, active, d = memory.state, view.active, decision.record
    items, slot_of, last = items_at(view), slots_at(view), state[NUM_RUN] - 1
    listed = 1 + (prompts_at(view) if state[BETWEEN] == 1 else list_at(view))
    for j in range(max(last, 0) if state[NUM_ENTERING] == 0 else 0, state[NUM_ITEMS]):
        item = state[items + j]
        if item >= 0 and j < last:
            continue  # it runs in full
        full = full_tokens(
            active[item].num_prefill_left if item >= 0 else view.requests[~item].num_prefill_left
        )
        share = state[LAST_SHARE] if j == last else full if j < last else 0
        if item >= 0:
            if share < full:
                active[item].planned = share
                d.explicit = 1
        elif share > 0:
            if share < full:
                admit_tokens(decision, ~item, share)
            else:
                admit(decision, ~item)
            memory.reals[SCORES + ~item] = math.nan  # it is scored again as an active request
            uncount_waiting(view, memory, ~item)
    end_walk(view, memory)
    for j in range(state[NUM_TAKEN], state[listed - 1]):  # not an item of the batch
        pause(decision, active[state[slot_of + state[listed + j]]])
    if view.worker.num_active + d.num_admit == 0:
        d.act = WAIT
