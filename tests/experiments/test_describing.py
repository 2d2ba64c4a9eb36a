"""Names and descriptions of modified scenarios."""

import pytest

from kvgym.experiments.changes import build_scenario
from kvgym.experiments.describing import describe_scenario, engine_line, titled
from kvgym.experiments.scenario import Scenario, load_scenario

BASE = "a100-llama2-70b"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"rate": 20.0}, "a100-llama2-70b-changed"),
        ({"workers": 2}, "a100-llama2-70b-changed"),
        ({"engine": "none"}, "a100-llama2-70b-changed"),
        ({"hardware": "llama2-70b-a100-tp2", "rate": 3.0}, "a100-llama2-70b-changed"),
        ({"hardware": "llama3-8b-a100-tp1"}, "llama3-8b-a100-tp1-lmsys"),
        ({"hardware": "llama3-8b-a100-tp1", "workload": "stab-1-1"}, "llama3-8b-a100-tp1-stab-1-1"),
        ({"hardware": "roofline:model=qwen3-8b,gpu=l40s"}, "qwen3-8b-l40s-tp1-lmsys"),
        (
            {"hardware": "roofline:model=llama3.1-405b,gpu=h200,tp=8,weights=fp8"},
            "llama3.1-405b-h200-tp8-fp8-lmsys",
        ),
        ({"batch_time": "affine:constant=0.02"}, "affine-lmsys"),
    ],
)
def test_names(changes, name):
    assert build_scenario(BASE, **changes).name == name


def test_hardware_files_are_named_without_their_folder(tmp_path):
    path = tmp_path / "ours.yaml"
    path.write_text("{kind: roofline, model: qwen3-8b, gpu: h200}\n")
    assert build_scenario(BASE, hardware=str(path)).name == "ours-lmsys"
    config = tmp_path / "Mine-1B" / "config.json"
    config.parent.mkdir()
    config.write_text(
        '{"model_type": "llama", "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32, '
        '"intermediate_size": 8192, "vocab_size": 128256}'
    )
    assert build_scenario(BASE, hardware=f"model={config},gpu=l4").name == "Mine-1B-l4-tp1-lmsys"
    assert build_scenario(BASE, hardware="model=Qwen/Qwen3-8B-FP8,gpu=l4").name == "qwen3-8b-fp8-l4-tp1-lmsys"


def test_traces_name_scenarios_and_their_rate_is_that_of_the_requests_in_use(tmp_path):
    rows = "".join(f"{t},5,2\n" for t in (0, 1, 2, 2.1, 2.2))
    path = tmp_path / "mine.csv"
    path.write_text(f"arrival_time,prompt_len,output_len\n{rows}")
    made = build_scenario(BASE, trace=path, num_requests=3)
    assert made.name == "mine"
    assert made.summary.endswith("mine.csv, 1 requests/s, 3 requests")


def test_a_cluster_names_its_router():
    made = build_scenario(BASE, workers=2, router="uniform_random")
    assert made.summary.startswith("2 workers, uniform_random: llama2-70b-a100-tp2 (M = 16,492), lmsys, ")
    assert describe_scenario(made, ["round_robin"]).startswith("2 workers, round_robin: ")
    assert describe_scenario(made, ["round_robin", "uniform_random"]).startswith("2 workers, 2 routers: ")
    assert describe_scenario(load_scenario(BASE), ["round_robin"]).startswith("llama2-70b-a100-tp2 (M = ")
    groups = [
        {"hardware": name} for name in ("llama3-8b-a100-tp1", "llama2-7b-a100-tp1", "llama3-8b-a100-tp1")
    ]
    mixed = Scenario(name="x", workers=groups, workload="lmsys")
    assert "llama3-8b-a100-tp1 and llama2-7b-a100-tp1 (M = " in describe_scenario(mixed)


def test_a_line_names_engine_and_kernels():
    base = load_scenario(BASE)
    usual = "engine vllm-2023: 9 ms per batch + 0.29 ms per request, 2023; kernels calibrated on A100 80GB"
    assert engine_line(base) == usual
    assert titled("x", base) == f"x\n{usual}; paper rules"
    own = base.override(engine={"base_ms": 5})
    assert engine_line(own) == "engine 5 ms per batch; kernels calibrated on A100 80GB"
    measured = base.override(hardware="model=llama3-8b,gpu=h100", engine=None)
    figures = "0 ms per batch + 0.015 ms per layer, asynchronous, API 8 ms, 2026"
    line = f"engine vllm-2026: {figures}; kernels measured with vLLM 0.19.0 on H100 80GB"
    assert engine_line(measured, measured, own) == f"{line} | {engine_line(own)}"
    roofline = base.override(hardware="model=llama3-8b,gpu=l4", engine=None)
    assert engine_line(roofline) == f"engine vllm-2026: {figures}; kernels: roofline, not validated"
    vidur = base.override(batch_time={"composition": "vidur"}, engine=None)
    assert engine_line(vidur) == "engine none: 0 ms per batch; kernels calibrated on A100 80GB"
    many = [base.override(engine={"base_ms": k}) for k in range(5)]
    assert engine_line(*many).endswith(" | 2 others")
    assert engine_line(load_scenario("mc-sf-model-1")) == ""
    groups = base.override(workers=[{"hardware": "llama2-7b-a100-tp1"}, {}])
    assert engine_line(groups) == f"{engine_line(base.override(hardware='llama2-7b-a100-tp1'))} | {usual}"


def test_an_outdated_description_is_removed():
    lengths = {"kind": "independent", "prompt": {"kind": "constant", "value": 4}}
    workload = {
        "description": "20 a second",
        "arrivals": {"kind": "poisson", "rate": 20},
        "lengths": {**lengths, "output": {"kind": "constant", "value": 4}},
        "num_requests": 30,
    }
    base = Scenario(name="x", batch_time={"kind": "unit"}, kv_capacity=50, workload=workload)
    assert build_scenario(base, num_requests=30) == base
    assert build_scenario(base, ttft_slo=1.0).make_workload().spec.description == "20 a second"
    assert build_scenario(base, rate=5.0).make_workload().spec.description == ""
