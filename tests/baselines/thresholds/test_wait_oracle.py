"""WAIT, Nested WAIT and iteration-level batching against plain readings of the algorithms, decision by decision.

Sources: Ao et al., "Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory Constraints", Algorithms 1
and 2; Kwon et al. (vLLM) and Agrawal et al. (Sarathi-Serve) as that paper's Section 6 uses them. Readings where the
papers leave a choice: on overflow the latest picks are undone, then the latest activated requests are evicted, paused
ones included. If no threshold has been met for some time (patience), all present requests run (drain).
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from helpers.amount import number, some
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.errors import LivelockError
from kvgym.policies.policy import Decision, Policy, PolicyInfo, SystemInfo, make_policy
from kvgym.policies.runner import simulate, system_info
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE, System
from kvgym.simulator.view import SystemView
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable

INF = float("inf")


@dataclass(eq=False)
class Job:
    """A request at an iteration boundary: ``left`` tokens to prefill, ``kv`` tokens in memory, ``out`` generated."""

    id: int
    left: int
    kv: int
    out: int
    type: int

    def need(self, emits: int) -> int:
        """Return its KV tokens after it has run once in full."""
        return self.kv + (self.left + emits if self.left > 0 else 1)


@dataclass
class Plan:
    """A decision: tokens by request, requests outside ``batch`` pause; ``until`` = latest end of a wait."""

    admit: list[Job] = field(default_factory=list)
    evict: list[Job] = field(default_factory=list)
    batch: dict[int, int] = field(default_factory=dict)
    until: float | None = None


class Book(Policy):
    """A scheduler written from the paper; ``plan`` takes lists of jobs."""

    info = PolicyInfo(name="book", summary="", needs=frozenset({"class", "class_rates"}))
    M: int
    emits: int
    clock: float

    def schedule(self, view: SystemView) -> Decision:
        self.M, self.emits, self.clock = view.kv_capacity, int(view.prefill_emits), view.clock
        waiting, active = (
            [
                Job(*(int(column[k]) for column in columns))
                for columns in [
                    (x.request_id, x.num_prefill_left, x.num_kv_tokens, x.num_output_tokens, x.class_id)
                ]
                for k in range(len(x))
            ]
            for x in (view.waiting, view.active)
        )
        plan = self.plan(waiting, active)
        stay = [j for j in active if j not in plan.evict] + plan.admit
        return Decision(
            admit=[j.id for j in plan.admit],
            evict=[j.id for j in plan.evict],
            tokens={j.id: plan.batch.get(j.id, 0) for j in stay},
            wait_until=plan.until,
        )

    @abstractmethod
    def plan(self, waiting: list[Job], active: list[Job]) -> Plan: ...

    def fit(self, active: list[Job], run: list[Job], picks: list[Job]) -> Plan:
        """Run ``run`` next to paused others, with as many picks as fit; if it does not fit without any, evict LIFO."""
        stay, plan = list(active), Plan()

        def need() -> int:
            return sum(j.kv for j in stay) + sum(j in run for j in stay)

        while need() > self.M:
            plan.evict.append(stay.pop())
        room = 0 if plan.evict else self.M - need()
        for job in picks:
            room -= job.need(self.emits)
            if room < 0:
                break
            plan.admit.append(job)
        plan.batch = {j.id: max(j.left, 1) for j in [*(j for j in run if j in stay), *plan.admit]}
        return plan


# ---------------------------------------------------------------- Algorithms 1 and 2


class Thresholds(Book):
    """Base class of both algorithms: a batch if thresholds are met, else patience, then draining."""

    def __init__(self, *, patience: float, drain: bool) -> None:
        self.patience, self.drain = patience, drain

    def reset(self, system: SystemInfo) -> None:
        self.until: float | None = None  # of the wait that ends now
        self.known = 0  # requests in the queue when it began
        self.last_event = 0.0
        self.draining = False

    @abstractmethod
    def form(self, waiting: list[Job], active: list[Job]) -> Plan | None:
        """Return the batch of the requests that have reached their thresholds."""

    @abstractmethod
    def first(self, waiting: list[Job]) -> list[Job]:
        """Return the requests that a drain batch may admit."""

    def plan(self, waiting: list[Job], active: list[Job]) -> Plan:
        timeout = self.until is not None and len(waiting) == self.known
        if not timeout:
            self.last_event = self.clock
        plan = self.form(waiting, active)
        if plan is not None and plan.batch:
            self.draining = False
        else:
            self.draining = self.drain and (timeout or (self.draining and len(active) > 0))
            if self.draining:
                plan = self.fit(active, active, self.first(waiting))
            else:
                plan = Plan(until=self.last_event + self.patience if self.drain else INF)
        self.until, self.known = plan.until, len(waiting)
        return plan


class Wait(Thresholds):
    """Algorithm 1."""

    def __init__(self, *, thresholds: list[int], **rest: Any) -> None:
        super().__init__(**rest)
        self.n = thresholds

    def form(self, waiting: list[Job], active: list[Job]) -> Plan | None:
        inventory = Counter(j.type for j in waiting)
        included = [t for t in range(len(self.n)) if inventory[t] >= self.n[t]]
        if not included:
            return None
        taken, run = Counter[tuple[int, int]](), list[Job]()
        for job in active:
            stage = (job.type, job.out + 1)
            if job.type in included and taken[stage] < self.n[job.type]:
                taken[stage] += 1
                run.append(job)
        return self.fit(active, run, self.first([j for j in waiting if j.type in included]))

    def first(self, waiting: list[Job]) -> list[Job]:
        return [j for t, n in enumerate(self.n) for j in [w for w in waiting if w.type == t][:n]]


class NestedWait(Thresholds):
    """Algorithm 2; a request leaves when it finishes, and stays in the last segment beyond its end."""

    def __init__(self, *, thresholds: list[int], segments: list[int], **rest: Any) -> None:
        super().__init__(**rest)
        self.n, self.ends = thresholds, segments

    def form(self, waiting: list[Job], active: list[Job]) -> Plan | None:
        at_entry = [len(waiting)] + [sum(j.out == end for j in active) for end in self.ends[:-1]]
        met = [count >= n for count, n in zip(at_entry, self.n, strict=True)]
        k = len(list(itertools.takewhile(bool, met)))
        if k == 0:
            return None
        taken, run = Counter[int](), list[Job]()
        for job in active:
            segment = min(sum(job.out >= end for end in self.ends), len(self.n) - 1)
            if segment < k and taken[job.out] < self.n[segment]:
                taken[job.out] += 1
                run.append(job)
        return self.fit(active, run, self.first(waiting))

    def first(self, waiting: list[Job]) -> list[Job]:
        return waiting[: self.n[0]]


# ---------------------------------------------------------------- iteration-level batching


class IterationLevel(Book):
    """Base class of vLLM and Sarathi: limits, and a watermark that an empty worker ignores."""

    def __init__(self, *, tokens: int, requests: int, watermark: str, order: str = "fcfs") -> None:
        self.tokens, self.requests, self.watermark, self.order = tokens, requests, watermark, order

    def limit(self, empty: bool) -> Fraction:
        return Fraction(self.M) if empty else (1 - Fraction(self.watermark)) * self.M


class Vllm(IterationLevel):
    """Prefills alone if one fits; else decodes of all, with LIFO preemption."""

    def plan(self, waiting: list[Job], active: list[Job]) -> Plan:
        prompts, back = list[Job](), list[Job]()  # back: returned with their KV
        for job in waiting:
            newcomers = len(prompts) + len(back)
            need = sum(j.kv for j in active) + sum(j.need(self.emits) for j in [*prompts, *back, job])
            if job.left == 0 and not prompts:
                need += len(active)
            total = sum(j.left for j in [*prompts, job])
            if (
                len(active) + newcomers == self.requests
                or need > self.limit(empty=len(active) + newcomers == 0)
                or (job.left > 0 and prompts and total > self.tokens)
            ):
                break
            (prompts if job.left > 0 else back).append(job)
        admit = [j for j in waiting if j in prompts or j in back]
        if prompts:
            return Plan(admit=admit, batch={j.id: j.left for j in prompts})
        if back:
            return Plan(admit=admit, batch={j.id: 1 for j in [*active, *back]})
        return self.fit(active, active, [])


class Sarathi(IterationLevel):
    """Decodes, then chunks of ongoing prompts, then of new ones that can be completed."""

    def chunk(self, job: Job, budget: int, free: int) -> int:
        tokens = max(0, min(budget, job.left, free))
        return tokens - 1 if 0 < tokens == job.left and tokens + self.emits > free else tokens

    def plan(self, waiting: list[Job], active: list[Job]) -> Plan:
        stay, plan = list(active), Plan()

        def decodes() -> list[Job]:
            return [j for j in stay if j.left == 0]

        def free() -> int:
            return self.M - sum(j.kv for j in stay) - len(decodes())

        # No request is evicted for a prompt: the last one admitted left room for all prompts before its own.
        while free() < 0:
            plan.evict.append(stay.pop())
        plan.batch = {j.id: 1 for j in decodes()}
        budget, room, prefills = self.tokens - len(plan.batch), free(), [j for j in stay if j.left > 0]
        spare = room - sum(j.left + 1 for j in prefills)
        for job in prefills:
            tokens = self.chunk(job, budget, room)
            if tokens == 0:
                return plan
            plan.batch[job.id] = tokens
            budget, room = budget - tokens, room - tokens - self.emits * (tokens == job.left)
        if plan.evict:
            return plan
        queue = sorted(waiting, key=lambda j: (j.left, j.id)) if self.order == "spf" else waiting
        for job in queue:
            margin = self.M - self.limit(empty=not stay and not plan.admit)
            if budget <= 0 or len(stay) + len(plan.admit) == self.requests:
                break
            if job.kv + job.left + 1 > spare - margin:
                break
            plan.admit.append(job)
            plan.batch[job.id] = max(1, min(budget, job.left))
            budget, spare = budget - plan.batch[job.id], spare - (job.kv + job.left + 1)
        return plan


# ---------------------------------------------------------------- comparison

RULES = list(itertools.product(FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE))
TIMES = (UnitBatchTime(), AffineBatchTime(0.31, 0.017, 0.023, 0.0011))
CLASSES = tuple(ClassStatistics(name, 0.5, 4.0, mean) for name, mean in (("a", 2), ("b", 4), ("c", 6)))


def workload(rng: np.random.Generator, n: int = 24, longest: int = 7) -> RequestTable:
    """Return small requests; arrivals on a grid cause ties and arrivals at the end of a batch or of a wait."""
    return RequestTable.from_columns(
        arrival_time=np.floor(np.cumsum(rng.exponential(rng.choice([0.2, 0.6, 1.5]), n)) * 2) / 2,
        prompt_len=rng.integers(1, longest + 1, n),
        output_len=np.where(rng.random(n) < 0.2, 1, rng.integers(1, longest + 1, n)),
        class_id=rng.integers(0, 3, n),
        classes=CLASSES,
    )


def draw(name: str, rng: np.random.Generator) -> tuple[str, Book]:
    """Return small hyperparameters, so that every limit binds sometimes, as a spec and as a book."""

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    def text(values: list[int]) -> str:
        return "/".join(map(str, values))

    if name in ("wait", "nested_wait"):
        n = [int(x) for x in rng.integers(1, 4, 3)]
        patience = one_of(0.5, 1.0, 2.75)
        rest = f"thresholds={text(n)},patience={patience}"
        if name == "wait":
            return f"wait:{rest}", Wait(thresholds=n, patience=patience, drain=True)
        ends = sorted(int(x) for x in rng.choice(np.arange(1, 7), 3, replace=False))
        book = NestedWait(thresholds=n, segments=ends, patience=patience, drain=True)
        return f"nested_wait:{rest},segments={text(ends)}", book
    cap, watermark = one_of(1, 3, 5, 128), one_of("0", "0.05", "0.3")
    if name == "vllm":
        tokens = one_of(3, 8, 12, 4096)
        spec = f"vllm:max_batch_tokens={tokens},max_batch_requests={cap},watermark={watermark}"
        return spec, Vllm(tokens=tokens, requests=cap, watermark=watermark)
    tokens, order = one_of(1, 2, 4, 8, 512), one_of("fcfs", "spf")
    spec = f"sarathi:token_budget={tokens},max_batch_requests={cap},watermark={watermark},order={order}"
    return spec, Sarathi(tokens=tokens, requests=cap, watermark=watermark, order=order)


def effective(view: SystemView, decision: Decision) -> dict[str, Any]:
    """Return a decision in a canonical form."""
    left = {
        int(i): int(c)
        for x in (view.waiting, view.active)
        for i, c in zip(x.request_id, x.num_prefill_left, strict=True)
    }
    present = [i for i in view.active.request_id.tolist() if i not in decision.evict] + list(decision.admit)
    waits = decision.wait_until is not None
    return {
        "evict": list(decision.evict),
        "admit": list(decision.admit),
        "batch": {} if waits else {i: decision.tokens.get(i, max(left[i], 1)) for i in present},
        "until": decision.wait_until,
    }


def follow(spec: str, book: Book, system: System, table: RequestTable) -> tuple[Simulation, int, bool]:
    """Run a policy and compare each of its decisions with the book's.

    Returns:
        The simulation, how many waits ended without an arrival, and whether all requests were served.
    """
    policy = make_policy(spec)
    simulation = Simulation(
        system, table, needs=policy.info.needs | {"class", "class_rates"}, policy_name=spec, log=True
    )
    for scheduler in (policy, book):
        scheduler.reset(system_info(system, table, 0, policy.info.needs))
    running, timeouts = simulation.start(), 0
    while running:
        view = simulation.view
        decision, plan = policy.schedule(view), book.schedule(view)
        where = f"{spec}, {system}, iteration {view.iteration}, t = {view.clock}"
        assert effective(view, decision) == effective(view, plan), where
        try:
            running = simulation.step(decision)
        except LivelockError:
            return simulation, timeouts, False
        timeouts += running and simulation.view.clock == plan.wait_until
    return simulation, timeouts, True


@pytest.mark.parametrize("name", ["wait", "nested_wait", "vllm", "sarathi"])
def test_decisions_are_those_of_the_book(name: str) -> None:
    """Compare under all settings, with tight and ample memory; the compiled run must have the same records."""
    seen = Counter[str]()
    for case, (first_token, progress, requeue) in some(enumerate(RULES * 3), 5):
        rng = np.random.default_rng(case)
        system = System(
            kv_capacity=int(rng.choice([14, 17, 25, 200], p=[0.3, 0.3, 0.3, 0.1])),
            batch_time=TIMES[case % 2],
            first_token=first_token,
            progress_on_evict=progress,
            requeue=requeue,
            stall_limit=200,
        )
        table = workload(rng)
        spec, book = draw(name, rng)
        simulation, timeouts, served = follow(spec, book, system, table)
        seen["timeouts"] += timeouts
        assert served
        result = simulate(system, table, spec, log=True)
        assert result.completed
        log = result.log
        assert log is not None
        np.testing.assert_array_equal(log, simulation.log[: len(log)])
        assert len(log) == simulation.tracker[0]["num_log"]
        for column in ("start_time", "first_token_time", "finish_time", "num_evictions"):
            np.testing.assert_array_equal(result.requests[column], simulation.requests[column])
        seen["evictions"] += int(log["num_evicted"].sum())
        seen["repeated"] += int((result.requests["num_evictions"] > 1).sum())
        seen["paused"] += int((log["num_active"] > log["num_prefills"] + log["num_decodes"]).sum())
    assert seen["evictions"] > number(50, 10), seen
    assert seen["repeated"] > number(0, -1), seen
    # There only prompts beyond the budget.
    assert seen["paused"] > (number(5, 0) if name == "sarathi" else number(50, 10)), seen
    assert (seen["timeouts"] > number(100, 20)) == (name in ("wait", "nested_wait")), seen


@pytest.mark.parametrize("name", ["wait", "nested_wait"])
def test_without_draining_decisions_agree_until_no_type_can_qualify(name: str) -> None:
    """The run ends in an error that names the policy; until then every decision is the book's."""
    finished = 0
    for case in range(12):
        rng = np.random.default_rng(500 + case)
        system = System(
            kv_capacity=40,
            batch_time=TIMES[case % 2],
            first_token="decode",
            progress_on_evict="lost",
            requeue="back",
            stall_limit=200,
        )
        table = workload(rng, n=40)
        spec, book = draw(name, rng)
        assert isinstance(book, Thresholds)
        book.drain = False
        simulation, timeouts, served = follow(f"{spec},drain=False", book, system, table)
        assert (served, timeouts) == (False, 0)  # the last prompts never meet a threshold
        with pytest.raises(LivelockError, match=name):
            simulate(system, table, f"{spec},drain=False")
        finished += int(simulation.worker["total_finished"])
    assert finished > 100


def test_the_oracle_by_hand() -> None:
    """Check the oracle itself on a schedule worked out by hand, in case both are wrong in the same way.

    n = 2, patience 2. 0 arrives at 0, 1 at 1.5 and makes two; at 2.5 none waits; timeout at 4.5: one decode of each.
    """
    table = RequestTable.from_columns(
        arrival_time=[0, 1.5], prompt_len=[1, 1], output_len=[1, 1], class_id=[0, 0], classes=CLASSES[:1]
    )
    system = System(kv_capacity=9, batch_time=UnitBatchTime(), first_token="decode")
    result = simulate(system, table, Wait(thresholds=[2], patience=2.0, drain=True))
    assert result.requests["start_time"].tolist() == [1.5, 1.5]
    assert result.requests["finish_time"].tolist() == [5.5, 5.5]
    assert math.isclose(result.worker["busy_time"][0], 2)
