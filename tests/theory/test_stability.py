"""Stability under a KV-cache limit: lifetime memory by brute force, the published rates, provisioning."""

from itertools import pairwise

import numpy as np
import pytest

from kvgym.batch_time import AffineBatchTime
from kvgym.errors import ConfigError
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.theory.stability import (
    batch_durations,
    cumulative_memory,
    implied_batch_time,
    is_overloaded,
    is_stable,
    mean_cumulative_memory,
    mean_cumulative_memory_uniform,
    memory_slack,
    outstanding_memory,
    provision,
    service_rate,
    typical_batch_time,
)
from kvgym.workloads.table import RequestTable

M = 131_000
RATIOS = {
    "1:1": ((10, 1600), (10, 1600), 0.0372, 3.226),
    "2:1": ((10, 2133), (5, 1066), 0.0430, 4.015),
    "1:2": ((10, 1066), (10, 2133), 0.0337, 2.926),
}


def brute_force(prompt, output, chunk):
    held = [*range(chunk, prompt, chunk), prompt]
    return sum(held) + sum(prompt + j for j in range(1, output + 1))


def test_cumulative_memory_is_the_sum_over_iterations():
    prompt, output = np.arange(1, 40), np.arange(1, 15)
    for chunk in (1, 2, 7, 16, 64):
        expected = [[brute_force(s, o, chunk) for o in output] for s in prompt]
        got = cumulative_memory(prompt[:, None], output[None, :], chunk)
        assert got.dtype == np.int64
        np.testing.assert_array_equal(got, expected)


def test_closed_form_holds_exactly_where_the_chunk_divides_the_prompt():
    prompt = np.array([8, 16, 160, 9, 4])
    exact, closed = (cumulative_memory(prompt, 11, 8, closed_form=form) for form in (False, True))
    np.testing.assert_array_equal(exact[:3], closed[:3])
    assert np.all(closed[3:] < exact[3:])
    # s = 9 in chunks of 8 and 1: 8 + 9 held, printed (1 + 9/8) * 9 / 2 = 9.5625.
    assert exact[3] - closed[3] == 17 - 9.5625


def course(prompt, output, chunk):
    """(prompt tokens processed, output tokens written) before every iteration, and the memory it holds."""
    done = [*range(0, prompt, chunk), prompt]
    states = [(tokens, 0) for tokens in done] + [(prompt, j) for j in range(1, output + 1)]
    return states, [*done[1:], *range(prompt + 1, prompt + output + 1)]


@pytest.mark.parametrize(("prompt", "output", "chunk"), [(9, 4, 3), (8, 5, 3), (1, 1, 1), (7, 2, 512)])
def test_outstanding_memory_falls_by_the_memory_of_an_iteration(prompt, output, chunk):
    states, held = course(prompt, output, chunk)
    left = [int(outstanding_memory(prompt, output, chunk, *state)) for state in states]
    assert left[0] == brute_force(prompt, output, chunk)
    assert left[-1] == 0
    assert [a - b for a, b in pairwise(left)] == held


def test_outstanding_memory_as_printed():
    # s 6, o 3, ŝ 2, so 2, 4, 6, 7, 8, 9. v = (cŝ + s)(s/ŝ - c + 1)/2 + os + (1 + o)o/2 before the prompt is done, else
    # s(o - d + 1) + (o - d + 1)(o + d)/2, and 0 at the end.
    states, held = course(6, 3, 2)
    expected = [36, 36, (4 + 6) * 2 // 2 + 24, 6 * 4 + 4 * 3 // 2, 6 * 3 + 3 * 4 // 2, 6 * 2 + 2 * 5 // 2, 0]
    done, made = np.array(states).T
    printed = outstanding_memory(6, 3, 2, done, made, printed=True)
    np.testing.assert_array_equal(printed, expected)
    # It falls by what the iteration before held.
    np.testing.assert_array_equal(-np.diff(printed)[:-1], [0, *held[:-2]])


@pytest.mark.parametrize(
    ("prefilled", "generated", "message"),
    [
        (3, 0, "prefilled"),
        (7, 0, "prefilled"),
        (4, 1, "generated"),
        (6, 4, "generated"),
        (-1, 0, "prefilled"),
    ],
)
def test_outstanding_memory_of_impossible_progress(prefilled, generated, message):
    with pytest.raises(ConfigError, match=message):
        outstanding_memory(6, 3, 2, prefilled, generated)


@pytest.mark.parametrize("arguments", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1.5, 1, 1)])
def test_lengths_must_be_whole_and_positive(arguments):
    with pytest.raises(ConfigError, match="whole number >= 1"):
        cumulative_memory(*arguments)


def test_mean_over_uniform_lengths_is_exact():
    pairs = [(s, o) for s in range(3, 12) for o in range(2, 6)]
    expected = np.mean([brute_force(s, o, 4) for s, o in pairs])
    assert mean_cumulative_memory_uniform((3, 11), (2, 5), 4) == pytest.approx(expected, rel=1e-14)
    with pytest.raises(ConfigError, match="empty"):
        mean_cumulative_memory_uniform((5, 4), (1, 1), 4)


def test_mean_over_a_table():
    table = RequestTable([0, 1, 2], [5, 8, 1], [2, 3, 9])
    expected = np.mean([brute_force(s, o, 4) for s, o in ((5, 2), (8, 3), (1, 9))])
    assert mean_cumulative_memory(table, 4) == pytest.approx(expected)


@pytest.mark.parametrize(("ratio", "below"), [("1:1", 0.154), ("2:1", 0.205), ("1:2", 0.132)])
def test_output_as_a_multiple_of_the_prompt_gives_less(ratio, below):
    """Section 5.1 says so; these rates are 13 to 21 per cent below the printed ones."""
    (low, high), (_, longest), batch_time, published = RATIOS[ratio]
    prompt = np.arange(low, high + 1)
    output = np.maximum(1, np.rint(prompt * longest / high)).astype(int)
    rate = service_rate(M, batch_time, cumulative_memory(prompt, output, 2048).mean())
    assert 1 - rate / published == pytest.approx(below, abs=0.005)


def test_ratio_one_to_two_needs_half_the_printed_prompts():
    """Section 5.1 prints U(10, 2133) prompts for 1:2 as well: outputs up to 4266, a rate of 0.64 for 2.926."""
    prompt = np.arange(10, 2134)
    rate = service_rate(M, 0.0337, cumulative_memory(prompt, 2 * prompt, 2048).mean())
    assert rate == pytest.approx(0.637, abs=0.005)


def test_batch_time_implied_by_the_rates_at_eight_to_one():
    """Maxima in the ratio 8:1 that sum to 3200: the trimmed means (5 and 10 per cent) are not printed."""
    memory = mean_cumulative_memory_uniform((10, 2844), (1, 356), 2048)
    implied = [implied_batch_time(M, rate, memory) for rate in (4.977, 5.862)]
    np.testing.assert_allclose(implied, [0.0947, 0.0804], rtol=2e-3)
    assert service_rate(M, implied[0], memory) == pytest.approx(4.977)
    # The shortest output hardly matters, the chunk a little: 512 takes less than 1 per cent off.
    assert implied_batch_time(M, 4.977, mean_cumulative_memory_uniform((10, 2844), (5, 356), 512)) == (
        pytest.approx(implied[0], rel=0.02)
    )


def test_stable_undecided_and_overloaded():
    slack = memory_slack(1000, 100)
    assert slack == 0.1
    assert [is_stable(rate, 2.0, slack) for rate in (1.79, 1.81, 2.01)] == [True, False, False]
    assert [is_overloaded(rate, 2.0) for rate in (1.79, 1.81, 2.0, 2.01)] == [False, False, False, True]
    with pytest.raises(ConfigError, match="does not fit"):
        memory_slack(100, 101)


def test_provisioning():
    assert pytest.approx(25.808) == 8 * 3.226  # Table 3, eight GPUs from the rate printed for one
    assert [provision(rate, 3.226) for rate in (3.2, 3.3, 25.808, 25.809)] == [1, 2, 8, 9]
    assert provision(25.808, 3.226, utilisation=0.9) == 9
    # At exactly nμ(1 − δ) the theorem does not hold: one more.
    assert [provision(rate, 2.0, slack=0.1) for rate in (1.79, 1.8, 3.6, 3.59)] == [1, 2, 3, 2]
    assert provision(4.0, 2.0) == 2
    assert provision(4.0, 2.0, slack=0.0) == 3


def test_provisioning_counts_decimals_exactly():
    assert 0.28 / 0.01 > 28  # in floating point
    assert provision(0.28, 0.01) == 28
    assert provision(0.9, 0.1, utilisation=0.3) == 30
    with pytest.raises(ConfigError, match="not both"):
        provision(1.0, 1.0, utilisation=0.5, slack=0.1)
    with pytest.raises(ConfigError, match="utilisation"):
        provision(1.0, 1.0, utilisation=1.1)
    with pytest.raises(ConfigError, match="service"):
        provision(1.0, 0.0)


def test_estimators_cut_the_top_only():
    durations = np.array([1.0] * 14 + [2.0] * 4 + [10.0, 100.0])
    rng = np.random.default_rng(0)
    rng.shuffle(durations)
    assert typical_batch_time(durations) == 1.0
    assert typical_batch_time(durations, "mean") == pytest.approx(132 / 20)
    assert typical_batch_time(durations, "trimmed_5") == pytest.approx(32 / 19)
    assert typical_batch_time(durations, "trimmed_10") == pytest.approx(22 / 18)
    assert typical_batch_time([3.0], "trimmed_10") == 3.0
    for bad, name in (([], "median"), ([np.nan], "mean"), ([1.0], "trimmed_20")):
        with pytest.raises(ConfigError):
            typical_batch_time(bad, name)


def test_batches_of_a_run_without_its_stalls():
    """Requests outgrow the memory and are cleared by coins, some rounds pass without a batch."""
    system = System(
        kv_capacity=9, batch_time=AffineBatchTime(2.0, per_prefill_token=0.5, per_decode_token=1.0)
    )
    table = RequestTable([0] * 3, [1, 3, 2], [4] * 3)
    result = simulate(system, table, "alpha_beta:alpha=0.1", log=True)
    log = result.log
    busy = log["num_prefills"] + log["num_decodes"] > 0
    durations = batch_durations(result)
    assert len(durations) == busy.sum() < len(log)
    np.testing.assert_allclose(durations, (2 + 0.5 * log["prefill_tokens"] + log["num_decodes"])[busy])
    assert typical_batch_time(durations) == np.median(durations)
    with pytest.raises(ConfigError, match="log=True"):
        batch_durations(simulate(system, table, "fcfs"))
