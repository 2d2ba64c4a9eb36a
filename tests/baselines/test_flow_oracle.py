"""Flow control, A_min, MC-Benchmark with the longest length, ageing and cost-aware eviction against plain Python.

Each rule is implemented again from its description, over lists of requests, recomputes everything at every boundary,
and runs through ``schedule``. Its whole record must equal the compiled policy's, under every rule of the engine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers.amount import number, some
from helpers.runs.schedules import as_printed
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.compiling.kernel import uncompiled
from kvgym.errors import LivelockError
from kvgym.policies.policy import Decision, Policy, SystemInfo, make_policy
from kvgym.policies.runner import SimulationResult, simulate, system_info
from kvgym.simulator.kernels.random import next_uniform, seed_words
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE, System
from kvgym.simulator.view import RequestColumns, SystemView
from kvgym.workloads.table import RequestTable

TIMES = (UnitBatchTime(), AffineBatchTime(0.31, 0.017, 0.023, 0.0011))
RULES = list(itertools.product(FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE))

# ---------------------------------------------------------------- the rules


class Job(NamedTuple):
    """A request as a policy observes it; columns that the policy does not declare are -1."""

    id: int
    arrival: float
    place: int  # in the queue, or in order of activation
    kv: int
    left: int  # tokens to prefill
    generated: int
    emits: int  # output tokens that the end of the prefill writes: 0 or 1
    predicted: int
    low: int
    high: int
    kind: int

    def memory(self, rounds: int) -> int:
        """Return the KV tokens in the given round from now (1 = the next one), if it runs in every round."""
        first = self.kv + self.left + self.emits if self.left else self.kv + 1
        return first + rounds - 1

    def rounds(self, output: int) -> int:
        """Return the remaining rounds if its output has this length; ≤ 0 after it has outlived that."""
        return output - self.generated + (1 if self.left and not self.emits else 0)


def need(jobs: Iterable[Job]) -> int:
    return sum(job.memory(1) for job in jobs)


def keeps_within(plan: Sequence[tuple[Job, int]], limit: Fraction | int) -> bool:
    """Inequality (5) of Jaillet et al.: jobs with remaining rounds never take more than the limit."""
    return all(
        sum(job.memory(k) for job, rounds in plan if rounds >= k) <= limit for k in range(1, plan[-1][1] + 1)
    )


def jobs(rows: RequestColumns, view: SystemView, needs: frozenset[str]) -> list[Job]:
    def column(name: str, need: str) -> list[int]:
        return getattr(rows, name).tolist() if need in needs else [-1] * len(rows)

    columns = (
        rows.request_id.tolist(), rows.arrival_time.tolist(), range(len(rows)), rows.num_kv_tokens.tolist(),
        rows.num_prefill_left.tolist(), rows.num_output_tokens.tolist(), [int(view.prefill_emits)] * len(rows),
        column("predicted_output_len", "predicted_length"), column("predicted_low", "length_interval"),
        column("predicted_high", "length_interval"), column("class_id", "class"),
    )  # fmt: skip
    return [Job(*row) for row in zip(*columns, strict=True)]


Plan = tuple[list[Job], list[Job]]  # evict, admit


class Oracle(Policy):
    """A rule over lists, with the description of the policy that it checks."""

    def __init__(self, like: Policy, **arguments: Any) -> None:
        self.info = like.info  # type: ignore[misc]
        self.arguments = arguments
        self.undone = self.decisions = 0
        self.begin()

    def reset(self, system: SystemInfo) -> None:
        self.undone, self.decisions, self.words = 0, 0, seed_words(system.seed)
        self.begin()

    def begin(self) -> None:
        """Reset the state."""

    def uniform(self) -> float:
        return float(uncompiled(next_uniform)(self.words, 0))

    def schedule(self, view: SystemView) -> Decision:
        waiting, active = (jobs(rows, view, self.info.needs) for rows in (view.waiting, view.active))
        before = self.undone
        evict, admit = self.decide(waiting, active, view.kv_capacity)
        self.decisions += 1
        put_back = self.undone - before if isinstance(self, FlowControl | FlowControlClasses) else 0
        admitted, evicted = ([job.id for job in some] for some in (admit, evict))
        return Decision(admit=admitted, evict=evicted, put_back=put_back)

    def decide(self, waiting: list[Job], active: list[Job], M: int) -> Plan:  # noqa: N803
        raise NotImplementedError

    def limit(self, M: int, others: int) -> Fraction | int:  # noqa: N803
        """Return the usable memory next to ``others``: a margin does not apply to a request that would be alone."""
        return (1 - Fraction(str(self.arguments.get("protection", 0)))) * M if others else M

    def last_in_first_out(self, active: list[Job], picked: list[Job], M: int) -> Plan:  # noqa: N803
        """Remove requests from the end until the next iteration fits: new picks first, then active ones."""
        stack, evict = [*active, *picked], list[Job]()
        while need(stack) > M:
            last = stack.pop()
            if len(stack) < len(active):
                evict.append(last)
            else:
                self.undone += 1
        return evict, stack[len(active) :]


class FlowControl(Oracle):
    """Algorithm 2."""

    def decide(self, waiting: list[Job], active: list[Job], M: int) -> Plan:  # noqa: N803
        b = self.arguments["budget"]
        B = self.draw() if self.arguments.get("random") else b[self.decisions % len(b)]
        return self.last_in_first_out(active, waiting[:B], M)

    def draw(self) -> int:
        """Uniform on 0 … 2b; if 2b = n + f is not whole, on 0 … n, or with probability f on 0 … n+1."""
        n, u = math.floor(2 * self.arguments["budget"]), self.uniform()
        f = 2 * self.arguments["budget"] - n
        return math.floor(u / (1 - f) * (n + 1) if u < 1 - f else (u - (1 - f)) / f * (n + 2))


class FlowControlClasses(Oracle):
    """Algorithm 1, with the overflow rule of Algorithm 2."""

    def decide(self, waiting: list[Job], active: list[Job], M: int) -> Plan:  # noqa: N803
        b, picked = self.arguments["budgets"], list[Job]()
        for k in sorted({job.kind for job in waiting}):
            picked += [job for job in waiting if job.kind == k][: b[min(k, len(b) - 1)]]
        return self.last_in_first_out(active, picked, M)


class AMin(Oracle):
    """Section 4.1: every output is as short as it can still be."""

    def begin(self) -> None:
        self.guess: dict[int, int] = {}

    def decide(self, waiting: list[Job], active: list[Job], M: int) -> Plan:  # noqa: N803
        for job in waiting:
            self.guess.setdefault(job.id, job.low)
        evict, stay, admit = list[Job](), list(active), list[Job]()
        while need(stay) > M:
            job = min(stay, key=lambda j: (max(self.guess[j.id], j.generated), -j.place))
            stay.remove(job)
            evict.append(job)
        for job in evict:
            self.guess[job.id] = max(self.guess[job.id], job.generated + 1)
        if not evict:
            for job in sorted(waiting, key=lambda j: (self.guess[j.id], j.arrival, j.id)):
                plan = [(j, max(1, j.rounds(self.guess[j.id]))) for j in (*active, *admit, job)]
                if not keeps_within(plan, M):
                    break
                admit.append(job)
        return evict, admit


class LookAhead(Oracle):
    """MC-SF's admission by inequality (5), with its margin and either reading of overrun predictions."""

    def prefix(self, order: list[Job], active: list[Job], M: int, output: Any) -> list[Job]:  # noqa: N803
        least = 1 if self.arguments.get("overrun") == "extend" else 0
        ongoing = [(j, max(least, j.rounds(output(j)))) for j in active]
        admit = list[Job]()
        for job in order:
            chosen = [(j, max(1, j.rounds(output(j)))) for j in (*admit, job)]
            if not keeps_within([*ongoing, *chosen], self.limit(M, len(active) + len(admit))):
                break
            admit.append(job)
        return admit


class MCLongest(LookAhead):
    """MC-Benchmark on the longest possible outputs; overflow evicts all requests, as there."""

    def decide(self, waiting: list[Job], active: list[Job], M: int) -> Plan:  # noqa: N803
        admit = self.prefix(waiting, active, M, lambda j: j.high)
        return (active, []) if need([*active, *admit]) > M else ([], admit)


class Ageing(LookAhead):
    """MC-SF in the order of prediction minus rate times age; on overflow last in, first out."""

    def decide(self, waiting: list[Job], active: list[Job], M: int) -> Plan:  # noqa: N803
        rate = self.arguments["rate"]
        order = sorted(waiting, key=lambda j: (j.predicted + rate * j.arrival, j.arrival, j.id))
        return self.last_in_first_out(active, self.prefix(order, active, M, lambda j: j.predicted), M)


class CostAware(Oracle):
    """First come, first served; overflow evicts the requests with the least KV, and none unnecessarily."""

    def decide(self, waiting: list[Job], active: list[Job], M: int) -> Plan:  # noqa: N803
        if need(active) <= M:
            admit = list[Job]()
            for job in waiting:
                if need([*active, *admit, job]) > self.limit(M, len(active) + len(admit)):
                    break
                admit.append(job)
            return [], admit
        evict, rest = list[Job](), sorted(active, key=lambda j: (j.kv, -j.place))
        while need(rest) > M:
            evict.append(rest.pop(0))
        for job in reversed(evict.copy()):
            if need([*rest, job]) <= M:
                rest.append(job)
                evict.remove(job)
                self.undone += 1  # counts those found superfluous
        return evict, []


# ---------------------------------------------------------------- comparison

CASES: list[tuple[str, type[Oracle], dict[str, Any]]] = [
    ("flow_control:budget=1", FlowControl, {"budget": (1,)}),
    ("flow_control:budget=3", FlowControl, {"budget": (3,)}),
    ("flow_control:budget=0/3/1/0/4", FlowControl, {"budget": (0, 3, 1, 0, 4)}),
    ("flow_control:budget=2.5,random=true", FlowControl, {"budget": 2.5, "random": True}),
    ("flow_control:budget=0.875,random=true", FlowControl, {"budget": 0.875, "random": True}),
    ("flow_control_classes:budgets=1", FlowControlClasses, {"budgets": (1,)}),
    ("flow_control_classes:budgets=2/1", FlowControlClasses, {"budgets": (2, 1)}),
    ("flow_control_classes:budgets=1/3/2", FlowControlClasses, {"budgets": (1, 3, 2)}),
    ("a_min", AMin, {}),
    ("mc_longest", MCLongest, {}),
    ("mc_longest:protection=0.1", MCLongest, {"protection": 0.1}),
    ("mc_longest:overrun=extend", MCLongest, {"overrun": "extend"}),
    ("ageing:rate=0", Ageing, {"rate": 0}),
    ("ageing:rate=0.5", Ageing, {"rate": 0.5}),
    ("ageing", Ageing, {"rate": 1.0}),
    ("ageing:rate=30", Ageing, {"rate": 30}),
    ("ageing:protection=0.2", Ageing, {"rate": 1.0, "protection": 0.2}),
    ("ageing:overrun=extend", Ageing, {"rate": 1.0, "overrun": "extend"}),
    ("cost_aware", CostAware, {"protection": 0.0}),
    ("cost_aware:protection=0.1", CostAware, {"protection": 0.1}),
]
EACH = pytest.mark.parametrize(
    ("spec", "oracle", "arguments"), CASES, ids=[spec.replace(":", "-") for spec, _, _ in CASES]
)


def workload(seed: int, n: int, capacity: int, rate: float | None = None) -> RequestTable:
    """Bursts of short requests, at a random rate by default, and one that fills the memory.

    In half of the cases predictions are wrong.
    """
    rng = np.random.default_rng(seed)
    rate = rate or rng.choice([0.2, 0.6, 3.0])
    wrong = rng.integers(-3, 4, n) * (rng.random(n) < 0.6 * (rng.random() < 0.5))
    grid = rng.random() < 0.7
    prompt, output = rng.integers(1, 9, n), rng.geometric(0.2, n).clip(1, 12)
    prompt[n // 2], output[n // 2] = capacity * 6 // 10, capacity - capacity * 6 // 10
    arrival = np.cumsum(rng.exponential(1 / rate, n) * (rng.random(n) < 0.7))
    longest = capacity - prompt
    return RequestTable.from_columns(
        arrival_time=np.floor(arrival) if grid else arrival,
        prompt_len=prompt,
        output_len=output,
        predicted_output_len=np.clip(output + wrong, 1, longest),
        predicted_low=np.clip(output - rng.integers(0, 9, n) + wrong, 1, longest),
        predicted_high=np.clip(output + rng.integers(0, 3, n) + wrong, 1, longest),
        class_id=rng.integers(0, 4, n),
    )


def outcome(system: System, table: RequestTable, policy: str | Policy, seed: int) -> SimulationResult | str:
    try:
        return simulate(system, table, as_printed(policy), seed=seed, log=True)
    except LivelockError as error:
        return str(error).partition(" Request ")[0]  # the oracle does not name the request it would admit


def assert_equal(one: SimulationResult | str, other: SimulationResult | str, where: str) -> None:
    if isinstance(one, str) or isinstance(other, str):
        assert one == other, where
        return
    for table in ("requests", "worker", "log"):
        a, b = getattr(one, table), getattr(other, table)
        assert len(a) == len(b), where
        for field in a.dtype.names:
            np.testing.assert_array_equal(a[field], b[field], err_msg=f"{table}.{field}, {where}")


@EACH
def test_records_equal_those_of_the_oracle(
    spec: str, oracle: type[Oracle], arguments: dict[str, Any]
) -> None:
    book = oracle(make_policy(spec), **arguments)
    evictions = undone = finished = 0
    for seed, (first_token, progress, requeue) in some(enumerate(RULES), 2):
        capacity = (21, 33, 60)[seed // 2 % 3]
        system = System(
            kv_capacity=capacity,
            batch_time=TIMES[(seed + len(spec)) % 2],
            first_token=first_token,
            progress_on_evict=progress,
            requeue=requeue,
            stall_limit=80,
        )
        table = workload(seed, 20, capacity)
        results = [outcome(system, table, policy, seed) for policy in (spec, book)]
        assert_equal(results[0], results[1], f"seed {seed}: {first_token}, {progress}, {requeue}")
        if isinstance(results[1], SimulationResult):
            finished += 1
            evictions += int(results[1].requests["num_evictions"].sum())
            undone += book.undone
    assert finished >= number(20, 9)
    assert evictions > 0
    if oracle not in (AMin, MCLongest) and "extend" not in spec:  # those never admit too much at once
        assert undone > number(0, -1)


@EACH
def test_decisions_equal_those_of_the_oracle(
    spec: str, oracle: type[Oracle], arguments: dict[str, Any]
) -> None:
    """Compare through the view, decision by decision, so that runs that never end are compared as well."""
    policy = as_printed(spec)
    book = oracle(policy, **arguments)
    compared = 0
    for seed in range(number(6, 2)):
        table = workload(seed, 24, 21, rate=0.8)
        rule = dict(zip(("first_token", "progress_on_evict", "requeue"), RULES[(seed * 5) % 27], strict=True))
        system = System(kv_capacity=21, batch_time=TIMES[seed % 2], stall_limit=30, **rule)
        for each in (policy, book):
            each.reset(system_info(system, table, seed, policy.info.needs))
        simulation = Simulation(system, table, needs=policy.info.needs)
        running = simulation.start()
        while running:
            expected = book.schedule(simulation.view)
            decision = policy.schedule(simulation.view)
            assert (list(decision.evict), list(decision.admit)) == (expected.evict, expected.admit), (
                f"seed {seed}, iteration {simulation.view.iteration}"
            )
            assert (decision.tokens, decision.wait_until) == ({}, None)
            compared += 1
            try:
                running = simulation.step(decision)
            except LivelockError:
                break
    assert compared > number(150, 50)


EXACT = {"predicted_output_len": "output_len"}
LONGEST = {"predicted_output_len": "predicted_high"}


@pytest.mark.parametrize(
    ("spec", "known", "columns"),
    [
        # Section 3.3: with a large b the algorithm degenerates to a greedy one with LIFO eviction.
        ("flow_control:budget=99", "fcfs", {}),
        ("flow_control_classes:budgets=99", "fcfs", {"class_id": "one"}),
        ("flow_control_classes:budgets=2", "flow_control:budget=2", {"class_id": "one"}),
        # If the shortest possible output is the true one, nothing overflows and the order is MC-SF's.
        ("a_min", "mc_sf", dict.fromkeys(("predicted_low", "predicted_high", *EXACT), "output_len")),
        # This also holds if the upper bounds are wrong.
        ("mc_longest", "mc_benchmark", LONGEST),
        ("mc_longest:protection=0.1", "mc_benchmark:protection=0.1", LONGEST),
        ("ageing:rate=0", "mc_sf", EXACT),
    ],
)
def test_special_cases_are_known_policies(spec: str, known: str, columns: dict[str, str]) -> None:
    finished = 0
    for seed, rules in enumerate(RULES):
        table = workload(seed + 100, 45, 21)
        available = {**table.columns(), "one": np.zeros(45, int)}
        table = table.replace(**{name: available[source] for name, source in columns.items()})
        rule = dict(zip(("first_token", "progress_on_evict", "requeue"), rules, strict=True))
        system = System(kv_capacity=21, batch_time=TIMES[seed % 2], stall_limit=80, **rule)
        one, other = (outcome(system, table, policy, seed) for policy in (spec, known))
        if isinstance(one, str) or isinstance(other, str):
            assert type(one) is type(other), f"seed {seed}"
            continue
        for field in ("start_time", "first_token_time", "finish_time", "num_evictions"):
            np.testing.assert_array_equal(
                one.requests[field], other.requests[field], err_msg=f"{seed}: {field}"
            )
        np.testing.assert_array_equal(one.log, other.log, err_msg=f"{seed}")
        finished += 1
    assert finished >= 5


@pytest.mark.parametrize(
    ("spec", "oracle", "arguments"),
    [
        ("flow_control:budget=9", FlowControl, {"budget": (9,)}),
        ("flow_control_classes:budgets=9", FlowControlClasses, {"budgets": (9,)}),
        ("a_min", AMin, {}),
        ("ageing:rate=0.01", Ageing, {"rate": 0.01}),
        ("cost_aware", CostAware, {"protection": 0.0}),
    ],
)
def test_many_more_requests_than_fit(spec: str, oracle: type[Oracle], arguments: dict[str, Any]) -> None:
    """A burst of 150 into a memory of 40, and long after it a second one."""
    columns = workload(1, 300, 40, rate=1.0).columns()
    columns["arrival_time"] = np.repeat([0.0, 5000.0], 150)
    table = RequestTable.from_columns(**columns)
    system = System(kv_capacity=40, batch_time=UnitBatchTime(), stall_limit=80)
    compiled, book = (outcome(system, table, p, 0) for p in (spec, oracle(make_policy(spec), **arguments)))
    assert_equal(compiled, book, spec)
    assert isinstance(book, SimulationResult)
    assert book.requests["num_evictions"].any()
