"""Memory layout of ``ranked``: places in the arrays of its memory, and the order of its parameters."""

from __future__ import annotations

from typing import Any

from kvgym.kernels import RuleView, jit_inline

TOKENS_PER_OCTAVE, TOKEN_BINS = 8, 136
"""Bins of output lengths: logarithmic, from 1 to 2^17 tokens; the first one begins at 0."""

RATIOS_PER_OCTAVE, RATIO_BINS = 12, 96
"""Bins of the ratio of an output length to its prediction: from 2^-4 to 2^4; the first one begins at 0."""

FIRST_RATIO = 2.0**-4
"""Where the second bin of ratios begins is 2^(1/12) times this."""

GROUPS = 9
"""Requests of all classes together, and of each of the classes 0 to 7 (those above count as class 7)."""

# Parameters: the weights of the score and of the batch, in the order of `Ranked.weights`.
(
    PROMPT,
    FOOTPRINT,
    ATTAINED,
    HELD,
    WAITING_BIAS,
    WAITING_PRESSURE,
    SLACK,
    URGENT,
    LOST,
    GATE,
    GATE_BUSY,
    VALUE,
    PREFILL_VALUE,
    PREFILL_PRESSURE,
    PREFILL_ROOM,
    COST,
    COST_PRESSURE,
    COST_ROOM,
    COST_WAITING,
    COST_ACTIVE,
    COST_LEAST,
    LATE,
    FREE,
    GROWTH,
    EVICT_KV,
    NUM_WEIGHTS,
) = range(26)

# Parameters behind the weights: units of the network (0: none), then its numbers.
HIDDEN, NETWORK = NUM_WEIGHTS, NUM_WEIGHTS + 1

# Real numbers. Edges of the bins, then the Gittins cost at each edge for each group, then hazards.
TOKEN_EDGES = 0
RATIO_EDGES = TOKEN_EDGES + TOKEN_BINS + 1
TOKEN_COSTS = RATIO_EDGES + RATIO_BINS + 1
RATIO_COSTS = TOKEN_COSTS + GROUPS * (TOKEN_BINS + 1)
HAZARDS = RATIO_COSTS + GROUPS * (RATIO_BINS + 1)
GROUP_HAZARDS = HAZARDS + max(TOKEN_BINS, RATIO_BINS)
STEPS = GROUP_HAZARDS + max(TOKEN_BINS, RATIO_BINS)  # room to find costs in: three numbers for each bin
# The moment: what scores need beside the request itself; sums over arrivals.
PRESSURE = STEPS + 3 * max(TOKEN_BINS, RATIO_BINS)
BUSY = PRESSURE + 1  # 1 - duration of the smallest batch / duration of the last one
SHORTEST = BUSY + 1  # duration of the smallest batch, s
LAST = SHORTEST + 1  # duration of the last batch, s
SUM_LOG_OUTPUT = LAST + 1  # over all arrivals: log of the output expected then
PROMPT_TIME = SUM_LOG_OUTPUT + 1  # what a prompt token adds to the shortest batch, s
FIRST_DUE = PROMPT_TIME + 1  # when the first of the next tokens of active requests is due, s
DECODE_WORTH = FIRST_DUE + 1  # what a decode was worth at the last ranking, on average
SCORES = DECODE_WORTH + 1
# By request: scores and what is added to them from outside, n numbers each; and notes, four of each request side by
# side, as they are needed together. Then, of the list of active requests, the scores and when their next tokens are
# due, in order, after a ranking the time that may pass between tokens; and the scores of the list of prompts, where a
# ranking has room to merge lists; A numbers each.

DUE, BASE, GAP, OUTPUT, NOTES = range(5)
"""What is noted of a request: when the next token is due (inf: no deadline, or it cannot be met); the score without
what the deadline adds; the time that may pass between tokens (-inf: an objective has been missed, NaN: there was no
token when this was computed); and the output still to come."""

# Whole numbers. How many requests have finished, when to learn next, how many have arrived,
# whether any of these has a deadline, decisions since deadlines of the queue were computed, and how many pressed then;
# whether lengths are known; of the list of active requests the one in the last slot, whether the dues are beside it,
# how many times between tokens, and whether scores have been renewed since it was in order; whether the front of a
# queue is out of order; whether this is a boundary between rankings; how many of the list are items of the batch, how
# many enter with it, of how many items, how many of these run, and how many tokens of the last one.
(
    SEEN,
    NEXT,
    ARRIVED,
    DEADLINES,
    UNSEEN,
    PRESSED,
    CERTAIN,
    LAST_LISTED,
    DUES_LISTED,
    NUM_GAPS,
    RENEWED,
    OUT_OF_ORDER,
    BETWEEN,
    NUM_TAKEN,
    NUM_ENTERING,
    NUM_ITEMS,
    NUM_RUN,
    LAST_SHARE,
) = range(18)
# Counts by group and bin.
TOKEN_COUNTS = LAST_SHARE + 1
RATIO_COUNTS = TOKEN_COUNTS + GROUPS * TOKEN_BINS
TOKEN_CENSORED = RATIO_COUNTS + GROUPS * RATIO_BINS
RATIO_CENSORED = TOKEN_CENSORED + GROUPS * TOKEN_BINS
STANDING = RATIO_CENSORED + GROUPS * RATIO_BINS
# Behind the queue of waiting requests that time does not press (2 n + 3): that of those it does (2 n + 3), a list of
# active ones in order (1 + A), one of those with prompt left (1 + A), items of the batch (A), slots by request (n).


@jit_inline
def outside_at(view: RuleView) -> Any:
    """Return the place in ``memory.reals`` of the external additions to the scores, by request."""
    return SCORES + view.requests.shape[0]


@jit_inline
def notes_of(view: RuleView, i: int) -> Any:
    """Return the place in ``memory.reals`` of a request's notes: DUE, BASE, GAP and OUTPUT."""
    return SCORES + 2 * view.requests.shape[0] + NOTES * i


@jit_inline
def listed_scores_at(view: RuleView) -> Any:
    """Return the place in ``memory.reals`` of the scores of the listed requests, in order."""
    return SCORES + 6 * view.requests.shape[0]


@jit_inline
def listed_dues_at(view: RuleView) -> Any:
    """Return the place in ``memory.reals`` of when the next tokens of the listed requests are due, in order."""
    return listed_scores_at(view) + view.active.shape[0]


@jit_inline
def prompt_scores_at(view: RuleView) -> Any:
    """Return the place in ``memory.reals`` of the scores of active requests with prompt left, in order."""
    return listed_dues_at(view) + view.active.shape[0]


@jit_inline
def front_of(view: RuleView, queue: int) -> Any:
    """Return the place in ``memory.state`` of the front of a queue."""
    return queue + 1 + view.requests.shape[0]


@jit_inline
def pressing_at(view: RuleView) -> Any:
    """Return the place in ``memory.state`` of the queue of waiting requests that time presses."""
    return STANDING + 3 + 2 * view.requests.shape[0]


@jit_inline
def list_at(view: RuleView) -> Any:
    """Return the place in ``memory.state`` of the length of the list of active requests; ids of requests follow."""
    return pressing_at(view) + 3 + 2 * view.requests.shape[0]


@jit_inline
def prompts_at(view: RuleView) -> Any:
    """Return the place in ``memory.state`` of the length of the list of requests with prompt left; ids follow."""
    return list_at(view) + 1 + view.active.shape[0]


@jit_inline
def items_at(view: RuleView) -> Any:
    """Return the place in ``memory.state`` of the items of the batch."""
    return prompts_at(view) + 1 + view.active.shape[0]


@jit_inline
def slots_at(view: RuleView) -> Any:
    """Return the place in ``memory.state`` of the slots of the listed requests, by id."""
    return items_at(view) + view.active.shape[0]
