"""Each worker of a cluster has a prefix cache of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvgym
from kvgym.batch_time import UnitBatchTime
from kvgym.policies.contract.cases import Shuffling, requests, with_common_prefixes
from kvgym.policies.contract.checks import WatchedCache
from kvgym.policies.policy import make_policy
from kvgym.simulator.system import System, Worker
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable


def chats(arrival: list[float], prompt: int, texts: list[str]) -> RequestTable:
    """Return requests of one output token, with prompts that are equal if their texts are; units of 2 tokens."""
    rows = [[(text, j) for j in range(prompt // 2)] for text in texts]
    tokens = np.full(len(texts), prompt // 2 * 2)
    return RequestTable.from_columns(
        arrival_time=arrival,
        prompt_len=[prompt] * len(texts),
        output_len=[1] * len(texts),
        hashes=BlockHashes.from_rows(rows, tokens, 2),
    )


def cluster_of(roles: list[str], capacity: int = 20, **settings: Any) -> System:
    """Return a cluster with prefix caches and unit batch times."""
    return System.cluster(
        [Worker(capacity, UnitBatchTime(), role) for role in roles],
        block_size=2,
        prefix_cache="computed",
        **settings,
    )


def test_hits_depend_on_the_worker_by_hand():
    """Round robin: A to worker 0, A to worker 1 (computes it again), A to worker 0 (finds 2 of 3 units), B to worker 1.

    A prompt of 6 tokens is 3 units, and its last token is computed, so that 2 units can be found.
    """
    table = chats([0.0, 5.0, 10.0, 15.0], 6, ["A", "A", "A", "B"])
    result = kvgym.simulate(cluster_of(["mixed", "mixed"]), table, "fcfs", log=True)
    assert result.log["worker"].tolist() == [0, 1, 0, 1]
    assert result.log["prefill_tokens"].tolist() == [6, 6, 2, 6]
    assert result.worker["total_hit_tokens"].tolist() == [4, 0]


def test_a_prefill_worker_keeps_the_prompt_and_the_decode_worker_gets_it_whole():
    table = chats([0.0, 5.0], 6, ["A", "A"]).replace(output_len=[3, 3])
    result = kvgym.simulate(cluster_of(["prefill", "decode"]), table, "fcfs", log=True)
    prefills = result.log[result.log["num_prefills"] > 0]
    assert prefills["worker"].tolist() == [0, 0]
    assert prefills["prefill_tokens"].tolist() == [6, 2]
    assert result.worker["total_hit_tokens"].tolist() == [4, 0]
    assert result.completed


def test_a_transfer_takes_only_what_the_target_lacks():
    """A prefill of 6 tokens ends at 1, the second at 21; a token takes 0.5 s. The decode worker has A from then on."""
    table = chats([0.0, 20.0, 40.0], 6, ["A", "A", "B"]).replace(output_len=[3, 3, 3])
    result = kvgym.simulate(cluster_of(["prefill", "decode"], transfer_time=0.5), table, "fcfs", log=True)
    decodes = result.log[(result.log["worker"] == 1) & (result.log["num_admitted"] > 0)]
    kv = 7  # the prompt and the first output token, of which the three units of the prompt are found
    assert decodes["start_time"].tolist() == [1 + 0.5 * kv, 21 + 0.5 * (kv - 6), 41 + 0.5 * kv]


@pytest.mark.parametrize("roles", [["mixed"] * 3, ["prefill", "prefill", "decode", "decode"]])
def test_tables_are_right_when_requests_move(roles):
    hits = moved = 0
    for seed in range(3):
        table = with_common_prefixes(requests(seed, 20), 2, seed)
        system = cluster_of(
            roles,
            24,
            transfer_latency=0.5,
            transfer_time=0.25,
            progress_on_evict=("lost", "recompute", "kept")[seed],
        )
        result = kvgym.simulate(
            system, table, WatchedCache(make_policy("fcfs")), router=Shuffling(0.6), compiled=False
        )
        compiled = kvgym.simulate(system, table, "fcfs", router=Shuffling(0.6))
        assert compiled.requests.tobytes() == result.requests.tobytes()
        assert compiled.worker.tobytes() == result.worker.tobytes()
        assert result.completed
        assert (result.worker["kv_allocated"] == 0).all()
        hits, moved = (
            hits + result.worker["total_hit_tokens"].sum(),
            moved + result.worker["total_received"].sum(),
        )
    assert hits > 0
    assert moved > 0
