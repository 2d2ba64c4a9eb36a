"""The engine on decisions made by hand, compiled and as plain Python: prefill, load, pausing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.runs.runs_by_hand import Make, finish, log_of, rows, run
from kvgym.batch_time import AffineBatchTime, BatchTimeModel, batch_time_kernel
from kvgym.policies.policy import Decision
from kvgym.simulator.tables import GAP_BINS

# ---------------------------------------------------------------- prefill and first token


@pytest.mark.parametrize(
    ("first_token", "kv", "first", "last"),
    [
        ("counted", [2, 4, 6, 7, 8], 3, 5),  # the last chunk writes token 1: o iterations from there
        ("uncounted", [2, 4, 5, 6, 7, 8], 3, 6),  # the last chunk shows a token, o decodes follow
        ("decode", [2, 4, 5, 6, 7, 8], 4, 6),  # the first of o decodes shows it
    ],
)
def test_chunked_prefill_and_first_token(
    make: Make, first_token: str, kv: list[int], first: float, last: float
) -> None:
    simulation = make([(0, 5, 3)], first_token=first_token)
    view = simulation.view
    assert view.prefill_emits == (first_token == "counted")
    run(simulation, Decision(admit=[0], tokens={0: 2}))
    assert rows(view.active) == {0: (2, 3, 0)}
    run(simulation, Decision(tokens={0: 2}))
    assert rows(view.active) == {0: (4, 1, 0)}
    run(simulation, Decision())
    assert rows(view.active) == {0: (6, 0, 1) if first_token == "counted" else (5, 0, 0)}
    finish(simulation)
    log = log_of(simulation)
    assert log["kv_tokens"].tolist() == kv
    assert log["prefill_tokens"].tolist() == [2, 2, 1] + [0] * (len(kv) - 3)
    assert log["num_prefills"].tolist() == [1, 1, 1] + [0] * (len(kv) - 3)
    assert log["num_decodes"].tolist() == [0, 0, 0] + [1] * (len(kv) - 3)
    assert log["num_output_tokens"].sum() == 3
    record = simulation.requests[0]
    assert (record["start_time"], record["first_token_time"], record["finish_time"]) == (0, first, last)
    assert record["num_output_tokens"] == 3
    # Gaps between tokens shown: all are 1 s; the uncounted first token makes one more.
    assert simulation.gap_counts[:GAP_BINS].sum() == (3 if first_token == "uncounted" else 2)
    assert simulation.gap_sums.sum() == last - first
    assert view.finished.tolist() == [0]


@pytest.mark.parametrize(("first_token", "iterations"), [("counted", 1), ("uncounted", 2), ("decode", 2)])
def test_one_token_requests(make: Make, first_token: str, iterations: int) -> None:
    simulation = make([(0, 19, 1)], first_token=first_token)  # and exactly fills M = 20
    if iterations == 2:
        run(simulation, Decision(admit=[0]))
        assert rows(simulation.view.active) == {0: (19, 0, 0)}
        assert not simulation.step(Decision())
    else:
        assert not simulation.step(Decision(admit=[0]))
    record = simulation.requests[0]
    assert record["finish_time"] == iterations
    assert record["first_token_time"] == (2 if first_token == "decode" else 1)
    assert log_of(simulation)["kv_tokens"][-1] == 20


def test_whole_prompt_prefill_is_the_default(make: Make) -> None:
    simulation = make([(0, 5, 3), (0, 2, 2)])
    run(simulation, Decision(admit=[1, 0], tokens={0: 1}))
    assert rows(simulation.view.active) == {1: (3, 0, 1), 0: (1, 4, 0)}
    assert simulation.view.active.request_id.tolist() == [1, 0]  # order of activation
    run(simulation, Decision())
    assert rows(simulation.view.active) == {0: (6, 0, 1)}
    assert simulation.view.finished.tolist() == [1]


# ---------------------------------------------------------------- the load passed to a batch-time model


WEIGHTS = {
    "num_prefills": 1.0,
    "prefill_tokens": 2.0**6,
    "prefill_context": 2.0**12,
    "prefill_squares": 2.0**18,
    "prefill_products": 2.0**24,
    "num_decodes": 2.0**30,
    "decode_context": 2.0**36,
    "draft_tokens": 2.0**42,
}


@batch_time_kernel
def _digits(load: Any, params: Any) -> Any:
    return (
        params[0] * load.num_prefills
        + params[1] * load.prefill_tokens
        + params[2] * load.prefill_context
        + params[3] * load.prefill_squares
        + params[4] * load.prefill_products
        + params[5] * load.num_decodes
        + params[6] * load.decode_context
        + params[7] * load.draft_tokens
        + 2.0**-4
    )


class Digits(BatchTimeModel):
    """Encodes the load in the digits of the duration."""

    kernel = _digits

    def params(self) -> np.ndarray:
        return np.array(list(WEIGHTS.values()))


def test_load_of_a_mixed_batch(make: Make) -> None:
    simulation = make([(0, 6, 3), (0, 5, 2), (0, 4, 2), (0, 3, 3)], M=40, time=Digits())
    run(simulation, Decision(admit=[0, 3, 1], tokens={1: 2}))
    run(simulation, Decision(admit=[2], tokens={1: 3, 3: 0}))
    # 0 decodes with 7 cached, 1 ends its prefill with 3 after 2, 2 prefills 4 after 0, 3 is paused.
    load = {
        "num_prefills": 2,
        "prefill_tokens": 7,
        "prefill_context": 2,
        "prefill_squares": 9 + 16,
        "prefill_products": 6,
        "num_decodes": 1,
        "decode_context": 7,
    }
    before, after = log_of(simulation)["end_time"][-2:]
    assert after - before == sum(WEIGHTS[name] * count for name, count in load.items()) + 2.0**-4
    assert after - before == Digits()(**load)
    assert log_of(simulation)["kv_tokens"][-1] == 8 + 6 + 5 + 4


# ---------------------------------------------------------------- pausing


def test_paused_requests_keep_their_kv_and_cost_no_time(make: Make) -> None:
    simulation = make([(0, 5, 3), (0, 2, 4)], time=AffineBatchTime(0.5, per_decode_token=0.25))
    view = simulation.view
    run(simulation, Decision(admit=[0, 1]))  # until 0.5
    run(simulation, Decision(tokens={0: 0}))  # one decode: until 1.25
    assert rows(view.active) == {0: (6, 0, 1), 1: (4, 0, 2)}
    run(simulation, Decision(tokens={0: 0, 1: 0}))  # nothing: until 1.75
    assert rows(view.active) == {0: (6, 0, 1), 1: (4, 0, 2)}
    assert view.clock == 1.75
    run(simulation, Decision())  # two decodes: until 2.75
    assert view.clock == 2.75
    log = log_of(simulation)
    assert log["kv_tokens"].tolist() == [6 + 3, 6 + 4, 10, 7 + 5]
    assert log["num_active"].tolist() == [2] * 4
    assert log["num_decodes"].tolist() == [0, 1, 0, 2]
    finish(simulation)
    assert simulation.requests["max_token_gap"].tolist() == [2.25, 1.5]
    assert simulation.requests["finish_time"].tolist() == [3.75, 3.75]


def test_prefill_may_pause(make: Make) -> None:
    simulation = make([(0, 5, 3)])
    run(simulation, Decision(admit=[0], tokens={0: 3}), Decision(tokens={0: 0}))
    assert rows(simulation.view.active) == {0: (3, 2, 0)}
    assert simulation.view.clock == 2
    run(simulation, Decision(tokens={0: 2}))
    assert rows(simulation.view.active) == {0: (6, 0, 1)}
    # Admitted without a token at first: active, without KV.
    simulation = make([(0, 5, 3)])
    run(simulation, Decision(admit=[0], tokens={0: 0}))
    assert rows(simulation.view.active) == {0: (0, 5, 0)}
    assert simulation.requests["start_time"][0] == 0
    assert simulation.view.kv_tokens == 0
