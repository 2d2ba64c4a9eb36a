"""Traces, targets and windows in scenarios: relative paths, and options."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from kvgym.errors import ConfigError, TraceFormatError
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.comparison import compare
from kvgym.experiments.load.loads import Load
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.studies.sweeping.fields import set_fields
from kvgym.studies.sweeping.plan import load_plan
from kvgym.studies.tuning.tune import tune

ROWS = "when,prompt_tokens,completion_tokens\n" + "".join(f"{k},{3 + k},2\n" for k in range(8))
UNIT = {"summary": "slots", "batch_time": {"kind": "unit"}, "kv_capacity": 100}
TRACE = {"trace": "data/log.csv", "columns": {"arrival": "when"}, "time_unit": "s"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder other than the working directory, with a trace in a subfolder."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "log.csv").write_text(ROWS)
    return tmp_path


def written(folder: Path, **fields: object) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({**UNIT, "workload": TRACE, **fields}))
    return path


def test_the_path_is_relative_to_the_folder_of_the_file(folder: Path) -> None:
    scenario = load_scenario(written(folder))
    workload = scenario.make_workload()
    assert workload.sample(0).arrival_time.tolist() == list(range(8))
    assert workload.spec.name == "log.csv"
    assert scenario.replays
    assert scenario.seeds == 1
    assert load_scenario(written(folder, seeds=3)).seeds == 3
    drawn = {**TRACE, "mode": "resample", "arrivals": {"kind": "poisson", "rate": 1}, "num_requests": 5}
    assert load_scenario(written(folder, workload=drawn)).seeds == 5
    absolute = {**TRACE, "trace": str(folder / "data" / "log.csv")}
    assert load_scenario(written(folder, workload=absolute)).make_workload().sample(0).prompt_len[0] == 3


def test_short_and_long_forms_are_the_same(folder: Path) -> None:
    (folder / "own.csv").write_text("arrival_time,prompt_len,output_len\n0,3,2\n1,4,2\n")
    long = {"name": "own.csv", "lengths": {"kind": "trace", "path": "own.csv"}}
    loaded = [load_scenario(written(folder, workload=w)) for w in ("own.csv", {"trace": "own.csv"}, long)]
    assert loaded[0] == loaded[1] == loaded[2]
    again = Scenario.model_validate_json(loaded[0].model_dump_json())
    assert again.make_workload().sample(0).prompt_len.tolist() == [3, 4]


def test_rates_and_slices(folder: Path) -> None:
    slices = {"rate_scale": 2, "start": 2, "end": 7, "num_requests": 3}
    table = load_scenario(written(folder, workload={**TRACE, **slices})).make_workload().sample(0)
    assert table.arrival_time.tolist() == [0, 0.5, 1]
    assert table.prompt_len.tolist() == [5, 6, 7]
    base = load_scenario(written(folder))
    for changed in (
        build_scenario(base, rate_scale=4),
        set_fields(base, {"rate_scale": 4}),
        set_fields(base, {"workload.lengths.rate_scale": 4}),
    ):
        assert changed.make_workload().sample(0).arrival_time.tolist() == [k / 4 for k in range(8)]
    assert len(build_scenario(base, num_requests=2).make_workload().sample(0)) == 2
    assert Load(base).at(2.0).make_workload().mean_rate == pytest.approx(2.0)


def test_trace_options_apply_to_the_trace_of_a_scenario(folder: Path) -> None:
    untold = written(folder, workload={"trace": "data/log.csv", "columns": {"output": "completion_tokens"}})
    with pytest.raises(TraceFormatError) as caught:
        load_scenario(untold).make_workload()
    (advice,) = re.findall(r'Name them: --columns "(.*)"', str(caught.value))
    (field,) = re.findall(r"columns: {.*}", caught.value.details)
    named = build_scenario(str(untold), columns=advice, time_unit="ms")
    assert named.make_workload().sample(0).arrival_time.tolist() == [k / 1000 for k in range(8)]
    assert named.workload["lengths"]["path"].endswith("log.csv")
    part = build_scenario(str(untold), columns="arrival=when")  # the others as the scenario has them
    assert part.workload["lengths"]["columns"] == {"output": "completion_tokens", "arrival": "when"}
    fields = yaml.safe_load(field)
    by_hand = load_scenario(written(folder, workload={"trace": "data/log.csv", **fields}))
    assert by_hand.make_workload().sample(0).arrival_time.tolist() == list(range(8))
    with pytest.raises(ConfigError, match="format azure has fixed ones"):
        build_scenario(str(untold), trace_format="azure")
    for other in (
        {"columns": "arrival=when"},
        {"time_unit": "ms"},
        {"trace_format": "azure"},
        {"rate_scale": 2},
    ):
        with pytest.raises(
            ConfigError,
            match=f"^{next(iter(other))}: only for traces, and this workload is not a trace; give",
        ):
            build_scenario("a100-llama3-8b", **other)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"workload": {**TRACE, "preset": "lmsys"}}, "trace and preset exclude each other"),
        ({"workload": {**TRACE, "lengths": {}}}, "trace and lengths exclude each other"),
        ({"workload": {**TRACE, "trace": "log.csv"}}, "log.csv: no such file"),
        ({"workload": {**TRACE, "colums": {}}}, "colums: there is no such field"),
        ({"workload": {**TRACE, "rate": 2}}, "change its speed with rate_scale (--set rate_scale=2), not with rate"),
        ({"workload": {**TRACE, "ttft_slo": 0}}, "ttft_slo: Input should be greater than 0"),
        ({"warm_up": "soon"}, "warm_up = 'soon': expected seconds"),
        ({"warm_up": 7.5}, "leave nothing to measure of 8 requests"),
    ],
)  # fmt: skip
def test_mistakes(folder: Path, changes: dict[str, object], says: str) -> None:
    with pytest.raises((ConfigError, TraceFormatError)) as caught:
        compare(written(folder, **changes), ["fcfs"])
    assert says in str(caught.value)


def test_plans_find_the_trace_of_their_scenario(folder: Path) -> None:
    plan = {"fields": {"rate_scale": [1, 2]}, "scenario": {**UNIT, "workload": TRACE}, "policies": ["fcfs"]}
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    scenario = load_plan(folder / "plan.yaml").make_scenario()
    assert len(scenario.make_workload().sample(0)) == 8


def test_targets_of_all_requests(folder: Path) -> None:
    base = load_scenario(written(folder))
    assert math.isnan(compare(base, ["fcfs"]).values("fcfs", "goodput")[0])
    assert compare(base, ["fcfs"]).summary()["fcfs"]["slo_attainment"]["value"] is None
    # Slots: the first token is there after one, the second after two.
    met = compare(build_scenario(base, ttft_slo=1, tbt_slo=1), ["fcfs"])
    assert met.values("fcfs", "slo_attainment").tolist() == [1]
    missed = compare(build_scenario(base, ttft_slo=0.5), ["fcfs"])
    assert missed.values("fcfs", "slo_attainment").tolist() == [0]
    classes = (
        build_scenario(load_scenario("slai-50"), num_requests=20, tbt_slo=0.25).make_workload().sample(0)
    )
    np.testing.assert_array_equal(classes.tbt_slo, np.full(20, 0.25))
    with pytest.raises(ConfigError, match="ttft_slo = -1: expected seconds > 0"):
        build_scenario(base, ttft_slo=-1)
    with pytest.raises(
        ConfigError, match="goodput counts requests within their own SLOs, and these have none"
    ):
        tune("alpha_greedy", base, metric="goodput", seeds=1)


def test_a_window_in_a_scenario(folder: Path) -> None:
    result = compare(written(folder, warm_up="2r", cool_down=1), ["fcfs"])
    assert result.values("fcfs", "request_throughput").tolist() == [1]
    assert any("Measured from 2.00 s to 6.00 s: latencies of the 4 of 8" in note for note in result.notes)
    assert result.values("fcfs", "finished").tolist() == [8]
    windowed = load_scenario(written(folder, warm_up=2.0))
    load = Load(windowed)
    assert load.scenario.window is None
    assert any("warm_up and cool_down are ignored" in note for note in load.notes)
    with pytest.raises(ConfigError, match="bounds are on means over whole runs"):
        compare(windowed, ["fcfs"], bound=True)
    point = {"warm_up": "3r", "cool_down": 0}
    assert set_fields(load_scenario(written(folder)), point).window is not None
