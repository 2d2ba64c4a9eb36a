"""The stability experiments: printed figures, queues, batches, estimates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.experiments.scenario import load_scenario


@pytest.fixture(scope="module")
def setting(reproduce):
    return reproduce("papers.stab.setting")


def test_printed_rates_follow_within_two_per_cent(setting):
    for name, (batch_time, printed, _) in setting.PRINTED.items():
        for chunk in (128, 256, 512, 4096):
            assert setting.rate_of(name, batch_time, chunk) == pytest.approx(printed, rel=0.02)
    assert 8 * setting.PRINTED["stab-1-1"][1] == pytest.approx(setting.PRINTED_8_GPUS[0], abs=5e-4)


def test_outputs_tied_to_prompts_do_not_give_the_printed_rates(reproduce, setting):
    tied_rate = reproduce("papers.stab.equation").tied_rate
    # 1:1, whole prompts: g = s + s^2 + s(s + 1)/2 = 1.5 (s^2 + s), s on 10 … 1600.
    lengths = np.arange(10, 1601)
    expected = 131_000 / (0.0372 * 1.5 * (lengths**2 + lengths).mean())
    assert tied_rate("stab-1-1", 4096) == pytest.approx(expected)
    assert expected < 0.9 * setting.PRINTED["stab-1-1"][1]


def test_arithmetic_on_printed_figures_is_not_called_reproduced(reproduce):
    harness = reproduce("harness")
    found = reproduce("papers.stab.equation").run(harness.Scale())
    computed = [row.claim for row in found.findings if row.verdict is harness.Verdict.COMPUTED]
    assert computed == [
        "eight workers: 8 μ",
        "gaps of the printed rates (Tables 1 to 4)",
        "μ at 8:1 (Table 4)",
        "the slack δ of Theorem 2",
    ]


def test_scenarios_carry_the_printed_batch_times(setting):
    for name, (batch_time, _, _) in setting.PRINTED.items():
        system = load_scenario(name).make_system()
        assert system.batch_time(num_decodes=100, decode_context=100_000) == batch_time
        assert (system.kv_capacity, system.first_token, system.progress_on_evict) == (
            setting.M,
            "uncounted",
            "kept",
        )
    assert len(load_scenario("stab-8-gpus").make_system().all_workers) == 8
    assert len(setting.slotted("stab-1-1", 8).all_workers) == len(setting.calibrated(8).all_workers) == 8


@pytest.mark.parametrize("name", ["stab-1-1", "stab-2-1", "stab-1-2", "stab-4-1", "stab-8-1"])
def test_lengths_of_every_ratio(setting, name):
    (low, high), (least, most) = setting.bounds_of(load_scenario(name).make_workload())
    prompts, outputs = map(int, name.split("-")[1:])
    assert high + most == pytest.approx(setting.LONGEST, abs=1)
    assert high / most == pytest.approx(prompts / outputs, rel=0.01)
    assert low == 10
    assert least == max(1, 10 * outputs // prompts) or outputs > prompts


def test_waiting_work_counts_what_has_arrived_and_not_started(reproduce, setting):
    waiting_work = reproduce("papers.stab.queues").waiting_work
    result = setting.run_at("stab-1-1", 6.0, 80, 3, to_the_end=False)
    arrival, start = result.table.arrival_time, result.requests["start_time"]
    work = np.arange(80.0)
    times = np.linspace(0, arrival[-1], 7)
    expected = [((arrival <= t) & ~(start <= t)) for t in times]
    np.testing.assert_array_equal(waiting_work(result, times), [e.sum() for e in expected])
    np.testing.assert_array_equal(waiting_work(result, times, work), [work[e].sum() for e in expected])


def test_queues_above_and_below_the_rate_are_distinguished(reproduce, setting):
    queues = reproduce("papers.stab.queues")
    low, high = (queues.play(queues.QueueRun("stab-1-1", rate, 1500, 0)) for rate in (1.0, 20.0))
    assert low.figures["max"] <= 3
    assert low.figures["up to 5"] == 1
    assert abs(low.figures["slope"]) < 0.01
    assert np.isnan(low.figures["below"]) or low.figures["below"] == 1
    assert high.figures["slope"] > 10
    assert high.figures["r2"] > 0.95
    assert len(high.times) == len(high.waiting) == queues.POINTS
    assert high.waiting[-1] == max(high.waiting) > 1000


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=30))
def test_alike_is_the_largest_group_within_a_band(reproduce_batches, durations):
    batches = np.sort(np.asarray(durations))
    best = max(sum(a <= b <= a * 1.1 for b in batches) for a in batches)
    assert reproduce_batches.alike(batches, 0.1) == pytest.approx(best / len(batches))


@pytest.fixture(scope="module")
def reproduce_batches(reproduce):
    return reproduce("papers.stab.batch_times")


def test_alike_and_distance_by_hand(reproduce_batches):
    # 10, 10.5 and 11 are within 10 % of 10; 12 and 20 are not.
    assert reproduce_batches.alike(np.array([10, 10.5, 11, 12, 20])) == pytest.approx(0.6)
    one, other = np.array([1.0, 2.0, 3.0, 4.0]), np.array([3.0, 4.0, 5.0, 6.0])
    assert reproduce_batches.distance(one, other) == 0.5  # at 2: 2 of 4 against none
    assert reproduce_batches.distance(one, one) == 0


def test_waits_of_an_idle_and_of_a_flooded_worker(reproduce, setting):
    rates = reproduce("papers.stab.rates")
    idle, flooded = (rates.play_waits(rates.WaitRun(rate, 600, 0)) for rate in (0.5, 50.0))
    assert idle.later == 0
    assert idle.quantiles[-1] <= setting.BATCH_TIME + 1e-4
    assert flooded.later > 0.7
    assert flooded.quantiles == sorted(flooded.quantiles)
    assert 0 < flooded.bend <= 1


def test_measured_rate_counts_requests_that_finish_between_the_margins(reproduce, setting):
    measured = reproduce("papers.stab.measured")
    result = setting.run_at("stab-1-1", 2.0, 200, 0, engine="calibrated")
    arrival, finish = result.table.arrival_time, result.requests["finish_time"]
    start, end = arrival[50], arrival[150]
    count = sum(start <= f < end for f in finish)
    assert measured.measured_rate(result, 50) == pytest.approx(count / (end - start))
    assert 0 < measured.kv_use(result) < 1


def test_started_requests_continue_under_the_papers_rule(reproduce):
    theorems = reproduce("papers.stab.theorems")
    pauses = {
        rule: theorems.play_pause(theorems.PauseRun(policy, 3000, 0))
        for rule, policy in theorems.RULES.items()
    }
    assert pauses["SJF by work alone"]["pause"] > 5 * pauses["SJF"]["pause"]
    assert pauses["SJF"]["pause"] < 0.1 * pauses["SJF"]["slots"]
