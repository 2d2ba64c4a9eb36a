"""Attention in data parallel: counts worked by hand, memory, and what is refused."""

import numpy as np
import pytest

from kvgym.batch_time import GPUS, MODELS, load_hardware
from kvgym.batch_time.hardware.shapes import ModelShape
from kvgym.batch_time.models.data_parallel import DataParallelBatchTime
from kvgym.batch_time.models.kernels import KernelBatchTime
from kvgym.batch_time.operators.assembly import Assembly
from kvgym.batch_time.operators.tables import Grid, OperatorTables
from kvgym.errors import ConfigError


def array(*values):
    return np.array(values, np.float64)


# Times of tokens: products 1 ms each up to 64, experts 4 + tokens / 16, an exchange 0.5 ms, decodes 1 ms.
TOKENS = array(1, 64)
FLAT = Grid((array(256, 8192), array(256, 8192), TOKENS), np.ones((2, 2, 2)))
OPERATORS = OperatorTables(
    "x", "", "", "",
    matmul={"bf16": FLAT},
    decode={("bf16", 128, 8, 2): Grid((array(1, 64), array(1, 1000)), np.ones((2, 2)))},
    prefill={("bf16", 128, 8, 2): Grid((array(1, 64),), array(0, 0))},
    all_gather={2: Grid((array(1, 2),), array(0.5, 0.5))},
    experts={("bf16", "balanced", 1024, 64, 2, 8, 1, 2): Grid((array(1, 65),), array(4, 8))},
    elementwise={},
)  # fmt: skip
MODEL = ModelShape(
    name="Mixture", num_layers=3, hidden=1024, num_heads=8, num_kv_heads=2, ffn=512, vocab=5000,
    experts={"count": 8, "per_token": 2, "ffn": 64, "dense_layers": 1},
)  # fmt: skip


def test_a_batch_by_hand():
    """Three layers: attention on the rank with its requests, then two layers of experts on all tokens."""
    assembly = Assembly(
        OPERATORS, GPUS["h100-80gb"], MODEL, 1, data_parallel=2, expert_parallel=2, balance="balanced"
    )
    tables = assembly.tables()
    assert assembly.replaced == {}
    rank = KernelBatchTime(tables)
    both = DataParallelBatchTime(rank, 2, tables.shared)
    elementwise = float(assembly._elementwise(array(4))[0])
    # Eight decodes are four on each rank: two projections and a router or an MLP, the head; experts have eight tokens.
    expected = 3 * (2 + elementwise) + 2 + 2 * 1 + 3 * 1 + 1 + 2 * (4 + 7 / 16 + 2 * 0.5)
    assert 1e3 * both(num_decodes=8, decode_context=800) == pytest.approx(expected, rel=1e-3)
    # A single prompt is on one rank: as long there as without others.
    prompt = {"num_prefills": 1, "prefill_tokens": 32, "prefill_squares": 1024}
    shared = 2 * (4 + 31 / 16 + 2 * 0.5)
    assert 1e3 * (both(**prompt) - rank(**prompt)) == pytest.approx(shared, rel=1e-3)
    # Two prompts of 16 tokens are one on each.
    two = {"num_prefills": 2, "prefill_tokens": 32, "prefill_squares": 512}
    half = {"num_prefills": 1, "prefill_tokens": 16, "prefill_squares": 256}
    assert 1e3 * (both(**two) - rank(**half)) == pytest.approx(shared, rel=1e-3)


def test_ranks_hold_attention_each_and_experts_together():
    """Qwen3-30B-A3B in 16 bits: a rank has 1.5 B other weights, and half of the 29 B of the experts."""
    one, two, split = (
        load_hardware(f"model=qwen3-30b-a3b,gpu=h100,{layout}")
        for layout in ("tp=1", "tp=1,dp=2,ep=2", "tp=2")
    )
    model, gib = MODELS["qwen3-30b-a3b"], 2**30
    other = model.weight_bytes - model.expert_bytes
    free = GPUS["h100-80gb"].memory * 0.9 - 2 * gib - other - model.expert_bytes / 2
    assert two.kv_capacity == 2 * int(free // (16 * model.kv_bytes_per_token)) * 16
    assert one.kv_capacity * 2 < two.kv_capacity < split.kv_capacity
    assert two.num_gpus == split.num_gpus == 2
    assert two.description.startswith(
        "Qwen3-30B-A3B on 2 x H100 80GB, attention in 2 groups, experts in 2 groups"
    )
    load = {"num_decodes": 64, "decode_context": 64_000}
    assert two.batch_time()(**load) != split.batch_time()(**load)
    assert isinstance(two.batch_time(), DataParallelBatchTime)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("model=llama3-8b,tp=1,dp=2", r"dp = 2: Llama-3-8B is dense.*several workers"),
        ("model=llama3-8b,tp=2,ep=2", r"ep = 2: it must divide the 2 GPUs .* and Llama-3-8B, a dense model"),
        (
            "model=qwen3-30b-a3b,tp=2,ep=4",
            r"ep = 4: it must divide the 2 GPUs \(tp x dp\) and the 128 experts",
        ),
        ("model=qwen3-30b-a3b,tp=1,dp=0", "dp"),
    ],
)
def test_what_does_not_suit_the_model_is_refused(layout, message):
    with pytest.raises(ConfigError, match=message):
        load_hardware(f"gpu=h100,{layout}")
