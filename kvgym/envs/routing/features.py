"""Observation and rewards of a routing agent, computed by one compiled function from the tables of a cluster.

All features are finite and in [0, 1]: fractions of memory, or x / (x + scale), which is 1/2 at the scale. Information
that is not revealed is 0, except latency targets, which are 1 as if there were none.

An agent observes what the front end of a cluster can observe: the requests it has sent to each worker, those that have
started and finished, and the KV memory that each worker reports at its last iteration boundary. The running batch of a
worker and its remaining time are not observed, because no front end has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
from numba import types

from kvgym.compiling.kernel import jit_inline, kernel
from kvgym.compiling.places import places
from kvgym.compiling.tables import Table, declared, opener
from kvgym.envs.scheduling.tables import REWARD_TERMS, Features
from kvgym.simulator.tables import (
    FINISHED,
    PROBLEM,
    REQUEST,
    ROLE_DECODE,
    ROLE_PREFILL,
    TRACKER,
    TRANSFERRING,
    UNKNOWN,
    WAITING,
    WORKER,
    WORKLOAD,
)

SYSTEM_FEATURES: Features = (
    ("num_requests", "requests in the system (scale: 64 per worker)"),
    ("arrival_rate", "rate of the last 16 arrivals (scale: mean arrival rate)"),
    ("since_arrival", "time since the previous arrival (scale: mean interval); 1 before the first"),
    ("time", "clock (scale: 10 time_scale)"),
    ("num_arrived", "requests that have arrived (scale: 256)"),
)
"""Features of the cluster (key ``system``): name and meaning."""

REQUEST_FEATURES: Features = (
    ("handover", "1 if its prefill has ended and it goes to a decode worker"),
    ("prompt", "prompt tokens / capacity of the smallest worker"),
    ("kv", "KV tokens to be transferred / capacity of the smallest worker"),
    ("predicted", "predicted output tokens / capacity of the smallest worker"),
    ("predicted_low", "lower bound of the predicted interval / capacity of the smallest worker"),
    ("predicted_high", "upper bound of the predicted interval / capacity of the smallest worker"),
    ("output", "true output tokens / capacity of the smallest worker"),
    ("class", "(k + 1) / (k + 2) for class k"),
    ("priority", "its priority p as 1/2 + p / (2 (|p| + 1))"),
    ("ttft_slo", "TTFT target (scale: time_scale); 1 = none"),
    ("tbt_slo", "TBT target (scale: smallest batch duration); 1 = none"),
    ("age", "time since its arrival (scale: time_scale)"),
)
"""Features of the request to be routed (key ``request``)."""

WORKER_FEATURES: Features = (
    ("candidate", "1 if the request may go there"),
    ("prefill", "1 for a prefill worker"),
    ("decode", "1 for a decode worker"),
    ("memory", "capacity / capacity of the largest worker"),
    ("kv", "memory in use / capacity"),
    ("waiting", "waiting requests (scale: 16)"),
    ("active", "active requests (scale: 64)"),
    ("incoming", "requests in transfer from a prefill worker (scale: 16)"),
    ("outstanding_requests", "unfinished requests sent there (scale: 64)"),
    ("outstanding_tokens", "their prompt and, if revealed, output tokens (scale: capacity)"),
    ("waiting_tokens", "tokens to prefill of its waiting requests (scale: capacity)"),
)
"""Features of each worker (key ``workers``)."""

ROUTING_SETTINGS = np.dtype(
    [
        ("time_scale", "f8"),  # s
        ("duration_scale", "f8"),  # s
        ("rate_scale", "f8"),  # 1/s
        ("reward_scale", "f8"),
        ("weights", "f8", (len(REWARD_TERMS),)),
        ("show_predicted", "i8"),
        ("show_interval", "i8"),
        ("show_output", "i8"),
        ("show_class", "i8"),
        ("show_slo", "i8"),
    ],
    align=True,
)
"""Scales, weights, and the information revealed about requests."""

ROUTING_EPISODE = np.dtype(
    [
        ("since", "f8"),  # s, time of the last observation
        ("num_present", "i8"),  # entries of the list of requests in the system
        ("num_seen", "i8"),  # requests that have ever been in it
        ("num_finished", "i8"),
        ("delivered", "i8"),  # totals over all workers at the last observation
        ("discarded", "i8"),
        ("terms", "f8", (len(REWARD_TERMS),)),  # since the last observation, divided by the scale
        ("reward", "f8"),  # their weighted sum
    ],
    align=True,
)
"""State of an episode in addition to the simulator's."""

RATE_WINDOW = 16
"""Number of arrivals from which the arrival rate is estimated."""

SYSTEM, SENT, WORKER_ROW = places(SYSTEM_FEATURES), places(REQUEST_FEATURES), places(WORKER_FEATURES)
TERM = places(REWARD_TERMS)

_AT_REQUEST = len(SYSTEM)
_AT_WORKERS = _AT_REQUEST + len(SENT)
_PER_WORKER = len(WORKER_ROW)

INCOMING, TOKENS, WAITING_TOKENS = 0, 1, 2
LOADS = 3
"""Sums per worker over the requests in the system."""


def observation_size(num_workers: int) -> int:
    """Return the length of the flat observation: system, request, then each worker."""
    return _AT_WORKERS + num_workers * _PER_WORKER


class Tables(NamedTuple):
    """The tables of a cluster, and those of its observer.

    ``present`` int32 (n,) lists the requests in the system; ``loads`` float64 (r * LOADS,) is scratch.
    """

    tracker: Annotated[Any, Table(TRACKER)]
    problems: Annotated[Any, Table(PROBLEM, "r", name="problem")]
    workers: Annotated[Any, Table(WORKER, "r")]
    workload: Annotated[Any, Table(WORKLOAD, "n")]
    requests: Annotated[Any, Table(REQUEST, "n")]
    settings: Annotated[Any, Table(ROUTING_SETTINGS)]
    episode: Annotated[Any, Table(ROUTING_EPISODE)]
    present: Annotated[Any, Table("i4", "n")]
    loads: Annotated[Any, Table("f8", "LOADS * r")]
    out: Annotated[Any, Table("f4", "OUT + PER_WORKER * r", name="flat")]
    mask: Annotated[Any, Table("u1", "r")]


TABLES = declared(Tables)
"""The tables by name, in the order of the addresses; lengths count ``n`` requests and ``r`` workers."""

open_tables: Callable[[Any, int, int], Tables] = opener(
    Tables,
    "def open_tables(a, n, r):",
    "Open the tables of the observer, of their addresses.",
    [table.opening(f"a[{j}]", table.length) for j, table in enumerate(TABLES.values())],
    {"LOADS": LOADS, "OUT": _AT_WORKERS, "PER_WORKER": _PER_WORKER},
)


@jit_inline
def saturate(x: float, scale: float) -> Any:
    """Return x / (x + scale) for x ≥ 0, 1 for inf."""
    if x == np.inf:
        return np.float32(1.0)
    return np.float32(x / (x + scale))


@jit_inline
def share(tokens: float, capacity: float) -> Any:
    """Return tokens as a share of a capacity, at most 1; 0 for UNKNOWN."""
    return np.float32(min(max(tokens, 0.0) / capacity, 1.0))


@jit_inline
def expected_output(s: Any, source: Any) -> float:
    """Return the revealed output tokens of a request, 0 if none are revealed."""
    if s.show_output == 1:
        return float(source.output_len)
    if s.show_predicted == 1:
        return float(source.predicted_len)
    if s.show_interval == 1:
        return 0.5 * (source.predicted_low + source.predicted_high)
    return 0.0


@jit_inline
def add_load(x: Tables, i: int, r: Any) -> None:
    """Add request ``i`` to the sums of its worker."""
    at = LOADS * r.worker
    if r.status == TRANSFERRING:
        if x.workers[r.worker].role == ROLE_PREFILL:
            return  # it has no decode worker yet
        x.loads[at + INCOMING] += 1.0
    elif r.status == WAITING:
        x.loads[at + WAITING_TOKENS] += r.num_prefill_left
    x.loads[at + TOKENS] += r.prompt_len + expected_output(x.settings, x.workload[i])


@jit_inline
def account(x: Tables, now: float) -> None:
    """Compute the reward terms since the last observation, and the loads of the workers, in one pass.

    A request counts from its arrival to its completion, exactly.
    """
    e, s, terms = x.episode, x.settings, x.episode.terms
    for k in range(len(TERM)):
        terms[k] = 0.0
    for k in range(x.loads.shape[0]):
        x.loads[k] = 0.0
    while e.num_seen < x.tracker.next_arrival:
        x.present[e.num_present] = e.num_seen
        e.num_present += 1
        e.num_seen += 1
    kept = 0
    for j in range(e.num_present):
        i = x.present[j]
        r = x.requests[i]
        end = now
        if r.status == FINISHED:
            end = r.finish_time
            ttft = r.first_token_time - r.arrival_time
            terms[TERM.ttft] -= ttft
            source = x.workload[i]
            in_time = r.finish_time - source.arrival_time <= source.e2e_slo
            if ttft <= source.ttft_slo and r.max_token_gap <= source.tbt_slo and in_time:
                terms[TERM.goodput] += 1.0
            e.num_finished += 1
        else:
            x.present[kept] = i
            kept += 1
            add_load(x, i, r)
        terms[TERM.latency] -= max(end - max(r.arrival_time, e.since), 0.0)
    e.num_present = kept
    e.since = now
    delivered = discarded = 0
    for k in range(x.workers.shape[0]):
        delivered += x.workers[k].total_delivered_tokens
        discarded += x.workers[k].total_recomputed_tokens
    terms[TERM.tokens] = delivered - e.delivered
    terms[TERM.evictions] = e.discarded - discarded
    e.delivered, e.discarded = delivered, discarded
    e.reward = 0.0
    for k in range(len(TERM)):
        terms[k] /= s.reward_scale
        e.reward += s.weights[k] * terms[k]


@jit_inline
def write_system(x: Tables, now: float, i: int) -> None:
    """Write the features of the cluster; ``i`` is the request to be routed, UNKNOWN at the end."""
    s, out, t = x.settings, x.out, x.tracker
    latest = t.next_arrival if i == t.next_arrival else t.next_arrival - 1  # the latest arrival
    count = min(latest, RATE_WINDOW)
    rate = 0.0
    if count > 0:
        span = now - x.workload[latest - count].arrival_time
        rate = count / span if span > 0.0 else np.inf
    since = np.inf
    if i == t.next_arrival and latest > 0:
        since = now - x.workload[latest - 1].arrival_time
    elif i != t.next_arrival and latest >= 0:
        since = now - x.workload[latest].arrival_time
    out[SYSTEM.num_requests] = saturate(float(x.episode.num_present), 64.0 * x.workers.shape[0])
    out[SYSTEM.arrival_rate] = saturate(rate, s.rate_scale)
    out[SYSTEM.since_arrival] = saturate(since, 1.0 / s.rate_scale)
    out[SYSTEM.time] = saturate(now, 10.0 * s.time_scale)
    out[SYSTEM.num_arrived] = saturate(float(latest + 1), 256.0)


@jit_inline
def write_request(x: Tables, now: float, i: int, handover: bool, at: int) -> None:
    """Write the features of request ``i``."""
    s, out, r, source = x.settings, x.out, x.requests[i], x.workload[i]
    smallest = float(x.problems[0].kv_capacity)
    for k in range(1, x.problems.shape[0]):
        smallest = min(smallest, float(x.problems[k].kv_capacity))
    priority = float(source.priority)
    out[at + SENT.handover] = np.float32(1.0) if handover else np.float32(0.0)
    out[at + SENT.prompt] = share(float(source.prompt_len), smallest)
    out[at + SENT.kv] = share(float(r.num_kv_tokens), smallest)
    for k in range(SENT.predicted, SENT.class_ + 1):
        out[at + k] = np.float32(0.0)
    if s.show_predicted == 1:
        out[at + SENT.predicted] = share(float(source.predicted_len), smallest)
    if s.show_interval == 1:
        out[at + SENT.predicted_low] = share(float(source.predicted_low), smallest)
        out[at + SENT.predicted_high] = share(float(source.predicted_high), smallest)
    if s.show_output == 1:
        out[at + SENT.output] = share(float(source.output_len), smallest)
    if s.show_class == 1:
        out[at + SENT.class_] = saturate(float(source.class_id + 1), 1.0)
    out[at + SENT.priority] = np.float32(0.5 + 0.5 * priority / (abs(priority) + 1.0))
    out[at + SENT.ttft_slo] = out[at + SENT.tbt_slo] = np.float32(1.0)
    if s.show_slo == 1:
        out[at + SENT.ttft_slo] = saturate(source.ttft_slo, s.time_scale)
        out[at + SENT.tbt_slo] = saturate(source.tbt_slo, s.duration_scale)
    out[at + SENT.age] = saturate(max(now - source.arrival_time, 0.0), s.time_scale)


@jit_inline
def write_workers(x: Tables, first: int, last: int, at: int) -> None:
    """Write the features of every worker; candidates are ``first`` … ``last - 1``."""
    out, largest = x.out, 0.0
    for k in range(x.workers.shape[0]):
        largest = max(largest, float(x.problems[k].kv_capacity))
    for k in range(x.workers.shape[0]):
        w, capacity, load = x.workers[k], float(x.problems[k].kv_capacity), LOADS * k
        incoming = x.loads[load + INCOMING]
        out[at + WORKER_ROW.candidate] = np.float32(1.0) if first <= k < last else np.float32(0.0)
        out[at + WORKER_ROW.prefill] = np.float32(1.0) if w.role == ROLE_PREFILL else np.float32(0.0)
        out[at + WORKER_ROW.decode] = np.float32(1.0) if w.role == ROLE_DECODE else np.float32(0.0)
        out[at + WORKER_ROW.memory] = np.float32(capacity / largest)
        out[at + WORKER_ROW.kv] = share(float(w.kv_allocated), capacity)
        out[at + WORKER_ROW.waiting] = saturate(float(w.num_waiting), 16.0)
        out[at + WORKER_ROW.active] = saturate(float(w.num_active), 64.0)
        out[at + WORKER_ROW.incoming] = saturate(incoming, 16.0)
        out[at + WORKER_ROW.outstanding_requests] = saturate(float(w.outstanding_requests), 64.0)
        out[at + WORKER_ROW.outstanding_tokens] = saturate(x.loads[load + TOKENS], capacity)
        out[at + WORKER_ROW.waiting_tokens] = saturate(x.loads[load + WAITING_TOKENS], capacity)
        at += _PER_WORKER


@kernel(types.int64(types.int64[::1], types.int64, types.int64, types.int64), "environment")
def observe(addresses: Any, n: int, r: int, ended: int) -> int:
    """Compute the rewards since the last observation, and write observation and mask.

    Args:
        addresses: int64 (len(TABLES),), addresses of TABLES, in its order.
        n: requests of the episode.
        r: workers.
        ended: 1 when the run is over, 0 when a request is to be routed.

    Returns:
        The request to be routed, UNKNOWN when the run is over.
    """
    x = open_tables(addresses, n, r)
    t = x.tracker
    i, now = t.request, t.clock
    first, last = 0, r
    if ended == 1:
        i, last = UNKNOWN, 0
        for k in range(r):
            now = max(now, x.workers[k].clock)
    elif t.num_prefill_workers > 0:
        if t.handoff_head != UNKNOWN:
            first = t.num_prefill_workers
        else:
            last = t.num_prefill_workers
    account(x, now)
    write_system(x, now, i)
    if i == UNKNOWN:
        for k in range(_AT_REQUEST, _AT_WORKERS):
            x.out[k] = np.float32(0.0)
    else:
        write_request(x, now, i, t.handoff_head != UNKNOWN, _AT_REQUEST)
    write_workers(x, first, last, _AT_WORKERS)
    for k in range(r):
        x.mask[k] = 1 if first <= k < last or ended == 1 else 0
    return i
