"""Operator tables of GPUs: lookups worked by hand, files, the fit, and their assembly into a batch time."""

from dataclasses import replace

import numpy as np
import pytest

from kvgym.batch_time import GPU, GPUS, KernelBatchTime, load_hardware
from kvgym.batch_time.hardware.overhead import EngineOverhead
from kvgym.batch_time.hardware.shapes import ModelShape
from kvgym.batch_time.operators.assembly import Assembly
from kvgym.batch_time.operators.files import load_operators, operator_gpus, pack, read_operators
from kvgym.batch_time.operators.tables import Grid, MissingOperatorError, OperatorTables
from kvgym.errors import ConfigError, UnknownNameError


def array(*values):
    return np.array(values, np.float64)


TOKENS = array(1, 64, 65)
MATMUL = Grid((array(256, 512), array(256, 768), TOKENS), np.arange(1.0, 13.0).reshape(2, 2, 3))
DECODE = Grid((array(1, 2, 4), array(1, 101)), array(1, 3, 2, 5, 4, 9).reshape(3, 2))
PREFILL = Grid((array(1, 64, 128),), array(1, 2, 4))


def tables(**changes):
    given = {
        "matmul": {"bf16": MATMUL},
        "decode": {("bf16", 128, 8, 2): DECODE, ("bf16", 128, 16, 2): Grid(DECODE.axes, 3 * DECODE.ms)},
        "prefill": {("bf16", 128, 8, 2): PREFILL},
        "all_reduce": {2: Grid((array(1000, 2000),), array(1, 2))},
        "experts": {("bf16", "balanced", 256, 64, 2, 8, 1, 1): Grid((array(1, 65),), array(2, 4))},
    }
    return OperatorTables(name="x", measured="y", source="z", date="2026-01-01", **{**given, **changes})


def test_matrix_products_are_interpolated_between_measured_shapes_and_grow_beyond():
    tokens, ms = tables().matmul_ms("bf16", 256, 256)
    assert tokens is TOKENS
    assert ms.tolist() == [1, 2, 3]
    assert tables().matmul_ms(None, 256, 512)[1].tolist() == [2.5, 3.5, 4.5]  # halfway from 256 to 768
    assert tables().matmul_ms("fp16", 384, 512)[1].tolist() == [5.5, 6.5, 7.5]
    assert tables().matmul_ms("bf16", 1024, 768)[1].tolist() == [20, 22, 24]  # twice as for n = 512
    assert tables().matmul_ms("bf16", 8, 8)[1].tolist() == [1, 2, 3]  # narrower than measured
    with pytest.raises(MissingOperatorError, match="matrix products with fp8 weights"):
        tables().matmul_ms("fp8", 256, 256)
    with pytest.raises(MissingOperatorError, match="int4"):
        tables().matmul_ms("int4", 256, 256)


def test_single_products_are_exact_and_scale():
    single = tables(matmul={}, products={("bf16", 100, 50): Grid((TOKENS,), array(1, 2, 3))})
    assert single.matmul_ms("bf16", 100, 50)[1].tolist() == [1, 2, 3]
    assert single.matmul_ms("bf16", 200, 50)[1].tolist() == [2, 4, 6]
    with pytest.raises(MissingOperatorError, match="fp8"):
        single.matmul_ms("fp8", 100, 50)


def test_heads_that_were_not_measured_follow_from_others():
    measured = tables().attention("decode", None, 128, 8, 2)
    assert measured.ms.tolist() == DECODE.ms.tolist()
    between = tables().attention("decode", "bf16", 128, 12, 2)  # halfway from 8 to 16 query heads
    assert between.ms.tolist() == (2 * DECODE.ms).tolist()
    # Two requests with 8 query and 2 KV heads are one request with 16 and 4.
    more = tables().attention("decode", "bf16", 128, 16, 4)
    assert more.axes[0].tolist() == [1, 2]
    assert more.ms.tolist() == [[2, 5], [4, 9]]
    for pair in ((8, 8), (4, 2), (32, 2)):
        with pytest.raises(MissingOperatorError, match=f"attention of {pair[0]} heads, {pair[1]} KV"):
            tables().attention("decode", "bf16", 128, *pair)
    with pytest.raises(MissingOperatorError, match="fp8 cache"):
        tables().attention("decode", "fp8", 128, 8, 2)


def test_all_reduce_grows_with_the_last_slope():
    sizes = array(500, 1500, 3000)
    assert tables().collective_ms("all_reduce", 2, sizes).tolist() == [1, 1.5, 3]
    with pytest.raises(MissingOperatorError, match="all-gather over 4 GPUs"):
        tables().collective_ms("all_gather", 4, sizes)


def test_over_more_gpus_than_measured_a_ring_sends_more():
    """2 (p - 1) / p times the data: 1.5 over four GPUs instead of 1 over two."""
    assert tables().collective_ms("all_reduce", 4, array(1000, 2000)).tolist() == [1.5, 3]
    wide = tables(all_reduce={4: Grid((array(1000, 2000),), array(1, 2))})
    with pytest.raises(MissingOperatorError, match="all-reduce over 2 GPUs"):
        wide.collective_ms("all_reduce", 2, array(1000))


def test_fused_quantisation_is_taken_out_of_products():
    """Between 256 and 768 rows it takes (0.2 + 0.6) / 2 ms; at least 0.3 of the product remain."""
    quantise = {"fp8": Grid((array(256, 768), TOKENS), array(0.2, 0.2, 0.2, 0.6, 0.6, 9).reshape(2, 3))}
    given = tables(matmul={"fp8": MATMUL}, quantise=quantise)
    assert given.matmul_ms("fp8", 256, 512)[1].tolist() == [2.5, 3.5, 4.5]
    fused = given.matmul_ms("fp8", 256, 512, fused_quantisation=True)[1]
    np.testing.assert_allclose(fused, [2.1, 3.1, 0.3 * 4.5])


def test_another_type_of_as_many_bytes_serves():
    given = tables(matmul={"fp8": MATMUL}, experts={("fp8_block", "balanced", 1, 2, 3, 4, 1, 1): DECODE})
    assert given.matmul_type("fp8_block") == "fp8"
    assert given.experts_of("fp8", "balanced", (1, 2, 3, 4, 1, 1)) == ("fp8_block", DECODE)
    with pytest.raises(MissingOperatorError, match="nvfp4"):
        given.matmul_type("nvfp4")


def test_latent_attention_of_the_library_and_the_nearest_type_of_products():
    keys = [
        ("vllm", "bf16", "bf16", 16),
        ("tensorrt-llm", "bf16", "bf16", 16),
        ("tensorrt-llm", "fp8_block", "fp8", 8),
    ]
    given = tables(latent_decode={key: Grid(DECODE.axes, DECODE.ms * i) for i, key in enumerate(keys)})

    def place(*wanted):
        dtype, grid = given.latent_attention("decode", *wanted)
        return dtype, grid.ms[0, 1] / DECODE.ms[0, 1]

    assert place("vllm", None, None, 16) == ("bf16", 0)
    assert place("tensorrt-llm", None, None, 16) == ("bf16", 1)
    assert place("vllm", "int4", "fp8", 8) == ("fp8_block", 2)
    with pytest.raises(MissingOperatorError, match="latent attention of 4 heads, fp8 cache"):
        place("vllm", None, "fp8", 4)


def test_a_file_keeps_everything_but_two_hundredths_of_a_per_cent(tmp_path):
    given = tables(fit_error={"matmul bf16": {"median": 0.01, "p95": 0.1, "rows": 5}})
    path = tmp_path / "x.npz"
    path.write_bytes(pack(given))
    assert pack(given) == path.read_bytes()
    found = read_operators(path)
    assert (found.name, found.measured, found.source, found.date) == ("x", "y", "z", "2026-01-01")
    assert found.fit_error == given.fit_error
    for group in ("matmul", "products", "decode", "prefill", "all_reduce", "experts", "elementwise"):
        before, after = getattr(given, group), getattr(found, group)
        assert set(before) == set(after)
        for key, grid in before.items():
            assert all(map(np.array_equal, grid.axes, after[key].axes))
            np.testing.assert_allclose(after[key].ms, grid.ms, rtol=2e-4)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ConfigError, match="damaged"):
        read_operators(path)
    np.savez(path, header=np.zeros(3, np.uint8))
    with pytest.raises(ConfigError, match="of another version"):
        read_operators(path)
    with pytest.raises(UnknownNameError, match=r"'h20'.*'h200'"):
        load_operators("h20")


# 8 heads of 128 and 2 KV heads: products (12 * 128, 1024), (1024, 8 * 128), (2 * 512, 1024), (1024, 512).
MODEL = ModelShape(name="Small", num_layers=3, hidden=1024, num_heads=8, num_kv_heads=2, ffn=512, vocab=5000)
FLAT = Grid((array(256, 8192), array(256, 8192), TOKENS), np.tile(array(0.1, 0.2, 0.4), (2, 2, 1)))


def tables_of_small():
    return tables(matmul={"bf16": FLAT}, elementwise={1024: Grid((TOKENS,), array(0.01, 0.02, 0.03))})


def test_a_batch_is_the_sum_of_its_kernels():
    assembly = Assembly(tables_of_small(), GPUS["h100-80gb"], MODEL, 1)
    assert assembly.tables().layers == 0  # small kernels were measured
    measured = replace(assembly.tables(), layers=3)
    model = KernelBatchTime(measured, overhead=EngineOverhead(base_ms=0, per_layer_ms=0.5))
    assert assembly.replaced == {}
    layers = 3
    linear = 4 * 0.1 + 0.01  # four products and the element-wise kernels, of one token
    decode = 1 + 2 * 100 / 100  # one decode with 101 tokens of context
    head = 0.1
    expected = layers * (linear + decode + 0.5) + head
    assert 1e3 * model(num_decodes=1, decode_context=101) == pytest.approx(expected, rel=1e-6)
    prompt = 1e3 * model(num_prefills=1, prefill_tokens=64, prefill_squares=64 * 64)
    assert prompt == pytest.approx(layers * (4 * 0.2 + 0.02 + 2 + 0.5) + head, rel=1e-6)
    # Two chunks of 64 have as many pairs as one of 64 sqrt(2) = 90.51; 128 tokens are 63 beyond the last step.
    two = 1e3 * model(num_prefills=2, prefill_tokens=128, prefill_squares=2 * 64 * 64)
    linear = 4 * (0.4 + 63 * 0.2) + 0.03 + 63 * 0.01
    head = 0.1 + 0.1 / 63
    attention = 2 + (64 * 2**0.5 - 64) * 2 / 64
    assert two == pytest.approx(layers * (linear + attention + 0.5) + head, rel=1e-6)
    # A cached token costs as many pairs as a chunk has tokens, but no less than 64 * 132 SMs / 8 heads.
    pair = (4 - 1) / (128 * 129 / 2)
    load = {"num_prefills": 1, "prefill_tokens": 64, "prefill_squares": 64 * 64}
    with_cache = 1e3 * model(**load, prefill_context=10, prefill_products=640)
    assert with_cache - prompt == pytest.approx(layers * 10 * pair * 64 * 132 / 8, rel=1e-6)
    with_cache = 1e3 * model(**load, prefill_context=10, prefill_products=640_000)
    assert with_cache - prompt == pytest.approx(layers * pair * 640_000, rel=1e-6)


def test_beyond_the_longest_measured_chunk_attention_grows_with_its_pairs():
    tables = Assembly(tables_of_small(), GPUS["h100-80gb"], MODEL, 1).tables()
    (chunks, seconds), pair = tables.prefill, tables.pair
    assert chunks.tolist() == [1, 64, 128]
    model = KernelBatchTime(tables)
    none = model(num_prefills=1)

    def attention(squares):
        return model(num_prefills=1, prefill_squares=squares) - none + seconds[0]

    assert attention(128**2) == pytest.approx(seconds[-1])
    assert attention(300**2) == pytest.approx(seconds[-1] + pair * (300 * 301 - 128 * 129) / 2)
    with_cache = model(num_prefills=1, prefill_squares=300**2, prefill_products=50_000) - none + seconds[0]
    assert with_cache - attention(300**2) == pytest.approx(pair * 50_000)


@pytest.mark.parametrize("gpu", operator_gpus())
def test_shares_that_rooflines_use_are_those_of_the_tables(gpu):
    """Of matrix products, and over PCIe of an all-reduce over two GPUs."""
    tables, figures = load_operators(gpu), GPUS[gpu]
    found = {
        dtype: tuple(round(share, 2) for share in shares)
        for dtype, shares in tables.attained(figures).items()
    }
    assert figures.attained == found
    if 2 in tables.all_reduce and figures.link_bandwidth < 1e11:
        grid = tables.all_reduce[2]
        attained = grid.axes[0][-1] / grid.ms[-1] * 1e3
        assert figures.link_bandwidth == pytest.approx(attained, rel=0.06)


def test_shares_by_hand():
    """Of 2 x 8192 x 4096 FLOPs a token and 67 MB of weights; narrower products do not count."""
    gpu = GPU(name="x", peak_flops=1e14, memory_bandwidth=1e12, memory=1e10)
    tokens = np.array([1.0, 1024.0])
    products = {
        ("bf16", 8192, 4096): Grid((tokens,), np.array([0.1, 1.0])),
        ("bf16", 1024, 4096): Grid((tokens,), np.array([9.0, 9.0])),
    }
    compute, memory = OperatorTables("x", "", "", "", products=products).attained(gpu)["bf16"]
    assert compute == pytest.approx(2 * 8192 * 4096 * 1024 / 1e-3 / 1e14)
    assert memory == pytest.approx(2 * 8192 * 4096 / 1e-4 / 1e12)


def test_what_the_tables_lack_is_a_roofline_and_named():
    fast = MODEL.model_copy(update={"weight_dtype": "int4", "kv_dtype": "fp8"})
    assembly = Assembly(tables(matmul={"bf16": FLAT}), GPUS["h100-80gb"], fast, 2)
    model = KernelBatchTime(assembly.tables())
    assert set(assembly.replaced) == {"roofline"}
    assert sorted(assembly.replaced["roofline"]) == [
        "attention of 4 heads, 1 KV heads of 128, fp8 cache",
        "matrix products with int4 weights",
    ]
    assert 0 < model(num_decodes=8, decode_context=800) < 0.1


@pytest.mark.parametrize("gpu", operator_gpus())
def test_shipped_tables_have_small_errors_on_held_out_rows(gpu):
    found = load_operators(gpu)
    assert found.name == gpu
    assert found.source
    assert found.measured.startswith("vLLM")
    limits = {"matmul": 0.03, "decode": 0.035, "prefill": 0.04, "experts": 0.05, "all-reduce": 0.2}
    limits |= {"all-gather": 0.1, "latent": 0.04}
    noisy = {("l40s", "matmul bf16"): 0.045, ("b200", "matmul fp8"): 0.035}
    noisy |= {
        ("a100-80gb", "latent decode"): 0.045,
        ("a100-80gb", "latent prefill"): 0.09,
    }  # reasons in docs/hardware.md
    for group, error in found.fit_error.items():
        limit = noisy.get((gpu, group), limits[group.split()[0]])
        assert error["median"] <= limit, (group, error)


@pytest.mark.parametrize(
    ("spec", "low", "high"),
    [
        # Reading 16 GB of weights at the card's bandwidth takes 4.8 and 15.9 ms.
        ("kernels:model=llama3-8b,gpu=h100-80gb", 5.5, 8.5),
        ("kernels:model=llama3-8b,gpu=rtx-4090", 16, 19),
        ("kernels:model=llama3-8b,gpu=h100-80gb,weights=fp8", 3.5, 6.5),
        ("kernels:model=qwen3-30b-a3b,gpu=h100-80gb", 3.5, 8),
        ("kernels:model=llama2-7b,gpu=a100-80gb", 8, 12),
    ],
)
def test_one_decode_takes_about_the_time_of_reading_the_weights(spec, low, high):
    assert low < 1e3 * load_hardware(spec).batch_time()(num_decodes=1, decode_context=500) < high


def test_experts_can_be_placed_or_split():
    split, placed = (
        load_hardware(f"kernels:model=qwen3-30b-a3b,gpu=h100-80gb,tp=2,ep={groups}") for groups in (1, 2)
    )
    load = {"num_decodes": 64, "decode_context": 64_000}
    assert split.batch_time()(**load) != placed.batch_time()(**load)
    with pytest.raises(UnknownNameError, match=r"load of experts 'even'.*balanced"):
        load_hardware("kernels:model=qwen3-30b-a3b,gpu=h100-80gb,balance=even")


def test_a_gpu_without_tables_is_an_error_that_names_the_others():
    with pytest.raises(ConfigError, match=r"GPU 'l4', only on a100-80gb, .*roofline:model"):
        load_hardware("kernels:model=llama3-8b,gpu=l4")


def test_latent_attention_is_the_module_less_its_products():
    """Six heads' worth of constants: products of DeepSeek-V3 take 5 x 0.1 ms of one token."""
    latent = {"kv_rank": 512, "query_rank": 1536, "nope_dim": 128, "rope_dim": 64, "value_dim": 128}
    model = ModelShape(
        name="L", num_layers=3, hidden=7168, num_heads=8, num_kv_heads=8, ffn=512, vocab=5000, latent=latent
    )
    module = Grid((array(1, 2, 4), array(1, 101)), array(1, 3, 2, 5, 4, 9).reshape(3, 2))
    operators = tables(
        matmul={"bf16": FLAT}, elementwise={7168: Grid((TOKENS,), array(0, 0, 0))}, decode={}, prefill={},
        latent_decode={("vllm", "bf16", "bf16", 8): module},
        latent_prefill={("vllm", "bf16", "bf16", 8): Grid((array(1, 64, 128),), array(1, 2, 4))},
    )  # fmt: skip
    assembly = Assembly(operators, GPUS["h100-80gb"], model, 1)
    made = KernelBatchTime(assembly.tables())
    assert assembly.replaced == {}
    # The whole batch of one decode: the module, an MLP of two products, and the LM head.
    expected = 3 * (3 + 2 * 0.1) + 0.1
    assert 1e3 * made(num_decodes=1, decode_context=101) == pytest.approx(expected, rel=1e-6)
    other = model.model_copy(update={"latent": model.latent.model_copy(update={"rope_dim": 32})})
    lacking = Assembly(operators, GPUS["h100-80gb"], other, 1)
    lacking.tables()
    assert "latent attention of other widths" in lacking.replaced["roofline"][0]
