"""Clusters against an independent simulation of events.

The independent simulation below uses plain lists and has three schedulers (first come first served, vLLM's, and
DistServe's). It is written from the descriptions of the model alone, and everything is compared bit for bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from helpers.amount import number, some
from helpers.runs.clusters import AFFINE, STAIRS, UNIT, rules_of, workload
from kvgym.baselines.first_come import FCFS
from kvgym.batch_time import AffineBatchTime
from kvgym.policies.policy import Policy, PolicyInfo
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System, Worker
from kvgym.workloads.table import RequestTable

# ---------------------------------------------------------------- an independent simulation of events


@dataclass(eq=False)
class Job:
    """A request of the independent simulation."""

    i: int
    arrival: float
    s: int
    o: int
    guess: int
    left: int = 0
    kv: int = 0
    out: int = 0
    most: int = 0
    swapped: bool = False
    start: float = math.nan
    first: float = math.nan
    last: float = math.nan
    finish: float = math.nan
    longest: float = 0.0
    admissions: int = 0
    evictions: int = 0
    at: int = -1


@dataclass(eq=False)
class Node:
    """A worker of the independent simulation."""

    of: Worker
    k: int
    queue: list[Job] = field(default_factory=list)
    active: list[Job] = field(default_factory=list)
    batch: list[Job] | None = None
    until: float = math.inf
    begun: float = 0.0
    own: list[Job] = field(default_factory=list)  # routed to it, finished or not
    busy: float = 0.0

    def outstanding(self) -> list[Job]:
        return [job for job in self.own if job.at == self.k and math.isnan(job.finish)]


Plan = tuple[list[Job], list[Job], list[Job]]  # evicted, admitted, and those in the batch


class Events:
    """Workers, a router and transfers: the place of each request, and the time of the next event."""

    def __init__(self, system: System, table: RequestTable, rule: Any, router: Any) -> None:
        self.system, self.rule, self.router = system, rule, router
        self.emits = 1 if system.first_token == "counted" else 0
        self.nodes = [Node(worker, k) for k, worker in enumerate(system.all_workers)]
        self.jobs = [
            Job(i, float(a), int(s), int(o), 0 if g is None else int(g), left=int(s))
            for i, (a, s, o, g) in enumerate(
                zip(
                    table.arrival_time,
                    table.prompt_len,
                    table.output_len,
                    table.predicted_output_len,
                    strict=True,
                )
            )
        ]
        self.rows: list[tuple[int, float, float]] = []

    def growth(self, job: Job) -> int:
        """Return the KV tokens of a full step: a whole prefill, which may write output token 1, or one decode."""
        return job.left + self.emits if job.left else 1

    def run(self) -> None:
        now, to_come = 0.0, list(self.jobs)
        prefill = [node for node in self.nodes if node.of.role == "prefill"]
        decode = [node for node in self.nodes if node.of.role == "decode"]
        front = prefill or self.nodes
        moving: list[tuple[float, int, Job, Node]] = []
        sent = 0
        while True:
            leaving: list[Job] = []
            for node in self.nodes:
                if node.until <= now:
                    self.finish(node)
                    if node in prefill:
                        leaving += [job for job in node.active if job.left == 0]
                        node.active = [job for job in node.active if job.left]
            for job in leaving:
                job.at = -1
            for job in leaving:
                target = self.give(job, decode)
                delay = self.system.transfer_latency, self.system.transfer_time * job.kv
                moving.append((now + delay[0] + delay[1], sent, job, target))
                sent += 1
            for ready in sorted(m for m in moving if m[0] <= now):
                moving.remove(ready)
                ready[3].queue.append(ready[2])
            while to_come and to_come[0].arrival <= now:
                job = to_come.pop(0)
                self.give(job, front).queue.append(job)
            for node in self.nodes:
                if node.batch is None and (node.active or node.queue):
                    self.begin(node, now)
            times = [job.arrival for job in to_come[:1]] + [m[0] for m in moving]
            times += [node.until for node in self.nodes if node.batch is not None]
            if not times:
                return
            now = min(times)

    def give(self, job: Job, nodes: list[Node]) -> Node:
        node: Node = nodes[0] if len(nodes) == 1 else self.router(job, nodes)
        job.at = node.k
        node.own.append(job)
        return node

    def begin(self, node: Node, now: float) -> None:
        evict, admit, batch = self.rule(self, node)
        swapped = 0
        for job in evict:
            node.active.remove(job)
            job.evictions += 1
            keep = self.system.progress_on_evict
            if keep == "kept":
                swapped += job.kv
                job.swapped = True
            else:
                job.kv = 0
                job.out = 0 if keep == "lost" else job.out
                job.left = job.s + job.out
            place = {"front": 0, "back": len(node.queue)}.get(self.system.requeue)
            if place is None:
                place = next((p for p, other in enumerate(node.queue) if other.i > job.i), len(node.queue))
            node.queue.insert(place, job)
        for job in admit:
            node.queue.remove(job)
            node.active.append(job)
            job.admissions += 1
            job.start = now if math.isnan(job.start) else job.start
            swapped += job.kv if job.swapped else 0
            job.swapped = False
        prefills, decodes = [j for j in batch if j.left], [j for j in batch if not j.left]
        assert sum(j.kv for j in node.active) + sum(map(self.growth, batch)) <= node.of.kv_capacity
        duration = node.of.batch_time(
            num_prefills=len(prefills),
            prefill_tokens=sum(j.left for j in prefills),
            prefill_context=sum(j.kv for j in prefills),
            prefill_squares=sum(j.left**2 for j in prefills),
            prefill_products=sum(j.left * j.kv for j in prefills),
            num_decodes=len(decodes),
            decode_context=sum(j.kv for j in decodes),
        )
        duration += self.system.swap_time * swapped
        node.batch, node.begun, node.until = list(batch), now, now + duration
        node.busy += duration

    def finish(self, node: Node) -> None:
        end, batch = node.until, node.batch
        assert batch is not None
        self.rows.append((node.k, node.begun, end))
        for job in batch:
            emits = self.emits if job.left else 1
            if job.left and self.system.first_token == "uncounted" and math.isnan(job.last):
                job.first = job.last = end
            job.kv += self.growth(job)
            job.left = 0
            job.out += emits
            if emits and job.out > job.most:
                job.most = job.out
                if math.isnan(job.last):
                    job.first = end
                else:
                    job.longest = max(job.longest, end - job.last)
                job.last = end
            if job.out == job.o:
                job.finish = end
                job.kv = 0
                node.active.remove(job)
        node.batch, node.until = None, math.inf


def lifo(events: Events, node: Node, width: int = 10**9) -> list[Job]:
    """Return the requests to evict, newest first, until the others can all run (at most ``width`` of them)."""
    stay, out = list(node.active), []
    while sum(j.kv for j in stay) + sum(events.growth(j) for j in stay[:width]) > node.of.kv_capacity:
        out.append(stay.pop())
    return out


def fcfs_rule(events: Events, node: Node) -> Plan:
    """Evict the newest until the next round fits; if none was evicted, admit in queue order while it fits."""
    evict, admit = lifo(events, node), []
    if not evict:
        need = sum(j.kv + events.growth(j) for j in node.active)
        for job in node.queue:
            need += job.kv + events.growth(job)
            if need > node.of.kv_capacity:
                break
            admit.append(job)
    return evict, admit, [j for j in node.active if j not in evict] + admit


def vllm_rule(events: Events, node: Node) -> Plan:
    """Only prompts if one fits, with a hundredth of the memory left free; else decodes."""
    M = node.of.kv_capacity
    free, admit = M - math.ceil(Fraction(M, 100)), []
    rest = sum(j.kv for j in node.active)
    for job in node.queue:
        new = [j for j in admit if j.left]
        rest_if = rest + job.kv + events.growth(job)
        if not job.left and not new:
            rest_if += len(node.active)
        if rest_if > (free if node.active or admit else M):
            break
        rest += job.kv + events.growth(job)
        admit.append(job)
    if any(j.left for j in admit):
        return [], admit, [j for j in admit if j.left]
    evict = [] if admit else lifo(events, node)
    return evict, admit, [j for j in node.active if j not in evict] + admit


def dist_serve_rule(events: Events, node: Node) -> Plan:
    """One whole prompt alone, if it and one token more fit; else all prefilled requests decode."""
    M, admit = node.of.kv_capacity, []
    for job in node.queue:
        kv = sum(j.kv for j in [*node.active, *admit, job])
        if job.left:
            if kv + job.left + 1 > M:
                break
            return [], [*admit, job], [job]
        if kv + len(node.active) + len(admit) + 1 > M:
            break
        admit.append(job)
    evict = [] if admit else lifo(events, node)
    return evict, admit, [j for j in node.active if j not in evict] + admit


class Turns:
    """The workers in turn, with separate turns for hand-overs."""

    def __init__(self, predictions: bool) -> None:
        self.turns: dict[int, int] = {}

    def __call__(self, job: Job, nodes: list[Node]) -> Node:
        turn = self.turns[nodes[0].k] = self.turns.get(nodes[0].k, -1) + 1
        return nodes[turn % len(nodes)]


class Shortest:
    """Fewest unfinished requests."""

    def __init__(self, predictions: bool) -> None:
        self.predictions = predictions

    def weight(self, node: Node) -> Any:
        return len(node.outstanding())

    def __call__(self, job: Job, nodes: list[Node]) -> Node:
        return min(nodes, key=lambda node: (self.weight(node), node.k))


class Lightest(Shortest):
    """Fewest tokens of unfinished requests per token of memory."""

    def weight(self, node: Node) -> Any:
        tokens = sum(job.s + self.predictions * job.guess for job in node.outstanding())
        return Fraction(tokens, node.of.kv_capacity)


class InformedFCFS(FCFS):
    """FCFS in a system that predicts lengths."""

    info = PolicyInfo(
        name="informed_fcfs", summary="FCFS", needs=frozenset({"predicted_length"}), evicts=True
    )


POLICY_RULES: dict[str, tuple[Callable[[], Policy | str], Any, bool]] = {
    "fcfs": (lambda: "fcfs", fcfs_rule, False),
    "informed_fcfs": (InformedFCFS, fcfs_rule, True),
    "vllm": (lambda: "vllm", vllm_rule, False),
    "dist_serve": (lambda: "dist_serve", dist_serve_rule, False),
}


ROUTER_RULES: dict[str, Any] = {
    "round_robin": Turns,
    "join_shortest_queue": Shortest,
    "least_outstanding_work": Lightest,
}


def compare(system: System, table: RequestTable, policy: str, router: str) -> Events:
    make, rule, predictions = POLICY_RULES[policy]
    events = Events(system, table, rule, ROUTER_RULES[router](predictions))
    events.run()
    result = simulate(system, table, make(), router=router, log=True)
    assert result.completed
    for column, attribute in (
        ("worker", "at"), ("start_time", "start"), ("first_token_time", "first"), ("finish_time", "finish"),
        ("last_token_time", "last"), ("max_token_gap", "longest"), ("num_evictions", "evictions"),
        ("num_admissions", "admissions"), ("num_output_tokens", "out"),
    ):  # fmt: skip
        expected = [getattr(job, attribute) for job in events.jobs]
        np.testing.assert_array_equal(result.requests[column], expected, err_msg=column)
    assert result.log is not None
    rows = result.log[["worker", "start_time", "end_time"]].tolist()
    assert rows == events.rows
    assert result.worker["busy_time"].tolist() == [node.busy for node in events.nodes]
    assert result.worker["total_routed"].tolist() == [len(node.own) for node in events.nodes]
    return events


UNLIKE = [Worker(20, AFFINE), Worker(45, UNIT), Worker(30, STAIRS)]


@pytest.mark.parametrize("router", ROUTER_RULES)
@pytest.mark.parametrize("policy", POLICY_RULES)
def test_heterogeneous_workers_equal_the_independent_simulation(policy: str, router: str) -> None:
    evictions = 0
    for k in some(range(27), 5):
        system = System.cluster(UNLIKE, swap_time=(0.0, 0.011)[k % 2], **rules_of(k))
        events = compare(system, workload(k, n=40, rate=1.6, gap=12.0 * (k % 3 == 0)), policy, router)
        evictions += sum(job.evictions for job in events.jobs)
    assert evictions > number(20, 4)


@pytest.mark.parametrize("router", ROUTER_RULES)
@pytest.mark.parametrize("policy", POLICY_RULES)
@pytest.mark.parametrize("stages", [(1, 1), (2, 3)])
def test_stages_equal_the_independent_simulation(stages: tuple[int, int], policy: str, router: str) -> None:
    """Heterogeneous prefill and decode workers; the decode workers are too small for the load."""
    fast = [Worker(40, AffineBatchTime(0.2, 0.01), "prefill"), Worker(25, UNIT, "prefill")]
    slow = [Worker(22, AFFINE, "decode"), Worker(30, UNIT, "decode"), Worker(26, STAIRS, "decode")]
    evictions = overtaken = 0
    for k in some(range(0, 27, 2), 4):
        system = System.cluster(
            fast[: stages[0]] + slow[: stages[1]],
            transfer_latency=(0.0, 0.5, 3.0)[k % 3],
            transfer_time=(0.0, 0.125)[k // 2 % 2],
            swap_time=(0.0, 0.011)[k // 4 % 2],
            **rules_of(k),
        )
        table = workload(100 + k, n=30, rate=0.5 + 1.5 * (stages[1] > 1))
        events = compare(system, table, policy, router)
        evictions += sum(job.evictions for job in events.jobs if job.at >= stages[0])
        ready = [job for job in events.jobs if job.at >= stages[0]]
        arrived = [job.i for node in events.nodes[stages[0] :] for job in node.own]
        overtaken += sum(b < a for a, b in itertools.pairwise(arrived))
        assert len(ready) >= 20
    assert evictions >= number(10, 3)
    assert overtaken > 0 or stages == (1, 1)


@pytest.mark.parametrize("policy", POLICY_RULES)
def test_batches_of_zero_duration(policy: str) -> None:
    """Decodes take no time: many batches, hand-overs and deliveries happen at one moment."""
    model = AffineBatchTime(0.0, 0.5)
    mixed = System.cluster([Worker(30, model), Worker(40, UNIT), Worker(30, model)])
    prefill = [Worker(40, model, "prefill"), Worker(40, UNIT, "prefill")]
    decode = [Worker(22, model, "decode"), Worker(22, UNIT, "decode")]
    stages = System.cluster(prefill + decode)
    for seed in range(number(4, 1)):
        for router in ROUTER_RULES:
            compare(mixed, workload(seed, n=40, rate=3.0), policy, router)
            compare(stages, workload(seed, n=40, rate=2.0), policy, router)
