"""The reproduction of the flow-control paper runs and writes what it prints."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvgym.experiments.scenario import load_scenario

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "reproduce" / "flow.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("reproduce_flow", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["reproduce_flow"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["reproduce_flow"]


def test_quick_run(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script.main(["--quick", "--out", "out"])
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


def test_reading_of_the_horizon_decides_the_order(script):
    """Under overload MC-SF has the least mean latency of what finishes in time, and not of everything."""
    scenario = load_scenario("flow-classes")
    tables = script.slotted(scenario, 1000, [0])
    means = {}
    for horizon in (1000.0, np.inf):
        system = replace(scenario.make_system(), horizon=horizon)
        for policy in ("flow_control_classes:budgets=4/4/4", "mc_sf"):
            means[policy[:5], horizon] = script.run(system, tables, policy)["e2e_latency_mean"][0]
    assert means["mc_sf", 1000.0] < means["flow_", 1000.0]
    assert means["mc_sf", np.inf] > means["flow_", np.inf]


def test_a_livelock_is_reported_as_missing_and_never_chosen(script, capsys):
    scenario = load_scenario("flow-classes")
    system = replace(scenario.make_system(), stall_limit=script.PATIENCE["4.1"])
    tables = script.slotted(scenario, 400, [0])
    assert np.isnan(script.run(system, tables, "alpha_greedy:alpha=0.2")["e2e_latency_mean"][0])
    chosen = script.choose(system, tables, ["alpha_greedy:alpha=0.2", "alpha_greedy:alpha=0.8"], "α")
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
