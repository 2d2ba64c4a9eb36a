"""Bounds on MC-SF and on the optimum, against runs and optima by exhaustive search."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduce.formulas.memory_constrained import (
    competitive_ratio_at_most,
    group_of,
    latency_at_most,
    meets_theorem,
    optimum_at_least,
    ordered_volume,
    spans_at_most,
)

from kvgym.batch_time import make_batch_time
from kvgym.errors import ConfigError
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.theory.flow import request_workload
from kvgym.workloads.table import RequestTable


def run_mc_sf(prompt_len, output_len, predicted_len, kv_capacity):
    n = len(output_len)
    table = RequestTable.from_columns(
        arrival_time=np.zeros(n),
        prompt_len=np.full(n, prompt_len),
        output_len=output_len,
        predicted_output_len=predicted_len,
    )
    system = System(kv_capacity=kv_capacity, batch_time=make_batch_time({"kind": "unit"}))
    return simulate(system, table, "mc_sf", log=True)


def best_total(prompt_len, outputs, kv_capacity):
    """Return the least total latency of any schedule, all arrivals at 0: depth first over all start times."""
    horizon = sum(outputs)
    best = math.inf

    def place(k, used, total):
        nonlocal best
        if k == len(outputs):
            best = total
            return
        o, rest = outputs[k], sum(outputs[k + 1 :])
        for start in range(horizon - o + 1):
            if total + start + o + rest >= best:
                return
            added = [used[start + j] + prompt_len + j + 1 for j in range(o)]
            if max(added) <= kv_capacity:
                place(k + 1, [*used[:start], *added, *used[start + o :]], total + start + o)

    place(0, [0] * horizon, 0)
    return best


def test_hand_worked_sums():
    # s = 2: vol_1 = 3, vol_3 = 12. Two of length 1, one of 3: 2·(2·3) + 1·(2·3 + 12) = 30.
    assert request_workload(2, [1, 3]).tolist() == [3, 12]
    assert ordered_volume(2, [3, 1, 1]) == 30
    assert latency_at_most(2, [3, 1, 1], 10) == 1536 / 10 * 30 + 24 * 5
    assert latency_at_most(2, [3, 1, 1], 10, alpha=2) == 1536 * 8 / 10 * 30 + 24 * 5
    assert latency_at_most(2, [3, 1, 1], 10, alpha=2, exponent=2) == 1536 * 4 / 10 * 30 + 24 * 5
    assert optimum_at_least(2, [3, 1, 1], 10) == pytest.approx((30 / 10 + 5) / 6)
    assert optimum_at_least(2, [3, 1, 1], 10, alpha=2) == pytest.approx((30 / 40 + 5 / 2) / 6)
    assert spans_at_most(2, [3, 1, 1], 10) == [
        (1, 1, 2, pytest.approx(192 / 10 * 6 + 5)),
        (2, 3, 1, pytest.approx(192 / 10 * 12 + 15)),
    ]
    assert group_of([1, 2, 3, 4, 7, 8, 1024]).tolist() == [0, 1, 1, 2, 2, 3, 10]
    assert competitive_ratio_at_most() == 9216
    assert competitive_ratio_at_most(2) == 9216 * 32
    assert competitive_ratio_at_most(2, exponent=2) == 9216 * 16


def test_equal_requests_have_a_closed_form():
    """n equal requests of volume v: n(n + 1)/2 · v is what an order one by one adds up to, ties in full n²·v."""
    n, s, o = 7, 3, 5
    assert ordered_volume(s, [o] * n) == n * n * request_workload(s, o)


@st.composite
def instances(draw, most=60, longest=20):
    """Return s, predictions, true lengths, M and α as Theorem 4.3 wants them."""
    s = draw(st.integers(1, 6))
    predicted = draw(st.lists(st.integers(1, longest), min_size=1, max_size=most))
    alpha = draw(st.sampled_from([1.0, 1.5, 2.0, 4.0]))
    outputs = [draw(st.integers(math.ceil(p / alpha), p)) for p in predicted]
    spare = draw(st.integers(0, 60))
    return s, predicted, outputs, 2 * (s + max(predicted)) + spare, alpha


@given(instances())
@settings(max_examples=60, deadline=None)
def test_mc_sf_stays_within_its_bounds(instance):
    s, predicted, outputs, kv_capacity, alpha = instance
    assert meets_theorem(s, predicted, kv_capacity)
    records = run_mc_sf(s, outputs, predicted, kv_capacity).requests
    total = float(records["finish_time"].sum())
    assert total <= latency_at_most(s, predicted, kv_capacity, alpha=alpha, exponent=2)
    assert total <= competitive_ratio_at_most(alpha, exponent=2) * optimum_at_least(
        s, predicted, kv_capacity, alpha=alpha
    )
    group = group_of(predicted)
    for span in spans_at_most(s, predicted, kv_capacity, alpha=alpha):
        mine = group == group_of([span.shortest])[0]
        assert int(mine.sum()) == span.requests
        first = records["start_time"][mine].min() + 1
        assert records["finish_time"][mine].max() - first <= span.slots


@given(
    s=st.integers(1, 3),
    predicted=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    spare=st.integers(0, 6),
    alpha=st.sampled_from([1.0, 2.0]),
    data=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_no_schedule_is_below_the_lower_bound(s, predicted, spare, alpha, data):
    outputs = [data.draw(st.integers(math.ceil(p / alpha), p)) for p in predicted]
    kv_capacity = s + max(outputs) + spare
    optimum = best_total(s, outputs, kv_capacity)
    assert optimum_at_least(s, predicted, kv_capacity, alpha=alpha) <= optimum + 1e-9
    if meets_theorem(s, predicted, kv_capacity):
        run = run_mc_sf(s, outputs, predicted, kv_capacity)
        assert optimum <= run.requests["finish_time"].sum() <= competitive_ratio_at_most(alpha) * optimum


def test_exhaustive_search_finds_known_optima():
    assert best_total(1, [2, 2], 6) == 4  # both at once: 3 + 3 tokens
    assert best_total(1, [2, 2], 5) == 5  # one later: 3 + 2 fit
    assert best_total(1, [2, 2], 4) == 6  # one after the other
    assert best_total(2, [3, 1], 5) == 1 + 4  # the short one first: 3 + 3 do not fit


def test_a_third_of_the_optimum_where_each_fills_the_memory():
    """With vol = M one after the other is optimal, n(n + 1)/2 slots; the lemma's sums are twice that, over 6."""
    for n in range(1, 5):
        assert best_total(9, [1] * n, 10) == n * (n + 1) / 2
        assert optimum_at_least(9, [1] * n, 10) == pytest.approx(n * (n + 1) / 6)


def test_the_step_with_the_real_peak_is_wrong():
    """The certificate of the docstring: a group waits, and real memory stays below (M − s − ō)/α for ō slots."""
    s, kv_capacity, longest, true = 1, 448, 31, 14
    small = np.repeat(np.arange(6, 16), 5)
    predicted = np.concatenate([small, np.full(124, longest)])
    outputs = np.concatenate([small, np.full(124, true)])
    result = run_mc_sf(s, outputs, predicted, kv_capacity)
    starts = result.requests["start_time"][len(small) :]
    slots = result.log["kv_tokens"][longest : 2 * longest]
    assert starts.max() > 2 * longest  # some of the group wait all the time
    assert slots.max() == 180
    assert (kv_capacity - s - longest) / (longest / true) > 180
    # What the repaired proof uses instead holds: enough of them are active when the interval begins.
    active = result.log["num_active"][longest]
    assert active * (s + longest) > kv_capacity - (s + longest)


def test_a_volume_may_be_below_its_share_by_alpha():
    assert request_workload(1, 2) == 5 < request_workload(1, 4) / 2
    for alpha, s, o in itertools.product((1.0, 1.5, 2.0, 7.0), range(1, 5), range(1, 30)):
        true = math.ceil(o / alpha)
        assert request_workload(s, true) >= request_workload(s, o) / alpha**2


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: latency_at_most(1, [9], 19), "2 × (1 + 9)"),
        (lambda: spans_at_most(1, [9], 19), "from 20 on"),
        (lambda: latency_at_most(1, [9], 20, alpha=0.5), "alpha must be a finite number >= 1"),
        (lambda: latency_at_most(1, [9], 20, exponent=4), "exponent must be 2 or 3, got 4"),
        (lambda: ordered_volume(1, [0]), "predicted_len: each"),
        (lambda: ordered_volume(1, [[1]]), "shape (1, 1)"),
        (lambda: ordered_volume(-1, [1]), "prompt_len must be"),
        (lambda: optimum_at_least(1, [1], 0), "kv_capacity must be"),
        (lambda: competitive_ratio_at_most(0.9), "alpha must be"),
    ],
)
def test_bad_arguments(call, part):
    with pytest.raises(ConfigError) as error:
        call()
    assert part in str(error.value)
