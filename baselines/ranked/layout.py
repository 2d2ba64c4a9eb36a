"""Memory layout of ``ranked``: indices into the arrays of its memory, and the order of its parameters."""

from __future__ import annotations

from typing import Any

from kvgym.kernels import PolicyView, jit_inline

TOKENS_PER_OCTAVE, TOKEN_BINS = 8, 136
"""Bins of output lengths: logarithmic, from 1 to 2^17 tokens; the first begins at 0."""

RATIOS_PER_OCTAVE, RATIO_BINS = 12, 96
"""Bins of the ratio of an output length to its prediction: from 2^-4 to 2^4; the first begins at 0."""

FIRST_RATIO = 2.0**-4
"""The second bin of ratios begins at 2^(1/12) times this."""

GROUPS = 9
"""Number of groups: all requests, and one for each of the classes 0 to 7 (higher ones count as class 7)."""

# Real numbers: edges of the bins, the Gittins cost at each edge for each group, then hazards.
TOKEN_EDGES = 0
RATIO_EDGES = TOKEN_EDGES + TOKEN_BINS + 1
TOKEN_COSTS = RATIO_EDGES + RATIO_BINS + 1
RATIO_COSTS = TOKEN_COSTS + GROUPS * (TOKEN_BINS + 1)
HAZARDS = RATIO_COSTS + GROUPS * (RATIO_BINS + 1)
GROUP_HAZARDS = HAZARDS + max(TOKEN_BINS, RATIO_BINS)
STEPS = GROUP_HAZARDS + max(TOKEN_BINS, RATIO_BINS)  # scratch space for costs: three numbers for each bin
# The moment: what scores need besides the request itself; sums over arrivals.
PRESSURE = STEPS + 3 * max(TOKEN_BINS, RATIO_BINS)
BUSY = PRESSURE + 1  # 1 - duration of the smallest batch / duration of the last one
SHORTEST = BUSY + 1  # duration of the smallest batch, s
LAST = SHORTEST + 1  # duration of the last batch, s
SUM_LOG_OUTPUT = LAST + 1  # sum over all arrivals of the log of the output expected on arrival
PROMPT_TIME = SUM_LOG_OUTPUT + 1  # time that a prompt token adds to the shortest batch, s
FIRST_DUE = PROMPT_TIME + 1  # earliest due time of the active requests' next tokens, s
DECODE_WORTH = FIRST_DUE + 1  # mean worth of a decode at the last ranking
COST_BEFORE = DECODE_WORTH + 1  # costs before the last update, of one group and kind
LEAST_CHANGE = (
    COST_BEFORE + max(TOKEN_BINS, RATIO_BINS) + 1
)  # smallest ratio of a cost to the one before, at most 1
MOST_CHANGE = LEAST_CHANGE + 1  # largest ratio, at least 1
SCORES = MOST_CHANGE + 1
# By request: scores and external additions to them, n numbers each; then four notes for each request, side by side
# because they are needed together. Then, A numbers each: scores of the list of active requests; their next due times,
# replaced after a ranking by the gaps allowed between tokens; scores of the list of prompts, also used to merge
# lists.

DUE, BASE, GAP, OUTPUT, NOTES = range(5)
"""Notes about a request: when its next token is due (inf: no deadline, or it cannot be met); the score without the
deadline's part; the longest gap allowed between tokens (-inf: an objective has been missed, NaN: no token existed
when this was computed); and the remaining output."""

# Whole numbers: finished requests; when to learn next; arrived requests; whether any of them has a deadline;
# decisions since the queue's deadlines were computed, and how many pressed then; whether lengths are known; what the
# queue of requests that press renews (see kvgym.baselines.ranked.waiting), and how many outdated scores this decision
# may still renew out of turn. Of the
# list of active requests: the one in the last slot, whether due times are stored, the number of gaps, and whether
# scores have been renewed since the last sort. Whether the front of a queue is out of order; whether this boundary is
# between rankings. Of the batch: listed requests in it, entering requests, items, items that run, and tokens of the
# last one.
(
    SEEN,
    NEXT,
    ARRIVED,
    DEADLINES,
    UNSEEN,
    PRESSED,
    CERTAIN,
    RENEWING,
    ALLOWANCE,
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
) = range(20)
# Counts by group and bin.
TOKEN_COUNTS = LAST_SHARE + 1
RATIO_COUNTS = TOKEN_COUNTS + GROUPS * TOKEN_BINS
TOKEN_CENSORED = RATIO_COUNTS + GROUPS * RATIO_BINS
RATIO_CENSORED = TOKEN_CENSORED + GROUPS * TOKEN_BINS
STANDING = RATIO_CENSORED + GROUPS * RATIO_BINS
# After the queue of waiting requests that do not press (3 n + 5): the queue of those that do (3 n + 5), the sorted
# list of active requests (1 + A), the list of those with prompt left (1 + A), items of the batch (A), slots by
# request (n), and by request the output tokens with which it is counted as censored while it waits (n; 0: it is not).
#
# A queue: two heaps (1 + n each), the front (1 + n), how many of the front have been passed, and which heap is current.


ADDITIONS = SCORES, 1
"""Where external additions to the scores begin, see :class:`kvgym.policies.policy.CompiledPolicy`."""


@jit_inline
def outside_at(view: PolicyView) -> Any:
    """Return the index in ``memory.reals`` of the external additions to the scores, by request."""
    return SCORES + view.requests.shape[0]


@jit_inline
def notes_of(view: PolicyView, i: int) -> Any:
    """Return the index in ``memory.reals`` of a request's notes: DUE, BASE, GAP and OUTPUT."""
    return SCORES + 2 * view.requests.shape[0] + NOTES * i


@jit_inline
def listed_scores_at(view: PolicyView) -> Any:
    """Return the index in ``memory.reals`` of the scores of the listed requests, in order."""
    return SCORES + 6 * view.requests.shape[0]


@jit_inline
def listed_dues_at(view: PolicyView) -> Any:
    """Return the index in ``memory.reals`` of the due times of the listed requests' next tokens, in order."""
    return listed_scores_at(view) + view.active.shape[0]


@jit_inline
def prompt_scores_at(view: PolicyView) -> Any:
    """Return the index in ``memory.reals`` of the scores of active requests with prompt left, in order."""
    return listed_dues_at(view) + view.active.shape[0]


@jit_inline
def front_of(view: PolicyView, queue: int) -> Any:
    """Return the index in ``memory.state`` of the front of a queue."""
    return queue + 2 * (1 + view.requests.shape[0])


@jit_inline
def passed_at(view: PolicyView, queue: int) -> Any:
    """Return the index in ``memory.state`` of the number of passed requests of the front; the current heap follows."""
    return queue + 3 * (1 + view.requests.shape[0])


@jit_inline
def pressing_at(view: PolicyView) -> Any:
    """Return the index in ``memory.state`` of the queue of waiting requests that press."""
    return passed_at(view, STANDING) + 2


@jit_inline
def list_at(view: PolicyView) -> Any:
    """Return the index in ``memory.state`` of the length of the list of active requests; their ids follow."""
    return passed_at(view, pressing_at(view)) + 2


@jit_inline
def prompts_at(view: PolicyView) -> Any:
    """Return the index in ``memory.state`` of the length of the list of requests with prompt left; ids follow."""
    return list_at(view) + 1 + view.active.shape[0]


@jit_inline
def items_at(view: PolicyView) -> Any:
    """Return the index in ``memory.state`` of the items of the batch."""
    return prompts_at(view) + 1 + view.active.shape[0]


@jit_inline
def slots_at(view: PolicyView) -> Any:
    """Return the index in ``memory.state`` of the slots of the listed requests, by id."""
    return items_at(view) + view.active.shape[0]


@jit_inline
def censored_at(view: PolicyView) -> Any:
    """Return the index in ``memory.state`` of the output tokens with which waiting requests are counted, by id."""
    return slots_at(view) + view.requests.shape[0]
