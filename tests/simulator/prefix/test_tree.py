"""A prefix cache that is a tree of nodes: by hand in blocks of 4 tokens, KV as engines have it, and its invariants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvgym
from helpers.amount import some
from kvgym.batch_time import UnitBatchTime
from kvgym.policies.contract.checks import WatchedCache
from kvgym.policies.policy import make_policy
from kvgym.simulator.system import System
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable


def run(blocks: int, requests: list[Any], share: str = "radix", policy: str = "fcfs", **settings: Any) -> Any:
    """Return a run; requests are arrival (s), prompt and output (tokens), and text, a letter per block."""
    arrival, prompt, output, texts = zip(*requests, strict=True)
    hashes = BlockHashes.from_rows([list(text) for text in texts], [4 * len(text) for text in texts], 4)
    table = RequestTable.from_columns(
        arrival_time=arrival, prompt_len=prompt, output_len=output, hashes=hashes
    )
    system = System(4 * blocks, UnitBatchTime(), block_size=4, output_kv="next_iteration", prefix_cache=share)
    return kvgym.simulate(system, table, WatchedCache(make_policy(policy, **settings)), log=True)


def hits(*arguments: Any, **settings: Any) -> list[int]:
    """Return the tokens that start each batch in the cache, in order."""
    return list(run(*arguments, **settings).log["hit_tokens"])


def test_a_node_is_dropped_whole():
    """ABCD stays in four of five blocks. XY lacks one, so its last block D goes; of the tree, all of ABCD."""
    rows = [(0, 16, 1, "ABCD"), (1, 8, 1, "XY"), (2, 17, 1, "ABCD")]
    assert hits(5, rows, "computed") == [0, 0, 12]
    assert hits(5, rows) == [0, 0, 0]
    assert run(5, rows).log["kv_cached"].tolist() == [0, 0, 0]


def test_a_request_that_parts_within_a_node_splits_it():
    """ABX finds AB of ABCD, so CD is a node of its own. YZ lacks a block: CD goes, and only D of single units."""
    rows = [(0, 16, 1, "ABCD"), (1, 12, 1, "ABX"), (2, 8, 1, "YZ"), (3, 17, 1, "ABCD")]
    assert hits(6, rows) == [0, 8, 0, 8]
    assert run(6, rows).log["kv_cached"].tolist() == [0, 8, 12, 0]
    assert hits(6, rows, "computed") == [0, 8, 0, 12]


def test_the_rest_of_a_node_that_is_split_counts_as_used():
    """EF comes after ABCD, of which A is used later. XY lacks a block: F and E of the tree, D of single units."""
    rows = [(0, 16, 1, "ABCD"), (1, 8, 1, "EF"), (2, 5, 1, "A"), (3, 8, 1, "XY"), (4, 17, 1, "ABCD")]
    assert hits(7, rows) == [0, 0, 4, 0, 16]
    assert hits(7, rows, "computed") == [0, 0, 4, 0, 12]


def test_two_that_compute_the_same_share_it_when_the_batch_ends():
    """Two times AB in one batch: four blocks, and two of them when it has ended, in place of copies."""
    rows = [(0, 8, 2, "AB"), (0, 8, 2, "AB")]
    assert run(8, rows).log["kv_tokens"].tolist() == [16, 16]  # two shared blocks, and one of each
    assert run(8, rows, "computed").log["kv_tokens"].tolist() == [16, 24]


def test_outputs_are_found_when_their_request_has_finished():
    """The first request has A as its prompt and writes BC until 10. One that comes at 8 finds A, a later one ABC."""
    rows = [(0, 4, 10, "ABC"), (8, 9, 1, "AB"), (11, 13, 1, "ABC")]
    assert [hit for hit in hits(16, rows) if hit] == [4, 12]
    assert [hit for hit in hits(16, rows, "computed") if hit] == [8, 12]


def test_lpm_sorts_by_all_blocks_of_a_prompt_less_one_token():
    """AB and C are cached. CX finds 4 tokens and so does AB, but of AB all 8 are there: SGLang compares 4 with 7."""
    rows = [(0, 8, 1, "AB"), (1, 4, 1, "C"), (5, 9, 1, "CX"), (5, 8, 1, "AB")]
    for share, starts in (("radix", [6, 5]), ("computed", [5, 6])):
        result = run(4, rows, share, "lpm", small_hit=0)
        assert result.requests["start_time"][2:].tolist() == starts


def test_what_waiting_requests_find_is_used():
    """The last request waits for seven blocks and X, which grows to five, needs AB or EF: a look of lpm keeps AB."""
    rows = [(0, 8, 1, "AB"), (1, 8, 1, "EF"), (2, 4, 17, "X"), (3, 25, 1, "AB")]
    assert hits(7, rows, policy="lpm")[-1] == 8
    assert hits(7, rows, policy="fcfs")[-1] == 0


@pytest.mark.parametrize("policy", ["lpm", "fcfs", "vllm_v1", "dlpm"])
@pytest.mark.parametrize("progress", ["lost", "recompute", "kept"])
def test_tables_are_right_at_every_decision(policy, progress):
    dropped = found = 0
    for seed in some(range(6), 2):
        rng, n = np.random.default_rng(seed), 18
        prompt, output = rng.integers(1, 20, n), rng.integers(1, 8, n)
        texts = []
        for i, tokens in enumerate((prompt + output).tolist()):
            shared, text = int(rng.integers(0, tokens // 2 + 1)), int(rng.integers(3))
            texts.append([(text if j < shared else 10 + i, j) for j in range(tokens // 2)])
        hashes = BlockHashes.from_rows(texts, 2 * np.array([len(text) for text in texts]), 2)
        table = RequestTable.from_columns(
            arrival_time=np.sort(np.floor(rng.random(n) * 30)), prompt_len=prompt, output_len=output, hashes=hashes,
            client_id=rng.integers(0, 2, n),
        )  # fmt: skip
        system = System(
            30, UnitBatchTime(), block_size=2, prefix_cache="radix", progress_on_evict=progress, requeue="front",
            cache_rule="fixed:user=5" if seed % 2 else "lru",
        )  # fmt: skip
        made = make_policy(policy)
        w = kvgym.simulate(system, table, WatchedCache(made), compiled=False).worker[0]
        dropped, found = dropped + w["total_dropped_units"], found + w["total_hit_tokens"]
    assert dropped > 0
    assert found > 0
