"""The scheduler of vLLM's V1 engine on schedules worked out by hand from its documentation and source.

Notation of the comments: s prompt, o output, M memory; unit batch time. The prefill emits token 1, so that a request
takes s + 1 tokens of memory when its prompt is done and o - 1 more until it ends. Batches are written as
request: tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from helpers.runs.schedules import Step, check, play
from kvgym.baselines.vllm_releases import engine_defaults
from kvgym.batch_time import UnitBatchTime, load_hardware
from kvgym.errors import ConfigError, LivelockError
from kvgym.policies.runner import simulate
from kvgym.simulator.batch_time import Device
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

ENGINE = {"first_token": "counted", "progress_on_evict": "recompute", "requeue": "front"}


def instance(
    M: int,  # noqa: N803
    a: Sequence[float],
    s: Sequence[int],
    o: Sequence[int],
    priority: Sequence[int] | None = None,
    **system: Any,
) -> tuple[System, RequestTable]:
    columns = {} if priority is None else {"priority": priority}
    table = RequestTable.from_columns(arrival_time=a, prompt_len=s, output_len=o, **columns)
    return System(kv_capacity=M, batch_time=UnitBatchTime(), **{**ENGINE, **system}), table


def spec_of(**hyperparameters: Any) -> str:
    """Return a spec with small limits: a budget of 8 tokens for 4 requests by default."""
    given = {"max_num_batched_tokens": 8, "max_num_seqs": 4, **hyperparameters}
    return "vllm_v1:" + ",".join(f"{key}={value}" for key, value in given.items())


def batches(steps: Sequence[Step]) -> list[dict[int, int]]:
    return [step.batch for step in steps]


def evicted(steps: Sequence[Step]) -> dict[float, list[int]]:
    return {step.time: step.evicted for step in steps if step.evicted}


# ---------------------------------------------------------------- the token budget


def test_running_requests_come_first_and_prompts_are_cut_to_what_is_left() -> None:
    # Budget 8. t=0: 0 whole, 3 tokens are left for 1. t=1: 0 decodes, 1 gets 7, its last; 2 finds nothing left.
    # t=2: 0 and 1 decode their last, 2 starts.
    steps = play(spec_of(), *instance(100, [0] * 3, [5, 10, 3], [3, 2, 2]))
    assert batches(steps) == [{0: 5, 1: 3}, {0: 1, 1: 7}, {0: 1, 1: 1, 2: 3}, {2: 1}]


def test_a_new_request_does_not_hold_up_those_that_run() -> None:
    # 1 arrives while 0 decodes: 0 keeps its token of every batch, 1 gets the other 7.
    steps = play(spec_of(), *instance(100, [0, 1], [8, 15], [4, 1]))
    assert batches(steps) == [{0: 8}, {0: 1, 1: 7}, {0: 1, 1: 7}, {0: 1, 1: 1}]


def test_a_long_prompt_leaves_room_for_others_under_the_threshold() -> None:
    # At most 4 tokens of a prompt: 1 starts next to the long prompt of 0. Without it, it waits for a batch.
    requests = instance(100, [0, 0], [10, 2], [1, 3])
    steps = play(spec_of(long_prefill_token_threshold=4), *requests)
    assert batches(steps) == [{0: 4, 1: 2}, {0: 4, 1: 1}, {0: 2, 1: 1}]
    assert batches(play(spec_of(), *requests)) == [{0: 8}, {0: 2, 1: 2}, {1: 1}, {1: 1}]


def test_no_more_requests_run_than_max_num_seqs() -> None:
    steps = play(spec_of(max_num_seqs=2), *instance(100, [0] * 3, [1] * 3, [2, 3, 1]))
    assert batches(steps) == [{0: 1, 1: 1}, {0: 1, 1: 1}, {1: 1, 2: 1}]


def test_without_chunked_prefill_a_prompt_waits_for_a_budget_that_holds_it() -> None:
    # t=0: 5 of 8 are taken and 1 lacks 5: it waits, and so does 2 after it, which would fit. t=1: 1 + 5 + 2 = 8.
    requests = instance(100, [0] * 3, [5, 5, 2], [2, 1, 1])
    off = spec_of(enable_chunked_prefill="false")
    assert batches(play(off, *requests)) == [{0: 5}, {0: 1, 1: 5, 2: 2}]
    # Only the part up to the threshold must fit: 3 + 3 + 2 = 8.
    both = spec_of(enable_chunked_prefill="false", long_prefill_token_threshold=3)
    assert batches(play(both, *requests)) == [{0: 3, 1: 3, 2: 2}, {0: 2, 1: 2}, {0: 1}]


@pytest.mark.parametrize("order", ["fcfs", "priority"])
def test_without_chunked_prefill_a_prompt_above_the_budget_is_named(order: str) -> None:
    system, table = instance(100, [0, 0], [9, 2], [1, 1], stall_limit=20)
    with pytest.raises(LivelockError, match="Request 0, which it would admit next, has a prompt of 9 tokens"):
        simulate(system, table, spec_of(enable_chunked_prefill="false", policy=order))


# ---------------------------------------------------------------- memory


def test_the_newest_is_preempted_and_goes_to_the_front_of_the_queue() -> None:
    # M = 10. t=0: 4+4. t=1: 5+5 = 10, no room for 2 (2). t=2: 0 lacks room: 1 is preempted; 2 would fit, but none
    # starts. t=3: 7; 1 is first, 3 + 2 recomputed + 1 = 6 do not fit, and 2 stays behind it. t=4: 8, 0 is done. t=5:
    # 6+2: 1 recomputes its 5 tokens and makes its third. t=6: its fourth.
    system, table = instance(10, [0, 0, 1], [3, 3, 1], [5, 4, 1])
    steps = play(spec_of(), system, table)
    assert batches(steps) == [{0: 3, 1: 3}, {0: 1, 1: 1}, {0: 1}, {0: 1}, {0: 1}, {1: 5, 2: 1}, {1: 1}]
    assert evicted(steps) == {2: [1]}
    result = simulate(system, table, spec_of())
    check(result, start=[0, 0, 5], finish=[5, 7, 6], first=[1, 1, 6], evictions=[0, 1, 0])
    assert result.requests["max_token_gap"].tolist() == [1, 4, 0]


def test_several_preempted_ones_queue_in_their_old_order() -> None:
    # M = 12, at most 6 tokens of a prompt. t=0: 6 of 11 (0), 2 (1), 2 (2). t=1: 0 wants its last 5 and 1 of output,
    # 16 with the others: 2 is preempted, and then 1. t=2: 0 is done; 1 is before 2.
    spec = spec_of(max_num_batched_tokens=12, long_prefill_token_threshold=6)
    steps = play(spec, *instance(12, [0] * 3, [11, 1, 1], [1, 2, 2]))
    assert batches(steps) == [{0: 6, 1: 1, 2: 1}, {0: 5}, {1: 2, 2: 2}]
    assert evicted(steps) == {1: [2, 1]}
    assert list(steps[2].batch) == [1, 2]
    # M = 11: 0 (s 6), 1 and 2 (s 1): 7+2+2 = 11. t=1: 0 needs one: 2 is preempted (9), 8+2+1 = 11. t=2: 8+3: 0 needs
    # one more: 1 is preempted. Both wait, 1 before 2. t=3: 10, t=4: 11, and 0 is done. t=5: 1 (1 + 2), then 2 (1 + 1).
    steps = play(spec_of(), *instance(11, [0] * 3, [6, 1, 1], [5, 4, 3]))
    assert evicted(steps) == {1: [2], 2: [1]}
    assert batches(steps)[3:] == [{0: 1}, {0: 1}, {1: 3, 2: 2}, {1: 1, 2: 1}]


def test_a_request_preempts_itself_if_it_is_the_newest() -> None:
    # M = 9. t=0: 4+4. t=1: 0 takes the last; 1 has none after it and preempts itself. t=2: 6; 1 needs 3 + 1 + 1.
    # t=3: 0 is done, 1 recomputes 4 tokens and makes its second.
    system, table = instance(9, [0, 0], [3, 3], [3, 3])
    steps = play(spec_of(), system, table)
    assert batches(steps) == [{0: 3, 1: 3}, {0: 1}, {0: 1}, {1: 4}, {1: 1}]
    assert evicted(steps) == {1: [1]}
    check(simulate(system, table, spec_of()), start=[0, 0], finish=[3, 5], first=[1, 1], evictions=[0, 1])


def test_another_victim_loses_less() -> None:
    # M = 17. t=0: 7+2+4 = 13, t=1: 8+3+5 = 16. t=2: 0 takes the last. 1 lacks room: it preempts 2 (5 tokens), the
    # newest, by the engine's rule, and itself (3 tokens) as the one with the fewest.
    system, table = instance(17, [0] * 3, [6, 1, 3], [6, 6, 6])
    limits = {"max_num_batched_tokens": 16}
    assert evicted(play(spec_of(**limits), system, table))[2] == [2]
    for rule in ("least_computed", "cheapest"):
        spec = spec_of(**limits, preemption_victim=rule)
        assert evicted(play(spec, system, table))[2] == [1]
    # With priorities it is one of the least urgent: 0 and 2, of which 2 has fewer tokens.
    system, table = instance(17, [0] * 3, [6, 1, 3], [6, 6, 6], priority=[0, 1, 0])
    spec = spec_of(**limits, policy="priority", preemption_victim="least_computed")
    assert evicted(play(spec, system, table))[2] == [2]


def test_an_asynchronous_step_that_preempts_all_takes_no_time() -> None:
    # M = 10. t=0: 4+4; t=1: 5+5, 0 is done. While that runs, the next batch is decided: 0 still holds 5, 1 needs 6 and
    # preempts itself. Nothing is left to run, so the engine decides again at t=2, now without 0: 1 recomputes 5 tokens.
    # Decided when a batch ends, 1 would just go on.
    system, table = instance(10, [0, 0], [3, 3], [2, 4])
    result = simulate(system, table, spec_of(async_scheduling=True), log=True)
    check(result, start=[0, 0], finish=[2, 4], first=[1, 1], evictions=[0, 1])
    assert result.log is not None
    assert result.log["start_time"].tolist() == [0, 1, 2, 3]
    assert result.log["prefill_tokens"].tolist() == [6, 0, 5, 0]
    check(simulate(system, table, spec_of()), start=[0, 0], finish=[2, 4], first=[1, 1], evictions=[0, 0])


def test_a_request_starts_only_if_all_it_has_to_compute_fits() -> None:
    # Budget 4, M = 10. t=0: 0 has 3; 1 would get a chunk of 2, but needs 9 in all. At 4 it is alone.
    requests = instance(10, [0, 0], [2, 8], [4, 1])
    small = {"max_num_batched_tokens": 4, "max_num_seqs": 2}
    assert batches(play(spec_of(**small), *requests)) == [{0: 2}, {0: 1}, {0: 1}, {0: 1}, {1: 4}, {1: 4}]
    # Only its chunk must fit: t=0: 3+2. t=1: 4+5. t=2: 5, and 1 wants its last 3 and 1 of output: it is preempted, for
    # nothing. t=3: 6+3 again. t=4: it is alone, 7. t=5: 9.
    steps = play(spec_of(**small, scheduler_reserve_full_isl="false"), *requests)
    assert batches(steps) == [{0: 2, 1: 2}, {0: 1, 1: 3}, {0: 1}, {0: 1, 1: 3}, {1: 4}, {1: 1}]
    assert evicted(steps) == {2: [1]}


@pytest.mark.parametrize(
    ("M", "s", "starts"), [(20, 8, 0), (20, 9, 1), (22, 10, 0), (22, 11, 1), (23, 10, 0), (23, 11, 1)]
)
def test_the_watermark_stays_free_beside_others(M: int, s: int, starts: int) -> None:  # noqa: N803
    # A quarter of M + 1, with the engine's null block, is 5 tokens, at 23 it is 6: 6 + (s + 1) must fit next to them.
    requests = instance(M, [0, 0], [5, s], [1, 1])
    result = simulate(*requests, spec_of(watermark=0.25, max_num_batched_tokens=99))
    check(result, start=[0, starts], finish=[1, starts + 1])


def test_the_watermark_does_not_hold_for_the_first_nor_for_those_that_run() -> None:
    # M = 20: the first alone takes 19, and then 20.
    requests = instance(20, [0], [18], [2])
    check(simulate(*requests, spec_of(watermark=0.25, max_num_batched_tokens=99)), start=[0], finish=[2])


# ---------------------------------------------------------------- priorities


def test_the_more_important_start_first_then_the_earlier() -> None:
    # One place; a larger number is more important. 4 is the most important, but arrives when 1 runs.
    requests = instance(100, [0, 0, 0, 0, 0.5], [1] * 5, [1] * 5, [0, 1, -3, 1, 7])
    check(
        simulate(*requests, spec_of(policy="priority", max_num_seqs=1)),
        start=[3, 0, 4, 2, 1],
        finish=[4, 1, 5, 3, 2],
    )
    check(simulate(*requests, spec_of(max_num_seqs=1)), start=[0, 1, 2, 3, 4], finish=[1, 2, 3, 4, 5])


def test_extreme_priorities_keep_their_order() -> None:
    requests = instance(100, [0] * 3, [1] * 3, [1] * 3, [0, -(2**31), 2**31 - 1])
    check(simulate(*requests, spec_of(policy="priority", max_num_seqs=1)), start=[1, 2, 0], finish=[2, 3, 1])


def test_the_least_important_is_preempted_and_its_tokens_go_to_others() -> None:
    # Budget 4, M = 20; 0 is least important and started first. t=1: 3 (0), 2 (1) and 2 of 12 tokens (2); 2 needs
    # 13 in all, 5 + 13 fit. Then 0 and 1 decode and 2 gets 2: 7, 11, 15, 19. t=5: 0 gets its token, 1 finds
    # 20 taken: 0 is preempted with its 6 and with the token it had been given, so that 3 are left for 2.
    requests = instance(20, [0, 1, 1], [1, 1, 12], [9, 9, 1], [0, 1, 1])
    spec = spec_of(max_num_batched_tokens=4, policy="priority")
    steps = play(spec, *requests)
    decode = {0: 1, 1: 1, 2: 2}
    assert batches(steps)[:7] == [{0: 1}, decode, decode, decode, decode, {1: 1, 2: 3}, {1: 1, 2: 1}]
    assert evicted(steps) == {5: [0]}
    # t=7: 0 comes back for its prompt and 5 tokens, of which the budget holds 3.
    assert batches(steps)[7:9] == [{1: 1, 0: 3}, {1: 1, 0: 3}]


def test_a_watermark_of_029_of_100_blocks_is_28() -> None:
    # As floats, 0.29 * 100 is a little less than 29: 6 + (s + 1) must not exceed 99 - 28.
    for s, start in ((64, 0), (65, 1)):
        requests = instance(99, [0, 0], [5, s], [1, 1])
        result = simulate(*requests, spec_of(watermark=0.29, max_num_batched_tokens=99))
        assert result.requests["start_time"].tolist() == [0, start]


def test_among_equals_the_latest_is_preempted() -> None:
    # M = 9, all alike: as first come, first served.
    requests = instance(9, [0, 1], [3, 3], [3, 3], [2, 2])
    steps = play(spec_of(policy="priority"), *requests)
    assert steps == play(spec_of(), *requests)
    assert evicted(steps) == {2: [1]}


def test_of_equals_that_arrived_together_the_first_is_preempted() -> None:
    # M = 9. t=0: 4+4. t=1: 0 gets its token, 1 finds 9 taken: 0 is preempted. t=2: 1 has 6; 0 needs 3 + 1 + 1.
    steps = play(spec_of(policy="priority"), *instance(9, [0, 0], [3, 3], [3, 3], [2, 2]))
    assert batches(steps) == [{0: 3, 1: 3}, {1: 1}, {1: 1}, {0: 4}, {0: 1}]
    assert evicted(steps) == {1: [0]}


def test_a_preempted_request_returns_to_its_place_by_priority() -> None:
    # M = 9. t=0: 0 alone. t=1: 5+4 (1). t=2: 10: 0, least important, is preempted, 1 has 5; 2, of middle importance,
    # arrived. t=3: 1 has 6 and is done; 2 (s 2) comes before 0: 6+3. 0 needs 3 + 2 + 1.
    requests = instance(9, [0, 1, 2], [3, 3, 2], [4, 3, 3], [0, 2, 1])
    for requeue in ("front", "back", "arrival"):
        system = System(kv_capacity=9, batch_time=UnitBatchTime(), **{**ENGINE, "requeue": requeue})  # type: ignore[arg-type]
        steps = play(spec_of(policy="priority", engine_version="0.33"), system, requests[1])
        assert evicted(steps) == {2: [0]}
        assert batches(steps)[:5] == [{0: 3}, {0: 1, 1: 3}, {1: 1}, {1: 1, 2: 2}, {2: 1}]


def test_those_behind_a_request_that_preempts_itself_sit_out() -> None:
    # M = 9: 0 (most important), 1 (least), 2. t=2: 8 are taken, 0 gets the last; 1 preempts itself; 2 sits out.
    requests = instance(9, [0, 0, 1], [1] * 3, [5] * 3, [5, 0, 1])
    steps = play(spec_of(policy="priority"), *requests)
    assert batches(steps)[:4] == [{0: 1, 1: 1}, {0: 1, 1: 1, 2: 1}, {0: 1}, {0: 1, 2: 1}]
    assert evicted(steps)[2] == [1]
    # In release 0.33 they go on: 4 + 3.
    steps = play(spec_of(policy="priority", engine_version=0.33), *requests)
    assert batches(steps)[2] == {0: 1, 2: 1}
    assert evicted(steps)[2] == [1]


@pytest.mark.parametrize(("release", "batch"), [("0.24", {1: 1, 2: 1}), ("0.33", {1: 1})])
def test_after_an_empty_step_more_urgent_ones_start(release: str, batch: dict[int, int]) -> None:
    # M = 9: at t=2, 0 (least important) preempts itself. 0.24 ends that step and decides again: 1 decodes, and 2, which
    # has just arrived, starts. In 0.33 it is one step, in which none starts after a preemption.
    requests = instance(9, [0, 1, 2], [3, 3, 1], [6, 3, 2], [0, 1, 2])
    steps = play(spec_of(policy="priority", engine_version=release), *requests)
    assert batches(steps)[2] == batch
    assert evicted(steps) == {2: [0]}


def test_if_the_first_preempts_itself_the_others_have_their_turn() -> None:
    # M = 9: 0 (least important) has 5, 1 has 4. t=2: 0 preempts itself; an empty batch helps none: 1 decodes.
    requests = instance(9, [0, 1], [3, 3], [9 - 3, 3], [0, 1])
    steps = play(spec_of(policy="priority"), *requests)
    assert batches(steps)[:3] == [{0: 3}, {0: 1, 1: 3}, {1: 1}]
    assert evicted(steps) == {2: [0]}


def test_a_turn_goes_on_if_all_that_had_tokens_were_preempted() -> None:
    # M = 19, at most 5 tokens of a prompt; 0 is least important, 2 most. t=2: 4 (0), 10 of 15 (1), 4 (2). t=3: 0 gets
    # its token; 1 wants its last 5 and 1 of output: 0 is preempted, 14 + 6 are still too much: 1 is preempted. 2
    # decodes.
    requests = instance(19, [0, 1, 2], [1, 15, 3], [9, 1, 3], [0, 1, 2])
    spec = spec_of(max_num_batched_tokens=12, long_prefill_token_threshold=5, policy="priority")
    steps = play(spec, *requests)
    assert batches(steps)[:4] == [{0: 1}, {0: 1, 1: 5}, {0: 1, 1: 5, 2: 3}, {2: 1}]
    assert evicted(steps)[3] == [0, 1]


# ---------------------------------------------------------------- release 0.33


def test_a_request_that_is_alone_ignores_the_threshold() -> None:
    # 1 arrives at t=1, when 0 has 8 of 10 tokens; from then on they are two.
    requests = instance(100, [0, 1], [10, 6], [2, 1])
    spec = spec_of(long_prefill_token_threshold=3, engine_version="0.33")
    assert batches(play(spec, *requests)) == [{0: 8}, {0: 2, 1: 3}, {0: 1, 1: 3}]


def test_the_adaptive_threshold_is_a_fair_share_of_the_budget() -> None:
    # Budget 8: 4 for each of two requests, 2 for each of four; the threshold of 3 holds where it is more.
    spec = spec_of(
        long_prefill_token_threshold=3, long_prefill_token_threshold_adaptive=True, engine_version="0.33"
    )
    assert batches(play(spec, *instance(100, [0, 0], [9, 9], [1, 1])))[0] == {0: 4, 1: 4}
    assert batches(play(spec, *instance(100, [0] * 4, [9] * 4, [1] * 4)))[0] == {0: 3, 1: 3, 2: 2}


def test_active_requests_may_be_fewer_than_max_num_seqs() -> None:
    steps = play(
        spec_of(max_num_active_seqs=2, engine_version="0.33"), *instance(100, [0] * 3, [1] * 3, [2, 3, 1])
    )
    assert batches(steps) == [{0: 1, 1: 1}, {0: 1, 1: 1}, {1: 1, 2: 1}]


def test_between_prefills_requests_only_decode() -> None:
    # Every third iteration: 1 arrives at t=1 and starts at t=3 with the 7 tokens that are left. At t=4 and 5 its last
    # three wait; 2 has a prompt of one token and need not wait.
    requests = instance(100, [0, 1, 4], [4, 10, 1], [9, 1, 2])
    steps = play(spec_of(prefill_schedule_interval=3, engine_version="0.33"), *requests)
    assert batches(steps) == [
        {0: 4}, {0: 1}, {0: 1}, {0: 1, 1: 7}, {0: 1, 2: 1}, {0: 1, 2: 1}, {0: 1, 1: 3}, {0: 1}, {0: 1},
    ]  # fmt: skip


def test_prefills_are_not_held_back_if_some_were_left_over() -> None:
    # One token budget of 8 does not hold both prompts, so 1 is left over at t=0 and starts at once.
    requests = instance(100, [0, 0], [8, 6], [3, 1])
    steps = play(spec_of(prefill_schedule_interval=9, engine_version="0.33"), *requests)
    assert batches(steps) == [{0: 8}, {0: 1, 1: 6}, {0: 1}]


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (None, (2048, 256)),
        (("L4", 22.5), (2048, 256)),
        (("H20", 69.9), (2048, 256)),
        (("NVIDIA H100 80GB HBM3", 79.6), (8192, 1024)),
        (("A100 80GB", 80), (2048, 256)),
        (("NVIDIA A100-SXM4-80GB", 79.2), (2048, 256)),
        (("H200", 140.4), (8192, 1024)),
        (("B200", 179), (16384, 1024)),
        (("a100 of 160", 160), (16384, 1024)),
    ],
)
def test_defaults_are_those_of_the_engine_for_the_gpu(
    device: tuple[str, float] | None, expected: tuple[int, int]
) -> None:
    found = None if device is None else Device(device[0], device[1] * 2**30)
    assert engine_defaults(found) == expected
    if found is not None and found.memory >= 160 * 2**30:
        assert engine_defaults(found, "0.24") == (
            (2048, 256) if "a100" in found.name.lower() else (8192, 1024)
        )


def test_running_requests_by_default_are_at_most_the_budget() -> None:
    # 300 prompts of one token at once: the default budget of a roofline of an H100 takes all of them, a budget of 100
    # lowers the default number of requests to 100.
    h100 = load_hardware("roofline:model=llama3-8b,gpu=h100")
    table = RequestTable.from_columns(arrival_time=[0] * 300, prompt_len=[1] * 300, output_len=[3] * 300)
    batches = {}
    for spec, batch_time in (
        ("vllm_v1", h100.batch_time()),
        ("vllm_v1", UnitBatchTime()),
        ("vllm_v1:max_num_batched_tokens=100", h100.batch_time()),
        ("vllm_v1:max_num_seqs=30", h100.batch_time()),
    ):
        system = System(kv_capacity=10_000, batch_time=batch_time, **ENGINE)
        log = simulate(system, table, spec, log=True).log
        assert log is not None
        batches[spec, batch_time.device is None] = int(log["num_prefills"][0])
    assert list(batches.values()) == [300, 256, 100, 30]


def test_a_given_number_of_requests_above_the_default_budget_is_an_error() -> None:
    table = RequestTable.from_columns(arrival_time=[0], prompt_len=[1], output_len=[3])
    system = System(kv_capacity=100, batch_time=UnitBatchTime())
    with pytest.raises(ConfigError, match="max_num_batched_tokens = 2048 is below max_num_seqs = 4096"):
        simulate(system, table, "vllm_v1:max_num_seqs=4096")


def test_a_request_on_its_way_through_the_api_waits_for_the_next_asynchronous_decision() -> None:
    """Batches of 1 s; request 0 runs from 0.25 on, as its way takes 0.25 s.

    The batch at 1.25 is decided at 0.25 and that at 2.25 at 1.25. Request 1 arrives at 1.125 and reaches the engine at
    1.375, after the latter: it starts at 3.25. Without the API it arrives after the decision at 1 and starts at 3.
    """
    firsts = []
    for api in (0.25, 0.0):
        batch_time = UnitBatchTime()
        batch_time.asynchronous, batch_time.api_time = True, api
        table = RequestTable.from_columns(arrival_time=[0, 1.125], prompt_len=[1, 1], output_len=[6, 1])
        result = simulate(System(kv_capacity=100, batch_time=batch_time, **ENGINE), table, "vllm_v1")
        firsts.append(result.requests["first_token_time"].tolist())
    assert firsts == [[1.25, 4.25], [1.0, 4.0]]
