"""Speculation in scenarios, metrics, exports and reports."""

import math

import numpy as np
import pytest

from kvgym import RequestTable, System, make_batch_time, simulate
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ConfigError
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.describing import titled
from kvgym.experiments.scenario import load_scenario
from kvgym.metrics.compute import compute_metrics
from kvgym.report.caching import draft_use, speculates
from kvgym.report.export.records import iteration_frame
from kvgym.simulator.drafts.settings import Speculation

SPEC = "eagle-chat:depth=2,choose=cost"


def run(speculation):
    rng = np.random.default_rng(0)
    table = RequestTable.from_columns(
        arrival_time=np.sort(rng.uniform(0, 2, 30)),
        prompt_len=rng.integers(1, 20, 30),
        output_len=rng.integers(1, 30, 30),
    )
    model = make_batch_time({"kind": "affine", "constant": 0.01, "per_decode_token": 1e-4})
    system = System(kv_capacity=300, batch_time=model, speculation=speculation)
    return simulate(system, table, "fcfs", log=True, compiled=False)


def test_scenarios_and_options_describe_it():
    plain = load_scenario("rush")
    assert "speculation" not in plain.system.model_dump()
    changed = build_scenario(plain, speculate=SPEC)
    assert titled("a run", changed).endswith(f", speculation {SPEC}")
    assert changed.make_system().speculation == Speculation("eagle-chat", 2, "cost")
    assert build_scenario(changed, speculate="off").make_system().speculation is None
    table = {"acceptance": [0.7], "depth": 2, "choose": "table", "by_batch": [[1, 8, 2]]}
    stated = plain.override(system={**plain.system.model_dump(), "speculation": table})
    assert stated.make_system().speculation.by_batch == ((1, 8, 2),)
    with pytest.raises(ConfigError, match="unknown setting deep"):
        build_scenario(plain, speculate="eagle-chat:deep=2")
    with pytest.raises(ConfigError, match="expected one worker"):
        build_scenario(plain, speculate=SPEC, workers=2).make_system()
    with pytest.raises(ConfigError, match="environments do not have speculation"):
        ServingEnv(action="rank", system={"speculation": SPEC})


def test_metrics_logs_and_reports_have_it():
    result = run(Speculation((0.8, 0.5), 2))
    metrics, worker = compute_metrics(result), result.worker[0]
    drafted, accepted = int(worker["total_drafted"]), int(worker["total_accepted"])
    assert metrics["acceptance_rate"] == accepted / drafted
    assert metrics["wasted_tokens"] == drafted - accepted
    assert metrics["tokens_per_step"] == pytest.approx(1 + accepted / worker["total_decodes"])
    assert 1.5 < metrics["tokens_per_step"] < 2.5
    assert sum(iteration_frame(result)["draft_tokens"]) == drafted
    chart = draft_use({"fcfs": result})
    assert speculates({"fcfs": result})
    depth, rate = (panel.series[0].values["y"] for panel in chart.panels)
    assert 0 < max(depth) <= 2
    assert 0 < max(rate) <= 1
    off = run(None)
    assert math.isnan(compute_metrics(off)["acceptance_rate"])
    assert "draft_tokens" not in iteration_frame(off).columns
    assert not speculates({"fcfs": off})
