"""A resource planner that reassigns waiting requests and migrates active ones.

Source: A. Bari, P. Hegde, G. de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and Practice",
Section 3. The planner watches the nodes' queues and memory, including risks of overflow. It "may choose to reassign
waiting requests or even migrate partially processed requests", and then has to transfer their KV cache. The paper
gives no algorithm; this one is the simplest that does both. The idea of moving a request that no longer fits, instead
of evicting it, is from B. Sun et al., "Llumnix: Dynamic Scheduling for Large Language Model Serving" (2024), which
also uses priorities and the load of every instance in tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kvgym.baselines.routing.routers import join_shortest_queue_kernel
from kvgym.kernels import UNKNOWN, RouterView, allocated, jit, may_go, move_to, named_numbers
from kvgym.policies.hyperparameters import (
    flag,
    hyperparameter,
)
from kvgym.policies.routing import CompiledRouter, RouterInfo, register_router, router_kernel


class Moves(NamedTuple):
    """Parameters: the difference between queues at which requests move, and whether active ones do."""

    difference: int
    migrate: bool


moves_in = named_numbers(Moves)


@jit
def not_active(w: Any) -> int:
    """Return how many requests wait for a worker, including those on their way to it."""
    return int(w.outstanding_requests - w.num_active)


@jit
def place_for(view: RouterView, k: int, slot: Any) -> int:
    """Return a worker to which a request of worker ``k`` can move, UNKNOWN if there is none.

    It has no waiting request, and space for the request's KV, the rest of its prompt and one token, in addition to one
    token of each of its active requests. Of several, the one with the most free memory is returned.
    """
    problems, workers = view.problems, view.workers
    best, most = UNKNOWN, -1
    for j in range(workers.shape[0]):
        w, p = workers[j], problems[j]
        if j != k and may_go(view, j) and w.role == workers[k].role and not_active(w) == 0:
            free = p.kv_capacity - w.kv_allocated - p.block_size * w.num_active
            free -= allocated(p, slot.num_kv_tokens + slot.num_prefill_left + 1)
            if free > most:
                best, most = j, free
    return best


@jit
def extreme(view: RouterView, k: int, sign: int) -> int:
    """Return the worker with the role of ``k`` and most (sign 1) or fewest (-1) waiting requests; ties go to ``k``."""
    workers, best = view.workers, k
    for j in range(workers.shape[0]):
        if sign < 0 and not may_go(view, j):
            continue
        more = sign * (not_active(workers[j]) - not_active(workers[best]))
        if workers[j].role == workers[k].role and more > 0:
            best = j
    return best


@router_kernel
def rebalancing_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Move the latest activated request away from full memory, then the last of the longest queue to the shortest."""
    problems, workers, k = view.problems, view.workers, view.boundary
    w, p = workers[k], moves_in(params)
    full = w.kv_allocated + problems[k].block_size * w.num_full > problems[k].kv_capacity
    if p.migrate and full and w.num_active > 1:
        slot = view.active[k, w.num_active - 1]
        to = place_for(view, k, slot)
        if to != UNKNOWN:
            return int(move_to(workers, slot.request_id, to))
    longest, shortest = extreme(view, k, 1), extreme(view, k, -1)
    difference = not_active(workers[longest]) - not_active(workers[shortest])
    if (
        p.difference > 0
        and may_go(view, shortest)
        and (longest == k or shortest == k)
        and difference >= p.difference
    ):
        last = workers[longest].queue_tail
        if last != UNKNOWN:
            return int(move_to(workers, last, shortest))
    return UNKNOWN


@register_router
class Rebalancing(CompiledRouter):
    """Routes to the fewest unfinished requests; later it levels queues and relieves full memory.

    It acts whenever a batch or a wait of a worker ends. While the next tokens of its active requests do not fit into
    its memory, the latest activated one moves to the worker with the most free memory that has space and no waiting
    request. While the longest and the shortest queue, one of them its own, differ by at least ``difference``, the
    last request of the longest moves to the shortest. Queues are counted in requests, regardless of a worker's speed.
    """

    info = RouterInfo(
        name="rebalancing",
        summary="the fewest unfinished requests; moves waiting requests to shorter queues, active ones off full memory",
        paper="Bari, Hegde, de Veciana, Optimal Scheduling Algorithms for LLM Inference: Theory and Practice",
    )
    kernel = join_shortest_queue_kernel
    second_kernel = rebalancing_kernel
    parameters = Moves

    # A difference of 1 would move a request for ever.
    difference: int = hyperparameter(
        2, lambda value: isinstance(value, int) and value >= 0 and (value != 1), "a whole number >= 2, or 0"
    )
    """minimum difference between two queues, requests, for a reassignment; 0 = no reassignment."""
    migrate: bool = flag(True)
    """whether active requests may be moved."""

    @property
    def reassigns(self) -> bool:  # type: ignore[override]
        """Whether the router moves requests at all."""
        return bool(self.difference or self.migrate)
