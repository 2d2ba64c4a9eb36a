"""Flow control on schedules worked out by hand.

Source: "flow control for LLM inference": Algorithms 1 and 2, conditions (2) and (4), Section 4.1, Appendix A.2.

Notation in comments: s prompt, o output, M memory, g tokens generated. In the next iteration a request takes
s + g + 1, in the k-th round from now s + g + k. A sum such as 4+3 lists requests in order of activation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.runs.flow_runs import arrivals, requests, run
from helpers.runs.schedules import check
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.compiling.kernel import uncompiled
from kvgym.errors import ConfigError, InvalidDecisionError
from kvgym.experiments.scenario import load_scenario
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import POLICIES, make_policy
from kvgym.policies.runner import simulate, system_info
from kvgym.simulator.decision import Decision
from kvgym.simulator.kernels.random import next_uniform, seed_words
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.utils.seeding import stream_seed
from kvgym.workloads.table import RequestTable

ALL = pytest.mark.parametrize("policy", ["flow_control", "flow_control_classes", "a_min", "mc_longest"])


# ---------------------------------------------------------------- shared by all


@ALL
def test_arrivals_at_completion_between_rounds_and_after_idleness(policy: str) -> None:
    # M = 5 = s + o: one at a time. 1 arrives as 0 finishes and takes the memory that is free again; 2 arrives
    # within a round and waits for 1 (at 3: 5+4); 3 finds the worker idle; 4 fills the memory with one token.
    result = run(policy, 5, [0, 2, 2.5, 9.5, 9.7], [3, 3, 3, 1, 4], [2, 2, 2, 1, 1])
    check(result, start=[0, 2, 4, 9.5, 10.5], finish=[2, 4, 6, 10.5, 11.5], kv=[4, 5, 4, 5, 4, 5, 2, 5])


@ALL
def test_ties_by_arrival_then_id_and_one_token_requests(policy: str) -> None:
    # M = 4, s + 1 = 2 each: two at a time.
    result = run(policy, 4, [0] * 5, [1] * 5, [1] * 5)
    check(result, start=[0, 0, 1, 1, 2], finish=[1, 1, 2, 2, 3], kv=[4, 4, 2])


@ALL
def test_iterations_of_other_durations(policy: str) -> None:
    # M = 5: one at a time. Prefill 0.5 + 3 * 0.25 = 1.25, decode 0.5 + 0.125 = 0.625.
    time = AffineBatchTime(0.5, per_prefill_token=0.25, per_decode_token=0.125)
    result = run(policy, 5, [0, 0.7], [3, 3], [2, 2], batch_time=time)
    check(result, start=[0, 1.875], finish=[1.875, 3.75], first=[1.25, 3.125])


def test_descriptions() -> None:
    needs = {"flow_control": set(), "flow_control_classes": {"class"}}
    for name in ("flow_control", "flow_control_classes", "a_min", "mc_longest"):
        info = POLICIES[name].info
        assert info.needs == needs.get(name, {"length_interval"})
        assert (info.chunks_prefill, info.pauses, info.evicts) == (False, False, True)


@pytest.mark.parametrize(
    ("policy", "column"),
    [("flow_control_classes", "class_id"), ("a_min", "predicted_low"), ("mc_longest", "predicted_low")],
)
def test_refuses_requests_without_what_it_needs(policy: str, column: str) -> None:
    table = RequestTable.from_columns(arrival_time=[0], prompt_len=[1], output_len=[1])
    with pytest.raises(ConfigError, match=column):
        simulate(System(kv_capacity=9, batch_time=UnitBatchTime()), table, policy)


def test_hyperparameters_of_the_paper_are_the_defaults() -> None:
    table = requests([0] * 40, [1] * 40, [1] * 40, class_id=[0, 1, 2, 2] * 10)
    system = System(kv_capacity=999, batch_time=UnitBatchTime())
    admitted = [
        simulate(system, table, p, log=True).log["num_admitted"].tolist()  # type: ignore[index]
        for p in ("flow_control", "flow_control_classes")
    ]
    # Section 4.1: (b1, b2, b3) = (4, 4, 4), here 10, 10 and 20 requests: 12, 12, 2+2+4, 4, 4.
    assert admitted == [[4] * 10, [12, 12, 8, 4, 4]]


# ---------------------------------------------------------------- Algorithm 2: flow control


def test_admission_is_greedy_up_to_a_share_of_the_memory() -> None:
    # M = 20, greedy up to 10; s + 1 = 3. At 0 three fit into 10. At 1 they take 12: a budget of 1 admits one more, 15.
    # At 2, 5+5+5+4 leave no room. At 3 only the fourth is left, 5, and the fifth enters, 8.
    result = run("flow_control:budget=1,greedy=0.5", 20, [0] * 5, [2] * 5, [3] * 5)
    check(result, start=[0, 0, 0, 1, 3], finish=[3, 3, 3, 4, 6], kv=[9, 15, 19, 8, 4, 5])


def test_activates_no_more_than_the_budget() -> None:
    # Memory is ample. Two per slot in order of arrival: 0, 1; then 2, 3; then 4.
    result = run("flow_control:budget=2", 99, [0] * 5, [1] * 5, [3, 1, 2, 1, 1])
    check(result, start=[0, 0, 1, 1, 2], finish=[3, 1, 3, 2, 3], kv=[4, 7, 9])


def test_unused_budget_is_lost() -> None:
    # No request waits at t=1 and t=2 (0 continues); at 3 there is one activation as usual.
    result = run("flow_control:budget=1", 99, [0, 3, 3, 3], [1] * 4, [9, 1, 1, 1])
    check(result, start=[0, 3, 4, 5], finish=[9, 4, 5, 6])


def test_picks_that_overflow_are_undone_and_do_not_count_as_evictions() -> None:
    # M = 8, budget 3. t=0: 3+3+3 = 9: 2, picked last, stays. t=1: 1 is done: 4+3 = 7. t=2: 5+4 = 9: 2 is evicted,
    # and may return at t=3: 6+3 = 9, undone. t=4: 0 is done.
    result = run("flow_control:budget=3", 8, [0, 0, 0], [2, 2, 2], [4, 1, 2])
    check(result, [0, 0, 1], [4, 1, 6], first=[1, 1, 2], evictions=[0, 0, 1], kv=[6, 7, 5, 6, 3, 4])
    assert result.log is not None
    assert result.log["num_admitted"].tolist() == [2, 1, 0, 0, 1, 0]
    assert result.log["num_evicted"].tolist() == [0, 0, 1, 0, 0, 0]
    # Put back: 2 at t=0 and t=3. Overflows: t = 0, 2 (none waits, so none is picked) and 3.
    metrics = compute_metrics(result)
    assert (metrics["evictions"], metrics["put_back"], metrics["overflows"]) == (1, 2, 3)


ONE_AT_A_TIME = ("flow_control:budget=1", 10, [0, 0, 2], [3, 3, 1], [4, 3, 1])


def test_evicted_requests_keep_their_place_and_block() -> None:
    # t=0: 4. t=1: 5+4. t=2: 6+5, and 2, picked: +2 = 13 > 10: 2 is undone (11), 1 evicted (6). t=3: FIFO gives
    # 1: 7+4 = 11, undone; 2 would fit (7+2) but is not first. t=4: 0 is done; 1. t=5: 5+2. t=6: 6.
    result = run(*ONE_AT_A_TIME)
    check(result, [0, 1, 5], [4, 7, 6], evictions=[0, 1, 0], kv=[4, 9, 6, 7, 4, 7, 6])


def test_evicted_requests_may_re_enter_at_the_back() -> None:
    # As before, but at t=3 request 2 comes first: 7+2 = 9. t=4: 0 and 2 are done.
    result = run(*ONE_AT_A_TIME, requeue="back")
    check(result, [0, 1, 3], [4, 7, 4], evictions=[0, 1, 0], kv=[4, 9, 6, 9, 4, 5, 6])


def test_evicts_the_last_activated_until_the_round_fits() -> None:
    # M = 18, six of s 2, three per slot. t=0: 3+3+3. t=1: 4+4+4, with 3, 4, 5: 21: 5 is undone. t=2: 5+5+5+4+4 = 23,
    # with 5: 26: 5 is undone, 4 (19) and 3 (15) are evicted. t=3: 6+6+6: each pick is undone.
    table = requests([0] * 6, [2] * 6, [4] * 6)
    system = System(kv_capacity=18, batch_time=UnitBatchTime())
    policy = make_policy("flow_control:budget=3")
    policy.reset(system_info(system, table, 0, policy.info.needs))
    simulation, running, decided = Simulation(system, table), True, []
    simulation.start()
    while running and len(decided) < 4:
        decision = policy.schedule(simulation.view)
        decided.append((list(decision.evict), list(decision.admit)))
        running = simulation.step(decision)
    assert decided == [([], [0, 1, 2]), ([], [3, 4]), ([4, 3], []), ([], [])]


@pytest.mark.parametrize("budget", ["2/0/1", [2, 0, 1], (2, 0, 1)])
def test_budgets_may_be_a_sequence_that_repeats(budget: Any) -> None:
    # t=0: 0, 1. t=1: none. t=2: 2. t=3: 3, 4, as at t=0. Then nothing to do until 9: no iteration passes, so that 9 is
    # the fifth (none), 10 the sixth (5) and 11 the first of the sequence again (6).
    table = requests([0] * 5 + [9] * 2, [1] * 7, [1] * 7)
    system = System(kv_capacity=99, batch_time=UnitBatchTime())
    result = simulate(system, table, make_policy("flow_control", budget=budget))
    assert result.requests["start_time"].tolist() == [0, 0, 2, 3, 3, 10, 11]
    assert compute_metrics(result)["overflows"] == 0


def test_a_sequence_of_budgets_in_a_scenario() -> None:
    policies = ("flow_control:budget=1/2",)
    scenario = load_scenario("flow-classes").override(
        workload={"preset": "flow", "duration": 20}, policies=policies
    )
    assert scenario.policies == policies
    table = scenario.make_workload().sample(0)
    result = simulate(scenario.make_system(), table, scenario.policies[0], log=True)
    assert result.log is not None
    assert result.log["num_admitted"][:8].tolist() == [1, 2] * 4


def test_put_back_requests_are_those_that_would_have_been_picked() -> None:
    # M = 8, B = 3. t=0: 3+3 fit, 2 of four is put back. t=1: 4+4, and 2, 3 are put back. t=2: 5+5 = 10: 1 is evicted,
    # and 2, 3 are put back. A policy in Python says so by its decision.
    table = requests([0] * 4, [2] * 4, [3, 3, 1, 1])
    system = System(kv_capacity=8, batch_time=UnitBatchTime())
    policy = make_policy("flow_control:budget=3")
    policy.reset(system_info(system, table, 0, policy.info.needs))
    simulation = Simulation(system, table)
    simulation.start()
    for expected in (1, 2, 2):
        decision = policy.schedule(simulation.view)
        assert decision.put_back == expected
        simulation.step(decision)
    assert simulation.worker["total_put_back"].sum() == 5
    assert simulation.worker["total_overflows"].sum() == 3
    with pytest.raises(InvalidDecisionError, match="puts back -1"):
        simulation.step(Decision(put_back=-1))


def test_random_budgets_are_uniform_with_the_given_mean() -> None:
    """B_t is uniform on 0 … 2b, with one draw per iteration from the policy's own stream."""
    for budget, seed in ((0.5, 1), (2, 1), (2.5, 2), (4, 3)):
        n = int(300 * budget)
        result = run(f"flow_control:budget={budget},random=true", 999, [0] * n, [1] * n, [1] * n, seed=seed)
        assert result.log is not None
        admitted = result.log["num_admitted"]
        words, draw = seed_words(stream_seed(seed, "policy")), uncompiled(next_uniform)
        coins = [int(float(draw(words, 0)) * (2 * budget + 1)) for _ in range(len(admitted))]
        assert admitted[:-1].tolist() == coins[:-1]  # the last is cut short by the end of the queue
        assert set(coins) == set(range(int(2 * budget) + 1))
        deviation = np.sqrt(budget * (budget + 1) / 3 / len(coins))
        assert abs(np.mean(coins) - budget) < 4 * deviation
        # A slot with B_t = 0 passes like any other, with the worker empty.
        assert (np.diff(result.log["start_time"]) == 1).all()
        assert (admitted[:-1] == 0).any()
        assert not result.requests["num_evictions"].any()


def test_random_budgets_of_any_mean() -> None:
    """If 2b is not whole, B_t mixes the two neighbouring uniform distributions so that the mean is still b."""
    result = run("flow_control:budget=1.25,random=true", 999, [0] * 900, [1] * 900, [1] * 900)
    assert result.log is not None
    admitted = result.log["num_admitted"][:-1]
    assert set(admitted.tolist()) == {0, 1, 2, 3}  # 0 … 2 or 0 … 3, each in half of the slots
    assert abs(admitted.mean() - 1.25) < 4 * admitted.std() / np.sqrt(len(admitted))
    assert abs((admitted == 3).mean() - 1 / 8) < 4 * np.sqrt(7 / 64 / len(admitted))


def test_random_budgets_are_also_drawn_with_an_empty_queue() -> None:
    # 0 keeps the worker busy from its start on; the others arrive at 30 and get the draw of iteration 30.
    seen = set()
    for seed in range(12):
        result = run(
            "flow_control:budget=1,random=true", 99, [0] + [30] * 5, [1] * 6, [60] + [1] * 5, seed=seed
        )
        words, draw = seed_words(stream_seed(seed, "policy")), uncompiled(next_uniform)
        coins = [int(float(draw(words, 0)) * 3) for _ in range(31)]
        assert result.log is not None
        assert result.log["num_admitted"][30] == coins[30]
        seen.add(coins[30])
    assert seen == {0, 1, 2}


# ---------------------------------------------------------------- Algorithm 1: known classes


def test_each_class_has_its_budget() -> None:
    # Memory is ample, b = (1, 2). t=0: 3 of class 0; 0, 1 of class 1. t=1: 4; 2, 5.
    result = run(
        "flow_control_classes:budgets=1/2", 99, [0] * 6, [1] * 6, [1] * 6, class_id=[1, 1, 1, 0, 0, 1]
    )
    check(result, start=[0, 0, 1, 0, 1, 1], finish=[1, 1, 2, 1, 2, 2])


def test_classes_are_picked_in_turn_and_undone_from_the_last() -> None:
    # The same with M = 5. t=0: 3, then 0, 1: 2+2+2: 1 is undone. t=1: 4, then 1, 2: 2 is undone. t=2: 2, 5.
    args = (5, [0] * 6, [1] * 6, [1] * 6)
    result = run("flow_control_classes:budgets=1/2", *args, class_id=[1, 1, 1, 0, 0, 1])
    check(result, start=[0, 1, 2, 0, 1, 2], finish=[1, 2, 3, 1, 2, 3])
    metrics = compute_metrics(result)
    assert (metrics["evictions"], metrics["put_back"], metrics["overflows"]) == (0, 2, 2)


def test_one_number_is_the_budget_of_every_class() -> None:
    result = run("flow_control_classes:budgets=1", 99, [0] * 6, [1] * 6, [1] * 6, class_id=[2, 1, 0, 2, 1, 2])
    check(result, start=[0, 0, 0, 1, 1, 2], finish=[1, 1, 1, 2, 2, 3])


def test_a_class_does_not_wait_for_another() -> None:
    # The head is of class 0, which has used up its budget; class 1 passes it at t=0 and t=1.
    result = run("flow_control_classes:budgets=1/1", 99, [0] * 5, [1] * 5, [1] * 5, class_id=[0, 0, 0, 1, 1])
    check(result, start=[0, 1, 2, 0, 1], finish=[1, 2, 3, 1, 2])


def test_overflow_evicts_the_last_activated_of_any_class() -> None:
    # M = 9. t=0: 3. t=1: 4+3. t=2: 5+4. t=3: 6+5 = 11: 1 is evicted, although its class is served first. t=4: 1 again.
    result = run("flow_control_classes:budgets=1/1", 9, [0, 1], [2, 2], [4, 3], class_id=[1, 0])
    check(result, [0, 1], [4, 7], evictions=[0, 1], kv=[3, 7, 9, 6, 3, 4, 5])
    # Four more of class 0 (and 3, of class 2) at t=3, where 1 is evicted: one of each is picked and put back, and again
    # at t=4, with 1 in front of its class: 0 is done, 3+3 of the two classes in front fit, 3+3+3 do, too.
    crowd = run(
        "flow_control_classes:budgets=1/1",
        9,
        [0, 1, 3, 3, 3],
        [2] * 5,
        [4, 3, 1, 1, 1],
        class_id=[1, 0, 0, 2, 0],
    )
    assert crowd.requests["start_time"].tolist() == [0, 1, 5, 4, 6]
    metrics = compute_metrics(crowd)
    assert (metrics["evictions"], metrics["put_back"], metrics["overflows"]) == (1, 2, 1)
    # Both at 0: class 0 is activated first, so 0 (class 1) goes: 3+3, 4+4, 5+5 = 10 > 9.
    result = run("flow_control_classes:budgets=1/1", 9, [0, 0], [2, 2], [3, 3], class_id=[1, 0])
    check(result, [0, 0], [6, 3], evictions=[1, 0], kv=[6, 8, 5, 3, 4, 5])


def work(prompt: int, output: int) -> int:
    """Return the memory × time of a request of a class, as in (1) to (4)."""
    return prompt * output + output * (output + 1) // 2


def test_condition_2_is_tight() -> None:
    # Classes (2, 3) and (1, 2) take 12 and 5; b = (1, 2): 22. In overload the memory in use is exactly that.
    n = 40
    columns = {"class_id": [0, 1] * n, "s": [2, 1] * n, "o": [3, 2] * n}
    spec = "flow_control_classes:budgets=1/2"
    result = run(spec, 22, [0] * 2 * n, **columns)
    assert result.log is not None
    assert work(2, 3) + 2 * work(1, 2) == 22
    assert not result.requests["num_evictions"].any()
    assert result.log["num_admitted"][:20].tolist() == [3] * 20
    assert result.log["kv_tokens"][:20].tolist() == [3 + 4, 3 + 4 + 4 + 6] + [22] * 18
    # One token less and not all can be activated.
    short = run(spec, 21, [0] * 2 * n, **columns)
    assert short.log is not None
    assert short.log["num_admitted"][:20].sum() < 60


def test_classes_do_not_meet_under_condition_2() -> None:
    """Appendix A.2: no overflow, and each class is its own queue, Q = (Q + n - b)^+."""
    lengths, budgets = ((3, 4), (2, 7), (5, 1)), (2, 1, 3)
    M = sum(b * work(*c) for b, c in zip(budgets, lengths, strict=True))
    for seed in range(10):
        rng = np.random.default_rng(seed)
        n = 90
        kind = rng.integers(0, 3, n)
        a = arrivals(rng, n, 0.25)  # a third of 4 per slot in each class: one is overloaded, two are not
        s, o = np.array(lengths)[kind].T
        result = run("flow_control_classes:budgets=2/1/3", M, a, s, o, class_id=kind)
        start = np.empty(n)
        for k in range(3):
            served: list[float] = []
            for i in np.flatnonzero(kind == k):
                before = served[-budgets[k]] + 1 if len(served) >= budgets[k] else 0.0
                served.append(max(a[i], before))  # not before the one b_k places ahead has had its slot
                start[i] = served[-1]
        check(result, start.tolist(), (start + o).tolist())
        assert result.log is not None
        assert result.log["kv_tokens"].max() <= M
        assert (start > a).any()


@pytest.mark.parametrize("policy", ["flow_control_classes:budgets=4/4/4", "flow_control:budget=12"])
def test_experiment_of_section_4_1_never_evicts(policy: str) -> None:
    # 4 (10, 20) + 4 (10, 40) + 4 (10, 60): 4 (410 + 1220 + 2430) = 16240 < M = 16492, at λ = 5 > b = 4.
    rng = np.random.default_rng(1)
    n = 3000
    kind = np.arange(n) % 3
    a = np.sort(rng.integers(0, n // 15, n)).astype(float)
    o = np.array([20, 40, 60])[kind]
    assert 4 * sum(work(10, x) for x in (20, 40, 60)) == 16240
    result = run(policy, 16492, a, [10] * n, o, class_id=kind)
    log = result.log
    assert log is not None
    assert not result.requests["num_evictions"].any()
    assert (log["num_admitted"].max(), log["kv_tokens"].max()) == (12, 16240)


def test_classes_beyond_the_list_have_the_last_budget() -> None:
    # b = (2, 1): class 1 and the one beyond get one each. M = 5 holds two. t=0: 1, 4; 3 (class 1) is undone and so
    # is 0. t=1: 3, 0. t=2: 5, 2.
    for beyond in (2, 5, 2**31 - 1):
        columns = {"class_id": [beyond, 0, beyond, 1, 0, 1], "s": [1] * 6, "o": [1] * 6}
        result = run("flow_control_classes:budgets=2/1", 99, [0] * 6, **columns)
        check(result, start=[0, 0, 1, 0, 0, 1], finish=[1, 1, 2, 1, 1, 2])
        result = run("flow_control_classes:budgets=2/1", 5, [0] * 6, **columns)
        check(result, start=[1, 0, 2, 1, 0, 2], finish=[2, 1, 3, 2, 1, 3])
