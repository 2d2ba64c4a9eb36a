"""Fair scheduling between clients by virtual counters of the service that they received.

Source: Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, arXiv 2401.00588, Algorithm 2, and its
implementation (S-LoRA, ``vtc_req_queue.py``). The client with the least counter starts its earliest request, until one
does not fit. Starting adds the input weight for each prompt token, every output token adds the output weight. When a
client without waiting requests sends one, its counter rises to the least counter of the clients that have some; if none
has, to that of the last client that had some.

Readings: the memory check is that of the next iteration, as in ``fcfs``; on overflow the latest activated requests
leave, and go back to the head of their client's queue. A request that starts again pays nothing for its prompt, and
tokens that it repeats are free. Of equal counters the client with the smaller number goes first. All weights of clients
are 1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines.flow import class_row, leave_class
from kvgym.baselines.newer.ordered import positive
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
    need_of_active,
    policy_kernel,
    policy_memory,
    room_to_admit,
    taken_by,
    unlink,
)
from kvgym.policies.policy import (
    CompiledPolicy,
    PolicyInfo,
    SystemInfo,
    fraction_of,
    register_policy,
    require_fraction,
)

# Layout of the parameters: the weights of prompt and output tokens, memory that admission may use, number of requests.
_INPUT, _OUTPUT, _LIMIT, _REQUESTS = range(4)

# The state for n requests is that of flow_control_classes, with clients in place of classes, followed by the output
# tokens that each request has paid for, and the client that was the last to have waiting requests. The real numbers are
# the counters, by the row of the client.


@jit
def row_of_client(memory: PolicyMemory, n: int, client: int) -> int:
    """Return the row of a client; a new client gets a counter of 0."""
    state, counters, known = memory.state, memory.reals, memory.state[0]
    row = class_row(state, n, client)
    if state[0] > known:
        for k in range(known, row, -1):
            counters[k] = counters[k - 1]
        counters[row] = 0.0
    return row


@jit
def join_client(memory: PolicyMemory, n: int, i: int, client: int, returns: bool) -> None:
    """Add a request to the queue of its client, at the head if it returns; lift the counter of an idle client."""
    state, counters = memory.state, memory.reals
    row = row_of_client(memory, n, client)
    head, tail, following = 1 + n + row, 1 + 2 * n + row, 1 + 3 * n
    if state[head] == UNKNOWN:
        least = math.inf
        for k in range(state[0]):
            if state[1 + n + k] != UNKNOWN:
                least = min(least, counters[k])
        last = state[1 + 5 * n]
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
    paid = 1 + 4 * n + i
    if made > memory.state[paid]:
        row = row_of_client(memory, n, view.extras[i].client_id)
        memory.reals[row] += memory.params[_OUTPUT] * (made - memory.state[paid])
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
    for k in range(memory.state[0]):
        if memory.state[1 + n + k] != UNKNOWN and memory.reals[k] < least:
            row, least = k, memory.reals[k]
    return row


@policy_kernel
def vtc_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Charge for the last iteration, then start requests of the clients with the least counters."""
    w, params, state = view.worker, memory.params, memory.state
    n = int(params[_REQUESTS])
    charge_all(view, memory, n)
    for j in range(w.num_left):
        i = left_request(view, j)
        row = row_of_client(memory, n, view.extras[i].client_id)
        unlink(state, 1 + n + row, 1 + 2 * n + row, 1 + 3 * n, i)
    for j in range(w.num_queued):
        i = view.queued[j]
        join_client(memory, n, i, view.extras[i].client_id, view.requests[i].num_evictions > 0)
    need, limit = need_of_active(view), int(params[_LIMIT])
    if need > view.problem.kv_capacity:
        evict_latest(view, decision, need)
        return
    row = least_client(memory, n)
    while row != UNKNOWN and has_place(view, decision):
        i = state[1 + n + row]
        use = taken_by(view, i)
        if need + use > room_to_admit(view, decision, limit):
            break
        need += use
        leave_class(state, n, row)
        state[1 + 5 * n] = view.extras[i].client_id
        if view.requests[i].num_admissions == 0:
            memory.reals[row] += params[_INPUT] * view.requests[i].prompt_len
        admit(decision, i)
        row = least_client(memory, n)


@register_policy
class VirtualTokenCounter(CompiledPolicy):
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

    def __init__(
        self, *, input_weight: float = 1.0, output_weight: float = 2.0, protection: float = 0.0
    ) -> None:
        """Set the weights and the margin.

        Args:
            input_weight: service of a prompt token, > 0; the paper's is 1.
            output_weight: service of an output token, > 0; the paper's is 2.
            protection: fraction of the capacity that admission leaves free, in [0, 1).
        """
        self.input_weight = positive("input_weight", input_weight)
        self.output_weight = positive("output_weight", output_weight)
        require_fraction("protection", protection)
        self.protection = protection

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the parameters, in the order of the kernel."""
        limit = fraction_of(system.kv_capacity, self.protection)
        return np.array(
            [self.input_weight, self.output_weight, limit, max(1, system.max_requests)], np.float64
        )

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return a state without clients."""
        n = max(1, system.max_requests)
        state = np.zeros(2 + 5 * n, np.int64)
        state[1 + 5 * n] = UNKNOWN
        return policy_memory(self.params(system), state=state, reals=np.zeros(n))
