"""Shared links: each worker of a cluster has one port for what it sends, and one for what it receives.

A transfer joins the port of its source and the port of its target when it is sent. It moves nothing for the latency;
then it has the link's bandwidth divided by the number of transfers at the busier of its two ports, those in latency
included. What one port cannot use is not given to others, so the rates are a lower bound of max-min fairness.

When a number changes, each transfer at that port with another share notes what is left and gets a new end. So the times
are exact, and a change costs O(k log m) for k transfers at the two ports and m in all. A transfer that stays alone ends
at the same bit as on a link of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit
from kvgym.simulator.cluster.tables import FLOW, LINK, PORT, Cluster
from kvgym.simulator.system import System
from kvgym.simulator.tables import UNKNOWN


def link_tables(system: System, num_requests: int) -> dict[str, NDArray[Any]]:
    """Return the tables of a cluster's links by name; without rows if transfers neither share links nor overlap."""
    shared = system.transfer_link == "shared"
    link = np.zeros(int(shared or system.transfer_overlap > 0), LINK)
    link["layers"] = system.transfer_overlap
    ports = np.zeros(len(system.all_workers) if shared else 0, PORT)
    ports["first_sent"] = ports["first_received"] = UNKNOWN
    flows = np.zeros(num_requests if shared else 0, FLOW)
    return {"link": link, "ports": ports, "flows": flows}


@jit
def left_to_send(c: Cluster, tokens: int, seconds: float) -> float:
    """Return the KV tokens that are sent after the end of a prompt's last batch, which took ``seconds``.

    With an overlap by layers, what was ready was sent while the batch ran; the last layer never was. Source: the
    pipelined transfers of Mooncake's and other connectors, layer by layer.
    """
    if c.link.shape[0] == 0 or c.link[0].layers == 0 or tokens == 0:
        return float(tokens)
    alone = c.problems[0].transfer_time * tokens
    early = seconds / alone if alone > 0 else 1.0
    return float(tokens * max(1.0 / c.link[0].layers, 1.0 - early))


@jit
def lands_before(c: Cluster, i: int, other: int) -> bool:
    """Return whether the transfer of request ``i`` ends before another one; of equal ones, the first request's."""
    mine, its = c.requests[i].ready_time, c.requests[other].ready_time
    return bool(mine < its or (mine == its and i < other))


@jit
def put(c: Cluster, place: int, i: int) -> None:
    """Put the transfer of request ``i`` into a place of the heap."""
    c.flows[place].heap = i
    c.flows[i].place = place


@jit
def settle_in_heap(c: Cluster, i: int) -> None:
    """Restore the order of the heap after the end of the transfer of request ``i`` has changed."""
    flows, place, count = c.flows, c.flows[i].place, c.link[0].num_flows
    while place > 0 and lands_before(c, i, flows[(place - 1) >> 1].heap):
        put(c, place, flows[(place - 1) >> 1].heap)
        place = (place - 1) >> 1
    while 2 * place + 1 < count:
        child = 2 * place + 1
        if child + 1 < count and lands_before(c, flows[child + 1].heap, flows[child].heap):
            child += 1
        if not lands_before(c, flows[child].heap, i):
            break
        put(c, place, flows[child].heap)
        place = child
    put(c, place, i)


@jit
def share_again(c: Cluster, i: int) -> None:
    """Give a transfer its present share of its ports; one that ends now keeps its end."""
    f, r, now = c.flows[i], c.requests[i], c.tracker.clock
    share = max(c.ports[f.source].num_sent, c.ports[r.worker].num_received)
    if share == f.share or r.ready_time <= now:
        return
    seconds = c.problems[0].transfer_time
    if now > f.since:
        if seconds > 0:
            f.left = max(0.0, f.left - (now - f.since) / (seconds * f.share))
        f.since = now
    f.share = share
    r.ready_time = f.since + seconds * f.left * share
    settle_in_heap(c, i)


@jit
def ports_changed(c: Cluster, source: int, target: int) -> None:
    """Give all transfers at two ports their present shares, and note which transfer ends first."""
    j = c.ports[source].first_sent
    while j != UNKNOWN:
        share_again(c, j)
        j = c.flows[j].next_sent
    j = c.ports[target].first_received
    while j != UNKNOWN:
        share_again(c, j)
        j = c.flows[j].next_received
    c.tracker.transfer_head = c.flows[0].heap if c.link[0].num_flows > 0 else UNKNOWN


@jit
def join_ports(c: Cluster, source: int, i: int, tokens: float) -> None:
    """Begin the transfer of request ``i`` from a worker to its own; ``ready_time`` is the end without others."""
    f, r, flows, target = c.flows[i], c.requests[i], c.flows, c.requests[i].worker
    f.alone, f.left, f.share, f.source = r.ready_time, tokens, 0, source
    f.since = c.tracker.clock + c.problems[0].transfer_latency
    sent, received = c.ports[source], c.ports[target]
    f.before_sent = f.before_received = UNKNOWN
    f.next_sent, f.next_received = sent.first_sent, received.first_received
    if f.next_sent != UNKNOWN:
        flows[f.next_sent].before_sent = i
    if f.next_received != UNKNOWN:
        flows[f.next_received].before_received = i
    sent.first_sent = received.first_received = i
    sent.num_sent += 1
    received.num_received += 1
    put(c, c.link[0].num_flows, i)
    c.link[0].num_flows += 1
    r.ready_time = np.inf
    ports_changed(c, source, target)


@jit
def leave_ports(c: Cluster, i: int) -> None:
    """End the transfer of request ``i``, whether it has landed or not."""
    f, flows, target = c.flows[i], c.flows, c.requests[i].worker
    sent, received = c.ports[f.source], c.ports[target]
    if f.before_sent == UNKNOWN:
        sent.first_sent = f.next_sent
    else:
        flows[f.before_sent].next_sent = f.next_sent
    if f.next_sent != UNKNOWN:
        flows[f.next_sent].before_sent = f.before_sent
    if f.before_received == UNKNOWN:
        received.first_received = f.next_received
    else:
        flows[f.before_received].next_received = f.next_received
    if f.next_received != UNKNOWN:
        flows[f.next_received].before_received = f.before_received
    sent.num_sent -= 1
    received.num_received -= 1
    f.waited += max(0.0, min(c.requests[i].ready_time, c.tracker.clock) - f.alone)
    c.link[0].num_flows -= 1
    last = flows[c.link[0].num_flows].heap
    if last != i:
        put(c, f.place, last)
        settle_in_heap(c, last)
    ports_changed(c, f.source, target)
