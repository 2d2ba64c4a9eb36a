"""Policies with memory in blocks of several tokens: by hand, without overflow, and compared with runs in tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.runs import schedules
from helpers.runs.schedules import check
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

UNIT = UnitBatchTime()


def run(
    policy: str, rows: list[tuple[float, int, int]], capacity: int, block_size: int, **rules: Any
) -> SimulationResult:
    """Run (arrival, prompt, output) rows with exact predictions and one second per iteration."""
    a, s, o = zip(*rows, strict=True)
    return schedules.run(
        policy, capacity, a, s, o, predicted_low=o, predicted_high=o, block_size=block_size, **rules
    )


# ---------------------------------------------------------------- by hand


def test_fcfs_evicts_where_a_block_begins() -> None:
    """Two blocks of 4. At 2 request 1 fills its block and is evicted; until 6 there is no second block for it."""
    rows = [(0.0, 1, 6), (0.0, 2, 3)]
    result = run("fcfs", rows, 8, 4)
    check(result, [0, 0], [6, 9], first=[1, 1], evictions=[0, 1])
    assert result.log is not None
    assert result.log["kv_tokens"].tolist() == [8, 8, 4, 8, 8, 8, 4, 4, 8]


def test_the_watermark_is_a_share_of_whole_blocks() -> None:
    """14 tokens are three blocks of 4; a quarter of these 12 stays free, so that two requests start at once."""
    rows = [(0.0, 1, 1)] * 3
    check(run("fcfs:protection=0.25", rows, 14, 4), [0, 0, 1], [1, 1, 2])
    check(run("fcfs:protection=0.35", rows, 14, 4), [0, 1, 2], [1, 2, 3])


@pytest.mark.parametrize(("block_size", "start"), [(1, [0, 0]), (4, [0, 1])])
def test_mc_sf_checks_the_ends_of_blocks(block_size: int, start: list[float]) -> None:
    """Each holds 4 tokens, then 5: 10 of 12 tokens together, or 4 of 3 blocks, but 1 + 2 if one starts later."""
    result = run("mc_sf", [(0.0, 3, 2), (0.0, 3, 2)], 12, block_size)
    check(result, start, [s + 2 for s in start])


def test_the_look_ahead_of_mc_sf_waits_no_longer_than_it_must() -> None:
    """Four blocks of 4; blocks per iteration from 0 on, in the order of predictions: request 2 at 0, then 1, then 0.

    Request 2 (3 + 2): 1 2 until 2. Request 1 (2 + 6): 1 1 2 2 2 2; next to it 2 3 2 2 2 2. Request 0 (1 + 9):
    1 1 1 2 2 2 2 3 3, which next to these is 3 4 3 4 4 4 2 3 3: all start at 0. One more block would not fit.
    """
    rows = [(0.0, 1, 9), (0.0, 2, 6), (0.0, 3, 2)]
    result = run("mc_sf", rows, 16, 4)
    check(result, [0, 0, 0], [9, 6, 2])
    assert result.log is not None
    assert result.log["kv_tokens"].tolist() == [12, 16, 12, 16, 16, 16, 8, 12, 12]
    # With a prompt of 2, request 0 takes its second block in round 3: 3 4 4 4 4 4. With 4 it takes two at once
    # and three from round 5 on: 4 5 next to the others, so that it waits for 2, where 4 4 4 4 are taken until 6.
    check(run("mc_sf", [(0.0, 2, 9), *rows[1:]], 16, 4), [0, 0, 0], [9, 6, 2])
    check(run("mc_sf", [(0.0, 4, 9), *rows[1:]], 16, 4), [2, 0, 0], [11, 6, 2])


@pytest.mark.parametrize(("block_size", "start"), [(1, [0, 0]), (4, [0, 2])])
def test_vllm_admits_by_blocks(block_size: int, start: list[float]) -> None:
    """5 and 2 tokens of 8; in blocks of 4 the first takes all of them until it is done at 2."""
    result = run("vllm:watermark=0", [(0.0, 4, 2), (0.0, 1, 1)], 8, block_size)
    check(result, start, [2, 3] if block_size == 4 else [2, 1])


def test_vllm_decodes_inside_full_memory() -> None:
    """Two blocks of 4, both taken at 1; the decodes of [1, 2] and [2, 3] need none, that at 3 evicts request 1."""
    result = run("vllm:watermark=0", [(0.0, 1, 5), (0.0, 1, 5)], 8, 4)
    check(result, [0, 0], [5, 10], first=[1, 1], evictions=[0, 1])


def test_sarathi_continues_a_prompt_inside_its_block() -> None:
    """Two blocks of 4, one for each, and two tokens per iteration: a decode and a token of request 1's prompt."""
    result = run("sarathi:token_budget=2", [(0.0, 1, 3), (0.0, 3, 1)], 8, 4)
    check(result, [0, 0], [3, 3], first=[1, 3])
    assert result.log is not None
    assert result.log["prefill_tokens"].tolist() == [2, 1, 1]
    assert result.log["kv_tokens"].tolist() == [8, 8, 8]


@pytest.mark.parametrize(("block_size", "start"), [(1, [0, 0]), (4, [0, 4])])
def test_sarathi_reserves_the_blocks_of_ongoing_prompts(block_size: int, start: list[float]) -> None:
    """Request 0 will hold 8 + 1 tokens, 3 of 4 blocks; request 1 claims 5 more, or 2 blocks."""
    result = run("sarathi:token_budget=3", [(0.0, 8, 2), (0.0, 4, 1)], 16, block_size)
    assert result.requests["start_time"][0] == start[0]
    if block_size == 4:
        assert result.requests["start_time"][1] == result.requests["finish_time"][0] == start[1]
    else:
        assert result.requests["start_time"][1] < result.requests["finish_time"][0]


def test_slai_skips_a_decode_without_a_block() -> None:
    """At 1 request 1 has filled its block and no other is free; request 0 writes into its own until it is done."""
    result = run("slai", [(0.0, 1, 3), (0.0, 3, 2)], 8, 4)
    check(result, [0, 0], [3, 4], first=[1, 1])


@pytest.mark.parametrize("policy", ["rad", "dist_serve"])
def test_prefills_alone_count_blocks(policy: str) -> None:
    """Request 1 claims 2 of 3 blocks and waits until request 0, with 2 from its second token on, is done."""
    check(run(policy, [(0.0, 4, 3), (0.0, 4, 1)], 12, 4), [0, 3], [3, 4])
    check(run(policy, [(0.0, 4, 3), (0.0, 4, 1)], 12, 1), [0, 1], [4, 2])


def test_work_conserving_look_ahead_in_blocks() -> None:
    """Chunks of 3: request 0 takes 1 2 2 2 blocks of 4, request 1 then 1 2; of 3 blocks it waits for one."""
    name = "work_conserving_fcfs_lookahead:chunk=3"
    result = run(name, [(0.0, 6, 2), (0.0, 3, 2)], 12, 4)
    check(result, [0, 2], [3, 4])  # 1 2 2 and, two later, 1 2: at most 3
    check(run(name, [(0.0, 6, 2), (0.0, 3, 2)], 12, 1), [0, 0], [3, 2])


# ---------------------------------------------------------------- any requests

LOOK_AHEAD = [
    "mc_sf",
    "mc_benchmark",
    "mc_longest",
    "ageing:rate=0.5",
    "work_conserving_fcfs_lookahead:chunk=4",
    "work_conserving_sjf_lookahead:chunk=7",
    "a_min",
]


def random_table(seed: int, n: int = 30, longest: int = 20) -> RequestTable:
    """Return requests of up to twice ``longest`` tokens with exact predictions."""
    rng = np.random.default_rng(seed)
    output = rng.integers(1, longest + 1, n)
    return RequestTable.from_columns(
        arrival_time=np.cumsum(rng.exponential(rng.choice([0.0, 1.0, 3.0]), n)),
        prompt_len=rng.integers(1, longest + 1, n),
        output_len=output,
        predicted_output_len=output,
        predicted_low=output,
        predicted_high=output,
        tbt_slo=rng.uniform(1, 9, n),
    )


@pytest.mark.parametrize("policy", LOOK_AHEAD)
@settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.differing_executors]
)
@given(
    seed=st.integers(0, 2**31),
    block_size=st.integers(1, 24),
    capacity=st.integers(64, 200),
    first_token=st.sampled_from(["counted", "uncounted", "decode"]),
)
def test_a_look_ahead_with_true_lengths_never_evicts(
    policy: str, seed: int, block_size: int, capacity: int, first_token: str
) -> None:
    system = System(
        capacity, AffineBatchTime(0.4, 0.02, 0.05), first_token=first_token, block_size=block_size
    )
    result = simulate(system, random_table(seed), policy, log=True)
    assert result.completed
    assert result.worker[0]["total_evicted"] == 0
    assert result.log is not None
    assert (result.log["kv_tokens"] <= system.usable_capacity).all()
    assert (result.log["kv_tokens"] % block_size == 0).all()


@pytest.mark.parametrize(
    ("policy", "limit"),
    [
        ("vllm:watermark=0", "max_batch_requests"),
        ("sarathi:token_budget=9", "max_batch_requests"),
        ("slai:token_budget=9", "max_active"),
    ],
)
@pytest.mark.parametrize("progress", ["lost", "kept"])
def test_blocks_larger_than_any_request_limit_the_number_of_requests(
    policy: str, limit: str, progress: str
) -> None:
    """Each active request takes one block, so as many run as there are blocks, regardless of their lengths."""
    for seed, count in ((0, 1), (1, 3), (2, 5)):
        table, rules = random_table(seed), {"progress_on_evict": progress}
        blocks = System(count * 40 + 7, UNIT, block_size=40, **rules)
        tokens = System(10_000, UNIT, **rules)
        one = simulate(blocks, table, policy, log=True)
        name, _, rest = policy.partition(":")
        arguments = dict(part.split("=") for part in rest.split(","))
        other = simulate(
            tokens,
            table,
            make_policy(name, **{k: int(v) for k, v in arguments.items()}, **{limit: count}),
            log=True,
        )
        for field in ("start_time", "first_token_time", "finish_time", "num_evictions"):
            np.testing.assert_array_equal(one.requests[field], other.requests[field], err_msg=field)
        assert one.log is not None
        assert other.log is not None
        np.testing.assert_array_equal(one.log["kv_tokens"], 40 * one.log["num_active"])
        np.testing.assert_array_equal(one.log["num_active"], other.log["num_active"])
        assert one.log["num_active"].max() == count


@pytest.mark.parametrize("policy", ["fcfs", "vllm", "sarathi:token_budget=9", "slai:token_budget=9", "mc_sf"])
def test_blocks_cost_memory(policy: str) -> None:
    """If workloads fill the memory, on average no more requests are active in blocks than in tokens."""
    mean = {}
    for block_size in (1, 10):
        system = System(100, UNIT, block_size=block_size)
        runs = [simulate(system, random_table(seed, 60), policy) for seed in range(4)]
        mean[block_size] = np.mean([r.worker[0]["active_time"] / r.worker[0]["busy_time"] for r in runs])
    assert mean[10] < mean[1]
