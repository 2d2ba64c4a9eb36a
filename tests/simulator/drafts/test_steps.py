"""Steps of speculative decoding worked by hand: tokens, right drafts, outputs and blocks, batch by batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.amount import number
from kvgym import RequestTable, System, make_batch_time, simulate
from kvgym.compiling.kernel import uncompiled
from kvgym.errors import ConfigError, UnknownNameError, WorkloadError
from kvgym.simulator.drafts.acceptance import (
    ACCEPTANCES,
    PUBLISHED,
    chances,
    expected_tokens,
    find_acceptance,
    rates_from_steps,
)
from kvgym.simulator.drafts.settings import Speculation, make_speculation
from kvgym.simulator.drafts.steps import mixed

MODEL = make_batch_time({"kind": "affine", "constant": 1.0, "per_decode_token": 2.0**-6})
ENGINE = {"output_kv": "next_iteration", "progress_on_evict": "recompute", "requeue": "front"}


def play(prompts, outputs, rights, blocks, policy="vllm_v1", *, block_size=4, compiled=False, **speculation):
    """Return a run of requests that arrive together."""
    table = RequestTable.from_columns(
        arrival_time=np.zeros(len(prompts)), prompt_len=prompts, output_len=outputs
    )
    recorded = tuple(tuple(row) for row in rights)
    if speculation:
        speculation = {"speculation": Speculation(recorded=recorded, **speculation)}
    system = System(
        kv_capacity=blocks * block_size, batch_time=MODEL, block_size=block_size, **ENGINE, **speculation
    )
    return simulate(system, table, policy, log=True, compiled=compiled)


def rows(result):
    """Return for each batch its tokens, right drafts, outputs made, blocks in use and preemptions before it."""
    log = result.log
    tokens = log["prefill_tokens"] + log["num_decodes"] + log["draft_tokens"]
    columns = (
        tokens,
        log["accepted_tokens"],
        log["num_output_tokens"],
        log["kv_tokens"] // 4,
        log["num_evicted"],
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


ALL, NONE = [9] * 9, [0] * 9
DECODE = (4, 0, 1)
CASES = {
    "all right": (([4], [7], [ALL], 8), (2, 2), [(4, 0, 1, 2, 0), (3, 2, 3, 3, 0), (3, 2, 3, 3, 0)]),
    "none right, and blocks stay": (([4], [3], [NONE], 8), (2, 2), [(4, 0, 1, 2, 0), (3, 0, 1, 3, 0), (3, 0, 1, 3, 0)]),
    "the end cuts tokens": (([4], [3], [ALL], 8), (4, 4), [(4, 0, 1, 2, 0), (5, 4, 2, 4, 0)]),
    "drafts preempt": (
        ([4, 4], [4, 4], [NONE, NONE], 4),
        (3, 3),
        [(8, 0, 2, 4, 0), (*DECODE, 3, 1), (*DECODE, 3, 0), (*DECODE, 4, 0), (5, 0, 1, 2, 0), (*DECODE, 3, 0),
         (*DECODE, 4, 0)],
    ),
    "n-grams reserve nothing": (
        ([4, 4], [4, 4], [NONE, NONE], 4),
        (3, 0),
        [(8, 0, 2, 2, 0), (8, 0, 2, 4, 0), (*DECODE, 3, 1), (*DECODE, 3, 0), (6, 0, 1, 2, 0), (*DECODE, 3, 0)],
    ),
    "one output, no drafts": (([4], [1], [ALL], 8), (2, 2), [(4, 0, 1, 2, 0)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_steps_by_hand(name):
    (prompts, outputs, rights, blocks), (depth, lookahead), expected = CASES[name]
    found = play(prompts, outputs, rights, blocks, depth=depth, lookahead=lookahead)
    assert rows(found) == expected


def test_the_token_budget_cuts_drafts_in_the_order_of_requests():
    policy = "vllm_v1:max_num_batched_tokens=7,max_num_seqs=3"
    found = play([2, 2, 2], [6, 6, 6], [ALL] * 3, 12, policy, depth=3)
    assert rows(found) == [
        (6, 0, 3, 6, 0),
        (7, 5, 7, 7, 0),
        (7, 5, 3, 9, 0),
        (4, 3, 4, 3, 0),
        (4, 3, 1, 4, 0),
    ]


def test_a_prompt_in_chunks_has_no_drafts():
    found = play([10], [4], [[1] * 4], 8, "vllm_v1:max_num_batched_tokens=4,max_num_seqs=4", depth=2)
    assert rows(found) == [
        (4, 0, 0, 2, 0),
        (4, 0, 0, 3, 0),
        (2, 0, 1, 3, 0),
        (3, 1, 2, 4, 0),
        (3, 1, 1, 5, 0),
    ]


def test_blocks_of_one_token():
    found = play([3], [5], [[0, 1, 0, 2, 0]], 16, block_size=1, depth=2)
    assert [row[:3] for row in rows(found)] == [(3, 0, 1), (3, 1, 2), (3, 2, 2)]
    assert found.log["kv_tokens"].tolist() == [5, 8, 10]


def test_a_table_goes_by_the_requests_in_the_batch():
    ranges = ((1, 1, 3), (2, 8, 1))
    found = play([2, 2, 2], [8, 3, 3], [ALL] * 3, 12, depth=3, choose="table", by_batch=ranges)
    assert rows(found) == [(6, 0, 3, 6, 0), (6, 3, 6, 6, 0), (2, 1, 2, 3, 0), (4, 3, 3, 4, 0)]
    none = play([4], [3], [ALL], 8, depth=2, choose="table", by_batch=((1, 8, 0),))
    assert rows(none) == [(4, 0, 1, 2, 0), (1, 0, 1, 2, 0), (1, 0, 1, 2, 0)]
    assert Speculation(choose="table", by_batch=((1, 2, 3), (5, 6, 1))).depths(8).tolist() == [
        3,
        3,
        3,
        3,
        3,
        1,
        1,
        1,
        1,
    ]


def test_first_come_first_served_counts_drafts():
    found = play([4, 4], [4, 4], [NONE, NONE], 4, "fcfs", depth=3)
    assert rows(found)[:3] == [(8, 0, 2, 4, 0), (*DECODE, 3, 1), (*DECODE, 3, 0)]


lengths = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=5)


@settings(max_examples=number(60, 12), deadline=None)
@given(
    lengths=lengths,
    depth=st.integers(1, 4),
    lookahead=st.integers(0, 4),
    policy=st.sampled_from(["fcfs", "vllm_v1", "lpm", "cost_aware", "alpha_beta:beta=0.5", "request_level:batch=2"]),
    choose=st.sampled_from(["fixed", "cost", "cost_each"]),
    size=st.sampled_from([1, 4]),
    room=st.integers(0, 20),
)  # fmt: skip
def test_every_request_gets_its_tokens(lengths, depth, lookahead, policy, choose, size, room):
    prompts, outputs = zip(*lengths, strict=True)
    least = max(p + o for p, o in lengths) + depth + lookahead
    table = RequestTable.from_columns(
        arrival_time=np.arange(len(prompts)) * 1.5, prompt_len=prompts, output_len=outputs
    )
    speculation = Speculation((0.7, 0.5), depth=depth, lookahead=lookahead, choose=choose)
    blocks = -(-(least + room) // size)
    system = System(
        kv_capacity=blocks * size, batch_time=MODEL, block_size=size, speculation=speculation, **ENGINE
    )
    result = simulate(system, table, policy, log=True, compiled=False)
    assert result.requests["num_output_tokens"].tolist() == list(outputs)
    log, worker = result.log, result.worker[0]
    assert log["num_output_tokens"].sum() == sum(outputs) == worker["total_delivered_tokens"]
    assert (log["kv_tokens"] <= system.kv_capacity).all()
    assert (log["accepted_tokens"] <= log["draft_tokens"]).all()
    assert log["draft_tokens"].sum() == worker["total_drafted"]
    assert (log["draft_tokens"] <= depth * log["num_decodes"]).all()
    assert worker["kv_allocated"] == worker["kv_tokens"] == 0
    spans = result.requests["last_token_time"] - result.requests["first_token_time"]
    assert result.gap_sums.sum() == pytest.approx(spans.sum())


def test_without_right_drafts_the_tokens_are_those_of_no_speculation_and_batches_longer():
    off = play([4, 6], [5, 3], [NONE, NONE], 20)
    wrong = play([4, 6], [5, 3], [NONE, NONE], 20, depth=2)
    assert off.log["num_output_tokens"].tolist() == wrong.log["num_output_tokens"].tolist()
    assert (np.diff(wrong.log["end_time"]) >= np.diff(off.log["end_time"])).all()
    assert wrong.log["end_time"][-1] > off.log["end_time"][-1]


def long_run(depth, policy="fcfs", seed=0, compiled=False, **settings):
    table = RequestTable.from_columns(arrival_time=[0.0], prompt_len=[4], output_len=[1500])
    speculation = Speculation((0.5, 0.5), depth=depth, **settings)
    system = System(kv_capacity=2000, batch_time=MODEL, speculation=speculation)
    return simulate(system, table, policy, seed=seed, log=True, compiled=compiled)


def test_tokens_per_step_follow_the_rates_and_the_text_is_the_same_for_all_depths():
    one, two = long_run(1), long_run(2)
    w = two.worker[0]
    steps = int(w["total_decodes"])
    assert 1 + w["total_accepted"] / steps == pytest.approx(1.75, abs=3 * 0.83 / steps**0.5)
    # What is right depends on the position: one draft is right where at least one of two is.
    right = np.zeros(1500, int)
    made = 1
    for made_now, accepted in zip(
        two.log["num_output_tokens"][1:], two.log["accepted_tokens"][1:], strict=True
    ):
        right[made] = 1 + accepted
        made += made_now
    made, compared = 1, 0
    for made_now, accepted in zip(
        one.log["num_output_tokens"][1:], one.log["accepted_tokens"][1:], strict=True
    ):
        if right[made]:
            assert accepted == min(right[made] - 1, 1)
            compared += 1
        made += made_now
    assert compared > 200
    assert (long_run(2, seed=1).log["accepted_tokens"][:40] != two.log["accepted_tokens"][:40]).any()


def test_rules_by_cost_choose_depths_that_pay():
    cheap = long_run(3, choose="cost", lookahead=3)
    assert cheap.log["draft_tokens"][50:].mean() > 2.5  # a draft costs a 64th of a batch
    dear = long_run(3, choose="cost", lookahead=3, draft_ms_per_pass=900.0)
    assert dear.log["draft_tokens"][50:].mean() < 0.5
    assert long_run(3, choose="cost_each", lookahead=3).log["draft_tokens"][50:].mean() > 2.5


def test_rates_of_all_requests_are_those_given_with_any_spread():
    normal = np.random.default_rng(0).standard_normal(200_000)
    for name in ("eagle-chat", "ngram-code"):
        acceptance = ACCEPTANCES[name]
        odds = chances(acceptance, 7, normal).mean(axis=0)
        np.testing.assert_allclose(odds / [1.0, *odds[:-1]], acceptance.rates, atol=0.01)
        assert (
            chances(acceptance._replace(spread=0.0), 7, normal[:1])[0].tolist()
            == np.cumprod(acceptance.rates).tolist()
        )
    for name, (_, tokens, _) in PUBLISHED.items():
        found = [expected_tokens(ACCEPTANCES[name], k) for k in (1, 3, 5, 7)]
        np.testing.assert_allclose(found, tokens, atol=1e-9)
    assert rates_from_steps((1.5, 1.875)) == (0.5, 0.5, 0.5)
    assert find_acceptance([0.5]).rates == (0.5,)


def test_mixed_bits_are_uniform():
    drawn = np.array([uncompiled(mixed)(x) for x in range(4096)]) / 2**32
    counts, _ = np.histogram(drawn, 16, (0, 1))
    assert abs(drawn.mean() - 0.5) < 0.02
    assert counts.min() > 180


def test_descriptions_and_their_errors():
    assert make_speculation("off") is make_speculation(None) is None
    assert make_speculation("ngram-code:depth=4").reserved == 0
    made = make_speculation(
        {"acceptance": [0.7, 0.6], "depth": 2, "by_batch": [[1, 4, 2]], "choose": "table"}
    )
    assert made == Speculation((0.7, 0.6), 2, "table", ((1, 4, 2),))
    assert make_speculation(made.spec()) == made
    for described, message in [
        ({"depth": 17}, "depth = 17; expected 1 … 16 drafts"),
        ({"choose": "best"}, "valid: fixed, table, cost, cost_each"),
        ({"choose": "table"}, "expected choose = table with ranges"),
        (
            {"by_batch": [[2, 3, 1]], "choose": "table"},
            r"by_batch\[0\] = \(2, 3, 1\); expected ascending ranges",
        ),
        ({"deep": 3}, "unknown setting deep; valid: acceptance, depth"),
        ({"acceptance": [1.5]}, r"acceptance\[0\] = 1.5; expected a probability"),
        (3, "speculation = 3; expected a name"),
    ]:
        with pytest.raises(ConfigError, match=message):
            make_speculation(described)
    with pytest.raises(UnknownNameError, match="unknown acceptance 'eagle-chats'"):
        make_speculation("eagle-chats")


def test_systems_that_cannot_speculate_say_why():
    speculation = Speculation((0.5,), depth=2)
    usual = {"kv_capacity": 40, "batch_time": MODEL, "speculation": speculation}
    with pytest.raises(
        ConfigError, match="which does not depend on draft_tokens, so that drafts would cost nothing"
    ):
        System(**usual | {"batch_time": make_batch_time({"kind": "unit"})})
    with pytest.raises(ConfigError, match="speculation with 2 workers; expected one worker"):
        System(**usual).replicate(2)
    with pytest.raises(ConfigError, match="first_token = decode; expected counted"):
        System(**usual, first_token="decode")
    with pytest.raises(ConfigError, match="a bound assumes one token per decode"):
        System(**usual).check_independent("a bound")
    table = RequestTable.from_columns(arrival_time=[0.0], prompt_len=[4], output_len=[5])
    with pytest.raises(ConfigError, match="'mc_sf' plans one token per decode, and the system speculates"):
        simulate(System(**usual), table.replace(predicted_output_len=[5]), "mc_sf")
    with pytest.raises(ConfigError, match="async_scheduling = True with speculation is not modelled"):
        simulate(System(**usual), table, "vllm_v1:async_scheduling=true")
    with pytest.raises(WorkloadError, match="1 of 1 requests can never be served"):
        simulate(System(**usual | {"kv_capacity": 12}), table, "fcfs")
    with pytest.raises(WorkloadError, match="recorded has 1 rows; expected one for each of 1 requests"):
        simulate(System(**usual | {"speculation": Speculation(recorded=((1, 1),))}), table, "fcfs")
    with pytest.raises(WorkloadError, match="by_class needs requests with classes"):
        simulate(System(**usual | {"speculation": Speculation(by_class=((0.5,),))}), table, "fcfs")


@pytest.mark.long
@pytest.mark.parametrize("policy", ["fcfs", "vllm_v1:max_num_batched_tokens=32,max_num_seqs=8"])
@pytest.mark.parametrize("choose", ["fixed", "cost", "cost_each"])
def test_compiled_runs_equal_those_in_python(policy, choose):
    rng = np.random.default_rng(5)
    table = RequestTable.from_columns(
        arrival_time=np.sort(rng.uniform(0, 40, 40)),
        prompt_len=rng.integers(1, 30, 40),
        output_len=rng.integers(1, 40, 40),
    )
    speculation = Speculation("eagle-chat", 4, choose)
    system = System(kv_capacity=160, batch_time=MODEL, block_size=4, speculation=speculation, **ENGINE)
    one, two = (simulate(system, table, policy, log=True, compiled=flag) for flag in (False, True))
    assert one.worker["total_evicted"][0] > 0
    for name in one.log.dtype.names:
        np.testing.assert_array_equal(one.log[name], two.log[name])
    np.testing.assert_array_equal(one.requests["finish_time"], two.requests["finish_time"])
