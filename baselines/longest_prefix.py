"""SGLang's scheduler LPM: waiting requests start by their hits in the prefix cache, the longest first.

Source: sgl-project/sglang, ``python/sglang/srt/managers/schedule_policy.py``, ``SchedulePolicy`` (release 0.5.23). The
idea is by L. Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", Section 3: with
one cache and a fixed batch, the order by longest shared prefix visits the tree of prefixes depth first.

- Waiting requests start in descending order of their hits.
- If more than ``most_waiting`` requests wait, they start in order of the queue: sorting would cost too much time.
- A request with a hit of at most ``small_hit`` tokens goes last if it begins with the same ``common`` tokens as a
  request ahead of it in the queue that does not go last for that reason. One computes the prefix, the others find it.
- Without a prefix cache the order is the queue's.

Readings and deviations:

- Equal hits start in order of the queue. SGLang sorts its queue in place, so ties keep the order of the last decision.
- Requests share whole units of the prefix cache. ``common`` tokens are rounded up to units.
- Only the order is SGLang's. Requests run with whole prompts and decodes together, as under ``fcfs``: they start while
  the next iteration fits into memory, and on overflow the newest return to the queue. SGLang forms batches of prompts
  alone, reserves memory for expected outputs, and retracts the requests with the fewest output tokens.
- Hits are those of the system's prefix cache. With ``prefix_cache="radix"`` it is SGLang's, and a request counts with
  all whole units of its prompt, at most its length less one; they count as used. SGLang looks once more at the first
  request that does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from kvgym.baselines.margins import Protected
from kvgym.kernels import (
    UNKNOWN,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit,
    admit_while_fits,
    begins_like_another,
    evict_latest,
    first_waiting,
    has_place,
    heap_first,
    heap_pop,
    heap_push,
    jit_inline,
    look_up_prefix,
    named_numbers,
    need_of_active,
    next_waiting,
    policy_kernel,
    policy_memory,
    request_key,
    room_to_admit,
    taken_by,
)
from kvgym.policies.hyperparameters import (
    whole,
)
from kvgym.policies.policy import PolicyInfo, SystemInfo, register_policy


class Order(NamedTuple):
    """Parameters."""

    limit: int  # memory that admission may fill, tokens
    most_waiting: int  # largest number of waiting requests that are sorted
    small_hit: int  # largest hit, tokens, with which a request can go last
    common: int  # tokens that it then has in common with a request ahead of it


order = named_numbers(Order)

_LAST = 2**31 - 1  # key of the requests that go last


@jit_inline
def rank_waiting(view: PolicyView, state: Any, base: int, most: int, small: int, common: int) -> None:
    """Put the waiting requests into a heap, by hit and then by their places in the queue; note which is where.

    Args:
        view: the kernel's view; the system has a prefix cache.
        state: the heap begins at ``base``, the requests by place ``1 + most`` later.
        base: that index.
        most: largest number of waiting requests.
        small: largest hit, tokens, with which a request can go last.
        common: tokens that it then has in common with a request ahead of it.
    """
    place, state[base] = 0, 0
    i = first_waiting(view)
    while i != UNKNOWN:
        row, hit = view.requests[i], look_up_prefix(view, i)
        key = _LAST - 1 - min(hit, row.num_kv_tokens + row.num_prefill_left - 1)
        if hit <= small and begins_like_another(view, i, common):
            key = _LAST
        heap_push(state, base, request_key(key, place))
        state[base + 1 + most + place] = i
        place += 1
        i = next_waiting(view, i)


@policy_kernel
def lpm_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Evict the newest requests until the next iteration fits; if none was evicted, start those with long hits."""
    need, p, state = need_of_active(view), order(memory.params), memory.state
    most = p.most_waiting
    if need > view.problem.kv_capacity:
        evict_latest(view, decision, need)
        return
    if view.problem.prefix_unit == 0 or view.worker.num_waiting > most:
        admit_while_fits(view, decision, need, p.limit)
        return
    rank_waiting(view, state, 0, most, p.small_hit, p.common)
    while state[0] > 0 and has_place(view, decision):
        i = state[1 + most + heap_first(state, 0)]
        need += taken_by(view, i)
        if need > room_to_admit(view, decision, p.limit):
            break
        admit(decision, i)
        heap_pop(state, 0)


@register_policy
class LPM(Protected):
    """Longest hit in the prefix cache first; on overflow the latest activated requests return to the queue."""

    info = PolicyInfo(
        name="lpm",
        summary="longest hit in the prefix cache first, greedy; evicts the newest on overflow (LIFO)",
        paper="Zheng et al., SGLang: Efficient Execution of Structured Language Model Programs",
        algorithm="Section 3, and the scheduler lpm of its source",
        evicts=True,
        drafts=True,
        loads=True,
    )
    kernel = lpm_kernel

    parameters = Order

    most_waiting: int = whole(128, search=(16, 128, 1024))
    """largest number of waiting requests that are sorted; beyond it, the order is the queue's."""
    small_hit: int = whole(32, least=0)
    """largest hit, tokens, with which a request can go last."""
    common: int = whole(32)
    """tokens that it then has in common with a request ahead of it."""
    protection: float = Protected.protection

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the memory that admission may fill, and how many requests are sorted in this run."""
        return {**super().computed(system), "most_waiting": self._sorted(system)}

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return a heap of places in the queue, and the request of each place."""
        return policy_memory(self.params(system), state=np.zeros(1 + 2 * self._sorted(system)))

    def _sorted(self, system: SystemInfo) -> int:
        """Return the largest number of requests that are sorted in a run."""
        return min(self.most_waiting, max(1, system.max_requests))
