"""The prefix cache: its tables against a plain-Python oracle, whole runs against one, and what it must leave alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import kvgym
from helpers.amount import some
from helpers.runs.cache_driver import CacheDriver
from kvgym.batch_time import UnitBatchTime
from kvgym.compiling.kernel import uncompiled
from kvgym.errors import ConfigError, WorkloadError
from kvgym.policies.contract.checks import WatchedCache
from kvgym.policies.policy import make_policy
from kvgym.simulator import loop
from kvgym.simulator.loop import run_full_loop
from kvgym.simulator.prefix.cache import PrefixCache
from kvgym.simulator.prefix.pins import begin_pin
from kvgym.simulator.system import System
from kvgym.simulator.view import simulation_of
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable
from oracles.prefix_cache import ReferencePool, run_reference


def random_chains(rng: np.random.Generator, lengths: NDArray[Any], unit: int) -> list[list[tuple[str, int]]]:
    """Return a chain for each length in tokens: the beginning of one of three texts, then text of its own."""
    chains = []
    for i, tokens in enumerate(lengths.tolist()):
        count = tokens // unit
        shared, text = int(rng.integers(0, count + 1)), int(rng.integers(3))
        chains.append([(f"text {text}" if j < shared else f"own {i}", j) for j in range(count)])
    return chains


def table_of(arrival: Any, prompt: Any, output: Any, chains: Any, unit: int) -> RequestTable:
    """Return requests with chains of full units."""
    tokens = unit * np.array([len(chain) for chain in chains])
    hashes = BlockHashes.from_rows(chains, tokens, unit)
    return RequestTable(arrival, prompt, output, predicted_output_len=output, hashes=hashes)


def random_requests(seed: int, unit: int, most: int, n: int = 18) -> tuple[RequestTable, list[Any]]:
    """Return requests that fit a memory of ``most`` tokens, and their chains; some chains end with the prompt."""
    rng = np.random.default_rng(seed)
    prompt, output = rng.integers(1, min(20, most - 8), n), rng.integers(1, 8, n)
    chains = random_chains(rng, np.where(rng.random(n) < 0.3, prompt, prompt + output), unit)
    arrival = np.sort(np.floor(rng.random(n) * rng.choice([5, 30, 60])))
    return table_of(arrival, prompt, output, chains, unit), chains


def system_of(capacity: int, block: int, unit: int, share: str = "computed", **settings: Any) -> System:
    """Return a worker with a prefix cache and unit batch times."""
    return System(
        capacity, UnitBatchTime(), block_size=block, prefix_cache=share, prefix_block=unit, **settings
    )


@pytest.mark.parametrize("seed", range(6))
def test_pool_equals_the_oracle_after_every_operation(seed):
    rng, unit = np.random.default_rng(seed), 2
    lengths = rng.integers(1, 12, 14)
    chains = random_chains(rng, lengths, unit)
    table = table_of(np.zeros(14), lengths, np.ones(14, int), chains, unit)
    numbers = table.hashes.chains(unit)
    named = {
        i: numbers.chain[start : start + length].tolist()
        for i, (start, length) in enumerate(zip(numbers.chain_start, numbers.chain_len, strict=True))
    }
    blocks = int(rng.integers(8, 14))
    ours, oracle = CacheDriver(blocks * unit, unit, table), ReferencePool(blocks, unit, "computed", named)
    refused = pins = 0
    for _ in range(150):
        running = list(ours.kv)
        kind = rng.choice(["admit", "grow", "end", "release"], p=[0.4, 0.25, 0.15, 0.2])
        i = int(rng.integers(14))
        if kind == "admit" and i not in running and i not in oracle.pins:
            found = [pool.admit(i, int(lengths[i]), int(lengths[i] + 1) // 2) for pool in (ours, oracle)]
            assert found[0] == (None if found[1] is None else tuple(found[1]))
            refused += found[0] is None
        elif kind == "grow" and running:
            i = running[i % len(running)]
            assert ours.grow(i, 1) == oracle.grow(i, 1)
        elif kind == "end":
            ours.end_batch()
            oracle.end_batch()
        elif kind == "release" and running:
            i = running[i % len(running)]
            units = oracle.tables[i].units
            ours.release(i)
            oracle.release(i)
            if units and rng.random() < 0.3:
                pins += 1
                deadline = float(rng.integers(1, 100))
                ours.pin(i, deadline)
                oracle.pin(i, units, deadline)
        state = oracle.state()
        assert ours.cached() == state["lru"]
        assert ours.in_use == state["used"] * unit
    assert refused > 0
    assert pins > 0
    assert ours.worker.total_dropped_units > 0


@pytest.mark.parametrize("share", ["computed", "scheduled"])
@pytest.mark.parametrize("progress", ["lost", "recompute"])
@pytest.mark.parametrize(("block", "unit"), [(1, 1), (1, 3), (4, 4), (2, 4)])
def test_runs_equal_those_of_the_oracle(block, unit, progress, share):
    evictions = hits = 0
    for seed in range(5):
        table, chains = random_requests(seed, unit, 36)
        rows = zip(
            table.arrival_time.tolist(),
            table.prompt_len.tolist(),
            table.output_len.tolist(),
            chains,
            strict=True,
        )
        outcomes, trace = run_reference([*rows], 36, block, unit, progress, share)
        system = system_of(36, block, unit, share, progress_on_evict=progress)
        result = kvgym.simulate(system, table, "fcfs", log=True)
        r, w = result.requests, result.worker[0]
        for i, expected in enumerate(outcomes):
            found = tuple(
                r[name][i] for name in ("start_time", "first_token_time", "finish_time", "num_evictions")
            )
            times = (expected.start, expected.first_token, expected.finish, expected.evictions)
            assert found == times, f"seed {seed}, request {i}"
        assert result.log["kv_tokens"].tolist() == [step.memory for step in trace]
        assert result.log["kv_cached"].tolist() == [step.cached for step in trace]
        assert w["total_hit_tokens"] == sum(o.hit for o in outcomes)
        assert w["total_hit_resumed"] == sum(o.hit_resumed for o in outcomes)
        assert w["total_known_tokens"] == table.prompt_len.sum()
        evictions, hits = evictions + w["total_evicted"], hits + w["total_hit_tokens"]
    assert evictions > 0
    assert hits > 0


@pytest.mark.parametrize("progress", ["lost", "recompute", "kept"])
@pytest.mark.parametrize("first_token", ["counted", "uncounted", "decode"])
def test_tables_are_right_at_every_decision(progress, first_token):
    for seed, name in some(enumerate(("fcfs", "alpha_beta", "cost_aware", "vllm_v1", "vllm_v1")), 3):
        table, _ = random_requests(seed, 2, 30)
        rules = {"progress_on_evict": progress, "first_token": first_token, "requeue": "front"}
        share = ("computed", "scheduled", "radix")[seed % 3]
        system = system_of(30, 2, 2, share, **rules)
        result = kvgym.simulate(system, table, WatchedCache(make_policy(name)), compiled=False)
        assert result.completed


@pytest.mark.parametrize("progress", ["lost", "kept"])
def test_without_common_text_nothing_changes(progress):
    """The cache takes only memory that no request uses; requests find nothing, so the schedule is the same."""
    rng = np.random.default_rng(0)
    prompt, output = rng.integers(1, 20, 40), rng.integers(1, 10, 40)
    arrival = np.floor(np.cumsum(rng.exponential(3, 40)))
    chains = [[(i, j) for j in range(p // 4)] for i, p in enumerate(prompt.tolist())]
    table = table_of(arrival, prompt, output, chains, 4)
    on = kvgym.simulate(system_of(40, 4, 4, progress_on_evict=progress), table, "fcfs", log=True)
    off = kvgym.simulate(
        System(40, UnitBatchTime(), block_size=4, progress_on_evict=progress), table, "fcfs", log=True
    )
    if progress == "kept":  # under "lost", requests find their own prompt after an eviction
        for name in ("start_time", "first_token_time", "finish_time"):
            np.testing.assert_array_equal(on.requests[name], off.requests[name])
        for name in set(on.log.dtype.names) - {"kv_cached"}:
            np.testing.assert_array_equal(on.log[name], off.log[name])
    assert on.worker["total_hit_tokens"][0] == 0
    assert off.worker["total_evicted"][0] > 0


def test_code_that_leaves_the_cache_out_gives_equal_bits(monkeypatch):
    """Runs without a cache have a kernel of their own; here they also run in the one with a cache."""
    table, _ = random_requests(3, 2, 30, n=40)
    system = System(30, UnitBatchTime(), block_size=2)
    first = kvgym.simulate(system, table, "fcfs")
    monkeypatch.setattr(loop, "run_loop", run_full_loop)
    second = kvgym.simulate(system, table, "fcfs")
    assert first.worker["total_evicted"][0] > 0
    assert first.requests.tobytes() == second.requests.tobytes()
    assert first.worker.tobytes() == second.worker.tobytes()


class Keeping(WatchedCache):
    """First come, first served; keeps the KV of every second finished request for a time, seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(make_policy("fcfs"))
        self.seconds = seconds

    def schedule(self, view: Any) -> Any:
        """Pin units, then decide."""
        tables = simulation_of(view).python_tables()
        shared = ("chain", "held", "prefix")
        cache = PrefixCache(*(tables[n] if n in shared else tables[n][0] for n in PrefixCache._fields))
        for i in view.finished.tolist():
            if i % 2:
                uncompiled(begin_pin)(cache, i, view.clock + self.seconds)
        return super().schedule(view)


@pytest.mark.parametrize(("block", "unit"), [(1, 1), (4, 4)])
@pytest.mark.parametrize("seconds", [20.0, math.inf])
def test_runs_with_pins_equal_those_of_the_oracle(block, unit, seconds):
    changed = 0
    for seed in some(range(1, 6), 2):
        table, chains = random_requests(seed, unit, 36)
        columns = (table.arrival_time, table.prompt_len, table.output_len)
        rows = [*zip(*(column.tolist() for column in columns), chains, strict=True)]
        outcomes, trace = run_reference(
            rows, 36, block, unit, "lost", keep=lambda i: seconds if i % 2 else 0.0
        )
        result = kvgym.simulate(system_of(36, block, unit), table, Keeping(seconds), log=True, compiled=False)
        r = result.requests
        for i, expected in enumerate(outcomes):
            found = (r["start_time"][i], r["finish_time"][i], r["num_evictions"][i])
            assert found == (expected.start, expected.finish, expected.evictions), f"seed {seed}, request {i}"
        assert result.log["kv_tokens"].tolist() == [step.memory for step in trace]
        assert result.log["kv_cached"].tolist() == [step.cached for step in trace]
        assert result.worker["total_hit_tokens"][0] == sum(o.hit for o in outcomes)
        changed += trace != run_reference(rows, 36, block, unit, "lost")[1]
    assert changed > 0 or unit > 1  # in nine large units the order hardly matters


def test_one_time_to_live_for_all_is_the_order_of_last_use():
    table, _ = random_requests(2, 2, 30, n=40)
    one, other = (
        kvgym.simulate(system_of(30, 2, 2, cache_rule=rule), table, "fcfs", compiled=compiled)
        for rule, compiled in (("lru", True), ("fixed:user=9", False))
    )
    assert one.requests.tobytes() == other.requests.tobytes()


def test_a_conversation_by_hand():
    """Two turns and a stranger in 12 tokens of memory, units of 2.

    Turn 1 (prompt 4, output 3) runs from 0 to 3. Its KV is prompt and three tokens, one of them not yet in an engine's
    KV: 6 tokens in 3 units stay. Turn 2 (prompt 8: those 7 tokens and one more) finds 3 units. It needs 9 tokens of
    memory at its start, so next to it 2 remain for the stranger of 3, which waits until turn 2 has finished at 12.
    """
    text = [("chat", j) for j in range(5)]
    table = table_of([0.0, 10.0, 10.0], [4, 8, 3], [3, 2, 1], [text[:3], text, [("other", 0)]], 2)
    result = kvgym.simulate(system_of(12, 2, 2), table, "fcfs", log=True)
    assert result.requests["start_time"].tolist() == [0, 10, 12]
    assert result.requests["finish_time"].tolist() == [3, 12, 13]
    assert result.log["prefill_tokens"].tolist() == [4, 0, 0, 2, 0, 3]
    assert result.log["kv_tokens"].tolist() == [6, 6, 8, 10, 10, 4]
    metrics = kvgym.compute_metrics(result)
    assert metrics["hit_rate"] == 6 / 15
    assert metrics["hit_tokens"] == 6
    assert metrics["cache_evictions"] == 0


def run_by_hand(share: str, blocks: int, policy: str, requests: list[Any], **settings: Any) -> Any:
    """Return a run in blocks of 4 tokens, with KV as engines have it; requests are arrival, prompt, output, text."""
    arrival, prompt, output, _ = zip(*requests, strict=True)
    chains = [[s[: j + 1] for j in range((p + o) // 4)] for _, p, o, s in requests]
    table = table_of(arrival, prompt, output, chains, 4)
    system = system_of(4 * blocks, 4, 4, share, output_kv="next_iteration")
    return kvgym.simulate(system, table, make_policy(policy, **settings), log=True)


def test_chunks_of_one_text_side_by_side():
    """ABCD twice in chunks of 8: the second finds A B and computes C D, so the first computes copies of C D.

    Seven of nine blocks are in use then. The last request takes one of two that were never used next to six cached.
    """
    rows = [(0, 16, 1, "ABCD"), (0, 17, 1, "ABCD"), (9, 1, 1, "Z")]
    limits = {"max_num_batched_tokens": 16, "max_num_seqs": 4, "long_prefill_token_threshold": 8}
    log = run_by_hand("scheduled", 9, "vllm_v1", rows, **limits).log
    assert log["hit_tokens"].tolist() == [8, 0, 0]
    assert log["prefill_tokens"].tolist() == [16, 9, 1]
    assert log["kv_tokens"].tolist() == [16, 28, 4]
    assert log["kv_cached"].tolist() == [0, 0, 24]


def test_vllm_starts_a_request_that_fits_by_what_another_computes():
    """Of six blocks each prompt of ABCD and a token takes five. The second finds four, so both start together."""
    rows = [(0, 17, 1, "ABCD"), (0, 17, 1, "ABCD")]
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 4}
    log = run_by_hand("scheduled", 6, "vllm_v1", rows, **limits).log
    assert (log["num_admitted"].tolist(), log["kv_tokens"].tolist()) == ([2], [24])
    assert run_by_hand("scheduled", 6, "fcfs", rows).log["num_admitted"].tolist() == [1, 1]


def test_ahead_of_a_batch_its_last_unit_is_not_known():
    """A has 7 tokens of prompt; its first output token, computed from 1 to 2, fills its second unit.

    B arrives at 0.5 and is decided on at 1, for the batch from 2 on: A's second unit has no name yet. C is decided on
    at 2. Decided when a batch ends, B starts at 1 and finds both, since A's unit enters before B looks.
    """
    rows = [(0, 7, 2, "AB"), (0.5, 9, 1, "AB"), (1.5, 9, 1, "AB")]
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 4}
    log = run_by_hand("scheduled", 9, "vllm_v1", rows, async_scheduling=True, **limits).log
    assert log["hit_tokens"].tolist() == [0, 0, 4, 8]
    assert log["start_time"].tolist() == [0, 1, 2, 3]
    assert run_by_hand("scheduled", 9, "vllm_v1", rows, **limits).log["hit_tokens"].tolist() == [0, 8, 8]


@pytest.mark.parametrize("seed", range(4))
def test_tables_are_right_where_decisions_are_made_ahead(seed):
    table, _ = random_requests(seed, 2, 30)
    rules = {"progress_on_evict": "recompute", "requeue": "front", "output_kv": "next_iteration"}
    system = system_of(30, 2, 2, "scheduled" if seed < 3 else "computed", **rules)
    policy = make_policy("vllm_v1", async_scheduling=True, max_num_batched_tokens=16, max_num_seqs=6)
    watched = kvgym.simulate(system, table, WatchedCache(policy), compiled=False)
    assert watched.completed
    assert watched.requests.tobytes() == kvgym.simulate(system, table, policy).requests.tobytes()


def test_metrics_have_no_value_without_a_cache():
    table, _ = random_requests(0, 2, 30)
    metrics = kvgym.compute_metrics(kvgym.simulate(System(30, UnitBatchTime()), table, "fcfs"))
    names = ("hit_rate", "hit_rate_resumed", "hit_tokens", "cached_share", "cache_evictions")
    assert all(np.isnan(metrics[name]) for name in names)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prefix_cache": "on"}, "prefix_cache = 'on'; valid: off, computed, scheduled, radix"),
        ({"prefix_block": 8}, "prefix_block = 8 without a prefix cache"),
        ({"prefix_cache": "computed", "prefix_block": 6}, "a multiple of block_size = 4"),
        ({"prefix_cache": "computed", "prefix_block": 64}, "at most kv_capacity = 40"),
        ({"cache_rule": "fixed:tool=3"}, "without a prefix cache"),
        ({"prefix_cache": "computed", "cache_rule": "fixed:user=-1"}, "seconds ≥ 0, or inf"),
        ({"prefix_cache": "computed", "cache_rule": "fixed:hours=1"}, "no option 'hours'; valid: user, tool"),
        ({"prefix_cache": "computed", "cache_rule": "mru"}, "unknown cache rule 'mru'"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ConfigError, match=message):
        System(40, UnitBatchTime(), block_size=4, **settings)


def test_units_must_fit_the_blocks_of_the_hashes():
    table, _ = random_requests(0, 4, 30)
    with pytest.raises(WorkloadError, match="one must divide the other"):
        kvgym.simulate(system_of(30, 3, 3), table, "fcfs")
