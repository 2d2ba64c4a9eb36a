"""RAD, its Appendix D variant and request-level batching on schedules worked out by hand.

Source: Bari et al., "Optimal Scheduling Algorithms for LLM Inference: Theory and Practice", Algorithms 1-3.
Notation in comments: s prompt, o output, M memory, D requests in their decode phase, kv = tokens held;
"P 0 (4)" is a chunk of 4 tokens of request 0, "D 0 1" a decode of requests 0 and 1. Iterations take a second.
The paper's rule is "uncounted": the last chunk shows a first token and o decodes follow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.runs import schedules
from helpers.runs.schedules import check
from kvgym.batch_time import AffineBatchTime
from kvgym.policies.policy import POLICIES, policy_defaults
from kvgym.policies.runner import SimulationResult

BOTH = pytest.mark.parametrize("policy", ["rad", "rad_batched"])


def run(policy: str, a: Any, s: Any, o: Any, *, M: int = 1000, **settings: Any) -> SimulationResult:  # noqa: N803
    return schedules.run(policy, M, a, s, o, **{"first_token": "uncounted", **settings})


def batches(result: SimulationResult) -> list[tuple[int, int]]:
    """Return (prefill tokens, decodes) of every iteration."""
    assert result.log is not None
    return list(zip(result.log["prefill_tokens"].tolist(), result.log["num_decodes"].tolist(), strict=True))


# ---------------------------------------------------------------- shared by RAD and its variant


@BOTH
def test_a_prompt_is_processed_in_chunks_alone_and_to_its_end(policy: str) -> None:
    # P 0 (4, 4, 2), then 1, which has been there from the start and is shorter: P 1 (1). D 0 1, D 0.
    # A prompt that is a multiple of the chunk takes no chunk more (L - i + 1, not L - i): s 8 are two chunks.
    result = run(f"{policy}:chunk=4,decodes=2", [0, 0], [10, 1], [2, 1])
    check(result, start=[0, 3], finish=[6, 5], first=[3, 4])
    assert batches(result) == [(4, 0), (4, 0), (2, 0), (1, 0), (0, 2), (0, 1)]
    result = run(f"{policy}:chunk=4", [0], [8], [1])
    assert batches(result) == [(4, 0), (4, 0), (0, 1)]


@BOTH
def test_first_come_first_served(policy: str) -> None:
    # Prompts 5, 1, 3 in order of arrival, although 1 is shorter; 2 and 3 arrive together at 0.5: by id.
    result = run(f"{policy}:chunk=2,decodes=8", [0, 0.25, 0.5, 0.5], [5, 1, 3, 1], [1, 1, 1, 1])
    check(result, start=[0, 3, 4, 6], finish=[8, 8, 8, 8], first=[3, 4, 6, 7])
    assert batches(result) == [(2, 0), (2, 0), (1, 0), (1, 0), (2, 0), (1, 0), (1, 0), (0, 4)]


@BOTH
def test_a_cycle_starts_and_completes_n_requests(policy: str) -> None:
    # n = 2: P 0, P 1, then D until both are done, though 2 waits from the start and 0 is done at 3.
    result = run(f"{policy}:cycle=2,decodes=4", [0, 0, 0], [2, 2, 2], [1, 3, 2])
    check(result, start=[0, 1, 5], finish=[3, 5, 8], first=[1, 2, 6])
    # n = 1: one after the other. A counter that is not reset would end here.
    result = run(f"{policy}:cycle=1,decodes=4", [0, 0, 0], [2, 2, 2], [1, 3, 2])
    check(result, start=[0, 2, 6], finish=[2, 6, 9], first=[1, 3, 7])


@BOTH
def test_a_cycle_of_prefills_alone_also_ends(policy: str) -> None:
    # Counted first tokens, o 1: a request is done with its prefill. No empty iteration between cycles.
    for cycle in (1, 2, 5):
        result = run(f"{policy}:cycle={cycle}", [0, 0, 0, 7], [2] * 4, [1] * 4, first_token="counted")
        check(result, start=[0, 1, 2, 7], finish=[1, 2, 3, 8], first=[1, 2, 3, 8])


@BOTH
def test_first_token_rules(policy: str) -> None:
    # s 2, o 2. Counted: 2 iterations; uncounted and decode: 3, with the first token after 1 or 2.
    for rule, first, finish in (("counted", 1, 2), ("uncounted", 1, 3), ("decode", 2, 3)):
        check(run(policy, [0], [2], [2], first_token=rule), start=[0], finish=[finish], first=[first])


@BOTH
def test_one_token_outputs_and_an_arrival_at_a_completion(policy: str) -> None:
    # P 0 [0, 1), D 0 [1, 2): done at 2, when 1 arrives: P 1 [2, 3), D 1 [3, 4).
    check(run(policy, [0, 2], [2, 3], [1, 1]), start=[0, 2], finish=[2, 4], first=[1, 3])
    # Where the prefill emits the token, it is all there is to do.
    result = run(policy, [0, 1], [2, 3], [1, 1], first_token="counted")
    check(result, start=[0, 1], finish=[1, 2], first=[1, 2])


def test_request_level_one_token_outputs_and_an_arrival_at_a_completion() -> None:
    # P 0 1 [0, 1); D 0 1 [1, 2): 0 is done; D 1 to 4, when 2 comes and starts the next batch.
    result = run("request_level:batch=2", [0, 0, 4], [2, 2, 1], [1, 3, 1])
    check(result, start=[0, 0, 4], finish=[2, 4, 6], first=[1, 1, 5])


@BOTH
def test_a_request_may_fill_the_memory(policy: str) -> None:
    # s + o = M = 10 for all; kv 7, then 8, 9, 10. The next prompt has to wait for the room: 7 + (7+1) > 10.
    result = run(policy, [0, 0], [7, 9], [3, 1], M=10)
    check(result, start=[0, 4], finish=[4, 6], first=[1, 5])
    assert result.log is not None
    np.testing.assert_array_equal(result.log["kv_tokens"], [7, 8, 9, 10, 9, 10])
    # Counted: the prefill writes 8 at once, o 3 is 2 decodes.
    check(run(policy, [0], [7], [3], M=10, first_token="counted"), start=[0], finish=[3], first=[1])


@BOTH
def test_the_clock_follows_the_batches(policy: str) -> None:
    # A batch takes 1 s, 0.5 s a prefill token, 0.25 s a decode. P 0 (2): 2. 1 arrived at 0.5: P 1 (1): 1.5.
    # D 0 1: 1.5; D 0: 1.25.
    time = AffineBatchTime(1.0, per_prefill_token=0.5, per_decode_token=0.25)
    result = run(policy, [0, 0.5], [2, 1], [2, 1], batch_time=time)
    check(result, start=[0, 2], finish=[6.25, 5], first=[2, 3.5])


# ---------------------------------------------------------------- RAD


def test_rad_refills_to_t_col_when_one_completes() -> None:
    # t_col = 2. P 0 (4, 2), P 1 (4), now |D| = 2: D 0 1 twice, 0 is done at 5. P 2 (3), D 1 2.
    result = run("rad:decodes=2,chunk=4", [0, 0, 0], [6, 4, 3], [2, 3, 1])
    check(result, start=[0, 2, 5], finish=[5, 7, 7], first=[2, 3, 6])
    assert batches(result) == [(4, 0), (2, 0), (4, 0), (0, 2), (0, 2), (3, 0), (0, 2)]
    # "decode": the first token comes with the first decode.
    result = run("rad:decodes=2,chunk=4", [0, 0, 0], [6, 4, 3], [2, 3, 1], first_token="decode")
    check(result, start=[0, 2, 5], finish=[5, 7, 7], first=[4, 4, 7])


def test_rad_prefills_an_arrival_at_the_next_boundary() -> None:
    # 0 decodes alone while none waits. 1 arrives at 2, the end of a batch: P 1 at once, 0 pauses. D 0 1: 1 done.
    # 2 arrives at 4.5 within a batch: P 2 at 5. D 0 2: both are done at 7.
    result = run("rad:decodes=3", [0, 2, 4.5], [2, 2, 2], [4, 1, 1])
    check(result, start=[0, 2, 5], finish=[7, 4, 7], first=[1, 3, 6])
    assert batches(result) == [(2, 0), (0, 1), (2, 0), (0, 2), (0, 1), (2, 0), (0, 2)]
    assert result.requests["max_token_gap"].tolist() == [2, 1, 1]


def test_rad_decodes_on_when_a_prompt_does_not_fit() -> None:
    # M = 10, kv 4 after P 0. 1 (s 6) needs 6 + 1: 11 > 10. D 0 three times; at 4 there is room.
    check(run("rad", [0, 0], [4, 6], [3, 1], M=10), start=[0, 4], finish=[4, 6])
    # First come, first served: 2 (s 1) would fit, but 1 is the head.
    check(run("rad", [0, 0, 0], [4, 6, 1], [3, 1, 1], M=10), start=[0, 4, 5], finish=[4, 7, 7])


def test_rad_evicts_the_newest_on_overflow() -> None:
    # M = 10. P 0 (4): kv 4. 1 (s 5): 4 + 5 + 1 = 10 fits: kv 9. t=2: D 0 1 would take 11: 1 is evicted, D 0: kv 5.
    # t=3: 5 + 6 = 11: D 0. t=4: D 0, done at 5. P 1 (5), with its first token out at 2. D 1 twice.
    result = run("rad", [0, 0], [4, 5], [3, 2], M=10)
    check(result, start=[0, 1], finish=[5, 8], first=[1, 2], evictions=[0, 1])
    assert result.log is not None
    np.testing.assert_array_equal(result.log["kv_tokens"], [4, 9, 5, 6, 7, 5, 6, 7])
    np.testing.assert_array_equal(result.log["num_evicted"], [0, 0, 1, 0, 0, 0, 0, 0])


def test_rad_readmits_requests_that_kept_their_kv_without_a_prefill() -> None:
    # As before, n = 2, and 1 keeps its 5 tokens. t=5: it goes to D at once and counts, and P 2 (2) begins. n is
    # reached: D 1 2, D 1. Only then P 3 (1), D 3.
    result = run("rad:cycle=2", [0] * 4, [4, 5, 2, 1], [3, 2, 1, 1], M=10, progress_on_evict="kept")
    check(result, start=[0, 1, 5, 8], finish=[5, 8, 7, 10], first=[1, 2, 6, 9], evictions=[0, 1, 0, 0])
    assert batches(result) == [
        (4, 0), (5, 0), (0, 1), (0, 1), (0, 1), (2, 0), (0, 2), (0, 1), (1, 0), (0, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("cycle", [7, 20])
def test_rad_keeps_its_tiling_except_at_the_end_of_a_cycle(cycle: int) -> None:
    """Appendix C: while requests wait, all decodes except those of t_col - 1 requests per cycle are in full batches."""
    t_col, chunk = 4, 3
    for seed in range(5):
        rng = np.random.default_rng(seed)
        s, o = chunk * rng.integers(1, 5, 20), rng.integers(1, 12, 20)
        result = run(f"rad:cycle={cycle},decodes={t_col},chunk={chunk}", [0] * 20, s.tolist(), o.tolist())
        log = result.log
        assert log is not None
        assert ((log["num_prefills"] == 0) | (log["num_decodes"] == 0)).all()
        assert log["num_prefills"].max() == 1
        assert set(log["prefill_tokens"].tolist()) == {0, chunk}  # Assumption 3: prompts are whole chunks
        assert log["num_active"].max() <= t_col
        # A cycle's prefills are its first n to start, and until the last of them is done decodes come by t_col.
        first = np.sort(result.requests["first_token_time"])
        ends = np.sort(result.requests["finish_time"])
        for begin in range(0, 20, cycle):
            last = min(begin + cycle, 20) - 1
            since = first[begin] if begin == 0 else ends[begin - 1]
            within = (log["start_time"] >= since) & (log["start_time"] < first[last])
            decodes = log["num_decodes"][within]
            assert set(decodes[decodes > 0].tolist()) <= {t_col}
            after = (log["start_time"] >= first[last]) & (log["start_time"] < ends[last])
            assert (np.diff(log["num_decodes"][after]) <= 0).all()  # then none joins
            assert log["num_prefills"][after].sum() == 0


# ---------------------------------------------------------------- the variant of Appendix D


def test_rad_batched_prefills_n_and_decodes_t_col_at_a_time() -> None:
    # n = 3, t_col = 2. P 0 (4), P 1 (4, 1), P 2 (2). D 0 1: 0 is done at 5, 2 takes its place: D 1 2 twice.
    # The next cycle: P 3, D 3.
    spec, args = "rad_batched:cycle=3,decodes=2,chunk=4", ([0] * 4, [4, 5, 2, 1], [1, 3, 2, 1])
    result = run(spec, *args)
    check(result, start=[0, 1, 3, 7], finish=[5, 7, 7, 9], first=[1, 3, 4, 8])
    assert batches(result) == [(4, 0), (4, 0), (1, 0), (2, 0), (0, 2), (0, 2), (0, 2), (1, 0), (0, 1)]
    # "decode": a first token only when a request is among the t_col, from then on one in every batch.
    result = run(spec, *args, first_token="decode")
    check(result, start=[0, 1, 3, 7], finish=[5, 7, 7, 9], first=[5, 5, 6, 9])
    assert np.nanmax(result.requests["max_token_gap"]) == 1


def test_rad_batched_admits_arrivals_in_prefill_mode_only() -> None:
    # 1 arrives at 1, when 0 is prefilled: P 1 still belongs to the cycle. D 0 1 three times.
    check(run("rad_batched", [0, 1], [2, 2], [3, 3]), start=[0, 1], finish=[5, 5], first=[1, 2])
    # At 1.5 it is too late: D 0 until 4, although n and t_col would allow more.
    check(run("rad_batched", [0, 1.5], [2, 2], [3, 3]), start=[0, 4], finish=[4, 8], first=[1, 5])


def test_rad_batched_closes_the_cycle_when_a_prompt_does_not_fit() -> None:
    # M = 12: 8 + 4 + 1 = 13. D 0 1, 0 is done at 3. 2 would fit, but the cycle goes to its end: D 1 until 5.
    check(run("rad_batched", [0] * 3, [4, 4, 4], [1, 3, 1], M=12), start=[0, 1, 5], finish=[3, 5, 7])
    # M = 13: all three. t=3: D 0 1 2 would take 15: 2 is evicted, 10. 0 is done at 4; D 1 until 6; P 2, D 2.
    check(
        run("rad_batched", [0] * 3, [4, 4, 4], [1, 3, 1], M=13),
        start=[0, 1, 2],
        finish=[4, 6, 8],
        evictions=[0, 0, 1],
    )


def test_rad_batched_evicts_paused_requests_as_well() -> None:
    # M = 10, t_col = 1. P 0 (4), P 1 (3): kv 7. D 0: 8, 9, 10; then 11 > 10: 1, paused, is evicted. 0 is done at 6.
    result = run("rad_batched:decodes=1", [0, 0], [4, 3], [4, 1], M=10)
    check(result, start=[0, 1], finish=[6, 8], first=[1, 2], evictions=[0, 1])
    assert result.log is not None
    np.testing.assert_array_equal(result.log["kv_tokens"], [4, 7, 8, 9, 10, 8, 3, 4])


# ---------------------------------------------------------------- request-level batching


def test_request_level_runs_a_batch_until_all_are_done() -> None:
    # b = 2: 0 and 1 prefill in one batch; 0 is done at 1 (counted), 1 at 4, only then 2.
    result = run("request_level:batch=2", [0] * 3, [3, 2, 5], [1, 4, 2], first_token="counted")
    check(result, start=[0, 0, 4], finish=[1, 4, 6], first=[1, 1, 5])
    assert batches(result) == [(5, 0), (0, 1), (0, 1), (0, 1), (5, 0), (0, 1)]
    result = run("request_level:batch=2", [0] * 3, [3, 2, 5], [1, 4, 2])
    check(result, start=[0, 0, 5], finish=[2, 5, 8], first=[1, 1, 6])
    # It does not wait for b requests: 0 runs alone; 1 and 2 arrive together at 1 and wait for its end at 3.
    result = run("request_level:batch=2", [0, 1, 1], [3, 2, 5], [2, 1, 1])
    check(result, start=[0, 3, 3], finish=[3, 5, 5], first=[1, 4, 4])
    # Completion and arrival in one moment: 1 arrives at 3 and is seen at 3.
    check(run("request_level:batch=2", [0, 3], [3, 2], [2, 1]), start=[0, 3], finish=[3, 5], first=[1, 4])


def test_request_level_stops_at_the_first_that_does_not_fit() -> None:
    # M = 10, counted: 5 + 6 = 11: only 0; 2 (2) would fit next to it. At 2: 6 + 2.
    args = ([0] * 3, [4, 5, 1], [2, 2, 1])
    check(run("request_level:batch=3", *args, M=10, first_token="counted"), start=[0, 2, 2], finish=[2, 4, 3])
    # b counts those admitted: with b = 1 one by one. M = 11 holds 5 + 6, the third has to wait.
    check(run("request_level:batch=1", *args, M=11, first_token="counted"), start=[0, 2, 4], finish=[2, 4, 5])


def test_request_level_evicts_the_newest_and_readmits_it_with_the_next_batch() -> None:
    # M = 10, counted. 4 + 4, 10, then 12: 1 is evicted, and waits for 0's end at 4. 2 has arrived at 1: together 4 + 2.
    result = run("request_level:batch=2", [0, 0, 1], [3, 3, 1], [4, 3, 1], M=10, first_token="counted")
    check(result, start=[0, 0, 4], finish=[4, 7, 5], first=[1, 1, 5], evictions=[0, 1, 0])
    assert result.log is not None
    np.testing.assert_array_equal(result.log["kv_tokens"], [8, 10, 6, 7, 6, 5, 6])
    # At the back of the queue it comes after 2 and 3, which fill the batch.
    result = run(
        "request_level:batch=2",
        [0, 0, 1, 1],
        [3, 3, 1, 1],
        [4, 3, 1, 2],
        M=10,
        first_token="counted",
        requeue="back",
    )
    check(result, start=[0, 0, 4, 4], finish=[4, 9, 5, 6], first=[1, 1, 5, 5], evictions=[0, 1, 0, 0])


@pytest.mark.parametrize("first_token", ["counted", "uncounted", "decode"])
def test_request_level_never_mixes_phases(first_token: str) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        a = np.floor(np.cumsum(rng.exponential(1.5, 25))).tolist()
        s, o = rng.integers(1, 9, 25).tolist(), rng.integers(1, 9, 25).tolist()
        result = run("request_level:batch=4", a, s, o, M=200, first_token=first_token)
        log = result.log
        assert log is not None
        assert (log["num_active"] <= 4).all()
        assert ((log["num_prefills"] == 0) | (log["num_decodes"] == 0)).all()
        admitted = log["num_admitted"] > 0
        np.testing.assert_array_equal(log["num_admitted"][admitted], log["num_active"][admitted])


# ---------------------------------------------------------------- hyperparameters and information


def test_defaults() -> None:
    assert policy_defaults(POLICIES["rad"]) == {"cycle": 1000, "decodes": 128, "chunk": 256}
    assert policy_defaults(POLICIES["rad_batched"]) == {"cycle": 1000, "decodes": 128, "chunk": 256}
    assert policy_defaults(POLICIES["request_level"]) == {"batch": 16}


@pytest.mark.parametrize("policy", ["rad", "rad_batched", "request_level"])
def test_lengths_are_not_observed(policy: str) -> None:
    info = POLICIES[policy].info
    assert info.needs == frozenset()
    assert info.evicts
    assert info.pauses == info.chunks_prefill == (policy != "request_level")
    assert info.paper
    assert info.algorithm
