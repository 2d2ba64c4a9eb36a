"""Engine overhead: by name from a hardware file, by values, and in scenarios."""

import pytest

from kvgym.batch_time import load_hardware, make_batch_time
from kvgym.batch_time.deployments.load import hardware_names
from kvgym.batch_time.hardware.overhead import ENGINES, EngineOverhead
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.comparison import compare
from kvgym.experiments.scenario import Scenario, load_scenario, scenario_names
from kvgym.report.content import setting

NAME = "llama2-70b-a100-tp2"


@pytest.mark.parametrize("name", hardware_names())
def test_every_engine_adds_its_overhead(name):
    hardware = load_hardware(name)
    assert {"vllm-2023", "early-2024", "vllm-2024", "vllm-2026", "none"} <= set(hardware.all_engines)
    assert hardware.overhead("none").milliseconds(7) == 0
    load = {"num_decodes": 7, "decode_context": 7 * 300}
    bare = hardware.batch_time(engine="none")
    for engine, overhead in hardware.all_engines.items():
        model = hardware.batch_time(engine=engine)
        added = 1e-3 * (overhead.base_ms + 7 * overhead.per_request_ms)
        assert model(**load) == pytest.approx(bare(**load) + added)
        assert make_batch_time(model.spec())(**load) == model(**load)
    assert hardware.batch_time().spec()["engine"] == hardware.engine
    assert hardware.batch_time(composition="vidur").spec()["engine"] == "none"


def test_engines_come_from_one_table():
    one, two = load_hardware("llama2-7b-a100-tp1"), load_hardware(NAME)
    assert (one.engines, two.engines) == ({}, {})
    # Sums of the published components over 8 to 64 decodes on one GPU, and 8 to 32 on two.
    assert one.overhead("early-2024").milliseconds(32) == pytest.approx(4.93, rel=0.04)
    assert two.overhead("early-2024").milliseconds(32) == pytest.approx(8.59, rel=0.02)
    assert one.overhead("vllm-2023") == two.overhead("vllm-2023") == ENGINES["vllm-2023"]
    # A file's own figures come first.
    own = load_hardware("llama2-70b-h100-tp4-2023")
    assert own.overhead().formula(layers=own.adds_layers) == "11.6 ms per batch + 0.12 ms per request"
    newest = "0 ms per batch + 0.015 ms per layer, asynchronous, API 8 ms"
    assert own.overhead("vllm-2026").formula() == newest
    assert all(engine.source and (engine.validated or name == "none") for name, engine in ENGINES.items())


def test_values_instead_of_a_name():
    hardware = load_hardware(NAME)
    model = hardware.batch_time(engine={"base_ms": 2.0, "per_request_ms": 0.5})
    assert model(num_decodes=4, decode_context=400) == pytest.approx(
        0.004 + hardware.batch_time(engine="none")(num_decodes=4, decode_context=400)
    )
    assert make_batch_time(model.spec())() == model() == pytest.approx(0.002)
    given = EngineOverhead(base_ms=2, per_request_ms=0.5)
    assert given.formula() == "2 ms per batch + 0.5 ms per request + 0.015 ms per layer"
    assert EngineOverhead(base_ms=2, per_layer_ms=0).formula() == "2 ms per batch"


def test_an_engine_counts_layers_that_were_not_measured():
    """Of Llama-3-8B's 32 layers on kernels and rooflines; a calibrated file has measured all kernels."""
    load = {"num_decodes": 7, "decode_context": 7 * 300}
    for spec, layers in (
        ("kernels:model=llama3-8b,gpu=h100", 32), ("roofline:model=llama3-8b,gpu=l4", 32), ("llama3-8b-a100-tp1", 0)
    ):  # fmt: skip
        hardware = load_hardware(spec)
        without, with_layers = (
            hardware.batch_time(engine={"base_ms": 0, "per_layer_ms": ms})(**load) for ms in (0, 0.5)
        )
        assert 1e3 * (with_layers - without) == pytest.approx(layers * 0.5)


def test_an_engine_sets_what_its_policies_and_its_users_see():
    newest, old = (
        load_hardware("model=llama3-8b,gpu=h100").batch_time(engine=name)
        for name in ("vllm-2026", "vllm-2024")
    )
    assert (newest.asynchronous, newest.api_time) == (True, 0.008)
    assert (old.asynchronous, old.api_time) == (False, 0.0)
    roofline = load_hardware("roofline:model=llama3-8b,gpu=l4").batch_time()
    again = make_batch_time(roofline.spec())
    assert (again.asynchronous, again.api_time) == (True, 0.008)


@pytest.mark.parametrize(
    ("engine", "kind", "message"),
    [
        ("vllm-2022", UnknownNameError, r"Did you mean 'vllm-202\d'.*vllm-2023"),
        ({"base": 3}, ConfigError, "fields: base_ms, per_request_ms"),
        ({"base_ms": -1}, ConfigError, "base_ms"),
        ({"base_ms": "fast"}, ConfigError, "base_ms"),
        ({"base_ms": float("inf")}, ConfigError, "base_ms"),
    ],
)
def test_wrong_engines_are_named(engine, kind, message):
    with pytest.raises(kind, match=message):
        load_hardware(NAME).batch_time(engine=engine)
    with pytest.raises(kind, match=message):
        load_scenario("a100-llama2-70b").override(engine=engine).make_system()


def test_tables_without_a_file_have_no_named_engines():
    tables = load_hardware(NAME).tables.model_dump()
    with pytest.raises(ConfigError, match="names an engine of a hardware file"):
        make_batch_time({"kind": "profile", "tables": tables, "engine": "vllm-2023"})


def test_the_shipped_scenarios_name_their_engine():
    for name in scenario_names():
        scenario = load_scenario(name)
        assert (scenario.engine is None) == (scenario.hardware is None), name
        assert scenario.resolved().engine == scenario.engine


def test_another_hardware_comes_with_its_own_engine():
    scenario = load_scenario("a100-llama2-70b")
    assert scenario.engine == "vllm-2023"
    moved = scenario.override(hardware="llama3-8b-a100-tp1")
    assert moved.engine is None
    assert moved.resolved().engine == load_hardware("llama3-8b-a100-tp1").engine
    assert moved.make_system().batch_time.engine == moved.resolved().engine
    assert scenario.override(hardware=NAME).engine == "vllm-2023"
    assert scenario.override(batch_time={"composition": "vidur"}).resolved().engine == "none"
    both = scenario.override(hardware="llama3-8b-a100-tp1", engine="none")
    assert both.make_system().batch_time() == 0.0
    assert (
        scenario.override(hardware="llama3-8b-a100-tp1", batch_time={"composition": "vidur"})
        .resolved()
        .engine
        == "none"
    )


def test_an_engine_needs_hardware():
    scenario = load_scenario("mc-sf-model-2").override(engine="vllm-2023")
    with pytest.raises(ConfigError, match="needs hardware"):
        scenario.make_system()


def test_each_group_of_workers_has_its_engine():
    scenario = load_scenario("a100-llama2-70b").override(
        workers=[{"count": 1}, {"engine": "none"}, {"hardware": "llama2-7b-a100-tp1"}]
    )
    overheads = [1e3 * worker.batch_time() for worker in scenario.make_system().workers]
    assert overheads == pytest.approx([9.0, 0.0, load_hardware("llama2-7b-a100-tp1").overhead().base_ms])
    assert [group.engine for group in scenario.resolved().workers] == ["vllm-2023", "none", "early-2024"]


def test_a_comparison_records_its_engine():
    scenario = load_scenario("a100-llama2-70b").override(
        hardware="llama2-7b-a100-tp1", workload={"preset": "lmsys", "num_requests": 5}
    )
    assert compare(scenario, ["fcfs"], seeds=1).scenario.engine == "early-2024"


def test_an_engine_that_no_worker_would_run_is_refused():
    groups = [{"hardware": "llama3-8b-a100-tp1"}, {"hardware": "llama2-7b-a100-tp1", "engine": "none"}]
    chosen = load_scenario("a100-llama3-8b").override(workers=groups, engine="none")
    with pytest.raises(ConfigError, match="hardware = 'llama3-8b-a100-tp1' applies to no worker"):
        chosen.make_system()
    chosen = chosen.model_copy(update={"hardware": None})
    with pytest.raises(
        ConfigError, match=r"engine = 'none' applies to no worker.*give the engine to the groups"
    ):
        chosen.make_system()
    own = chosen.model_copy(update={"engine": None})
    assert [w.batch_time.engine for w in own.make_system().all_workers] == ["early-2024", "none"]
    assert own.resolved().engine is None
    mixed = own.override(
        hardware="llama3-8b-a100-tp1", workers=[{"hardware": "llama2-7b-a100-tp1"}, {}], engine="none"
    )
    assert [w.batch_time.engine for w in mixed.make_system().all_workers] == ["early-2024", "none"]


def test_an_empty_name_is_no_engine():
    with pytest.raises(UnknownNameError, match="engine of hardware"):
        load_scenario("a100-llama3-8b").override(engine="").make_system()
    with pytest.raises(ConfigError, match=r"engine = 3; expected a name or figures"):
        make_batch_time({"kind": "profile", "hardware": "llama3-8b-a100-tp1", "engine": 3})


def test_the_overhead_of_old_scenarios_is_refused_with_the_new_field():
    chosen = load_scenario("a100-llama3-8b").override(batch_time={"cpu_overhead": 0.003})
    for act in (chosen.make_system, chosen.resolved):
        with pytest.raises(
            ConfigError, match=r"accepts only composition, got cpu_overhead; .* the field engine"
        ):
            act()


def test_a_report_names_the_engine_of_each_group():
    groups = [
        {"hardware": "llama3-8b-a100-tp1"},
        {"hardware": "llama2-7b-a100-tp1", "engine": {"base_ms": 2}},
    ]
    workload = {"preset": "lmsys", "num_requests": 3}
    scenario = Scenario(name="g", summary="", workload=workload, workers=groups)
    rows = dict(setting(compare(scenario, ["fcfs"], seeds=1)))
    assert rows["Workers"] == (
        "1 mixed, llama3-8b-a100-tp1, engine early-2024; 1 mixed, llama2-7b-a100-tp1, engine base_ms = 2"
    )
    assert "Batch time" not in rows
