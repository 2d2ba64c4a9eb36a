"""Plain implementations of the SLAI paper's algorithms; test_slai_oracle.py lists their readings."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from kvgym.policies.policy import Decision, Policy, PolicyInfo, SystemInfo
from kvgym.simulator.tables import ROLE_PREFILL
from kvgym.simulator.view import SystemView, simulation_of

INF = float("inf")


@dataclass(eq=False)
class Job:
    """A request at an iteration boundary: ``left`` prompt tokens to prefill, ``kv`` tokens in memory."""

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
    """Decision: evict, admit, and tokens of the batch; requests outside the batch pause."""

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
        worker, slots = simulation_of(view).worker, simulation_of(view).active[0]
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
        """Decode the first ``most`` requests; evict the last, one by one, until that fits."""
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
    """Algorithm 2: prefill until n requests are prefilled or none waits, then decode until all are done."""

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
    """Algorithm 5 without the transfer: prefill nodes never decode, the others decode when no prompt can begin."""

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
    """Section 6. The batch is filled in the paper's order: critical decodes, prefills, other decodes."""

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
        watermark: float = 0.0,
    ) -> None:
        self.reserved = Fraction(str(watermark))
        self.order, self.paying_first = order, paying_first
        self.offset, self.low_offset, self.threshold = offset, low_offset, memory_threshold
        self.budget, self.alpha, self.beta = token_budget, max_active, max_decodes

    def last_schedulable(self, job: Job) -> float:
        """Return the time by equation (8); a decode without any token so far is overdue."""
        low = self.low_offset is not None and self.kv < Fraction(str(self.threshold)) * self.M
        offset = self.low_offset if low else self.offset
        assert offset is not None
        return -INF if math.isnan(job.last) else job.last + job.tbt - offset * self.mean_batch_time

    def chunk(self, job: Job, budget: int, free: int) -> int:
        """Return the tokens of a prefill that fit; the last chunk may also write an output token."""
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

        # New requests may use ``spare``: prefilling requests will need their whole prompts and a token.
        spare = room - sum(j.left + 1 for j in prefilling())
        for job in prefilling():
            tokens = self.chunk(job, budget, room)
            if tokens == 0:
                break  # and no new request: the budget is used up or ``spare`` is negative
            plan.batch[job.id] = tokens
            budget, room = budget - tokens, room - tokens - self.emits * (tokens == job.left)
        for job in self.sorted(waiting) if not evict else []:
            demand = job.kv + job.left + 1
            running = len(stay) + len(plan.admit)
            kept = math.ceil(self.reserved * self.M) if running else 0
            if budget == 0 or running >= self.alpha or demand > spare - kept:
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
        """Return the new requests in the order in which they may begin."""
        jobs = sorted(waiting, key=lambda j: (j.left, j.id)) if self.order == "spf" else waiting
        return sorted(jobs, key=lambda j: -j.priority) if self.paying_first else jobs


class Sarathi(Book):
    """Algorithm 4 with ample memory: all decodes, then chunks in order of arrival."""

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
