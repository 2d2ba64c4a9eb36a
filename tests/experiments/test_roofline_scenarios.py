"""Scenarios on rooflines: as mappings, changed by options and sweeps, and their notes."""

import pytest

from kvgym.errors import ConfigError
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.studies.capacity.provisioning import provision
from kvgym.studies.sweeping.fields import set_fields

TEXT = "roofline:model=qwen3-8b,gpu=l4,tp=2"
MAPPING = {"model": "Qwen3-8B", "gpu": "L4", "tp": 2}


def scenario(**changes):
    workload = {"preset": "lmsys", "num_requests": 5, "rate": 5}
    return Scenario(**{"name": "x", "summary": "", "hardware": MAPPING, "workload": workload, **changes})


def test_a_mapping_is_a_line_of_text(tmp_path):
    assert scenario().hardware == scenario(hardware=TEXT).hardware == TEXT
    path = tmp_path / "mine.yaml"
    path.write_text("summary: y\nhardware: {model: qwen3-8b, gpu: l4, tp: 2}\nworkload: lmsys\n")
    assert load_scenario(path).hardware == TEXT
    path.write_text("summary: y\nhardware: {model: qwen3-8c, gpu: l4}\nworkload: lmsys\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml: field hardware: .*Did you mean 'qwen3-8b'"):
        load_scenario(path)
    path.write_text("summary: y\nhardware: {model: {name: z}, gpu: l4}\nworkload: lmsys\n")
    with pytest.raises(ConfigError, match="write it into a YAML file"):
        load_scenario(path)


def test_systems_have_its_capacity_and_engine():
    system = scenario().make_system()
    assert system.kv_capacity == build_scenario("a100-llama3-8b", hardware=TEXT).make_system().kv_capacity
    assert scenario().resolved().engine == "vllm-2026"
    assert scenario(engine={"base_ms": 7}).make_system().batch_time() == pytest.approx(0.007)
    assert scenario(kv_capacity=100).make_system().kv_capacity == 100


def test_a_roofline_replaces_other_hardware():
    """Engine, capacity and composition of the calibrated file are dropped."""
    base = load_scenario("a100-llama2-70b").override(batch_time={"composition": "vidur"}, kv_capacity=9_000)
    changed = build_scenario(base, hardware=TEXT)
    assert (changed.hardware, changed.engine, changed.batch_time, changed.kv_capacity) == (
        TEXT,
        None,
        {},
        None,
    )
    assert "Qwen3-8B on 2 x L4, 16-bit weights and KV cache (roofline, not validated)" in changed.summary
    affine = scenario(hardware=None, batch_time={"kind": "affine", "constant": 1.0}, kv_capacity=50)
    assert build_scenario(affine, hardware=TEXT).batch_time == {}


def test_parts_of_a_roofline_can_be_changed():
    assert build_scenario(scenario(), hardware="roofline:tp=4").hardware == TEXT.replace("tp=2", "tp=4")
    assert scenario().override(hardware={"gpu": "mi300x"}).hardware == TEXT.replace("l4", "mi300x")
    with pytest.raises(ConfigError, match="model and gpu missing"):
        build_scenario("a100-llama3-8b", hardware="roofline:tp=4")
    point = {"hardware.gpu": "mi300x", "hardware.tp": 1, "rate": 2.0}
    assert set_fields(scenario(), point).hardware == "roofline:model=qwen3-8b,gpu=mi300x,tp=1"
    assert set_fields(
        load_scenario("a100-llama3-8b"), {"hardware.gpu": "l4", "hardware.model": "qwen3-8b"}
    ).hardware
    with pytest.raises(ConfigError, match=r"hardware\.tp is for hardware of a model and a GPU"):
        set_fields(scenario(), {"hardware": "llama3-8b-a100-tp1", "hardware.tp": 2})


def test_a_gpu_with_tables_brings_measured_kernels():
    """A roofline is kept where it was chosen although the GPU has tables."""
    kernels = "kernels:model=qwen3-8b,gpu=h200,tp=2"
    assert scenario().override(hardware={"gpu": "h200"}).hardware == kernels
    assert build_scenario(scenario(), hardware="gpu=h200").hardware == kernels
    assert set_fields(scenario(), {"hardware.gpu": "h200"}).hardware == kernels
    assert set_fields(scenario(hardware=kernels), {"hardware.gpu": "l4"}).hardware == TEXT
    chosen = scenario(hardware=kernels.replace("kernels", "roofline"))
    assert (
        set_fields(chosen, {"hardware.gpu": "h100"}).hardware == "roofline:model=qwen3-8b,gpu=h100-80gb,tp=2"
    )
    assert build_scenario(chosen, hardware="kernels:tp=4").hardware == kernels.replace("tp=2", "tp=4")


def test_requests_carry_the_note():
    chosen = scenario()
    table = chosen.sample(chosen.make_workload(), 0, 1000)
    assert table.notes == ("Qwen3-8B on 2 x L4, 16-bit weights and KV cache: roofline, not validated.",)
    groups = [{"role": "prefill", "hardware": MAPPING}, {"role": "decode", "hardware": "llama3-8b-a100-tp1"}]
    cluster = scenario(hardware=None, workers=groups)
    assert cluster.sample(cluster.make_workload(), 0, 1000).notes == table.notes
    assert cluster.make_system().workers[0].kv_capacity == chosen.make_system().kv_capacity
    measured = scenario(hardware="llama3-8b-a100-tp1")
    assert measured.sample(measured.make_workload(), 0, 1000).notes == ()


def test_provisioned_hardware_may_be_partial_rooflines():
    chosen = scenario(workload={"preset": "lmsys", "num_requests": 30, "rate": 2})
    plan = provision(chosen, "ttft_p99<100", ["fcfs"], hardware=["roofline:tp=1", "roofline:gpu=mi300x,tp=1"])
    names = [f"roofline:model=qwen3-8b,gpu={gpu},tp=1" for gpu in ("l4", "mi300x")]
    assert [own.hardware for own in plan.workers] == names
