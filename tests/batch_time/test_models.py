"""Hand-worked batch times of the models without calibration, their specifications and their errors."""

import json

import numpy as np
import pytest

from kvgym.batch_time import (
    BATCH_TIMES,
    GPU,
    AffineBatchTime,
    ModelShape,
    PiecewiseBatchTime,
    RooflineBatchTime,
    UnitBatchTime,
    load_hardware,
    make_batch_time,
)
from kvgym.errors import ConfigError, UnknownNameError


def test_a_unit_batch_takes_one_second_even_if_empty():
    model = UnitBatchTime()
    assert model() == 1.0
    assert model(num_decodes=7, decode_context=900) == 1.0
    np.testing.assert_array_equal(model(num_decodes=np.arange(3)), np.ones(3))


def test_affine_counts_cached_and_new_tokens():
    model = AffineBatchTime(0.5, 0.01, 0.02, 0.001)
    load = {
        "num_prefills": 1,
        "prefill_tokens": 10,
        "prefill_context": 5,
        "num_decodes": 3,
        "decode_context": 60,
    }
    # 0.5 + 10 * 0.01 + 3 * 0.02 + (5 + 60 + 10 + 3) * 0.001
    assert model(**load) == pytest.approx(0.738)
    cached_only = AffineBatchTime(0.5, 0.01, 0.02, 0.001, include_new=False)
    assert cached_only(**load) == pytest.approx(0.725)
    assert model() == 0.5


def test_wait_equation_one():
    """Prompts of 4 and 6 in prefill; decodes that will hold 10 + 3 and 8 + 1 tokens: 32 in all."""
    model = AffineBatchTime.from_wait(d0=2.0, d1=0.5)
    cached = (10 + 3 - 1) + (8 + 1 - 1)
    assert model(num_prefills=2, prefill_tokens=10, num_decodes=2, decode_context=cached) == 2.0 + 0.5 * 32


@pytest.mark.parametrize(("tokens", "seconds"), [(0, 2.0), (100, 2.0), (101, 2.1), (150, 7.0)])
def test_threshold(tokens, seconds):
    model = PiecewiseBatchTime.from_threshold(c=2.0, a=0.1, b0=100)
    assert model(num_prefills=1, prefill_tokens=tokens) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("quantity", "x"), [("requests", 6.0), ("tokens", 14.0), ("kv_tokens", 121.0), ("context", 107.0)]
)
def test_piecewise_quantities_and_breakpoints(quantity, x):
    model = PiecewiseBatchTime(quantity, [0, 10, 110], [1, 2, 4], slope=0.5)
    load = {
        "num_prefills": 2,
        "prefill_tokens": 10,
        "prefill_context": 7,
        "num_decodes": 4,
        "decode_context": 100,
    }
    expected = np.interp(x, [0, 10, 110], [1, 2, 4]) + 0.5 * max(0.0, x - 110)
    assert model(**load) == pytest.approx(expected, rel=1e-12)


TOY_GPU = GPU(
    name="toy",
    peak_flops=1000.0,
    memory_bandwidth=100.0,
    memory=1e9,
    num_sms=4,
    link_bandwidth=10.0,
    link_latency=0.5,
)
TOY_MODEL = ModelShape(
    name="toy", num_layers=2, hidden=4, num_heads=2, num_kv_heads=1, ffn=8, vocab=10, dtype_bytes=2
)


def test_roofline_by_hand():
    model = RooflineBatchTime(TOY_GPU, TOY_MODEL, compute_efficiency=0.5, memory_efficiency=0.5, overhead=1.0)
    assert model() == 1.0
    # Weights per layer: 2 * 16 + 2 * 4 * 2 + 3 * 4 * 8 + 2 * 4 = 152; two layers, 2 bytes, 50 bytes/s.
    weights = 2 * 152 * 2 / 50
    # Activations per token and layer: 10 * 4 + 2 * 2 + 4 * 8 = 76 entries.
    linear = max(2 * 304 * 3 / 500, weights + 3 * 2 * 76 * 2 / 50)
    # Three decodes at 9, 9 and 9: 30 keys; KV bytes per token: 2 * 2 * 2 * 2 = 16.
    decode = max(4 * 4 * 2 * 30 / 500, 16 * 30 / 50)
    head = max(3 * 2 * 40 / 500, 40 * 2 / 50)
    assert model(num_decodes=3, decode_context=27) == pytest.approx(1.0 + linear + decode + head)
    # A chunk of 5 after 2: 5 * 2 + 15 = 25 pairs.
    prefill = max(4 * 4 * 2 * 25 / 500, 16 * 7 / 50)
    linear = max(2 * 304 * 5 / 500, weights + 5 * 2 * 76 * 2 / 50)
    head = max(2 * 40 / 500, 40 * 2 / 50)
    got = model(num_prefills=1, prefill_tokens=5, prefill_context=2, prefill_squares=25, prefill_products=10)
    assert got == pytest.approx(1.0 + linear + prefill + head)


def test_roofline_tensor_parallel_halves_work_and_adds_collectives():
    one, two = (
        RooflineBatchTime(TOY_GPU, TOY_MODEL, tensor_parallel=gpus, overhead=0.0).figures for gpus in (1, 2)
    )
    for name in ("token", "weights", "activations", "prefill_pair", "head_row", "head_weights"):
        assert getattr(two, name) == pytest.approx(getattr(one, name) / 2), name
    # One KV head on two GPUs is copied: reading the cache is not halved.
    assert two.kv_token == pytest.approx(one.kv_token)
    # Four all-reduces: 0.5 s each, and 2 * (1 / 2) * 4 entries * 2 bytes / 10 bytes/s per token.
    assert (two.launches, two.all_reduce) == pytest.approx((4 * 0.5, 4 * 0.8))


def test_small_kernels_take_time_in_every_layer_of_a_batch_with_tokens():
    plain, more = (RooflineBatchTime(TOY_GPU, TOY_MODEL, small_kernels_ms=ms) for ms in (0.0, 2.0))
    load = {"num_decodes": 2, "decode_context": 10}
    assert more(**load) - plain(**load) == pytest.approx(TOY_MODEL.num_layers * 2e-3)
    assert more() == plain()


def test_roofline_presets_are_plausible():
    """A decode of Llama-2-7B reads 13.2 GB of weights: 6.5 ms at the A100's peak bandwidth, 8.1 at 80 %."""
    model = make_batch_time({"kind": "roofline", "gpu": "a100-80gb", "model": "llama2-7b", "overhead": 0.0})
    assert model(num_decodes=1, decode_context=1) == pytest.approx(0.0081, rel=0.02)


SPECS = [
    {"kind": "unit"},
    {"kind": "kernels", "hardware": "kernels:model=llama3-8b,gpu=rtx-4090", "engine": "vllm-2024"},
    {"kind": "affine", "constant": 0.5, "per_context_token": 0.001, "include_new": False},
    {"kind": "wait", "d0": 0.01, "d1": 1e-6},
    {"kind": "piecewise", "quantity": "context", "breakpoints": [1, 5], "times": [1.0, 2.0], "slope": 0.0},
    {"kind": "threshold", "c": 0.1, "a": 0.01, "b0": 64},
    {"kind": "roofline", "gpu": "h100-80gb", "model": "llama2-70b", "tensor_parallel": 4},
    {
        "kind": "roofline",
        "gpu": TOY_GPU.model_dump(),
        "model": TOY_MODEL.model_dump(),
        "overhead_per_request": 1.0,
    },
    {"kind": "profile", "hardware": "llama2-7b-a100-tp1", "composition": "vidur"},
    {"kind": "tile", "gpu": TOY_GPU.model_dump(), "model": TOY_MODEL.model_dump(), "t_row": 4},
    {"kind": "tile", "gpu": "h100-80gb", "model": "llama2-70b", "tensor_parallel": 4, "tile_rate": 1e9},
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec["kind"])
def test_spec_round_trips_through_json(spec):
    model = make_batch_time(spec)
    again = make_batch_time(json.loads(json.dumps(model.spec())))
    assert type(again) is type(model)
    assert again.spec() == model.spec()
    np.testing.assert_array_equal(again.params(), model.params())


def test_every_kind_has_a_round_trip():
    assert {spec["kind"] for spec in SPECS} == set(BATCH_TIMES)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, ["'kind'", "affine"]),
        ({"kind": "affin"}, ["Did you mean 'affine'", "profile"]),
        ({"kind": "affine", "constant": 1, "slope": 2}, ["'slope'", "per_context_token"]),
        ({"kind": "unit", "seconds": 2}, ["'seconds'", "none"]),
        ({"kind": "affine"}, ["constant"]),
        ({"kind": "affine", "constant": -1}, ["constant must be >= 0", "-1"]),
        ({"kind": "affine", "constant": "fast"}, ["finite number", "'fast'"]),
        ({"kind": "affine", "constant": float("nan")}, ["finite number"]),
        (
            {"kind": "piecewise", "quantity": "token", "breakpoints": [1], "times": [1], "slope": 0},
            ["'tokens'"],
        ),
        (
            {"kind": "piecewise", "quantity": "tokens", "breakpoints": [1, 2], "times": [1], "slope": 0},
            ["2 and 1"],
        ),
        (
            {"kind": "piecewise", "quantity": "tokens", "breakpoints": [2, 1], "times": [1, 1], "slope": 0},
            ["ascend"],
        ),
        (
            {"kind": "piecewise", "quantity": "tokens", "breakpoints": [1, 2], "times": [2, 1], "slope": 0},
            ["must not fall"],
        ),
        ({"kind": "roofline", "gpu": "a100", "model": "llama2-7b"}, ["'a100-80gb'"]),
        ({"kind": "roofline", "gpu": {"name": "x"}, "model": "llama2-7b"}, ["gpu.peak_flops", "required"]),
        (
            {"kind": "roofline", "gpu": "a100-80gb", "model": "llama2-7b", "tensor_parallel": 3},
            ["32 heads", "3"],
        ),
        (
            {"kind": "roofline", "gpu": "a100-80gb", "model": "llama2-7b", "memory_efficiency": 1.5},
            ["(0, 1]", "1.5"],
        ),
        ({"kind": "profile"}, ["either hardware"]),
        ({"kind": "profile", "hardware": "llama2-7b-a100-tp1", "composition": "x"}, ["'vidur'", "vidur"][1:]),
        ({"kind": "profile", "tables": {"num_layers": 0}}, ["tables.num_layers"]),
    ],
)
def test_errors_name_the_mistake_and_the_valid_values(spec, words):
    with pytest.raises(ConfigError) as caught:
        make_batch_time(spec)
    for word in words:
        assert word in str(caught.value)


def test_unknown_kind_is_an_unknown_name():
    with pytest.raises(UnknownNameError):
        make_batch_time({"kind": "linear"})


def test_drafts_are_tokens_and_rows_but_attention_is_that_of_the_requests():
    affine = make_batch_time({"kind": "affine", "constant": 1, "per_decode_token": 8, "per_context_token": 2})
    assert affine(num_decodes=3, decode_context=30, draft_tokens=6) == 1 + 8 * 9 + 2 * (30 + 9)
    tokens = make_batch_time({"kind": "threshold", "c": 1, "a": 2, "b0": 4})
    assert tokens(num_decodes=3, draft_tokens=6) == tokens(num_decodes=9)
    kernels = load_hardware("kernels:model=llama3-8b,gpu=h100-80gb").batch_time()
    verified = kernels(num_decodes=64, decode_context=64 * 1024, draft_tokens=192)
    assert kernels(num_decodes=64, decode_context=64 * 1024) < verified
    # As further decodes, or as chunks of prompts, the cache would be read four times.
    assert verified < 0.7 * kernels(num_decodes=256, decode_context=256 * 1024)
