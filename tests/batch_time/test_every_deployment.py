"""Every model on every GPU with tables, at every number of GPUs and type: it has batch times, or is refused."""

import itertools

import numpy as np
import pytest

from kvgym.batch_time import GPUS, MODELS, load_hardware
from kvgym.batch_time.operators.files import operator_gpus
from kvgym.batch_time.operators.tables import Grid, OperatorTables
from kvgym.errors import ConfigError

DEGREES = (1, 2, 4, 8, 16)
TYPES = ("", ",weights=fp8,kv_dtype=fp8")
REFUSED = ("does not divide the", "does not fit on")


@pytest.mark.parametrize("gpu", operator_gpus())
def test_it_has_batch_times_or_is_refused(gpu):
    built, refused = 0, []
    for model, degree, types in itertools.product(MODELS, DEGREES, TYPES):
        text = f"model={model},gpu={gpu},tp={degree}{types}"
        try:
            batch_time = load_hardware(text).batch_time()
        except ConfigError as error:
            refused.append(str(error))
            continue
        decode = batch_time(num_decodes=16, decode_context=32_000)
        prefill = batch_time(num_prefills=1, prefill_tokens=2048, prefill_squares=2048**2)
        assert 0 < decode < prefill < 30, text
        built += 1
    assert built > 100
    assert all(any(words in text for words in REFUSED) for text in refused), refused


def flops(model, tokens):
    """FLOPs of a prompt: two per weight of the blocks and token, four per head entry and pair of query and key."""
    projections = model.hidden * model.head_dim * 2 * (model.num_heads + model.num_kv_heads)
    products = 2 * tokens * (projections + 3 * model.hidden * model.ffn)
    attention = 4 * model.num_heads * model.head_dim * tokens * (tokens + 1) / 2
    return model.num_layers * (products + attention)


@pytest.mark.parametrize(
    ("model", "gpu", "degree", "tokens"),
    [
        ("llama3-8b", "h100-80gb", 1, 131_072),
        ("llama3-70b", "h100-80gb", 4, 131_072),
        ("mistral-7b", "h100-80gb", 2, 200_000),
        ("qwen3-14b", "h200", 1, 200_000),
        ("llama3-70b", "b200", 2, 200_000),
        ("llama3-8b", "a100-80gb", 1, 131_072),
        ("qwen3-8b", "l40s", 1, 65_536),
        ("qwen3-32b", "rtx-pro-6000", 2, 131_072),
        ("llama3-8b", "rtx-4090", 1, 32_768),
    ],
)
def test_long_prompts_take_as_long_whole_as_in_chunks(model, gpu, degree, tokens):
    """Tables end at 16,384 tokens, of RTX 4090 at 2,048; no prompt runs faster than the GPU's peak."""
    batch_time = load_hardware(f"model={model},gpu={gpu},tp={degree}").batch_time(engine="none")
    whole = batch_time(num_prefills=1, prefill_tokens=tokens, prefill_squares=tokens**2)
    done, chunked = 0, 0.0
    while done < tokens:
        chunk = min(8192, tokens - done)
        chunked += batch_time(
            num_prefills=1,
            prefill_tokens=chunk,
            prefill_squares=chunk**2,
            prefill_context=done,
            prefill_products=chunk * done,
        )
        done += chunk
    assert 0.9 < whole / chunked < 1.1
    peak = degree * GPUS[gpu].flops("bf16")
    assert 0.4 < flops(MODELS[model], tokens) / (whole * peak) < 1


def test_between_numbers_of_heads_measured_at_other_loads():
    """Attention of 6 heads is halfway between those of 4 and 8, at the loads that both have."""
    few = Grid((np.array([1.0, 2.0, 4.0]), np.array([10.0, 20.0])), np.array([[1.0, 2.0], [3, 4], [5, 6]]))
    many = Grid((np.array([1.0, 4.0]), np.array([10.0, 20.0, 40.0])), np.array([[3.0, 4.0, 9.0], [7, 8, 9]]))
    tables = OperatorTables("x", "", "", "", decode={("bf16", 128, 4, 2): few, ("bf16", 128, 8, 2): many})
    mixed = tables.attention("decode", "bf16", 128, 6, 2)
    assert [axis.tolist() for axis in mixed.axes] == [[1, 4], [10, 20]]
    assert mixed.ms.tolist() == [[2, 3], [6, 7]]
