"""Requests that must miss their targets: by hand, and against every choice."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.errors import ConfigError
from kvgym.simulator.system import System
from kvgym.theory.hindsight.calibrated.bounds import bound_calibrated
from kvgym.theory.hindsight.calibrated.deadlines import least_late
from kvgym.workloads.table import RequestTable


def late(*rows):
    """Return the least late requests of (release, work, deadline)."""
    return least_late(*(np.array(column, float) for column in zip(*rows, strict=True)))


def test_late_requests_by_hand():
    assert late((0, 1, 1), (0, 1, 2), (0, 1, 3)) == 0
    assert late((0, 1, 1), (0, 1, 1), (0, 1, 2)) == 1
    assert late((0, 9, 10), (0, 4, 10), (0, 4, 10)) == 1  # without the long one
    assert late((0, 2, 2), (0, 2, 2), (5, 2, 7), (5, 2, 7)) == 2  # one in each window
    assert late((0, 2, 2), (0, 2, 2), (0, 100, 200), (5, 2, 7), (5, 2, 7)) == 2


def fits(rows):
    """Return whether a machine that may interrupt its work meets all deadlines: every window is long enough."""
    return all(
        sum(w for r, w, d in rows if r >= a and d <= b) <= b - a
        for a, b in itertools.product([r for r, _, _ in rows], [d for _, _, d in rows])
        if b > a
    )


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=7))
def test_no_choice_has_fewer_late(drawn):
    rows = [(r, w, r + slack) for r, w, slack in drawn]
    most = max(k for k in range(len(rows) + 1) for some in itertools.combinations(rows, k) if fits(some))
    assert late(*rows) <= len(rows) - most


def requests(**targets):
    return RequestTable([0.0] * 3, [3] * 3, [1] * 3, **targets)


@pytest.mark.parametrize(
    ("targets", "share"),
    [
        ({"ttft_slo": [1, 1, 1]}, 1 / 3),  # the memory has room for one: one after the other
        ({"ttft_slo": [1, 2, 3]}, 1),
        ({"e2e_slo": [2, 2, 2]}, 2 / 3),
        ({"ttft_slo": [0.5, np.inf, 9]}, 2 / 3),  # alone
    ],
)
def test_attainment_and_goodput_by_hand(targets, share):
    table, system = requests(**targets), System(4, UnitBatchTime())
    assert bound_calibrated(table, system, "slo_attainment").value == pytest.approx(share)
    assert bound_calibrated(table, system, "goodput").value == pytest.approx(3 * share / 3)


def test_a_gap_that_a_request_alone_exceeds_is_missed():
    table = RequestTable([0.0, 0.0], [4, 4], [2, 1], tbt_slo=[1.0, 1.0])
    # the only gap: a decode that finds 5 tokens, 1 + 0.2 + 0.01 * 6
    found = bound_calibrated(table, System(20, AffineBatchTime(1.0, 0.1, 0.2, 0.01)), "slo_attainment")
    assert found.value == 0.5


def test_targets_are_needed():
    with pytest.raises(ConfigError, match="slo_attainment counts requests within their own SLOs"):
        bound_calibrated(requests(), System(4, UnitBatchTime()), "slo_attainment")
