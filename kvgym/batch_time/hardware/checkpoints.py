"""Shape of a model from the ``config.json`` of its checkpoint, as published on Hugging Face.

Keys are those of the Transformers library (Hugging Face, Apache-2.0). Only the text part of a model is read: weights of
image and audio encoders, and of modules for multi-token prediction, are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from kvgym.batch_time.hardware.shapes import ModelShape
from kvgym.errors import ConfigError, shown, some
from kvgym.utils.reading import mapping, parse_json, validate_fields

_REQUIRED = object()
_HIGHEST = 2**31 - 1


@dataclass(frozen=True)
class Family:
    """How the models of a ``model_type`` are built, where their ``config.json`` does not say it.

    Attributes:
        experts: names of the keys of a mixture of experts, by field of
            :class:`~kvgym.batch_time.hardware.shapes.Experts`; None = dense.
        latent: whether attention is latent.
        window: layers with a sliding window, without ``layer_types``: ``"all"``; a number n, all but each n-th;
            ``"late"``, those from ``max_window_layers`` on if ``use_sliding_window`` is true; ``"chunks"``, those with
            rotary positions, of ``attention_chunk_size``; None = none.
        defaults: values that the Transformers library takes for keys that published files leave out.
    """

    experts: Mapping[str, str] | None = None
    latent: bool = False
    window: str | int | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)


_LOCAL = {"count": "num_local_experts", "ffn": "intermediate_size"}
_QWEN = {"count": "num_experts", "ffn": "moe_intermediate_size"}
_ROUTED = {"count": "n_routed_experts", "ffn": "moe_intermediate_size"}
_TIED = {"tie_word_embeddings": True}
_GEMMA3 = {
    **_TIED, "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "sliding_window": 4096,
}  # fmt: skip

FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(window="all"),
    "mixtral": Family(experts=_LOCAL, window="all"),
    "phi3": Family(window="all"),
    "qwen2": Family(window="late"),
    "qwen2_moe": Family(experts=_QWEN, window="late"),
    "qwen3": Family(window="late"),
    "qwen3_moe": Family(experts=_QWEN, window="late"),
    "glm4_moe": Family(experts=_ROUTED),
    "deepseek_v2": Family(experts=_ROUTED, latent=True),
    "deepseek_v3": Family(experts=_ROUTED, latent=True),
    "kimi_k2": Family(experts=_ROUTED, latent=True),
    "gpt_oss": Family(experts=_LOCAL, window=2),
    "llama4_text": Family(experts=_LOCAL, window="chunks", defaults={"n_shared_experts": 1}),
    "gemma": Family(defaults={**_TIED, "head_dim": 256}),
    "gemma2": Family(window=2, defaults={**_TIED, "head_dim": 256, "sliding_window": 4096}),
    "gemma3_text": Family(window=6, defaults=_GEMMA3),
}
"""Families that can be modelled, by ``model_type``: decoders with gated MLPs and attention in every layer."""


def parse_checkpoint(text: str, path: str) -> ModelShape:
    """Return the shape of the model that a ``config.json`` describes.

    Args:
        text: the content.
        path: where it lies; the model gets the name of the folder, or of the file if it has another name.

    Raises:
        ConfigError: a key is missing, wrong, or stands for something that cannot be modelled; the message names it.
    """
    where = f"model {path}"
    config = mapping(parse_json(text, where, finite=True), where)
    keys = _Keys(config, where)
    if config.get("text_config") is not None:
        keys = _Keys({**config, **keys.inside("text_config").config}, where)
    if keys.flag("is_encoder_decoder"):
        raise keys.wrong("is_encoder_decoder", "false: only decoders are modelled")
    model_type = keys.text("model_type")
    if model_type not in FAMILIES:
        families = f"one of the decoders with gated MLPs, {some(FAMILIES)}"
        raise keys.wrong("model_type", f"{families}; describe other shapes in a YAML file (docs/hardware.md)")
    keys.family = FAMILIES[model_type]
    return validate_fields(ModelShape, {"name": checkpoint_name(path), **_fields(keys)}, where)


def checkpoint_name(path: str) -> str:
    """Return the name of a checkpoint from the path of its ``config.json``: that of the folder.

    A file of another name has its own; in a cache of Hugging Face it is that of the model.
    """
    pure = PurePath(path)
    cached = next((part for part in pure.parts if part.startswith("models--")), "")
    if cached:
        return cached.rpartition("--")[2]
    return pure.parent.name if pure.stem == "config" and pure.parent.name else pure.stem


class _Keys:
    """The keys of a ``config.json``, with their types checked."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config, self.where = config, where
        self.family = Family()

    def _get(self, key: str, default: Any, expected: str, valid: Callable[[Any], bool]) -> Any:
        """Return a value, or the default of the family, or the one given; null counts as missing."""
        value = self.config.get(key)
        value = self.family.defaults.get(key) if value is None else value
        if value is None and default is not _REQUIRED:
            return default
        if value is None or not valid(value):
            raise self.wrong(key, expected)
        return value

    def whole(self, key: str, default: Any = _REQUIRED, least: int = 1) -> Any:
        """Return a whole number, or the default."""
        return self._get(
            key,
            default,
            f"a whole number ≥ {least}",
            lambda x: isinstance(x, int) and not isinstance(x, bool) and least <= x <= _HIGHEST,
        )

    def flag(self, key: str) -> bool:
        """Return true or false, false if it is missing."""
        return bool(self._get(key, False, "true or false", lambda x: isinstance(x, bool)))

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        """Return a text, or the default."""
        return str(self._get(key, default, "a text", lambda x: isinstance(x, str)))

    def items(self, key: str) -> list[Any]:
        """Return a list, empty if it is missing."""
        return list(self._get(key, [], "a list", lambda x: isinstance(x, list)))

    def inside(self, key: str) -> _Keys:
        """Return the keys of a mapping."""
        found = self._get(key, _REQUIRED, "a mapping", lambda x: isinstance(x, Mapping))
        return _Keys(found, f"{self.where}: {key}")

    def wrong(self, key: str, expected: str) -> ConfigError:
        """Return the error about a key."""
        value = self.config.get(key)
        found = "is missing" if value is None else f"= {shown(value)}"
        return ConfigError(f"{self.where}: {key} {found}; expected {expected}")


def _fields(keys: _Keys) -> dict[str, Any]:
    """Return the fields of the shape."""
    layers, heads = keys.whole("num_hidden_layers"), keys.whole("num_attention_heads")
    kv_heads = heads if keys.family.latent else keys.whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise keys.wrong("num_key_value_heads", f"a divisor of num_attention_heads = {heads}")
    hidden = keys.whole("hidden_size")
    if not keys.family.latent and not keys.whole("head_dim", 0) and hidden % heads:
        raise keys.wrong(
            "num_attention_heads", f"a divisor of hidden_size = {hidden}, as there is no head_dim"
        )
    given = {
        "num_layers": layers,
        "hidden": hidden,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "ffn": keys.whole("intermediate_size_mlp", None) or keys.whole("intermediate_size"),
        "vocab": keys.whole("vocab_size"),
        "head_dim": keys.whole("head_dim", 0),
        "experts": _experts(keys, layers),
        "latent": _latent(keys) if keys.family.latent else None,
        "tied_embeddings": keys.flag("tie_word_embeddings") or None,
        "window": _window(keys, layers),
        "weight_dtype": _weights(keys),
    }
    _check_type(keys)
    return {name: value for name, value in given.items() if value is not None}


def _experts(keys: _Keys, layers: int) -> dict[str, int] | None:
    """Return the mixture of experts."""
    names = keys.family.experts
    if names is None:
        return None
    width = keys.whole(names["ffn"])
    shared = keys.whole("shared_expert_intermediate_size", keys.whole("n_shared_experts", 0, 0) * width, 0)
    return {
        "count": keys.whole(names["count"]),
        "per_token": keys.whole("num_experts_per_tok"),
        "ffn": width,
        "shared_ffn": shared,
        "dense_layers": _dense_layers(keys, layers),
    }


def _dense_layers(keys: _Keys, layers: int) -> int:
    """Return the number of layers with an ordinary MLP; the keys of all families together, as each has its own."""
    first, dense = keys.whole("first_k_dense_replace", 0, 0), keys.items("mlp_only_layers")
    step = keys.whole("decoder_sparse_step", keys.whole("interleave_moe_layer_step", 1))
    every = keys.whole("moe_layer_freq", 1)
    mixed = keys.items("moe_layers") or [
        k for k in range(first, layers) if k not in dense and (k + 1) % step == 0 and k % every == 0
    ]
    if not mixed:
        raise ConfigError(
            f"{keys.where}: no layer has experts by decoder_sparse_step, mlp_only_layers and others"
        )
    return layers - len(mixed)


def _latent(keys: _Keys) -> dict[str, int | None]:
    return {
        "kv_rank": keys.whole("kv_lora_rank"),
        "query_rank": keys.whole("q_lora_rank", None),
        "nope_dim": keys.whole("qk_nope_head_dim"),
        "rope_dim": keys.whole("qk_rope_head_dim"),
        "value_dim": keys.whole("v_head_dim"),
    }


def _window(keys: _Keys, layers: int) -> dict[str, int] | None:
    """Return number and width of the layers with a sliding window."""
    rule, listed = keys.family.window, keys.items("layer_types")
    if rule == "late" and not keys.flag("use_sliding_window"):
        return None
    count = _windowed(keys, rule, layers)
    key = "attention_chunk_size" if rule == "chunks" else "sliding_window"
    width = keys.whole(key, _REQUIRED if listed and count else None)
    return {"layers": count, "tokens": width} if count and width else None


_KINDS = {"full_attention": 0, "sliding_attention": 1, "chunked_attention": 1}


def _windowed(keys: _Keys, rule: str | int | None, layers: int) -> int:
    """Return the number of layers with a window: by ``layer_types``, else by the rule of the family."""
    if kinds := keys.items("layer_types"):
        if len(kinds) != layers or not all(isinstance(kind, str) and kind in _KINDS for kind in kinds):
            raise keys.wrong("layer_types", f"{layers} of {', '.join(_KINDS)}; other layers are not modelled")
        return sum(_KINDS[kind] for kind in kinds)
    if rule is None or rule == "all":
        return layers if rule else 0
    if rule == "late":
        return max(layers - int(keys.whole("max_window_layers", 28, 0)), 0)
    if rotary := keys.items("no_rope_layers") if rule == "chunks" else []:
        return sum(kind == 1 for kind in rotary)
    period = 4 if rule == "chunks" else keys.whole("sliding_window_pattern", rule)
    return layers - layers // int(period)


_BY_METHOD = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4"}
_BY_BITS = {("int", 4): "int4", ("int", 8): "int8", ("float", 8): "fp8", ("float", 4): "nvfp4"}
_BY_ALGORITHM = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_AWQ": "int4", "W4A8_AWQ": "int4", "INT4_AWQ": "int4"}


def _weights(keys: _Keys) -> str | None:
    """Return the type of the weights, by ``quantization_config``; None = 16-bit."""
    if keys.config.get("quantization_config") is None:
        return None
    inside = keys.inside("quantization_config")
    method = inside.text("quant_method")
    if method in _BY_METHOD:
        return "fp8_block" if inside.items("weight_block_size") else _BY_METHOD[method]
    if method in ("awq", "gptq"):
        return _known(inside, "bits", _BY_BITS, ("int", inside.whole("bits")), "4 or 8")
    if method.startswith("modelopt"):
        algorithm = inside.text("quant_algo", "NVFP4" if method == "modelopt_fp4" else _REQUIRED)
        return _known(inside, "quant_algo", _BY_ALGORITHM, algorithm, ", ".join(_BY_ALGORITHM))
    if method == "compressed-tensors":
        return _compressed(inside)
    valid = ", ".join([*_BY_METHOD, "awq", "gptq", "modelopt", "compressed-tensors"])
    raise inside.wrong("quant_method", f"{valid}; or a YAML file with weight_dtype")


def _known(keys: _Keys, key: str, types: Mapping[Any, str], value: Any, expected: str) -> str:
    if value not in types:
        raise keys.wrong(key, expected)
    return types[value]


def _compressed(keys: _Keys) -> str:
    """Return the one type of all groups of compressed-tensors, the format of vLLM's llm-compressor."""
    found, groups = set(), keys.inside("config_groups")
    for name in groups.config:
        weights = groups.inside(name).inside("weights")
        kind = (weights.text("type"), weights.whole("num_bits"))
        dtype = _known(weights, "num_bits", _BY_BITS, kind, "int 4, int 8, float 4 or float 8")
        found.add("fp8_block" if dtype == "fp8" and weights.text("strategy", "") == "block" else dtype)
    if len(found) != 1:
        raise keys.wrong("config_groups", "groups with one type of weights; or a YAML file with weight_dtype")
    return "mxfp4" if found == {"nvfp4"} and "mxfp4" in keys.text("format", "") else found.pop()


def _check_type(keys: _Keys) -> None:
    """Check the type of everything that is not quantised; engines serve weights of 32 bits as 16-bit numbers."""
    key = "dtype" if keys.config.get("torch_dtype") is None else "torch_dtype"
    if keys.text(key, "bfloat16") not in ("bfloat16", "float16", "float32"):
        raise keys.wrong(key, "bfloat16, float16 or float32")
