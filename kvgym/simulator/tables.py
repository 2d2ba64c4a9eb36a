"""The structured arrays that hold all state of the simulator, and the codes stored in them.

Everything the compiled functions touch is one of these records or a plain array, so that the same code
runs compiled (records) and uncompiled (``numpy.record`` views). Units: times in seconds, lengths and
memory in tokens. Each dtype is built once: Numba is slow at recognising an equal but distinct dtype.

Memory is handed out in blocks of PROBLEM.block_size tokens. The memory of a request is
its *allocated* tokens, those of whole blocks; with a block size of 1 these are its tokens.

Names avoid attributes that ``numpy.record`` already has (``base``, ``size``, ``shape``, ...).
"""

from __future__ import annotations

import numpy as np

from kvgym.workloads.layout import UNKNOWN as UNKNOWN
from kvgym.workloads.layout import WORKLOAD as WORKLOAD

# Life cycle of a request (REQUEST.status).
FUTURE, WAITING, ACTIVE, FINISHED = 0, 1, 2, 3
# Marks during the check of a decision, to find duplicates; no policy sees them.
EVICTING, ADMITTING = 4, 5
# On its way from one worker to another.
TRANSFERRING = 6
# Without a worker, to be routed again; and how a request ends that does not finish: its user has given up, its worker
# has failed, or the router has refused it.
OUTSIDE, ABORTED, FAILED, SHED = 7, 8, 9, 10

# What an evicted request keeps (PROBLEM.progress_on_evict).
PROGRESS_LOST, PROGRESS_RECOMPUTE, PROGRESS_KEPT = 0, 1, 2

# Where an evicted request re-enters the waiting queue (PROBLEM.requeue).
REQUEUE_ARRIVAL, REQUEUE_FRONT, REQUEUE_BACK = 0, 1, 2

# What a worker is for (WORKER.role): whole requests, prefills only, or decodes of requests prefilled elsewhere.
ROLE_MIXED, ROLE_PREFILL, ROLE_DECODE = 0, 1, 2

# What a worker is doing (WORKER.phase): free to decide, running a batch until WORKER.until, or waiting.
READY, BUSY, SLEEPING = 0, 1, 2

# What a worker does after a decision (DECISION.act).
RUN, WAIT = 0, 1

# Outcome of an engine step. Those from BAD_EVICT on mean that the decision was refused and nothing changed.
OK, DECIDE, DONE, HORIZON, LOG_FULL, STALLED, DEADLOCK, BUDGET, ROUTE, REASSIGN = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
BAD_EVICT, BAD_ADMIT, BAD_TOKENS, NO_MEMORY, TOO_MANY, BAD_WAIT, BAD_DURATION = 10, 11, 12, 13, 14, 15, 16
BAD_ROUTE, BAD_MOVE, ENDLESS_MOVES, BAD_CLOCK = 17, 18, 19, 20
# Of a fleet: a place may change its state, the autoscaler is due, or users may give up; and the router has refused a
# request.
CHANGE, CONTROL, LEAVE, REFUSED = -1, -2, -3, -4

# Whether a place of a fleet takes requests.
CLOSED, OPEN, DRAINING = 0, 1, 2

REQUEST = np.dtype(
    [
        # Revealed on arrival, as far as the policy's declared needs allow.
        ("arrival_time", "f8"),
        ("ttft_slo", "f8"),
        ("tbt_slo", "f8"),
        ("prompt_len", "i4"),
        ("output_len", "i4"),  # UNKNOWN unless the policy declares true_length
        ("predicted_len", "i4"),
        ("predicted_low", "i4"),
        ("predicted_high", "i4"),
        ("class_id", "i4"),
        ("priority", "i4"),
        # State.
        ("status", "i4"),
        ("worker", "i4"),
        ("queue_next", "i4"),
        ("queue_prev", "i4"),
        ("num_output_tokens", "i4"),  # progress kept over an eviction, or final
        ("num_delivered_tokens", "i4"),  # most output tokens ever generated; repeats are not delivered again
        ("num_kv_best", "i4"),  # most KV tokens it ever held; beyond that is progress
        ("num_kv_tokens", "i4"),  # KV swapped out under PROGRESS_KEPT, to be restored on admission
        ("num_prefill_left", "i4"),  # prompt tokens (and output tokens to recompute) not yet in KV
        ("num_admissions", "i4"),
        ("num_evictions", "i4"),
        ("num_recomputed_tokens", "i8"),  # KV tokens lost by evictions
        ("admit_iteration", "i8"),  # worker iteration of the latest admission
        # Record; NaN until it happens.
        ("start_time", "f8"),  # first admission
        ("first_token_time", "f8"),
        ("last_token_time", "f8"),
        ("finish_time", "f8"),
        ("max_token_gap", "f8"),
        ("ready_time", "f8"),  # when its KV reaches the worker it goes to; NaN again once evicted
    ],
    align=True,
)
"""One row per request: what a policy may observe, its state, and its record."""

SLOT = np.dtype(
    [
        ("request_id", "i4"),
        ("prompt_len", "i4"),
        ("predicted_len", "i4"),
        ("class_id", "i4"),
        ("num_kv_tokens", "i4"),  # between iterations
        ("num_output_tokens", "i4"),
        ("num_delivered_tokens", "i4"),  # as of admission
        ("num_prefill_left", "i4"),  # 0 = decoding
        ("num_kv_best", "i4"),  # as of admission
        ("planned", "i4"),  # tokens of the next iteration, read where DECISION.explicit is 1
        ("admit_iteration", "i8"),
        ("last_token_time", "f8"),
        ("max_token_gap", "f8"),
    ],
    align=True,
)
"""The active set of a worker, in order of activation."""

WORKER = np.dtype(
    [
        ("index", "i8"),  # place in the cluster, from 0
        ("role", "i8"),  # ROLE_MIXED, ROLE_PREFILL or ROLE_DECODE
        ("clock", "f8"),
        ("last_batch_end", "f8"),
        ("iteration", "i8"),  # batches executed, stalled ones included
        ("kv_tokens", "i8"),  # between iterations
        ("kv_allocated", "i8"),  # memory in use: tokens of the blocks that hold them
        ("kv_shared", "i8"),  # by how much the memory of the requests, each counted alone, exceeds that
        ("kv_cached", "i8"),  # memory in the prefix cache that is not in use, tokens; free for all purposes
        ("num_full", "i8"),  # active requests that need a new block for their next token
        ("num_active", "i8"),
        ("num_prefilling", "i8"),
        ("num_waiting", "i8"),
        ("queue_head", "i8"),
        ("queue_tail", "i8"),
        ("num_queued", "i8"),  # entries of the `queued` event list
        ("num_left", "i8"),  # entries at the end of that list: requests that the router moved away
        ("num_finished", "i8"),  # entries of the `finished` event list
        ("phase", "i8"),  # READY, BUSY or SLEEPING
        ("until", "f8"),  # when the batch ends, or the wait at the latest
        ("at_boundary", "i8"),  # 1: a batch or a wait has ended, and the router has not handled it yet
        ("batch_duration", "f8"),  # seconds
        ("batch_kv", "i8"),  # memory in use when the batch began, allocated tokens
        ("batch_hits", "i8"),  # tokens that the requests started with it found in the prefix cache
        ("batch_cached", "i8"),  # memory in the prefix cache that is not in use while it runs, tokens
        ("batch_active", "i8"),  # active requests when the batch began
        ("batch_waiting", "i8"),  # waiting requests when the batch began
        ("swap_tokens", "i8"),  # KV tokens to be moved to or from CPU memory with the next batch
        ("outstanding_requests", "i8"),  # assigned and not finished
        ("outstanding_tokens", "i8"),  # their prompt and, where predictions are revealed, output tokens
        ("decisions", "i8"),
        ("last_progress", "i8"),  # value of `decisions` at the last new token, prefill or arrival
        ("evicted_before", "i8"),  # `total_evicted` when the present stretch without progress began
        ("effort_before", "i8"),  # and the effort spent by then, see `boundary.effort`
        # Totals over the run.
        ("total_routed", "i8"),  # requests that joined, by arrival or by transfer
        ("total_received", "i8"),  # those of them that the router moved here from another worker
        ("total_admitted", "i8"),
        ("total_evicted", "i8"),
        ("total_put_back", "i8"),
        ("total_overflows", "i8"),  # decisions that evicted or put back
        ("total_idle", "i8"),  # batches with no active request
        ("total_queue_steps", "i8"),  # steps of returning requests through a sorted queue
        ("total_finished", "i8"),
        ("total_output_tokens", "i8"),  # as generated, repeats included
        ("total_delivered_tokens", "i8"),  # generated for the first time
        ("total_recomputed_tokens", "i8"),  # KV tokens lost by evictions
        ("total_prefill_tokens", "i8"),  # as processed, repeats included
        ("total_swapped_tokens", "i8"),  # KV tokens moved to or from CPU memory
        ("total_batch_requests", "i8"),  # sum over iterations of requests in the batch
        # With a prefix cache: tokens that requests had to process when they first started, those of them that were
        # found, the same for starts after an eviction, and units dropped from the cache.
        ("total_known_tokens", "i8"),
        ("total_hit_tokens", "i8"),
        ("total_known_resumed", "i8"),
        ("total_hit_resumed", "i8"),
        ("total_dropped_units", "i8"),
        # With speculation: decodes of requests, drafts that they verified, and right ones among these.
        ("total_decodes", "i8"),
        ("total_drafted", "i8"),
        ("total_accepted", "i8"),
        ("peak_kv_tokens", "i8"),  # most memory in use, allocated tokens
        ("busy_time", "f8"),
        ("kv_time", "f8"),  # integral of memory in use, allocated tokens, over time
        ("cached_time", "f8"),  # integral of cached memory that is not in use, tokens, over time
        ("active_time", "f8"),  # integral of active requests over time
    ],
    align=True,
)
"""Scalars of a worker."""

DECISION = np.dtype(
    [
        ("act", "i8"),  # RUN or WAIT
        ("explicit", "i8"),  # 0: all active run in full; 1: per-slot and per-admission token counts
        ("num_admit", "i8"),
        ("num_evict", "i8"),
        ("num_put_back", "i8"),  # selected before the memory check that then did not fit
        ("wait_until", "f8"),  # with WAIT: latest time of the next decision (inf = next arrival)
        ("ahead", "i8"),  # 1: made while the last batch ran, see :mod:`kvgym.simulator.ahead`
        ("front", "i8"),  # the engine's own: slot before which every active request decodes one token
    ],
    align=True,
)
"""Decision of a policy; its lists are separate arrays."""

RETURN_KINDS, GAP_CLASSES = 2, 16
"""Kinds of gaps between turns, and classes of their lengths, see :mod:`kvgym.simulator.prefix.returns`."""

POOL = np.dtype(
    [
        ("num_cached", "i8"),  # units without a holder
        ("head", "i4"),  # first of those without a pin: the next to be dropped
        ("tail", "i4"),
        ("spare", "i4"),  # first unused row among the used ones
        ("num_rows", "i4"),  # rows that have been used
        ("stamp", "i8"),  # of the decision being made or checked
        ("plan_next", "i4"),  # under that decision: the next cached unit to be dropped
        ("plan_cached", "i8"),  # and the number of cached units
        ("next_full", "i8"),  # worker iteration before which no decoding request fills a unit
        ("first_pin", "i4"),  # finished requests with pins, by deadline
        ("last_pin", "i4"),
        ("num_pins", "i8"),
        ("ahead", "i8"),  # 1: the last decision was made ahead, so units may still be to enter
        ("turn_counts", "i8", (RETURN_KINDS,)),  # turns that have finished
        ("gap_counts", "i8", (RETURN_KINDS,)),  # gaps after them that have ended
        ("gap_totals", "f8", (RETURN_KINDS,)),  # s, their sum
        ("gaps", "i8", (RETURN_KINDS * GAP_CLASSES,)),  # gaps by class
    ],
    align=True,
)
"""Scalars of a worker's prefix cache, see :mod:`kvgym.simulator.prefix.cache`."""

UNIT = np.dtype(
    [
        ("content", "i4"),
        ("holders", "i4"),  # active requests that hold it
        ("before", "i4"),  # neighbours in the list of cached units; ``after`` also links unused rows
        ("after", "i4"),
        ("copy_before", "i4"),  # ring of the units with the same content, in order of entry
        ("copy_after", "i4"),
        ("planned", "i4"),  # change of holders by the decision of ``stamp``
        ("pins", "i4"),  # finished requests with a pin that has it
        ("pin", "i4"),  # one of them that ends with it, UNKNOWN if there is none
        ("ends", "i4"),  # 1: the last of its node; only kept in a tree, see `prefix.tree`
        ("stamp", "i8"),
    ],
    align=True,
)
"""A unit of KV memory with a content that later requests can find."""

CONTENT = np.dtype([("unit", "i4"), ("waiting", "i4", (2,)), ("stamp", "i4")], align=True)
"""First unit with a content, the first waiting request with a hit that ends there (ENDS) and the first that lacks it
next (LACKS), UNKNOWN if there is none; and the last stamp of a decision that enters the content into the map.
"""

ENDS, LACKS = 0, 1

PREFIX = np.dtype(
    [
        ("chain", "i8"),  # place of its chain in the table of chains
        ("held", "i8"),  # place of its units in the table of held units
        ("length", "i4"),  # of its chain
        ("most", "i4"),  # most units that it may find while it waits
        ("num_units", "i4"),  # found while it waits; held, and open to others, while it is active
        ("left", "i4"),  # units that it gave up last, and pinned if it is
        ("kept", "i4"),  # units that it holds while it waits, see `tiers.loading`
        ("to_prefill", "i4"),  # tokens that were left to prefill when it started last
        ("known", "i4"),  # its tokens then: KV that it had or found, and those
        # Of one that loads: its place among all loads. Of a finished one, under a decision made ahead: among those
        # preempted.
        ("place", "i4"),
        # Neighbours in the lists of CONTENT.waiting; the first also in the list of pins.
        ("before", "i4", (2,)),
        ("after", "i4", (2,)),
        ("deadline", "f8"),  # s, when its pin ends; 0: it has none
    ],
    align=True,
)
"""What the prefix cache knows of a request."""

LOAD = np.dtype(
    [
        ("num_prefills", "i8"),  # requests with a prefill chunk
        ("prefill_tokens", "i8"),  # sum of chunks c
        ("prefill_context", "i8"),  # sum of tokens k cached before the chunk
        ("prefill_squares", "i8"),  # sum of c * c
        ("prefill_products", "i8"),  # sum of c * k
        ("num_decodes", "i8"),  # requests that decode
        ("decode_context", "i8"),  # sum of tokens cached before the decode
        ("draft_tokens", "i8"),  # sum of drafts that decodes verify besides their own token
    ],
    align=True,
)
"""Load of a batch, the input of batch-time models: exact sums over its requests."""

PROBLEM = np.dtype(
    [
        ("kv_capacity", "i8"),  # of whole blocks
        ("block_size", "i8"),  # tokens
        ("prefix_unit", "i8"),  # tokens of a unit of the prefix cache, whole blocks; 0: no prefix cache
        ("prefix_in_order", "i8"),  # 1: units enter it when they are scheduled; 0: when they are computed
        ("prefix_tree", "i8"),  # 1: the prefix cache is a tree, see `prefix.tree`
        ("cache_rule", "i8"),  # code of the rule, see `prefix.rules`
        ("rule_params", "f8", (4,)),  # and its options
        ("drafts", "i8"),  # most drafts of a request in a batch; 0: no speculation
        ("lookahead", "i8"),  # tokens of memory reserved beyond those of a batch
        ("num_requests", "i8"),
        ("prefill_emits", "i8"),  # 1: the last prefill chunk emits output token 1
        ("prefill_writes", "i8"),  # 1: and writes its KV
        ("ttft_at_prefill", "i8"),  # 1: the first token appears at the end of the last prefill chunk
        ("hands_over", "i8"),  # 1: requests leave this worker when their prefill has ended
        ("progress_on_evict", "i8"),
        ("requeue", "i8"),
        ("stall_limit", "i8"),  # decisions without a new token after which a run is a livelock
        ("effort_limit", "i8"),  # the same for effort, if no request is still to come
        ("effort_weight", "i8"),  # effort of an eviction
        ("idle_weight", "i8"),  # effort of a batch with no active request
        ("keep_log", "i8"),
        ("horizon", "f8"),  # seconds; inf = until all have finished
        ("api_time", "f8"),  # seconds from an arrival until the engine has the request
        ("swap_time", "f8"),  # seconds per KV token moved to or from CPU memory
        ("transfer_latency", "f8"),  # seconds per transfer between workers
        ("transfer_time", "f8"),  # seconds per KV token transferred between workers
        ("cache_staleness", "f8"),  # seconds until a router observes a change of a prefix cache
        # In a cluster: approximate duration of the worker's batches, see `batch_time.rough_figures`; else 0.
        ("batch_base", "f8"),  # seconds per batch
        ("batch_decode", "f8"),  # and per decoding request
        ("batch_context", "f8"),  # and per token in memory
        ("batch_prefill", "f8"),  # and per prompt token
        # What is revealed to the policy on arrival.
        ("reveal_output", "i8"),
        ("reveal_predicted", "i8"),
        ("reveal_interval", "i8"),
        ("reveal_class", "i8"),
        ("reveal_slo", "i8"),
        ("renew_every", "i8"),  # output tokens after which predictions are renewed; 0 = they are not
    ],
    align=True,
)
"""Settings of a run that the compiled functions read."""

REVEALED = {
    "reveal_output": "true_length",
    "reveal_predicted": "predicted_length",
    "reveal_interval": "length_interval",
    "reveal_class": "class",
    "reveal_slo": "slo",
}
"""Fields of PROBLEM that say what policies observe, and the need that asks for it."""

TRACKER = np.dtype(
    [
        ("next_arrival", "i8"),
        ("num_log", "i8"),
        ("used", "i8"),  # decisions used of a budget
        # A cluster's clock, and the decision it waits for: of this worker, or a worker for this request.
        ("clock", "f8"),
        ("worker", "i8"),
        ("request", "i8"),
        ("route", "i8"),  # the answer
        ("num_prefill_workers", "i8"),
        ("reassigns", "i8"),  # 1: the router may move requests at boundaries
        ("sheds", "i8"),  # 1: the router may refuse requests
        ("asking", "i8"),  # no worker before this one is at a boundary that the router must handle
        ("num_asked", "i8"),  # moves at this boundary so far
        ("num_moves", "i8"),
        ("handoff_head", "i8"),  # prefilled requests that have no decode worker yet, in order
        ("handoff_tail", "i8"),
        ("transfer_head", "i8"),  # requests on their way, by ready_time
        ("transfer_tail", "i8"),
        # Set when a decision is refused.
        ("error_request", "i8"),
        ("error_needed", "i8"),
        ("error_available", "i8"),
    ],
    align=True,
)
"""Scalars shared by all workers of a run."""

ITERATION = np.dtype(
    [
        ("start_time", "f8"),
        ("end_time", "f8"),
        ("worker", "i4"),
        ("num_admitted", "i4"),
        ("num_evicted", "i4"),
        ("num_finished", "i4"),
        ("num_active", "i4"),  # after admission, paused included
        ("num_waiting", "i4"),  # after admission
        ("num_prefills", "i4"),
        ("prefill_tokens", "i4"),
        ("num_decodes", "i4"),
        ("num_output_tokens", "i4"),
        ("draft_tokens", "i4"),  # drafts that decodes verified, and those of them that were right
        ("accepted_tokens", "i4"),
        ("kv_tokens", "i8"),  # memory in use while the batch runs, allocated tokens
        ("hit_tokens", "i8"),  # found in the prefix cache by the admitted requests
        ("kv_cached", "i8"),  # memory in the prefix cache that is not in use while the batch runs, tokens
    ],
    align=True,
)
"""One row of the per-iteration log."""

MOVE = np.dtype(
    [
        ("time", "f8"),
        ("ready_time", "f8"),  # when it joins the queue there
        ("request_id", "i4"),
        ("source", "i4"),
        ("target", "i4"),
        ("was_active", "i4"),
        ("num_kv_tokens", "i8"),  # transferred
    ],
    align=True,
)
"""One row per request that a router has moved from one worker to another, in order."""

GAP_MIN_EXPONENT = -40
GAP_OCTAVES = 80
GAP_BINS = 1024 * GAP_OCTAVES
"""Token gaps are counted in bins of relative width 2^-10, from 2^-41 s to 2^39 s."""

GAP_LENGTH = GAP_BINS + GAP_OCTAVES
"""Length of a dense histogram, see :mod:`kvgym.simulator.recording.gaps`."""
