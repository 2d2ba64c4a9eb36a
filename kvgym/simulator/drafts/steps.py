"""A step of speculative decoding: which drafts are right, and how many are proposed next."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.simulator.drafts.tables import COST, COST_EACH, DUE, LEVELS, TABLE

_PRIOR = (
    2.0  # drafts at each position that count as right before any is verified, so that all depths are tried
)
_OWN_PRIOR = 8.0  # drafts of a request, right as often as those of all, before its own count


@jit
def mixed(x: int) -> int:
    """Return 32 bits that depend on all of 32 bits; products stay below 2^63, so Python and machine code agree.

    Source: the two-round hash of C. Wellons' hash-prospector.
    """
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return x ^ (x >> 15)


@jit
def num_right(s: Any, odds: Any, rights: Any, first_right: Any, row: int, made: int) -> int:
    """Return how many drafts in a row are right, at most ``s.depth``.

    Args:
        s: SPECULATION record.
        odds: see :meth:`~kvgym.simulator.drafts.settings.Speculation.odds`.
        rights: recorded numbers, in place of these.
        first_right: their first place of each request.
        row: the request's row of the workload.
        made: its output tokens so far.
    """
    if s.seeded == 0:
        return min(int(rights[first_right[row] + made]), int(s.depth))
    at = row * (1 + s.depth)
    drawn, count = mixed(np.int64(odds[at]) ^ mixed(np.int64(made))) / 4294967296.0, 0
    while count < s.depth and drawn < odds[at + 1 + count]:
        count += 1
    return count


@jit
def count_verified(w: Any, s: Any, own: Any, drafted: int, right: int) -> None:
    """Count the drafts that a request has verified, and those of them that were right."""
    w.total_decodes += 1
    w.total_drafted += drafted
    w.total_accepted += right
    s.accepted += right
    for k in range(min(drafted, right + 1)):
        s.tried[k] += 1
        own.tried += 1
        if k < right:
            s.right[k] += 1
            own.right += 1


@jit
def verify(w: Any, s: Any, own: Any, slot: Any, target: int, drafted: int, right: int) -> int:
    """Verify the drafts of a request; return the output tokens that it makes.

    Args:
        w: WORKER record.
        s: SPECULATION record.
        own: DRAFTS record of the request.
        slot: its SLOT.
        target: its true output length, tokens.
        drafted: its drafts in this batch.
        right: how many in a row are right, of as many as there could be.
    """
    right = min(right, drafted)
    count_verified(w, s, own, drafted, right)
    return min(right + 1, int(target - slot.num_output_tokens))


@jit
def await_drafts(s: Any, own: Any, slot: Any, target: int, lookahead: int, emits: bool) -> None:
    """Note whether a request of a batch gets drafts after it, and whether they are sure to be unused.

    They are after a chunk that is not the last of its prompt, which makes no token, and if this batch makes the last
    token even with no draft right.
    """
    own.proposed = DUE if emits else 0
    if emits and (slot.num_output_tokens + 1 < target or lookahead == 0):
        s.needed = 1


@jit
def making(s: Any, longest: int, drafts: int, context: int) -> float:
    """Return the seconds that making the drafts of a batch takes.

    Args:
        s: SPECULATION record.
        longest: most drafts of a request.
        drafts: those of all.
        context: tokens in the cache of the requests that decode.
    """
    if drafts == 0:
        return 0.0
    return float(s.per_batch + s.per_pass * longest + s.per_draft * drafts + s.per_context * context)


@jit
def rate_at(s: Any, k: int) -> float:
    """Return the running acceptance at position ``k``, from 0 on."""
    return float((s.right[k] + _PRIOR) / (s.tried[k] + _PRIOR))


@jit
def own_factor(s: Any, own: Any) -> float:
    """Return by how much a request's drafts are right more often than those of all, by its running mean."""
    tried = right = 0
    for k in range(s.depth):
        tried += s.tried[k]
        right += s.right[k]
    mean = (right + _PRIOR) / (tried + _PRIOR)
    return float((own.right + _OWN_PRIOR * mean) / ((own.tried + _OWN_PRIOR) * mean))


@jit
def set_decodes(load: Any, drafts: Any, active: Any, w: Any) -> None:
    """Set a load to that of the requests that decode next, without drafts."""
    load.num_prefills = load.prefill_tokens = load.prefill_context = 0
    load.prefill_squares = load.prefill_products = load.draft_tokens = 0
    load.num_decodes = load.decode_context = 0
    for k in range(w.num_active):
        if active[k].num_prefill_left == 0:
            load.num_decodes += 1
            load.decode_context += active[k].num_kv_tokens


@jit_inline
def cheapest_depth(s: Any, load: Any, batch_time: Any, params: Any) -> int:
    """Return the number of drafts with the most expected tokens per second, equal for all decodes of the load."""
    n, best, most = load.num_decodes, 0, 0.0
    tokens = all_right = 1.0
    for k in range(s.depth + 1):
        load.draft_tokens = k * n
        if k > 0:
            all_right *= rate_at(s, k - 1)
            tokens += all_right
        speed = tokens / (batch_time(load, params) + making(s, k, k * n, load.decode_context))
        if speed > most:
            best, most = k, speed
    return best


@jit
def level_of(worth: float) -> int:
    """Return the class of a probability, larger ones in later classes."""
    return int(min(LEVELS - 1.0, np.floor(worth * LEVELS)))


@jit
def depth_for(s: Any, own: Any, level: int) -> int:
    """Return how many drafts of a request are worth at least a level, at most ``s.most``."""
    factor, all_right, k = own_factor(s, own), 1.0, 0
    while k < s.most:
        all_right *= min(1.0, rate_at(s, k) * factor)
        if level_of(all_right) < level:
            break
        k += 1
    return k


@jit
def count_worth(s: Any, drafts: Any, active: Any, w: Any, most: int) -> None:
    """Count the possible drafts, at most ``most`` of a request, by how likely they are right with all before them."""
    for b in range(LEVELS):
        s.counts[b], s.worth[b] = 0, 0.0
    for i in range(w.num_active):
        if active[i].num_prefill_left == 0:
            factor, all_right = own_factor(s, drafts[i]), 1.0
            for k in range(most):
                all_right *= min(1.0, rate_at(s, k) * factor)
                b = level_of(all_right)
                s.counts[b] += 1
                s.worth[b] += all_right


@jit_inline
def cheapest_level(s: Any, load: Any, drafts: Any, active: Any, w: Any, batch_time: Any, params: Any) -> int:
    """Return the least worth of a draft, as a level, with the most expected tokens per second.

    A pass of the drafter is shared by all requests, so the most drafts of a request, ``s.most``, are chosen with it.
    """
    best, s.most = LEVELS, 0
    fastest = load.num_decodes / batch_time(load, params)
    for most in range(1, s.depth + 1):
        count_worth(s, drafts, active, w, most)
        count, tokens = 0, float(load.num_decodes)
        for b in range(LEVELS - 1, -1, -1):
            if s.counts[b] > 0:
                count += s.counts[b]
                tokens += s.worth[b]
                load.draft_tokens = count
                speed = tokens / (batch_time(load, params) + making(s, most, count, load.decode_context))
                if speed > fastest:
                    best, s.most, fastest = b, most, speed
    return best


@jit_inline
def propose(
    s: Any,
    drafts: Any,
    active: Any,
    w: Any,
    load: Any,
    depths: Any,
    batch_time: Any,
    params: Any,
) -> None:
    """Give every request that has made a token in the last batch its next drafts.

    If no request of that batch can use drafts, a drafter that runs on its own makes none, as in vLLM.

    Args:
        s: SPECULATION record.
        drafts: DRAFTS (A,).
        active: SLOT (A,).
        w: WORKER record.
        load: LOAD record of that batch; it is the same afterwards.
        depths: drafts by the number of requests in a batch, for the rule ``table``.
        batch_time: the batch-time kernel.
        params: its parameters.
    """
    depth, level = s.depth, 0
    if s.rule == TABLE:
        depth = depths[min(load.num_prefills + load.num_decodes, depths.shape[0] - 1)]
    elif (s.rule == COST or s.rule == COST_EACH) and s.needed == 1:
        prefills, tokens, context = load.num_prefills, load.prefill_tokens, load.prefill_context
        squares, products = load.prefill_squares, load.prefill_products
        decodes, decode_context, drafted = load.num_decodes, load.decode_context, load.draft_tokens
        set_decodes(load, drafts, active, w)
        if load.num_decodes == 0:
            depth, level = 0, LEVELS  # all have ended; an empty batch may take no time
        elif s.rule == COST:
            depth = cheapest_depth(s, load, batch_time, params)
        else:
            level = cheapest_level(s, load, drafts, active, w, batch_time, params)
        load.num_prefills, load.prefill_tokens, load.prefill_context = prefills, tokens, context
        load.prefill_squares, load.prefill_products = squares, products
        load.num_decodes, load.decode_context, load.draft_tokens = decodes, decode_context, drafted
    for k in range(w.num_active):
        if drafts[k].proposed == DUE:
            if s.needed == 0:
                drafts[k].proposed = 0
            elif s.rule == COST_EACH:
                drafts[k].proposed = depth_for(s, drafts[k], level)
            else:
                drafts[k].proposed = depth
