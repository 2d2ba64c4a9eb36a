"""Schedules of SGLang's LPM, worked by hand: blocks of 4 tokens, KV as engines have it, 1 s per iteration."""

from __future__ import annotations

from typing import Any

import kvgym
from kvgym.batch_time import UnitBatchTime
from kvgym.policies.policy import make_policy
from kvgym.simulator.system import System
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable


def starts(blocks: int, requests: list[Any], policy: str = "lpm", **settings: Any) -> list[float]:
    """Return the start of each request; requests are arrival (s), prompt (tokens) and text, a letter per block."""
    arrival, prompt, texts = zip(*requests, strict=True)
    tokens = [4 * len(text) for text in texts]
    hashes = BlockHashes.from_rows([list(text) for text in texts], tokens, 4)
    table = RequestTable.from_columns(
        arrival_time=arrival, prompt_len=prompt, output_len=[1] * len(prompt), hashes=hashes
    )
    cache = settings.pop("prefix_cache", "computed")
    system = System(4 * blocks, UnitBatchTime(), block_size=4, output_kv="next_iteration", prefix_cache=cache)
    result = kvgym.simulate(system, table, make_policy(policy, **settings))
    return list(result.requests["start_time"])


def test_the_longest_hit_starts_first():
    """AB is cached; of four blocks, XYZ takes three, and so does AB with one token more."""
    rows = [(0, 8, "AB"), (10, 12, "XYZ"), (10, 9, "AB")]
    assert starts(4, rows) == [0, 11, 10]
    assert starts(4, rows, "fcfs") == [0, 10, 11]


def test_equal_hits_start_in_order_of_the_queue():
    rows = [(0, 8, "AB"), (10, 9, "AB"), (10, 12, "XYZ"), (10, 9, "AB")]
    assert starts(4, rows) == [0, 10, 12, 11]


def test_one_of_those_that_begin_alike_starts_and_the_others_go_last():
    """Six blocks hold two prompts of three. The second AB goes behind CD, and finds AB when it starts."""
    rows = [(0, 9, "AB"), (0, 9, "AB"), (0, 9, "CD")]
    assert starts(6, rows, small_hit=4, common=8) == [0, 1, 0]
    assert starts(6, rows, small_hit=4, common=5) == [0, 1, 0]  # rounded up to two blocks
    assert starts(6, rows, small_hit=4, common=9) == [0, 0, 1]  # they have only 8 tokens in common
    assert starts(6, rows, small_hit=4, common=8, most_waiting=2) == [0, 0, 1]
    assert starts(6, rows, small_hit=4, common=8, prefix_cache="off") == [0, 0, 1]


def test_a_request_with_a_long_hit_does_not_go_last():
    """A is cached: with a hit of 4 above ``small_hit`` the second ABC keeps its place, otherwise it goes last."""
    rows = [(0, 4, "A"), (5, 13, "ABC"), (5, 13, "ABC"), (5, 9, "CD")]
    assert starts(8, rows, small_hit=3, common=4) == [0, 5, 5, 6]
    assert starts(8, rows, small_hit=4, common=4) == [0, 5, 6, 5]
