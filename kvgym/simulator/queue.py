"""The waiting queue of a worker: a doubly linked list through the request table.

Every operation is O(1) except the sorted insertion. It searches from three places at once: from both ends of
the queue, and among the requests that arrived next after the returning one. In every order of admission, one
of these is near the right place. First come, first served leaves later requests at the head of the queue. If
requests overtake others, some that arrived soon after any given request still wait.
"""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit
from kvgym.simulator.tables import ADMITTING, REQUEUE_BACK, REQUEUE_FRONT, ROLE_DECODE, UNKNOWN, WAITING

Record = Any
Table = Any


@jit
def queue_insert(w: Record, requests: Table, i: int, before: int) -> None:
    """Insert request ``i`` before request ``before``; UNKNOWN = at the tail."""
    after = w.queue_tail if before == UNKNOWN else requests[before].queue_prev
    requests[i].queue_prev = after
    requests[i].queue_next = before
    if after == UNKNOWN:
        w.queue_head = i
    else:
        requests[after].queue_next = i
    if before == UNKNOWN:
        w.queue_tail = i
    else:
        requests[before].queue_prev = i
    w.num_waiting += 1


@jit
def waits_at(w: Record, r: Any) -> bool:
    """Return whether a request is in the queue of this worker; requests about to be admitted are."""
    return bool(r.worker == w.index and (r.status == WAITING or r.status == ADMITTING))


@jit
def queue_return(w: Record, requests: Table, i: int, requeue: int) -> None:
    """Requeue an evicted request: by (arrival, id), at the front, or at the back."""
    before = UNKNOWN
    if requeue == REQUEUE_FRONT:
        before = w.queue_head
    elif requeue != REQUEUE_BACK:  # request ids are in arrival order
        before, after, younger = w.queue_head, w.queue_tail, i + 1
        # Else requests queue in the order their KV arrives, or the router moves them.
        in_order = w.role != ROLE_DECODE and w.total_received == 0
        while before != UNKNOWN and before < i:
            if in_order and after < i:  # reached from the tail: the first that is older
                before = requests[after].queue_next
                break
            if in_order and waits_at(
                w, requests[younger]
            ):  # the next by id: there is one, as the tail is younger
                before = younger
                break
            w.total_queue_steps += 1
            before, younger = requests[before].queue_next, younger + 1
            after = requests[after].queue_prev if in_order else UNKNOWN
    queue_insert(w, requests, i, before)


@jit
def queue_remove(w: Record, requests: Table, i: int) -> None:
    """Remove request ``i`` from the queue."""
    after, before = requests[i].queue_prev, requests[i].queue_next
    if after == UNKNOWN:
        w.queue_head = before
    else:
        requests[after].queue_next = before
    if before == UNKNOWN:
        w.queue_tail = after
    else:
        requests[before].queue_prev = after
    w.num_waiting -= 1
