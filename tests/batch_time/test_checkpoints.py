"""Shapes from ``config.json`` files: published ones against published numbers of weights, and what is refused."""

import json

import pytest

from kvgym.batch_time import MODELS, load_hardware
from kvgym.batch_time.hardware.checkpoints import FAMILIES, parse_checkpoint
from kvgym.errors import ConfigError

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN = {
    "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False,
    "sliding_window": 131072, "use_sliding_window": False, "max_window_layers": 28, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN_MOE = {
    "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "vocab_size": 151936, "sliding_window": None, "use_sliding_window": False, "max_window_layers": 48,
}  # fmt: skip
QWEN_15_MOE = {
    "model_type": "qwen2_moe", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 16, "intermediate_size": 5632, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "num_experts": 60, "num_experts_per_tok": 4, "decoder_sparse_step": 1,
    "vocab_size": 151936, "sliding_window": 32768, "use_sliding_window": False, "max_window_layers": 21,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2,
    "vocab_size": 32000, "sliding_window": None,
}  # fmt: skip
MISTRAL = {
    "model_type": "mistral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "sliding_window": 4096,
}  # fmt: skip
PHI = {
    "model_type": "phi3", "num_hidden_layers": 32, "hidden_size": 3072, "num_attention_heads": 32,
    "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064, "sliding_window": 2047,
}  # fmt: skip
LITE = {
    "model_type": "deepseek_v2", "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 16, "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "vocab_size": 102400,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "vocab_size": 129280, "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 32,
    "num_experts_per_tok": 4, "vocab_size": 201088, "sliding_window": 128, "tie_word_embeddings": False,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
GEMMA_2 = {
    "model_type": "gemma2", "num_hidden_layers": 42, "hidden_size": 3584, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 256, "intermediate_size": 14336, "vocab_size": 256000,
    "sliding_window": 4096,
}  # fmt: skip
GEMMA_3 = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "num_hidden_layers": 62, "hidden_size": 5376, "num_attention_heads": 32,
        "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 21504, "sliding_window": 1024,
    },
    "vision_config": {"num_hidden_layers": 27, "hidden_size": 1152},
    "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA_3_SMALL = {  # what the library adds is left out: 8 heads and 4 KV heads of 256
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560, "intermediate_size": 10240,
        "sliding_window": 1024,
    },
}  # fmt: skip
SCOUT = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "no_rope_layers": [],
        "attention_chunk_size": 8192, "vocab_size": 202048,
    },
}  # fmt: skip


SCOUT_WEIGHTS = (
    48 * (2 * 5120**2 + 2 * 5120 * 1024 + 5120 * (2 + 16) + 17 * 3 * 5120 * 8192) + 2 * 202048 * 5120
)
"""Per layer: attention, norms and router, 16 experts and a shared one; embedding, LM head. 109 B with the encoder."""


def shape_of(config, path="model/config.json"):
    return parse_checkpoint(json.dumps(config), path)


@pytest.mark.parametrize(
    ("config", "weights", "kv", "window"),
    [
        # Parameters of the published checkpoints; of the last one by hand.
        (LLAMA, 8_030_261_248, 2 * 32 * 8 * 128 * 2, None),
        (QWEN, 7_615_616_512, 2 * 28 * 4 * 128 * 2, None),
        (QWEN_MOE, 30_532_122_624, 2 * 48 * 4 * 128 * 2, None),
        (QWEN_15_MOE, 14_315_784_192, 2 * 24 * 16 * 128 * 2, None),
        (MIXTRAL, 46_702_792_704, 2 * 32 * 8 * 128 * 2, None),
        (MISTRAL, 7_241_732_096, 2 * 32 * 8 * 128 * 2, (32, 4096)),
        (PHI, 3_821_079_552, 2 * 32 * 32 * 96 * 2, (32, 2047)),
        (LITE, 15_706_484_224, 27 * (512 + 64) * 2, None),
        (DEEPSEEK, 671e9, 61 * (512 + 64) * 2, None),
        (GPT_OSS, 20_914_757_184, 2 * 24 * 8 * 64 * 2, (12, 128)),
        (GEMMA_2, 9_241_705_984, 2 * 42 * 8 * 256 * 2, (21, 4096)),
        (GEMMA_3, 27_009_346_304, 2 * 62 * 16 * 128 * 2, (52, 1024)),
        (GEMMA_3_SMALL, 3_880_099_328, 2 * 34 * 4 * 256 * 2, (29, 1024)),
        (SCOUT, SCOUT_WEIGHTS, 2 * 48 * 8 * 128 * 2, (36, 8192)),
    ],
    ids=lambda given: given["model_type"] if isinstance(given, dict) else "",
)
def test_published_models(config, weights, kv, window):
    shape = shape_of(config)
    assert shape.weights == pytest.approx(weights, rel=1e-3)
    assert shape.kv_bytes_per_token == kv
    assert (shape.window and (shape.window.layers, shape.window.tokens)) == window


def test_presets_are_the_shapes_of_their_checkpoints():
    for name, config in {
        "llama3-8b": LLAMA, "qwen2.5-7b": QWEN, "qwen3-30b-a3b": QWEN_MOE, "mixtral-8x7b": MIXTRAL,
        "gpt-oss-20b": GPT_OSS, "gemma-3-27b": GEMMA_3,
    }.items():  # fmt: skip
        assert shape_of(config).model_copy(update={"name": MODELS[name].name}) == MODELS[name], name
    types = {"name": "DeepSeek-V3", "weight_dtype": MODELS["deepseek-v3"].weight_dtype}
    assert shape_of(DEEPSEEK).model_copy(update=types) == MODELS["deepseek-v3"]


def test_the_name_is_that_of_the_folder_or_the_file():
    cached = "/home/me/.cache/huggingface/hub/models--Qwen--Qwen2.5-7B/snapshots/a0b1/config.json"
    for path, name in {
        "/models/My-7B/config.json": "My-7B", "config.json": "config", "mine.json": "mine", cached: "Qwen2.5-7B",
    }.items():  # fmt: skip
        assert shape_of(QWEN, path).name == name


@pytest.mark.parametrize(
    ("quantised", "dtype"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"type": "int", "num_bits": 4, "strategy": "group"}, "int4"),
        ({"type": "float", "num_bits": 8, "strategy": "channel"}, "fp8"),
        ({"type": "float", "num_bits": 8, "strategy": "block"}, "fp8_block"),
        ({"type": "float", "num_bits": 4}, "nvfp4"),
        (None, None),
    ],
)
def test_types_of_weights(quantised, dtype):
    if quantised and "type" in quantised:
        groups = {"group_0": {"targets": ["Linear"], "weights": quantised}}
        quantised = {"quant_method": "compressed-tensors", "format": "x", "config_groups": groups}
    shape = shape_of({**LLAMA, "quantization_config": quantised})
    assert (shape.weight_dtype, shape.kv_dtype) == (dtype, None)


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({**QWEN, "use_sliding_window": True, "max_window_layers": 20}, (8, 131072)),
        ({**QWEN, "use_sliding_window": True, "max_window_layers": 28}, None),
        ({**MISTRAL, "sliding_window": None}, None),
        ({**MISTRAL, "layer_types": ["full_attention"] * 8 + ["sliding_attention"] * 24}, (24, 4096)),
        ({**LLAMA, "layer_types": ["full_attention"] * 32}, None),
        ({**GEMMA_3["text_config"], "sliding_window_pattern": 2}, (31, 1024)),
        ({**SCOUT["text_config"], "no_rope_layers": [1, 1, 0] * 16}, (32, 8192)),
        ({**SCOUT["text_config"], "layer_types": ["chunked_attention", "full_attention"] * 24}, (24, 8192)),
    ],
)
def test_windows(config, window):
    found = shape_of(config).window
    assert (found and (found.layers, found.tokens)) == window


def test_layers_without_experts():
    every_other = shape_of({**QWEN_MOE, "decoder_sparse_step": 2, "mlp_only_layers": [1]})
    assert every_other.experts.dense_layers == 24 + 1
    maverick = {**SCOUT["text_config"], "interleave_moe_layer_step": 2, "num_local_experts": 128}
    shape = shape_of(maverick)
    assert (shape.experts.dense_layers, shape.ffn, shape.experts.shared_ffn) == (24, 16384, 8192)
    assert shape.weights == pytest.approx(400e9, rel=0.01)


@pytest.mark.parametrize(
    "config", [LLAMA, QWEN_MOE, LITE, GPT_OSS, GEMMA_3["text_config"], SCOUT["text_config"]]
)
def test_a_missing_or_wrong_key_is_named(config):
    """Every key without which the shape is unknown, and every one of a wrong type."""
    optional = {
        "num_key_value_heads", "head_dim", "first_k_dense_replace", "moe_layer_freq", "n_shared_experts",
        "decoder_sparse_step", "interleave_moe_layer_step", "intermediate_size_mlp", "max_window_layers",
        "sliding_window", "attention_chunk_size",
    }  # fmt: skip
    unread = {"num_key_value_heads"} if "kv_lora_rank" in config else {"max_window_layers"}
    for key, value in config.items():
        if isinstance(value, int) and key not in unread and not isinstance(value, bool):
            for wrong in (str(value), -1, 1.5, True, [value]):
                with pytest.raises(ConfigError, match=f"x.json: {key} = .*; expected a whole number ≥ "):
                    shape_of({**config, key: wrong}, "x.json")
            if key not in {*optional, *FAMILIES[config["model_type"]].defaults}:
                with pytest.raises(ConfigError, match=f"x.json: {key} is missing; expected a whole number"):
                    shape_of({**config, key: None}, "x.json")
        elif isinstance(value, list | bool):
            with pytest.raises(ConfigError, match=f"x.json: {key} = 'yes'; expected "):
                shape_of({**config, key: "yes"}, "x.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mamba2"}, "model_type = 'mamba2'; expected one of the decoders with gated MLPs, llama, "),
        ({"model_type": None}, "model_type is missing; expected a text"),
        ({"model_type": "t5"}, "model_type = 't5'"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder = True; expected false"),
        ({"num_key_value_heads": 5}, "num_key_value_heads = 5; expected a divisor of num_attention_heads = 32"),
        ({"hidden_size": 4100}, "num_attention_heads = 32; expected a divisor of hidden_size = 4100"),
        ({"layer_types": ["linear_attention"] * 32}, "layer_types = .*; expected 32 of full_attention, sliding"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types = .*; expected 32 of full_attention"),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding_window is missing; expected a whole number"),
        ({"torch_dtype": "int3"}, "torch_dtype = 'int3'; expected bfloat16, float16 or float32"),
        ({"torch_dtype": None, "dtype": 2}, "dtype = 2; expected a text"),
        ({"text_config": 3}, "text_config = 3; expected a mapping"),
        ({"quantization_config": 3}, "quantization_config = 3; expected a mapping"),
        ({"quantization_config": {}}, "quantization_config: quant_method is missing; expected a text"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "quant_method = 'aqlm'; expected fp8, "),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "bits = 3; expected 4 or 8"),
        ({"quantization_config": {"quant_method": "modelopt"}}, "quant_algo is missing; expected a text"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "X"}}, "quant_algo = 'X'; expected FP8"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "config_groups is missing"),
    ],
)  # fmt: skip
def test_what_cannot_be_modelled_is_refused(change, words):
    with pytest.raises(ConfigError, match=words) as error:
        shape_of({**LLAMA, **change}, "x.json")
    assert len(str(error.value)) <= 300


def test_two_types_of_weights_are_refused():
    groups = {str(bits): {"weights": {"type": "int", "num_bits": bits}} for bits in (4, 8)}
    quantised = {"quant_method": "compressed-tensors", "config_groups": groups}
    with pytest.raises(ConfigError, match=r"config_groups = .*; expected groups with one type of weights"):
        shape_of({**LLAMA, "quantization_config": quantised})


@pytest.mark.parametrize(("text", "words"), [("{", "not valid JSON: line 1"), ("[1]", "must be a mapping")])
def test_other_files_are_refused(text, words):
    with pytest.raises(ConfigError, match=f"model x.json: {words}"):
        parse_checkpoint(text, "x.json")


def test_a_file_serves_as_the_model(tmp_path):
    path = tmp_path / "Qwen2.5-7B-Instruct" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(QWEN))
    hardware = load_hardware(f"model={path},gpu=h100")
    assert hardware.description == "Qwen2.5-7B-Instruct on 1 x H100 80GB, 16-bit weights and KV cache"
    assert hardware.kv_capacity == load_hardware("model=qwen2.5-7b,gpu=h100").kv_capacity
    assert "model: config.json of the checkpoint" in hardware.source
