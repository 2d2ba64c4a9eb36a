"""Fair scheduling between clients with respect for the prefix cache: longest hits first, within quotas of service.

Source: S. Cao et al., "Locality-aware Fair Scheduling in LLM Serving", arXiv 2501.14312, deficit longest prefix match
(DLPM), and an implementation of it in a fork of SGLang (a mixin that tracks deficits, found in public indexes of code).
Each client has a deficit, 0 at first. Requests are in the order of ``lpm``, and only those of clients with a positive
deficit start. Starting takes the extend weight from the deficit for each token that has to be computed, every output
token takes the output weight. Once no waiting request has a client with a positive deficit, all clients without one get
a quantum, and it goes on, until a request does not fit. So clients drift apart by quanta, and the order within these is
free to follow the cache.

Readings: a refill is for all clients that have sent a request, whether they have some waiting or not; deficits of idle
clients stay as they are. A request that starts again pays for what it computes again; tokens that it repeats are free.
Memory check, evictions and the order beyond ``most_waiting`` requests are those of ``lpm``. The quantum has no
published default: the class's default is the weight of a few requests. Weights of prompt and output tokens are 1 and 2
as those of ``vtc``, so that both count the same service.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from kvgym.baselines.class_queues import NUM_CLASSES
from kvgym.baselines.longest_prefix import rank_waiting
from kvgym.baselines.margins import PROTECTION, Protected
from kvgym.baselines.newer.clients import Service, charge_all, last_at, row_of, service, service_size
from kvgym.kernels import (
    UNKNOWN,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit,
    evict_latest,
    first_waiting,
    has_place,
    heap_first,
    heap_pop,
    jit_inline,
    need_of_active,
    next_waiting,
    policy_kernel,
    policy_memory,
    room_to_admit,
    taken_by,
)
from kvgym.policies.hyperparameters import (
    positive,
    whole,
)
from kvgym.policies.policy import PolicyInfo, SystemInfo, register_policy

# The state for n requests begins like the state of vtc, followed by the number of decisions, the last decision that
# started each request, and the heap of lpm. The real numbers are the clients' debts, by row: deficits with the sign
# changed.


@jit_inline
def decisions_at(n: int) -> int:
    """Return the index of the number of decisions."""
    return last_at(n) + 1


@jit_inline
def stamps_at(n: int) -> int:
    """Return the index of the last decision that started each request, by request; the heap of lpm follows."""
    return decisions_at(n) + 1


@jit_inline
def sort_waiting(view: PolicyView, memory: PolicyMemory, base: int) -> None:
    """Write the waiting requests at ``base`` in the order of lpm, followed by UNKNOWN."""
    p, state = service(memory.params), memory.state
    most = p.most_waiting
    rank_waiting(view, state, base, most, p.small_hit, p.common)
    order, count = base + 1 + 2 * most, 0
    while state[base] > 0:
        state[order + count] = state[base + 1 + most + heap_first(state, base)]
        heap_pop(state, base)
        count += 1
    state[order + count] = UNKNOWN


@jit_inline
def start_in_turn(
    view: PolicyView, decision: PolicyDecision, memory: PolicyMemory, need: int, place: int
) -> int:
    """Start requests of clients without debt, in one pass, until one does not fit.

    Args:
        view: the kernel's view.
        decision: the decision.
        memory: the policy's memory.
        need: memory that the next iteration needs without them.
        place: where the order begins, UNKNOWN for the order of the queue.

    Returns:
        The memory that is needed then; UNKNOWN if nothing can start any more, 0 if quotas have to be refilled.
    """
    p, state, debts = service(memory.params), memory.state, memory.reals
    n = p.requests
    now, stamps = state[decisions_at(n)], stamps_at(n)
    started, rest, k = 0, 0, place
    i = first_waiting(view) if place == UNKNOWN else state[place]
    while i != UNKNOWN:
        if state[stamps + i] != now:
            row = row_of(view, memory, n, i)
            if debts[row] < 0.0:
                use = taken_by(view, i)
                if not has_place(view, decision) or need + use > room_to_admit(view, decision, p.limit):
                    return UNKNOWN
                need += use
                debts[row] += p.input_weight * view.requests[i].num_prefill_left
                admit(decision, i)
                state[stamps + i] = now
                started += 1
            else:
                rest += 1
        k += 1
        i = next_waiting(view, i) if place == UNKNOWN else state[k]
    if started > 0:
        return need
    return 0 if rest > 0 else UNKNOWN


@jit_inline
def refill(view: PolicyView, memory: PolicyMemory, place: int) -> None:
    """Give quanta to all clients in debt, as often as it takes until one with a waiting request has none."""
    p, state, debts = service(memory.params), memory.state, memory.reals
    n, quantum = p.requests, p.quantum
    now, stamps = state[decisions_at(n)], stamps_at(n)
    times, k = math.inf, place
    i = first_waiting(view) if place == UNKNOWN else state[place]
    while i != UNKNOWN:
        if state[stamps + i] != now:
            row = row_of(view, memory, n, i)
            times = min(times, math.floor(debts[row] / quantum) + 1.0)
        k += 1
        i = next_waiting(view, i) if place == UNKNOWN else state[k]
    for row in range(state[NUM_CLASSES]):
        if debts[row] >= 0.0:
            debts[row] -= quantum * min(times, math.floor(debts[row] / quantum) + 1.0)


@policy_kernel
def dlpm_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Charge for the last iteration, then start requests of clients within their quotas, those with long hits first."""
    w, p, state = view.worker, service(memory.params), memory.state
    n, most = p.requests, p.most_waiting
    charge_all(view, memory, n)
    need = need_of_active(view)
    if need > view.problem.kv_capacity:
        evict_latest(view, decision, need)
        return
    base, place = stamps_at(n) + n, UNKNOWN
    if view.problem.prefix_unit > 0 and w.num_waiting <= most:
        sort_waiting(view, memory, base)
        place = base + 1 + 2 * most
    state[decisions_at(n)] += 1
    while True:
        after = start_in_turn(view, decision, memory, need, place)
        if after == UNKNOWN:
            break
        if after > 0:
            need = after
        else:
            refill(view, memory, place)


@register_policy
class DeficitLongestPrefixMatch(Protected):
    """Longest hit in the prefix cache first, among clients that have not used up their quota of service."""

    info = PolicyInfo(
        name="dlpm",
        summary="fair between clients by quanta, longest hit in the prefix cache first within them; LIFO eviction",
        paper="Cao et al., Locality-aware Fair Scheduling in LLM Serving",
        algorithm="deficit longest prefix match, DLPM",
        needs=frozenset({"client"}),
        evicts=True,
    )
    kernel = dlpm_kernel

    parameters = Service

    quantum: float = positive(2000.0, search=(200.0, 1000.0, 2000.0, 5000.0, 20000.0))
    """service that a client gets at a refill, > 0."""
    extend_weight: float = positive(1.0)
    """service of a prompt token that is computed, > 0."""
    output_weight: float = positive(2.0)
    """service of an output token, > 0."""
    most_waiting: int = whole(128)
    """largest number of waiting requests that are sorted, as in ``lpm``."""
    small_hit: int = whole(32, least=0)
    """largest hit, tokens, with which a request can go last, as in ``lpm``."""
    common: int = whole(32)
    """tokens that it then has in common with a request ahead of it."""
    protection: float = PROTECTION

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the memory that admission may use, the numbers of requests, and the weight of prompt tokens."""
        requests = max(1, system.max_requests)
        return {
            **super().computed(system),
            "requests": requests,
            "most_waiting": min(self.most_waiting, requests),
            "input_weight": self.extend_weight,
        }

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return a state without clients."""
        n = max(1, system.max_requests)
        most = min(self.most_waiting, n)
        return policy_memory(
            self.params(system),
            state=np.zeros(service_size(n) + 1 + n + 2 + 3 * most, np.int64),
            reals=np.zeros(n),
        )
