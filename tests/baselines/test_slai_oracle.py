"""The schedulers of the SLAI paper against plain readings of its algorithms, decision by decision.

Source: Bari et al., "Optimal Scheduling Algorithms for LLM Inference: Theory and Practice", Algorithms 1-5, Section 6.
The paper assumes memory enough (Assumption 4). Where it does not suffice the readings here are: a prompt is begun
only if it can be completed, with one token to spare; on overflow the latest activated go (LIFO), those who pause
included; a request that comes back with its KV moves from P to D without an iteration.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.policy import Decision, Policy, PolicyInfo, SystemInfo, make_policy
from kvgym.runner import simulate, system_info
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE, System
from kvgym.simulator.tables import ROLE_DECODE, ROLE_MIXED, ROLE_PREFILL
from kvgym.simulator.view import SystemView
from kvgym.workloads.table import RequestTable

INF = float("inf")


@dataclass(eq=False)
class Job:
    """A request at an iteration boundary; ``left`` prompt tokens are to prefill, ``kv`` are there."""

    id: int
    left: int
    kv: int
    priority: int
    tbt: float = INF
    last: float = math.nan  # end of the batch of its last token

    @property
    def decoding(self) -> bool:
        return self.left == 0


@dataclass
class Plan:
    """What to do: evict, admit, and tokens of the batch; whoever is not in it pauses."""

    admit: list[Job] = field(default_factory=list)
    evict: list[Job] = field(default_factory=list)
    batch: dict[int, int] = field(default_factory=dict)
    wait: bool = False


class Book(Policy):
    """A scheduler written from the paper: ``plan`` sees lists of jobs."""

    info = PolicyInfo(name="book", summary="", needs=frozenset({"slo"}))
    M: int
    emits: int
    kv: int
    clock: float
    mean_batch_time: float
    role: int

    def schedule(self, view: SystemView) -> Decision:
        worker, slots = view.simulation.worker, view.simulation.active[0]
        self.M, self.emits, self.kv, self.clock = (
            view.kv_capacity,
            int(view.prefill_emits),
            view.kv_tokens,
            view.clock,
        )
        self.role = int(worker["role"])
        self.mean_batch_time = float(worker["busy_time"]) / view.iteration if view.iteration else 0.0
        waiting, active = (
            [
                Job(*(int(c[k]) for c in (x.request_id, x.num_prefill_left, x.num_kv_tokens, x.priority)))
                for k in range(len(x))
            ]
            for x in (view.waiting, view.active)
        )
        for k, job in enumerate(active):
            job.tbt, job.last = float(view.active.tbt_slo[k]), float(slots[k]["last_token_time"])
        plan = self.plan(waiting, active)
        return Decision(
            admit=[job.id for job in plan.admit],
            evict=[job.id for job in plan.evict],
            tokens={j.id: plan.batch.get(j.id, 0) for j in [*active, *plan.admit] if j not in plan.evict},
            wait_until=INF if plan.wait else None,
        )

    @abstractmethod
    def plan(self, waiting: list[Job], active: list[Job]) -> Plan: ...

    def decode(self, active: list[Job], moved: Sequence[Job] = (), most: float = INF) -> Plan:
        """Decode the first ``most``, after evicting the last, one by one, while that does not fit."""
        stay, evict, kv = [*active, *moved], list[Job](), self.kv + sum(j.kv for j in moved)
        while kv + min(len(stay), most) > self.M:
            evict.append(stay.pop())
            kv -= evict[-1].kv
        chosen = [j for k, j in enumerate(stay) if k < most]
        return Plan(admit=list(moved), evict=evict, batch={j.id: 1 for j in chosen})


# ---------------------------------------------------------------- Algorithms 1, 2, 3 and 5


class Rad(Book):
    """Algorithm 1; ``requests_in_cycle`` counts at the last chunk."""

    def __init__(self, *, cycle: int, decodes: int, chunk: int) -> None:
        self.n, self.t_col, self.chunk = cycle, decodes, chunk

    def reset(self, system: SystemInfo) -> None:
        self.requests_in_cycle = 0

    def closed(self, decoding: int) -> bool:
        """Whether no prefill may begin (line 6)."""
        return decoding >= self.t_col or self.requests_in_cycle >= self.n

    def end_of_cycle(self) -> None:
        self.requests_in_cycle = 0

    def plan(self, waiting: list[Job], active: list[Job]) -> Plan:
        if not active:
            self.end_of_cycle()
        for job in active:
            if not job.decoding:
                return self.prefill(job, [])
        moved, kv = list[Job](), self.kv
        for job in waiting:
            decoding = len(active) + len(moved)
            if self.closed(decoding):
                break
            if not job.decoding and kv + job.kv + job.left + 1 <= self.M:
                return self.prefill(job, [*moved, job])
            if not job.decoding or kv + job.kv + min(decoding + 1, self.t_col) > self.M:
                break
            moved.append(job)  # evicted with its KV kept: its prefill is empty
            kv += job.kv
            self.requests_in_cycle += 1
        return self.decode(active, moved, self.t_col)

    def prefill(self, job: Job, admit: list[Job]) -> Plan:
        tokens = min(self.chunk, job.left)
        if tokens == job.left:
            self.requests_in_cycle += 1
        return Plan(admit=admit, batch={job.id: tokens})


class RadBatched(Rad):
    """Algorithm 2: prefill until n are done or nobody waits, then decode until all are done."""

    def reset(self, system: SystemInfo) -> None:
        super().reset(system)
        self.decode_mode = False

    def closed(self, decoding: int) -> bool:
        return self.decode_mode or self.requests_in_cycle >= self.n

    def end_of_cycle(self) -> None:
        super().end_of_cycle()
        self.decode_mode = False

    def decode(self, active: list[Job], moved: Sequence[Job] = (), most: float = INF) -> Plan:
        self.decode_mode = True
        return super().decode(active, moved, most)


class DistServe(Rad):
    """Algorithm 5 without the transfer: prefill nodes never decode, the others do when no prompt can begin."""

    def __init__(self, *, decodes: int | None = None) -> None:
        super().__init__(cycle=1, decodes=10**9 if decodes is None else decodes, chunk=10**9)

    def closed(self, decoding: int) -> bool:
        return False

    def decode(self, active: list[Job], moved: Sequence[Job] = (), most: float = INF) -> Plan:
        return Plan(wait=True) if self.role == ROLE_PREFILL else super().decode(active, moved, most)


class RequestLevel(Book):
    """Algorithm 3."""

    def __init__(self, *, batch: int) -> None:
        self.b = batch

    def plan(self, waiting: list[Job], active: list[Job]) -> Plan:
        if active:
            return self.decode(active)
        plan, need = Plan(), 0
        for job in waiting[: self.b]:
            need += job.kv + (1 if job.decoding else job.left + self.emits)
            if need > self.M:
                break
            plan.admit.append(job)
            plan.batch[job.id] = max(job.left, 1)
        return plan


# ---------------------------------------------------------------- Section 6


class Slai(Book):
    """Section 6. A batch is filled in the order of the paper: critical decodes, prefills, other decodes."""

    def __init__(
        self,
        *,
        order: str = "spf",
        offset: float = 10.0,
        low_offset: float | None = None,
        memory_threshold: float = 0.96,
        paying_first: bool = False,
        token_budget: int = 512,
        max_active: int = 128,
        max_decodes: int = 128,
    ) -> None:
        self.order, self.paying_first = order, paying_first
        self.offset, self.low_offset, self.threshold = offset, low_offset, memory_threshold
        self.budget, self.alpha, self.beta = token_budget, max_active, max_decodes

    def last_schedulable(self, job: Job) -> float:
        """Equation (8); a decode that has shown nothing yet is overdue."""
        low = self.low_offset is not None and self.kv < Fraction(str(self.threshold)) * self.M
        offset = self.low_offset if low else self.offset
        assert offset is not None
        return -INF if math.isnan(job.last) else job.last + job.tbt - offset * self.mean_batch_time

    def chunk(self, job: Job, budget: int, free: int) -> int:
        """Tokens of a prefill that fit; the last chunk may write an output token as well."""
        tokens = max(0, min(budget, job.left, free))
        return tokens - 1 if tokens == job.left and tokens + self.emits > free else tokens

    def plan(self, waiting: list[Job], active: list[Job]) -> Plan:
        due = {j: self.last_schedulable(j) for j in active if j.decoding}
        stay, evict = list(active), list[Job]()

        def critical() -> list[Job]:
            return sorted((j for j in stay if j.decoding and self.clock >= due[j]), key=lambda j: due[j])

        def others() -> list[Job]:
            return sorted((j for j in stay if j.decoding and self.clock < due[j]), key=lambda j: due[j])

        def prefilling() -> list[Job]:
            return [j for j in stay if not j.decoding]

        def free() -> int:
            return self.M - self.kv + sum(j.kv for j in evict)

        def stuck() -> bool:
            if critical() or (others() and free() > 0):
                return False
            return not any(self.chunk(j, self.budget, free()) for j in prefilling()[:1])

        while min(len(critical()), self.budget, self.beta) > free() or (stay and stuck()):
            evict.append(stay.pop())

        plan = Plan(evict=evict)
        budget, decodes, room = self.budget, self.beta, free()
        for job in critical()[: min(budget, decodes)]:
            plan.batch[job.id] = 1
            budget, decodes, room = budget - 1, decodes - 1, room - 1

        # ``spare`` is what newcomers may count on: those who prefill will need their whole prompts and a token.
        spare = room - sum(j.left + 1 for j in prefilling())
        for job in prefilling():
            tokens = self.chunk(job, budget, room)
            if tokens == 0:
                break  # and nobody new: the budget is used up or ``spare`` is negative
            plan.batch[job.id] = tokens
            budget, room = budget - tokens, room - tokens - self.emits * (tokens == job.left)
        for job in self.sorted(waiting) if not evict else []:
            demand = job.kv + job.left + 1
            if budget == 0 or len(stay) + len(plan.admit) >= self.alpha or demand > spare:
                break
            if job.decoding and decodes == 0:
                break
            tokens = 1 if job.decoding else self.chunk(job, budget, room - job.kv)
            plan.admit.append(job)
            plan.batch[job.id] = tokens
            budget, spare, decodes = budget - tokens, spare - demand, decodes - job.decoding
            room -= job.kv + tokens + self.emits * (0 < job.left == tokens)

        for job in others()[: max(0, min(budget, decodes, room))]:
            plan.batch[job.id] = 1
        return plan

    def sorted(self, waiting: list[Job]) -> list[Job]:
        """New requests in the order in which they may begin."""
        jobs = sorted(waiting, key=lambda j: (j.left, j.id)) if self.order == "spf" else waiting
        return sorted(jobs, key=lambda j: -j.priority) if self.paying_first else jobs


class Sarathi(Book):
    """Algorithm 4 where memory is ample: every decode, then chunks in order of arrival."""

    def __init__(self, *, token_budget: int) -> None:
        self.budget = token_budget

    def plan(self, waiting: list[Job], active: list[Job]) -> Plan:
        plan = Plan(batch={j.id: 1 for j in active if j.decoding})
        left = self.budget - len(plan.batch)
        for job in [*(j for j in active if not j.decoding), *waiting]:
            tokens = min(left, job.left)
            if tokens == 0:
                break
            if job in waiting:
                plan.admit.append(job)
            plan.batch[job.id] = tokens
            left -= tokens
        return plan


# ---------------------------------------------------------------- comparison

RULES = list(itertools.product(FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE))
TIMES = (UnitBatchTime(), AffineBatchTime(0.31, 0.017, 0.023, 0.0011))


def workload(rng: np.random.Generator, n: int = 14, longest: int = 9) -> RequestTable:
    """Small requests; arrivals on a grid make ties, and arrivals at the end of a batch of unit time."""
    return RequestTable.from_columns(
        arrival_time=np.floor(np.cumsum(rng.exponential(rng.choice([0.3, 1.0, 3.0]), n)) * 2) / 2,
        prompt_len=rng.integers(1, longest + 1, n),
        output_len=np.where(rng.random(n) < 0.2, 1, rng.integers(1, longest + 1, n)),
        tbt_slo=rng.choice([0.5, 1.0, 2.0, 5.0, INF], n),
        priority=rng.integers(-1, 2, n),
    )


def effective(view: SystemView, decision: Decision) -> dict[str, Any]:
    """Everything a decision decides, in one form."""
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
        "wait": waits,
    }


def follow(
    spec: str,
    book: Book,
    system: System,
    table: RequestTable,
    role: int = ROLE_MIXED,
    prefilled: bool = False,
) -> Simulation:
    """Run a policy and compare each of its decisions with the book's.

    Args:
        spec: the policy.
        book: the reading of the paper.
        system: the worker.
        table: the requests.
        role: of the worker.
        prefilled: requests arrive with their prompts' KV, as they do at a decode worker.
    """
    policy = make_policy(spec)
    simulation = Simulation(system, table, needs=policy.info.needs | {"slo"}, policy_name=spec, log=True)
    for scheduler in (policy, book):
        scheduler.reset(system_info(system, table, 0, policy.info.needs))
    simulation.workers["role"] = role
    running, seen = simulation.start(), set[int]()
    while running:
        view = simulation.view
        for i in view.waiting.request_id.tolist() if prefilled else []:
            if i not in seen:
                simulation.requests["num_kv_tokens"][i] = table.prompt_len[i]
                simulation.requests["num_prefill_left"][i] = 0
                seen.add(i)
        decision, plan = policy.schedule(view), book.schedule(view)
        actual, expected = effective(view, decision), effective(view, plan)
        where = f"{spec}, {system}, iteration {view.iteration}, t = {view.clock}"
        assert actual == expected, where
        if actual["wait"] and simulation.tracker[0]["next_arrival"] == len(table):
            break  # a prefill worker that waits for its requests to be taken away
        running = simulation.step(decision)
    return simulation


BOOKS: dict[str, type[Book]] = {
    "rad": Rad,
    "rad_batched": RadBatched,
    "request_level": RequestLevel,
    "dist_serve": DistServe,
    "slai": Slai,
}


def draw(name: str, rng: np.random.Generator) -> dict[str, Any]:
    """Small hyperparameters, so that every limit binds now and then."""

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    if name == "request_level":
        return {"batch": one_of(1, 2, 3, 16)}
    if name == "dist_serve":
        return {"decodes": one_of(None, 1, 2, 4)}
    if name == "slai":
        return {
            "order": one_of("spf", "fcfs"),
            "offset": one_of(0.25, 1.0, 2.5, 10.0),
            "low_offset": one_of(None, 0.5, 1.5),
            "memory_threshold": one_of(0.3, 0.5, 0.96),
            "paying_first": one_of(False, True),
            "token_budget": one_of(1, 2, 4, 8, 512),
            "max_active": one_of(1, 3, 5, 128),
            "max_decodes": one_of(1, 2, 4, 128),
        }
    return {"cycle": one_of(1, 2, 4, 1000), "decodes": one_of(1, 2, 3, 128), "chunk": one_of(1, 2, 4, 256)}


def spec_of(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}:" + ",".join(f"{k}={v}" for k, v in arguments.items())


@pytest.mark.parametrize("name", BOOKS)
def test_decisions_are_those_of_the_book(name: str) -> None:
    """Under every rule, with tight and with ample memory; and the compiled run has the same records."""
    evictions = paused = repeated = 0
    for case, (first_token, progress, requeue) in enumerate(RULES * 2):
        rng = np.random.default_rng(case)
        system = System(
            kv_capacity=int(rng.choice([18, 21, 27, 200], p=[0.35, 0.35, 0.2, 0.1])),
            batch_time=TIMES[case % 2],
            first_token=first_token,
            progress_on_evict=progress,
            requeue=requeue,
        )
        table, arguments = workload(rng), draw(name, rng)
        spec = spec_of(name, arguments)
        simulation = follow(spec, BOOKS[name](**arguments), system, table)
        result = simulate(system, table, spec, log=True)
        assert result.completed
        assert result.log is not None
        count = int(simulation.tracker[0]["num_log"])
        np.testing.assert_array_equal(result.log, simulation.log[:count])
        for column in ("start_time", "first_token_time", "finish_time", "num_evictions"):
            np.testing.assert_array_equal(result.requests[column], simulation.requests[column])
        log = result.log
        evictions += int(log["num_evicted"].sum())
        repeated += int((result.requests["num_evictions"] > 1).sum())
        paused += int((log["num_active"] > log["num_prefills"] + log["num_decodes"]).sum())
    assert evictions > 50
    assert repeated > 0
    assert (paused > 100) == (name != "request_level")


@pytest.mark.parametrize("role", [ROLE_PREFILL, ROLE_DECODE])
def test_dist_serve_in_its_roles(role: int) -> None:
    """A prefill worker whose requests stay, and a decode worker to which they come prefilled."""
    evictions = waits = 0
    for case, (first_token, progress, requeue) in enumerate(RULES):
        if first_token == "counted" and role == ROLE_DECODE:
            continue  # there the token that comes with the prefill would have to be transferred as well
        rng = np.random.default_rng(100 + case)
        system = System(
            kv_capacity=int(rng.choice([18, 24, 200])),
            batch_time=TIMES[case % 2],
            first_token=first_token,
            progress_on_evict=progress,
            requeue=requeue,
        )
        table, arguments = workload(rng), draw("dist_serve", rng)
        simulation = follow(
            spec_of("dist_serve", arguments), DistServe(**arguments), system, table, role, role == ROLE_DECODE
        )
        log = simulation.log[: int(simulation.tracker[0]["num_log"])]
        evictions += int(log["num_evicted"].sum())
        if role == ROLE_DECODE:
            assert simulation.worker["total_finished"] == len(table)
        else:
            assert log["num_decodes"].sum() == 0
            assert (log["num_prefills"] == 1).all()
            waits += int(simulation.worker["num_waiting"] > 0)
    assert (evictions > 30) == (role == ROLE_DECODE)
    assert (waits > 5) == (role == ROLE_PREFILL)


# ---------------------------------------------------------------- claims of Section 6


@pytest.mark.parametrize("first_token", FIRST_TOKEN)
def test_slai_is_sarathi_where_every_decode_is_critical(first_token: str) -> None:
    """That is, where offset * mean batch time exceeds every TBT; and not otherwise."""
    differ = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        table = workload(rng, longest=30).replace(tbt_slo=rng.choice([0.5, 1.0, 2.0, 5.0], 14))
        budget = int(rng.integers(15, 22))  # more than there can be decodes
        system = System(kv_capacity=1000, batch_time=TIMES[seed % 2], first_token=first_token)
        book = Sarathi(token_budget=budget)
        follow(f"slai:order=fcfs,offset=1000,token_budget={budget}", book, system, table)
        results = [
            simulate(system, table, p, log=True).log
            for p in (book, f"slai:order=fcfs,offset=0.001,token_budget={budget}")
        ]
        differ += len(results[0]) != len(results[1]) or bool((results[0] != results[1]).any())  # type: ignore
    assert differ > 2


def test_a_larger_offset_shortens_the_gaps_between_tokens() -> None:
    """C in (8) falls with the offset, so that more decodes go before prefills (Section 7.1, role of the offset)."""
    longest = []
    for offset in (0.5, 2, 8):
        gaps = 0.0
        for seed in range(10):
            rng = np.random.default_rng(seed)
            table = workload(rng, n=25).replace(tbt_slo=np.full(25, 8.0))
            system = System(kv_capacity=1000, batch_time=UnitBatchTime(), first_token="uncounted")
            gaps += float(
                simulate(system, table, f"slai:offset={offset},token_budget=6")
                .requests["max_token_gap"]
                .sum()
            )
        longest.append(gaps)
    assert longest == sorted(longest, reverse=True)
    assert longest[0] > longest[-1]
