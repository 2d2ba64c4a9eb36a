"""Every model on every GPU with tables, at every number of GPUs and type: it has batch times, or is refused."""

import functools
import itertools

import numpy as np
import pytest

from kvgym.batch_time import GPUS, MODELS, load_hardware
from kvgym.batch_time.operators.files import operator_gpus
from kvgym.batch_time.operators.tables import Grid, OperatorTables
from kvgym.errors import ConfigError

DEGREES = (1, 2, 4, 8, 16)
TYPES = {"published": "", "fp8": ",weights=fp8,kv_dtype=fp8"}
REFUSED = ("does not divide the", "does not fit on")
PROMPTS = (2048, 8192)
DECODES = tuple(itertools.product((1, 16, 64, 256), (512, 4096, 32_768)))
"""Requests and context of each."""

SLOWER = 1.05
"""Most time on a newer GPU, of that on an older one."""
SLOWER_ALLOWED = {
    ("h200", "published"): (
        1.7,
        "experts of Mixtral-8x22B and Qwen3-30B-A3B: a slower kernel of vLLM 0.24 than of 0.19",
    ),
    ("h200", "fp8"): (
        1.4,
        "decode attention with an fp8 cache, small fp8 products: slower in vLLM 0.24 than in 0.19",
    ),
    ("b200", "published"): (1.25, "small all-reduces over 8 GPUs take up to twice as long as on H200"),
    ("b200", "fp8"): (1.35, "the same; products of 2,880 columns in fp8 take four times as long as on H200"),
}
"""Other limits by newer GPU and type of weights."""

CLIFF = (0.4, 1.15)
"""Least and most time on twice as many GPUs, of that on half of them."""
CLIFFS_ALLOWED = {
    ("a100-80gb", "fp8", 4): (
        0.4,
        1.3,
        "small all-reduces over 8 GPUs take up to three times as long as over 4",
    ),
    ("a100-80gb", "published", 8): (
        0.4,
        11,
        "decodes with 2 query heads and a KV head: a kernel at 6 % of the bandwidth",
    ),
    ("b200", "fp8", 1): (0.39, 1.2, "whole experts of Mixtral-8x7B take long; small all-reduces"),
    ("b200", "published", 4): (0.4, 1.2, "small all-reduces over 8 GPUs take twice as long as over 4"),
    ("b200", "fp8", 4): (0.4, 1.35, "the same"),
    ("b200", "fp8", 8): (0.4, 1.45, "decodes of 4 query heads and a KV head of 64 are slower than of 8"),
    ("h200", "published", 4): (0.35, 1.15, "experts of Mixtral-8x22B at TP 4: a slow kernel"),
    ("l40s", "fp8", 1): (0.15, 1.2, "decodes with an fp8 cache and 4 KV heads: a slow kernel"),
    ("l40s", "published", 2): (
        0.4,
        4.0,
        "all-reduces over four L40S, without peer access, at a tenth of those over two",
    ),
    ("l40s", "fp8", 2): (0.15, 4.0, "the same; decodes with an fp8 cache and 4 KV heads: a slow kernel"),
    ("l40s", "published", 4): (0.4, 2.3, "all-reduces over eight L40S at half of those over four"),
    ("l40s", "fp8", 4): (0.09, 2.3, "the same; decodes with an fp8 cache and 2 KV heads: a slow kernel"),
    ("l40s", "published", 8): (0.4, 5.2, "decodes with 2 query heads and a KV head: a slow kernel"),
    ("l40s", "fp8", 8): (
        0.12,
        1.15,
        "decodes with an fp8 cache and 8 query heads for a KV head: a slow kernel",
    ),
    ("rtx-4090", "fp8", 1): (0.4, 1.3, "all-reduces over PCIe"),
    ("rtx-pro-6000", "published", 1): (0.4, 1.4, "all-reduces over PCIe"),
    ("rtx-pro-6000", "fp8", 1): (
        0.14,
        2.1,
        "the same; decodes with an fp8 cache and 4 KV heads: a slow kernel",
    ),
    ("rtx-pro-6000", "published", 2): (
        0.3,
        1.15,
        "decodes with 14 query heads and 2 KV heads: a slow kernel",
    ),
    ("rtx-pro-6000", "fp8", 2): (
        0.25,
        1.3,
        "decodes with an fp8 cache: some slow kernels; all-reduces over PCIe",
    ),
    ("rtx-pro-6000", "fp8", 4): (
        0.4,
        2.8,
        "decodes with an fp8 cache, 4 query heads and a KV head: a slow kernel",
    ),
    ("rtx-pro-6000", "published", 8): (0.4, 4.1, "decodes with 2 query heads and a KV head: a slow kernel"),
    ("rtx-pro-6000", "fp8", 8): (
        0.4,
        2.6,
        "decodes with an fp8 cache, 4 query heads and a KV head: a slow kernel",
    ),
}
"""Other limits by GPU, type of weights and the smaller number of GPUs."""


@functools.cache
def deployments(gpu):
    """Return hardware and seconds of the kernels by (model, type, degree), and what is refused."""
    built, refused = {}, []
    for model, (name, types), degree in itertools.product(MODELS, TYPES.items(), DEGREES):
        text = f"model={model},gpu={gpu},tp={degree}{types}"
        try:
            hardware = load_hardware(text)
            batch_time = hardware.batch_time(engine="none")
        except ConfigError as error:
            refused.append(str(error))
            continue
        seconds = {
            (tokens,): batch_time(num_prefills=1, prefill_tokens=tokens, prefill_squares=tokens**2)
            for tokens in PROMPTS
        }
        for count, context in DECODES:
            if count * (context + 1) <= hardware.kv_capacity:
                seconds[count, context] = batch_time(num_decodes=count, decode_context=count * context)
        built[model, name, degree] = hardware, seconds
    return built, refused


@pytest.mark.parametrize("gpu", operator_gpus())
def test_it_has_batch_times_or_is_refused(gpu):
    built, refused = deployments(gpu)
    assert len(built) > 100
    assert all(any(words in text for words in REFUSED) for text in refused), refused


@pytest.mark.parametrize("gpu", operator_gpus())
def test_no_deployment_is_faster_than_its_gpu(gpu):
    """At most 1.04 of the peak: clocks, and the accuracy of the tables. A layer launches five kernels of 2 µs."""
    figures = GPUS[gpu]
    for (model, types, degree), (hardware, seconds) in deployments(gpu)[0].items():
        shape = hardware.model
        peak = degree * figures.flops("fp8" if types == "fp8" else "bf16")
        experts = shape.experts
        expert = shape.expert_bytes / experts.count * experts.per_token if experts else 0.0
        weights = (shape.block_bytes + expert + shape.vocab * shape.hidden * shape.dtype_bytes) / degree
        for load, time in seconds.items():
            if len(load) == 1:
                share = flops(shape, *load) / (time * peak)
            else:
                count, context = load
                layers = shape.kv_layers(context) / shape.num_layers
                cache = count * context * shape.kv_bytes_per_token * layers / shape.kv_parts(degree)
                share = (weights + cache) / (time * figures.memory_bandwidth)
                assert time > shape.num_layers * 5 * 2e-6, (model, types, degree, load)
            assert share < 1.04, (model, types, degree, load, share)


@pytest.mark.parametrize(("newer", "older"), [("h200", "h100-80gb"), ("b200", "h200")])
def test_a_newer_gpu_is_no_slower(newer, older):
    built, before = deployments(newer)[0], deployments(older)[0]
    worst = dict.fromkeys(TYPES, 0.0)
    for model, types, degree in built.keys() & before.keys():
        (_, seconds), (_, earlier) = built[model, types, degree], before[model, types, degree]
        for load in seconds.keys() & earlier.keys():
            ratio = seconds[load] / earlier[load]
            worst[types] = max(worst[types], ratio)
            limit, _ = SLOWER_ALLOWED.get((newer, types), (SLOWER, ""))
            assert ratio < limit, (model, types, degree, load, ratio)
    unused = [types for types, ratio in worst.items() if ratio < SLOWER and (newer, types) in SLOWER_ALLOWED]
    assert not unused, "remove them from SLOWER_ALLOWED"


@pytest.mark.parametrize("gpu", operator_gpus())
def test_more_gpus_are_no_cliff(gpu):
    built, used = deployments(gpu)[0], set()
    for (model, types, degree), (_, seconds) in built.items():
        if (model, types, 2 * degree) not in built:
            continue
        doubled = built[model, types, 2 * degree][1]
        least, most, *_ = CLIFFS_ALLOWED.get((gpu, types, degree), CLIFF)
        for load in seconds.keys() & doubled.keys():
            ratio = doubled[load] / seconds[load]
            assert least < ratio < most, (model, types, degree, load, ratio)
            if not CLIFF[0] < ratio < CLIFF[1]:
                used.add((gpu, types, degree))
    assert {key for key in CLIFFS_ALLOWED if key[0] == gpu} == used, "remove the others from CLIFFS_ALLOWED"


def flops(shape, tokens):
    """FLOPs of a prompt: two per weight and token, two per entry of queries or values and pair of query and key."""
    latent = shape.latent
    values = shape.num_heads * latent.value_dim if latent else shape.query_width
    window = shape.kv_layers(tokens) / shape.num_layers  # less than 1 leaves out pairs: a lower bound
    pairs = tokens * (tokens + 1) / 2 * window
    return 2 * tokens * shape.token_weights + 2 * shape.num_layers * (shape.query_width + values) * pairs


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
