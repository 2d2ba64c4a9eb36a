"""Fair scheduling between clients by virtual counters of the service that they received.

Source: Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, arXiv 2401.00588, Algorithm 2, and its
implementation (S-LoRA, ``vtc_req_queue.py``). The client with the least counter starts its earliest request, until one
does not fit. Starting adds the input weight for each prompt token, every output token adds the output weight. When a
client without waiting requests sends one, its counter rises to the least counter of the clients that have some; if none
has, to the service of the last client that had some.

Readings: memory is checked for the next iteration, as in ``fcfs``; on overflow the latest activated requests
leave, and go back to the head of their client's queue. A request that starts again pays nothing for its prompt, and
tokens that it repeats are free. Of equal counters the client with the smaller number goes first. All weights of clients
are 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from kvgym.baselines.class_queues import (
    CLASS_IDS,
    NUM_CLASSES,
    class_row,
    forget_of_row,
    head_at,
    leave_class,
    next_at,
    queues_size,
    tail_at,
)
from kvgym.baselines.margins import MARGINS, Protected
from kvgym.kernels import (
    UNKNOWN,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit,
    evict_latest,
    has_place,
    jit,
    jit_inline,
    left_request,
    named_numbers,
    need_of_active,
    policy_kernel,
    policy_memory,
    room_to_admit,
    taken_by,
)
from kvgym.policies.hyperparameters import (
    fraction,
    positive,
)
from kvgym.policies.policy import PolicyInfo, SystemInfo, register_policy


class Service(NamedTuple):
    """Parameters of ``vtc`` and ``dlpm``."""

    requests: int  # most requests of a run
    limit: int  # memory that admission may use, tokens
    output_weight: float  # service of an output token
    input_weight: float  # service of a prompt token
    quantum: float  # of dlpm: service that a client gets at a refill
    most_waiting: int  # of dlpm: largest number of waiting requests that are sorted
    small_hit: int  # of dlpm: largest hit, tokens, with which a request can go last
    common: int  # of dlpm: tokens that it then has in common with a request ahead of it


service = named_numbers(Service)

# The state for n requests are the queues of class_queues, with clients in place of classes, followed by the output
# tokens that each request has paid for and the row that its client had when it was last looked up, in pairs, and the
# client that was the last to have waiting requests. The real numbers are the counters, by the row of the client.


@jit_inline
def paid_at(n: int, i: int) -> int:
    """Return the index of the output tokens that request ``i`` has paid for; the row of its client follows."""
    return next_at(n, n) + 2 * i


@jit_inline
def last_at(n: int) -> int:
    """Return the index of the client that was the last to have waiting requests."""
    return paid_at(n, n)


def service_size(n: int) -> int:
    """Return the length of the state of ``vtc`` for n requests."""
    return queues_size(n) + 2 * n + 1


@jit
def row_of_client(memory: PolicyMemory, n: int, client: int) -> int:
    """Return the row of a client; a new client gets a counter of 0."""
    state, counters, known = memory.state, memory.reals, memory.state[NUM_CLASSES]
    row = class_row(state, n, client)
    if state[NUM_CLASSES] > known:
        for k in range(known, row, -1):
            counters[k] = counters[k - 1]
        counters[row] = 0.0
    return row


@jit_inline
def row_of(view: PolicyView, memory: PolicyMemory, n: int, i: int) -> int:
    """Return the row of a request's client: where it was last, unless rows have moved since."""
    state, client, known = memory.state, view.extras[i].client_id, paid_at(n, i) + 1
    row = state[known]
    if row >= state[NUM_CLASSES] or state[CLASS_IDS + row] != client:
        row = state[known] = row_of_client(memory, n, client)
    return row


@jit
def join_client(memory: PolicyMemory, n: int, i: int, row: int, returns: bool) -> None:
    """Add a request to the queue of its client, at the head if it returns; lift the counter of an idle client."""
    state, counters = memory.state, memory.reals
    head, tail, following = head_at(n, row), tail_at(n, row), next_at(n, 0)
    if state[head] == UNKNOWN:
        least = math.inf
        for k in range(state[NUM_CLASSES]):
            if state[head_at(n, k)] != UNKNOWN:
                least = min(least, counters[k])
        last = state[last_at(n)]
        if least == math.inf and last != UNKNOWN:
            least = counters[class_row(state, n, last)]
        if not returns and least < math.inf:
            counters[row] = max(counters[row], least)
        state[head] = state[tail] = i
        state[following + i] = UNKNOWN
    elif returns:
        state[following + i] = state[head]
        state[head] = i
    else:
        state[following + state[tail]] = i
        state[following + i] = UNKNOWN
        state[tail] = i


@jit_inline
def charge(view: PolicyView, memory: PolicyMemory, n: int, i: int, made: int) -> None:
    """Charge a request's client for output tokens that it has not paid for."""
    paid = paid_at(n, i)
    if made > memory.state[paid]:
        row = row_of(view, memory, n, i)
        memory.reals[row] += service(memory.params).output_weight * (made - memory.state[paid])
        memory.state[paid] = made


@jit_inline
def charge_all(view: PolicyView, memory: PolicyMemory, n: int) -> None:
    """Charge all clients for the output tokens of the last iteration."""
    w = view.worker
    for k in range(w.num_active):
        slot = view.active[k]
        charge(view, memory, n, slot.request_id, slot.num_output_tokens)
    for j in range(w.num_finished):
        i = view.finished[j]
        charge(view, memory, n, i, view.requests[i].num_output_tokens)


@jit_inline
def least_client(memory: PolicyMemory, n: int) -> int:
    """Return the row of the client with the least counter among those with waiting requests, UNKNOWN without any."""
    row, least = UNKNOWN, math.inf
    for k in range(memory.state[NUM_CLASSES]):
        if memory.state[head_at(n, k)] != UNKNOWN and memory.reals[k] < least:
            row, least = k, memory.reals[k]
    return row


@policy_kernel
def vtc_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Charge for the last iteration, then start requests of the clients with the least counters."""
    w, p, state = view.worker, service(memory.params), memory.state
    n = p.requests
    charge_all(view, memory, n)
    for j in range(w.num_left):
        i = left_request(view, j)
        forget_of_row(state, n, row_of(view, memory, n, i), i)
    for j in range(w.num_queued):
        i = view.queued[j]
        join_client(memory, n, i, row_of(view, memory, n, i), view.requests[i].num_evictions > 0)
    need = need_of_active(view)
    if need > view.problem.kv_capacity:
        evict_latest(view, decision, need)
        return
    row = least_client(memory, n)
    while row != UNKNOWN and has_place(view, decision):
        i = state[head_at(n, row)]
        use = taken_by(view, i)
        if need + use > room_to_admit(view, decision, p.limit):
            break
        need += use
        leave_class(state, n, row)
        state[last_at(n)] = view.extras[i].client_id
        if view.requests[i].num_admissions == 0:
            memory.reals[row] += p.input_weight * view.requests[i].prompt_len
        admit(decision, i)
        row = least_client(memory, n)


@register_policy
class VirtualTokenCounter(Protected):
    """The client with the least counter of service first."""

    info = PolicyInfo(
        name="vtc",
        summary="fair between clients: the one with the least service so far first; LIFO eviction",
        paper="Sheng et al., Fairness in Serving Large Language Models",
        algorithm="Algorithm 2, VTC",
        needs=frozenset({"client"}),
        evicts=True,
    )
    kernel = vtc_kernel

    parameters = Service

    input_weight: float = positive(1.0)
    """service of a prompt token, > 0; the paper's is 1."""
    output_weight: float = positive(2.0)
    """service of an output token, > 0; the paper's is 2."""
    protection: float = fraction(0.0, search=(*MARGINS, 0.4, 0.5))
    """fraction of the capacity that admission leaves free, in [0, 1)."""
    quantum = most_waiting = small_hit = common = 0

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the memory that admission may use, and the number of requests."""
        return {**super().computed(system), "requests": max(1, system.max_requests)}

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return a state without clients."""
        n = max(1, system.max_requests)
        state = np.zeros(service_size(n), np.int64)
        state[last_at(n)] = UNKNOWN
        return policy_memory(self.params(system), state=state, reals=np.zeros(n))
