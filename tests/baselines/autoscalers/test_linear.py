"""The weighted sum: sizes worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from helpers.runs.pools import FLEET, asked, pool, view_at
from kvgym.baselines.autoscalers.linear import Linear
from kvgym.policies.scaling import Autoscaler


def test_the_default_is_a_worker_for_ten_requests_and_one_more() -> None:
    assert asked(Linear(), (0.0, pool([5, 6]))) == [3]  # 1 + 1.1 = 2.1
    assert asked(Linear(), (0.0, pool([20, 19], waiting=np.array([3, 0]), unrouted=1))) == [5]  # 1 + 4


def test_a_pool_shrinks_when_the_sum_has_fallen_by_the_slack() -> None:
    assert asked(Linear(slack=1.0), (0.0, pool([4, 4, 4], target=4))) == [4]  # 2.2, and 3.2 with the slack
    assert asked(Linear(slack=0.5), (0.0, pool([4, 4, 4], target=4))) == [3]  # 2.7
    assert asked(Linear(slack=5.0), (0.0, pool([40], target=1))) == [5]


def test_rates_and_the_time_of_day() -> None:
    rule: Autoscaler = Linear(
        base=2.0, ongoing=0.0, rate_1=1.0, rate_4=0.1, rate_16=0.01, day=100.0, day_cos=3.0
    )
    rule.reset(FLEET, np.random.SeedSequence(0))
    rates = {30.0: 1.0, 120.0: 10.0, 480.0: 50.0}
    view = view_at(0.0, pool([9], target=1), rate=lambda seconds: rates[seconds])
    assert rule.scale(view) == [8]  # 2 + 1 + 1 + 0.5 + 3 = 7.5
    view = view_at(50.0, pool([9], target=8), rate=lambda seconds: rates[seconds])
    assert rule.scale(view) == [2]  # 2 + 2.5 - 3 = 1.5, and the slack of 0.5


@pytest.mark.parametrize(
    ("weight", "quarter"), [("day_sin", 1.0), ("day_cos", 0.0), ("half_sin", 0.0), ("half_cos", -1.0)]
)
def test_a_quarter_of_the_day(weight: str, quarter: float) -> None:
    rule = Linear(base=10.0, ongoing=0.0, slack=0.0, **{weight: 4.0})
    assert rule.size_of(pool([0], target=0), [0.0] * 3, math.pi / 2) == 10 + 4 * quarter
