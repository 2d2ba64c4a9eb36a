"""The schedulers of the SLAI paper against plain readings of its algorithms, decision by decision.

Source: Bari et al., "Optimal Scheduling Algorithms for LLM Inference: Theory and Practice", Algorithms 1-5, Section 6.
The paper assumes enough memory (Assumption 4). Readings where memory is short: a prompt begins only if it can be
completed, with one token to spare. On overflow the latest activated requests are evicted (LIFO), paused ones included.
A request that returns with its KV moves from P to D without an iteration.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from helpers.amount import number, some
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.policies.policy import Decision, make_policy
from kvgym.policies.runner import simulate, system_info
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE, System
from kvgym.simulator.tables import ROLE_DECODE, ROLE_MIXED, ROLE_PREFILL
from kvgym.simulator.view import SystemView
from kvgym.workloads.table import RequestTable
from oracles.slai_books import INF, Book, DistServe, Rad, RadBatched, RequestLevel, Sarathi, Slai

# ---------------------------------------------------------------- comparison


RULES = list(itertools.product(FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE))


TIMES = (UnitBatchTime(), AffineBatchTime(0.31, 0.017, 0.023, 0.0011))


def workload(rng: np.random.Generator, n: int = 14, longest: int = 9) -> RequestTable:
    """Return small requests; arrivals on a grid cause ties and arrivals at the end of a batch of unit time."""
    return RequestTable.from_columns(
        arrival_time=np.floor(np.cumsum(rng.exponential(rng.choice([0.3, 1.0, 3.0]), n)) * 2) / 2,
        prompt_len=rng.integers(1, longest + 1, n),
        output_len=np.where(rng.random(n) < 0.2, 1, rng.integers(1, longest + 1, n)),
        tbt_slo=rng.choice([0.5, 1.0, 2.0, 5.0, INF], n),
        priority=rng.integers(-1, 2, n),
    )


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
    simulation.problem["hands_over"] = role == ROLE_PREFILL
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
            break  # a prefill worker waits until its requests are moved away
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
    """Return small hyperparameters, so that every limit binds sometimes."""

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
            "watermark": one_of(0.0, 0.0, 0.1, 0.4),
        }
    return {"cycle": one_of(1, 2, 4, 1000), "decodes": one_of(1, 2, 3, 128), "chunk": one_of(1, 2, 4, 256)}


def spec_of(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}:" + ",".join(f"{k}={v}" for k, v in arguments.items())


@pytest.mark.parametrize("name", BOOKS)
def test_decisions_are_those_of_the_book(name: str) -> None:
    """Compare under all settings, with tight and ample memory; the compiled run must have the same records."""
    evictions = paused = repeated = 0
    for case, (first_token, progress, requeue) in some(enumerate(RULES * 2), 5):
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
    assert evictions > number(50, 10)
    assert repeated > number(0, -1)
    assert (paused > number(100, 20)) == (name != "request_level")


@pytest.mark.parametrize("role", [ROLE_PREFILL, ROLE_DECODE])
def test_dist_serve_in_its_roles(role: int) -> None:
    """A prefill worker that keeps its requests, and a decode worker that receives them prefilled."""
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
def test_slai_is_sarathi_if_every_decode_is_critical(first_token: str) -> None:
    """That is, if offset * mean batch time exceeds every TBT; otherwise they differ."""
    differ = 0
    for seed in range(number(8, 5)):
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
    """C in (8) decreases with the offset, so that more decodes precede prefills (Section 7.1, role of the offset)."""
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
