"""The script that reproduces the SLAI paper's figures: it runs, and what it derives is right."""

import numpy as np
import polars as pl
import pytest

from kvgym import simulate
from kvgym.experiments.scenario import load_scenario

pytest.importorskip("matplotlib")


@pytest.fixture
def small_plan(reproduce):
    return reproduce("papers.slai.setting").Plan(rates=(0.5, 3.0), seeds=2, duration=60.0, warm_up=5.0)


def test_quick_run_writes_every_file(reproduce, tmp_path, capsys):
    setting = reproduce("papers.slai.setting")
    reproduce("slai").main(["--quick", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert printed.strip() == (tmp_path / "tables.md").read_text().strip()
    assert (tmp_path / "slai.png").stat().st_size < 150_000
    assert (tmp_path / "config.json").exists()
    runs = pl.read_csv(tmp_path / "runs.csv")
    plan = setting.QUICK
    policies = sum(len(load_scenario(name).policies) for name in setting.SCENARIOS)
    assert len(runs) == policies * len(plan.rates) * plan.seeds
    assert set(runs["policy"]) == set(setting.NAMES)
    assert (runs["ttft_median"] > 0).all()
    expected = 3 * len(plan.overheads) * len(plan.sensitivity_rates) * plan.sensitivity_seeds
    assert len(pl.read_csv(tmp_path / "sensitivity.csv")) == expected


@pytest.mark.parametrize("policy", ["sarathi", "vllm", "slai:low_offset=5"])
def test_gaps_by_request_are_those_of_the_simulator(reproduce, small_plan, policy):
    token_gaps = reproduce("papers.slai.gaps").token_gaps
    measurements = reproduce("papers.slai.measurements")
    data = measurements.Measurements(load_scenario("slai-5"), [], (), 0, small_plan)
    table = data.sample(4.0, 0)
    owner, gap = token_gaps(data.system, table, policy, (0.0, np.inf))
    result = simulate(data.system, table, policy)
    assert len(gap) == result.gap_counts.sum() == table.output_len.sum()
    largest = np.zeros(len(table))
    np.maximum.at(largest, owner, gap)
    assert largest == pytest.approx(result.requests["max_token_gap"])
    inside, _ = token_gaps(data.system, table, policy, (20.0, 30.0))
    assert 0 < len(inside) < len(owner)


def test_rate_at_a_bound_is_interpolated_at_the_first_crossing(reproduce, small_plan):
    measurements = reproduce("papers.slai.measurements")
    data = measurements.Measurements(load_scenario("slai-5"), ["sarathi"], (0.5, 3.0), 2, small_plan)
    low, high = (data.values("sarathi", rate, "ttft_median") for rate in (0.5, 3.0))
    assert (low < high).all()
    found = data.rate_at("sarathi", 0.5 * (low[0] + high[0]))
    assert found[0] == pytest.approx(1.75)
    assert data.at("sarathi", found, "ttft_median")[0] == pytest.approx(0.5 * (low[0] + high[0]))
    assert np.isnan(data.rate_at("sarathi", 1e9)).all()


def test_scenarios_are_the_papers():
    for name, share in (("slai-5", 0.05), ("slai-50", 0.5), ("slai-95", 0.95)):
        scenario = load_scenario(name)
        system = scenario.make_system()
        assert system.first_token == "uncounted"
        assert system.progress_on_evict == "recompute"
        table = scenario.make_workload().sample(0)
        assert table.prompt_len.max() + 1 <= (table.prompt_len + table.output_len).max() <= 8192
        assert (table.priority == 1).mean() == pytest.approx(share, abs=0.03)
        assert set(np.unique(table.tbt_slo)) == {0.1, 0.5}


def test_fullest_batch_takes_the_strict_objective():
    from kvgym.batch_time.memory import kv_capacity
    from kvgym.batch_time.shapes import GPU

    scenario = load_scenario("slai-5")
    system = scenario.make_system()
    gpu = GPU.model_validate(scenario.batch_time["gpu"])
    assert system.kv_capacity == kv_capacity(gpu, scenario.batch_time["model"])
    table = scenario.make_workload().sample(0)
    context = (table.prompt_len + table.output_len / 2) @ table.output_len / table.output_len.sum()
    decodes = int(system.kv_capacity / context)
    chunk = 512 - decodes
    fullest = system.batch_time(
        num_prefills=1,
        prefill_tokens=chunk,
        prefill_squares=chunk * chunk,
        num_decodes=decodes,
        decode_context=system.kv_capacity,
    )
    assert decodes == 82
    assert fullest == pytest.approx(0.1, abs=5e-4)
