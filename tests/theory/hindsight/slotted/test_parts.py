"""Slotted time: the model by hand, memory × time, prices and chains, local search."""

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import linprog

from kvgym.errors import ConfigError, WorkloadError
from kvgym.theory.hindsight.slotted.bounds import earliest_chained_end, least_chained_longest
from kvgym.theory.hindsight.slotted.instance import slotted_requests
from kvgym.theory.hindsight.slotted.prices import price_bound, separated
from kvgym.theory.hindsight.slotted.search import Goal, insert_in_order, local_search
from kvgym.theory.hindsight.slotted.volume import (
    earliest_completions,
    earliest_end,
    earliest_first_tokens,
    least_longest,
    lp_9,
    lp_16,
)
from oracles.slotted_instances import brute_force, small, table_of


def test_the_model_by_hand():
    requests = slotted_requests(table_of((0, 1, 2), (0, 2, 1)), 5)
    assert requests.volume.tolist() == [2 + 3, 3]
    assert requests.peak.tolist() == [3, 3]
    assert requests.usage([0, 0]).tolist() == [0, 2 + 3, 3]
    assert requests.usage([0, 1]).tolist() == [0, 2, 3 + 3]
    assert requests.check([0, 0]).tolist() == [0, 0]
    assert Goal.TOTAL.reached_by(requests, [0, 0]) == 3
    for starts, message in (
        ([0, 1], "slot 2 needs 6"), ([0], "2 starts"), ([0, 0.5], "whole"), ([-1, 0], "arrives at 0"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            requests.check(starts)


def test_invalid_instances_are_rejected():
    with pytest.raises(ConfigError, match=r"request 1 arrives at 0\.5"):
        slotted_requests(table_of((0, 1, 1), (0.5, 1, 1)), 5)
    with pytest.raises(WorkloadError, match="needs 6"):
        slotted_requests(table_of((0, 1, 5)), 5)


def test_lp_9_by_hand():
    # Volumes 2, 2, 5 with M = 4: two done at 1; of the third, 4/5 at 2 and 1/5 at 3.
    assert lp_9(1, [1, 1, 2], 4) == pytest.approx(1 + 1 + (4 * 2 + 1 * 3) / 5)
    assert lp_16(1, [1, 1, 2], 1, 2) == lp_9(1, [1, 1, 2], 4)
    with pytest.raises(ConfigError, match="alpha"):
        lp_16(1, [1], 4, 0.5)


@pytest.mark.parametrize("seed", range(5))
def test_lp_9_is_the_value_of_the_program(seed):
    rng = np.random.default_rng(seed)
    prompt, output, memory = rng.integers(1, 4, 7), rng.integers(1, 9, 7), int(rng.integers(9, 15))
    volume = prompt * output + output * (output + 1) // 2
    n, slots = len(volume), int(volume.sum() // memory) + 2
    times = np.arange(1, slots + 1)  # x[i, t]: the share of i that is done at t
    upto = np.kron(volume, np.tril(np.ones((slots, slots))))
    found = linprog(
        np.tile(times, n), upto, times * memory, np.kron(np.eye(n), np.ones(slots)), np.ones(n), bounds=(0, 1)
    )
    assert lp_9(prompt, output, memory) == pytest.approx(found.fun)


def test_shared_memory_by_hand():
    # Volume 5 at 0 and 2 at 1 with M = 3: the second overtakes (2 left of 5 at 1, equal: 8/3, so neither does).
    requests = slotted_requests(table_of((0, 1, 2), (1, 1, 1)), 3)
    assert earliest_completions(requests).tolist() == [2, 3]
    assert earliest_first_tokens(requests).tolist() == [1, 2]
    assert earliest_end(requests) == 3  # ⌈7/3⌉


def test_large_requests_keep_their_distance():
    # Ramps from 1 to M = 6 (s + o = 6) cannot overlap at all: prices alone run them side by side, chains do not.
    requests = slotted_requests(table_of(*[(0, 1, 5)] * 4), 6)
    assert separated(requests).all()
    alone = insert_in_order(requests, range(4))
    assert sorted(alone) == [0, 5, 10, 15]
    optimum = 5 + 10 + 15 + 20
    assert price_bound(requests, alone, chains=False).bound < optimum
    assert price_bound(requests, alone).bound == optimum
    assert earliest_chained_end(requests) <= 20
    # Peaks 4 of 6: the second may complete two slots after the first, one at a time.
    pair = slotted_requests(table_of((0, 1, 3), (0, 1, 3)), 6)
    assert price_bound(pair, insert_in_order(pair, [0, 1])).bound == 3 + 5  # the optimum
    assert earliest_chained_end(pair) == 5 == least_chained_longest(pair)


@settings(max_examples=60, deadline=None)
@given(small(3))
def test_bounds_hold(instance):
    table, memory = instance
    requests = slotted_requests(table, memory)
    total, end, longest = brute_force(table, memory, int(requests.output.sum()))
    assert max(earliest_end(requests), earliest_chained_end(requests)) <= end
    assert max(least_longest(requests), least_chained_longest(requests)) <= longest
    found = local_search(requests, rng=np.random.default_rng(0), tries=300)
    assert Goal.TOTAL.reached_by(requests, requests.check(found)) >= total
    assert price_bound(requests, found, chains=False, steps=200).bound <= total
    assert price_bound(requests, found, steps=200).bound <= total
    assert (earliest_completions(requests) - requests.arrival).sum() <= total
    assert lp_9(requests.prompt, requests.output, memory) <= total + requests.arrival.sum() + 1e-9


def test_local_search_is_deterministic_and_never_worse_than_a_known_schedule():
    rng = np.random.default_rng(3)
    output = rng.integers(1, 18, 12)
    requests = slotted_requests(table_of(*[(i // 2, 2, int(o)) for i, o in enumerate(output)]), 20)
    first, second = (local_search(requests, rng=np.random.default_rng(1), tries=500) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    good = local_search(requests, rng=np.random.default_rng(2), tries=5_000)
    again = local_search(requests, rng=np.random.default_rng(1), tries=0, best=good)
    assert Goal.TOTAL.reached_by(requests, again) <= Goal.TOTAL.reached_by(requests, good)
    with pytest.raises(ConfigError, match="12 starts"):
        local_search(requests, rng=rng, best=[0])


def test_local_search_finds_waiting_despite_room():
    # The long request must wait for the short ones of slot 4, or they wait for it: insertion alone starts it at 0.
    table = table_of((0, 1, 7), *[(4, 1, 1)] * 4)
    requests = slotted_requests(table, 8)
    found = local_search(requests, rng=np.random.default_rng(0), tries=2_000)
    assert Goal.TOTAL.reached_by(requests, found) == 16  # the optimum
