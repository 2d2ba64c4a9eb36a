"""Clusters against single workers, against an independent simulation of events, and on schedules worked out by hand.

The independent simulation below keeps plain lists and knows three schedulers (first come first served, vLLM's, and
DistServe's); it is written from the descriptions of the model alone. Everything is compared bit for bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from kvgym.baselines.first_come import FCFS
from kvgym.batch_time import AffineBatchTime, PiecewiseBatchTime, UnitBatchTime
from kvgym.errors import InvalidDecisionError, KVGymError, LivelockError, WorkloadError
from kvgym.policy import POLICIES, CompiledPolicy, Decision, Policy, PolicyInfo, SystemInfo, make_policy
from kvgym.routing import Router, make_router
from kvgym.runner import SimulationResult, result_of, simulate, system_info
from kvgym.seeding import stream_seed
from kvgym.simulator.cluster_simulation import ClusterSimulation
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE, System, Worker
from kvgym.simulator.tables import ACTIVE, FINISHED, FUTURE, TRANSFERRING, WAITING
from kvgym.simulator.view import ClusterView, SystemView
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable

EACH = pytest.mark.parametrize("name", POLICIES)
UNIT, AFFINE = UnitBatchTime(), AffineBatchTime(0.31, 0.017, 0.023, 0.0011)
STAIRS = PiecewiseBatchTime("kv_tokens", [5, 20, 60], [0.25, 0.5, 1.75], 0.03)
TIMES = {"unit": UNIT, "affine": AFFINE}
RULES = list(itertools.product(FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE))


def rules_of(k: int) -> dict[str, str]:
    return dict(zip(("first_token", "progress_on_evict", "requeue"), RULES[k], strict=True))


def workload(seed: int = 0, n: int = 16, rate: float = 0.7, gap: float = 0.0) -> RequestTable:
    """Requests with every column, arrivals on a grid of halves; ``gap`` seconds of nothing after every sixth."""
    rng = np.random.default_rng(seed)
    output = rng.integers(1, 10, n)
    guess = np.maximum(1, output + rng.integers(-1, 2, n))
    arrival = np.floor(2 * np.cumsum(rng.exponential(1 / rate, n))) / 2
    return RequestTable.from_columns(
        arrival_time=arrival + gap * (np.arange(n) // 6),
        prompt_len=rng.integers(1, 9, n),
        output_len=output,
        predicted_output_len=guess,
        predicted_low=np.maximum(1, guess - 2),
        predicted_high=guess + 3,
        class_id=rng.integers(0, 2, n),
        priority=rng.integers(0, 3, n),
        ttft_slo=rng.uniform(1, 20, n),
        tbt_slo=rng.uniform(0.5, 4, n),
        classes=(
            ClassStatistics("short", rate / 2, 4.5, 4.0),
            ClassStatistics("long", rate / 2, 4.5, 6.0),
        ),
    )


def equal_tables(a: Any, b: Any, where: str, ignore: Sequence[str] = ()) -> None:
    assert a.dtype == b.dtype
    assert a.shape == b.shape, where
    for name in a.dtype.names or (...,):
        if name not in ignore:
            np.testing.assert_array_equal(a[name], b[name], err_msg=f"{where}.{name}")


def assert_equal(one: SimulationResult, other: SimulationResult) -> None:
    for table in ("requests", "worker", "log", "gap_counts", "gap_sums"):
        equal_tables(getattr(one, table), getattr(other, table), table)
    assert one.completed == other.completed


def outcome(system: System, table: RequestTable, policy: Any, **options: Any) -> Any:
    try:
        return simulate(system, table, policy, log=True, **options)
    except LivelockError as error:
        return str(error)


class ThroughView(Policy):
    """Another policy, consulted through ``schedule`` as a user's policy would be."""

    def __init__(self, inner: Policy) -> None:
        self.inner, self.info = inner, inner.info  # type: ignore[misc]

    def reset(self, system: SystemInfo) -> None:
        self.inner.reset(system)

    def schedule(self, view: SystemView) -> Decision:
        return self.inner.schedule(view)


class PlainRouter(Router):
    """Another router, consulted through ``route`` as a user's would be."""

    def __init__(self, inner: Router) -> None:
        self.inner, self.info = inner, inner.info  # type: ignore[misc]

    def reset(self, num_workers: int, seed: np.random.SeedSequence) -> None:
        self.inner.reset(num_workers, seed)

    def route(self, view: ClusterView) -> int:
        return self.inner.route(view)


# ---------------------------------------------------------------- a cluster of one worker is that worker


@EACH
@pytest.mark.parametrize("time", TIMES)
def test_one_worker_is_the_single_worker(name: str, time: str) -> None:
    ended = 0
    for j, k in enumerate(range(0, 27, 2)):
        for horizon, capacity, gap in ((math.inf, 48, 0.0), (math.inf, 28, 45.0), (19.5, 32, 8.0)):
            system = System(capacity, TIMES[time], horizon=horizon, stall_limit=80, **rules_of(k))
            table = workload(j, gap=gap)
            one = outcome(system, table, name, seed=k)
            other = outcome(system.replicate(1), table, name, seed=k)
            if isinstance(one, str) or isinstance(other, str):
                assert one == other
                continue
            ended += 1
            assert_equal(one, other)
    assert ended >= 15


class Waits(Policy):
    """Waits or runs empty batches a while, then serves everybody it sees."""

    info = PolicyInfo(name="waits", summary="waits")

    def __init__(self, *, first: Sequence[Any] = ()) -> None:
        self.first = list(first)

    def reset(self, system: SystemInfo) -> None:
        self.left = list(self.first)

    def schedule(self, view: SystemView) -> Decision:
        if self.left and view.num_waiting:
            until = self.left.pop(0)
            return Decision(wait_until=None if until is None else view.clock + until)
        return Decision(admit=view.waiting.request_id.tolist())


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("horizon", [1.0, 2.5, 6.0, math.inf])
@pytest.mark.parametrize(
    "first",
    [[1, math.inf], [None, None], [None, math.inf], [0.5, 0.5, 0.5], [math.inf] * 3, [0.25] * 5, [1.5, None]],
)
def test_one_worker_that_waits(first: list[Any], horizon: float, limit: int) -> None:
    """Waits that end with an arrival, at the horizon, or never; livelocks are found at the same decision."""
    system = System(100, UNIT, stall_limit=limit, horizon=horizon)
    table = RequestTable.from_columns(
        arrival_time=[0, 1.5, 4, 4], prompt_len=[5, 5, 2, 2], output_len=[2, 3, 1, 1]
    )
    one, other = (outcome(s, table, Waits(first=first)) for s in (system, system.replicate(1)))
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
    else:
        assert_equal(one, other)


def test_an_empty_table() -> None:
    nothing = RequestTable.from_columns(arrival_time=[], prompt_len=[], output_len=[])
    for system in (System(40, UNIT), System(40, UNIT).replicate(3), apart(1, 2)):
        for compiled in (True, False):
            result = simulate(system, nothing, "fcfs", log=True, compiled=compiled)
            assert result.completed
            assert (result.worker["clock"] == 0).all()
            assert len(result.log) == 0


# ---------------------------------------------------------------- workers do not touch each other


def alone(
    system: System, table: RequestTable, name: str, worker: int, ids: Any, seed: int
) -> SimulationResult:
    """One worker of a cluster on its own requests, under a policy told what it is told in the cluster."""
    of = system.all_workers[worker]
    rules = {name: getattr(system, name) for name in ("first_token", "progress_on_evict", "requeue")}
    single = System(of.kv_capacity, of.batch_time, stall_limit=system.stall_limit, **rules)
    keep = np.zeros(len(table), bool)
    keep[ids] = True
    policy = make_policy(name)
    assert isinstance(policy, CompiledPolicy)
    policy.reset(system_info(system, table, seed, policy.info.needs, worker))
    simulation = Simulation(single, table.select(keep), needs=policy.info.needs, log=True)
    simulation.run(policy.kernel, policy.arguments())
    return result_of(simulation, policy)


@EACH
@pytest.mark.parametrize("router", ["round_robin", "uniform_random"])
def test_workers_equal_single_workers_on_their_requests(name: str, router: str) -> None:
    unlike = [Worker(40, AFFINE), Worker(64, UNIT), Worker(48, STAIRS)]
    compared = 0
    for seed in range(4):
        rules: dict[str, Any] = rules_of(7 * seed + 1)
        for system in (
            System.cluster(unlike, stall_limit=300, **rules),
            System(40, AFFINE, stall_limit=300, **rules).replicate(4),
        ):
            r = len(system.all_workers)
            table = workload(seed, n=60, rate=0.5 * r, gap=15.0 * (seed % 2))
            whole = outcome(system, table, name, router=router, seed=seed)
            if isinstance(whole, str):
                continue
            compared += 1
            if router == "round_robin":
                np.testing.assert_array_equal(whole.requests["worker"], np.arange(60) % r)
            parts = []
            for k in range(r):
                ids = np.flatnonzero(whole.requests["worker"] == k)
                parts.append(own := alone(system, table, name, k, ids, seed))
                links = ("worker", "queue_next", "queue_prev")
                equal_tables(whole.requests[ids], own.requests, f"requests of worker {k}", links)
                equal_tables(whole.worker[k : k + 1], own.worker, f"worker {k}", ("index",))
                equal_tables(whole.log[whole.log["worker"] == k], own.log, f"log of worker {k}", ("worker",))
            np.testing.assert_array_equal(whole.gap_counts, sum(own.gap_counts for own in parts))
            np.testing.assert_allclose(whole.gap_sums, sum(own.gap_sums for own in parts), rtol=1e-12)
            assert (np.diff(whole.log["end_time"]) >= 0).all(), "rows are written as batches end"
    assert compared >= 4


@EACH
def test_compiled_uncompiled_and_through_the_views_are_equal(name: str) -> None:
    workers = [Worker(32, AFFINE), Worker(48, UNIT), Worker(40, STAIRS)]
    stages = [Worker(48, UNIT, "prefill"), Worker(32, AFFINE, "decode"), Worker(48, STAIRS, "decode")]
    for k, kind in ((4, workers), (9, stages), (23, workers), (26, stages)):
        system = System.cluster(
            kind, stall_limit=120, transfer_latency=0.3, transfer_time=0.01, **rules_of(k)
        )
        table, router = workload(k, 14, rate=1.5), ("least_outstanding_work", "uniform_random")[k % 2]
        outcomes = [
            outcome(
                system,
                table,
                ThroughView(make_policy(name)) if through else name,
                router=PlainRouter(make_router(router)) if plain else router,
                seed=k,
                compiled=compiled,
            )
            for through, plain, compiled in (
                (False, False, True), (False, False, False), (False, True, True), (True, False, True),
                (True, True, False),
            )
        ]  # fmt: skip
        for other in outcomes[1:]:
            if isinstance(outcomes[0], str) or isinstance(other, str):
                assert outcomes[0] == other
            else:
                assert_equal(outcomes[0], other)


# ---------------------------------------------------------------- an independent simulation of events


@dataclass(eq=False)
class Job:
    """A request, as the independent simulation keeps it."""

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
    """A worker, as the independent simulation keeps it."""

    of: Worker
    k: int
    queue: list[Job] = field(default_factory=list)
    active: list[Job] = field(default_factory=list)
    batch: list[Job] | None = None
    until: float = math.inf
    begun: float = 0.0
    own: list[Job] = field(default_factory=list)  # given to it, over or not
    busy: float = 0.0

    def outstanding(self) -> list[Job]:
        return [job for job in self.own if job.at == self.k and math.isnan(job.finish)]


Plan = tuple[list[Job], list[Job], list[Job]]  # evicted, admitted, and those in the batch


class Events:
    """Workers, a router and transfers: who is where, and when something happens next."""

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
        """KV tokens of a full step: a whole prefill, which may write output token 1, or one decode."""
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
    """Those to evict, the newest first, until the others can all run (``width`` of them at most)."""
    stay, out = list(node.active), []
    while sum(j.kv for j in stay) + sum(events.growth(j) for j in stay[:width]) > node.of.kv_capacity:
        out.append(stay.pop())
    return out


def fcfs_rule(events: Events, node: Node) -> Plan:
    """Evict the newest while the coming round does not fit; else admit in queue order while it does."""
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
    """Prompts and only prompts where one fits, with a hundredth of the memory left free; else decodes."""
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
    """One whole prompt alone, if it and one token more fit; else everybody who is prefilled decodes."""
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
    """The workers in turn; hand-overs apart from arrivals."""

    def __init__(self, predictions: bool) -> None:
        self.turns: dict[int, int] = {}

    def __call__(self, job: Job, nodes: list[Node]) -> Node:
        turn = self.turns[nodes[0].k] = self.turns.get(nodes[0].k, -1) + 1
        return nodes[turn % len(nodes)]


class Shortest:
    """Fewest requests that are not over."""

    def __init__(self, predictions: bool) -> None:
        self.predictions = predictions

    def weight(self, node: Node) -> Any:
        return len(node.outstanding())

    def __call__(self, job: Job, nodes: list[Node]) -> Node:
        return min(nodes, key=lambda node: (self.weight(node), node.k))


class Lightest(Shortest):
    """Fewest tokens of requests that are not over, per token of memory."""

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


def apart(prefill: int, decode: int, M: int = 60, **rules: Any) -> System:  # noqa: N803
    workers = [Worker(M, UNIT, "prefill")] * prefill + [Worker(M, UNIT, "decode")] * decode
    return System.cluster(workers, **rules)


UNLIKE = [Worker(20, AFFINE), Worker(45, UNIT), Worker(30, STAIRS)]


@pytest.mark.parametrize("router", ROUTER_RULES)
@pytest.mark.parametrize("policy", POLICY_RULES)
def test_unlike_workers_equal_the_independent_simulation(policy: str, router: str) -> None:
    evictions = 0
    for k in range(27):
        system = System.cluster(UNLIKE, swap_time=(0.0, 0.011)[k % 2], **rules_of(k))
        events = compare(system, workload(k, n=40, rate=1.6, gap=12.0 * (k % 3 == 0)), policy, router)
        evictions += sum(job.evictions for job in events.jobs)
    assert evictions > 20


@pytest.mark.parametrize("router", ROUTER_RULES)
@pytest.mark.parametrize("policy", POLICY_RULES)
@pytest.mark.parametrize("stages", [(1, 1), (2, 3)])
def test_stages_equal_the_independent_simulation(stages: tuple[int, int], policy: str, router: str) -> None:
    """Prefill and decode workers apart, unlike each other, decode workers too small for all that comes."""
    fast = [Worker(40, AffineBatchTime(0.2, 0.01), "prefill"), Worker(25, UNIT, "prefill")]
    slow = [Worker(22, AFFINE, "decode"), Worker(30, UNIT, "decode"), Worker(26, STAIRS, "decode")]
    evictions = overtaken = 0
    for k in range(0, 27, 2):
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
    assert evictions >= 10
    assert overtaken > 0 or stages == (1, 1)


@pytest.mark.parametrize("policy", POLICY_RULES)
def test_batches_of_no_length(policy: str) -> None:
    """Decodes that take no time: many batches, hand-overs and deliveries at one moment."""
    model = AffineBatchTime(0.0, 0.5)
    mixed = System.cluster([Worker(30, model), Worker(40, UNIT), Worker(30, model)])
    prefill = [Worker(40, model, "prefill"), Worker(40, UNIT, "prefill")]
    decode = [Worker(22, model, "decode"), Worker(22, UNIT, "decode")]
    stages = System.cluster(prefill + decode)
    for seed in range(4):
        for router in ROUTER_RULES:
            compare(mixed, workload(seed, n=40, rate=3.0), policy, router)
            compare(stages, workload(seed, n=40, rate=2.0), policy, router)


# ---------------------------------------------------------------- hand-worked: prefill and decode workers


def log_rows(result: SimulationResult) -> list[tuple[int, float, float]]:
    assert result.log is not None
    return result.log[["worker", "start_time", "end_time"]].tolist()


@pytest.mark.parametrize("first_token", FIRST_TOKEN)
def test_one_prefill_and_one_decode_worker(first_token: str) -> None:
    # P 0 over [0, 1], P 1 over [1, 2], P 2 over [4, 5]; a transfer takes 0.5 and 0.25 per token.
    # counted: 0 takes 4 tokens along (ready 2.5), 1 takes 2 (ready 3); 2 is over with its prefill, on worker 0.
    #   D 0 over [2.5, 3.5], D 0 1 over [3.5, 4.5]: both are over.
    # else: 3 tokens (ready 2.25) and 1 (ready 2.75). D 0 [2.25, 3.25], D 0 1 [3.25, 4.25], D 0 1 [4.25, 5.25];
    #   2 tokens, ready 6: D 2 [6, 7]. "decode" shows nothing before the end of the first decode.
    table = RequestTable.from_columns(arrival_time=[0, 0, 4], prompt_len=[3, 1, 2], output_len=[3, 2, 1])
    system = apart(1, 1, transfer_latency=0.5, transfer_time=0.25, first_token=first_token)
    result = simulate(system, table, "dist_serve", log=True)
    r = result.requests
    prefills = [(0, 0, 1), (0, 1, 2)]
    if first_token == "counted":
        expected = [[0, 1, 4], [1, 2, 5], [4.5, 4.5, 5], [2.5, 2.5, 0], [2.5, 3, np.nan], [1, 1, 0]]
        rows = [*prefills, (1, 2.5, 3.5), (1, 3.5, 4.5), (0, 4, 5)]
    else:
        first = [1, 2, 5] if first_token == "uncounted" else [3.25, 4.25, 7]
        gaps = [2.25, 2.25, 2] if first_token == "uncounted" else [1, 1, 0]
        expected = [[0, 1, 4], first, [5.25, 5.25, 7], gaps, [2.25, 2.75, 6], [1, 1, 1]]
        rows = [*prefills, (1, 2.25, 3.25), (1, 3.25, 4.25), (0, 4, 5), (1, 4.25, 5.25), (1, 6, 7)]
    names = ("start_time", "first_token_time", "finish_time", "max_token_gap", "ready_time", "worker")
    for name, values in zip(names, expected, strict=True):
        np.testing.assert_array_equal(r[name], values, err_msg=name)
    assert log_rows(result) == rows
    assert result.worker["total_prefill_tokens"].tolist() == [6, 0]
    assert result.worker["total_output_tokens"].sum() == 6
    assert result.worker["kv_tokens"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("progress", "finish", "prefilled", "recomputed"),
    [("lost", 7, 3, 5), ("recompute", 5, 5, 5), ("kept", 5, 0, 0)],
)
def test_eviction_on_a_decode_worker(progress: str, finish: float, prefilled: int, recomputed: int) -> None:
    # M = 12 on worker 1. P 0 [0, 1], P 1 [1, 2]. D 0 [1, 2]: 6 tokens, and 4 of request 1: D 0 1 [2, 3]: 7 + 5.
    # At 3 both would take 14: 1 goes, with 2 of 3 output tokens. D 0 [3, 4] is its last.
    # At 4 request 1 is back: lost: P [4, 5], D, D: over at 7. recompute: a prefill of 5 writes token 3: over at 5.
    # kept: D [4, 5]: over at 5. What the user has already got twice does not count: the gap is finish - 3.
    table = RequestTable.from_columns(arrival_time=[0, 0], prompt_len=[4, 3], output_len=[4, 3])
    workers = [Worker(60, UNIT, "prefill"), Worker(12, UNIT, "decode")]
    result = simulate(System.cluster(workers, progress_on_evict=progress), table, "dist_serve", log=True)
    r, w = result.requests, result.worker
    assert r["finish_time"].tolist() == [4, finish]
    assert r["first_token_time"].tolist() == [1, 2]
    assert r["num_evictions"].tolist() == [0, 1]
    assert r["num_admissions"].tolist() == [2, 3]
    assert r["max_token_gap"].tolist() == [1, finish - 3]
    assert w["total_prefill_tokens"].tolist() == [7, prefilled]
    assert w["total_recomputed_tokens"].tolist() == [0, recomputed]
    assert w["total_evicted"].tolist() == [0, 1]
    assert w["total_delivered_tokens"].tolist() == [2, 5]


def test_two_prefill_and_three_decode_workers() -> None:
    # P 0 and P 1 over [0, 1] on workers 0 and 1, P 2 and P 3 over [1, 2]; decode workers 2, 3, 4, 2 in turn.
    table = RequestTable.from_columns(arrival_time=[0] * 4, prompt_len=[2] * 4, output_len=[3] * 4)
    result = simulate(apart(2, 3), table, "dist_serve", log=True)
    assert result.requests["worker"].tolist() == [2, 3, 4, 2]
    assert result.requests["finish_time"].tolist() == [3, 3, 4, 4]
    assert log_rows(result) == [
        (0, 0, 1), (1, 0, 1), (0, 1, 2), (1, 1, 2), (2, 1, 2), (3, 1, 2), (2, 2, 3), (3, 2, 3), (4, 2, 3),
        (2, 3, 4), (4, 3, 4),
    ]  # fmt: skip
    assert result.worker["total_finished"].tolist() == [0, 0, 2, 1, 1]


def test_a_short_transfer_overtakes_a_long_one() -> None:
    # Both prefills end at 1; 8 + 1 tokens take 9 s, 1 + 1 take 2 s: ready at 10 and 3.
    table = RequestTable.from_columns(arrival_time=[0, 0], prompt_len=[8, 1], output_len=[2, 2])
    result = simulate(apart(2, 1, transfer_time=1.0), table, "dist_serve")
    assert result.requests["ready_time"].tolist() == [10, 3]
    assert result.requests["finish_time"].tolist() == [11, 4]


def test_a_transfer_is_not_a_swap() -> None:
    table = RequestTable.from_columns(arrival_time=[0], prompt_len=[10], output_len=[3])
    for progress in PROGRESS_ON_EVICT:
        result = simulate(apart(1, 1, swap_time=0.1, progress_on_evict=progress), table, "fcfs")
        assert result.requests["finish_time"].tolist() == [3]
        assert (result.worker["total_swapped_tokens"] == 0).all()


@EACH
def test_prefill_workers_go_on_when_requests_have_left(name: str) -> None:
    """Memory for one prompt at a time: the next begins when the last has left, not when it is over."""
    table = RequestTable.from_columns(
        arrival_time=[0, 1, 2, 3], prompt_len=[10] * 4, output_len=[30] * 4, predicted_output_len=[30] * 4,
        predicted_low=[30] * 4, predicted_high=[30] * 4, class_id=[0] * 4,
        classes=(ClassStatistics("only", 1.0, 10.0, 30.0),),
    )  # fmt: skip
    system = System.cluster([Worker(48, UNIT, "prefill"), Worker(480, UNIT, "decode")])
    patient = {"request_level": ":batch=1", "wait": ":thresholds=1", "nested_wait": ":thresholds=1"}
    result = simulate(system, table, name + patient.get(name, ""))
    assert result.requests["start_time"].tolist() == [0, 1, 2, 3]


# ---------------------------------------------------------------- conservation


@pytest.mark.parametrize(
    "router", ["round_robin", "uniform_random", "join_shortest_queue", "least_outstanding_work"]
)
@EACH
def test_nothing_is_lost(name: str, router: str) -> None:
    stages = [Worker(48, UNIT, "prefill"), Worker(32, AFFINE, "prefill")]
    stages += [Worker(40, STAIRS, "decode"), Worker(40, UNIT, "decode"), Worker(60, AFFINE, "decode")]
    ended = 0
    for k in range(6):
        kind = stages if k % 2 else [Worker(40, UNIT), Worker(60, STAIRS), Worker(40, AFFINE)]
        rules = rules_of((5 * k + 2) % 27)
        system = System.cluster(kind, stall_limit=300, transfer_latency=0.7, transfer_time=0.02, **rules)
        table = workload(k, n=40, rate=2.0)
        result = outcome(system, table, name, router=router, seed=k)
        if isinstance(result, str):
            continue
        ended += 1
        r, w, rows = result.requests, result.worker, result.log
        assert result.completed
        assert (r["num_output_tokens"] == table.output_len).all()
        assert np.isfinite(r["finish_time"]).all()
        assert w["total_finished"].sum() == len(table)
        np.testing.assert_array_equal(
            w["total_finished"],
            np.bincount(r["worker"], minlength=len(w)),
            err_msg="finished where they were",
        )
        for counter in (
            "outstanding_requests",
            "outstanding_tokens",
            "kv_tokens",
            "num_active",
            "num_waiting",
        ):
            assert (w[counter] == 0).all(), counter
        handed_over = np.isin(r["worker"], np.flatnonzero(w["role"] == 2))
        assert w["total_routed"].sum() == len(table) + handed_over.sum()
        assert w["total_admitted"].sum() == r["num_admissions"].sum()
        assert (r["num_admissions"] == 1 + handed_over + r["num_evictions"]).all()
        assert w["total_evicted"].sum() == r["num_evictions"].sum()
        assert w["total_recomputed_tokens"].sum() == r["num_recomputed_tokens"].sum()
        assert w["total_delivered_tokens"].sum() == table.output_len.sum()
        assert (w["total_output_tokens"] >= w["total_delivered_tokens"]).all()
        for k_, own in enumerate(w):
            mine = rows[rows["worker"] == k_]
            assert own["iteration"] == len(mine)
            assert own["total_output_tokens"] == mine["num_output_tokens"].sum()
            assert own["total_prefill_tokens"] == mine["prefill_tokens"].sum()
            assert own["total_finished"] == mine["num_finished"].sum()
            assert own["peak_kv_tokens"] == mine["kv_tokens"].max(initial=0) <= kind[k_].kv_capacity
            assert (mine["start_time"][1:] >= mine["end_time"][:-1]).all(), "batches overlap"
            assert kind[k_].role != "prefill" or not mine["num_decodes"].any()
        shown = int(
            system.first_token == "uncounted"
        )  # a token that counts as no output, and the gap after it
        assert result.gap_counts.sum() == (table.output_len - 1 + shown).sum()
    assert ended >= 3


@pytest.mark.parametrize("horizon", [0.75, 3.0, 7.25, 12.0])
def test_what_the_horizon_leaves(horizon: float) -> None:
    workers = [
        Worker(40, UNIT, "prefill"),
        Worker(40, AffineBatchTime(2.6), "decode"),
        Worker(30, AFFINE, "decode"),
    ]
    system = System.cluster(workers, horizon=horizon, transfer_latency=2.5)
    table = workload(1, n=30, rate=1.5)
    result, free = (
        simulate(s, table, "dist_serve", router="uniform_random", log=True)
        for s in (system, System.cluster(workers, transfer_latency=2.5))
    )
    r, w = result.requests, result.worker
    assert not result.completed
    assert result.log is not None
    assert free.log is not None
    np.testing.assert_array_equal(result.log, free.log[free.log["start_time"] < horizon])
    assert (w["clock"] >= horizon).all()
    assert (
        w["clock"] == [max([horizon, *result.log["end_time"][result.log["worker"] == k]]) for k in range(3)]
    ).all()
    assert (r["status"][table.arrival_time > horizon] == FUTURE).all()
    assert (r["status"][table.arrival_time < horizon] != FUTURE).all()
    held = np.isin(r["status"], (WAITING, ACTIVE))
    for k in range(3):
        assert w["num_active"][k] == ((r["status"] == ACTIVE) & (r["worker"] == k)).sum()
        assert w["num_waiting"][k] == ((r["status"] == WAITING) & (r["worker"] == k)).sum()
    moving = r["status"] == TRANSFERRING
    assert w["outstanding_requests"].sum() <= held.sum() + moving.sum()
    assert (r["status"] == FINISHED).sum() == w["total_finished"].sum()


# ---------------------------------------------------------------- routing from outside


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("stages", [False, True])
def test_routing_from_outside_equals_a_router(stages: bool, compiled: bool) -> None:
    workers = [Worker(40, UNIT), Worker(60, STAIRS), Worker(40, AFFINE)]
    parts = [Worker(40, UNIT, "prefill"), Worker(60, STAIRS, "prefill")]
    parts += [Worker(40, AFFINE, "decode"), Worker(30, UNIT, "decode")]
    system = System.cluster(parts if stages else workers, transfer_latency=0.25)
    table = workload(2, n=30, rate=2.0)
    for name, budget in (("round_robin", None), ("join_shortest_queue", 1), ("uniform_random", 3)):
        expected = simulate(system, table, "vllm", router=name, seed=4, log=True)
        copies = []
        for k in range(len(system.all_workers)):
            policy = make_policy("vllm")
            assert isinstance(policy, CompiledPolicy)
            policy.reset(system_info(system, table, 4, policy.info.needs, k))
            copies.append(policy)
        arguments = [policy.arguments() for policy in copies]
        router = make_router(name)
        router.reset(len(system.all_workers), stream_seed(4, "routing"))
        sim = ClusterSimulation(system, table, None, log=True, compiled=compiled)
        assert sim.pending is None
        with pytest.raises(InvalidDecisionError, match="no request waits"):
            sim.assign(0)
        ended = sim.run(copies[0].kernel, arguments, budget=budget)
        asked = 0
        while not ended:
            before = int(sim.workers["decisions"].sum())
            if sim.pending is None:
                assert budget is not None
                ended = sim.run(copies[0].kernel, arguments, budget=budget)
            else:
                asked += 1
                candidates = sim.cluster_view.candidates
                assert not sim.run(copies[0].kernel, arguments), "asks again"
                for wrong in (candidates.stop, candidates.start - 1, 1.0, "0", None):
                    with pytest.raises(
                        InvalidDecisionError, match=f"request {sim.pending} cannot go to worker"
                    ):
                        sim.assign(wrong)  # type: ignore[arg-type]
                worker = router.route(sim.cluster_view) if len(candidates) > 1 else candidates[0]
                ended = sim.assign(worker, budget=budget)
            assert budget is None or int(sim.workers["decisions"].sum()) <= before + budget
        assert sim.pending is None
        assert asked == expected.worker["total_routed"].sum()
        assert_equal(expected, result_of(sim, copies[0]))


@pytest.mark.parametrize("plain", [False, True])
def test_the_budget_is_kept(plain: bool) -> None:
    system = System(40, UNIT).replicate(3)
    table = workload(3, n=30, rate=2.0)
    expected = simulate(system, table, "fcfs", log=True)
    policy = make_policy("fcfs")
    assert isinstance(policy, CompiledPolicy)
    policy.reset(system_info(system, table, 0, policy.info.needs))
    router = make_router("round_robin")
    router.reset(3, np.random.SeedSequence(0))
    sim = ClusterSimulation(system, table, PlainRouter(router) if plain else router, log=True)
    calls = 0
    while not sim.run(policy.kernel, [policy.arguments()] * 3, budget=2):
        calls += 1
        assert int(sim.workers["decisions"].sum()) == 2 * calls
    assert 2 * calls <= int(sim.workers["decisions"].sum()) <= 2 * calls + 2
    assert_equal(expected, result_of(sim, policy))


def test_a_long_log() -> None:
    """The log grows while batches of several workers run; nothing is lost or written twice."""
    n = 3000
    table = RequestTable.from_columns(
        arrival_time=np.arange(n) / 2, prompt_len=np.ones(n, int), output_len=np.full(n, 7)
    )
    for router in ("round_robin", PlainRouter(make_router("round_robin"))):
        result = simulate(System(40, AFFINE).replicate(3), table, "fcfs", router=router, log=True)
        assert result.log is not None
        assert len(result.log) == result.worker["iteration"].sum() > 4096
        assert result.log["num_output_tokens"].sum() == 7 * n
        assert (np.diff(result.log["end_time"]) >= 0).all()


# ---------------------------------------------------------------- what is refused names the worker


class PerWorker(Policy):
    """Serves everybody, but on one worker does what it is told."""

    info = PolicyInfo(name="per_worker", summary="goes wrong on one worker")

    def __init__(self, *, worker: int, decision: Any) -> None:
        self.worker, self.decision = worker, decision

    def schedule(self, view: SystemView) -> Decision:
        if view.simulation.current == self.worker:
            chosen: Decision = self.decision(view) if callable(self.decision) else self.decision
            return chosen
        return Decision(admit=view.waiting.request_id.tolist())


FOUR = RequestTable.from_columns(arrival_time=[0, 0, 3, 3], prompt_len=[5] * 4, output_len=[3] * 4)


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (
            Decision(admit=[9]),
            r"worker 1, iteration 0, t = 0 s: the decision admits request 9, which is unknown",
        ),
        (Decision(admit=[2]), r"worker 1, .*request 2, which is not here yet"),
        (Decision(admit=[0]), r"worker 1, .*request 0, which is active on worker 0"),
        (Decision(evict=[0]), r"worker 1, .*evicts request 0, which is active on worker 0, not active"),
        (Decision(admit=[1, 1]), r"worker 1, .*request 1, which is waiting but listed twice"),
        (Decision(wait_until=-1.0), r"worker 1, .*waits until -1 s, which is not later than now"),
        (Decision(admit=[1], tokens={1: 6}), r"worker 1, .*gives request 1 6 tokens; valid: 0 … 5"),
    ],
)
@pytest.mark.parametrize("compiled", [True, False])
def test_invalid_decisions(decision: Decision, message: str, compiled: bool) -> None:
    policy = PerWorker(worker=1, decision=decision)
    with pytest.raises(InvalidDecisionError, match=rf"policy 'per_worker', {message}"):
        simulate(System(9, UNIT).replicate(2), FOUR, policy, compiled=compiled)


def test_a_request_that_waits_elsewhere_cannot_be_admitted() -> None:
    class Steals(Policy):
        info = PolicyInfo(name="steals", summary="takes what waits on worker 0")

        def schedule(self, view: SystemView) -> Decision:
            if view.simulation.current == 0:
                return Decision(wait_until=math.inf)
            return Decision(admit=[0])

    system = System(9, UNIT, horizon=20).replicate(2)
    with pytest.raises(InvalidDecisionError, match=r"worker 1, .*request 0, which is waiting on worker 0"):
        simulate(system, FOUR, Steals())


def test_a_refused_decision_changes_nothing() -> None:
    router = make_router("round_robin")
    runs = []
    for errs in (False, True):
        router.reset(2, np.random.SeedSequence(0))
        sim = ClusterSimulation(System(8, UNIT).replicate(2), FOUR, router, log=True)
        running = sim.start()
        while running:
            if errs:
                for wrong in (
                    Decision(admit=[7]),
                    Decision(admit=sim.view.waiting.request_id[:1].tolist() * 2),
                ):
                    if wrong.admit:
                        with pytest.raises(InvalidDecisionError, match=f"worker {sim.current}"):
                            sim.step(wrong)
            free = not sim.view.num_active
            running = sim.step(Decision(admit=sim.view.waiting.request_id[:free].tolist()))
        runs.append(result_of(sim, make_policy("fcfs")))
        with pytest.raises(KVGymError, match="the run has ended"):
            sim.step(Decision())
    assert_equal(*runs)
    assert runs[0].completed


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_livelock_and_deadlock_name_the_worker(worker: int) -> None:
    table = workload(0, n=12, rate=3.0)
    system = System(60, UNIT, stall_limit=25).replicate(3)
    for decision, message in (
        (Decision(), rf"worker {worker}, .*admitted nobody for 25 decisions"),
        (Decision(wait_until=math.inf), rf"worker {worker}, .*waits for the next arrival, but there is none"),
        (
            lambda view: Decision(wait_until=view.clock + 0.5),
            rf"worker {worker}, .*admitted nobody for 25 decisions",
        ),
    ):
        with pytest.raises(LivelockError, match=message):
            simulate(system, table, PerWorker(worker=worker, decision=decision))


def test_livelock_on_a_decode_worker() -> None:
    system = apart(1, 2, stall_limit=25)
    with pytest.raises(LivelockError, match=r"worker 2, .*admitted nobody"):
        simulate(system, workload(0, n=12), PerWorker(worker=2, decision=Decision()))


def test_requests_have_to_fit_everywhere() -> None:
    table = RequestTable.from_columns(arrival_time=[0], prompt_len=[20], output_len=[20])
    with pytest.raises(WorkloadError, match="kv_capacity = 30"):
        simulate(System.cluster([Worker(100, UNIT), Worker(30, UNIT)]), table, "fcfs")


def test_stepping_needs_a_router() -> None:
    with pytest.raises(KVGymError, match="stepping a cluster needs a router"):
        ClusterSimulation(System(40, UNIT).replicate(2), FOUR, None).start()


def test_a_policy_sees_its_own_worker() -> None:
    seen: list[tuple[Any, ...]] = []

    class Looks(Policy):
        info = PolicyInfo(name="looks", summary="looks")

        def reset(self, system: SystemInfo) -> None:
            seen.append((system.kv_capacity, type(system.batch_time).__name__))

        def schedule(self, view: SystemView) -> Decision:
            waiting = view.waiting.request_id.tolist()
            seen.append(
                (view.simulation.current, view.kv_capacity, view.clock, waiting, view.finished.tolist())
            )
            return Decision(admit=waiting)

    table = RequestTable.from_columns(
        arrival_time=[0, 0, 1, 1.5], prompt_len=[5] * 4, output_len=[2, 1, 1, 1]
    )
    simulate(System.cluster([Worker(30, UNIT), Worker(50, STAIRS)]), table, Looks())
    # Worker 1: 6 KV tokens, between 5 (0.25 s) and 20 (0.5 s); whatever that is, it is over before 1.
    assert seen == [
        (30, "UnitBatchTime"), (50, "PiecewiseBatchTime"),
        (0, 30, 0.0, [0], []), (1, 50, 0.0, [1], []), (0, 30, 1.0, [2], []), (1, 50, 1.5, [3], [1]),
    ]  # fmt: skip
