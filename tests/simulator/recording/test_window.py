"""The steady part of a run: by hand, and what no window changes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgym import RequestTable, System, compute_metrics, make_batch_time, make_policy, simulate
from kvgym.errors import ConfigError
from kvgym.metrics.catalogue import metric_names
from kvgym.metrics.compute import worker_metrics
from kvgym.simulator.observer import Observer
from kvgym.simulator.recording.window import Window, parse_extent

UNIT = make_batch_time({"kind": "unit"})


def table_of(arrivals, **columns):
    n = len(arrivals)
    return RequestTable(arrivals, [2] * n, columns.pop("output_len", [2] * n), **columns)


def test_by_hand():
    # Rounds of one second. Requests arrive at 0, 2, …, 10 and each runs two rounds alone, done 2 s after it came.
    # The window [4, 8): requests 2 and 3 arrive in it; request 1 finishes at 4, request 2 at 6, and 3 at 8, outside.
    table = table_of([0, 2, 4, 6, 8, 10], ttft_slo=[9, 9, 0.5, 9, 9, 9])
    system = System(kv_capacity=10, batch_time=UNIT)
    result = simulate(system, table, "fcfs", window=Window("2r", 2))
    assert result.window is not None
    assert (result.window.start, result.window.end) == (4, 8)
    m = compute_metrics(result)
    assert m["e2e_latency_mean"] == 2
    assert m["request_throughput"] == 2 / 4  # requests 1 and 2
    assert m["token_throughput"] == 4 / 4
    assert m["goodput"] == 1 / 4  # request 2 misses its target
    assert m["slo_attainment"] == 1 / 2  # of requests 2 and 3
    assert m["generated_token_throughput"] == m["busy_fraction"] == 1
    assert m["processed_token_throughput"] == (4 + 4) / 4
    assert m["kv_utilisation"] == (3 + 4) / 2 / 10
    assert (m["iterations"], m["batch_size"], m["tbt_mean"], m["tbt_max"]) == (4, 1, 1, 1)
    assert int(result.window.closing.gap_counts.sum() - result.window.opening.gap_counts.sum()) == 2
    assert (m["finished"], m["unfinished"], m["makespan"], m["duration"]) == (6, 0, 12, 12)
    assert (m["input_tokens"], m["output_tokens"]) == (12, 12)


def test_nothing_to_do_in_the_window_counts_as_time():
    # One request at 0, one at 100; between them the system is empty.
    table = table_of([0, 100, 200])
    system = System(kv_capacity=10, batch_time=UNIT)
    m = compute_metrics(simulate(system, table, "fcfs", window=Window(50, 50)))
    assert (m["request_throughput"], m["busy_fraction"], m["iterations"]) == (1 / 100, 2 / 100, 2)
    assert m["generated_token_throughput"] == 2 / 100


def test_short_runs_are_not_read_as_capacity():
    # A worker of 4 tokens serves one request (2 + 2) at a time, in two rounds: 0.5 requests per second. One arrives
    # every 0.2 s, for 20 s. The whole run takes 200 s; in the window the rate served is the worker's.
    table = table_of(np.arange(100) * 0.2, output_len=[2] * 99 + [2])
    system = System(kv_capacity=4, batch_time=UNIT)
    result = simulate(system, table, "fcfs", window=Window(4))
    assert compute_metrics(result)["request_throughput"] == pytest.approx(0.5, abs=0.05)
    # Few requests, far apart: the window has their rate, the whole run has the last one's service too.
    few = table_of(np.arange(5) * 10.0)
    whole, part = (compute_metrics(simulate(system, few, "fcfs", window=w)) for w in (None, Window()))
    assert part["request_throughput"] == 4 / 40
    assert whole["request_throughput"] == 5 / 42


@pytest.mark.parametrize(
    ("window", "span"),
    [
        (Window(), (1, 9)),
        (Window(2, 3), (3, 6)),
        (Window("2s", "3 seconds"), (3, 6)),
        (Window("0r", "1r"), (1, 9)),
        (Window("1r", "2 requests"), (3, 6)),
        (Window(warm_up="3r"), (6, 9)),
    ],
)
def test_spans(window, span):
    table = table_of([1, 3, 6, 6, 9])
    assert window.span(table) == span
    assert "5 requests" in window.note(table)


@pytest.mark.parametrize("wrong", ["soon", "-1", -1, "1.5r", "3 min", math.inf, math.nan, True, "", "1e"])
def test_wrong_extents(wrong):
    with pytest.raises(ConfigError, match="expected seconds ≥ 0, as in 30 or 500ms, or requests, as in 200r"):
        Window(wrong)
    with pytest.raises(ConfigError, match="cool_down = "):
        parse_extent(wrong, "cool_down")


@pytest.mark.parametrize("window", [Window(8), Window(cool_down="6r"), Window(4, 4), Window("5r")])
def test_empty_windows(window):
    with pytest.raises(
        ConfigError, match="leave nothing to measure of 5 requests, which arrive between 1 s and 9 s"
    ):
        simulate(System(kv_capacity=10, batch_time=UNIT), table_of([1, 3, 6, 6, 9]), "fcfs", window=window)


def test_a_horizon_before_the_window_closes():
    table = table_of([0, 2, 4, 6, 8, 10])
    system = System(kv_capacity=10, batch_time=UNIT, horizon=6.0)
    m = compute_metrics(simulate(system, table, "fcfs", window=Window(2)))
    assert m["request_throughput"] == 2 / 4  # request 0 at 2 and 1 at 4, not 2 at 6
    late = compute_metrics(simulate(system, table, "fcfs", window=Window(7)))
    assert math.isnan(late["request_throughput"])
    assert late["finished"] == 3


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    ends=st.tuples(st.floats(0, 0.4), st.floats(0, 0.4)),
    workers=st.sampled_from([1, 3]),
    policy=st.sampled_from(["fcfs", "mc_sf"]),
)
def test_a_window_changes_nothing_but_what_is_measured(seed, ends, workers, policy):
    rng = np.random.default_rng(seed)
    n = 60
    table = RequestTable.from_columns(
        arrival_time=np.cumsum(rng.exponential(0.05, n)),
        prompt_len=rng.integers(1, 60, n),
        output_len=(output := rng.integers(1, 40, n)),
        predicted_output_len=output,
    )
    affine = make_batch_time({"kind": "affine", "constant": 0.01, "per_context_token": 1e-4})
    system = System(kv_capacity=300, batch_time=affine)
    system = system.replicate(workers) if workers > 1 else system
    length = float(table.arrival_time[-1] - table.arrival_time[0])
    window = Window(ends[0] * length, ends[1] * length)
    plain, seen = simulate(system, table, policy), simulate(system, table, policy, window=window)
    assert plain.requests.tobytes() == seen.requests.tobytes()
    assert plain.worker.tobytes() == seen.worker.tobytes()
    m = compute_metrics(seen)
    followed = simulate(system, table, policy, window=window, observer=Observer())
    np.testing.assert_equal(compute_metrics(followed), m)
    start, end = window.span(table)
    inside = (table.arrival_time >= start) & (table.arrival_time < end)
    waits = (seen.requests["first_token_time"] - table.arrival_time)[inside]
    assert m["ttft_mean"] == (
        pytest.approx(waits.mean()) if inside.any() else pytest.approx(math.nan, nan_ok=True)
    )
    assert seen.window is not None
    longest = max(seen.requests["max_token_gap"].max(), 0.3)
    for counts, moment in ((seen.window.opening, start), (seen.window.closing, end)):
        assert (counts.clock >= moment - longest).all()
        assert (counts.clock <= moment + 8 * longest).all()
    assert 0 <= m["busy_fraction"] <= 1 + 1e-9
    assert 0 <= m["kv_utilisation"] <= 1 + 1e-9
    assert {row["worker"] for row in worker_metrics(seen)} == set(range(workers))


def test_policies_in_python_are_measured_alike():
    rng = np.random.default_rng(0)
    table = table_of(np.sort(rng.uniform(0, 30, 40)), output_len=rng.integers(1, 9, 40))
    system = System(kv_capacity=40, batch_time=UNIT)
    window = Window(5, "4r")
    compiled = compute_metrics(simulate(system, table, "fcfs", window=window))
    python = compute_metrics(simulate(system, table, InPython(), window=window))
    assert list(compiled) == list(metric_names())
    np.testing.assert_equal(python, compiled)


FCFS = type(make_policy("fcfs"))


class InPython(FCFS):
    """First come, first served, asked from Python."""

    def schedule(self, view):
        return super().schedule(view)
