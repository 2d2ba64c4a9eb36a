"""Admission by the peak of future memory, with output lengths sampled from those of the past.

Source: R. Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025, arXiv 2507.10150,
and the authors' artifact (WuSiYu/lightllm-ae, ``scheduler_pastfuture_dist1-3.py``), which has the constants. The
remaining output of each running request is sampled from the last 1,000 output lengths that exceed what it has
generated, the length of the next waiting one from all of them. If requests finish in the order of their remaining
lengths, the memory peaks when one of them finishes; the next request starts if the largest peak over up to five samples
stays below 97 % of the memory.

Readings: samples are drawn at every decision with waiting requests (the artifact: every ten). Between two of the past
lengths the sample is interpolated, above the largest one up to ``longest``. The need of the next iteration must also
fit. On overflow the latest activated requests leave. An empty worker admits its first request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from kvgym.kernels import (
    UNKNOWN,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit,
    evict_latest,
    first_waiting,
    has_place,
    jit,
    jit_inline,
    named_numbers,
    need_of_active,
    next_uniform,
    next_waiting,
    policy_kernel,
    policy_memory,
    seed_words,
    taken_by,
)
from kvgym.policies.hyperparameters import (
    fraction,
    fraction_of,
    whole,
)
from kvgym.policies.policy import CompiledPolicy, PolicyInfo, SystemInfo, head_of_queue, register_policy
from kvgym.utils.resources import check_table


class Past(NamedTuple):
    """Parameters."""

    limit: int  # memory that the peak must stay below, tokens
    window: int  # number of past lengths
    longest: int  # the longest output, tokens


past = named_numbers(Past)

# Layout of the state: six words of random numbers, how many past lengths there are, the place of the next one in their
# ring; then the ring, the same lengths sorted, and for each list of samples the tokens that its requests hold, followed
# by their remaining tokens, in descending order of these. Sorting needs as much room as a list has, and counters.
_COUNT, _NEXT, _RING = 6, 7, 8
_LISTS, _SAMPLES = 5, 200
_DIGITS = 256


@jit
def note_length(state: Any, window: int, length: int) -> None:
    """Add an output length to the past, in place of the oldest if there are enough."""
    count, place, base = state[_COUNT], state[_NEXT], _RING + window
    if count == window:
        k = 0
        while state[base + k] != state[_RING + place]:
            k += 1
        for j in range(k, count - 1):
            state[base + j] = state[base + j + 1]
        count -= 1
    state[_RING + place] = length
    state[_NEXT] = (place + 1) % window
    k = count
    while k > 0 and state[base + k - 1] > length:
        state[base + k] = state[base + k - 1]
        k -= 1
    state[base + k] = length
    state[_COUNT] = count + 1


@jit
def sample_rest(state: Any, window: int, longest: int, made: int) -> int:
    """Return a sample of the tokens that a request with ``made`` tokens still generates."""
    base, low, span = _RING + window, 0, state[_COUNT]
    while span > 0:  # binary search without branches, which the processor could not predict
        half = (span + 1) >> 1
        low += half if state[base + low + half - 1] <= made else 0
        span -= half
    above = state[_COUNT] - low  # past lengths that exceed it, between `made` and the longest one
    place = next_uniform(state, 0) * (above + 1)
    k = int(place)
    before = made if k == 0 else state[base + low + k - 1]
    last = made if above == 0 else state[base + state[_COUNT] - 1]
    after = state[base + low + k] if k < above else max(longest, last)
    return int(before + (after - before) * (place - k) + 0.5) - made


@jit
def sort_list(state: Any, at: int, room: int, most: int, count: int) -> None:
    """Sort a list by its remaining tokens, descending, a digit at a time from the last (radix sort).

    Args:
        state: the policy's state.
        at: index of the list; remaining tokens begin ``most`` later.
        room: index of as much room, which counters of digits follow.
        most: most requests of a list.
        count: requests of the list.
    """
    counters, largest, source, target, shift = room + 2 * most, 0, at, room, 0
    for k in range(count):
        largest = max(largest, state[at + most + k])
    while largest >> shift > 0:
        for digit in range(_DIGITS):
            state[counters + digit] = 0
        for k in range(count):
            state[counters + ((state[source + most + k] >> shift) & (_DIGITS - 1))] += 1
        place = 0
        for digit in range(_DIGITS - 1, -1, -1):
            place, state[counters + digit] = place + state[counters + digit], place
        for k in range(count):
            left = state[source + most + k]
            counter = counters + ((left >> shift) & (_DIGITS - 1))
            place = state[counter]
            state[counter] = place + 1
            state[target + place], state[target + most + place] = state[source + k], left
        source, target, shift = target, source, shift + 8
    if source != at:
        for k in range(count):
            state[at + k], state[at + most + k] = state[room + k], state[room + most + k]


@jit
def insert(state: Any, at: int, most: int, count: int, held: int, left: int) -> None:
    """Insert a request into a sorted list with ``count`` entries."""
    k, rest = count, at + most
    while k > 0 and state[rest + k - 1] < left:
        state[at + k], state[rest + k] = state[at + k - 1], state[rest + k - 1]
        k -= 1
    state[at + k], state[rest + k] = held, left


@jit
def peak_of(state: Any, at: int, most: int, count: int) -> int:
    """Return the largest memory that the requests of a sorted list will hold, tokens."""
    held, peak = 0, 0
    for k in range(count):
        held += state[at + k]
        peak = max(peak, held + (k + 1) * state[at + most + k])
    return peak


@jit_inline
def held_with(view: PolicyView, row: Any) -> int:
    """Return the tokens that a request holds when its prefill is complete."""
    return np.int64(row.num_kv_tokens) + row.num_prefill_left


@policy_kernel
def past_future_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Admit in queue order while the sampled peaks of future memory stay below the limit."""
    w, state, p = view.worker, memory.state, past(memory.params)
    window, capacity = p.window, view.problem.kv_capacity
    for j in range(w.num_finished):
        note_length(state, window, view.requests[view.finished[j]].num_output_tokens)
    need = need_of_active(view)
    if need > capacity:
        evict_latest(view, decision, need)
        return
    i = first_waiting(view)
    if i == UNKNOWN:
        return
    count = w.num_active
    lists = min(_LISTS, _SAMPLES // max(count, 1) + 1) if count > 0 else 1
    most = decision.admit.shape[0] + 1
    start = _RING + 2 * window
    room = start + 2 * _LISTS * most
    for k in range(lists):
        at = start + 2 * k * most
        for j in range(count):
            slot = view.active[j]
            state[at + j] = held_with(view, slot)
            state[at + most + j] = sample_rest(state, window, p.longest, slot.num_output_tokens)
        sort_list(state, at, room, most, count)
    while i != UNKNOWN and has_place(view, decision):
        r, peak = view.requests[i], 0
        for k in range(lists):
            at = start + 2 * k * most
            left = state[_RING + window + int(next_uniform(state, 0) * state[_COUNT])]
            insert(state, at, most, count, held_with(view, r), left)
            peak = max(peak, peak_of(state, at, most, count + 1))
        use = taken_by(view, i)
        if need + use > capacity or (peak >= p.limit and count > 0):
            break
        need += use
        count += 1
        admit(decision, i)
        i = next_waiting(view, i)


@register_policy
class PastFuture(CompiledPolicy):
    """First come, first served while the sampled peak of future memory fits."""

    info = PolicyInfo(
        name="past_future",
        summary="first come, first served while the peak of future memory, sampled from past lengths, fits",
        paper="Gong et al., Past-Future Scheduler for LLM Serving under SLA Guarantees",
        algorithm="and its artifact, WuSiYu/lightllm-ae",
        evicts=True,
    )
    kernel = past_future_kernel
    blocking = head_of_queue

    parameters = Past

    reserved: float = fraction(0.03, search=(0.0, 0.01, 0.03, 0.05, 0.1, 0.2))
    """fraction of the capacity that peaks leave free, in [0, 1)."""
    window: int = whole(1000, least=2)
    """past lengths that are remembered, at least 2."""
    initial: int = whole(512, search=(64, 256, 512, 1024))
    """output length that half of the window has at the start, tokens."""
    longest: int = whole(4096)
    """longest output of a request, tokens."""

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the memory that the peak must stay below."""
        return {"limit": fraction_of(system.kv_capacity, self.reserved)}

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return a state with the initial lengths and random numbers."""
        slots = max(1, min(system.max_requests, system.kv_capacity))
        check_table(16 * self.window, f"past_future: window = {self.window:,} past lengths", "lower window")
        state = np.zeros(_RING + 2 * self.window + (_LISTS + 1) * 2 * (slots + 1) + _DIGITS, np.int64)
        half = self.window // 2
        state[:6], state[_COUNT], state[_NEXT] = seed_words(system.seed), half, half
        state[_RING : _RING + half] = state[_RING + self.window : _RING + self.window + half] = self.initial
        return policy_memory(self.params(system), state=state)
