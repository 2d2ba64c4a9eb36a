"""The batch of a ranking: who leaves where memory is too tight, who enters, and how many tokens are worth it."""

from __future__ import annotations

import math
from typing import Any

from kvgym.baselines.ranked.active import (
    MANY,
    certain_memory,
    evict_worst,
    list_active,
    list_dues,
    list_gaps,
    list_prompts,
)
from kvgym.baselines.ranked.layout import (
    BETWEEN,
    COST,
    COST_ACTIVE,
    COST_LEAST,
    COST_PRESSURE,
    COST_ROOM,
    COST_WAITING,
    DEADLINES,
    DECODE_WORTH,
    FIRST_DUE,
    FREE,
    GROWTH,
    LAST_SHARE,
    LATE,
    NUM_ENTERING,
    NUM_GAPS,
    NUM_ITEMS,
    NUM_RUN,
    NUM_TAKEN,
    OUTPUT,
    PREFILL_PRESSURE,
    PREFILL_ROOM,
    PREFILL_VALUE,
    PRESSURE,
    SCORES,
    SHORTEST,
    VALUE,
    items_at,
    list_at,
    listed_dues_at,
    listed_scores_at,
    notes_of,
    prompt_scores_at,
    prompts_at,
    slots_at,
)
from kvgym.baselines.ranked.scoring import entry_bias, kept_out, prompt_ratio
from kvgym.baselines.ranked.waiting import end_walk, first_waiting, pass_first
from kvgym.kernels import (
    UNKNOWN,
    WAIT,
    RuleDecision,
    RuleMemory,
    RuleView,
    admit,
    admit_tokens,
    claim_of,
    full_tokens,
    jit,
    jit_inline,
    pause,
)

MOST_TOKENS = 8192
"""Tokens of a batch at most."""

MOST_ASIDE = 8
"""Requests kept out at a decision that others may pass."""

HOPELESS = 0.7
"""Share of the worth of the best batch below which no larger ones are tried."""

HALF_ROOM = 2048.0
"""Tokens for which there is memory where ``cost_room`` counts half: a few batches of prompts."""


@jit
def grain(tokens: int) -> int:
    """Return the step of batch sizes that are tried, which meets the tiles of matrix products: powers of 2."""
    if tokens < 64:
        return 32
    if tokens < 128:
        return 64
    return 128 if tokens < 1024 else 512


@jit_inline
def prompt_worth(view: RuleView, memory: RuleMemory) -> Any:
    """Return what a prompt token is worth, decode tokens: by their times, and more while many wait and could enter.

    It describes a batch of its own in ``view.load``.
    """
    p, reals = memory.params, memory.reals
    free = 1.0 - view.worker.kv_allocated / view.problem.kv_capacity
    power = (p[PREFILL_PRESSURE] + p[PREFILL_ROOM] * free) * reals[PRESSURE]
    return p[PREFILL_VALUE] * prompt_ratio(view, memory) * math.exp(power)


@jit
def number_below(reals: Any, start: int, end: int, limit: float) -> int:
    """Return how many of some real numbers are below a limit."""
    below = 0
    for j in range(start, end):
        below += 1 if reals[j] < limit else 0
    return below


@jit_inline
def number_late(view: RuleView, memory: RuleMemory, seconds: float, taken: int) -> int:
    """Return how many active requests would get their next token too late by a batch of this duration.

    The first ``taken`` of their list, which are in the batch, if it outlasts their deadline, the others if it leaves
    less than the shortest batch. Deadlines that cannot be met anyway do not count. Between two rankings those listed in
    the last one are late if it takes longer than may pass between their tokens.
    """
    reals, end = memory.reals, view.worker.clock + seconds
    if memory.state[BETWEEN] == 1:
        gaps = listed_dues_at(view)
        return number_below(reals, gaps, gaps + memory.state[NUM_GAPS], seconds)
    if end + reals[SHORTEST] <= reals[FIRST_DUE]:
        return 0
    dues = list_dues(view, memory)
    staying = memory.state[list_at(view)]
    late = number_below(reals, dues, dues + taken, end)
    return late + number_below(reals, dues + taken, dues + staying, end + reals[SHORTEST])


@jit_inline
def cost_power(view: RuleView, memory: RuleMemory) -> Any:
    """Return the power of a batch's duration that its worth is divided by: by who waits or is active, and memory."""
    p, w = memory.params, view.worker
    free = view.problem.kv_capacity - w.kv_allocated
    waiting = w.num_waiting / (1 + w.num_active + w.num_waiting)
    power = p[COST] + p[COST_PRESSURE] * memory.reals[PRESSURE]
    power += (p[COST_ROOM] + p[COST_WAITING] * waiting) * (free / (free + HALF_ROOM))
    if p[COST_ACTIVE] != 0.0:
        power += p[COST_ACTIVE] * math.log(1.0 + w.num_active)
    return max(power, p[COST_LEAST])


@jit_inline
def bounds_of_power(times: float, power: float) -> tuple[float, float]:
    """Return what ``times`` to this power is at least and at most, for times ≥ 1 and powers from 1 to 2.

    The series of x^p at 1 is too large up to the second term, and too small up to the third.
    """
    longer = times - 1.0
    second = 0.5 * power * (power - 1.0) * longer * longer
    most = 1.0 + power * longer + second
    least = most + (power - 2.0) / 3.0 * longer * second
    return least * (1.0 - 1e-9), most * (1.0 + 1e-9)


@jit_inline
def pays(
    memory: RuleMemory, value: float, seconds: float, best_value: float, best_seconds: float, power: float
) -> bool:
    """Return whether a batch is worth more than the best before it: its value over its duration to this power.

    For most batches two bounds of the power tell.

    Args:
        memory: what the rule remembers.
        value: of the batch.
        seconds: its duration.
        best_value: value of the best; -inf where there is none.
        best_seconds: duration of the best.
        power: the power.
    """
    if best_value == -math.inf:
        return True
    if 1.0 <= power <= 2.0 and best_value > 0.0 and seconds >= best_seconds:
        ratio = value / best_value
        least, most = bounds_of_power(seconds / best_seconds, power)
        if ratio > most:
            return True
        if ratio < least:
            return False
    shortest = memory.reals[SHORTEST]
    return value / (seconds / shortest) ** power > best_value / (best_seconds / shortest) ** power


@jit_inline
def hopeless(value: float, seconds: float, best_value: float, best_seconds: float, power: float) -> bool:
    """Return whether a batch is worth less than HOPELESS of the best; arguments as of :func:`pays`."""
    if best_value <= 0.0:
        return False
    ratio, times = value / best_value, seconds / best_seconds
    if 1.0 <= power <= 2.0 and times >= 1.0:
        least, most = bounds_of_power(times, power)
        if ratio < HOPELESS * least:
            return True
        if ratio > HOPELESS * most:
            return False
    return ratio < HOPELESS * times**power


@jit_inline
def judge(view: RuleView, memory: RuleMemory, value: float, taken: int) -> Any:
    """Return the duration of the batch described in ``view.load``, s, and its value.

    That is less for every request whose next token it makes late; the first ``taken`` of the active ones are in it.
    """
    seconds = max(view.batch_time(view.load, view.batch_params), 1e-9)
    late = number_late(view, memory, seconds, taken) if memory.state[DEADLINES] == 1 else 0
    if late > 0:
        value *= math.exp(-memory.params[LATE] * late)
    return value, seconds


@jit
def nobody_to_save(view: RuleView, memory: RuleMemory, taken: int) -> bool:
    """Return whether the first ``taken`` of the list are all whose deadlines can be met: more tokens save none."""
    if memory.reals[FIRST_DUE] == math.inf:
        return True
    dues = list_dues(view, memory)
    return number_below(memory.reals, dues + taken, dues + memory.state[list_at(view)], math.inf) == 0


@jit_inline
def spare_room(view: RuleView, memory: RuleMemory) -> int:
    """Return the memory that admission leaves free, tokens: a share of all, and what outputs to come will take.

    For decisions that evict nobody; the others admit nobody.
    """
    p, w, output = memory.params, view.worker, 0.0
    for k in range(w.num_active):
        output += memory.reals[notes_of(view, view.active[k].request_id) + OUTPUT]
    return int(p[FREE] * view.problem.kv_capacity + p[GROWTH] * output / max(w.num_active, 1))


@jit_inline
def rank(view: RuleView, decision: RuleDecision, memory: RuleMemory) -> None:
    """Walk the ranking from the best, admit as memory allows, and find the number of tokens worth most.

    Items of the batch stand in ``memory.state``: slots, and ``~id`` of requests that enter; beside them how many of
    them run, and how many tokens of the last one. Between two rankings all decodes come first, and are no items.
    """
    state, reals, p, w = memory.state, memory.reals, memory.params, view.worker
    active, requests, load = view.active, view.requests, view.load
    places = active.shape[0]
    listed, slot_of, scores = list_at(view) + 1, slots_at(view), listed_scores_at(view)
    items, between = items_at(view), state[BETWEEN] == 1
    used, room, decodes, context = certain_memory(view), 0, 0, 0
    if between:
        listed, scores = prompts_at(view) + 1, prompt_scores_at(view)
        context = w.kv_tokens - list_prompts(view, memory)
        decodes = w.num_active - w.num_prefilling
    else:
        if used > view.problem.kv_capacity:
            used = evict_worst(view, decision, memory, used)
        list_active(view, decision, memory)
    staying = state[listed - 1]
    here = w.num_active - decision.record.num_evict
    i = first_waiting(view, memory) if decision.record.num_evict == 0 else UNKNOWN
    if i != UNKNOWN:
        room = view.problem.kv_capacity - used - spare_room(view, memory)
    prompt_value = prompt_worth(view, memory) if i != UNKNOWN or w.num_prefilling > 0 else 0.0  # of no use
    load.num_prefills = load.prefill_tokens = load.prefill_context = 0
    load.prefill_squares = load.prefill_products = 0
    load.num_decodes, load.decode_context = decodes, context
    count = taken = entering = aside = done = state[NUM_RUN] = 0
    tokens, next_size, decode_value = decodes, grain(0), decodes * reals[DECODE_WORTH]
    value, best_value, best_seconds = decode_value, -math.inf, reals[SHORTEST]
    power, bias = cost_power(view, memory), entry_bias(memory)
    judged = looking = over = False
    plain = p[VALUE] == 0.0  # all decodes are worth the same
    if tokens > 0:
        best_value, best_seconds = judge(view, memory, value, 0)
        while next_size <= tokens:
            next_size += grain(next_size)
    while tokens < MOST_TOKENS and not over:
        if looking:
            i, judged, looking = first_waiting(view, memory), False, False
        if i != UNKNOWN and not judged and here + entering > 0:
            judged = True
            while i != UNKNOWN and kept_out(memory, reals[notes_of(view, i) + OUTPUT]):
                if aside == min(MOST_ASIDE, places - 1):
                    i = UNKNOWN
                else:
                    pass_first(view, memory, i)
                    aside += 1
                    i = first_waiting(view, memory)
            if i != UNKNOWN and (here + entering == places or claim_of(view, requests[i]) > room):
                i = UNKNOWN
        # The waiting one comes before active ones with scores above this.
        limit = reals[SCORES + i] + bias if i != UNKNOWN else math.inf
        while plain and taken < staying and tokens + 1 < next_size and reals[scores + taken] <= limit:
            k = state[slot_of + state[listed + taken]]
            if active[k].num_prefill_left > 0:
                break
            state[items + count] = k
            count, taken, decodes, tokens, done = count + 1, taken + 1, decodes + 1, tokens + 1, 1
            context += active[k].num_kv_tokens
            value, decode_value = value + 1.0, decode_value + 1.0
        if i != UNKNOWN and (taken == staying or limit < reals[scores + taken]):
            row = requests[i]
            left, kv, score = row.num_prefill_left, row.num_kv_tokens, reals[SCORES + i]
            room -= claim_of(view, row)
            state[items + count] = ~i
            entering += 1
            pass_first(view, memory, i)
            looking = True
        elif taken < staying:
            k = state[slot_of + state[listed + taken]]
            left, kv, score = active[k].num_prefill_left, active[k].num_kv_tokens, reals[scores + taken]
            state[items + count] = k
            taken += 1
        else:
            break
        count += 1
        each = math.exp(-p[VALUE] * score) if p[VALUE] != 0.0 else 1.0
        if left == 0:
            decodes += 1
            context += kv
            decode_value += each
            if tokens + 1 < next_size:
                tokens += 1
                value += each
                done = 1
                continue
        else:
            each *= prompt_value
            load.num_prefills += 1
            load.prefill_context += kv
        done, full = 0, full_tokens(left)
        while done < full and tokens < MOST_TOKENS and not over:
            step = min(full - done, next_size - tokens)
            if left > 0:
                load.prefill_tokens += step
                load.prefill_squares += step * (2 * done + step)
                load.prefill_products += step * kv
            done += step
            tokens += step
            value += each * step
            if tokens == next_size:
                next_size += grain(tokens)
                load.num_decodes, load.decode_context = decodes, context
                worth, seconds = judge(view, memory, value, taken)
                if pays(memory, worth, seconds, best_value, best_seconds, power):
                    best_value, best_seconds = worth, seconds
                    state[NUM_RUN], state[LAST_SHARE] = count, done
                elif between or (
                    hopeless(worth, seconds, best_value, best_seconds, power)
                    and nobody_to_save(view, memory, taken)
                ):
                    over = True
    load.num_decodes, load.decode_context = decodes, context
    if tokens > 0 and not over:
        worth, seconds = judge(view, memory, value, taken)
        if pays(memory, worth, seconds, best_value, best_seconds, power):
            state[NUM_RUN], state[LAST_SHARE] = count, done
    state[NUM_ITEMS], state[NUM_TAKEN], state[NUM_ENTERING] = count, taken, entering
    if not between and here + entering >= MANY:
        reals[DECODE_WORTH] = decode_value / decodes if decodes > 0 else 1.0
        if state[DEADLINES] == 1:
            list_gaps(view, memory)


@jit_inline
def carry_out(view: RuleView, decision: RuleDecision, memory: RuleMemory) -> None:
    """Run the items of the best batch, the last one perhaps in part; what would enter behind them waits on."""
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
            memory.reals[SCORES + ~item] = math.nan  # to be rated anew, as an active one
    end_walk(view, memory)
    for j in range(state[NUM_TAKEN], state[listed - 1]):  # no item of the batch
        pause(decision, active[state[slot_of + state[listed + j]]])
    if view.worker.num_active + d.num_admit == 0:
        d.act = WAIT
