"""Capacity of tiled nodes: (13) against batches that attain it, the gap in its proof, RAD's cycle."""

import math

import numpy as np
import pytest
from reproduce.formulas.tile_capacity import (
    cycle_length,
    load_slack,
    max_rate,
    mean_request_time,
    request_time,
    requests_per_cycle,
    worst_request_time,
)

from kvgym.batch_time import GPU, ModelShape, TileBatchTime
from kvgym.batch_time.models.tile import tile_batch_time
from kvgym.errors import ConfigError

GPU_ = GPU(name="toy", peak_flops=1e6, memory_bandwidth=1e5, memory=1e9, num_sms=108)
SHAPE = ModelShape(name="toy", num_layers=2, hidden=16, num_heads=4, num_kv_heads=2, ffn=32, vocab=16)
SIZES = {"t_row": 8, "t_col": 4, "t_red": 2, "gemv_row": 4, "gemv_col": 2}
MODEL = TileBatchTime(GPU_, SHAPE, **SIZES, overhead=0.0)
NODE = MODEL.node


def test_perfectly_tiled_batches_take_exactly_the_bound():
    """t_col equal requests: prompts in chunks of t_lcm, each alone, then all decodes together."""
    prompt, output, lcm = 40, 11, 8
    total = 0.0
    for _ in range(NODE.t_col):
        for cached in range(0, prompt, lcm):
            total += MODEL(
                num_prefills=1,
                prefill_tokens=lcm,
                prefill_context=cached,
                prefill_squares=lcm * lcm,
                prefill_products=lcm * cached,
            )
    for i in range(prompt + 1, prompt + output + 1):
        total += tile_batch_time(NODE, decodes=[i] * NODE.t_col)
    assert request_time(prompt, output, NODE) == pytest.approx(total / NODE.t_col, rel=1e-12)


def test_terms_by_hand():
    # Rates: 1e6 * 0.6 FLOP/s in tile-pairs of 2 * 8 * 4 * 2 FLOPs; 1e5 * 0.8 bytes/s in tiles of 4 * 2 * 2 bytes.
    pairs, tiles = 6e5 / 128, 8e4 / 16
    # Weight pairs, rows of 8 and reduction of 2, KV width 8: Q, O 2 * 8; K, V 1 * 8; gate, up 4 * 8; down 2 * 16.
    weights = 2 * (16 + 16 + 8 + 8 + 32 + 32 + 32) + 2 * 8
    linear = 13 / 4 * weights / pairs
    nonlinear = 13 * 2 * (10 * 16 + 3 * 32) * 2 / 8e4
    # Decodes at 9 ... 13 tokens: ceil(i / 4) = 3, 3, 3, 3, 4 times 8 / 2, ceil(i / 2) = 5, 5, 6, 6, 7 times 8 / 4.
    decodes = 2 * (16 * 4 + 29 * 2) / tiles
    prefill = 2 * 16 * 8 * (8 + 8) / (8 * 4 * 2) / pairs
    assert request_time(8, 5, NODE) == pytest.approx(linear + nonlinear + decodes + prefill, rel=1e-12)


def test_vectorised_mean_and_rate():
    prompt, output = np.array([8, 16, 80]), np.array([1, 30, 2])
    single = [float(request_time(p, o, NODE)) for p, o in zip(prompt, output, strict=True)]
    np.testing.assert_allclose(request_time(prompt, output, NODE), single)
    mean = mean_request_time(prompt, output, NODE)
    assert mean == pytest.approx(np.mean(single))
    assert max_rate(mean, 3) == pytest.approx(3 / mean)
    assert load_slack(max_rate(mean, 3) * 0.75, mean, 3) == pytest.approx(0.25)
    with pytest.raises(ConfigError):
        mean_request_time([], [], NODE)
    with pytest.raises(ConfigError):
        max_rate(0.0)
    with pytest.raises(ConfigError, match="chunk"):
        request_time(8, 1, NODE, chunk=0)


def prefill_time(prompt, chunk):
    return sum(
        tile_batch_time(NODE, prefills=[(i, min(chunk, prompt - i + 1))]) for i in range(1, prompt + 1, chunk)
    )


def test_chunks_of_lcm_are_not_the_fastest():
    """Where t_row > t_col, chunks of t_col beat the printed optimum; the bound with chunk=1 still holds."""
    prompt = 32
    assert math.lcm(8, 4, 2) == 8
    printed = float(request_time(prompt, 0, NODE))
    assert prefill_time(prompt, 8) == pytest.approx(printed, rel=1e-12)
    assert prefill_time(prompt, 4) < printed * (1 - 1e-3)
    bound = float(request_time(prompt, 0, NODE, chunk=1))
    assert bound < printed
    for chunk in range(1, prompt + 1):
        assert prefill_time(prompt, chunk) >= bound


def test_worst_request_time_is_a_request_alone():
    tokens = 9
    expected = sum(tile_batch_time(NODE, decodes=[i]) for i in range(1, tokens + 1))
    assert worst_request_time(6, 3, [NODE]) == pytest.approx(expected, rel=1e-12)
    wide = TileBatchTime(GPU_, SHAPE, **{**SIZES, "t_col": 16}, overhead=0.0).node
    both = worst_request_time(6, 3, [NODE, wide])
    # At equal FLOP/s a single token in tiles of 16 columns takes four times as long.
    assert both == worst_request_time(6, 3, [wide]) > worst_request_time(6, 3, [NODE])
    with pytest.raises(ConfigError):
        worst_request_time(6, 3, [])


def test_prefills_of_one_token_can_exceed_the_worst_time():
    """With grouped heads a padded chunk of one token takes longer than a decode at the same position."""
    node = TileBatchTime("a100-80gb", "mistral-7b").node
    assert node.prefill_attention(2000, 1) > 2 * node.decode_attention(2000)


def test_requests_per_cycle():
    # (4 - 1) * 10 / (0.25 * 2) = 60: strictly more.
    assert requests_per_cycle(0.25, 2.0, 10.0, 4) == 61
    assert requests_per_cycle(0.25, 2.0, 10.1, 4) == 61
    assert cycle_length(61, 2.0, 10.0, 4) == 152.0
    # The drift of Lemma 3: fewer arrivals per cycle than the n completions, at λ = (1 − ε) / T^R.
    rate = (1 - 0.25) / 2.0
    assert rate * cycle_length(61, 2.0, 10.0, 4) < 61
    with pytest.raises(ConfigError, match="slack"):
        requests_per_cycle(0.0, 2.0, 10.0, 4)
