"""``ranked``: one ranking of all requests, active and waiting; the batch is the prefix with the best worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines.ranked.active import certain_memory, forget_active, ranks_now
from kvgym.baselines.ranked.batching import carry_out, rank
from kvgym.baselines.ranked.layout import (
    ADDITIONS,
    BASE,
    BETWEEN,
    DEADLINES,
    DUE,
    FIRST_DUE,
    FIRST_RATIO,
    GAP,
    NOTES,
    OUTPUT,
    PRESSED,
    RATIO_BINS,
    RATIO_EDGES,
    RATIOS_PER_OCTAVE,
    RENEWED,
    RENEWING,
    SCORES,
    STANDING,
    TOKEN_BINS,
    TOKEN_EDGES,
    TOKENS_PER_OCTAVE,
    UNSEEN,
    notes_of,
)
from kvgym.baselines.ranked.lengths import (
    count_waiting,
    learn,
    notice_arrival,
    notice_finished,
    uncount_waiting,
)
from kvgym.baselines.ranked.scoring import (
    added_until,
    lesson_of,
    observe_moment,
    press,
    rate_request,
    rate_slot,
    rebase_slot,
)
from kvgym.baselines.ranked.waiting import (
    ALL,
    DEADLINE,
    add_waiting,
    all_current,
    forget_waiting,
    may_outdate,
    outdate,
    rate_queue,
    renew_slice,
)
from kvgym.baselines.ranked.weights import RankedWeights
from kvgym.compiling.kernel import uncompiled
from kvgym.kernels import (
    WAITING,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    jit_inline,
    left_request,
    policy_kernel,
    policy_memory,
)
from kvgym.policies.policy import PolicyInfo, SystemInfo, register_policy

OFTEN, SELDOM = 4, 16
"""Batches between updates of the scores of active requests: of those early in their output, and of all."""

EARLY = 32
"""A request with fewer output tokens than this is early in its output."""

QUEUE_SHARE = 8
"""Average number of waiting requests per decision for which deadlines are updated."""


@jit_inline
def renew(view: PolicyView, memory: PolicyMemory, rescore: bool) -> None:
    """Update scores between :func:`rate_all` and the decision, after something that they depend on has changed.

    This boundary then ranks all requests, so that the change takes effect at once.

    Args:
        view: what the policy observes.
        memory: the policy's memory.
        rescore: whether to score all requests again; else only those without a score (NaN).
    """
    for k in range(view.worker.num_active):
        if rescore or math.isnan(memory.reals[SCORES + view.active[k].request_id]):
            rate_slot(view, memory, k)
            memory.state[RENEWED] = 1
    if memory.state[BETWEEN] == 1:
        memory.state[BETWEEN] = 0
        rate_active(view, memory, False)
    rate_queue(view, memory, rescore)


@jit_inline
def rate_new(view: PolicyView, memory: PolicyMemory) -> None:
    """Score the requests that the last decision admitted: they are in the last slots, and their scores are NaN."""
    k = view.worker.num_active - 1
    while k >= 0 and math.isnan(memory.reals[SCORES + view.active[k].request_id]):
        rate_slot(view, memory, k)
        k -= 1


@jit_inline
def rate_active(view: PolicyView, memory: PolicyMemory, rescore: bool) -> None:
    """Update the scores of the active requests, and store the earliest due time of their next tokens.

    Most decodes had their last token at the same time, and few distinct objectives exist. So the parts of the last
    two deadlines are kept for the next request.
    """
    w, reals, timed = view.worker, memory.reals, memory.state[DEADLINES] == 1
    often, seldom = w.iteration % OFTEN == 0, w.iteration % SELDOM == 0
    if not (rescore or often or timed):
        return
    asked = other_asked = math.nan
    added = due = other_added = other_due = 0.0
    soonest = math.inf
    for k in range(w.num_active):
        slot = view.active[k]
        i, left = slot.request_id, slot.num_prefill_left
        notes = notes_of(view, i)
        if rescore or (often and (seldom or left > 0 or slot.num_output_tokens < EARLY)):
            rebase_slot(view, memory, k)
            reals[SCORES + i] = reals[notes + BASE]
        if not timed:
            continue
        gap = reals[notes + GAP]
        if left > 0 or math.isnan(gap):
            press(view, memory, slot, i)
            soonest = min(soonest, reals[notes + DUE])
        elif gap < math.inf:
            wanted = slot.last_token_time + gap if slot.max_token_gap <= gap else -math.inf
            if wanted != asked and wanted != other_asked:
                other_asked, other_added, other_due = asked, added, due
                asked = wanted
                added, due = added_until(view, memory, slot, wanted)
            # Without branches, because the processor could not predict them.
            same = wanted == asked
            gained, until = added if same else other_added, due if same else other_due
            soonest = until if until < soonest else soonest
            reals[SCORES + i], reals[notes + DUE] = reals[notes + BASE] + gained, until
    memory.state[RENEWED] = 1
    reals[FIRST_DUE] = soonest


@jit_inline
def rate_all(view: PolicyView, memory: PolicyMemory) -> None:
    """Update the scores of new requests, and of active ones every 4 or 16 batches.

    After lengths have been learned, all scores are updated, those of waiting requests in slices. Deadlines change
    scores over time: their part is updated at every ranking for active requests, and for 8 waiting requests per
    decision on average. With very many active requests, only some boundaries rank all of them, see
    :func:`~.active.ranks_now`, unless memory is short.
    """
    state, w = memory.state, view.worker
    observe_moment(view, memory)
    fresh = notice_finished(view, memory) and may_outdate(view, memory)
    if fresh:
        learn(view, memory, all_current(view, memory))
    if w.num_left > 0:
        for j in range(w.num_left):
            uncount_waiting(view, memory, left_request(view, j))
        forget_waiting(view, memory)
        forget_active(view, memory)
    for j in range(w.num_queued):
        i = view.queued[j]
        rate_request(view, memory, i)
        notice_arrival(memory, view.requests[i], memory.reals[notes_of(view, i) + OUTPUT])
        count_waiting(view, memory, i)
        add_waiting(view, memory, i)
    state[UNSEEN] += 1
    if fresh:
        outdate(view, memory, ALL)
    elif state[DEADLINES] == 1 and state[RENEWING] == 0 and state[UNSEEN] > state[PRESSED] // QUEUE_SHARE:
        outdate(view, memory, DEADLINE)
    renew_slice(view, memory, fresh)
    rate_new(view, memory)
    state[BETWEEN] = 0
    if fresh or ranks_now(view) or certain_memory(view) > view.problem.kv_capacity:
        rate_active(view, memory, fresh)
    else:
        state[BETWEEN] = 1


@jit_inline
def rank_all(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Rate, rank, and run the best prefix."""
    rate_all(view, memory)
    rank(view, decision, memory)
    carry_out(view, decision, memory)


@policy_kernel
def ranked_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Rate, rank, and run the best prefix."""
    rank_all(view, decision, memory)


@register_policy
class Ranked(RankedWeights):
    """One ranking of all requests, active and waiting; the batch is the prefix with the best worth.

    A baseline of this project. It combines Gittins indices with ideas from the papers: order by remaining time and
    memory (MC-SF and its relatives order by length), a share of memory kept free (MC-Benchmark), learning from
    completions if lengths are unknown (A_min), pauses that keep the KV (WAIT), prompt chunks along with decodes
    (Sarathi-Serve), and token deadlines (SLAI). Derivation and ablation: docs/ranked.md.

    It uses predicted lengths, intervals, classes and objectives if requests carry them, and nothing else. It learns
    hazards from completions, see :mod:`kvgym.baselines.ranked.lengths`. Scores of active requests are updated every
    few batches, see :func:`rate_all`. From 128 active requests on, only some boundaries rank all of them, so that the
    time of a decision does not grow with their number.
    """

    info = PolicyInfo(
        name="ranked",
        summary="one ranking by Gittins costs learned online; runs the prefix with the best worth per time",
        paper="kvgym, after Gittins, Glazebrook, Weber, Multi-armed Bandit Allocation Indices",
        algorithm="docs/ranked.md",
        uses=frozenset({"predicted_length", "length_interval", "class", "slo"}),
        chunks_prefill=True,
        pauses=True,
        evicts=True,
        loads=True,
    )
    kernel = ranked_kernel
    additions = ADDITIONS
    NETWORK: ClassVar[str] = "network"

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the weights and an empty memory: edges of the bins, and space for counts, scores and heaps."""
        return empty_memory(self.params(system), system.max_requests)

    def lesson(
        self, view: PolicyView, row: Any, request_id: int, length: int
    ) -> tuple[Sequence[float], float]:
        """Return the network's input for a request now, and its target: what it should add to the score.

        The target is the score with the true output in place of the estimate, minus the score itself; see
        :class:`kvgym.agents.evolution.imitation.Student`.

        Args:
            view: what the policy observes, for uncompiled code.
            row: the slot of an active request, or the row of a waiting one.
            request_id: id of the request.
            length: its total output, tokens.
        """
        waiting = bool(view.requests[request_id].status == WAITING)
        found: tuple[Sequence[float], float] = uncompiled(lesson_of)(
            view, self.arguments(), row, request_id, length, waiting
        )
        return found


def empty_memory(params: NDArray[np.float64], max_requests: int) -> PolicyMemory:
    """Return the memory of a policy that has seen no request.

    Args:
        params: weights and network, float64 (k,).
        max_requests: n, maximum number of requests in the run.
    """
    # An upper bound: in a cluster all workers have as many places as the one with the most memory.
    places = max(1, max_requests)
    reals = np.zeros(SCORES + 6 * max_requests + 3 * places)
    reals[FIRST_DUE] = np.inf
    notes = SCORES + 2 * max_requests
    reals[notes + DUE : notes + NOTES * max_requests : NOTES] = np.inf
    for at, bins, first, per_octave in (
        (TOKEN_EDGES, TOKEN_BINS, 1.0, TOKENS_PER_OCTAVE),
        (RATIO_EDGES, RATIO_BINS, FIRST_RATIO, RATIOS_PER_OCTAVE),
    ):
        reals[at + 1 : at + bins + 1] = first * 2.0 ** (np.arange(1, bins + 1) / per_octave)
    state = np.zeros(STANDING + 12 + 8 * max_requests + 3 * places, np.int64)
    return policy_memory(params, state=state, reals=reals)
