"""When the KV of an output token is written: by the iteration that generates it, or by the next one as in engines."""

from __future__ import annotations

import pytest

from helpers.runs.schedules import check, run
from kvgym.batch_time import UnitBatchTime
from kvgym.errors import ConfigError, WorkloadError
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System, Worker
from kvgym.workloads.table import RequestTable

NEXT = {"output_kv": "next_iteration"}


@pytest.mark.parametrize(
    ("block_size", "settings", "kv"),
    [
        (1, {}, [5, 6, 7]),
        (1, NEXT, [4, 5, 6]),
        (4, {}, [8, 8, 8]),
        (4, NEXT, [4, 8, 8]),  # the decode needs its block when it is scheduled
    ],
)
def test_memory_of_one_request(block_size: int, settings: dict[str, str], kv: list[int]) -> None:
    result = run("fcfs", 12, [0], [4], [3], block_size=block_size, **settings)
    check(result, finish=[3], kv=kv)


def test_a_request_fits_that_needs_one_token_less() -> None:
    check(run("fcfs", 6, [0], [4], [3], **NEXT), finish=[3], kv=[4, 5, 6])
    with pytest.raises(WorkloadError, match=r"longest: request 0, 4 \+ 3 = 7"):
        run("fcfs", 6, [0], [4], [3])
    with pytest.raises(WorkloadError, match=r"longest: request 0, 4 \+ 2 = 6"):
        run("fcfs", 5, [0], [4], [3], **NEXT)


def test_an_eviction_loses_what_was_written() -> None:
    # M = 7: 3 + 3, 4 + 3 (1 arrives at t=0 and its first decode does not fit): 1 has 3 tokens of KV when it is evicted,
    # and its prompt and output token 1 to prefill, which take 4. t=2: 5 + 0. t=3: 0 is done at 6. Then 4, 5, 6.
    result = run(
        "vllm_v1", 7, [0, 0], [3, 3], [4, 4], progress_on_evict="recompute", requeue="front", **NEXT
    )  # fmt: skip
    check(result, start=[0, 0], first=[1, 1], finish=[4, 7], evictions=[0, 1], kv=[6, 4, 5, 6, 4, 5, 6])
    assert result.requests["num_recomputed_tokens"].tolist() == [0, 3]


def test_a_prefill_worker_hands_over_the_prompt() -> None:
    table = RequestTable([0], [4], [3])
    workers = [Worker(4, UnitBatchTime(), "prefill"), Worker(6, UnitBatchTime(), "decode")]
    result = simulate(System.cluster(workers, transfer_time=1.0, **NEXT), table, "fcfs", log=True)
    assert result.log is not None
    assert result.log["kv_tokens"].tolist() == [4, 5, 6]
    assert result.requests["finish_time"].tolist() == [1 + 4 + 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"output_kv": "later"}, "output_kv = 'later'; valid: at_once, next_iteration"),
        (
            {"first_token": "decode", **NEXT},
            "output_kv = next_iteration with first_token = decode; expected first",
        ),
    ],
)
def test_wrong_settings_are_explained(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        System(kv_capacity=9, batch_time=UnitBatchTime(), **settings)
