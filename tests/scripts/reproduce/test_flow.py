"""The reproduction of the flow-control paper runs and writes what it prints."""

import json
from dataclasses import replace

import numpy as np

from kvgym.experiments.scenario import load_scenario


def test_quick_run(reproduce, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    reproduce("flow").main(["--quick", "--out", "out"])
    text = capsys.readouterr().out
    for heading in ("known lengths", "unknown lengths", "Drained", "Stopped at the horizon", "50 requests"):
        assert heading in text
    assert "20,300" in text  # arriving work per slot
    assert "16,240" in text  # peak memory with b = (4, 4, 4)
    found = json.loads((tmp_path / "out" / "flow.json").read_text())
    assert set(found) == {"flow-classes", "flow-unknown", "flow-lmsys-10", "flow-lmsys-50"}
    drained = found["flow-classes"]["drained"]["120"]
    assert drained["flow_control_classes:budgets=4/4/4"]["unfinished"] == [0, 0]
    assert drained["flow_control_classes:budgets=4/4/4"]["evictions"] == [0, 0]
    stopped = found["flow-classes"]["stopped at the horizon"]["120"]
    assert all(min(values["unfinished"]) > 0 for values in stopped.values())
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_reading_of_the_horizon_decides_the_order(reproduce):
    """Under overload MC-SF has the least mean latency of what finishes in time, and not of everything."""
    scenario = load_scenario("flow-classes")
    tables = reproduce("papers.flow.synthetic").slotted(scenario, 1000, [0])
    means = {}
    for horizon in (1000.0, np.inf):
        system = replace(scenario.make_system(), horizon=horizon)
        for policy in ("flow_control_classes:budgets=4/4/4", "mc_sf"):
            found = reproduce("papers.flow.runs").run_all(system, tables, [policy], reproduce("harness").HERE)
            means[policy[:5], horizon] = found[policy]["e2e_latency_mean"][0]
    assert means["mc_sf", 1000.0] < means["flow_", 1000.0]
    assert means["mc_sf", np.inf] > means["flow_", np.inf]


def test_a_livelock_is_reported_as_missing_and_never_chosen(reproduce, capsys):
    search = reproduce("papers.flow.search")
    scenario = load_scenario("flow-classes")
    system = replace(scenario.make_system(), stall_limit=search.PATIENCE["4.1"])
    tables = reproduce("papers.flow.synthetic").slotted(scenario, 400, [0])
    policies, plan = (
        ["alpha_greedy:alpha=0.2", "alpha_greedy:alpha=0.8"],
        reproduce("papers.flow.runs").Plan(),
    )
    found = reproduce("papers.flow.runs").run_all(system, tables, policies[:1], plan.where)
    assert np.isnan(found[policies[0]]["e2e_latency_mean"][0])
    chosen = search.choose(system, tables, policies, "α", plan)
    assert chosen == "alpha_greedy:alpha=0.8"
    assert "| – |" in capsys.readouterr().out


def test_scenarios_are_those_of_the_paper():
    known, unknown = (load_scenario(name) for name in ("flow-classes", "flow-unknown"))
    for scenario in (known, unknown):
        table = scenario.make_workload().sample(0)
        assert scenario.kv_capacity == 16_492
        assert [c.rate for c in table.classes] == [5, 5, 5]
        assert set(zip(table.prompt_len.tolist(), table.output_len.tolist(), strict=True)) == {
            (10, 20),
            (10, 40),
            (10, 60),
        }
    table = unknown.make_workload().sample(0)
    assert table.predicted_output_len is None
    assert (set(table.predicted_low.tolist()), set(table.predicted_high.tolist())) == ({20}, {60})
    for rate in (10, 50):
        scenario = load_scenario(f"flow-lmsys-{rate}")
        assert scenario.make_workload().mean_rate == rate
        assert scenario.make_system().kv_capacity == 16_492
