"""Iteration-level batching as in vLLM and Sarathi-Serve, on schedules worked out by hand.

Sources: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"; Agrawal et
al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", as the WAIT paper (Section 6) and the
SLAI paper (Algorithm 4) use them. Notation in comments: s prompt, o output, M memory; unit batch time. Unless
said otherwise the prefill emits token 1, so that a whole prefill takes s + 1. A plain sum such as 3+4 is the memory
of the next iteration in order of activation.
"""

from __future__ import annotations

import numpy as np
import pytest

from helpers.runs.schedules import check, run
from kvgym.batch_time import AffineBatchTime
from kvgym.errors import ConfigError
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import SimulationResult

BOTH = pytest.mark.parametrize("policy", ["vllm", "sarathi"])


def rows(result: SimulationResult, *names: str) -> list[tuple[int, ...]]:
    assert result.log is not None
    return list(zip(*(result.log[name].tolist() for name in names), strict=True))


# ---------------------------------------------------------------- shared by both


@BOTH
def test_one_token_requests_take_one_iteration_and_may_fill_the_memory(policy: str) -> None:
    # s + o = 4 = M each: one at a time. 1 arrives as 0 finishes, 2 within an iteration, 3 after idleness.
    spec = f"{policy}:watermark=0"
    check(run(spec, 4, [0, 1, 1.5, 7.25], [3] * 4, [1] * 4), start=[0, 1, 2, 7.25], finish=[1, 2, 3, 8.25])


@BOTH
def test_a_prompt_above_the_watermark_starts_in_an_empty_worker(policy: str) -> None:
    # Limit 90 of M = 100; s + 1 = 96 starts at 0 because the worker is empty. 1 has to wait for its end; 2 (s 1) stays
    # behind 1, and the limit holds for it again: at 3 it is 90 + 2.
    result = run(f"{policy}:watermark=0.1", 100, [0, 1, 1], [95, 89, 1], [3, 1, 1])
    check(result, start=[0, 3, 4], finish=[3, 4, 5])


@BOTH
@pytest.mark.parametrize(("watermark", "M", "fit"), [("0.8", 10, 2), ("0.1", 70, 63), ("0.7", 110, 33)])
def test_the_watermark_is_an_exact_decimal(policy: str, watermark: str, M: int, fit: int) -> None:  # noqa: N803
    # In binary (1 - 0.8) * 10 is below 2. The first takes half of `fit`, one token of output included (counted).
    spec, s = f"{policy}:watermark={watermark}", fit // 2 - 1
    rest = fit - (s + 1) - 1
    if rest > 0:
        check(run(spec, M, [0, 0], [max(s, 1), rest], [1, 1]), start=[0, 0], finish=[1, 1])
        check(run(spec, M, [0, 0], [max(s, 1), rest + 1], [1, 1]), start=[0, 1], finish=[1, 2])
    else:  # prefill without a token: 1 + 1 = 2; Sarathi wants room for one more token each
        start = [0, 0] if policy == "vllm" else [0, 2]
        check(
            run(spec, M, [0, 0], [1, 1], [1, 1], first_token="decode"),
            start=start,
            finish=[s + 2 for s in start],
        )


# ---------------------------------------------------------------- vLLM


def test_vllm_prefills_first_and_alone() -> None:
    # t=0: 0. t=1: 1 has arrived: it alone is prefilled, 0 pauses with its 4. t=2: both decode, 1 is done at 3.
    result = run("vllm", 100, [0, 1], [3, 3], [3, 2])
    check(result, start=[0, 1], finish=[4, 3], first=[1, 2])
    assert rows(result, "num_prefills", "num_decodes", "kv_tokens") == [
        (1, 0, 4),
        (1, 0, 4 + 4),
        (0, 2, 5 + 5),
        (0, 1, 6),
    ]
    assert result.requests["max_token_gap"].tolist() == [2, 1]


def test_vllm_batches_whole_prompts_up_to_a_number_of_tokens() -> None:
    # 5 tokens. t=0: 0 (3); 1 would make 6: stop, although 2 would fit. t=1: 1 and 2: 5. t=2: 3 (7) is longer than
    # any batch and goes alone.
    spec = "vllm:max_batch_tokens=5"
    check(run(spec, 100, [0] * 4, [3, 3, 2, 7], [1] * 4), start=[0, 1, 1, 2], finish=[1, 2, 2, 3])
    # The long prompt is not added to others, nor others to it.
    check(run(spec, 100, [0] * 3, [2, 7, 1], [1] * 3), start=[0, 1, 2], finish=[1, 2, 3])


def test_vllm_may_count_prompts_as_long_as_the_longest() -> None:
    # 6 tokens. Summed: 3+2+1 in one batch. Padded: 2 * 3 = 6, then 3 * 3 = 9: stop; and 1+1, then 3 * 3 again.
    for prompts in ([3, 2, 1], [1, 1, 3]):
        requests = ([0] * 3, prompts, [1] * 3)
        check(run("vllm:max_batch_tokens=6", 100, *requests), start=[0, 0, 0], finish=[1, 1, 1])
        padded = run("vllm:max_batch_tokens=6,padded=true", 100, *requests)
        check(padded, start=[0, 0, 1], finish=[1, 1, 2])
    # A longer prompt still goes alone; in a batch without prompts nothing counts.
    spec = "vllm:max_batch_tokens=6,padded=true"
    check(run(spec, 100, [0] * 2, [7, 1], [2, 2]), start=[0, 1], finish=[3, 3])
    with pytest.raises(ConfigError, match="padded = 1; expected True or False"):
        make_policy("vllm:padded=1")


def test_vllm_counts_paused_requests_against_the_cap() -> None:
    # At most 2: 2 starts when 0 and 1 are done.
    check(run("vllm:max_batch_requests=2", 100, [0] * 3, [1] * 3, [3] * 3), start=[0, 0, 3], finish=[3, 3, 6])


def test_vllm_keeps_the_watermark_free() -> None:
    # Limit 90: 51+39 fits, 51+40 does not (a full memory would hold it).
    check(run("vllm:watermark=0.1", 100, [0, 0], [50, 38], [1, 1]), start=[0, 0], finish=[1, 1])
    check(run("vllm:watermark=0.1", 100, [0, 0], [50, 39], [1, 1]), start=[0, 1], finish=[1, 2])
    # By default 1 %: limit 99.
    check(run("vllm", 100, [0, 0], [50, 47], [1, 1]), start=[0, 0], finish=[1, 1])
    check(run("vllm", 100, [0, 0], [50, 48], [1, 1]), start=[0, 1], finish=[1, 2])
    # Decodes may grow into it: 46+44 = 90, 47+45, …, 50+48 = 98.
    check(run("vllm:watermark=0.1", 100, [0, 0], [45, 43], [5, 5]), start=[0, 0], finish=[5, 5])


def test_vllm_preempts_the_newest() -> None:
    # M = 9. t=0: 3+3. t=1: 4+4. t=2: 5+5 > 9: 1 is evicted, 0 alone. t=3: 1 fits next to the 5 held: 5+3, 0 pauses.
    # t=4: 6+4 > 9: 1 is evicted. t=5: 6+3 = 9. t=6: 7+4 > 9: 1 is evicted, 0 is done. t=7: 1 from the beginning, alone.
    result = run("vllm:watermark=0", 9, [0, 0], [2, 2], [5, 5])
    check(result, start=[0, 0], finish=[7, 12], first=[1, 1], evictions=[0, 3])
    assert rows(result, "num_evicted", "num_admitted", "kv_tokens")[:7] == [
        (0, 2, 6),
        (0, 0, 8),
        (1, 0, 5),
        (0, 1, 8),
        (1, 0, 6),
        (0, 1, 9),
        (1, 0, 7),
    ]
    # Its two tokens are recomputed: at t=3 it needs 5 for the KV of prompt and tokens, no room; t=4: 7, with the
    # two it lost, and so on until 0 is done at 5. Then 4+1: prefill 5 with token 3, done at 8.
    result = run("vllm:watermark=0", 9, [0, 0], [2, 2], [5, 5], progress_on_evict="recompute")
    check(result, start=[0, 0], finish=[5, 8], evictions=[0, 1])
    # Kept: 4 tokens of KV; it needs 5 at t=3 next to 6, no room; at 5 it continues: 5, 6, 7.
    result = run("vllm:watermark=0", 9, [0, 0], [2, 2], [5, 5], progress_on_evict="kept")
    check(result, start=[0, 0], finish=[5, 8], evictions=[0, 1])


def test_vllm_does_not_admit_where_it_preempts() -> None:
    # M = 12, 0: s 4, o 4; 1: s 4, o 8; 2: s 1, o 1, arrives at 2. t=0: 5+5. t=1: 6+6. t=2: 2 does not fit
    # next to 12; 7+7: 1 is evicted, and 2 is not considered although 7+2 fits. t=3: by arrival 1 is first: 7+5 = 12, 2
    # does not fit. t=4: 8+6 > 12: 1 is evicted, 0 is done. t=5: 5+2.
    result = run("vllm:watermark=0", 12, [0, 0, 2], [4, 4, 1], [4, 8, 1])
    check(result, start=[0, 0, 5], finish=[5, 13, 6], evictions=[0, 2, 0])


def test_vllm_times_of_prefill_and_decode() -> None:
    # 0.5 + 0.25 per prefill token, 0.125 per decode; uncounted: the prefill shows a first token and o decodes
    # follow. 0 at 0 (s 2): to 1. 1 (s 4) arrives at 0.5: 1 to 2.5. Decodes: 0.75 for both to 3.25, 0.625 for 1
    # to 3.875.
    time = AffineBatchTime(0.5, per_prefill_token=0.25, per_decode_token=0.125)
    result = run("vllm", 100, [0, 0.5], [2, 4], [1, 2], batch_time=time, first_token="uncounted")
    check(result, start=[0, 1], finish=[3.25, 3.875], first=[1, 2.5])


# ---------------------------------------------------------------- Sarathi


def test_sarathi_mixes_decodes_with_chunks() -> None:
    # Budget 4, uncounted. t=0: 0 (s 6): 4. t=1: 0: 2, 1 (s 3): 2. t=2: 0 decodes; 1: 1, 2 (s 2): 2.
    # t=3: 1 and 2 decode, 2 is done. t=4: 1.
    args = (100, [0, 0, 1], [6, 3, 2], [1, 2, 1])
    result = run("sarathi:token_budget=4", *args, first_token="uncounted")
    check(result, start=[0, 1, 2], first=[2, 3, 3], finish=[3, 5, 4])
    assert rows(result, "num_prefills", "prefill_tokens", "num_decodes", "kv_tokens") == [
        (1, 4, 0, 4),
        (2, 4, 0, 8),
        (2, 3, 1, 7 + 3 + 2),
        (0, 0, 2, 4 + 3),
        (0, 0, 1, 5),
    ]
    # First tokens from decodes; and from the last chunk, which spares each an iteration.
    check(
        run("sarathi:token_budget=4", *args, first_token="decode"),
        start=[0, 1, 2],
        first=[3, 4, 4],
        finish=[3, 5, 4],
    )
    # Counted: t=1: 0: 2, done at 2; 1: 2. t=2: 1: 1, 2: 2, done at 3. t=3: 1.
    check(run("sarathi:token_budget=4", *args), start=[0, 1, 2], first=[2, 3, 3], finish=[2, 4, 3])


def test_sarathi_spends_the_budget_on_decodes_first() -> None:
    # Budget 2. t=0: 0 and 1 (s 1). t=1: both decode, nothing is left for 2. t=3: 2.
    check(run("sarathi:token_budget=2", 100, [0] * 3, [1] * 3, [3, 3, 1]), start=[0, 0, 3], finish=[3, 3, 4])
    # A decode that returns with its KV takes one token of it. M = 12, three times s 1, o 7: 2+2+2, 3+3+3, 4+4+4. t=3:
    # 5+5+5 > 12: 2 is evicted. t=4: 6+6. t=5: 7+7: 1 is evicted. t=6: 0 is done. t=7: 1 (6 of KV) and 2 (4) return:
    # 7+5. t=8: 8+6: 2 is evicted, 1 is done. t=9: 2: 6, 7, 8. With budget 1: one by one.
    args = (12, [0] * 3, [1] * 3, [7] * 3)
    result = run("sarathi:token_budget=3", *args, progress_on_evict="kept")
    check(result, start=[0] * 3, finish=[7, 9, 12], evictions=[0, 1, 2])
    result = run("sarathi:token_budget=1", *args, progress_on_evict="kept")
    check(result, start=[0, 7, 14], finish=[7, 14, 21])


def test_sarathi_shortest_prefill_first() -> None:
    # Budget 4. t=0: 1 and 2 (2 each, tie by id). 2 is done. t=1: 1 decodes, 0 (s 5): 3. t=2: 1, done; 0: 2, done.
    args = (100, [0] * 3, [5, 2, 2], [1, 3, 1])
    check(run("sarathi:token_budget=4,order=spf", *args), start=[1, 0, 0], finish=[3, 3, 1])
    # In order of arrival: t=0: 0: 4. t=1: 0: 1, 1: 2, 2: 1. t=2: 1 decodes, 2: 1. t=3: 1.
    check(run("sarathi:token_budget=4", *args), start=[0, 1, 1], finish=[2, 4, 3])
    # A prompt once begun continues, even if a shorter one arrives.
    check(run("sarathi:token_budget=2,order=spf", 100, [0, 1], [4, 1], [1, 1]), start=[0, 2], finish=[2, 3])


def test_sarathi_caps_the_active() -> None:
    spec = "sarathi:max_batch_requests=2"
    check(run(spec, 100, [0] * 3, [1] * 3, [3, 2, 1]), start=[0, 0, 2], finish=[3, 2, 3])


def test_sarathi_begins_only_what_it_can_complete() -> None:
    # M = 12, budget 4. 0 (s 8, o 2): 4, 4. t=2: it decodes its last: 10; 1 (s 3) needs 4 > 2. t=3: 1. But s 1
    # needs 2.
    spec = "sarathi:token_budget=4"
    check(run(spec, 12, [0, 0], [8, 3], [2, 1]), start=[0, 3], finish=[3, 4])
    check(run(spec, 12, [0, 0], [8, 1], [2, 1]), start=[0, 2], finish=[3, 3])
    # The rest of an ongoing prompt is reserved. Budget 6: t=0: 6 of 0. t=1: 6 held, 2 + 1 reserved: 3 left for
    # 1, which needs 4; with M = 13 it starts.
    spec = "sarathi:token_budget=6"
    check(run(spec, 12, [0, 0], [8, 3], [2, 1]), start=[0, 3], finish=[3, 4])
    check(run(spec, 13, [0, 0], [8, 3], [2, 1]), start=[0, 1], finish=[3, 2])


def test_sarathi_evicts_the_newest() -> None:
    # M = 10. 3+3, 4+4, 5+5. t=3: 6+6: 1 is evicted. t=4: 7+3 = 10, 1 again. t=5: 8+4: 1 is evicted,
    # 0 is done. t=6: 1, alone.
    result = run("sarathi", 10, [0, 0], [2, 2], [6, 6])
    check(result, start=[0, 0], finish=[6, 12], first=[1, 1], evictions=[0, 2])
    # A prompt in progress goes as well. M = 9, budget 2. 0: s 1, o 6; 1: s 6, o 1. t=0: 0 writes 2; 7 are left,
    # 1 needs 7: chunk 1. t=1: 3+2. t=2: 4+3. t=3: 5+4. t=4: 6+4 > 9: 1 is evicted. t=5: 0 takes 7, 1 needs 7. t=6: 1:
    # 2, 2, 2.
    result = run("sarathi:token_budget=2", 9, [0, 0], [1, 6], [6, 1])
    check(result, start=[0, 0], finish=[6, 9], evictions=[0, 1])
    assert rows(result, "prefill_tokens", "kv_tokens")[:6] == [(2, 3), (1, 5), (1, 7), (1, 9), (0, 6), (0, 7)]


# ---------------------------------------------------------------- memory as the engines count it


def test_vllm_keeps_a_free_block_for_the_newest() -> None:
    # Blocks of 4, M = 3 blocks. t=0: 4 | 2. t=1: 5 | 3 are 2 + 1 blocks. In the engine 0 takes the last free one, and 1
    # finds none although its own has room: evicted. t=2: 1 again, 0 pauses. t=3, t=5: the same. t=6: 1, alone.
    requests = (12, [0, 0], [3, 1], [4, 2])
    check(run("vllm:watermark=0", *requests, block_size=4), start=[0, 0], finish=[4, 2])
    result = run("vllm:watermark=0,engine_memory=true", *requests, block_size=4)
    check(result, start=[0, 0], finish=[6, 8], evictions=[0, 3])
    # The oldest needs none: 2, 3, 4 in the only block.
    check(run("vllm:engine_memory=true", 4, [0], [1], [3], block_size=4), start=[0], finish=[3])


@BOTH
def test_engines_round_watermarks_down_to_whole_blocks(policy: str) -> None:
    # 15 % of 10 blocks of 4 is one block: 4 + 5 blocks fit. In tokens the limit is 34, so 8 blocks.
    requests, spec = (40, [0, 0], [15, 19], [1, 1]), f"{policy}:watermark=0.15"
    check(run(spec, *requests, block_size=4), start=[0, 1], finish=[1, 2])
    check(run(f"{spec},engine_memory=true", *requests, block_size=4), start=[0, 0], finish=[1, 1])


def test_sarathi_holds_the_blocks_of_whole_prompts() -> None:
    # M = 9, budget 2. 0: s 1, o 6; 1: s 6, o 1. t=0: 0 writes 2; 1 holds 7 and gets a chunk of 1. t=1: 3 + 7 > 9: 1 is
    # evicted. t=6: 1: 2, 2, 2.
    result = run("sarathi:token_budget=2,engine_memory=true", 9, [0, 0], [1, 6], [6, 1])
    check(result, start=[0, 0], finish=[6, 9], evictions=[0, 1])
    assert rows(result, "prefill_tokens", "kv_tokens")[:6] == [(2, 3), (0, 3), (0, 4), (0, 5), (0, 6), (0, 7)]


def test_sarathi_keeps_a_free_block_for_the_newest_decode() -> None:
    # As for vLLM above; t=2: 6 | 2 are 2 + 1 blocks: 1 is admitted next to the decode. t=3: evicted again. t=4: alone.
    requests = (12, [0, 0], [3, 1], [4, 2])
    check(run("sarathi", *requests, block_size=4), start=[0, 0], finish=[4, 2])
    result = run("sarathi:engine_memory=true", *requests, block_size=4)
    check(result, start=[0, 0], finish=[4, 6], evictions=[0, 2])


def served_by_engine(
    requests: tuple[list[float], list[int], list[int]], *, blocks: int, size: int, budget: int | None
) -> tuple[list[float], list[int]]:
    """Return finish times and evictions from the engines' own loops; vLLM if ``budget`` is None, else Sarathi-Serve.

    A request's output token is written with the batch that generates it; the oldest request is never evicted, and no
    request starts in an iteration that evicts. Evicted requests recompute and return to the front of the queue.
    """
    arrivals, prompts, outputs = requests
    waiting, running, coming = list[int](), list[int](), list(range(len(arrivals)))
    held, done, left, evictions = ([0] * len(arrivals) for _ in range(4))
    finish, clock, free = [0.0] * len(arrivals), 0.0, blocks

    def needed(i: int) -> int:
        return -(-(prompts[i] + done[i] + 1) // size)

    while coming or waiting or running:
        if not waiting and not running:
            clock = max(clock, arrivals[coming[0]])
        while coming and arrivals[coming[0]] <= clock:
            waiting.append(coming.pop(0))
        tokens, evicted = dict[int, int](), False

        def start(most: int) -> int:
            nonlocal free
            i = waiting.pop(0)
            held[i], left[i] = needed(i), prompts[i] + done[i]
            free -= held[i]
            running.append(i)
            tokens[i] = min(left[i], most)  # noqa: B023
            return tokens[i]  # noqa: B023

        if budget is None:
            while waiting and needed(waiting[0]) <= free:
                start(10**9)
        if not tokens:
            stay, rest = list[int](), list(running)
            while rest:
                i = rest.pop(0)
                while left[i] == 0 and free < 1 and (stay or rest):
                    gone, evicted = rest.pop() if rest else i, True
                    free, held[gone], left[gone] = free + held[gone], 0, 0
                    evictions[gone] += 1
                    waiting.insert(0, gone)
                    if gone == i:
                        break
                if i not in waiting:
                    stay.append(i)
                    if left[i] == 0:
                        free, held[i], tokens[i] = free + held[i] - needed(i), needed(i), 1
            running[:] = stay
        if budget is not None:
            room = budget - len(tokens)
            for i in running:
                if left[i] > 0 and room > 0:
                    tokens[i] = min(left[i], room)
                    room -= tokens[i]
            while not evicted and waiting and room > 0 and needed(waiting[0]) <= free:
                room -= start(room)
        clock += 1
        for i, count in tokens.items():
            left[i] = max(0, left[i] - count)
            done[i] += left[i] == 0
            if done[i] == outputs[i]:
                free, finish[i] = free + held[i], clock
                running.remove(i)
    return finish, evictions


@BOTH
def test_engine_memory_follows_the_loops_of_the_engines(policy: str) -> None:
    evictions = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        requests = (
            np.cumsum(rng.integers(0, 3, 40)).tolist(),
            rng.integers(1, 30, 40).tolist(),
            rng.integers(1, 30, 40).tolist(),
        )
        budget = 16 if policy == "sarathi" else None
        finish, evicted = served_by_engine(requests, blocks=24, size=4, budget=budget)
        spec = f"{policy}:watermark=0,engine_memory=true" + (f",token_budget={budget}" if budget else "")
        result = run(spec, 96, *requests, block_size=4, progress_on_evict="recompute", requeue="front")
        check(result, finish=finish, evictions=evicted)
        evictions += sum(evicted)
    assert evictions > 50


# ---------------------------------------------------------------- both, under load


@BOTH
@pytest.mark.parametrize("first_token", ["counted", "uncounted", "decode"])
def test_all_requests_are_served_and_memory_is_used(policy: str, first_token: str) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        s, o = rng.integers(1, 30, 60), rng.integers(1, 30, 60)
        a = np.cumsum(rng.exponential(1, 60))
        spec = "sarathi:token_budget=16" if policy == "sarathi" else policy
        result = run(spec, 70, a, s, o, first_token=first_token)  # type: ignore
        assert result.completed
        log = result.log
        assert log is not None
        assert 60 < log["kv_tokens"].max() <= 70
        assert log["num_evicted"].sum() > 0
        if policy == "vllm":
            assert not ((log["num_prefills"] > 0) & (log["num_decodes"] > 0)).any()
            assert not ((log["num_prefills"] > 0) & (log["num_evicted"] > 0)).any()
        else:
            assert ((log["num_prefills"] > 0) & (log["num_decodes"] > 0)).any()
            assert (log["prefill_tokens"] <= np.maximum(16 - log["num_decodes"], 0)).all()
        # no earlier arrival starts later
        assert (np.diff(result.requests["start_time"]) >= 0).all()


@BOTH
def test_no_information_is_needed(policy: str) -> None:
    assert make_policy(policy).info.needs == frozenset()
