"""Tiled batch times: worked by hand, (7) against loops over tiles, bounds from the sums of a batch."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.amount import number
from kvgym.batch_time import GPU, ModelShape, TileBatchTime, make_batch_time
from kvgym.batch_time.models.tile import tile_batch_time, weight_pairs
from kvgym.errors import ConfigError

TOY_GPU = GPU(name="toy", peak_flops=1000.0, memory_bandwidth=100.0, memory=1e9)
TOY_MODEL = ModelShape(name="toy", num_layers=2, hidden=8, num_heads=4, num_kv_heads=2, ffn=16, vocab=12)
TOY = {
    "t_row": 4, "t_col": 3, "t_red": 2, "gemv_row": 4, "gemv_col": 2, "num_sms": 5, "tile_rate": 10.0,
    "gemv_rate": 7.0, "nonlinear_rate": 50.0, "overhead": 0.5,
}  # fmt: skip


def toy(**changes):
    return TileBatchTime(TOY_GPU, TOY_MODEL, **{**TOY, **changes})


def load_of(prefills=(), decodes=()):
    """Return the engine's sums for prefills (cached, chunk) and cached tokens of decodes."""
    cached, chunks = np.array(prefills, dtype=np.int64).reshape(-1, 2).T
    return {
        "num_prefills": len(chunks),
        "prefill_tokens": chunks.sum(),
        "prefill_context": cached.sum(),
        "prefill_squares": (chunks * chunks).sum(),
        "prefill_products": (chunks * cached).sum(),
        "num_decodes": len(decodes),
        "decode_context": sum(decodes),
    }


def exact(model, prefills=(), decodes=()):
    starts = [(cached + 1, chunk) for cached, chunk in prefills]
    return model.overhead + tile_batch_time(model.node, prefills=starts, decodes=[k + 1 for k in decodes])


def test_linear_and_nonlinear_terms_by_hand():
    # Rows of 4, reduction of 2; K and V have 2 * 2 = 4 outputs. Q, O: 2 * 4 each; K, V: 1 * 4 each; gate, up:
    # 4 * 4 each; down: 2 * 8. Per layer 16 + 8 + 32 + 16 = 72; LM head 3 * 4.
    assert weight_pairs(TOY_MODEL, 4, 2) == 2 * 72 + 12 == 156
    node = toy().node
    assert node.linear_rate == pytest.approx(5 * 10 / 156)
    for tokens, columns in ((1, 1), (3, 1), (4, 2), (6, 2), (7, 3)):
        # No decode has a context here, so attention counts one tile of each product and decode.
        attention = 2 * tokens / (5 * 7) * (math.ceil(4 / 2) * 1 + math.ceil(4 / 4) * 1)
        expected = 0.5 + columns * 156 / 50 + tokens / 50 + attention
        assert toy()(num_decodes=tokens) == pytest.approx(expected)


def test_staircase_in_the_tokens():
    """Without attention and per-token work the time steps only at multiples of t_col."""
    model = toy(gemv_rate=1e30, nonlinear_rate=1e30, overhead=0.0)
    times = model(num_decodes=np.arange(1, 31), decode_context=np.arange(1, 31) * 9)
    steps = np.flatnonzero(np.diff(times) > 1e-9) + 1
    np.testing.assert_array_equal(steps, np.arange(3, 30, 3))
    np.testing.assert_allclose(times, np.repeat(np.arange(1, 11), 3) * 156 / 50)


def count_gemm(rows, columns, reduction, node):
    """Count the tiles of a product one by one."""
    tiles = 0
    for _ in range(0, rows, node.t_row):
        for _ in range(0, columns, node.t_col):
            for _ in range(0, reduction, node.t_red):
                tiles += 1
    return tiles


def count_gemv(rows, columns, node):
    return sum(1 for _ in range(0, rows, node.gemv_row) for _ in range(0, columns, node.gemv_col))


def test_equation_seven_against_loops_over_tiles():
    node, model = toy().node, TOY_MODEL
    prefills, decodes = [(1, 5), (8, 7), (30, 1)], [1, 2, 9, 40]
    tokens, hidden, kv, ffn = 13 + 4, 8, 4, 16
    weights = [(hidden, hidden), (kv, hidden), (kv, hidden), (hidden, hidden), (ffn, hidden), (ffn, hidden)]
    weights.append((hidden, ffn))
    pairs = 2 * sum(count_gemm(out, tokens, into, node) for out, into in weights)
    pairs += count_gemm(model.vocab, tokens, hidden, node)
    linear_only = tile_batch_time(node, decodes=[1] * tokens) - 17 / 50 - 2 * 17 * node.decode_attention(1)
    assert linear_only == pytest.approx(pairs / 50)
    for i, c in prefills:
        length = i + c - 1
        tiles = count_gemm(length, c, hidden, node) + count_gemm(hidden, c, length, node)
        assert node.prefill_attention(i, c) == pytest.approx(tiles / 50)
        pairs += 2 * tiles
    tiles = 2 * sum(count_gemv(i, kv, node) + count_gemv(kv, i, node) for i in decodes)
    expected = pairs / (5 * 10) + tiles / (5 * 7) + tokens / 50
    assert tile_batch_time(node, prefills=prefills, decodes=decodes) == pytest.approx(expected)


single = st.tuples(st.integers(0, 5000), st.integers(1, 3000))


@settings(max_examples=number(150, 50), deadline=None)
@given(prefill=st.none() | single, decode=st.none() | st.integers(0, 40_000), big=st.booleans())
def test_exact_with_at_most_one_chunk_and_one_decode(prefill, decode, big):
    model = TileBatchTime("a100-80gb", "llama3-8b") if big else toy()
    batch = ([prefill] if prefill else [], [] if decode is None else [decode])
    assert model(**load_of(*batch)) == pytest.approx(exact(model, *batch), rel=1e-12)


@settings(max_examples=number(150, 50), deadline=None)
@given(prefills=st.lists(single, min_size=2, max_size=6))
def test_several_chunks_are_bounded_from_above(prefills):
    """At most one more row and column of tiles per chunk; equal where every length is one past a border."""
    model = toy()
    node, got, true = model.node, model(**load_of(prefills)), exact(model, prefills)
    larger = sum(
        node.prefill_attention(cached + 1 + node.t_row - node.t_col, chunk + node.t_col)
        for cached, chunk in prefills
    )
    rest = true - node.num_layers * sum(node.prefill_attention(k + 1, c) for k, c in prefills)
    assert true * (1 - 1e-12) <= got <= (rest + node.num_layers * larger) * (1 + 1e-12)


def test_bound_on_several_chunks_is_attained():
    # a = cached + c is 1 modulo 4 and modulo 2, c is 1 modulo 3.
    prefills = [(5, 4), (14, 7), (0, 1)]
    assert toy()(**load_of(prefills)) == pytest.approx(exact(toy(), prefills), rel=1e-12)


def test_several_decodes_round_up_by_the_mean():
    """Exact for contexts spread evenly over a tile, and on average for random contexts."""
    model = TileBatchTime("a100-80gb", "llama2-7b", overhead=0.0)
    even = list(range(1000, 1000 + 64))
    assert model(**load_of(decodes=even)) == pytest.approx(exact(model, decodes=even), rel=1e-12)
    rng = np.random.default_rng(2)
    ratios = []
    for _ in range(50):
        contexts = [int(x) for x in rng.integers(50, 4000, 100)]
        ratios.append(model(**load_of(decodes=contexts)) / exact(model, decodes=contexts))
    assert abs(np.mean(ratios) - 1) < 5e-4
    short = [3] * 10  # a decode never counts less than one tile
    assert model(**load_of(decodes=short)) == pytest.approx(exact(model, decodes=short), rel=1e-12)


def test_rates_from_the_data_sheet():
    """A full column of tokens takes 2 FLOPs per weight and token; a decode reads its KV once."""
    model = TileBatchTime("a100-80gb", "llama2-7b", overhead=0.0)
    shape, node = model.model, model.node
    norms = (
        2 * shape.hidden * shape.num_layers + shape.hidden + shape.vocab * shape.hidden
    )  # no matrix products
    flops = 2 * (shape.weights - norms) * 128
    assert 1 / node.linear_rate == pytest.approx(flops / (312e12 * 0.6), rel=1e-12)
    read = shape.num_layers * node.decode_attention(6400)
    assert read == pytest.approx(6400 * shape.kv_bytes_per_token / (2.039e12 * 0.8), rel=1e-12)
    # The number of SMs cancels, except from rates that are given.
    batch = load_of([(100, 300)], [500, 700])
    assert TileBatchTime("a100-80gb", "llama2-7b", num_sms=7)(**batch) == pytest.approx(
        TileBatchTime("a100-80gb", "llama2-7b")(**batch)
    )
    assert TileBatchTime("h100-80gb", "llama2-7b").node.num_sms == 132
    with pytest.raises(ConfigError, match="GPU toy has no num_sms"):
        toy(num_sms=None)
    assert 1 / toy(num_sms=10).node.linear_rate == pytest.approx(0.5 / toy().node.linear_rate)


def test_tensor_parallel_shares_the_work():
    one, two, four = (toy(overhead=0.0, tensor_parallel=gpus).figures for gpus in (1, 2, 4))
    for name in ("column", "scores", "values", "decode_scores", "decode_values"):
        assert getattr(two, name) == pytest.approx(getattr(one, name) / 2), name
    # Two KV heads on four GPUs are copied: reading the cache is not halved again.
    assert four.decode_scores == pytest.approx(two.decode_scores)
    assert four.decode_values == pytest.approx(two.decode_values)


def test_errors_name_the_argument():
    preset = {"kind": "tile", "gpu": "a100-80gb", "model": "llama2-7b"}
    for key, value in (("t_col", 0), ("t_row", 1.5), ("num_sms", "x"), ("tile_rate", 0), ("overhead", -1)):
        with pytest.raises(ConfigError, match=key):
            make_batch_time({**preset, key: value})
    with pytest.raises(ConfigError, match="32 heads"):
        make_batch_time({**preset, "tensor_parallel": 3})
