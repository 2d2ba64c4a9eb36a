"""A_min and MC-Benchmark with the longest length, on schedules worked out by hand.

Source: "flow control for LLM inference": Algorithms 1 and 2, conditions (2) and (4), Section 4.1, Appendix A.2.

Notation in comments: s prompt, o output, M memory, g tokens generated. In the next iteration a request takes
s + g + 1, in the k-th round from now s + g + k. A sum such as 4+3 lists requests in order of activation.
"""

from __future__ import annotations

import numpy as np
import pytest

from helpers.runs.flow_runs import arrivals, run
from helpers.runs.schedules import check

# ---------------------------------------------------------------- A_min


def test_a_min_assumes_the_shortest_possible_outputs() -> None:
    # M = 8, all at 0, every prediction 1. t=0: 3+3, third 9. t=1: 1 is done. 0 (g 1) has reached its prediction and
    # needs one more token: 4+3. t=2: 5+4 = 9: max(prediction, g) is 2 for 0, 1 for 2: 2 is evicted, its prediction is
    # 2. t=3: 6+3. t=4: 0 is done.
    result = run("a_min", 8, [0, 0, 0], [2, 2, 2], [4, 1, 2])
    check(result, [0, 0, 1], [4, 1, 6], first=[1, 1, 2], evictions=[0, 0, 1], kv=[6, 7, 5, 6, 3, 4])


def test_a_min_evicts_the_shortest_prediction_not_the_newest() -> None:
    # M = 10. 0: s 3, o 4, low 1; 1: s 2, o 5, low 5. t=0: 0: 4; 1: k=1 4+3, k=5 7. t=1: 5+4. t=2: 6+5 = 11: max(1, 2)
    # < max(5, 2): 0 is evicted and is predicted 3. t=3: 1 (g 3): k=2 7; 0: k=1 6+4, k=2 7+5 = 12. t=4: k=1 7+4. t=5:
    # 1 is done; 0.
    result = run("a_min", 10, [0, 0], [3, 2], [4, 5], predicted_low=[1, 5], predicted_high=[9, 9])
    check(result, [0, 0], [9, 5], first=[1, 1], evictions=[1, 0], kv=[7, 9, 5, 6, 7, 4, 5, 6, 7])


def test_a_min_evicts_the_newest_among_equals_and_raises_its_prediction() -> None:
    # M = 10. t=0: 4+4. t=1: 5+5. t=2: 6+6 = 12: both have max(1, 2) = 2; 1 is evicted, predicted 3. t=3: 0 is done. 2
    # (s 7, predicted 1) now comes before 1: 8; 1: k=1 8+4 = 12. t=4: 1.
    result = run("a_min", 10, [0, 0, 3], [3, 3, 7], [3, 3, 1])
    check(result, [0, 0, 3], [3, 7, 4], evictions=[0, 1, 0], kv=[8, 10, 6, 8, 4, 5, 6])


def test_a_min_admits_none_when_it_evicts() -> None:
    # M = 10. 0, 1: s 3 at 0; 2: s 1, o 1 at 2. t=2: 6+6 = 12: 1 is evicted; 2 would fit (6+2), but not in this round.
    # t=3: 0 is done; 2 (predicted 1) before 1 (predicted 3): 2; k=1 2+4, k=3 6.
    result = run("a_min", 10, [0, 0, 2], [3, 3, 1], [3, 3, 1])
    check(result, [0, 0, 3], [3, 6, 4], evictions=[0, 1, 0], kv=[8, 10, 6, 6, 5, 6])


def test_a_min_looks_ahead() -> None:
    # M = 12. 0: s 4, o 6, low 6. t=1: 1: s 4, o 4, low 4: k=1 6+5, k=2 7+6 = 13 > 12 though the next one fits.
    # Predicted 1 it would be let in: 6+5; t=2: 7+6 = 13: 1 has the smaller max(1, 1) and goes, predicted 2.
    # t=3: k=1 8+5 = 13. t=4, t=5: 9+5. t=6.
    args = (12, [0, 1], [4, 4], [6, 4])
    check(run("a_min", *args, predicted_low=[6, 4], predicted_high=[6, 4]), [0, 6], [6, 10])
    check(run("a_min", *args, predicted_low=[6, 1], predicted_high=[6, 4]), [0, 1], [6, 10], evictions=[0, 1])


def test_a_min_finishes_with_any_lengths() -> None:
    """Low predictions cost evictions but never stop progress: 40 requests, every rule of eviction."""
    evictions = 0
    for seed in range(27):
        rng = np.random.default_rng(seed)
        n = 40
        s, o = rng.integers(1, 12, n), rng.integers(1, 20, n)
        system = {
            "progress_on_evict": ("lost", "recompute", "kept")[seed % 3],
            "requeue": ("arrival", "front", "back")[seed // 3 % 3],
            "first_token": ("counted", "uncounted", "decode")[seed // 9],
        }
        result = run("a_min", 32, arrivals(rng, n, 3.0), s, o, **system)
        assert result.completed
        evictions += int(result.requests["num_evictions"].sum())
    assert evictions > 100


# ---------------------------------------------------------------- MC-Benchmark with the longest length


def test_mc_longest_assumes_the_longest_possible_outputs() -> None:
    # M = 8, s 2 each, o 2, 1, 2, longest 4, 1, 2. t=0: 0: k=4 6; 1: k=1 3+3; 2: k=1 9. t=1: 0 (g 1): k=2 5, 2: k=2
    # 5+4 = 9, stop, although 0 will be done by then. t=2: 2.
    args = (8, [0, 0, 0], [2, 2, 2], [2, 1, 2])
    check(run("mc_longest", *args, predicted_high=[4, 1, 2]), [0, 0, 2], [2, 1, 4], kv=[6, 4, 3, 4])
    check(run("mc_longest", *args), [0, 0, 1], [2, 1, 3], kv=[6, 7, 4])


@pytest.mark.parametrize(
    ("policy", "ignored"), [("a_min", "predicted_high"), ("mc_longest", "predicted_low")]
)
def test_the_other_bound_of_the_interval_does_not_matter(policy: str, ignored: str) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        n = 30
        o = rng.integers(2, 9, n)
        args = (30, arrivals(rng, n, 1.5), rng.integers(1, 9, n), o)
        low, high = rng.integers(1, o), o + rng.integers(0, 4, n)
        other = {"predicted_low": np.ones(n, int), "predicted_high": high + rng.integers(0, 30, n)}[ignored]
        columns = {"predicted_low": low, "predicted_high": high}
        one, two = (run(policy, *args, **c) for c in (columns, {**columns, ignored: other}))
        for field in ("start_time", "first_token_time", "finish_time", "num_evictions"):
            np.testing.assert_array_equal(one.requests[field], two.requests[field], err_msg=field)
        np.testing.assert_array_equal(one.log, two.log)


def test_mc_longest_never_evicts_under_upper_bounds() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        n = 30
        o = rng.integers(1, 9, n)
        high = o + rng.integers(0, 6, n)
        result = run("mc_longest", 24, arrivals(rng, n, 0.5), rng.integers(1, 9, n), o, predicted_high=high)
        assert not result.requests["num_evictions"].any()
        assert (result.requests["start_time"] > result.table.arrival_time).any()
