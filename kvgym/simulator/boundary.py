"""The tables of a run, arrivals, and the clock: how a worker reaches its next decision."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvgym.compiling.kernel import generated, jit, jit_expand, jit_inline
from kvgym.compiling.passes import false_for, false_unless
from kvgym.compiling.references import by_address
from kvgym.compiling.tables import FRONT, WHOLE, Table, declared
from kvgym.simulator.drafts.tables import DRAFTS, SPECULATION
from kvgym.simulator.prefix.cache import PrefixCache, start_waiting
from kvgym.simulator.prefix.host_memory import BELOW, DROP, STORED, TIER, TIERED
from kvgym.simulator.prefix.returns import count_return
from kvgym.simulator.prefix.tier_hook import see_arrivals
from kvgym.simulator.queue import queue_insert
from kvgym.simulator.sessions import SESSION, TURN, Sessions, expose_turn, pass_arrival
from kvgym.simulator.tables import (
    CONTENT,
    DECIDE,
    DECISION,
    DONE,
    HORIZON,
    ITERATION,
    LOAD,
    LOG_FULL,
    POOL,
    PREFIX,
    PROBLEM,
    REQUEST,
    SLOT,
    STALLED,
    TRACKER,
    UNIT,
    UNKNOWN,
    WAITING,
    WORKER,
    WORKLOAD,
)
from kvgym.workloads.layout import EXTRA, copies_of


class Run(NamedTuple):
    """The tables of one worker's run: n requests, at most A active slots; r workers add a leading axis.

    A field added here is a table of every simulation, cluster and environment. ``targets`` are the true output lengths
    of the active requests, kept apart from what policies observe; ``queued`` and ``finished`` the requests that joined
    the queue and finished since the last decision. ``pool`` to ``changed`` are the prefix cache, see
    :class:`~kvgym.simulator.prefix.cache.PrefixCache`, ``tier`` to ``tiered`` the memory below it, see
    :mod:`kvgym.simulator.tiers`, ``turns`` to ``children`` sessions, see
    :class:`~kvgym.simulator.sessions.Sessions`, the next three further facts, see
    :func:`~kvgym.workloads.forecasts.extra_tables`, and the last
    ones speculation, see :func:`~kvgym.simulator.drafts.settings.draft_tables`.
    Lengths: ``num_requests`` n, ``slots`` A, ``queued`` 2n, ``gap_bins`` GAP_LENGTH or those of a sparse histogram,
    ``log`` as many iterations as it has room for; tables of a prefix cache, of sessions or of further facts have none
    without these, but for the one record of ``pool``.
    """

    problem: Annotated[Any, Table(PROBLEM, touched=WHOLE)]
    tracker: Annotated[Any, Table(TRACKER, shared=True, touched=WHOLE)]
    w: Annotated[Any, Table(WORKER, touched=WHOLE, name="workers")]
    decision: Annotated[Any, Table(DECISION, touched=WHOLE)]
    load: Annotated[Any, Table(LOAD, touched=WHOLE)]
    workload: Annotated[Any, Table(WORKLOAD, "num_requests", shared=True)]
    requests: Annotated[Any, Table(REQUEST, "num_requests", shared=True)]
    active: Annotated[Any, Table(SLOT, "slots", touched=FRONT)]
    targets: Annotated[Any, Table("i4", "slots", touched=FRONT)]
    queued: Annotated[Any, Table("i4", "queued", touched=FRONT)]
    finished: Annotated[Any, Table("i4", "slots", touched=FRONT)]
    admit: Annotated[Any, Table("i4", "slots", touched=FRONT)]
    admit_tokens: Annotated[Any, Table("i4", "slots", touched=FRONT)]
    evict: Annotated[Any, Table("i4", "slots", touched=FRONT)]
    gap_counts: Annotated[Any, Table("i8", "gap_bins", shared=True)]
    gap_sums: Annotated[Any, Table("f8", "gap_bins", shared=True)]
    log: Annotated[Any, Table(ITERATION, "log", shared=True)]
    pool: Annotated[Any, Table(POOL)]
    units: Annotated[Any, Table(UNIT, "units")]
    contents: Annotated[Any, Table(CONTENT, "contents")]
    chain: Annotated[Any, Table("i4", "chain", shared=True)]
    held: Annotated[Any, Table("i4", "held", shared=True)]
    prefix: Annotated[Any, Table(PREFIX, "prefix", shared=True)]
    changed: Annotated[Any, Table("f8", "changed")]
    tier: Annotated[Any, Table(TIER)]
    lower: Annotated[Any, Table(TIER)]
    below: Annotated[Any, Table(BELOW, "below")]
    stored: Annotated[Any, Table(STORED, "stored")]
    drops: Annotated[Any, Table(DROP, "drops")]
    tiered: Annotated[Any, Table(TIERED, "tiered", shared=True)]
    turns: Annotated[Any, Table(TURN, "turns", shared=True)]
    sessions: Annotated[Any, Table(SESSION, "sessions", shared=True)]
    script: Annotated[Any, Table(WORKLOAD, "script", shared=True)]
    due: Annotated[Any, Table("f8", "due", shared=True)]
    scheduled: Annotated[Any, Table("i4", "scheduled", shared=True)]
    children: Annotated[Any, Table("i4", "children", shared=True)]
    extras: Annotated[Any, Table(EXTRA, "extras", shared=True)]
    hidden_extras: Annotated[Any, Table(EXTRA, "extras", shared=True)]
    renewals: Annotated[Any, Table("i4", "renewals", shared=True)]
    speculation: Annotated[Any, Table(SPECULATION, "speculation")]
    drafts: Annotated[Any, Table(DRAFTS, "speculation", touched=FRONT)]
    depths: Annotated[Any, Table("i4", "speculation", shared=True)]
    odds: Annotated[Any, Table("f8", "speculation", shared=True)]
    rights: Annotated[Any, Table("i1", "speculation", shared=True)]
    first_right: Annotated[Any, Table("i8", "speculation", shared=True)]


RUN_TABLES = declared(Run)
"""The tables of a run by name, in the order of the fields of :class:`Run`."""


def blank_requests(n: int) -> NDArray[Any]:
    """Return the records of requests that have not arrived, dtype REQUEST, shape (n,)."""
    return copies_of(_BLANK, n)


_BLANK = np.zeros(1, REQUEST)
for _name in ("start_time", "first_token_time", "last_token_time", "finish_time", "ready_time"):
    _BLANK[_name] = np.nan
_BLANK["worker"] = UNKNOWN


class PlainRun(Run):
    """The tables of a run without prefix cache, sessions and further facts; code compiled for them leaves these out."""


def _typed(typing: Any, run: Any) -> Any:
    plain = issubclass(run.instance_class, PlainRun)
    return types.boolean(run), lambda context, *_: context.get_constant(types.boolean, plain)


class SpecRun(Run):
    """The tables of a run with speculation; only code compiled for them has it."""


def _spec_typed(typing: Any, run: Any) -> Any:
    spec = issubclass(run.instance_class, SpecRun)
    return types.boolean(run), lambda context, *_: context.get_constant(types.boolean, spec)


has_drafts = generated(_spec_typed, lambda run: isinstance(run, SpecRun))
"""Return whether decodes verify drafts: a constant in compiled code."""
false_unless(SpecRun, has_drafts)

is_plain = generated(_typed, lambda run: isinstance(run, PlainRun))
"""Return whether code for these tables leaves out what plain runs do not have: a constant in compiled code."""


@jit_inline
def has_cache(run: Run) -> bool:
    """Return whether the worker has a prefix cache."""
    return bool(not is_plain(run) and run.problem.prefix_unit > 0)


@jit_inline
def has_tier(run: Run) -> bool:
    """Return whether there is KV memory below the GPU."""
    return bool(not is_plain(run) and run.below.shape[0] > 0)


@jit_inline
def has_sessions(run: Run) -> bool:
    """Return whether the tables of sessions are in use: in the closed loop, or because policies observe them."""
    return bool(not is_plain(run) and run.turns.shape[0] > 0)


@jit_inline
def is_closed(run: Run) -> bool:
    """Return whether later turns of sessions arrive when the turns before them have finished."""
    return bool(not is_plain(run) and run.script.shape[0] > 0)


@jit_inline
def has_extras(run: Run) -> bool:
    """Return whether the tables of further facts are in use."""
    return bool(not is_plain(run) and run.extras.shape[0] > 0)


@jit_inline
def hidden_row(run: Run, i: int) -> int:
    """Return the row of the hidden facts about request ``i``."""
    return int(run.turns[i].row) if is_closed(run) else i


@jit_inline
def renew_predictions(run: Run) -> None:
    """Renew the predictions of the active requests, after each ``renew_every`` output tokens."""
    if not has_extras(run) or run.problem.renew_every == 0:
        return
    for k in range(run.w.num_active):
        i = run.active[k].request_id
        source = run.hidden_extras[hidden_row(run, i)]
        made = min(
            np.int64(run.active[k].num_output_tokens // run.problem.renew_every),
            np.int64(source.num_renewals),
        )
        if made > 0:
            run.extras[i].renewed_len = run.renewals[source.first_renewal + made - 1]


false_for(PlainRun, has_cache, has_tier, has_sessions, is_closed, has_extras)


@jit_expand
def cache_tables(run: Run) -> PrefixCache:
    """Return the tables of the prefix cache."""
    return PrefixCache(
        run.pool,
        run.units,
        run.contents,
        run.chain,
        run.held,
        run.prefix,
        run.changed,
        run.tier,
        run.below,
    )


@jit_expand
def cache_of(run: Run) -> PrefixCache:
    """Return the prefix cache as its functions take it: by address, since they are called for every unit."""
    return by_address(cache_tables(run))


@jit_expand
def sessions_of(run: Run) -> Sessions:
    """Return the tables of sessions as their functions take them."""
    return by_address(
        Sessions(
            run.turns,
            run.sessions,
            run.script,
            run.due,
            run.scheduled,
            run.children,
            run.workload,
            run.prefix,
        )
    )


@jit_inline
def show_hit(run: Run, i: int) -> None:
    """Show in the row of a request that has joined the queue what it finds in the prefix cache, if there is one."""
    if has_tier(run):
        see_arrivals(run.tier, run.tracker.clock)
    if has_cache(run):
        start_waiting(cache_of(run), run.requests, run.problem.prefix_unit, i)


@jit
def reveal(p: Any, source: Any, r: Any) -> None:
    """Copy the fields of a request that the policy may observe from the hidden workload."""
    r.arrival_time = source.arrival_time
    r.prompt_len = source.prompt_len
    r.num_prefill_left = source.prompt_len
    r.priority = source.priority
    r.output_len = source.output_len if p.reveal_output == 1 else UNKNOWN
    r.predicted_len = source.predicted_len if p.reveal_predicted == 1 else UNKNOWN
    r.predicted_low = source.predicted_low if p.reveal_interval == 1 else UNKNOWN
    r.predicted_high = source.predicted_high if p.reveal_interval == 1 else UNKNOWN
    r.class_id = source.class_id if p.reveal_class == 1 else UNKNOWN
    r.ttft_slo = source.ttft_slo if p.reveal_slo == 1 else np.inf
    r.tbt_slo = source.tbt_slo if p.reveal_slo == 1 else np.inf


@jit_inline
def expected_tokens(r: Any) -> int:
    """Return the prompt and predicted output tokens of a request; only the prompt if no prediction is revealed."""
    return int(np.int64(r.prompt_len) + max(r.predicted_len, 0))


@jit
def list_queued(w: Any, requests: Any, queued: Any, i: int) -> None:
    """Add request ``i`` to the list of requests that joined the queue, for the policy."""
    requests[i].status = WAITING
    queued[w.num_queued] = i
    w.num_queued += 1


@jit
def assign(w: Any, r: Any) -> None:
    """Count a request as assigned to this worker, when it joins the queue or earlier."""
    r.worker = w.index
    w.outstanding_requests += 1
    w.outstanding_tokens += expected_tokens(r)
    w.total_routed += 1


@jit
def depart(w: Any, r: Any) -> None:
    """Remove a request that leaves unfinished from the counts of a worker."""
    w.outstanding_requests -= 1
    w.outstanding_tokens -= expected_tokens(r)


@jit
def withdraw(w: Any, queued: Any, i: int) -> None:
    """List request ``i`` as gone for the policy, or unlist it if the policy has not seen it yet."""
    for j in range(w.num_queued):
        if queued[j] == i:
            for later in range(j + 1, w.num_queued):
                queued[later - 1] = queued[later]
            w.num_queued -= 1
            return
    w.num_left += 1
    queued[queued.shape[0] - w.num_left] = i


@jit
def join(w: Any, requests: Any, queued: Any, i: int) -> None:
    """Add a request to the end of the queue of this worker."""
    queue_insert(w, requests, i, UNKNOWN)
    list_queued(w, requests, queued, i)
    w.last_progress = w.decisions


@jit_inline
def next_arrival_time(p: Any, tracker: Any, workload: Any) -> float:
    """Return when the engine gets the next request, before the horizon; inf if never, or if it is not known yet."""
    i = tracker.next_arrival
    if i < p.num_requests and workload[i].arrival_time + p.api_time < p.horizon:
        return workload[i].arrival_time + p.api_time
    return np.inf


@jit_inline
def reveal_next(run: Run) -> int:
    """Expose the next request to arrive; return its id."""
    i = run.tracker.next_arrival
    reveal(run.problem, run.workload[i], run.requests[i])
    if has_sessions(run):
        expose_turn(run.problem, run.turns, run.sessions, i)
    if has_extras(run):
        run.extras[i] = run.hidden_extras[hidden_row(run, i)]
        run.extras[i].num_renewals = run.extras[i].first_renewal = 0
    return i


@jit_inline
def count_arrival(run: Run) -> None:
    """Count the next request as arrived."""
    run.tracker.next_arrival += 1
    if is_closed(run):
        pass_arrival(sessions_of(run), run.tracker.next_arrival, run.problem.num_requests)


@jit
def effort(w: Any, p: Any) -> int:
    """Return what the worker's decisions have cost so far, in units of a request in a batch."""
    heavy = p.effort_weight * w.total_evicted + p.idle_weight * w.total_idle
    return int(heavy + 100 * w.total_queue_steps + w.total_batch_requests)


@jit_inline
def stalled(w: Any, p: Any) -> bool:
    """Return whether the worker has made too many decisions without progress; records when that begins."""
    fruitless = w.decisions - w.last_progress
    if fruitless == 1:
        w.effort_before, w.evicted_before = effort(w, p), w.total_evicted
    return bool(fruitless > p.stall_limit)


@jit_inline
def wastes_effort(w: Any, p: Any) -> bool:
    """Return whether effort without progress exceeds its limit: a livelock if no request is still to come."""
    return bool(w.decisions - w.last_progress > 1 and effort(w, p) - w.effort_before > p.effort_limit)


@jit_inline
def note_return(run: Run, i: int) -> None:
    """Count the gap before request ``i``, which arrives now, where sessions are known and there is a prefix cache."""
    if has_cache(run) and has_sessions(run):
        count_return(run.pool, run.turns, run.requests, i)


@jit_inline
def take_arrivals(run: Run) -> None:
    """Queue all requests with arrival time ≤ now, in (arrival, id) order."""
    while next_arrival_time(run.problem, run.tracker, run.workload) <= run.w.clock:
        i = reveal_next(run)
        note_return(run, i)
        assign(run.w, run.requests[i])
        join(run.w, run.requests, run.queued, i)
        show_hit(run, i)
        count_arrival(run)


@jit_inline
def advance_clock(w: Any, until: float) -> None:
    """Advance the clock, and the integrals of memory and active requests over time."""
    w.kv_time += w.kv_allocated * (until - w.clock)
    w.cached_time += w.kv_cached * (until - w.clock)
    w.active_time += w.num_active * (until - w.clock)
    w.clock = until


@jit_inline
def next_boundary(run: Run) -> int:
    """Advance to the next decision; an idle worker jumps to the next arrival."""
    w = run.w
    take_arrivals(run)
    if w.num_active == 0 and w.num_waiting == 0:
        until = next_arrival_time(run.problem, run.tracker, run.workload)
        if run.tracker.next_arrival == run.problem.num_requests:
            return DONE
        if until >= run.problem.horizon:
            advance_clock(w, max(w.clock, run.problem.horizon))
            return HORIZON
        advance_clock(run.w, until)
        take_arrivals(run)
    if w.clock >= run.problem.horizon:
        return HORIZON
    if run.problem.keep_log == 1 and run.tracker.num_log >= run.log.shape[0]:
        return LOG_FULL
    if stalled(w, run.problem):
        return STALLED
    if wastes_effort(w, run.problem) and next_arrival_time(run.problem, run.tracker, run.workload) == np.inf:
        return STALLED
    return DECIDE
