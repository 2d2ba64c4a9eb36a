"""The contract of batch-time models: compiled = uncompiled, non-negative, non-decreasing."""

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.amount import number
from kvgym.batch_time import LOAD_FIELDS, TileBatchTime, hardware_names, load_hardware, make_batch_time
from kvgym.compiling.records import records
from kvgym.simulator.tables import LOAD

MODELS = {
    "unit": make_batch_time({"kind": "unit"}),
    "affine": make_batch_time(
        {"kind": "affine", "constant": 0.01, "per_prefill_token": 1e-4, "per_context_token": 1e-7}
    ),
    "wait": make_batch_time({"kind": "wait", "d0": 0.01, "d1": 1e-6}),
    "threshold": make_batch_time({"kind": "threshold", "c": 0.02, "a": 1e-4, "b0": 64}),
    "piecewise": make_batch_time(
        {
            "kind": "piecewise",
            "quantity": "kv_tokens",
            "breakpoints": [0, 9],
            "times": [0.1, 0.3],
            "slope": 0.01,
        }
    ),
    "roofline": make_batch_time(
        {"kind": "roofline", "gpu": "a100-80gb", "model": "llama2-70b", "tensor_parallel": 2}
    ),
    "roofline, experts": make_batch_time({"kind": "roofline", "gpu": "a100-80gb", "model": "mixtral-8x7b"}),
    "roofline, latent": make_batch_time(
        {
            "kind": "roofline",
            "gpu": "h200",
            "model": "deepseek-v3",
            "tensor_parallel": 8,
            "overhead_per_request": 1e-4,
        }
    ),
    "roofline, windows": make_batch_time({"kind": "roofline", "gpu": "h200", "model": "gpt-oss-120b"}),
    "tile": make_batch_time(
        {"kind": "tile", "gpu": "a100-80gb", "model": "llama2-70b", "tensor_parallel": 2}
    ),
    "tile, small": TileBatchTime(
        "a100-80gb", "mistral-7b", t_row=4, t_col=3, t_red=2, gemv_row=4, gemv_col=2
    ),
    **{
        spec: load_hardware(spec).batch_time()
        for spec in (
            "kernels:model=llama3-8b,gpu=rtx-4090",
            "kernels:model=qwen3-30b-a3b,gpu=h100-80gb,tp=2,kv_dtype=fp8",
            "kernels:model=deepseek-v3,gpu=h200,tp=8",
            "kernels:model=gemma-3-27b,gpu=h100-80gb",
        )
    },
    **{
        f"{name}/{composition}": load_hardware(name).batch_time(composition=composition)
        for name in hardware_names()
        for composition in ("kvgym", "homogeneous", "vidur")
    },
}
RAW_MEDIANS = {
    name for name in MODELS if name.endswith("/vidur") and MODELS[name].tables.all_reduce is not None
}
MEAN_CONTEXT = {name for name in MODELS if name.endswith(("/vidur", "/homogeneous"))}


@numba.njit
def _all(kernel, loads, params, out):
    for i in range(len(loads)):
        out[i] = kernel(loads[i], params)


def _compiled(model, loads):
    out = np.zeros(len(loads))
    _all(model.kernel.compiled, loads, model.params(), out)
    return out


def _possible_loads(rng, size):
    """Draw loads of possible batches: sums over requests of random chunks and contexts."""
    loads = np.zeros(size, LOAD)
    for load in loads[1:]:
        chunks = rng.integers(1, 10 ** rng.uniform(0.5, 3.7), rng.integers(0, 6))
        cached = rng.integers(0, 10 ** rng.uniform(0.1, 4), len(chunks))
        contexts = rng.integers(1, 10 ** rng.uniform(0.5, 4.5), rng.integers(0, 200))
        load["num_prefills"], load["prefill_tokens"] = len(chunks), chunks.sum()
        load["prefill_context"], load["prefill_squares"] = cached.sum(), (chunks * chunks).sum()
        load["prefill_products"] = (chunks * cached).sum()
        load["num_decodes"], load["decode_context"] = len(contexts), contexts.sum()
        load["draft_tokens"] = len(contexts) * rng.integers(0, 5)
    return loads


@pytest.mark.parametrize("name", MODELS)
def test_compiled_equals_uncompiled_bit_for_bit(name):
    loads = _possible_loads(np.random.default_rng(3), 200)
    python = MODELS[name](**{field: loads[field] for field in LOAD_FIELDS})
    np.testing.assert_array_equal(_compiled(MODELS[name], loads), python)


counts = st.one_of(st.integers(0, 3), st.integers(0, 700))
tokens = st.one_of(st.integers(0, 300), st.integers(0, 200_000))
squares = st.one_of(st.integers(0, 10_000), st.integers(0, 2**34))
any_load = st.tuples(counts, tokens, tokens, squares, squares, counts, st.integers(0, 3_000_000), counts)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=number(120, 30), deadline=None)
@given(
    load=any_load,
    field=st.sampled_from(LOAD_FIELDS),
    more=st.one_of(st.integers(1, 3), st.integers(1, 10_000)),
)
def test_never_negative_and_never_falls_in_any_field(name, load, field, more):
    """And compiled code equals uncompiled code on sums that no batch has, too."""
    if name in MEAN_CONTEXT and field == "num_decodes":
        field = "decode_context"  # documented: at a fixed sum of contexts the mean falls
    if name in RAW_MEDIANS and field == "prefill_tokens":
        field = "prefill_squares"  # documented: medians of all-reduce fall here and there
    loads = records(LOAD, 2)
    for i, column in enumerate(LOAD_FIELDS):
        loads[column] = load[i]
    loads[field][1] += more
    low, high = _compiled(MODELS[name], loads.view(np.ndarray).view(LOAD))
    assert low >= 0
    assert high >= low * (1 - 1e-12)
    assert MODELS[name](**{column: loads[column] for column in LOAD_FIELDS}).tolist() == [low, high]


@pytest.mark.parametrize("name", sorted(MEAN_CONTEXT - RAW_MEDIANS))
def test_one_more_decode_of_the_mean_context_never_shortens_a_batch(name):
    number = np.arange(1, 600)
    for context in (64, 640, 4032, 40_000):
        times = MODELS[name](num_decodes=number, decode_context=number * context)
        assert np.all(np.diff(times) >= -1e-12 * times[1:])


@pytest.mark.parametrize("name", ["roofline", "llama2-70b-a100-tp2/kvgym"])
def test_fields_and_shapes(name):
    model = MODELS[name]
    assert isinstance(model(), float)
    batched = model(num_decodes=[[1], [2]], decode_context=100)
    assert batched.shape == (2, 1)
    assert batched[1, 0] == model(num_decodes=2, decode_context=100)
    with pytest.raises(TypeError, match="decode_context"):
        model(decodes=1)


@pytest.mark.parametrize("name", MODELS)
def test_rough_times_have_the_right_magnitude(name):
    """No slope is negative, and the error within the span of the secants is at most 50 %."""
    model = MODELS[name]
    rough = model.rough_figures(16_000)
    assert all(np.isfinite(x) and x >= 0 for x in rough)
    own = model(num_decodes=32, decode_context=8_000)
    assert rough.base + 32 * rough.decode + 8_000 * rough.context == pytest.approx(own, rel=0.5)


@pytest.mark.parametrize("memory", [2, 40, 16_000])
def test_rough_times_of_linear_models_are_exact(memory):
    assert MODELS["unit"].rough_figures(memory) == (1.0, 0.0, 0.0, 0.0)
    # A decode and a prompt token are tokens of the same linear operators; the prompt's context is its own.
    rough = MODELS["affine"].rough_figures(memory)
    model = MODELS["affine"]
    for count, context, prompt in ((1, 1, 1), (7, 900, 30)):
        exact = model(num_decodes=count, decode_context=context, num_prefills=1, prefill_tokens=prompt)
        linear = rough.base + count * rough.decode + context * rough.context + prompt * rough.prefill
        assert linear == pytest.approx(exact)
