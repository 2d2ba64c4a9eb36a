"""Groups of segments: one group gives the theory of one prompt length, several meet its conditions together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgym.batch_time import AffineBatchTime
from kvgym.errors import ConfigError
from kvgym.theory.buffers import memory_bound
from kvgym.theory.groups import (
    SLACKS,
    SegmentGroup,
    group_batch_time,
    group_memory,
    group_memory_bound,
    group_thresholds,
    merged,
    safest_thresholds,
)
from kvgym.theory.nested import nested_batch_time, nested_condition, nested_thresholds, segment_memory
from kvgym.theory.time_varying import time_varying_thresholds, worst_survival
from kvgym.workloads.classes import ClassStatistics, RateProfile

TIME = AffineBatchTime.from_wait(0.02, 1e-6)


def group(prompt: float, ends: tuple[int, ...], rates: tuple[float, ...]) -> SegmentGroup:
    classes = (ClassStatistics(str(e), r, prompt, e) for e, r in zip(ends, rates, strict=True))
    return SegmentGroup(prompt, ends, tuple(classes))


def test_one_group_is_one_prompt_length() -> None:
    g, rates = group(10, (20, 40, 80, 160), (2.0, 4.0, 8.0, 16.0)), [2.0, 4.0, 8.0, 16.0]
    n = group_thresholds([g], TIME, slack=0.05)
    assert n.tolist() == nested_thresholds(rates, 10, g.output_lens, TIME, slack=0.05).tolist()
    assert group_batch_time([g], n, TIME) == nested_batch_time(n, 10, g.output_lens, TIME)
    assert group_memory([g], n) == segment_memory(n, 10, g.output_lens)
    bound = memory_bound(n, 10, g.output_lens, rates, 1000, 0.1)
    assert group_memory_bound([g], n, 1000, 0.1) == pytest.approx(bound.total)


@settings(max_examples=20, deadline=None)
@given(
    rates=st.tuples(*[st.floats(0.5, 20)] * 4), prompts=st.tuples(st.integers(1, 50), st.integers(51, 200))
)
def test_two_groups_meet_the_condition_together_and_no_smaller_thresholds_do(
    rates: tuple[float, ...], prompts: tuple[int, int]
) -> None:
    groups = [group(prompts[0], (10, 30), rates[:2]), group(prompts[1], (5, 40), rates[2:])]
    n = group_thresholds(groups, TIME)

    def holds(n: np.ndarray) -> bool:
        window = group_batch_time(groups, n, TIME)
        firsts = (n[0] > (rates[0] + rates[1]) * window) and (n[2] > (rates[2] + rates[3]) * window)
        return bool(
            firsts
            and n[1] / n[0] > rates[1] / (rates[0] + rates[1])
            and n[3] / n[2] > rates[3] / (rates[2] + rates[3])
        )

    assert holds(n)
    assert not any(holds(n - step) for step in np.eye(4, dtype=int)[n > 1])


def test_two_groups_of_equal_prompts_share_the_batch() -> None:
    one = group(10, (20, 60), (4.0, 8.0))
    n = group_thresholds([one, one], TIME)
    assert n[:2].tolist() == n[2:].tolist()
    # Each is at least what it is alone: the batch of both is longer.
    assert (n[:2] >= group_thresholds([one], TIME)).all()
    assert nested_condition(n[:2], [4.0, 8.0], 10, [20, 60], TIME)


def test_peaks() -> None:
    pieces = RateProfile((0.0, 50.0), (2.0, 6.0), 100.0)
    classes = (ClassStatistics("a", 4.0, 10.0, 20.0, pieces), ClassStatistics("b", 4.0, 10.0, 60.0))
    g = SegmentGroup(10.0, (20, 60), classes)
    times, rates = [0.0, 50.0, 100.0], [[2.0, 6.0, 2.0], [4.0, 4.0, 4.0]]
    expected = time_varying_thresholds(times, rates, 10.0, [20, 60], TIME)
    assert group_thresholds([g], TIME, peak=True).tolist() == expected.tolist()
    assert g.survival(peak=True) == pytest.approx(worst_survival(times, rates))
    assert g.survival(peak=True) == pytest.approx([4 / 6])
    assert g.survival(peak=False) == pytest.approx([0.5])
    # Different periods: bounds that no moment exceeds. At most 6 + 8, and at worst 8 of 2 + 8 go on.
    other = ClassStatistics("b", 6.0, 10.0, 60.0, RateProfile((0.0, 7.0), (4.0, 8.0), 14.0))
    both = SegmentGroup(10.0, (20, 60), (classes[0], other))
    assert both.arrivals(1.0, peak=True) == pytest.approx(14.0)
    assert both.survival(peak=True) == pytest.approx([0.8])


def test_merged_classes() -> None:
    pieces = RateProfile((0.0, 50.0), (2.0, 6.0), 100.0)
    a, b = ClassStatistics("a", 4.0, 10.0, 20.0, pieces), ClassStatistics("b", 1.0, 20.0, 60.0)
    both = merged([a, b])
    assert (both.rate, both.prompt_len, both.output_len) == (5.0, 12.0, 28.0)
    assert both.profile == RateProfile((0.0, 50.0), (3.0, 7.0), 100.0)
    other = ClassStatistics("c", 1.0, 20.0, 60.0, RateProfile((0.0, 1.0), (0.0, 2.0), 2.0))
    assert merged([a, other]).profile == RateProfile((0.0,), (8.0,))


@pytest.mark.parametrize("d0", [0.05, 1.0, 20.0])
def test_safest_thresholds(d0: float) -> None:
    g, time = group(10, (20, 40, 80, 160), (5.0, 5.0, 5.0, 5.0)), AffineBatchTime.from_wait(d0, 1e-9)
    n, bound = safest_thresholds([g], time, 1e6, 0.1)
    tried = {x: group_thresholds([g], time, slack=x) for x in SLACKS}
    bounds = {x: group_memory_bound([g], tried[x], 1e6, 0.1) for x in SLACKS}
    best = min(bounds, key=lambda x: bounds[x])
    assert bound == bounds[best]
    assert n.tolist() == tried[best].tolist()
    assert (best > 0) == (d0 == 20.0)  # a large batch of small drift: queues between segments are what counts


def test_bad_arguments_are_rejected() -> None:
    with pytest.raises(ConfigError, match="class for each"):
        SegmentGroup(10.0, (20, 40), (ClassStatistics("a", 1.0, 1.0, 1.0),))
    with pytest.raises(ConfigError, match="at least one group"):
        group_thresholds([], TIME)
    with pytest.raises(ConfigError, match="thresholds"):
        group_memory([group(10, (20,), (1.0,))], np.array([1, 2]))
    with pytest.raises(ConfigError, match="12"):
        group_thresholds([group(1000, (2000,), (1000.0,))], TIME)
