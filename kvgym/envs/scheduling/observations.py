"""Standard features of the observation, written by one compiled function into a float32 buffer.

All features are finite and normalised: fractions of memory, which is counted in whole blocks, or x / (x + scale),
which is 1/2 at the scale and below 1; slacks are s / (|s| + scale), in (-1, 1). Information that is not revealed is 0,
and so are positions of a window without a request. :mod:`~kvgym.envs.scheduling.revealed` has the optional features.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from kvgym.compiling.kernel import jit_inline
from kvgym.compiling.places import places
from kvgym.envs.scheduling.actions.composing import room_left
from kvgym.envs.scheduling.components import ObservationPart
from kvgym.envs.scheduling.revealed import (
    ACTIVE_COLUMNS,
    QUEUE_COLUMNS,
    Shown,
    cache_features,
    class_features,
    few_tokens,
    moment_features,
    moment_size,
    optional_columns,
    saturate,
    scaled,
    shows_cache,
    shows_saved,
    slack,
    token_share,
    write_cache,
    write_classes,
    write_columns,
    write_hit,
    write_own,
)
from kvgym.envs.scheduling.tables import MARKED, PROFILE_BINS, Env, Features
from kvgym.kernels import shared_hit, view_of
from kvgym.simulator.batch_time import clear_load
from kvgym.simulator.blocks import allocated
from kvgym.simulator.kernels.future_memory import first_use
from kvgym.simulator.tables import UNKNOWN

SYSTEM_FEATURES: Features = (
    ("kv_used", "memory in use between iterations / capacity"),
    ("kv_free", "free memory / capacity"),
    (
        "kv_need",
        "memory of the next iteration as decided so far / (2 capacity); above 0.5 it does not fit",
    ),
    ("num_active", "active requests (scale: 64)"),
    ("num_prefilling", "active requests with prompt left to process / active requests"),
    ("num_waiting", "waiting requests (scale: 64)"),
    ("oldest_wait", "waiting time of the first request of the window (scale: time_scale)"),
    ("batch_duration", "duration of the next batch as decided so far (scale: smallest batch duration)"),
    ("arrival_rate", "estimate of the arrival rate (scale: mean arrival rate)"),
    ("time", "clock (scale: 10 time_scale)"),
    ("num_evictions", "evictions so far (scale: 64)"),
    ("num_admitting", "requests admitted by the decision so far (scale: 16)"),
    ("num_evicting", "requests evicted by the decision so far (scale: 16)"),
    ("num_arrived", "requests that have arrived (scale: 256)"),
)
"""Features of the worker (key ``system``): name and meaning; all in [0, 1]."""

QUEUE_FEATURES: Features = (
    ("present", "1 if the position holds a request"),
    ("prompt", "tokens to prefill / capacity"),
    ("predicted", "predicted output tokens left / capacity"),
    ("waiting", "time since arrival (scale: time_scale)"),
    ("peak", "memory it holds at its predicted last token / capacity"),
    ("fits", "1 if it fits into the next iteration as decided so far"),
    ("marginal_duration", "how much longer the next batch takes with it (scale: smallest batch duration)"),
    ("ttft_slack", "time left to its TTFT target (scale: time_scale), in (-1, 1)"),
)
"""Features of each position of the queue window (key ``queue``); in [0, 1] but for the slack."""

ACTIVE_FEATURES: Features = (
    ("present", "1 if the position holds a request"),
    ("kv", "memory it holds / capacity"),
    ("prefill_left", "tokens still to prefill / capacity"),
    ("generated", "output tokens generated (scale: 64)"),
    ("predicted_left", "predicted output tokens left (scale: 64)"),
    ("age", "time since arrival (scale: time_scale)"),
    ("tbt_slack", "time left to its TBT target (scale: smallest batch duration), in (-1, 1)"),
)
"""Features of each position of the active window, latest activated first (key ``active``)."""

PROFILE_FEATURES = tuple(
    (
        f"profile_{2**b}",
        f"memory F of the active set {2**b} iterations ahead if all decode and end as predicted (without "
        "predictions: never end), F / (F + capacity)",
    )
    for b in range(PROFILE_BINS)
)
"""Future memory (key ``profile``); 0.5 = full."""


class Windows(Shown, Protocol):
    """The options that determine the length of an observation."""

    @property
    def queue_window(self) -> int:
        """Q, positions of the queue window."""
        ...

    @property
    def active_window(self) -> int:
        """W, positions of the active window."""
        ...

    @property
    def parts(self) -> tuple[ObservationPart, ...]:
        """Parts of the observation after the standard features."""
        ...


def queue_features(config: Shown) -> Features:
    """Return name and meaning of every feature of a queue-window position."""
    return scaled(QUEUE_FEATURES + optional_columns(QUEUE_COLUMNS, config), config)


def active_features(config: Shown) -> Features:
    """Return name and meaning of every feature of an active-window position."""
    return scaled(ACTIVE_FEATURES + optional_columns(ACTIVE_COLUMNS, config), config)


def observation_size(config: Windows) -> int:
    """Return the length of the flat observation: the standard features, then the registered parts."""
    return standard_size(config) + sum(len(part.features) for part in config.parts)


def standard_size(config: Windows) -> int:
    """Return the number of standard features: system, profile, classes, cache, rule, queue rows, active rows."""
    return (
        len(SYSTEM_FEATURES)
        + PROFILE_BINS
        + len(class_features(config))
        + len(cache_features(config))
        + len(moment_features(config))
        + config.queue_window * len(queue_features(config))
        + config.active_window * len(active_features(config))
    )


@jit_inline
def predicted_left(predicted_len: int, num_output_tokens: int) -> int:
    """Return the predicted output tokens left: 1 after the output exceeds a prediction, UNKNOWN without one."""
    if predicted_len == UNKNOWN:
        return UNKNOWN
    return max(predicted_len - num_output_tokens, 1)


SYSTEM, QUEUE, ACTIVE = places(SYSTEM_FEATURES), places(QUEUE_FEATURES), places(ACTIVE_FEATURES)

_ENDS = 40  # a bin of the profile counts requests from this bit on, and their memory in the bits below
_ONE_ENDS = 1 << _ENDS


@jit_inline
def write_profile(e: Env, out: Any, at: int) -> None:
    """Write the future-memory profile: one pass over the active set, one over the bins."""
    p, bins, first = e.run.problem, e.episode.bins, 0
    while first < PROFILE_BINS and (1 << first) % p.block_size != 0:
        first += 1
    # From bin ``first`` on, requests grow by whole blocks. So each bin adds up the memory and the number of requests
    # that end in it, packed in one integer, and is then summed over all later bins. In earlier bins each request is
    # rounded up to blocks on its own.
    for k in range(e.run.w.num_active):
        slot = e.run.active[k]
        if slot.planned == MARKED:
            continue
        left = predicted_left(slot.predicted_len, slot.num_output_tokens)
        b = PROFILE_BINS - 1
        if left != UNKNOWN:
            # The exponent of a float64 is the floor of its log2.
            b = min(int(np.float64(left).view(np.int64) >> 52) - 1023, PROFILE_BINS - 1)
        tokens = np.int64(slot.num_kv_tokens) + slot.num_prefill_left
        if first > 0:
            for c in range(min(first, b + 1)):
                bins[c] += allocated(p, tokens + (1 << c))
            tokens = allocated(p, tokens)
        if b >= first:
            bins[b] += _ONE_ENDS + tokens
    total = 0
    for b in range(PROFILE_BINS - 1, -1, -1):
        used = bins[b]
        if b >= first:
            total += used
            used = (total & (_ONE_ENDS - 1)) + ((total >> _ENDS) << b)
        out[at + b] = saturate(float(used), float(p.kv_capacity))
        bins[b] = 0


@jit_inline
def cache_fields(seen: Any, r: Any) -> None:
    """Copy the observed fields of a request, see SEEN."""
    seen.num_prefill_left, seen.num_kv_tokens = r.num_prefill_left, r.num_kv_tokens
    seen.num_output_tokens, seen.predicted_len = r.num_output_tokens, r.predicted_len
    seen.arrival_time = r.arrival_time


@jit_inline
def clear(out: Any) -> None:
    """Set a slice of an observation to 0."""
    for k in range(out.shape[0]):
        out[k] = np.float32(0.0)


@jit_inline
def load_candidate(load: Any, r: Any, sign: int) -> None:
    """Add a request that runs in full to the load of the batch, or subtract it again."""
    if r.num_prefill_left > 0:
        tokens = np.int64(r.num_prefill_left)
        load.num_prefills += sign
        load.prefill_tokens += sign * tokens
        load.prefill_context += sign * r.num_kv_tokens
        load.prefill_squares += sign * tokens * tokens
        load.prefill_products += sign * tokens * r.num_kv_tokens
    else:
        load.num_decodes += sign
        load.decode_context += sign * r.num_kv_tokens


@jit_inline
def load_as_decided(e: Env) -> None:
    """Set the load of the next batch as decided so far, with every request in full."""
    load, w = e.run.load, e.run.w
    clear_load(load)
    if w.num_prefilling == 0 and e.run.decision.num_evict == 0:
        load.num_decodes, load.decode_context = w.num_active, w.kv_tokens
    else:
        for k in range(w.num_active):
            slot = e.run.active[k]
            if slot.planned != MARKED:
                load_candidate(load, slot, 1)
    for j in range(e.run.decision.num_admit):
        load_candidate(load, e.run.requests[e.run.admit[j]], 1)


@jit_inline
def write_queue(e: Env, out: Any, at: int, base: float, batch_time: Any, batch_params: Any) -> int:
    """Write the rows of the queue window; return the next free index."""
    s, p, w, load = e.settings, e.run.problem, e.run.w, e.run.load
    capacity, has_room = float(p.kv_capacity), room_left(e) > 0
    end = at + s.queue_window * s.queue_features
    for q in range(min(s.queue_window, e.episode.num_window)):
        i, r = e.window[q], e.seen_waiting[q]
        if r.request != i + 1 or p.prefix_unit > 0:  # hits change while requests wait
            cache_fields(r, e.run.requests[i])
            r.request, r.slo = i + 1, e.run.requests[i].ttft_slo
        left = predicted_left(r.predicted_len, r.num_output_tokens)
        load_candidate(load, r, 1)
        longer = max(batch_time(load, batch_params) - base, 0.0)
        load_candidate(load, r, -1)
        peak = allocated(p, r.num_kv_tokens + r.num_prefill_left + left)
        row = out[at : at + s.queue_features]
        row[QUEUE.present] = np.float32(1.0)
        row[QUEUE.prompt] = token_share(e, r.num_prefill_left, capacity)
        row[QUEUE.predicted] = np.float32(0.0) if left == UNKNOWN else token_share(e, left, capacity)
        row[QUEUE.waiting] = saturate(max(w.clock - r.arrival_time, 0.0), s.time_scale)
        row[QUEUE.peak] = np.float32(0.0) if left == UNKNOWN else token_share(e, peak, capacity)
        shared = shared_hit(view_of(e.run, None, None), i)
        fits = has_room and e.episode.need + first_use(p, r) - shared <= p.kv_capacity
        row[QUEUE.fits] = np.float32(1.0) if fits else np.float32(0.0)
        row[QUEUE.marginal_duration] = saturate(longer, s.duration_scale)
        row[QUEUE.ttft_slack] = slack(r.arrival_time + r.slo - w.clock, s.time_scale)
        if s.show != 0:
            after = write_columns(e, i, r.num_output_tokens, row, len(QUEUE))
            if shows_cache(e):
                write_hit(e, i, shared, row, after)
        at += s.queue_features
    clear(out[at:end])
    return end


@jit_inline
def write_active(e: Env, out: Any, at: int, base: float, batch_time: Any, batch_params: Any) -> None:
    """Write the rows of the active window, latest activated first."""
    s, w, capacity = e.settings, e.run.w, float(e.run.problem.kv_capacity)
    end = at + s.active_window * s.active_features
    k = w.num_active - 1
    place = k % s.active_window  # index of slot k in `seen_active`, independent of its position in the window
    while at < end and k >= 0:
        slot, r = e.run.active[k], e.seen_active[place]
        k -= 1
        place = (place if place > 0 else s.active_window) - 1
        if slot.planned == MARKED:
            continue
        if r.request != slot.request_id + 1:
            cache_fields(r, e.run.requests[slot.request_id])
            r.request, r.slo = slot.request_id + 1, e.run.requests[slot.request_id].tbt_slo
        left = predicted_left(slot.predicted_len, slot.num_output_tokens)
        row = out[at : at + s.active_features]
        row[ACTIVE.present] = np.float32(1.0)
        row[ACTIVE.kv] = token_share(e, allocated(e.run.problem, slot.num_kv_tokens), capacity)
        row[ACTIVE.prefill_left] = token_share(e, slot.num_prefill_left, capacity)
        row[ACTIVE.generated] = few_tokens(e, slot.num_output_tokens)
        row[ACTIVE.predicted_left] = np.float32(0.0) if left == UNKNOWN else few_tokens(e, left)
        row[ACTIVE.age] = saturate(max(w.clock - r.arrival_time, 0.0), s.time_scale)
        last = r.arrival_time if np.isnan(slot.last_token_time) else slot.last_token_time
        row[ACTIVE.tbt_slack] = slack(last + r.slo - w.clock, s.duration_scale)
        if s.show != 0:
            after = write_columns(e, slot.request_id, slot.num_output_tokens, row, len(ACTIVE))
            if shows_saved(e):
                load_candidate(e.run.load, slot, -1)
                shorter = max(base - batch_time(e.run.load, batch_params), 0.0)
                load_candidate(e.run.load, slot, 1)
                row[after] = saturate(shorter, s.duration_scale)
                after += 1
            if shows_cache(e):
                write_own(e, slot, row, after)
        at += s.active_features
    clear(out[at:end])


@jit_inline
def write_observation(e: Env, out: Any, batch_time: Any, batch_params: Any) -> None:
    """Write the flat observation, float32, see :func:`observation_size`."""
    s, p, w, d = e.settings, e.run.problem, e.run.w, e.run.decision
    capacity = float(p.kv_capacity)
    load_as_decided(e)
    duration = batch_time(e.run.load, batch_params)
    oldest = 0.0
    if e.episode.num_window > 0:
        oldest = max(w.clock - e.run.requests[e.window[0]].arrival_time, 0.0)
    out[SYSTEM.kv_used] = np.float32(w.kv_allocated / capacity)
    out[SYSTEM.kv_free] = np.float32((capacity - w.kv_allocated) / capacity)
    out[SYSTEM.kv_need] = np.float32(min(e.episode.need / (2.0 * capacity), 1.0))
    out[SYSTEM.num_active] = saturate(w.num_active, 64.0)
    out[SYSTEM.num_prefilling] = np.float32(w.num_prefilling / max(w.num_active, 1))
    out[SYSTEM.num_waiting] = saturate(w.num_waiting, 64.0)
    out[SYSTEM.oldest_wait] = saturate(oldest, s.time_scale)
    out[SYSTEM.batch_duration] = saturate(duration, s.duration_scale)
    out[SYSTEM.arrival_rate] = saturate(e.episode.rate, s.rate_scale)
    out[SYSTEM.time] = saturate(w.clock, 10.0 * s.time_scale)
    out[SYSTEM.num_evictions] = saturate(w.total_evicted, 64.0)
    out[SYSTEM.num_admitting] = saturate(d.num_admit, 16.0)
    out[SYSTEM.num_evicting] = saturate(d.num_evict, 16.0)
    out[SYSTEM.num_arrived] = saturate(e.run.tracker.next_arrival, 256.0)
    at = len(SYSTEM)
    write_profile(e, out, at)
    at += PROFILE_BINS
    if s.show != 0:
        at = write_cache(e, out, write_classes(e, out, at)) + moment_size(e)
    at = write_queue(e, out, at, duration, batch_time, batch_params)
    write_active(e, out, at, duration, batch_time, batch_params)
