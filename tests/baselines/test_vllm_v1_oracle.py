"""``vllm_v1`` against an independent plain scheduler, written from the engine's description, on random workloads.

The scheduler below shares nothing with the simulator: it has its own clock, queue, running list and count of memory. As
in the engine, a request has known tokens (prompt and output so far), of which some are computed. An iteration takes one
second; an empty one takes no time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.amount import number
from helpers.runs.schedules import Step, play
from kvgym.batch_time import UnitBatchTime
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable


@dataclass(eq=False)
class Job:
    """A request as the engine sees it."""

    number: int
    arrival: float
    prompt: int
    output: int
    importance: int
    known: int = 0  # prompt and output tokens so far
    computed: int = 0
    memory: int = 0
    partial: bool = False  # its last chunk left a part of the prompt
    starts: list[float] = field(default_factory=list)
    preemptions: int = 0
    finish: float = -1.0

    def rank(self) -> tuple[int, float, int]:
        """Return the order of urgency: the engine's priority is lower for more important requests."""
        return (-self.importance, self.arrival, self.number)

    def memory_after(self, tokens: int) -> int:
        """Return the memory after an iteration, with the token that is generated once all known tokens are computed."""
        done = self.computed + tokens
        return done + 1 if done == self.known else done


@dataclass
class Scheduler:
    """The scheduler and its limits; requests take whole blocks of memory."""

    capacity: int
    block: int
    budget: int
    places: int
    threshold: int
    by_priority: bool
    chunked: bool
    whole_input: bool
    reserve: int
    newer: bool = False  # release 0.33, else 0.24
    adaptive: bool = False
    interval: int = 1
    executed: int = 0
    last_prefill: int = -(10**6)
    left_over: bool = False
    running: list[Job] = field(default_factory=list)
    waiting: list[Job] = field(default_factory=list)

    def free(self) -> int:
        return self.capacity - sum(job.memory for job in self.running)

    def blocks_after(self, job: Job, tokens: int) -> int:
        return -(-job.memory_after(tokens) // self.block)

    def limit(self) -> int:
        """Return the most tokens of a prompt, 0 = no limit."""
        count = len(self.running) + len(self.waiting)
        if self.threshold == 0 or not self.newer:
            return self.threshold
        if count == 1:
            return 0
        return max(self.threshold, self.budget // count) if self.adaptive else self.threshold

    def preempt(self, job: Job) -> None:
        self.running.remove(job)
        job.computed = job.memory = 0
        job.preemptions += 1
        self.waiting.insert(0, job)

    def step(self, barred: list[Job]) -> tuple[dict[Job, int], list[Job]]:
        """Return the tokens of each scheduled request, and those preempted; requests in ``barred`` may not start."""
        left, tokens, gone = self.budget, dict[int, tuple[Job, int]](), list[Job]()
        limit, prefills = self.limit(), False
        recent = self.executed + 1 - self.last_prefill < self.interval
        holds = recent and not self.left_over and any(not job.partial for job in self.running)
        for job in list(self.running):
            if left == 0:
                break
            if job in gone or (holds and job.partial):
                continue
            count = min(job.known - job.computed, limit or 10**6, left)
            while job not in gone and self.blocks_after(job, count) - job.memory > self.free():
                worst = self.running[-1]
                if self.by_priority:
                    worst = max(self.running, key=lambda job: job.rank()[:2])  # the first of equal ones
                if worst.number in tokens:
                    left += tokens.pop(worst.number)[1]
                gone.append(worst)
                self.preempt(worst)
            if job in gone:
                if self.newer and self.by_priority:
                    continue
                break
            job.memory = self.blocks_after(job, count)
            tokens[job.number] = (job, count)
            prefills |= job.partial
            left -= count
        while not gone and self.waiting and left > 0 and len(self.running) < self.places:
            job = min(self.waiting, key=Job.rank) if self.by_priority else self.waiting[0]
            if job in barred or (holds and job.known > 1):
                break
            count = min(job.known, limit or 10**6)
            if count > left and not self.chunked:
                break
            count = min(count, left)
            must_fit = self.blocks_after(job, job.known if self.whole_input else count)
            if must_fit + (self.reserve if self.running else 0) > self.free():
                break
            self.waiting.remove(job)
            self.running.append(job)
            job.memory = self.blocks_after(job, count)
            tokens[job.number] = (job, count)
            prefills |= job.known > 1
            left -= count
        if not gone and not holds:
            self.left_over = bool(self.waiting)
        self.executed += bool(tokens)
        if prefills:
            self.last_prefill = self.executed
        return dict(tokens.values()), gone


def serve(scheduler: Scheduler, jobs: list[Job]) -> list[Step]:
    """Serve all requests; return the batches."""
    clock, coming, steps = 0.0, list(jobs), list[Step]()
    while coming or scheduler.waiting or scheduler.running:
        if not scheduler.waiting and not scheduler.running:
            clock = max(clock, coming[0].arrival)
        while coming and coming[0].arrival <= clock:
            coming[0].known = coming[0].prompt
            scheduler.waiting.append(coming.pop(0))
        batch, gone = scheduler.step([])
        while (
            not batch
        ):  # an empty step takes no time; here, requests that it preempted cannot return in the next
            assert gone, "none runs and none can start"
            batch, more = scheduler.step(gone)
            gone += more
        steps.append(
            Step(clock, {job.number: count for job, count in batch.items()}, [job.number for job in gone])
        )
        for job, count in batch.items():
            if not job.starts:
                job.starts.append(clock)
            job.computed += count
            job.partial = job.computed < job.known
            if not job.partial:
                job.known += 1
        clock += 1.0
        for job in [job for job in batch if job.known == job.prompt + job.output]:
            job.finish = clock
            scheduler.running.remove(job)
    return steps


@st.composite
def instances(draw: st.DrawFn) -> tuple[RequestTable, dict[str, Any], int, int]:
    """Return requests, hyperparameters, and a capacity that is tight for them, with a block size."""
    count = draw(st.integers(1, 9))

    def column(least: int, most: int) -> list[int]:
        return draw(st.lists(st.integers(least, most), min_size=count, max_size=count))

    prompt, output = column(1, 12), column(1, 8)
    longest = max(s + o for s, o in zip(prompt, output, strict=True))
    table = RequestTable.from_columns(
        arrival_time=sorted(gap / 2 for gap in column(0, 20)),
        prompt_len=prompt,
        output_len=output,
        priority=column(-2, 2),
    )
    chunked = draw(st.booleans())
    budget = draw(st.integers(1, 14)) if chunked else draw(st.integers(longest, longest + 8))
    hyperparameters = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": draw(st.integers(1, min(budget, 6))),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 1, 3, 5])),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "enable_chunked_prefill": chunked,
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1, 0.29, 0.5])),
        "engine_version": draw(st.sampled_from(["0.24", "0.33"])),
    }
    if hyperparameters["engine_version"] == "0.33":
        hyperparameters |= {
            "max_num_active_seqs": draw(st.integers(1, hyperparameters["max_num_seqs"])),
            "prefill_schedule_interval": draw(st.sampled_from([1, 1, 2, 5])),
            "long_prefill_token_threshold_adaptive": draw(st.booleans()),
        }
    block = draw(st.sampled_from([1, 1, 2, 3, 4, 16]))
    return table, hyperparameters, -(-longest // block) * block + draw(st.integers(0, 16)), block


def reference(
    table: RequestTable, hyperparameters: dict[str, Any], capacity: int, block: int
) -> tuple[list[Job], list[Step]]:
    """Return the requests after the plain scheduler has served them, and its batches."""
    columns = (table.arrival_time, table.prompt_len, table.output_len, table.columns()["priority"])
    jobs = [
        Job(i, float(a), int(s), int(o), int(p)) for i, (a, s, o, p) in enumerate(zip(*columns, strict=True))
    ]
    blocks = capacity // block
    plain = Scheduler(
        capacity=blocks,
        block=block,
        budget=hyperparameters["max_num_batched_tokens"],
        places=hyperparameters.get("max_num_active_seqs", hyperparameters["max_num_seqs"]),
        threshold=hyperparameters["long_prefill_token_threshold"],
        by_priority=hyperparameters["policy"] == "priority",
        chunked=hyperparameters["enable_chunked_prefill"],
        whole_input=hyperparameters["scheduler_reserve_full_isl"],
        reserve=int((blocks + 1) * hyperparameters["watermark"]),  # a float, as the engine's
        newer=hyperparameters.get("engine_version") == "0.33",
        adaptive=hyperparameters.get("long_prefill_token_threshold_adaptive", False),
        interval=hyperparameters.get("prefill_schedule_interval", 1),
    )
    return jobs, serve(plain, jobs)


@settings(max_examples=number(250, 50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances())
def test_every_batch_is_that_of_the_plain_scheduler(
    instance: tuple[RequestTable, dict[str, Any], int, int],
) -> None:
    table, hyperparameters, capacity, block = instance
    jobs, steps = reference(*instance)
    system = System(
        kv_capacity=capacity,
        batch_time=UnitBatchTime(),
        progress_on_evict="recompute",
        requeue="front",
        block_size=block,
    )
    spec = "vllm_v1:" + ",".join(f"{name}={value}" for name, value in hyperparameters.items())
    assert play(spec, system, table) == steps
    records = simulate(system, table, spec).requests
    assert records["start_time"].tolist() == [job.starts[0] for job in jobs]
    assert records["finish_time"].tolist() == [job.finish for job in jobs]
    assert records["num_evictions"].tolist() == [job.preemptions for job in jobs]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_the_comparison_meets_preemption(policy: str) -> None:
    """Random workloads prove little if memory is never short."""
    table = RequestTable.from_columns(
        arrival_time=[0] * 6, prompt_len=[3, 5, 2, 7, 4, 1], output_len=[8] * 6, priority=[0, 2, 1, 2, 0, 1]
    )
    hyperparameters = {
        "max_num_batched_tokens": 8,
        "max_num_seqs": 6,
        "long_prefill_token_threshold": 0,
        "policy": policy,
        "enable_chunked_prefill": True,
        "scheduler_reserve_full_isl": True,
        "watermark": 0.0,
    }
    jobs, _ = reference(table, hyperparameters, 20, 1)
    assert sum(job.preemptions for job in jobs) >= 4
