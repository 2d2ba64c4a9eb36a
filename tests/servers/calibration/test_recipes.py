"""Recipes: their fields, errors, and the shipped ones."""

import pytest
import yaml

from helpers.servers.profiles import SHAPE
from kvgym.batch_time.deployments.load import load_hardware
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.scenario import load_scenario
from kvgym.servers.calibration.recipes import load_recipe, recipe_names

FIELDS = {
    "description": "made up",
    "source": "made up",
    "profiles": {"linear": "a.csv", "attention": {"file": "b.csv", "where": {"block_size": 16}}},
    "model": SHAPE.model_dump(),
    "gpu": {"name": "mine", "peak_flops": 1e14, "memory_bandwidth": 1e12, "memory": 2**34, "num_sms": 80},
}


def _load(tmp_path, **changes):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in {**FIELDS, **changes}.items() if v is not None}))
    return load_recipe(str(path))


def test_a_recipe_in_full_and_by_preset(tmp_path):
    recipe = _load(tmp_path)
    assert recipe.name == "mine"
    assert recipe.model == SHAPE
    assert recipe.gpu.num_sms == 80
    assert recipe.profiles.linear.file == "a.csv"
    assert recipe.profiles.attention.where == {"block_size": 16}
    assert recipe.engine == "none"
    tokens, origin = recipe.capacity()
    free = 0.9 * 2**34 - SHAPE.weights * 2 - 2 * 2**30
    assert tokens == int(free // SHAPE.kv_bytes_per_token) // 16 * 16
    assert "90%" in origin
    named = _load(
        tmp_path, model="mistral-7b", gpu="h100-80gb", name="other", kv_capacity={"tokens": 7, "origin": "x"}
    )
    assert (named.name, named.model.name, named.gpu.num_sms) == ("other", "Mistral-7B-v0.1", 132)
    assert named.capacity() == (7, "x")


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"model": "llama2-80b"}, UnknownNameError, "unknown model 'llama2-80b'. Did you mean 'llama2-70b'"),
        ({"gpu": "a100"}, UnknownNameError, "unknown GPU 'a100'. Did you mean 'a100-"),
        ({"model": {"name": "x"}}, ConfigError, r"mine\.yaml: field model.num_layers: .*required"),
        ({"gpu": {"name": "x"}}, ConfigError, r"field gpu.peak_flops: .*required"),
        ({"gpu": {**FIELDS["gpu"], "num_sms": None}}, ConfigError, "gpu.num_sms is needed"),
        ({"tensor_parallel": 3}, ConfigError, "divide the 8 heads"),
        ({"tensor_parallel": 2}, ConfigError, "profiles.all_reduce must name a file"),
        ({"profiles": {"linear": "a.csv"}}, ConfigError, "field profiles.attention: .*required"),
        ({"kv_capacity": {"tokens": 7}}, ConfigError, "tokens and origin go together"),
        ({"engine": "fast"}, ConfigError, "engine is 'fast'; valid are vllm-2023, early-2024"),
        ({"engines": {"fast": {"base_ms": -1}}}, ConfigError, "field engines.fast.base_ms"),
        ({"source": None}, ConfigError, "field source: .*required"),
        ({"speed": 3}, ConfigError, "field speed"),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(tmp_path, changes, kind, message):
    with pytest.raises(kind, match=message):
        _load(tmp_path, **changes)


def test_files_without_a_recipe_are_refused(tmp_path):
    path = tmp_path / "x.yaml"
    for text, message in (("a: [", "not valid YAML"), ("- 1", "must be a mapping")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=rf"x\.yaml: {message}"):
            load_recipe(path)
    path.write_bytes(b"name: \xff")
    for load in (load_recipe, load_hardware, load_scenario):
        with pytest.raises(ConfigError, match=r"x\.yaml, line 1: not UTF-8 text"):
            load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(UnknownNameError, match="Did you mean 'llama2-7b-a100-tp1'"):
        load_recipe("llama2-7b-a100")


@pytest.mark.parametrize("name", recipe_names())
def test_the_shipped_recipes(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.gpu.num_sms == (132 if "h100" in name else 108)
    assert "PCIe" in recipe.source or recipe.tensor_parallel == 1 or "DGX" in recipe.source
