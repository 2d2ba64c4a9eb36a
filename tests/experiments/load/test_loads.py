"""Scenarios at other rates: the same requests at another speed."""

import numpy as np
import pytest

from kvgym.errors import ConfigError
from kvgym.experiments.load.loads import Load
from kvgym.experiments.scenario import load_scenario

LMSYS = load_scenario("a100-llama2-70b")


def replay(path, **lengths):
    source = {"name": "t", "lengths": {"kind": "trace", "path": str(path), **lengths}}
    return LMSYS.override(hardware="llama3-8b-a100-tp1", workload=source)


def sample(scenario, seed=0):
    return scenario.make_workload().sample(seed)


def test_rates_share_their_requests():
    load = Load(LMSYS, num_requests=50)
    slow, fast = sample(load.at(5.0), 3), sample(load.at(20.0), 3)
    assert load.rate == 50
    assert len(slow) == 50
    assert np.allclose(slow.arrival_time, 4 * fast.arrival_time)
    assert np.array_equal(slow.prompt_len, fast.prompt_len)
    assert sample(load.scenario, 3).arrival_time == pytest.approx(slow.arrival_time / 10)


def test_a_trace_is_compressed(azure_trace):
    load = Load(replay(azure_trace, rate_scale=2.0))
    whole = sample(load.scenario)
    assert load.replays
    assert load.num_requests == len(whole) == 200
    assert load.rate == pytest.approx(199 / (whole.arrival_time[-1] - whole.arrival_time[0]))
    twice = sample(load.at(2 * load.rate))
    assert np.allclose(twice.arrival_time, whole.arrival_time / 2)
    first = Load(replay(azure_trace), num_requests=100)
    assert len(sample(first.scenario)) == 100


def test_parts_of_a_trace_make_up_the_whole(azure_trace):
    load = Load(replay(azure_trace, rate_scale=2.0))
    whole = sample(load.scenario)
    span = whole.arrival_time[-1] - whole.arrival_time[0]
    parts = [sample(load.between(*ends).scenario) for ends in ((0, span / 3), (span / 3, None))]
    assert np.array_equal(np.concatenate([p.prompt_len for p in parts]), whole.prompt_len)
    assert parts[1].arrival_time[0] < span / 3
    rate = load.between(0, span / 3).rate
    assert rate == pytest.approx((len(parts[0]) - 1) / np.ptp(parts[0].arrival_time))


def test_a_part_of_the_first_requests_ends_with_them(azure_trace):
    load = Load(replay(azure_trace), num_requests=100)
    whole = sample(load.scenario)
    half = (whole.arrival_time[-1] - whole.arrival_time[0]) / 2
    assert len(sample(load.between(0, half).scenario)) + len(sample(load.between(half, None).scenario)) == 100


def test_steady_loads_have_no_variation_over_time(azure_trace):
    load = Load(replay(azure_trace))
    steady = load.steady()
    assert not steady.replays
    assert steady.rate == pytest.approx(load.rate)
    assert steady.num_requests == 200
    drawn, known = sample(steady.scenario), sample(load.scenario)
    assert set(zip(drawn.prompt_len, drawn.output_len, strict=True)) <= set(
        zip(known.prompt_len, known.output_len, strict=True)
    )
    other = Load(LMSYS)
    assert other.steady() is other


@pytest.mark.parametrize("name", ["a100-llama2-70b", "wait-low", "slai-50", "flow-classes", "mc-sf-model-2"])
def test_at_once(name):
    load = Load(load_scenario(name), num_requests=60)
    table = sample(load.at_once())
    assert len(table) == 60
    assert not table.arrival_time.any()
    assert load.at_once().workers == 1


def test_slos_of_every_request():
    plain = sample(Load(LMSYS, num_requests=30, request_slos={"ttft": 1.0, "tbt": 0.2}).scenario)
    assert (plain.ttft_slo == 1).all()
    assert (plain.tbt_slo == 0.2).all()
    before = sample(Load(LMSYS, num_requests=30).scenario)
    assert np.array_equal(plain.output_len, before.output_len)
    classes = sample(Load(load_scenario("slai-50"), num_requests=30, request_slos={"tbt": 0.3}).scenario)
    assert (classes.tbt_slo == 0.3).all()
    assert len(set(classes.class_id)) == 2
    with pytest.raises(ConfigError, match="SLO e2e=1: expected ttft or tbt"):
        Load(LMSYS, request_slos={"e2e": 1})
    with pytest.raises(ConfigError, match="seconds > 0"):
        Load(LMSYS, request_slos={"ttft": 0})


def test_durations_and_horizons_become_numbers_of_requests():
    load = Load(load_scenario("slai-50"))
    assert load.num_requests == 2100
    assert len(sample(load.at(5.0))) == 2100
    horizon = LMSYS.override(system={"horizon": 10.0})
    load = Load(horizon)
    assert load.scenario.system.horizon is None
    assert load.notes == ("Runs continue until all requests have finished, beyond the horizon of 10 s.",)


def test_workloads_without_a_rate_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no arrival rate to change"):
        Load(load_scenario("mc-sf-model-1"))
    path = tmp_path / "same.csv"
    path.write_text("arrival_time,prompt_len,output_len\n0,5,6\n0,5,6\n")
    with pytest.raises(ConfigError, match="no arrival rate to change"):
        Load(replay(path))
