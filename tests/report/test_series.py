"""The arrays behind the plots, on runs by hand."""

import numpy as np
import pytest

from kvgym.batch_time import UnitBatchTime
from kvgym.errors import ConfigError
from kvgym.policies.runner import simulate
from kvgym.report import series
from kvgym.simulator.system import System
from kvgym.simulator.tables import ITERATION
from kvgym.workloads.table import RequestTable


def run(arrival, prompt, output, capacity=20, log=True, **system):
    table = RequestTable(arrival, prompt, output, predicted_output_len=output)
    return simulate(
        System(kv_capacity=capacity, batch_time=UnitBatchTime(), **system), table, "fcfs", log=log
    )


def test_kv_memory_is_a_step_function_that_is_empty_while_idle():
    # Two requests of 2 + 3 tokens hold 3, 4, 5 tokens each; a third comes at 10 s.
    result = run([0, 0, 10], [2, 2, 4], [3, 3, 1])
    times, values = series.step_series(result.log, "kv_tokens")
    assert times.tolist() == [0, 1, 2, 3, 10, 11]
    assert values.tolist() == [6, 8, 10, 0, 5, 0]


def test_waiting_queue_counts_after_admission():
    # Only one request of 2 + 3 tokens fits at a time.
    result = run([0, 0, 0], [2, 2, 2], [3, 3, 3], capacity=5)
    times, values = series.step_series(result.log, "num_waiting")
    at = dict(zip(times.tolist(), values.tolist(), strict=True))
    assert times[0] == 0
    assert at[0] == 2
    assert values[-1] == 0
    assert np.all(np.diff(values) <= 0)


def test_workers_are_summed():
    log = np.zeros(3, ITERATION)
    log["worker"] = [0, 1, 0]
    log["start_time"], log["end_time"] = [0, 0.5, 2], [2, 3, 4]
    log["kv_tokens"], log["num_active"], log["num_finished"] = [5, 7, 6], 1, [0, 1, 1]
    times, values = series.step_series(log, "kv_tokens")
    assert times.tolist() == [0, 0.5, 2, 3, 4]
    assert values.tolist() == [5, 12, 13, 6, 0]


def test_an_empty_log_gives_an_empty_series():
    times, values = series.step_series(np.zeros(0, ITERATION), "kv_tokens")
    assert len(times) == len(values) == 0


def test_a_run_without_log_is_refused():
    with pytest.raises(ConfigError, match="log=True"):
        series.iteration_log(run([0], [2], [2], log=False))


def test_thinning_keeps_short_series_and_bounds_long_ones():
    rng = np.random.default_rng(0)
    n = 1_000_000
    times, values = np.cumsum(rng.exponential(size=n)), rng.integers(0, 1000, n).astype(float)
    values[123_456], values[654_321] = 5000, -5
    x, y = series.thin_steps(times, values)
    assert len(x) <= series.MAX_POINTS
    assert len(x) > series.MAX_POINTS // 2
    assert np.all(np.diff(x) > 0)
    index = np.searchsorted(times, x)
    assert np.array_equal(times[index], x)
    assert np.array_equal(values[index], y)
    assert (y.max(), y.min()) == (5000, -5)
    assert (x[0], x[-1], y[-1]) == (times[0], times[-1], values[-1])
    short = series.thin_steps(times[:50], values[:50])
    assert np.array_equal(short[0], times[:50])


def test_thinning_is_exact_across_long_pauses():
    times = np.concatenate((np.linspace(0, 1, 5000), [1000.0]))
    values = np.append(np.tile([1.0, 2.0], 2500), 0.0)
    x, y = series.thin_steps(times, values)
    assert y[np.searchsorted(x, 500.0, side="right") - 1] == values[-2]


def test_latencies_and_their_distribution():
    result = run([0, 0, 10], [2, 2, 4], [3, 3, 1])
    assert series.latencies(result, "e2e_latency").tolist() == [1, 3, 3]
    assert series.latencies(result, "ttft").tolist() == [1, 1, 1]
    x, y = series.distribution(series.latencies(result, "e2e_latency"), 4)
    assert x.tolist() == [1, 3, 3]
    assert y.tolist() == [0.25, 0.5, 0.75]


def test_unfinished_requests_have_no_latency():
    result = run([0, 0, 0], [2, 2, 2], [3, 3, 3], capacity=5, horizon=4.0)
    assert len(series.latencies(result, "e2e_latency")) == 1


def test_long_distributions_are_thinned_from_end_to_end():
    values = np.arange(1_000_000.0)
    x, y = series.distribution(values, len(values))
    assert len(x) <= series.MAX_POINTS
    assert (x[0], x[-1], y[-1]) == (0, 999_999, 1)


def test_rates_conserve_tokens():
    result = run([0, 0, 10], [2, 2, 4], [3, 3, 1])
    edges = np.linspace(0, 11, 8)
    rate = series.rate_bins(result.log["end_time"], result.log["num_output_tokens"], edges)
    assert (rate * np.diff(edges)).sum() == pytest.approx(7)
