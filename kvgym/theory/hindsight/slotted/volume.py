"""Lower bounds from memory × time alone: LP (9) and (16) of Jaillet et al., and one with arrivals.

A request takes vol = s·o + o(o + 1)/2 tokens × slots, and a slot offers M. Nothing else is used, so these bounds hold
for every scheduler in slotted time, also if it chunks prompts, pauses requests or evicts them: the slots in which a
request gets its tokens cost that much. They need no solver.

Source: Jaillet et al., "Online Scheduling for LLM Inference with KV Cache Constraints", (9), (16). Both assign
shares of requests to whole moments t, at most tM of volume up to t; as the paper observes, least volume first is
optimal.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.theory.checks import check_number
from kvgym.theory.flow import request_workload
from kvgym.theory.hindsight.slotted.instance import Ints, SlottedRequests


def lp_9(prompt_len: ArrayLike, output_len: ArrayLike, memory: float) -> float:
    """Return the value of LP (9): no schedule of requests that all arrive at 0 has a smaller total latency.

    With least volume first, request i takes the volumes V to V + vol of all; the part at volume v is done at moment
    ⌈v/M⌉, so the request counts the mean of ⌈v/M⌉. In the paper, requests of one output length are alike; here every
    request has its own volume.

    Args:
        prompt_len: s, tokens, (n,) or one number.
        output_len: o, tokens, (n,).
        memory: M, tokens; any number > 0.

    Returns:
        The total latency in slots.
    """
    volume = np.sort(np.atleast_1d(request_workload(prompt_len, output_len)))
    return _fractional(volume, check_number("memory", memory, above=0))


def lp_16(prompt_len: ArrayLike, predicted_len: ArrayLike, memory: float, alpha: float) -> float:
    """Return the value of LP (16): as (9), from predictions that are at most α times too long (o ≤ õ ≤ αo).

    The volume of a prediction is at most α² times the volume of the request, so (9) with memory Mα² holds.

    Args:
        prompt_len: s, tokens, (n,) or one number.
        predicted_len: õ, tokens, (n,).
        memory: M, tokens.
        alpha: the largest factor by which predictions are too long, ≥ 1.

    Returns:
        The total latency in slots.
    """
    factor = check_number("alpha", alpha, least=1)
    return lp_9(prompt_len, predicted_len, check_number("memory", memory, above=0) * factor * factor)


def _fractional(volume: NDArray[np.float64], memory: float) -> float:
    """Return Σ over requests of the mean of ⌈v/M⌉ over the volumes that it takes."""
    ends = np.concatenate([[0.0], np.cumsum(volume)])
    whole = np.floor(ends / memory)
    integral = memory * whole * (whole + 1) / 2 + (ends - whole * memory) * (whole + 1)
    return float((np.diff(integral) / volume).sum())


def earliest_completions(requests: SlottedRequests) -> Ints:
    """Return moments before which no schedule has completed 1, 2, … n requests, int64 (n,), ascending.

    A request is not done before a + o. And a schedule gives request i its volume at no more than M a slot in total, so
    it is a schedule of one machine of speed M that may interrupt jobs and share itself among them. On this machine,
    shortest remaining volume first has, at every moment, completed at least as many jobs as any other rule (Schrage,
    1968). The k-th completion is no earlier than either bound, and at a whole moment.
    """
    shared = _shortest_remaining_first(requests.arrival, requests.volume, requests.memory)
    return np.maximum(shared, np.sort(requests.arrival + requests.output))


def earliest_first_tokens(requests: SlottedRequests) -> Ints:
    """Return moments before which no schedule has given 1, 2, … n requests a token, int64 (n,), ascending.

    As :func:`earliest_completions`: the slot of a first token holds s + 1 tokens of its request.
    """
    shared = _shortest_remaining_first(requests.arrival, requests.prompt + 1, requests.memory)
    return np.maximum(shared, np.sort(requests.arrival + 1))


def _shortest_remaining_first(release: Ints, work: Ints, speed: int) -> Ints:
    """Return the completions on one machine, rounded up to whole moments, ascending; exact in whole numbers."""
    n, clock, done, waiting = len(work), 0, list[int](), list[int]()
    ready = (release * speed).tolist()  # moments in units of 1/speed, so that a unit of work takes one
    sizes = work.tolist()
    i = 0
    while i < n or waiting:
        if not waiting:
            clock = max(clock, ready[i])
        while i < n and ready[i] <= clock:
            heapq.heappush(waiting, sizes[i])
            i += 1
        left = heapq.heappop(waiting)
        until = ready[i] if i < n else clock + left
        if clock + left <= until:
            clock += left
            done.append(-(-clock // speed))
        else:
            heapq.heappush(waiting, left - (until - clock))
            clock = until
    return np.asarray(done, np.int64)


def earliest_end(requests: SlottedRequests) -> int:
    """Return a moment before which no schedule has completed all requests.

    Max of a + o over requests, and of r + ⌈volume of those that arrive from r on / M⌉ over arrivals r.
    """
    alone = int((requests.arrival + requests.output).max())
    later = np.cumsum(requests.volume[::-1])[::-1]
    return max(alone, int((requests.arrival - (-later // requests.memory)).max()))


def least_longest(requests: SlottedRequests) -> int:
    """Return a lower bound on the longest latency in every schedule, slots.

    Requests that arrive from r to r' are not all done before :func:`earliest_end` of them alone, and the last one done
    arrived by r'.
    """
    best = int(requests.output.max())
    moments, groups = np.unique(requests.arrival, return_inverse=True)
    volumes = np.bincount(groups, requests.volume).astype(np.int64)
    total = np.concatenate([[0], np.cumsum(volumes)])
    for last in range(len(moments)):
        within = total[last + 1] - total[: last + 1]
        latency = moments[: last + 1] - (-within // requests.memory) - moments[last]
        best = max(best, int(latency.max()))
    return best
