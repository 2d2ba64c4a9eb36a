"""KV memory below the GPU in the engine: hand-worked runs, what always holds, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from helpers.runs.tiers import A_B_A, random_case, requests, system_of
from kvgym.batch_time import UnitBatchTime
from kvgym.batch_time.deployments.load import load_hardware
from kvgym.errors import ConfigError
from kvgym.experiments.caches.host_memory import HostMemorySettings
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import prepare_run, simulate
from kvgym.simulator.fleet import Fleet, Pool
from kvgym.simulator.prefix.host_memory import TIER, HostMemory, Tier
from kvgym.simulator.system import System, Worker
from kvgym.simulator.tables import UNKNOWN, WAITING

METRICS = (
    "hit_rate",
    "host_hit_rate",
    "loaded_tokens",
    "stored_tokens",
    "load_wait",
    "stall_time",
    "host_use",
    "link_use",
)


@pytest.mark.parametrize(("load", "end", "wait"), [("wait", 24.0, 3.0), ("overlap", 23.0, 2.0)])
def test_what_the_gpu_has_dropped_is_loaded(load: str, end: float, wait: float) -> None:
    result = simulate(system_of(20, 32, load), A_B_A, make_policy("vllm_v1"))
    assert result.requests["finish_time"].tolist() == [1.0, 11.0, end]  # 12 tokens are loaded in 3 s
    found = compute_metrics(result, METRICS)
    assert found["hit_rate"] == 0.0
    assert found["host_hit_rate"] == pytest.approx(12 / 46)
    assert (found["loaded_tokens"], found["stored_tokens"]) == (12, 32)
    assert (found["load_wait"], found["stall_time"]) == (wait, 0.0)
    assert found["link_use"] == pytest.approx(3 / end)
    assert found["host_use"] == pytest.approx((3 * 10 + 8 * (end - 11)) / (8 * end))
    assert result.worker["total_prefill_tokens"].sum() == 12 + 20 + 2


@pytest.mark.parametrize(("rule", "loaded"), [("lru", 0), ("ends", 12), ("clairvoyant", 12)])
def test_the_host_drops_by_the_cache_rule(rule: str, loaded: int) -> None:
    texts = requests((0.0, "a", 12, 1), (10.0, "b", 19, 1), (20.0, "c", 19, 1), (30.0, "a", 14, 1))
    turns = texts.replace(session_id=[0, 1, 2, 0], turn=[1, 1, 1, 2])
    found = simulate(system_of(20, 32, cache_rule=rule), turns, make_policy("vllm_v1"))
    # b and c fill the GPU with 5 units each. The host has 8: c takes the place of a, or that of b, which is over.
    assert compute_metrics(found, METRICS)["loaded_tokens"] == loaded


def test_the_gpu_has_the_first_units_and_the_host_the_rest() -> None:
    table = requests((0.0, "a", 16, 1), (10.0, "b", 8, 1), (20.0, "a", 17, 1))
    result = simulate(system_of(20, 64), table, make_policy("vllm_v1"))
    found = compute_metrics(result, METRICS)  # the second takes an unused block and the last one of the first
    assert found["hit_rate"] == pytest.approx(12 / 41)
    assert found["loaded_tokens"] == 4
    assert result.requests["finish_time"][2] == 22.0


def test_a_batch_waits_for_writes_from_memory_that_it_takes() -> None:
    table = requests((0.0, "a", 12, 1), (1.5, "b", 20, 1))  # written from 1 to 4
    result = simulate(system_of(20, 64), table, make_policy("vllm_v1"))
    assert result.requests["finish_time"].tolist() == [1.0, 5.0]
    assert compute_metrics(result, METRICS)["stall_time"] == 2.5


def test_a_load_waits_for_what_is_still_written() -> None:
    table = requests((0.0, "a", 12, 1), (1.5, "b", 20, 1), (5.0, "a", 14, 1), (5.0, "c", 4, 1))
    result = simulate(system_of(20, 64, seconds=1.0), table, make_policy("vllm_v1"))
    # "a" is written from 1 to 13, so "b" runs from 13 to 14, and is written until 34; "a" is loaded from 14 to 26,
    # and its memory is free when "b" has been written.
    assert result.requests["finish_time"].tolist()[:2] == [1.0, 14.0]
    assert result.requests["finish_time"][2] == 35.0


def test_a_full_memory_drops_the_tail_of_what_was_used_least_recently() -> None:
    table = requests(
        (0.0, "a", 8, 1), (10.0, "b", 8, 1), (20.0, "c", 12, 1), (30.0, "a", 9, 1), (40.0, "b", 9, 1)
    )
    result = simulate(system_of(12, 16), table, make_policy("vllm_v1"))
    # "c" needs three units: both of "a" go, and the last of "b"; then "a" finds nothing, and takes two from "b", "c"
    assert compute_metrics(result, METRICS)["loaded_tokens"] == 0
    assert result.tier["total_dropped"].sum() == 3 + 2 + 2


def test_without_outputs_only_prompts_are_written() -> None:
    table = requests((0.0, "a", 6, 8))
    for outputs, stored in ((True, 12), (False, 4)):
        result = simulate(system_of(20, 64, outputs=outputs), table, make_policy("vllm_v1"))
        assert compute_metrics(result, METRICS)["stored_tokens"] == stored


@pytest.mark.parametrize(
    ("seconds", "loaded", "end"), [(1 / 8, 0, 21.0), (1 / 12, 0, 21.0), (1 / 16, 12, 21.75)]
)
def test_cheaper_loads_only_what_is_there_before_it_could_be_computed(
    seconds: float, loaded: int, end: float
) -> None:
    """A batch takes a second, the load of 12 tokens 1.5, 1 or 0.75 seconds; of equal times, it computes."""
    system = system_of(20, 32, seconds=seconds, load_if="cheaper")
    result = simulate(system, A_B_A, make_policy("vllm_v1"))
    assert result.requests["finish_time"][2] == end
    assert compute_metrics(result, METRICS)["loaded_tokens"] == loaded
    assert result.worker["total_prefill_tokens"].sum() == 12 + 20 + 14 - loaded


def test_cheaper_counts_the_loads_before() -> None:
    """Both units of "a" are there in half a second, those of "b" only after a second: "b" is computed."""
    table = requests(
        (0.0, "a", 8, 1), (0.0, "b", 8, 1), (10.0, "c", 20, 1), (20.0, "a", 9, 1), (20.0, "b", 9, 1)
    )
    for policy in ("vllm_v1", "fcfs"):
        system = system_of(24, 64, seconds=1 / 16, load_if="cheaper")
        result = simulate(system, table, make_policy(policy))
        assert compute_metrics(result, METRICS)["loaded_tokens"] == 8
        assert result.worker["total_prefill_tokens"].sum() == 8 + 8 + 20 + 1 + 9
        assert result.requests["finish_time"][3:].tolist() == [21.5, 21.5]


@pytest.mark.parametrize(("gb_per_s", "loaded"), [(1.0, 0), (25.0, 4096)])
def test_an_h100_computes_what_a_slow_link_would_load(gb_per_s: float, loaded: int) -> None:
    hardware = load_hardware("roofline:model=llama3-8b,gpu=h100")
    memory = HostMemorySettings(gib=8, gb_per_s=gb_per_s, load_if="cheaper").memory(hardware)
    system = dataclasses.replace(
        system_of(8192, 8), batch_time=hardware.batch_time(), block_size=256, host_memory=memory
    )
    table = requests((0.0, "a", 4096, 1), (10.0, "b", 8000, 1), (20.0, "a", 4100, 1), unit=256)
    result = simulate(system, table, make_policy("vllm_v1"))
    assert compute_metrics(result, METRICS)["loaded_tokens"] == loaded


@pytest.mark.parametrize(("below", "stored"), [(None, []), (Tier(64, 0.0, 0.25), [7])])
def test_back_writes_what_the_gpu_drops(below: Tier | None, stored: list[int]) -> None:
    """Of "a" 3 units from 10 to 13, for which "b" waits, of "b" 4 from 20 to 24, while "a" is loaded."""
    result = simulate(system_of(20, 32, write="back", below=below), A_B_A, make_policy("vllm_v1"))
    assert result.requests["finish_time"].tolist() == [1.0, 14.0, 25.0]
    found = compute_metrics(result, METRICS)
    assert (found["loaded_tokens"], found["stored_tokens"], found["stall_time"]) == (12, 28, 7.0)
    assert found["host_hit_rate"] == pytest.approx(12 / 46)
    assert result.lower["total_stored"].tolist()[: len(stored)] == stored


def test_back_keeps_more_as_the_gpu_has_the_rest() -> None:
    """A host of 8 units; what it had of "a", which the GPU has again, goes first."""
    table = requests(
        (0.0, "a", 12, 1), (10.0, "b", 20, 1), (30.0, "a", 14, 1), (40.0, "c", 20, 1), (60.0, "b", 20, 1)
    )
    loaded = {}
    for write in ("through", "back"):
        result = simulate(system_of(20, 32, seconds=0.0, write=write), table, make_policy("vllm_v1"))
        loaded[write] = result.tier["total_loaded"].tolist()
    assert loaded == {"through": [3], "back": [3 + 5]}  # a whole prompt


A_B_C_A = requests((0.0, "a", 12, 1), (10.0, "b", 20, 1), (30.0, "c", 20, 1), (50.0, "a", 14, 1))
"""A host with 32 tokens has dropped the first when "c" has been written, which takes all of a GPU with 20 tokens."""


@pytest.mark.parametrize(("load_if", "end"), [("always", 59.0), ("cheaper", 51.0)])
def test_what_the_host_has_dropped_is_read_from_the_store(load_if: str, end: float) -> None:
    """Written on from 4 to 7; read in 0.5 s per token from 50 to 55 with a latency of 2, then loaded in 3."""
    below = Tier(64, 0.25, 0.25, 2.0)
    result = simulate(system_of(20, 32, below=below, load_if=load_if), A_B_C_A, make_policy("vllm_v1"))
    assert result.requests["finish_time"][3] == end
    found = compute_metrics(result, (*METRICS, "store_hit_rate"))
    loaded = 12 if load_if == "always" else 0
    assert (found["loaded_tokens"], found["host_hit_rate"]) == (loaded, 0.0)
    assert found["store_hit_rate"] == pytest.approx(loaded / 66)
    lower = result.lower[0]
    assert (lower["total_stored"], lower["total_loaded"], lower["used"]) == (13, loaded // 4, 13)
    assert lower["down_time"] == 2 * 3 + 13


def test_what_the_store_has_is_loaded_with_what_the_host_has() -> None:
    """The host drops the last unit of "a" for "b", and the first of "c" for it, as "b" is being written."""
    table = requests((0.0, "a", 12, 1), (10.0, "b", 16, 1), (30.0, "a", 13, 1))
    system = system_of(16, 24, below=Tier(64, 0.5, 0.0))
    result = simulate(system, table, make_policy("vllm_v1"))
    assert result.requests["finish_time"][2] == 30.0 + 2.0 + 3.0 + 1.0
    found = compute_metrics(result, (*METRICS, "store_hit_rate"))
    assert found["host_hit_rate"] == pytest.approx(8 / 41)
    assert found["store_hit_rate"] == pytest.approx(4 / 41)
    assert result.tier["total_stored"].tolist() == [3 + 4]
    assert result.tier["used"].tolist() == [6]  # it is there again


def test_without_room_in_the_host_what_the_store_has_passes_through() -> None:
    """All of the host is being written on, "b" from 71 to 151, when "a" is read from 80 to 83."""
    table = requests((0.0, "a", 12, 1), (70.0, "b", 16, 1), (80.0, "a", 13, 1))
    result = simulate(
        system_of(16, 16, seconds=0.0, below=Tier(64, 0.25, 5.0)), table, make_policy("vllm_v1")
    )
    assert result.requests["finish_time"].tolist() == [1.0, 71.0, 84.0]
    assert compute_metrics(result, ["store_hit_rate"])["store_hit_rate"] == pytest.approx(12 / 41)
    assert result.tier["total_dropped"].tolist() == [3]  # for "b" only


def test_a_full_store_drops_what_was_used_least_recently() -> None:
    system = system_of(20, 32, seconds=0.0, below=Tier(40, 0.0, 0.0))
    result = simulate(system, A_B_C_A, make_policy("vllm_v1"))
    assert result.lower["total_dropped"].tolist() == [3 + 3]  # "a" for "c", and then "b" for "a"
    assert compute_metrics(result, METRICS)["loaded_tokens"] == 0


def test_an_evicted_request_finds_its_units_below() -> None:
    table = requests(
        (0.0, "a", 8, 17), (0.0, "b", 8, 9)
    )  # 7 blocks; the first ends with 6, and the second with 4
    with_host = simulate(system_of(28, 64, seconds=0.0), table, make_policy("vllm_v1"))
    without = simulate(
        system_of(28, 4, seconds=0.0), table, make_policy("vllm_v1")
    )  # a memory of one unit: next to nothing
    assert with_host.worker["total_evicted"].sum() == without.worker["total_evicted"].sum() == 1
    assert with_host.worker["total_prefill_tokens"].sum() < without.worker["total_prefill_tokens"].sum()
    assert with_host.tier["total_loaded"].sum() > 0
    assert compute_metrics(with_host, METRICS)["host_hit_rate"] == 0.0  # none at a first start


@pytest.mark.parametrize("policy", ["vllm_v1", "fcfs"])
@pytest.mark.parametrize("seed", range(7))
def test_what_always_holds(seed: int, policy: str) -> None:
    system, table = random_case(seed)
    assert system.host_memory is not None
    simulation, _ = prepare_run(system, table, make_policy(policy), compiled=False)
    while not simulation.run(budget=1):
        below, there = simulation.below[0], simulation.contents[0]["unit"] != UNKNOWN
        tiers = [simulation.tier[0], simulation.lower[0]][: len(system.host_memory.tiers)]
        last = max(float(tier[name]) for tier in tiers for name in ("up_free", "down_free"))
        for tier, units in zip(tiers, np.split(simulation.stored[0], len(tiers)), strict=True):
            present = units["rank"] > 0
            assert tier["used"] == present.sum() <= tier["capacity"]
            assert (units["ready_at"] <= units["busy_until"]).all()
            assert (units["busy_until"] <= max(last, 0.0)).all()
            np.testing.assert_array_equal(present, below["there"] & tier["mark"] > 0)
            there |= present
        for i in np.flatnonzero(simulation.requests["status"] == WAITING):
            p, row = simulation.prefix[i], simulation.requests[i]
            chain = simulation.chain[p["chain"] : p["chain"] + p["most"]]
            missing = np.flatnonzero(~there[chain])
            assert p["num_units"] == (missing[0] if len(missing) else p["most"])
            if p["most"]:
                assert row["num_kv_tokens"] == 4 * p["num_units"]
                assert (
                    row["num_kv_tokens"] + row["num_prefill_left"]
                    == row["prompt_len"] + row["num_output_tokens"]
                )
    worker, tier = simulation.workers[0], simulation.tier[0]
    assert tier["total_loaded"] > 0 or system.host_memory.load_if == "cheaper"
    known = worker["total_known_tokens"] + worker["total_known_resumed"]
    hits = worker["total_hit_tokens"] + worker["total_hit_resumed"] + 4 * tier["total_loaded"]
    again = worker["total_prefill_tokens"] - (
        known - hits
    )  # the last token of each prompt that is loaded whole
    assert 0 <= again <= tier["total_loads"]
    assert (simulation.requests["finish_time"] > 0).all()


def test_compiled_equals_uncompiled() -> None:
    for seed in (0, 3, 4, 6):
        system, table = random_case(seed)
        memory = system.host_memory
        if memory is not None and (memory.load_if, memory.write, memory.below) == ("always", "through", None):
            system = dataclasses.replace(system, host_memory=dataclasses.replace(memory, load="async"))
        results = [
            simulate(system, table, make_policy("vllm_v1"), compiled=compiled) for compiled in (True, False)
        ]
        for name in ("finish_time", "first_token_time", "num_evictions"):
            np.testing.assert_array_equal(*(result.requests[name] for result in results))
        names = [name for name in TIER.names or () if name.startswith("total_")]
        names += ["up_time", "down_time", "used_time", "stall_time", "wait_time"]
        for found in ("tier", "lower"):
            totals = [getattr(result, found)[names].tolist() for result in results]
            assert totals[0] == totals[1]


def test_a_large_free_memory_computes_each_unit_once() -> None:
    rows = [(float(10 * k), f"text {k % 3}", 16, 1) for k in range(12)]
    result = simulate(system_of(20, 4000, seconds=0.0), requests(*rows), make_policy("fcfs"))
    assert result.worker["total_prefill_tokens"].sum() == 3 * 16 + 9  # the last token is computed again


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prefix_cache": "computed"}, "set prefix_cache: scheduled"),
        ({"prefix_cache": "off"}, "set prefix_cache: scheduled"),
        ({"prefix_block": 40, "kv_capacity": 400}, "a unit of the prefix cache has 40"),
    ],
)
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"kv_capacity": 40, "block_size": 4, "prefix_cache": "scheduled", **change}
    with pytest.raises(ConfigError, match=message):
        System(batch_time=UnitBatchTime(), host_memory=HostMemory(32, 0.1, 0.1), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokens": 0}, "host_memory: tokens"),
        ({"load_time": -1.0}, "host_memory: load_time"),
        ({"load": "later"}, "valid: overlap, wait, async"),
        ({"load": "async", "load_if": "cheaper"}, "use overlap or wait"),
        ({"load_if": "never"}, "valid: always, cheaper"),
        ({"write": "never"}, "valid: through, back"),
        ({"write": "back", "outputs": False}, "leave out outputs: false"),
        ({"below": 8}, "expected a Tier"),
        ({"shared": "some"}, "valid: worker, host, all"),
        ({"shared": "host"}, "needs workers_per_host"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HostMemory(**{"tokens": 8, "load_time": 0.0, "store_time": 0.0, **settings})


def test_fleets_and_separate_workers_are_refused() -> None:
    settings: dict[str, Any] = {
        "block_size": 4,
        "prefix_cache": "scheduled",
        "host_memory": HostMemory(32, 0.1, 0.1),
    }
    worker = Worker(40, UnitBatchTime())
    apart = [Worker(40, UnitBatchTime(), role=role) for role in ("prefill", "decode")]
    with pytest.raises(ConfigError, match="prefill and decode workers is not modelled"):
        System.cluster(apart, **settings)
    with pytest.raises(ConfigError, match="a fleet is not modelled"):
        System.cluster([worker], fleet=Fleet((Pool(1, most=1),)), **settings)
