"""Work-conserving scheduling with chunked prefill against plain Python.

The rule of Section 3 of "A Queueing-Theoretic Framework for Stability Analysis of LLM Inference with KV Cache Memory
Constraints" is implemented again from its description, over lists of requests. It plays their future forward round by
round and runs through ``schedule``. Its whole record must equal the compiled policy's, under every rule of the
engine, for chunks from one token to more than the memory.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers.amount import number, some
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.policies.policy import Decision, Policy, make_policy
from kvgym.policies.runner import SimulationResult, simulate, system_info
from kvgym.simulator.observer import Observer
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE, System, Worker
from kvgym.simulator.view import RequestColumns, SystemView
from kvgym.workloads.table import RequestTable

NAMES = (
    "work_conserving_fcfs", "work_conserving_sjf", "work_conserving_sjf:resume=by_work",
    "work_conserving_fcfs_lookahead", "work_conserving_sjf_lookahead",
)  # fmt: skip
CHUNKS = (1, 2, 3, 7, 512)
RULES = list(itertools.product(FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE))
TIMES = (UnitBatchTime(), AffineBatchTime(0.31, 0.017, 0.023, 0.0011))
EACH = pytest.mark.parametrize("name", NAMES)


def with_chunk(name: str, chunk: int) -> str:
    return f"{name}{',' if ':' in name else ':'}chunk={chunk}"


# ---------------------------------------------------------------- the rule


class Job(NamedTuple):
    """A request as a policy observes it; ``predicted`` is 0 without predictions."""

    id: int
    prompt: int
    kv: int
    left: int  # tokens to prefill
    made: int  # output tokens
    emits: int  # output tokens that the last prefill chunk writes: 0 or 1
    predicted: int
    swapped: bool  # has been swapped out before

    def future(self, chunk: int, output: int) -> list[int]:
        """Return the KV tokens in each round from the next one until it has ``output`` output tokens."""
        kv, left, made, memory = self.kv, self.left, self.made, list[int]()
        while not memory or left or made < output:
            tokens = min(chunk, left)
            new = (self.emits if tokens == left else 0) if left else 1  # output tokens of this round
            kv, left, made = kv + tokens + new, left - tokens, made + new
            memory.append(kv)
        return memory


def jobs(rows: RequestColumns, view: SystemView, needs: frozenset[str]) -> list[Job]:
    predicted = rows.predicted_output_len if "predicted_length" in needs else np.zeros(len(rows), int)
    columns = (
        rows.request_id, rows.prompt_len, rows.num_kv_tokens, rows.num_prefill_left, rows.num_output_tokens,
        np.full(len(rows), int(view.prefill_emits)), predicted, rows.num_evictions,
    )  # fmt: skip
    return [Job(*map(int, row[:-1]), bool(row[-1])) for row in zip(*columns, strict=True)]


class WorkConserving(Policy):
    """Ongoing requests first; then waiting ones in order, up to the first that does not fit."""

    def __init__(self, name: str, chunk: int) -> None:
        self.info = make_policy(name).info  # type: ignore[misc]
        self.shortest_first, self.look_ahead, self.chunk = "sjf" in name, "lookahead" in name, chunk
        self.swapped_first = name == "work_conserving_sjf"

    def memory(self, jobs: Iterable[Job], capacity: int, role: str) -> int:
        """Return the maximum KV tokens over the next round or, with look-ahead, over all rounds on this worker."""
        futures = []
        for job in jobs:
            output = job.made + 1
            if self.look_ahead:  # a request that can be served never outgrows the memory
                output = min(max(job.predicted, output), capacity - job.prompt)
            if role == "prefill":
                output = 0
            futures.append(job.future(self.chunk, output))
        rounds = list(itertools.zip_longest(*futures, fillvalue=0))
        return max(map(sum, rounds if self.look_ahead else rounds[:1]), default=0)

    def key(self, job: Job) -> tuple[bool, int, int]:
        return (self.swapped_first and not job.swapped, job.prompt + job.predicted, job.id)

    def schedule(self, view: SystemView) -> Decision:
        waiting, active = (jobs(rows, view, self.info.needs) for rows in (view.waiting, view.active))
        capacity, stay, evict, admit = view.kv_capacity, list(active), list[Job](), list[Job]()
        while sum(job.future(self.chunk, 0)[0] for job in stay) > capacity:
            evict.append(stay.pop())
        if not evict:
            order = waiting
            if self.shortest_first:
                order = sorted(waiting, key=self.key)
            for job in order:
                if self.memory([*stay, *admit, job], capacity, view.role) > capacity:
                    break
                admit.append(job)
        return Decision(
            admit=[job.id for job in admit],
            evict=[job.id for job in evict],
            tokens={job.id: self.chunk for job in (*stay, *admit) if job.left > self.chunk},
        )


def test_the_future_of_a_job() -> None:
    # s 5 in chunks of 2, o 3: paper's model 2, 4, 5, then 6, 7, 8; where the last chunk writes token 1: 2, 4, 6, 7, 8.
    assert Job(0, 5, 0, 5, 0, 0, 3, False).future(2, 3) == [2, 4, 5, 6, 7, 8]
    assert Job(0, 5, 0, 5, 0, 1, 3, False).future(2, 3) == [2, 4, 6, 7, 8]
    # Half way through the prompt; decoding; with two of its three tokens to be computed again.
    assert Job(0, 5, 4, 1, 0, 0, 3, False).future(2, 3) == [5, 6, 7, 8]
    assert Job(0, 5, 6, 0, 1, 0, 3, False).future(2, 3) == [7, 8]
    assert Job(0, 5, 0, 7, 2, 0, 3, False).future(3, 3) == [3, 6, 7, 8]
    assert Job(0, 5, 0, 7, 2, 1, 3, False).future(3, 3) == [3, 6, 8]


# ---------------------------------------------------------------- comparison


def workload(
    seed: int, n: int, capacity: int, predict: str = "mixed", rate: float | None = None
) -> RequestTable:
    """Return bursts of requests, one of which fills the memory.

    Predictions are ``exact``, ``above`` (too long, sometimes longer than can be served) or ``mixed`` (these and too
    short ones).
    """
    rng = np.random.default_rng(seed)
    rate = rate or rng.choice([0.2, 0.6, 3.0])
    prompt, output = rng.integers(1, 13, n), rng.geometric(0.2, n).clip(1, 8)
    prompt[n // 2], output[n // 2] = capacity * 6 // 10, capacity - capacity * 6 // 10
    above = rng.integers(0, 4, n) + (rng.random(n) < 0.1) * 5 * capacity
    error = {
        "exact": 0 * above,
        "above": above,
        "mixed": np.choose(rng.integers(0, 3, n), [0 * above, above, -rng.integers(1, 9, n)]),
    }
    arrival = np.cumsum(rng.exponential(1 / rate, n) * (rng.random(n) < 0.7))
    return RequestTable.from_columns(
        arrival_time=np.floor(arrival) if rng.random() < 0.7 else arrival,
        prompt_len=prompt,
        output_len=output,
        predicted_output_len=np.maximum(1, output + error[predict]),
    )


def system(seed: int, capacity: int, rules: tuple[str, str, str]) -> System:
    first_token, progress, requeue = rules
    return System(
        kv_capacity=capacity,
        batch_time=TIMES[seed % 2],
        first_token=first_token,
        progress_on_evict=progress,
        requeue=requeue,
        swap_time=(0.0, 0.013)[seed % 3 == 0],
        stall_limit=300,
    )


def assert_equal(one: SimulationResult, other: SimulationResult, where: str) -> None:
    for table in ("requests", "worker", "log"):
        a, b = getattr(one, table), getattr(other, table)
        assert len(a) == len(b), where
        for field in a.dtype.names:
            np.testing.assert_array_equal(a[field], b[field], err_msg=f"{table}.{field}, {where}")


@EACH
@pytest.mark.parametrize("chunk", CHUNKS)
def test_records_equal_those_of_the_oracle(name: str, chunk: int) -> None:
    book, evictions = WorkConserving(name, chunk), 0
    for seed, rules in some(enumerate(RULES), 5):
        capacity = (20, 29, 50)[seed // 2 % 3]
        table = workload(1000 * chunk + seed, 18, capacity)
        where = f"seed {seed}, {rules}"
        one, other = (
            simulate(system(seed, capacity, rules), table, policy, log=True)
            for policy in (with_chunk(name, chunk), book)
        )
        assert one.completed
        assert_equal(one, other, where)
        evictions += int(one.requests["num_evictions"].sum())
    assert evictions > number(10, 2)


@EACH
@pytest.mark.parametrize("chunk", [2, 3])
def test_decisions_equal_those_of_the_oracle(name: str, chunk: int) -> None:
    """Compare through the view, decision by decision."""
    policy, book = make_policy(with_chunk(name, chunk)), WorkConserving(name, chunk)
    compared = 0
    for seed in range(number(4, 2)):
        table = workload(seed, 24, 21, rate=0.8)
        rules = system(seed, 21, RULES[(seed * 7 + chunk) % 27])
        policy.reset(system_info(rules, table, seed, policy.info.needs))
        simulation = Simulation(rules, table, needs=policy.info.needs)
        running = simulation.start()
        while running:
            decision, expected = policy.schedule(simulation.view), book.schedule(simulation.view)
            where = f"seed {seed}, iteration {simulation.view.iteration}"
            assert (list(decision.evict), list(decision.admit)) == (expected.evict, expected.admit), where
            assert decision.tokens == expected.tokens, where
            assert decision.wait_until is None
            compared += 1
            running = simulation.step(decision)
    assert compared > number(150, 75)


@EACH
@pytest.mark.parametrize("chunk", [1, 3, 512])
def test_many_more_requests_than_fit(name: str, chunk: int) -> None:
    """A burst of 120 requests into a memory of 40, and a second one long after it."""
    columns = workload(chunk, 240, 40, rate=1.0).columns()
    columns["arrival_time"] = np.repeat([0.0, 5000.0], 120)
    table = RequestTable.from_columns(**columns)
    rules = System(kv_capacity=40, batch_time=UnitBatchTime(), stall_limit=300, progress_on_evict="kept")
    one, other = (
        simulate(rules, table, policy, log=True)
        for policy in (with_chunk(name, chunk), WorkConserving(name, chunk))
    )
    assert_equal(one, other, name)


@EACH
def test_compiled_and_plain_python_agree(name: str) -> None:
    for seed, chunk in enumerate((1, 2, 512)):
        rules, table = system(seed, 21, RULES[seed * 11]), workload(seed, 15, 21)
        one, other = (
            simulate(rules, table, with_chunk(name, chunk), log=True, compiled=compiled)
            for compiled in (True, False)
        )
        assert_equal(one, other, f"seed {seed}")


@EACH
@pytest.mark.parametrize("roles", ["mixed mixed", "prefill decode", "prefill decode decode"])
def test_clusters(name: str, roles: str) -> None:
    """Requests may leave a worker after their prompt, or arrive with their prompt in memory."""
    evictions = 0
    for seed, rules in some(enumerate(RULES[1::2]), 3):
        chunk, table = (1, 2, 3, 512)[seed % 4], workload(seed, 24, 25)
        one = system(seed, 25, rules)
        workers = tuple(Worker(25, one.batch_time, role) for role in roles.split())
        cluster = dataclasses.replace(one, workers=workers, transfer_latency=0.2, transfer_time=0.03)
        results = [
            simulate(cluster, table, policy, log=True)
            for policy in (with_chunk(name, chunk), WorkConserving(name, chunk))
        ]
        assert results[0].completed
        assert_equal(*results, f"seed {seed}, {rules}")
        evictions += int(results[0].requests["num_evictions"].sum())
    assert evictions > 0


# ---------------------------------------------------------------- special cases and claims


def assert_same_schedule(one: SimulationResult, other: SimulationResult, where: Any) -> None:
    for field in ("start_time", "first_token_time", "finish_time", "num_evictions"):
        np.testing.assert_array_equal(one.requests[field], other.requests[field], err_msg=f"{where}: {field}")
    np.testing.assert_array_equal(one.log, other.log, err_msg=str(where))


@pytest.mark.parametrize(
    ("name", "known", "same_prompts"),
    [
        ("work_conserving_fcfs", "fcfs", False),
        ("work_conserving_fcfs_lookahead", "mc_benchmark", False),
        # MC-SF orders by predicted output alone.
        ("work_conserving_sjf_lookahead", "mc_sf", True),
    ],
)
def test_whole_prompts_and_exact_predictions_give_known_policies(
    name: str, known: str, same_prompts: bool
) -> None:
    for seed, rules in enumerate(RULES):
        table = workload(seed, 40, 21, "exact")
        if same_prompts:
            table = table.replace(prompt_len=np.full(40, 4))
        one, other = (
            simulate(system(seed, 21, rules), table, policy, log=True)
            for policy in (with_chunk(name, 21), known)
        )
        assert_same_schedule(one, other, rules)


@EACH
@pytest.mark.parametrize("chunk", [13, 21, 1000])
def test_chunks_longer_than_any_prompt_are_all_alike(name: str, chunk: int) -> None:
    # Under "lost": what "recompute" prefills again can be longer than any prompt.
    table = workload(3, 40, 21)
    rules = system(1, 21, ("uncounted", "lost", "arrival"))
    one, other = (simulate(rules, table, with_chunk(name, c), log=True) for c in (chunk, 512))
    assert_same_schedule(one, other, chunk)


@pytest.mark.parametrize("name", [name for name in NAMES if "lookahead" in name])
@pytest.mark.parametrize("predict", ["exact", "above"])
def test_look_ahead_never_evicts_unless_a_prediction_is_too_short(name: str, predict: str) -> None:
    for seed, rules in enumerate(RULES):
        for chunk in CHUNKS:
            table = workload(seed, 40, 25, predict)
            result = simulate(system(seed, 25, rules), table, with_chunk(name, chunk), log=True)
            assert result.completed
            assert result.requests["num_evictions"].sum() == 0


@EACH
def test_the_worker_is_never_idle_while_requests_wait(name: str) -> None:
    """Under any predictions every iteration processes tokens, and the memory is never exceeded."""
    for seed, rules in enumerate(RULES):
        chunk = CHUNKS[seed % 5]
        log = simulate(system(seed, 25, rules), workload(seed, 60, 25), with_chunk(name, chunk), log=True).log
        assert log is not None
        assert (log["num_active"] == log["num_prefills"] + log["num_decodes"]).all()  # none is paused
        assert log["num_active"].min() > 0
        assert log["kv_tokens"].max() <= 25
        assert (log["prefill_tokens"] <= chunk * log["num_prefills"]).all()
        assert (log["num_admitted"][log["num_evicted"] > 0] == 0).all()


@pytest.mark.parametrize("name", [name for name in NAMES if "sjf" in name])
def test_shortest_first_does_not_depend_on_requeue(name: str) -> None:
    evictions = 0
    for seed, progress in enumerate(PROGRESS_ON_EVICT):
        table = workload(seed, 40, 25)
        results = [
            simulate(system(seed, 25, ("uncounted", progress, requeue)), table, with_chunk(name, 2), log=True)
            for requeue in REQUEUE
        ]
        for other in results[1:]:
            assert_same_schedule(results[0], other, progress)
        evictions += int(results[0].requests["num_evictions"].sum())
    assert evictions > number(10, 2)


class Overtaking(Observer):
    """Counts decisions that start a new request while a swapped-out one keeps waiting."""

    def __init__(self) -> None:
        self.started, self.out, self.count = set[int](), set[int](), 0

    def decided(self, time: float, worker: int, admitted: Any, evicted: Any) -> None:
        new = set(admitted.tolist()) - self.started
        self.started |= new
        self.out = (self.out | set(evicted.tolist())) - set(admitted.tolist())
        self.count += bool(new and self.out)


@pytest.mark.parametrize(
    ("name", "overtakes"),
    [
        ("work_conserving_fcfs", False),
        ("work_conserving_sjf", False),
        ("work_conserving_sjf:resume=by_work", True),
    ],
)
def test_no_new_request_starts_while_a_swapped_out_one_waits(name: str, overtakes: bool) -> None:
    """Section 3: ongoing requests come before new ones."""
    found = 0
    for seed, progress in enumerate([*PROGRESS_ON_EVICT] * 2):
        seen = Overtaking()
        rules = system(seed, 25, ("uncounted", progress, "arrival"))
        simulate(rules, workload(seed, 60, 25, rate=0.6), with_chunk(name, 2), observer=seen)
        found += seen.count
    assert (found > 0) == overtakes


@EACH
def test_lifetime_memory_is_g(name: str) -> None:
    """Section 4: with free swapping every request occupies g(s, o), so the total is their sum."""
    for seed, (chunk, first_token) in enumerate(itertools.product(CHUNKS, FIRST_TOKEN)):
        table = workload(seed, 40, 25)
        result = simulate(
            system(seed, 25, (first_token, "kept", "arrival")), table, with_chunk(name, chunk), log=True
        )
        total = 0
        for s, o in zip(table.prompt_len.tolist(), table.output_len.tolist(), strict=True):
            total += sum(min(j, s) for j in range(chunk, s + chunk, chunk)) + sum(range(s + 1, s + o + 1))
            if first_token == "counted":  # the last chunk and the first output token share an iteration
                total -= s
        assert result.log is not None
        assert int(result.log["kv_tokens"].sum()) == total


def test_stability_under_and_over_the_service_rate() -> None:
    """Theorems 1 and 2: the backlog grows without bound above μ and does not below μ(1 - δ).

    s = 8 in chunks of 4, o = 2 … 6: g = 4 + 8 + 8o + o(o+1)/2 has mean 12 + 32 + (3 + 6 + 10 + 15 + 21)/5 = 55.
    M = 200, so μ = 200/55 = 3.64 requests per slot; δ = 14/200.
    """
    rng, n, mu, delta = np.random.default_rng(4), 6000, 200 / 55, 14 / 200
    gaps, output = rng.exponential(1.0, n), rng.integers(2, 7, n)
    rules = System(
        kv_capacity=200, batch_time=UnitBatchTime(), first_token="uncounted", progress_on_evict="kept"
    )
    for name in NAMES:
        for load, stable in ((0.9 * (1 - delta), True), (1.2, False)):
            table = RequestTable.from_columns(
                arrival_time=np.cumsum(gaps) / (load * mu),
                prompt_len=np.full(n, 8),
                output_len=output,
                predicted_output_len=output,
            )
            result = simulate(rules, table, with_chunk(name, 4), log=True)
            assert result.log is not None
            here = result.log["start_time"] < table.arrival_time[-1]
            backlog = (result.log["num_waiting"] + result.log["num_active"])[here]
            middle, last = backlog[len(backlog) // 2], backlog[-1]
            if stable:
                assert backlog[len(backlog) // 4 :].mean() < 100, name
                assert last < 200, name
            else:
                # The share 1 - 1/1.2 = 1/6 of the arrived work remains, at best in the largest requests (g = 81).
                assert last > 0.9 * n / 6 * 55 / 81, name
                assert last > 1.5 * middle, name
