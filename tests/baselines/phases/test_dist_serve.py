"""DistServe on one worker in each role, on schedules worked out by hand.

Source: Bari et al., "Optimal Scheduling Algorithms for LLM Inference: Theory and Practice", Algorithm 5 (after Zhong et
al., "DistServe"). A cluster moves prefilled requests to a decode worker; here this is done by hand in the tables of a
simulation.

Notation in comments: s prompt, o output, M memory, kv = tokens held; "P 0" is the whole prompt of request 0,
"D 0 1" a decode of requests 0 and 1. An iteration takes a second; first tokens are "uncounted".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from helpers.runs.schedules import check
from kvgym.batch_time import UnitBatchTime
from kvgym.policies.policy import POLICIES, Policy, make_policy, policy_defaults
from kvgym.policies.runner import simulate, system_info
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.simulator.tables import FINISHED, ROLE_DECODE, ROLE_PREFILL
from kvgym.workloads.table import RequestTable


def requests(a: Sequence[float], s: Sequence[int], o: Sequence[int]) -> RequestTable:
    return RequestTable.from_columns(arrival_time=a, prompt_len=s, output_len=o)


def settings(M: int, **system: Any) -> System:  # noqa: N803
    return System(kv_capacity=M, batch_time=UnitBatchTime(), first_token="uncounted", **system)


def worker(
    role: int, system: System, table: RequestTable, spec: str = "dist_serve"
) -> tuple[Simulation, Policy]:
    """Return a simulation with a worker of the given role, at its first decision."""
    policy = make_policy(spec)
    policy.reset(system_info(system, table, 0, policy.info.needs))
    simulation = Simulation(system, table, needs=policy.info.needs, log=True)
    simulation.workers["role"] = role
    simulation.problem["hands_over"] = role == ROLE_PREFILL
    assert simulation.start()
    return simulation, policy


# ---------------------------------------------------------------- one worker for both phases


def test_mixed_prefills_one_prompt_at_a_time_before_it_decodes() -> None:
    # P 0, P 1, D 0 1: 1 is done at 3, when 2 arrives: P 2, and then D 0 2.
    result = simulate(settings(100), requests([0, 0, 3], [3, 4, 1], [2, 1, 1]), "dist_serve", log=True)
    check(result, start=[0, 1, 3], finish=[5, 3, 5], first=[1, 2, 4])
    assert result.log is not None
    assert result.log["prefill_tokens"].tolist() == [3, 4, 0, 1, 0]
    assert result.log["num_decodes"].tolist() == [0, 0, 2, 0, 2]


def test_mixed_decodes_up_to_t_col() -> None:
    # As above with one decode at a time, in order of activation: D 0, P 2, D 0, D 1, D 2.
    result = simulate(settings(100), requests([0, 0, 3], [3, 4, 1], [2, 1, 1]), "dist_serve:decodes=1")
    check(result, start=[0, 1, 3], finish=[5, 6, 7], first=[1, 2, 4])


def test_mixed_decodes_while_the_next_prompt_does_not_fit() -> None:
    # M = 10: 4 next to 7 is too much: D 0 twice, P 1 at 3. 2 (s 1) would fit but is not at the head.
    table = requests([0, 0, 0], [4, 7, 1], [2, 1, 1])
    check(simulate(settings(10), table, "dist_serve"), start=[0, 3, 4], finish=[3, 6, 6])


def test_mixed_evicts_the_newest() -> None:
    # M = 10. P 0 (4), P 1 (5): kv 9. D 0 1 would take 11: 1 is evicted; D 0 until 5. P 1, D 1 twice.
    result = simulate(settings(10), requests([0, 0], [4, 5], [3, 2]), "dist_serve")
    check(result, start=[0, 1], finish=[5, 8], first=[1, 2], evictions=[0, 1])


def test_a_request_may_fill_the_memory() -> None:
    result = simulate(settings(10), requests([0], [7], [3]), "dist_serve", log=True)
    check(result, start=[0], finish=[4])
    assert result.log is not None
    assert result.log["kv_tokens"].tolist() == [7, 8, 9, 10]
    # One-token outputs: counted, they are done with the prefill.
    counted = System(kv_capacity=10, batch_time=UnitBatchTime())
    result = simulate(counted, requests([0, 0, 1], [9, 3, 3], [1, 1, 1]), "dist_serve")
    check(result, start=[0, 1, 2], finish=[1, 2, 3])


# ---------------------------------------------------------------- prefill workers


def hand_over(simulation: Simulation) -> list[int]:
    """Move the active requests, all prefilled, to another worker; return their ids."""
    count = int(simulation.worker["num_active"])
    slots = simulation.active[0, :count]
    assert (slots["num_prefill_left"] == 0).all()
    ids = [int(i) for i in slots["request_id"]]
    simulation.requests["status"][ids] = FINISHED
    for name in ("kv_tokens", "kv_allocated", "num_full", "num_active"):
        simulation.worker[name] = 0
    return ids


def test_a_prefill_worker_takes_whole_prompts_one_by_one() -> None:
    # M = 12 would hold 0 and 1 together. 3 arrives while 0 runs, but 1 and 2 are before it.
    table = requests([0, 0, 0, 0.5], [4, 7, 9, 1], [2, 2, 2, 2])
    simulation, policy = worker(ROLE_PREFILL, settings(12), table)
    for i in range(4):
        decision = policy.schedule(simulation.view)
        assert (list(decision.admit), list(decision.evict), decision.wait_until) == ([i], [], None)
        simulation.step(decision)
        assert hand_over(simulation) == [i]
    log = simulation.log[: int(simulation.tracker[0]["num_log"])]
    assert log["prefill_tokens"].tolist() == [4, 7, 9, 1]
    assert simulation.requests["start_time"].tolist() == [0, 1, 2, 3]
    assert simulation.requests["first_token_time"].tolist() == [1, 2, 3, 4]


def test_a_prefill_worker_never_decodes() -> None:
    # 0 has not been taken away yet: it pauses while 1 is prefilled (4 + 7 + 1 = 12 = M), and 2 has to wait.
    simulation, policy = worker(ROLE_PREFILL, settings(12), requests([0, 0, 0], [4, 7, 1], [5, 5, 5]))
    assert simulation.step(policy.schedule(simulation.view))
    decision = policy.schedule(simulation.view)
    assert (list(decision.admit), list(decision.evict)) == ([1], [])
    assert decision.tokens[0] == 0
    assert simulation.step(decision)
    decision = policy.schedule(simulation.view)
    assert (list(decision.admit), list(decision.evict), decision.wait_until) == ([], [], np.inf)
    hand_over(simulation)
    assert list(policy.schedule(simulation.view).admit) == [2]


# ---------------------------------------------------------------- decode workers


def run_decode_worker(
    M: int,  # noqa: N803
    a: Sequence[float],
    s: Sequence[int],
    o: Sequence[int],
    spec: str = "dist_serve",
    **system: Any,
) -> Any:
    """Return the run of a decode worker that gets all requests prefilled; it prefills those it evicts itself."""
    simulation, policy = worker(ROLE_DECODE, settings(M, **system), requests(a, s, o), spec)
    seen: set[int] = set()
    running = True
    while running:
        for i in set(simulation.view.waiting.request_id.tolist()) - seen:
            simulation.requests["num_kv_tokens"][i] = s[i]
            simulation.requests["num_prefill_left"][i] = 0
            seen.add(i)
        running = simulation.step(policy.schedule(simulation.view))
    return simulation


def test_a_decode_worker_takes_all_that_fit_and_decodes_at_once() -> None:
    # 1 arrives at 1 and 2 within an iteration, at 1.5: both decode from the next boundary on.
    simulation = run_decode_worker(100, [0, 1, 1.5], [3, 4, 5], [3, 1, 2])
    check(simulation, start=[0, 1, 2], finish=[3, 2, 4])
    log = simulation.log[: int(simulation.tracker[0]["num_log"])]
    assert log["num_decodes"].tolist() == [1, 2, 2, 1]
    assert log["prefill_tokens"].sum() == 0
    # M = 10: 0 and 1 hold 7 and write 2; 2 (1 + 1) does not fit until 1 is done.
    simulation = run_decode_worker(10, [0, 0, 0], [3, 4, 1], [2, 1, 1])
    check(simulation, start=[0, 0, 1], finish=[2, 1, 2])


def test_a_decode_worker_decodes_up_to_t_col() -> None:
    # All are admitted, since memory suffices: kv 8 and one decode. D 0 until 3, D 1 until 5, D 2.
    simulation = run_decode_worker(20, [0, 0, 0], [3, 4, 1], [3, 2, 1], "dist_serve:decodes=1")
    check(simulation, start=[0, 0, 0], finish=[3, 5, 6])
    # Room for one token is enough, M = 3 + 4 + 1 + 1.
    simulation = run_decode_worker(9, [0, 0, 0], [3, 4, 1], [1, 1, 1], "dist_serve:decodes=1")
    check(simulation, start=[0, 0, 0], finish=[1, 2, 3])


def test_a_decode_worker_prefills_what_it_evicted() -> None:
    # M = 10. 3 + 4, with 2 decodes 9; 2 would make 11. t=1: 11: 1 is evicted and loses all, D 0: kv 5. t=2: P 1: 5 +
    # 4 + 1 fits, alone: kv 9. t=3: 11 again: 1 is evicted, D 0, done at 4. t=4: P 1. t=5: 2 arrives: D 1 2; D 1.
    args: tuple[Any, ...] = (10, [0, 0, 0], [3, 4, 1], [3, 2, 1])
    simulation = run_decode_worker(*args)
    check(simulation, start=[0, 0, 5], finish=[4, 7, 6], evictions=[0, 2, 0])
    log = simulation.log[: int(simulation.tracker[0]["num_log"])]
    assert log["prefill_tokens"].tolist() == [0, 0, 4, 0, 4, 0, 0]
    assert log["num_decodes"].tolist() == [2, 1, 0, 1, 0, 2, 1]
    # With progress kept 1 returns with 5 tokens: next to kv 5 and 2 decodes too much. At 3: D 1 2.
    simulation = run_decode_worker(*args, progress_on_evict="kept")
    check(simulation, start=[0, 0, 3], finish=[3, 4, 4], evictions=[0, 1, 0])


# ---------------------------------------------------------------- hyperparameters and information


def test_description() -> None:
    info = POLICIES["dist_serve"].info
    assert policy_defaults(POLICIES["dist_serve"]) == {"decodes": None}
    assert info.needs == frozenset()
    assert info.evicts
    assert info.pauses
    assert "5" in info.algorithm
