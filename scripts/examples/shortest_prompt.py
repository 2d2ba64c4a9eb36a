"""Example of a compiled policy: the shortest prompt first.

See docs/compiled-policies.md, which explains its parts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvgym import CompiledPolicy, PolicyInfo, register_policy
from kvgym.kernels import (
    admit,
    evict_latest,
    forget_left,
    heap_first,
    heap_pop,
    heap_push,
    named_numbers,
    need_of,
    need_of_active,
    policy_kernel,
    policy_memory,
    request_key,
)
from kvgym.policies.hyperparameters import whole


class Numbers(NamedTuple):
    """What the kernel reads from ``memory.params``."""

    spare: int


numbers = named_numbers(Numbers)


@policy_kernel
def shortest_prompt(view: Any, decision: Any, memory: Any) -> None:
    """Evict the newest requests if the next iteration does not fit; otherwise admit the shortest prompts that fit."""
    heap, capacity, spare = memory.state, view.problem.kv_capacity, numbers(memory.params).spare
    forget_left(view, heap, 0)  # requests that a router has moved away
    for j in range(view.worker.num_queued):  # requests queued since the last decision
        i = view.queued[j]
        heap_push(heap, 0, request_key(view.requests[i].prompt_len, i))
    need = need_of_active(view)
    if need > capacity:
        evict_latest(view, decision, need)
        return
    while heap[0] > 0:
        i = heap_first(heap, 0)
        limit = capacity - spare if need > 0 else capacity
        need += need_of(view, view.requests[i])
        if need > limit:
            break
        heap_pop(heap, 0)
        admit(decision, i)


@register_policy
class ShortestPrompt(CompiledPolicy):
    """Shortest prompt first, with ``spare`` tokens of memory left free while requests run."""

    info = PolicyInfo(name="shortest_prompt", summary="shortest prompt first, evicts the newest", evicts=True)
    kernel = shortest_prompt
    parameters = Numbers

    spare: int = whole(64, least=0, search=(0, 64, 256, 1024))
    """tokens of memory that admission leaves free."""

    def memory(self, system: Any) -> Any:
        """Return the parameter, and space for a heap of waiting requests."""
        return policy_memory(self.params(system), state=np.zeros(1 + system.max_requests))
