"""The WAIT experiments: their parts, and that its scenarios match the paper."""

import numpy as np
import pytest

from kvgym.batch_time import make_batch_time
from kvgym.batch_time.deployments.load import load_hardware
from kvgym.experiments.scenario import load_scenario
from kvgym.theory.fluid import batch_memory, fluid_equilibrium, full_batch_time
from kvgym.workloads.classes import ClassStatistics


def test_example_2_as_printed(reproduce):
    found = reproduce("papers.wait.examples").printed_example(2_000)
    # WAIT keeps the 4 completions of the equilibrium but for the start, FCFS falls a quarter short of them.
    assert found["wait"][0] == pytest.approx(4, rel=0.01)
    assert found["wait"][1] == 0
    assert found["fcfs"] == pytest.approx((3, 3), rel=0.01)


def test_theorem_1_in_a_short_run(reproduce):
    theorem = reproduce("papers.wait.theorem_1")
    for name in theorem.INSTANCES:
        lost = {
            drift: np.mean([theorem.one((name, drift, 400, s))[0] for s in range(24)])
            for drift in (False, True)
        }
        assert 0 < lost[True] < lost[False] < theorem.bound_of(name, False, 400)
        assert lost[True] < theorem.bound_of(name, True, 400)


def test_theorem_2_in_two_short_runs(reproduce):
    """What is lost against the arrivals is in progress at the end, so that twice the time halves the gap."""
    theorem = reproduce("papers.wait.theorem_2")
    found = {
        t: np.mean([theorem.one((90_000, (7, 7, 7, 5), t, s)) for s in range(5)], axis=0) for t in (50, 100)
    }
    assert found[50][0] == found[100][0] == 0  # evictions
    assert found[50][2] / found[100][2] == pytest.approx(2, rel=0.05)
    assert theorem.slope_of((50, 100), np.array([found[t][2] for t in found])) == pytest.approx(-1, abs=0.06)
    for latency, longest, first in (found[t][3:] for t in found):
        assert first < latency < longest


def test_ten_times_the_requests_on_a_gpu_five_times_as_fast_are_twice_the_load(reproduce):
    segments = reproduce("papers.wait.segments")
    found = segments.terms(segments.Panel(50, 1, 200, 0.1))
    assert min(found, key=lambda count: found[count][3]) == 5
    assert 1 not in found  # no thresholds exist
    for batch, queues, buffer, total in found.values():
        assert total == pytest.approx(batch + queues + buffer)
        assert batch > max(queues, buffer)
    faster = segments.terms(segments.Panel(500, 5, 200, 0.1))
    assert min(faster, key=lambda count: faster[count][3]) == 10
    assert min(faster) > min(found)


def test_rates_that_change_violate_15_by_mean_rates_only(reproduce):
    varying = reproduce("papers.wait.varying")
    from kvgym.theory.groups import group_batch_time, group_thresholds
    from kvgym.theory.time_varying import time_varying_condition
    from kvgym.workloads.workload import make_workload

    classes = make_workload(varying.workload(180.0, 1.0)).class_statistics
    group, time = varying.group_of(classes), make_batch_time(varying.AFFINE)
    rates = [c.profile.rates for c in classes]
    for peak in (False, True):
        n = group_thresholds([group], time, peak=peak)
        window = group_batch_time([group], n, time)
        assert time_varying_condition(n, classes[0].profile.times, rates, window) == peak


def test_the_affine_model_is_the_fit(reproduce):
    setting = reproduce("papers.wait.setting")
    hardware = load_hardware(setting.HARDWARE)
    fit_affine = reproduce("papers.wait.equilibrium").fit_affine
    d0, d1, *_ = fit_affine(hardware.batch_time(engine=setting.ENGINE), hardware.kv_capacity)
    assert setting.AFFINE["constant"] == pytest.approx(d0, rel=1e-3)
    assert setting.AFFINE["per_context_token"] == pytest.approx(d1, rel=1e-3)


def test_rates_invert_the_equilibrium(reproduce):
    d0, d1 = 0.01, 2e-7
    model = make_batch_time({"kind": "affine", "constant": d0, "per_context_token": d1})
    shares = (("a", 3.0, 10.0, 20.0), ("b", 1.0, 10.0, 50.0))
    rate = reproduce("papers.wait.equilibrium").rate_at([ClassStatistics(*c) for c in shares], 50_000, model)
    classes = [ClassStatistics(name, r * rate / 4, s, o) for name, r, s, o in shares]
    # Batches count whole tokens, so that the sum is rounded up by less than one in 50,000.
    assert fluid_equilibrium(classes, d0, d1).memory == pytest.approx(50_000, rel=1e-4)


def test_the_least_equilibrium_is_one_where_an_empty_batch_takes_no_time(reproduce):
    least_equilibrium = reproduce("papers.wait.equilibrium").least_equilibrium
    setting = reproduce("papers.wait.setting")
    classes = [ClassStatistics("a", 3.0, 10.0, 20.0), ClassStatistics("b", 1.0, 10.0, 50.0)]
    d0, d1 = 0.01, 2e-7
    affine = make_batch_time({"kind": "affine", "constant": d0, "per_context_token": d1})
    assert least_equilibrium(classes, 4.0, affine) == pytest.approx(
        fluid_equilibrium(classes, d0, d1).memory, rel=1e-4
    )
    measured = load_hardware(setting.HARDWARE).batch_time(engine=setting.ENGINE)
    assert full_batch_time(classes, [0, 0], measured) == 0
    memory = least_equilibrium(classes, 40.0, measured)
    n = memory / batch_memory(classes, [0.75, 0.25])
    assert n > 0
    assert n == pytest.approx(40 * full_batch_time(classes, n * np.array([0.75, 0.25]), measured))


def test_the_affine_fit_finds_an_affine_model(reproduce):
    fit_affine = reproduce("papers.wait.equilibrium").fit_affine
    model = make_batch_time({"kind": "affine", "constant": 0.02, "per_context_token": 3e-7})
    d0, d1, median, worst, points = fit_affine(model, 117_648)
    assert (d0, d1) == pytest.approx((0.02, 3e-7), rel=1e-9)
    assert median <= worst < 1e-9
    assert points > 50
    capacity = load_hardware(reproduce("papers.wait.setting").HARDWARE).kv_capacity
    assert fit_affine(model, capacity // 100)[4] < points


@pytest.mark.parametrize(
    ("name", "prompts", "outputs", "rates"),
    [
        ("wait-low", 10, (10, 20), (1000, 1000)),
        ("wait-high", 20, (100, 200, 300), (6000, 4000, 2000)),
        ("wait-nested", 10, (20, 40, 80, 160), (20, 40, 80, 160)),
        ("wait-bins-low", 60, range(50, 501, 50), 55 / 66 * np.array((23, 11, 8, 7, 6, 4, 3, 2, 1, 1))),
        ("wait-bins-high", 60, range(50, 501, 50), 550 / 66 * np.array((23, 11, 8, 7, 6, 4, 3, 2, 1, 1))),
    ],
)
def test_scenarios_are_the_papers(name, prompts, outputs, rates):
    scenario = load_scenario(name)
    classes = scenario.make_workload().class_statistics
    assert {c.prompt_len for c in classes} == {prompts}
    assert [c.output_len for c in classes] == list(outputs)
    assert [c.rate for c in classes] == pytest.approx(list(rates))
    system = scenario.make_system()
    assert (system.kv_capacity, system.first_token) == (117_648, "decode")
    assert (system.progress_on_evict, system.requeue) == ("lost", "back")


def test_lmsys_has_fifty_thousand_requests_and_the_printed_thresholds():
    scenario = load_scenario("wait-lmsys")
    assert len(scenario.make_workload().sample(0)) == 50_000
    printed = "segments=50/100/150/200/250/300/350/400/450/500,thresholds=66/43/32/24/17/11/7/4/2/1"
    assert f"nested_wait:{printed}" in scenario.policies
