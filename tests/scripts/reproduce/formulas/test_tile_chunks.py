"""The best chunks of a prompt against all other chunks, and the bound against batches of several requests."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduce.formulas.tile_capacity import request_time
from reproduce.formulas.tile_chunks import (
    attained_request_time,
    best_chunks,
    capacity_gap,
    least_request_time,
    prefill_time,
)

from helpers.amount import number
from kvgym.batch_time import GPU, ModelShape, TileBatchTime
from kvgym.batch_time.models.tile import tile_batch_time
from kvgym.errors import ConfigError

TOY = GPU(name="toy", peak_flops=1e6, memory_bandwidth=1e5, memory=1e9, num_sms=108)
SHAPE = ModelShape(name="toy", num_layers=2, hidden=16, num_heads=4, num_kv_heads=2, ffn=32, vocab=16)


def node_of(t_row, t_col, t_red):
    model = TileBatchTime(
        TOY, SHAPE, t_row=t_row, t_col=t_col, t_red=t_red, gemv_row=4, gemv_col=2, overhead=0.0
    )
    return model.node


NODE = node_of(8, 4, 2)
A100 = TileBatchTime("a100-80gb", "llama3-8b", overhead=0.0).node


def least_by_tokens(length, node, overhead):
    """The least prefill time by a shortest path over all tokens where a chunk may end."""
    least = [0.0]
    for end in range(1, length + 1):
        chunks = ((start, tile_batch_time(node, prefills=[(start + 1, end - start)])) for start in range(end))
        least.append(min(least[start] + seconds + overhead for start, seconds in chunks))
    return least[length]


@settings(max_examples=number(60, 25), deadline=None)
@given(
    sizes=st.tuples(*[st.sampled_from([1, 2, 3, 4, 8, 16])] * 3),
    length=st.integers(1, 70),
    overhead=st.sampled_from([0.0, 0.001, 0.02, 0.3, 100.0]),
)
def test_a_shortest_path_over_all_tokens_finds_nothing_faster(sizes, length, overhead):
    node = node_of(*sizes)
    chunks = best_chunks(length, node, overhead=overhead)
    assert chunks.sum() == length
    assert prefill_time(chunks, node, overhead=overhead) == pytest.approx(
        least_by_tokens(length, node, overhead), rel=1e-9
    )


def test_by_hand():
    # Without an overhead t_col = 4 tokens each, the first what is left; with a huge one a single chunk.
    assert best_chunks(10, NODE).tolist() == [2, 4, 4]
    assert best_chunks(8, NODE).tolist() == [4, 4]
    assert best_chunks(10, NODE, overhead=1e6).tolist() == [10]
    # Two tokens ending at 2, four at 6, four at 10: one column each, attention (6) of width 16 on two layers.
    pairs = 6e5 / 128
    attention = sum(-(-end // 8) * 8 + 2 * -(-end // 2) for end in (2, 6, 10)) * 2 / pairs
    linear = 3 * (2 * (16 + 16 + 8 + 8 + 32 + 32 + 32) + 16) / pairs
    nonlinear = 10 * 2 * (10 * 16 + 3 * 32) * 2 / 8e4
    assert prefill_time([2, 4, 4], NODE) == pytest.approx(linear + nonlinear + attention, rel=1e-12)


def test_the_bound_is_attained_by_full_columns_and_exceeds_the_one_without_ceilings():
    prompt, output = 40, 11
    total = NODE.t_col * prefill_time(best_chunks(prompt, NODE), NODE)
    total += sum(
        tile_batch_time(NODE, decodes=[i] * NODE.t_col) for i in range(prompt + 1, prompt + output + 1)
    )
    assert least_request_time(prompt, output, NODE) == pytest.approx(total / NODE.t_col, rel=1e-12)
    assert attained_request_time(prompt, output, NODE) == least_request_time(prompt, output, NODE)
    loose = float(request_time(prompt, output, NODE, chunk=1))
    assert loose < float(least_request_time(prompt, output, NODE)) < float(request_time(prompt, output, NODE))


@settings(max_examples=number(80, 25), deadline=None)
@given(
    sizes=st.tuples(*[st.sampled_from([1, 2, 4, 8])] * 3),
    lengths=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_batches_of_several_requests_take_less(sizes, lengths, seed):
    """Random batches that serve all requests in order: chunks of any size and decodes, mixed in any way."""
    node, rng = node_of(*sizes), np.random.default_rng(seed)
    done, total = [0] * len(lengths), 0.0
    while any(d < s + o for d, (s, o) in zip(done, lengths, strict=True)):
        prefills, decodes = [], []
        for j, (s, o) in enumerate(lengths):
            if rng.random() < 0.3 or done[j] == s + o:
                continue
            if done[j] < s:
                chunk = int(rng.integers(1, s - done[j] + 1))
                prefills.append((done[j] + 1, chunk))
                done[j] += chunk
            else:
                done[j] += 1
                decodes.append(done[j])
        total += tile_batch_time(node, prefills=prefills, decodes=decodes)
    prompt, output = np.array(lengths).T
    assert total >= least_request_time(prompt, output, node).sum() * (1 - 1e-12)
    attained = attained_request_time(prompt, output, node)
    assert (attained >= least_request_time(prompt, output, node)).all()


def test_the_printed_mean_is_no_bound_on_an_a100():
    """Prompts in chunks of 128 tokens take less than T̄^R allows any scheduler: Proposition 1 does not hold."""
    assert (A100.t_row, A100.t_col) == (256, 128)
    prompt, output = 8192 - 256, 1  # a multiple of t_lcm = 256, as Assumption 3 wants
    assert prompt % math.lcm(A100.t_row, A100.t_col, A100.t_red) == 0
    batches = A100.t_col * prefill_time([A100.t_col] * (prompt // A100.t_col), A100)
    batches += sum(
        tile_batch_time(A100, decodes=[i] * A100.t_col) for i in range(prompt + 1, prompt + output + 1)
    )
    printed = A100.t_col * float(request_time(prompt, output, A100))
    assert batches < printed * (1 - 5e-4)
    assert batches == pytest.approx(A100.t_col * float(least_request_time(prompt, output, A100)), rel=1e-9)


def test_the_gap_is_the_empty_part_of_short_chunks():
    assert capacity_gap([8, 40], [3, 5], NODE) == 0.0
    least = float(least_request_time(9, 5, NODE))
    assert capacity_gap([9], [5], NODE) == pytest.approx(3 / (4 * NODE.linear_rate) / least)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: best_chunks(0, NODE), "prompt_len"),
        (lambda: best_chunks(5, NODE, overhead=-1.0), "overhead"),
        (lambda: prefill_time([3, 0], NODE), "chunks"),
        (lambda: least_request_time([4, -1], 2, NODE), "prompt_len"),
        (lambda: attained_request_time(4, -2, NODE), "output_len"),
        (lambda: capacity_gap([], [], NODE), "request"),
    ],
)
def test_messages_name_bad_input(call, name):
    with pytest.raises(ConfigError, match=name):
        call()
