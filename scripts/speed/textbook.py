"""The discrete model of Jaillet et al. in plain Python: an oracle for tests, written for clarity.

It shares no code with the compiled engine or the compiled policies, and recomputes everything at every epoch. Scope:
one worker, and whole-prompt prefill in an iteration that emits the first output token. Evicted requests lose
all progress and return to their place in order of arrival.

Source: Jaillet et al., "Online Scheduling for LLM Inference with KV Cache Constraints", Sections 2, 4 and
5.2, Algorithms 1 and 2. Their M is ``capacity`` here, their õ ``predicted``. Beyond the paper, memory may be
allocated in blocks of several tokens, and unless ``strict`` a margin does not apply to a request that would run alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import LivelockError
from kvgym.workloads.table import RequestTable


@dataclass(eq=False)
class Job:
    """A request. ``generated`` counts the output tokens since its latest admission, 0 while it waits."""

    request_id: int
    arrival: float
    prompt: int  # s
    output: int  # o
    predicted: int  # õ
    generated: int = 0
    block: int = 1  # tokens of a block

    def tokens(self, rounds: int) -> int:
        """Return its KV tokens ``rounds`` rounds from now if it keeps running, equation (3)."""
        return self.prompt + self.generated + rounds

    def memory(self, rounds: int) -> int:
        """Return the memory that these take: the tokens of whole blocks."""
        return math.ceil(self.tokens(rounds) / self.block) * self.block


@dataclass
class Plan:
    """What happens at one epoch: evictions, then admissions; ``stalled`` = no request advances."""

    admit: list[Job] = field(default_factory=list)
    evict: list[Job] = field(default_factory=list)
    stalled: bool = False


Jobs = Sequence[Job]


class Times(NamedTuple):
    """Outcome per request: start, first token, finish (float64 seconds) and evictions (int64), shape (n,)."""

    start: NDArray[np.float64]
    first_token: NDArray[np.float64]
    finish: NDArray[np.float64]
    evictions: NDArray[np.int64]


def need(jobs: Jobs) -> int:
    """Return the memory that the next round takes if all of ``jobs`` advance."""
    return sum(job.memory(1) for job in jobs)


def share(capacity: int, alpha: float) -> Fraction:
    """Return (1 - alpha) M exactly, with alpha as the decimal that was written."""
    return (1 - Fraction(str(alpha))) * capacity


def satisfies_5(jobs: Jobs, limit: Fraction, overrun: str) -> bool:
    """Return whether (5) holds at every predicted completion time of ``jobs``, up to the last.

    Earlier admissions were checked against their own limit; a job admitted alone may exceed the limit of others.
    """
    least = 1 if overrun == "extend" else 0  # rounds that a job past its prediction is taken to need
    ends = [max(least, job.predicted - job.generated) for job in jobs]
    held = [
        sum(j.memory(k) for j, end in zip(jobs, ends, strict=True) if end >= k)
        for k in {*ends}
        if 0 < k <= max(1, ends[-1])
    ]
    return max(held, default=0) <= limit


def limit_for(jobs: Jobs, capacity: int, alpha: float, strict: bool) -> Fraction:
    """Return the memory that admission of the last of ``jobs`` may use: (1 - alpha) M, or M if it would be alone."""
    return share(capacity, 0 if len(jobs) == 1 and not strict else alpha)


def look_ahead(
    order: Jobs, active: Jobs, capacity: int, protection: float = 0, overrun: str = "", strict: bool = False
) -> Plan:
    """Admit the largest prefix of ``order`` that satisfies (5); if the next round overflows, clear all."""
    chosen = list[Job]()
    for job in order:
        jobs = [*active, *chosen, job]
        if not satisfies_5(jobs, limit_for(jobs, capacity, protection, strict), overrun):
            break
        chosen.append(job)
    return Plan(evict=list(active)) if need([*active, *chosen]) > capacity else Plan(admit=chosen)


def greedy(waiting: Jobs, active: Jobs, capacity: int, alpha: float, strict: bool = False) -> Plan:
    """Admit in order of arrival while the next round stays within (1 - alpha) M."""
    chosen = list[Job]()
    for job in waiting:
        jobs = [*active, *chosen, job]
        if need(jobs) > limit_for(jobs, capacity, alpha, strict):
            break
        chosen.append(job)
    return Plan(admit=chosen)


def mc_sf(waiting: Jobs, active: Jobs, capacity: int, **margin: Any) -> Plan:
    """Algorithm 1: ascending predicted output length, ties by arrival, then id."""
    order = sorted(waiting, key=lambda job: (job.predicted, job.arrival, job.request_id))
    return look_ahead(order, active, capacity, **margin)


def mc_benchmark(waiting: Jobs, active: Jobs, capacity: int, **margin: Any) -> Plan:
    """Algorithm 2: ascending arrival time."""
    return look_ahead(waiting, active, capacity, **margin)


def fcfs(waiting: Jobs, active: Jobs, capacity: int, *, protection: float = 0.0) -> Plan:
    """Greedy; on overflow evict the last activated one by one until the rest fits, and admit none."""
    stay = len(active)
    while need(active[:stay]) > capacity:
        stay -= 1
    evict = [*reversed(active[stay:])]
    return Plan(evict=evict) if evict else greedy(waiting, active, capacity, protection)


def alpha_greedy(
    waiting: Jobs, active: Jobs, capacity: int, *, alpha: float = 0.3, strict: bool = False
) -> Plan:
    """Section 5.2: greedy below (1 - alpha) M; overflow clears all, and the round is lost."""
    if need(active) > capacity:
        return Plan(evict=list(active))
    return greedy(waiting, active, capacity, alpha, strict)


def alpha_beta(
    waiting: Jobs,
    active: Jobs,
    capacity: int,
    *,
    uniform: Any,
    alpha: float = 0.2,
    beta: float = 0.1,
    strict: bool = False,
) -> Plan:
    """Section 5.2: overflow clears each with probability beta; what still overflows stalls the round."""
    if need(active) <= capacity:
        return greedy(waiting, active, capacity, alpha, strict)
    evict = [job for job in active if uniform() < beta]
    return Plan(evict=evict, stalled=need([job for job in active if job not in evict]) > capacity)


RULES = {f.__name__: f for f in (mc_sf, mc_benchmark, fcfs, alpha_greedy, alpha_beta)}


def run_textbook(
    table: RequestTable,
    kv_capacity: int,
    batch_time: Any,
    policy: Any,
    patience: int = 10_000,
    block_size: int = 1,
    **args: Any,
) -> Times:
    """Run one policy until every request has finished.

    Args:
        table: the requests; without predictions their true output lengths are the predictions.
        kv_capacity: M, tokens.
        batch_time: function giving seconds from keyword loads, see ``kvgym.simulator.batch_time.LOAD_FIELDS``.
        policy: a name in :data:`RULES`, or a function (waiting, active, capacity) -> Plan.
        patience: epochs in a row without an arrival or a new token, after which the run is taken to be
            endless.
        block_size: tokens of a block of memory.
        **args: hyperparameters; ``alpha_beta`` needs ``uniform``, a function giving numbers in [0, 1).

    Raises:
        LivelockError: the policy makes no progress.
    """
    rule, n = RULES[policy] if isinstance(policy, str) else policy, len(table)
    predicted = table.output_len if table.predicted_output_len is None else table.predicted_output_len
    columns = (table.arrival_time, table.prompt_len, table.output_len, predicted)
    future = [Job(i, *row) for i, row in enumerate(zip(*(c.tolist() for c in columns), strict=True))]
    for job in future:
        job.block = block_size
    waiting, active = list[Job](), list[Job]()
    times = Times(np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, np.int64))
    capacity = kv_capacity // block_size * block_size
    clock, fruitless, most = 0.0, 0, [0] * n
    while future or waiting or active:
        while future and future[0].arrival <= clock:
            waiting.append(future.pop(0))
            fruitless = 0
        waiting.sort(key=lambda job: (job.arrival, job.request_id))
        plan = rule(tuple(waiting), tuple(active), capacity, **args)
        if not (plan.admit or active):  # no batch: on to the next arrival
            if not future:
                raise LivelockError(f"{policy} admits none of {len(waiting)} requests and none will come")
            clock = future[0].arrival
            continue
        for job in plan.evict:
            active.remove(job)
            waiting.append(job)
            job.generated = 0
            times.evictions[job.request_id] += 1
        for job in plan.admit:
            waiting.remove(job)
            active.append(job)
            times.start[job.request_id] = np.fmin(times.start[job.request_id], clock)
        batch = [] if plan.stalled else list(active)
        prompts, decodes = [j.prompt for j in batch if not j.generated], [j for j in batch if j.generated]
        clock += batch_time(
            num_prefills=len(prompts),
            prefill_tokens=sum(prompts),
            prefill_squares=sum(tokens**2 for tokens in prompts),
            num_decodes=len(decodes),
            decode_context=sum(job.tokens(0) for job in decodes),
        )
        fruitless += 1
        for job in batch:
            job.generated += 1
            if job.generated > most[job.request_id]:
                most[job.request_id], fruitless = job.generated, 0
            times.first_token[job.request_id] = np.fmin(times.first_token[job.request_id], clock)
            if job.generated == job.output:
                times.finish[job.request_id] = clock
                active.remove(job)
        if fruitless > patience:
            raise LivelockError(f"{policy}: nothing new for {patience} epochs, t = {clock:g} s")
    return times
