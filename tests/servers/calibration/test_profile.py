"""The profile model on small tables with sums that can be done by hand."""

import json

import numpy as np
import pytest

from kvgym.batch_time import COMPOSITIONS, ProfileBatchTime, ProfileTables, make_batch_time
from kvgym.batch_time.hardware.overhead import NONE, EngineOverhead
from kvgym.errors import ConfigError

TABLES = {
    "num_layers": 2,
    "bytes_per_token": 8,
    "linear": {
        "tokens": [1, 8, 16],
        "block_ms": [10, 10, 20],
        "add_ms": [1, 1, 1],
        "save_ms": [0.5, 0.5, 0.5],
        "embedding_ms": [3, 3, 3],
    },
    "decode": {"rows": [1, 2, 3], "columns": [64, 128], "ms": [[1, 2], [2, 4], [6, 12]]},
    "decode_pooled": {"rows": [1, 3], "columns": [0, 100, 300], "ms": [[0, 1, 3], [2, 3, 5]]},
    "prefill": {"rows": [4, 8], "columns": [0, 10], "ms": [[1, 2], [4, 6]]},
    "prefill_pooled": {
        "launch_ms": 0.25,
        "chunk": [0, 4, 8],
        "own_ns": [1e5, 3e5, 4e5],
        "cached_ns": [0, 1e5, 2e5],
    },
    "all_reduce": {"size": [8, 64, 128], "kernel_ms": [1, 1, 2], "median_ms": [2, 2, 3]},
    "lm_head": {"weights_ms": 5, "row_ms": 2},
}


def _model(composition, **overhead):
    return ProfileBatchTime(
        ProfileTables.model_validate(TABLES),
        composition=composition,
        overhead=EngineOverhead(**overhead) if overhead else NONE,
    )


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_overhead_comes_per_batch_and_per_request_in_it(composition):
    without, with_ = _model(composition), _model(composition, base_ms=4, per_request_ms=0.5)
    assert without() == 0.0
    assert with_() == pytest.approx(0.004)
    load = {
        "num_prefills": 2, "prefill_tokens": 8, "prefill_squares": 32, "num_decodes": 3, "decode_context": 200,
    }  # fmt: skip
    assert with_(**load) - without(**load) == pytest.approx(0.004 + 5 * 0.0005)


def test_decodes_by_hand():
    # Two layers of 10 + 2 * 1 + 0.5 + 2 * 1 ms, embedding 3, LM head max(5, 2 * 2).
    rest = 2 * 14.5 + 3 + 5
    load = {"num_decodes": 2, "decode_context": 200}
    # Pooled: at 2 decodes halfway between the rows, at 200 tokens halfway between the columns: 3 ms.
    assert _model("kvgym", base_ms=6, per_request_ms=0.5)(**load) == pytest.approx(1e-3 * (7 + rest + 2 * 3))
    # Measured at the mean context 100: 2 + 2 * 36 / 64 ms.
    assert _model("homogeneous")(**load) == pytest.approx(1e-3 * (rest + 2 * 3.125))


def test_several_prefills_by_hand():
    # Chunks 4 and 8 after 10 and 0 cached tokens.
    load = {
        "num_prefills": 2,
        "prefill_tokens": 12,
        "prefill_context": 10,
        "prefill_squares": 80,
        "prefill_products": 40,
    }
    # Twelve tokens: block 15, all-reduce of 96 bytes 1.5, per layer 15 + 2 + 0.5 + 3.
    rest = 2 * 20.5 + 3 + 5
    # own at 80 / 12 = 6.667: 0.3667 ms per token; cached at 40 / 10 = 4: 0.1 ms per token.
    attention = 0.25 + 12 * (0.3 + 0.1 * (80 / 12 - 4) / 4) + 10 * 0.1
    assert _model("kvgym")(**load) == pytest.approx(1e-3 * (rest + 2 * attention))


def test_equal_prefills_cost_exactly_the_sum():
    one = {
        "num_prefills": 1,
        "prefill_tokens": 5,
        "prefill_context": 7,
        "prefill_squares": 25,
        "prefill_products": 35,
    }
    five = {name: 5 * value for name, value in one.items()}
    params = ProfileTables.model_validate(
        {**TABLES, "all_reduce": None, "lm_head": {"weights_ms": 0, "row_ms": 0}}
    )
    model = ProfileBatchTime(params)

    def attention(load):
        without = {**load, "prefill_context": 0, "prefill_squares": 0, "prefill_products": 0}
        return model(**load) - model(**without)

    assert attention(five) == pytest.approx(5 * attention(one))


def test_vidur_composition_by_hand():
    # Nine tokens count as 16: 20 + one add 1 + two all-reduces of 128 bytes at 3 + 0.02 ms.
    per_layer = 20 + 1 + 2 * 3.02
    # Three decodes at a mean of 70, rounded up to 128, for several: 12 * 1.1.
    assert _model("vidur")(
        num_decodes=3,
        decode_context=210,
        num_prefills=1,
        prefill_tokens=6,
        prefill_squares=36,
        prefill_context=5,
    ) == pytest.approx(1e-3 * 2 * (per_layer + 13.2 + (1.5 + (5 - 1.5) * 0.5)))
    # A single decode has no allowance; 33 rounds up to 64.
    assert _model("vidur")(num_decodes=1, decode_context=33) == pytest.approx(
        1e-3 * 2 * (10 + 1 + 2 * 2.02 + 1.0)
    )
    # Chunks 3 and 4: root of 25 = 5 after 10 cached tokens in all.
    assert _model("vidur")(
        num_prefills=2, prefill_tokens=7, prefill_squares=25, prefill_context=10
    ) == pytest.approx(1e-3 * 2 * (10 + 1 + 2 * 2.02 + 1.1 * 3.0))


def test_the_last_slope_continues_beyond_the_range():
    model = _model("kvgym")
    tokens = model(num_prefills=0, prefill_tokens=np.array([16, 24, 48]))
    # Per token: block 10 / 8, all-reduces 2 * 1 / 8, per layer; twice.
    np.testing.assert_allclose(np.diff(tokens), 1e-3 * 2 * 1.5 * np.array([8, 24]))
    context = model(num_decodes=3, decode_context=np.array([300, 400, 100_300]))
    np.testing.assert_allclose(np.diff(context), 1e-3 * 2 * 0.01 * np.array([100, 99_900]))


def test_tables_round_trip_through_the_specification():
    model = ProfileBatchTime(
        ProfileTables.model_validate(TABLES),
        overhead=EngineOverhead(base_ms=2, per_request_ms=0.1, source="a guess"),
        source="made up",
        valid_range={"tokens": (1, 16)},
    )
    again = make_batch_time(json.loads(json.dumps(model.spec())))
    np.testing.assert_array_equal(again.params(), model.params())
    assert again.source == "made up"
    assert again.valid_range == {"tokens": (1.0, 16.0)}
    assert again.spec() == model.spec()


@pytest.mark.parametrize(
    ("place", "value", "word"),
    [
        (("linear", "tokens"), [1, 8, 8], "ascending"),
        (("linear", "add_ms"), [1, 1], "add_ms has 2 values where 3"),
        (("linear", "block_ms"), [1, -1, 2], "finite and >= 0"),
        (("decode", "ms"), [[1, 2], [2, 4], [6, 5]], "along the columns"),
        (("decode", "ms"), [[1, 2], [2, 4], [1, 5]], "below"),
        (("decode", "ms"), [[1, 2]], "1 rows where 3"),
        (("prefill_pooled", "chunk"), [1, 4, 8], "begin with 0"),
        (("prefill_pooled", "own_ns"), [0, 1, 3], "faster than the chunk"),
        (("prefill_pooled", "cached_ns"), [3, 2, 1], "must not fall"),
    ],
)
def test_malformed_tables(place, value, word):
    tables = json.loads(json.dumps(TABLES))
    tables[place[0]][place[1]] = value
    with pytest.raises(ConfigError, match=word):
        make_batch_time({"kind": "profile", "tables": tables})
