"""The committed hardware files, their errors, and KV capacity from GPU memory."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from kvgym.batch_time import kv_capacity, load_hardware
from kvgym.batch_time.deployments.load import hardware_names
from kvgym.batch_time.hardware.presets import MODELS
from kvgym.batch_time.hardware.shapes import GPU
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.servers.calibration.recipes import load_recipe, recipe_names
from kvgym.servers.calibration.report import (
    ROOFLINE_BOUNDS,
    VIDUR_EXAMPLES,
    monotone_effect,
    report,
    roofline_ratios,
)

NAMES = list(hardware_names())


def _text(name):
    return (Path(__file__).parents[2] / "configs" / "hardware" / f"{name}.yaml").read_text("utf-8")


def test_names_have_descriptions_and_recipes():
    assert set(NAMES) == set(recipe_names())
    assert all(0 < len(text) < 100 for text in hardware_names().values())


@pytest.mark.parametrize("name", NAMES)
def test_file_is_complete_compact_and_within_its_errors(name):
    hardware = load_hardware(name)
    assert hardware.name == name
    assert "MIT" in hardware.source
    assert hardware.kv_capacity_origin
    assert len(_text(name).encode()) < 60_000
    errors = {group: error.median for group, error in hardware.fit_error.items()}
    assert errors["linear"] <= 0.015
    assert errors["attention_decode"] <= 0.065
    assert errors["attention_decode_homogeneous"] <= 0.03
    assert errors["attention_prefill"] <= 0.05
    assert errors["attention_prefill_table"] <= 0.03
    assert errors.get("all_reduce", 0.0) <= 0.01
    assert ("all_reduce" in hardware.fit_error) == (hardware.tensor_parallel > 1)
    model = hardware.batch_time()
    assert model.valid_range["tokens"][0] == 1
    assert model() == pytest.approx(1e-3 * hardware.overhead().base_ms)
    assert hardware.batch_time(engine="none")() == 0.0
    median, largest = monotone_effect(hardware)
    assert median < 0.01
    # Long contexts of few decodes on the H100: its kernel does not split them (docs/calibration.md).
    assert largest < (0.8 if "h100" in name else 0.19)


@pytest.mark.parametrize("name", NAMES)
def test_the_errors_in_a_file_are_those_of_its_tables(name):
    hardware = load_hardware(name)
    assert hardware.measured_errors() == hardware.fit_error
    rows = [
        len(part.ms)
        for part in (hardware.held_out.linear, hardware.held_out.decode, hardware.held_out.prefill)
    ]
    assert min(rows) >= 40
    assert max(rows) <= 200
    on_nodes = set(hardware.held_out.linear.tokens) & set(hardware.tables.linear.tokens)
    assert not on_nodes


@pytest.mark.parametrize("name", NAMES)
def test_the_roofline_agrees_within_bounds(name):
    ratios = roofline_ratios(load_hardware(name))
    assert len(ratios) >= 10
    assert ROOFLINE_BOUNDS[0] < np.median(list(ratios.values())) < ROOFLINE_BOUNDS[1]
    assert all(0.9 < ratio < 2.6 for ratio in ratios.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_file_agrees_with_its_recipe(name):
    hardware, recipe = load_hardware(name), load_recipe(name)
    assert (hardware.kv_capacity, hardware.kv_capacity_origin) == recipe.capacity()
    assert hardware.gpu == recipe.gpu.model_copy(update={"attained": None})  # only rooflines use these
    for field in ("description", "source", "model", "tensor_parallel", "engine", "engines"):
        assert getattr(hardware, field) == getattr(recipe, field), field


def test_capacities():
    assert load_hardware("llama2-70b-a100-tp2").kv_capacity == 16492
    assert load_hardware("llama3-8b-a100-tp1").kv_capacity == 131000
    assert load_hardware("llama2-7b-a100-tp1").kv_capacity == kv_capacity("a100-80gb", "llama2-7b")
    assert load_hardware("llama2-70b-h100-tp4-2023").kv_capacity == kv_capacity(
        "h100-80gb", "llama2-70b", tensor_parallel=4
    )


@pytest.mark.parametrize(("batch", "milliseconds"), VIDUR_EXAMPLES, ids=lambda v: getattr(v, "label", ""))
def test_vidur_predictions_of_the_70b_model(batch, milliseconds):
    model = load_hardware("llama2-70b-a100-tp2").batch_time(composition="vidur")
    assert 1e3 * model(**batch.load()) == pytest.approx(milliseconds, rel=0.015)


def test_decode_attention_steps_at_the_waves_of_the_sms():
    """Four KV heads per GPU: 27 decodes fill 108 SMs, the 28th starts another wave."""
    model = load_hardware("llama2-70b-a100-tp2").batch_time(composition="homogeneous")
    context = 4032
    times = 1e3 * model(num_decodes=[26, 27, 28, 29], decode_context=[n * context for n in (26, 27, 28, 29)])
    assert times[2] - times[1] > 80 * 0.04
    assert times[1] - times[0] < 80 * 0.01
    assert times[3] - times[2] < 80 * 0.01


def test_files_read_by_path_and_round_trip(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(_text("llama2-7b-a100-tp1"))
    hardware = load_hardware(path)
    assert hardware.tables == load_hardware("llama2-7b-a100-tp1").tables
    again = yaml.safe_load(yaml.safe_dump(hardware.model_dump(mode="json")))
    assert type(hardware).model_validate(again) == hardware


def test_unknown_name_suggests():
    with pytest.raises(UnknownNameError, match="Did you mean 'llama2-7b-a100-tp1'"):
        load_hardware("llama2-7b-a100")
    with pytest.raises(
        UnknownNameError, match=rf"\({len(NAMES)} in all\); or a YAML file, or roofline:model="
    ):
        load_hardware("nope")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kv_capacity": 0}, "field kv_capacity"),
        ({"speed": 3}, "field speed"),
        ({"tensor_parallel": 2}, "all_reduce"),
        ({"tables": None}, "field tables"),
    ],
)
def test_malformed_files_name_file_and_field(tmp_path, change, field):
    content = {**yaml.safe_load(_text("llama2-7b-a100-tp1")), **change}
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=r"broken\.yaml") as caught:
        load_hardware(path)
    assert field in str(caught.value)


@pytest.mark.parametrize(("text", "word"), [("a: [", "not valid YAML"), ("- 1", "must be a mapping")])
def test_files_without_a_mapping_are_refused(tmp_path, text, word):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=word):
        load_hardware(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_hardware(tmp_path / "none.yaml")


def test_kv_capacity_by_hand():
    """Llama-2-7B: 6,738,415,616 weights of 2 bytes; 2 * 32 layers * 4096 * 2 = 524,288 bytes per token."""
    free = 80 * 2**30 * 0.9 - 2 * 6_738_415_616 - 2 * 2**30
    assert kv_capacity("a100-80gb", "llama2-7b", block_size=1) == int(free // 524_288)
    assert kv_capacity("a100-80gb", "llama2-7b") == int(free // 524_288) // 16 * 16
    # With two GPUs either holds half the weights and half of each token.
    free = 80 * 2**30 * 0.9 - 6_738_415_616 - 2 * 2**30
    assert kv_capacity("a100-80gb", "llama2-7b", tensor_parallel=2, block_size=1) == int(free // 262_144)


def test_kv_capacity_with_windows_by_hand():
    """Gemma-3-27B: 10 layers keep all tokens, 52 the last 1,024; 2 * 16 heads * 128 * 2 = 8,192 bytes in each."""
    model = MODELS["gemma-3-27b"]
    free = 80 * 2**30 * 0.9 - 2 * model.weights - 2 * 2**30
    for context in (1024, 4096, 32_768, 131_072):
        request = 8192 * (10 * context + 52 * min(context, 1024))
        tokens = kv_capacity("h100", model, context=context, block_size=1)
        assert tokens == pytest.approx(free / request * context, abs=1)
    assert kv_capacity("h100", model) == kv_capacity("h100", model, context=4096) == 112_208
    # Shorter requests than the window take all layers; without windows the context does not matter.
    assert kv_capacity("h100", model, context=1) == kv_capacity("h100", model, context=1024) == 41_616
    assert kv_capacity("h100", "llama3-8b", context=10**6) == kv_capacity("h100", "llama3-8b")


def test_kv_capacity_errors():
    with pytest.raises(ConfigError, match="Llama-2-70B does not fit on 1 x A100"):
        kv_capacity("a100-80gb", "llama2-70b")
    for dtype, ways in (
        (None, "lower the reserve, or use smaller weights (fp8, int4)"),
        ("fp8", "lower the reserve, or use smaller weights (int4)"),
        ("int4", "raise memory_fraction, or lower the reserve"),
    ):
        model = MODELS["llama3.1-405b"].model_copy(update={"weight_dtype": dtype})
        with pytest.raises(ConfigError) as caught:
            kv_capacity("a100-80gb", model)
        assert str(caught.value).endswith(ways)
    for arguments in (
        {"memory_fraction": 1.2},
        {"activation_reserve": -1},
        {"activation_reserve": float("nan")},
        {"block_size": 0},
        {"block_size": 10**4000},
        {"tensor_parallel": 0},
        {"context": 0},
    ):
        with pytest.raises(ConfigError, match=next(iter(arguments))):
            kv_capacity("a100-80gb", "llama2-7b", **arguments)


@pytest.mark.parametrize("memory", [float("nan"), float("inf"), 1e300])
def test_infinite_memory_is_refused(memory):
    gpu = {**load_hardware("llama2-7b-a100-tp1").gpu.model_dump(), "memory": memory}
    with pytest.raises(ValueError, match=r"2 … 2\^31-1|finite number"):
        kv_capacity(GPU(**gpu), "llama2-7b")


def test_the_page_shows_the_numbers_of_the_files():
    text = (Path(__file__).parents[2] / "docs" / "calibration.md").read_text("utf-8")
    for line in report([load_hardware(name) for name in NAMES]).splitlines():
        if line.startswith("|"):
            assert line in text
