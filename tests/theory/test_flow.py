"""Flow control: workloads and peaks by brute force, Experiment 4.1, the overflow bound against simulation."""

import math

import numpy as np
import pytest

from kvgym.batch_time import UnitBatchTime
from kvgym.errors import ConfigError
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.theory.flow import (
    class_load,
    drift_bound,
    is_overloaded,
    largest_budget_unknown,
    largest_budgets,
    least_unfinished,
    load,
    mean_latency_bound,
    mean_queue_bound,
    mean_workload,
    overflow_bound,
    peak_memory,
    request_workload,
    smallest_budgets,
    sufficient,
    sufficient_unknown,
    unfinished_growth,
)
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable

M = 16_492


def experiment(rate):
    """The three classes of Experiment 4.1, each at one rate."""
    return [ClassStatistics(str(o), rate, 10, o) for o in (20, 40, 60)]


def test_workload_is_the_sum_over_slots():
    prompt, output = np.arange(1, 9)[:, None], np.arange(1, 12)
    expected = [[sum(s + j for j in range(1, o + 1)) for o in output] for s in range(1, 9)]
    np.testing.assert_array_equal(request_workload(prompt, output), expected)


def test_experiment_of_section_4():
    np.testing.assert_array_equal(request_workload([10, 10, 10], [20, 40, 60]), [410, 1220, 2430])
    classes = experiment(5.0)
    assert peak_memory(classes, (4, 4, 4)) == 16_240 < M
    assert peak_memory(classes, (5, 5, 5)) == 20_300 > M
    assert largest_budgets(classes, M) == (4, 4, 4)
    # λ = 5 exceeds b = 4, and by (1) any policy is overloaded.
    assert not sufficient(classes, (4, 4, 4), M)
    assert class_load(classes) == 20_300
    assert is_overloaded(class_load(classes), M)


def test_between_sufficient_and_necessary():
    assert sufficient(experiment(3.99), (4, 4, 4), M)
    assert smallest_budgets(experiment(3.99)) == (4, 4, 4)
    # Budgets are whole: at λ = 4 they would have to be 5, though (1) leaves room up to 16492 / 4060 = 4.06.
    assert not sufficient(experiment(4.0), (4, 4, 4), M)
    assert smallest_budgets(experiment(4.0)) == (5, 5, 5)
    assert not is_overloaded(class_load(experiment(4.06)), M)
    assert is_overloaded(class_load(experiment(4.07)), M)


def test_inequality_two_is_strict():
    classes = experiment(1.0)
    assert largest_budgets(classes, 4060 * 3) == (2, 2, 2)
    assert largest_budgets(classes, 4060 * 3 + 1) == (3, 3, 3)
    assert largest_budgets(classes, 4060) == (0, 0, 0)
    assert not sufficient(classes, (3, 3, 3), 4060 * 3)


def test_rates_count_per_slot():
    classes = experiment(50.0)
    assert class_load(classes, slot=0.1) == pytest.approx(20_300)
    assert smallest_budgets(classes, slot=0.05) == (3, 3, 3)
    assert sufficient(classes, (3, 3, 3), M, slot=0.05)


def test_peak_is_what_full_budgets_reach():
    """Activate b requests of each class in every slot and count the memory, slot by slot."""
    classes, budgets = [ClassStatistics("a", 1, 3, 5), ClassStatistics("b", 1, 7, 2)], (2, 3)
    active, used = [], []
    for _ in range(12):
        active += [[c, 0] for c, b in zip(classes, budgets, strict=True) for _ in range(b)]
        active = [[c, done + 1] for c, done in active]
        used.append(sum(c.prompt_len + done for c, done in active))
        active = [[c, done] for c, done in active if done < c.output_len]
    assert max(used) == used[-1] == peak_memory(classes, budgets)


def test_unknown_lengths():
    table = RequestTable([0, 0], [10, 20], [4, 10])
    workload = (10 * 4 + 10 + 20 * 10 + 55) / 2
    assert mean_workload(table) == workload
    assert load(2.0, workload) == 305
    budget = largest_budget_unknown(workload, 1000, 0.1)
    assert budget == pytest.approx(900 / workload)
    assert sufficient_unknown(5, 4.9, workload, 1000, 0.1)
    assert not sufficient_unknown(5, 5.0, workload, 1000, 0.1)  # b > λ is strict
    assert not sufficient_unknown(math.ceil(budget), 1.0, workload, 1000, 0.1)


def test_overflow_bound_by_hand():
    # ε²M² = 400, 2 (A² + A) C³ = 2 * 6 * 27 = 324.
    assert overflow_bound(1000, 40, 0.5, 2, 3) == pytest.approx(1000 * math.exp(-400 / 324))
    # Experiment 4.1 read with unknown types: the bound says nothing.
    epsilon = 1 - 16_240 / M
    assert overflow_bound(10_000, M, epsilon, 12, 60) > 9_980


def test_overflow_bound_is_not_exceeded():
    """One activation per slot, lengths uniform on 1 ... 4, memory without eviction as in Appendix A.4."""
    rng, slots, capacity = np.random.default_rng(5), 200_000, 17
    prompt, output = rng.integers(1, 5, slots + 3), rng.integers(1, 5, slots + 3)
    used = sum(
        np.where(output[3 - q : slots + 3 - q] >= q + 1, prompt[3 - q : slots + 3 - q] + q + 1, 0)
        for q in range(4)
    )
    workload = float(request_workload(*np.meshgrid(np.arange(1, 5), np.arange(1, 5))).mean())
    assert used.mean() == pytest.approx(workload, rel=0.01)
    epsilon = 1 - workload / capacity
    overflows = np.count_nonzero(used > capacity)
    assert 0 < overflows < overflow_bound(slots, capacity, epsilon, 1, 4) < 0.9 * slots


def test_unfinished_requests_grow_with_the_excess_volume():
    # Section 4.1: (20,300 - 16,492) / 2,430 per slot.
    assert unfinished_growth(20_300, M, 2430) == pytest.approx(3808 / 2430)
    assert unfinished_growth(M - 1, M, 2430) == 0
    # Room for 3 * 10 = 30: 5 + 7 + 8 fit, 11 more do not; 12 + 18 would, but these are fewer.
    assert least_unfinished([12, 8, 5, 18, 11, 7], 10, 3) == 3
    assert least_unfinished([5, 5, 5], 5, 3) == 0
    assert least_unfinished([5, 5, 5], 5, 2) == 1
    assert least_unfinished([], 5, 2) == 0


@pytest.mark.parametrize("policy", ["flow_control_classes", "mc_sf", "fcfs", "request_level:batch=30"])
def test_no_policy_leaves_fewer_unfinished(policy):
    """Of requests that a volume cannot hold, over horizons: (5) for known requests, and its mean."""
    rng, capacity = np.random.default_rng(3), 120
    for slots in (20, 60, 200):
        arrival = np.repeat(np.arange(slots), rng.poisson(2.0, slots)).astype(float)
        kind = rng.integers(0, 2, len(arrival))
        table = RequestTable.from_columns(
            arrival_time=arrival, prompt_len=np.full(len(kind), 5), output_len=np.where(kind, 12, 4),
            predicted_output_len=np.where(kind, 12, 4), class_id=kind,
        )  # fmt: skip
        system = System(kv_capacity=capacity, batch_time=UnitBatchTime(), horizon=float(slots))
        unfinished = compute_metrics(simulate(system, table, policy))["unfinished"]
        work = request_workload(table.prompt_len, table.output_len)
        assert least_unfinished(work, capacity, slots) <= unfinished
        assert (work.sum() - capacity * slots) / work.max() <= least_unfinished(work, capacity, slots)


def stationary(rate, budget, states=400):
    """The steady state of Q = (Q + n - b)+ with Poisson n, and the drift of Q² / 2 in each state."""
    numbers = np.arange(states + budget)
    arrivals = np.exp(numbers * math.log(rate) - rate - np.array([math.lgamma(x + 1) for x in numbers]))
    steps = np.zeros((states, states))
    for queue in range(states):
        np.add.at(steps[queue], np.clip(queue + numbers - budget, 0, states - 1), arrivals)
    steps /= steps.sum(axis=1, keepdims=True)
    system = np.vstack([steps.T - np.eye(states), np.ones(states)])
    weights = np.linalg.lstsq(system, np.append(np.zeros(states), 1.0), rcond=None)[0]
    lengths = np.arange(states)
    return lengths @ weights, steps @ lengths.astype(float) ** 2 / 2 - lengths.astype(float) ** 2 / 2


@pytest.mark.parametrize(("rate", "budget"), [(3.9, 4), (3.5, 4), (0.5, 1), (2.0, 3)])
def test_queue_bound_against_the_steady_state(rate, budget):
    mean, drift = stationary(rate, budget)
    most = [drift_bound(queue, rate, budget) for queue in range(200)]
    assert np.all(drift[:200] <= np.array(most) + 1e-9)
    # Where no arrivals can empty the queue the inequality is an equation.
    np.testing.assert_allclose(drift[budget:200], most[budget:], atol=1e-9)
    bound = mean_queue_bound(rate, budget)
    assert bound == pytest.approx((rate + (budget - rate) ** 2) / (2 * (budget - rate)))
    assert mean < bound
    if rate == 3.9:
        assert mean > 0.9 * bound  # tight in heavy traffic


def test_latency_bound_against_a_run_of_algorithm_1():
    classes = experiment(3.9)
    bound = mean_latency_bound(classes, (4, 4, 4))
    assert bound == pytest.approx(40 + (3.9 + 0.01) / 0.2 / 3.9)
    rng, slots = np.random.default_rng(1), 3000
    counts = rng.poisson(3.9, (slots, 3))
    kind = np.repeat(np.tile(np.arange(3), slots), counts.ravel())
    table = RequestTable.from_columns(
        arrival_time=np.repeat(np.repeat(np.arange(slots), 3), counts.ravel()).astype(float),
        prompt_len=np.full(len(kind), 10), output_len=20 + 20 * kind, class_id=kind,
    )  # fmt: skip
    system = System(kv_capacity=M, batch_time=UnitBatchTime())
    metrics = compute_metrics(simulate(system, table, "flow_control_classes:budgets=4/4/4"))
    assert 40 < metrics["e2e_latency_mean"] < bound
    assert metrics["overflows"] == 0
    assert metrics["kv_peak"] * M <= peak_memory(classes, (4, 4, 4))


def test_errors():
    classes = experiment(1.0)
    for call in (
        lambda: peak_memory(classes, (1, 2)),
        lambda: peak_memory(classes, (1, 2, 0.5)),
        lambda: class_load([]),
        lambda: class_load(classes, slot=0),
        lambda: sufficient_unknown(1, 0.5, 1, 1, 0),
        lambda: overflow_bound(0, 1, 0.5, 1, 1),
        lambda: largest_budget_unknown(0, 1, 0.5),
        lambda: mean_queue_bound(4, 4),
        lambda: mean_queue_bound(1, 4, variance=-1),
        lambda: drift_bound(-1, 1, 4),
        lambda: mean_latency_bound(classes, (4, 4)),
        lambda: unfinished_growth(1, 1, 0),
    ):
        with pytest.raises(ConfigError):
            call()
