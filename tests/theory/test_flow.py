"""Flow control: workloads and peaks by brute force, Experiment 4.1, the overflow bound against simulation."""

import math

import numpy as np
import pytest

from kvgym.errors import ConfigError
from kvgym.theory.flow import (
    class_load,
    is_overloaded,
    largest_budget_unknown,
    largest_budgets,
    load,
    mean_workload,
    overflow_bound,
    peak_memory,
    request_workload,
    smallest_budgets,
    sufficient,
    sufficient_unknown,
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
    table = RequestTable.from_columns(arrival_time=[0, 0], prompt_len=[10, 20], output_len=[4, 10])
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
    ):
        with pytest.raises(ConfigError):
            call()
