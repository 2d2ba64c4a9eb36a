"""Weights, cache and work of models, worked by hand and compared with published numbers."""

import json

import pytest

from kvgym.batch_time import GPU, GPUS, MODELS, ModelShape
from kvgym.batch_time.hardware.shapes import require_plain
from kvgym.errors import ConfigError, UnknownNameError

SMALL = {
    "name": "small",
    "num_layers": 3,
    "hidden": 8,
    "num_heads": 4,
    "num_kv_heads": 2,
    "ffn": 16,
    "vocab": 10,
}
EXPERTS = {"count": 6, "per_token": 2, "ffn": 5, "shared_ffn": 7, "dense_layers": 1}
LATENT = {"kv_rank": 6, "query_rank": 5, "nope_dim": 3, "rope_dim": 2, "value_dim": 4}


def test_cache_of_grouped_heads():
    """Two of keys and values, layers, KV heads of 128, two bytes."""
    assert MODELS["llama2-7b"].kv_bytes_per_token == 2 * 32 * 32 * 128 * 2 == 524_288
    assert MODELS["llama3-70b"].kv_bytes_per_token == 2 * 80 * 8 * 128 * 2 == 327_680
    # Heads of 128 although 5,120 / 64 is 80; of 4 KV heads, those of the mixture.
    assert MODELS["qwen3-32b"].kv_bytes_per_token == 2 * 64 * 8 * 128 * 2 == 262_144
    assert MODELS["qwen3-30b-a3b"].kv_bytes_per_token == 2 * 48 * 4 * 128 * 2 == 98_304
    halved = MODELS["llama3-70b"].model_copy(update={"kv_dtype": "fp8"})
    assert halved.kv_bytes_per_token == 163_840


def test_cache_of_latent_attention():
    """One vector of 512 and one of 64 in each of 61 layers, whatever the heads."""
    model = MODELS["deepseek-v3"]
    assert model.kv_bytes_per_token == 61 * (512 + 64) * 2 == 70_272
    assert [model.kv_parts(n) for n in (1, 8)] == [1, 1]
    assert [MODELS["llama3-70b"].kv_parts(n) for n in (1, 4, 16)] == [1, 4, 8]


def test_weights_of_a_dense_model_by_hand():
    # Q and O 8 x 8, K and V 8 x 4, three of 8 x 16, two norms; two embeddings of 10 x 8 and a norm.
    block = 2 * 64 + 2 * 32 + 3 * 128 + 16
    model = ModelShape(**SMALL)
    assert (model.block_weights, model.expert_weights, model.token_weights) == (3 * block, 0, 3 * block)
    assert model.weights == 3 * block + 2 * 80 + 8
    assert model.active_weights == 3 * block + 80
    assert ModelShape(**SMALL, tied_embeddings=True).weights == 3 * block + 80 + 8
    # Heads of 5 instead of 2: queries of 20, keys of 10.
    wide = ModelShape(**SMALL, head_dim=5)
    assert wide.block_weights == 3 * (2 * 8 * 20 + 2 * 8 * 10 + 3 * 128 + 16)
    assert (wide.query_width, wide.kv_entries) == (20, 20)


def test_weights_of_experts_by_hand():
    model = ModelShape(**SMALL, experts=EXPERTS)
    attention = 2 * 64 + 2 * 32 + 16
    # One dense block, two with a router to 6, shared experts of 7 and six of 5, of which two are taken.
    assert model.block_weights == 3 * attention + 3 * 128 + 2 * (8 * 6 + 3 * 8 * 7)
    assert model.expert_weights == 2 * 6 * 3 * 8 * 5
    assert model.token_weights == model.block_weights + 2 * 2 * 3 * 8 * 5
    assert model.mlp_widths == 16 + 2 * (2 * 5 + 7)


def test_weights_of_latent_attention_by_hand():
    # Queries 8 -> 5 -> 4 x (3 + 2); keys and values 8 -> 6 + 2, 6 -> 4 x (3 + 4); output 4 x 4 -> 8.
    model = ModelShape(**SMALL, latent=LATENT)
    assert model.attention_weights == (8 * 5 + 5 * 20) + (8 * 8 + 6 * 28) + 16 * 8
    assert (model.query_width, model.kv_entries) == (20, 8)
    direct = ModelShape(**SMALL, latent={**LATENT, "query_rank": None})
    assert direct.attention_weights == 8 * 20 + (8 * 8 + 6 * 28) + 16 * 8


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        # Billions, as the models' authors and cards print them; active ones of mixtures only.
        ("llama3-8b", 8.03, None), ("llama3-70b", 70.6, None), ("llama3.1-405b", 405, None),
        ("qwen2.5-7b", 7.61, None), ("qwen2.5-14b", 14.7, None), ("qwen2.5-32b", 32.5, None),
        ("qwen2.5-72b", 72.7, None), ("qwen3-8b", 8.2, None), ("qwen3-14b", 14.8, None),
        ("qwen3-32b", 32.8, None), ("qwen3-30b-a3b", 30.5, 3.3), ("qwen3-235b-a22b", 235, 22),
        ("mixtral-8x7b", 46.7, 12.9), ("mixtral-8x22b", 141, 39), ("deepseek-v3", 671, 36.6),
    ],
)  # fmt: skip
def test_presets_have_the_published_number_of_weights(name, total, active):
    model = MODELS[name]
    assert model.weights / 1e9 == pytest.approx(total, rel=0.01)
    if active is not None:  # some publish it with the input embedding, some without
        embedding = model.vocab * model.hidden
        both = (model.active_weights / 1e9, (model.active_weights + embedding) / 1e9)
        assert min(abs(count / active - 1) for count in both) < 0.025


def test_types_of_weights():
    model = MODELS["deepseek-v3"]
    blocks = model.block_weights + model.expert_weights
    assert model.weight_bytes == blocks + 2 * model.embedding_weights  # fp8, embeddings 16-bit
    halved = MODELS["llama3-70b"].model_copy(update={"weight_dtype": "int4"})
    assert halved.weight_bytes == halved.block_weights / 2 + 2 * halved.embedding_weights
    gpu = GPU(name="x", peak_flops=1e12, memory_bandwidth=1e9, memory=1e9, fast_flops={"fp8": 3e12})
    assert [gpu.flops(dtype) for dtype in (None, "bf16", "fp8", "int8", "fp4")] == [
        1e12,
        1e12,
        3e12,
        1e12,
        1e12,
    ]


def test_valid_numbers_of_gpus():
    qwen = MODELS["qwen2.5-7b"]  # 28 heads, 4 KV heads
    assert [n for n in range(30) if qwen.splits(n)] == [1, 2, 4, 28]
    assert [n for n in range(20) if MODELS["deepseek-v3"].splits(n)] == [1, 2, 4, 8, 16]


def test_fields_that_are_not_given_are_omitted():
    assert "experts" not in MODELS["llama3-8b"].model_dump()
    for model in (*MODELS.values(), ModelShape(**SMALL, experts=EXPERTS, latent=LATENT, kv_dtype="fp8")):
        assert ModelShape.model_validate(json.loads(json.dumps(model.model_dump()))) == model


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_heads": 3}, "num_heads"),
        ({"num_kv_heads": 3}, "num_kv_heads"),
        ({"experts": {**EXPERTS, "per_token": 7}}, "per_token"),
        ({"experts": {**EXPERTS, "dense_layers": 3}}, "dense_layers"),
        ({"weight_dtype": "fp7"}, "weight_dtype"),
        ({"window": {"layers": 4, "tokens": 8}}, "window.layers must be at most num_layers"),
        ({"window": {"layers": 3, "tokens": 8}, "latent": LATENT}, "without latent attention"),
        ({"window": {"layers": 3, "tokens": 0}}, "tokens"),
    ],
)
def test_impossible_shapes_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        ModelShape.model_validate({**SMALL, **change})


def test_every_preset_has_a_source():
    for presets in (MODELS, GPUS):
        assert all(presets.source(name) and presets[name].name for name in presets)


def test_names_of_presets(tmp_path):
    assert MODELS.name("Llama-3-70B") == MODELS.name("llama3_70b") == "llama3-70b"
    assert (GPUS.name("h100"), MODELS.name("DeepSeek")) == ("h100-80gb", "deepseek-v3")
    assert GPUS.name_of(GPUS["l4"]) == "l4"
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps({**SMALL, "source": "me"}))
    assert MODELS.find(str(path)) == MODELS.find(ModelShape(**SMALL)) == ModelShape(**SMALL)
    assert (MODELS.name(str(path)), MODELS.source(str(path))) == (str(path), "me")
    assert MODELS.name_of(ModelShape(**SMALL)) is None
    with pytest.raises(UnknownNameError, match="Valid names: a100-40gb, a100-80gb"):
        GPUS.find("a100")
    path.write_text(json.dumps({**SMALL, "heads": 2}))
    with pytest.raises(
        ConfigError, match=r"mine\.yaml: field heads: there is no such field; did you mean 'num_heads'"
    ):
        MODELS.find(str(path))


@pytest.mark.parametrize(
    ("given", "name", "dtype"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b", None),
        ("qwen2.5-7b-instruct", "qwen2.5-7b", None),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3-8b", None),
        ("llama3.1-8b", "llama3-8b", None),
        ("LLAMA_3.3-70b", "llama3-70b", None),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3", MODELS["deepseek-v3"].weight_dtype),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b", None),
        ("openai/gpt-oss-120b", "gpt-oss-120b", "mxfp4"),
        ("google/gemma-3-27b-it", "gemma-3-27b", None),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b-fp8", "fp8_block"),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", "llama-3.3-70b-instruct-fp4", "nvfp4"),
    ],
)
def test_checkpoints_by_name(given, name, dtype):
    assert MODELS.name(given) == MODELS.name(name) == name
    assert MODELS.find(given).weight_dtype == dtype
    assert MODELS.source(given).startswith("config.json of")


def test_every_other_name_is_that_of_one_shape():
    found = {}
    for preset in MODELS:
        for other in MODELS.names(preset):
            for text in {other, other.upper(), other.rpartition("/")[2].replace("-", "_")}:
                assert found.setdefault(text, preset) == preset
                assert MODELS.find(text).num_layers == MODELS[preset].num_layers
                assert MODELS.find(MODELS.name(text)) == MODELS.find(text)
    assert len(found) > 100
    assert GPUS.names("h100") == ()


def test_variants_differ_in_the_fields_that_the_file_names():
    eight = MODELS.find("Qwen/Qwen3-32B-FP8")
    assert eight == MODELS["qwen3-32b"].model_copy(update={"weight_dtype": "fp8_block"})
    assert MODELS.find("mistralai/Mistral-7B-Instruct-v0.3").vocab == 32_768
    with pytest.raises(
        UnknownNameError, match=r"unknown model 'Qwen/Qwen3-32B-INT3'.*; or a config\.json, or a YAML"
    ):
        MODELS.find("Qwen/Qwen3-32B-INT3")


def test_layers_that_hold_a_token():
    """Of three layers, two keep the last 4 tokens only."""
    model = ModelShape(**SMALL, window={"layers": 2, "tokens": 4})
    assert [model.kv_layers(context) for context in (1, 4, 8, 16)] == [3, 3, 2, 1.5]
    assert ModelShape(**SMALL).kv_layers(10**6) == 3
    assert model.weights == ModelShape(**SMALL).weights


def test_scales_of_four_bits_take_memory():
    """One byte for each 16 or 32 weights of the blocks."""
    plain, wide, narrow = (ModelShape(**SMALL, weight_dtype=dtype) for dtype in ("int4", "mxfp4", "nvfp4"))
    assert wide.weight_bytes - plain.weight_bytes == plain.block_weights / 32
    assert narrow.weight_bytes - plain.weight_bytes == plain.block_weights / 16


def test_with_mxfp4_only_the_experts_are_small():
    given = {**SMALL, "experts": EXPERTS}
    plain, small = ModelShape(**given), ModelShape(**given, weight_dtype="mxfp4")
    assert small.block_bytes == plain.block_bytes == 2 * plain.block_weights
    assert small.expert_bytes == plain.expert_weights * (0.5 + 1 / 32)
    assert (small.dense_dtype, ModelShape(**given, weight_dtype="nvfp4").dense_dtype) == (None, "nvfp4")


@pytest.mark.parametrize(
    "given",
    [
        {"experts": EXPERTS}, {"latent": LATENT}, {"window": {"layers": 1, "tokens": 4}}, {"weight_dtype": "fp8"},
        {"kv_dtype": "fp8"},
    ],
)  # fmt: skip
def test_models_that_are_not_dense_are_refused_where_unsupported(given):
    require_plain(ModelShape(**SMALL), "this")
    with pytest.raises(ConfigError, match=f"this: small has {next(iter(given))}"):
        require_plain(ModelShape(**SMALL, **given), "this")
