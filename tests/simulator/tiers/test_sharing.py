"""Memories below the GPU of several workers: each its own, or shared, by hand and in random runs."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.runs.tiers import A_B_A, random_case, requests
from kvgym.batch_time import UnitBatchTime
from kvgym.policies.policy import make_policy
from kvgym.policies.results import SimulationResult
from kvgym.policies.runner import prepare_run, simulate
from kvgym.simulator.prefix.host_memory import HostMemory, Tier
from kvgym.simulator.system import System, Worker
from kvgym.simulator.tables import UNKNOWN, WAITING
from kvgym.workloads.table import RequestTable


def cluster_of(workers: int, memory: HostMemory | None, capacity: int = 20) -> System:
    """Return workers with batches of a second and blocks of 4."""
    return System.cluster(
        [Worker(capacity, UnitBatchTime())] * workers,
        progress_on_evict="recompute",
        requeue="front",
        block_size=4,
        output_kv="next_iteration",
        prefix_cache="scheduled",
        host_memory=memory,
    )


def run(memory: HostMemory, table: RequestTable, workers: int = 2) -> SimulationResult:
    """Return the result of workers that take turns."""
    system = cluster_of(workers, memory)
    return simulate(system, table, make_policy("vllm_v1"), router="round_robin", compiled=False)


def memory_of(shared: str, host: str = "worker") -> HostMemory:
    """Return 0.25 s per token of the host's link, and of the store's 0.5 up and 0.25 down."""
    below = Tier(64, 0.5, 0.25, shared=shared)
    return HostMemory(32, 0.25, 0.25, shared=host, load="wait", below=below, workers_per_host=2)


def test_each_worker_has_its_own() -> None:
    found = run(HostMemory(32, 0.25, 0.25, load="wait"), A_B_A)
    assert found.tier["total_stored"].tolist() == [3, 5]
    assert found.tier["total_loaded"].tolist() == [
        0,
        0,
    ]  # the third goes to the first, which has it in its GPU


A_A = requests((0.0, "a", 12, 1), (20.0, "a", 14, 1))


@pytest.mark.parametrize(("shared", "end"), [("worker", 21.0), ("host", 30.0), ("all", 30.0)])
def test_what_one_has_computed_another_loads_from_a_shared_store(shared: str, end: float) -> None:
    """It is in the host from 4 on and in the store from 7 on; read from 20 to 26, loaded until 29."""
    found = run(memory_of(shared), A_A)
    assert found.requests["finish_time"].tolist() == [1.0, end]
    loaded = 0 if shared == "worker" else 3
    assert found.tier["total_loaded"].tolist() == found.lower["total_loaded"].tolist() == [0, loaded]
    assert found.worker["total_prefill_tokens"].tolist() == [12, 14 - 4 * loaded]
    if loaded:
        assert found.lower["used"].tolist() == [3, 0]
        assert found.lower["capacity"].tolist() == [16, 0]


def test_workers_of_a_host_share_its_memory() -> None:
    found = run(memory_of("worker", "host"), A_A)
    assert found.requests["finish_time"].tolist() == [1.0, 24.0]
    assert found.tier["total_loaded"].tolist() == [0, 3]
    assert found.tier["used"].tolist() == [3, 0]


def test_a_shared_host_needs_no_store() -> None:
    found = run(HostMemory(32, 0.25, 0.25, shared="host", load="wait", workers_per_host=2), A_A)
    assert found.requests["finish_time"].tolist() == [1.0, 24.0]
    assert found.tier["total_loaded"].tolist() == [0, 3]


def test_two_hosts_do_not_share() -> None:
    table = requests(
        (0.0, "a", 12, 1), (1.0, "b", 4, 1), (20.0, "a", 14, 1), (30.0, "b", 5, 1), (40.0, "a", 13, 1)
    )
    found = run(memory_of("host"), table, workers=4)
    assert found.lower["total_loaded"].tolist() == [0, 0, 0, 0]  # "a" on 0, 2, 0, and "b" on 1, 3
    assert found.lower["used"].tolist() == [4, 0, 4, 0]


def test_others_find_it_when_it_is_there() -> None:
    """At 5 it is on its way to the store, until 7; a request that waits from 6.75 on finds it at 7.5."""
    early = requests((0.0, "a", 12, 1), (5.0, "a", 14, 1))
    assert run(memory_of("all"), early).requests["finish_time"].tolist() == [1.0, 6.0]
    waits = requests((0.0, "a", 12, 1), (6.5, "b", 4, 1), (6.625, "c", 4, 1), (6.75, "a", 14, 1))
    assert run(memory_of("all"), waits).requests["finish_time"].tolist() == [1.0, 7.5, 7.625, 17.5]


def test_what_is_read_into_a_shared_host_is_found_by_its_workers() -> None:
    """The host has dropped "a" for "b" and "c"; the third worker to ask for it finds it in the host again."""
    table = requests(
        (0.0, "a", 12, 1),
        (10.0, "b", 20, 1),
        (30.0, "c", 20, 1),
        (60.0, "c", 4, 1),
        (70.0, "a", 14, 1),
        (90.0, "a", 14, 1),
    )
    found = run(memory_of("all", "host"), table)
    assert found.requests["finish_time"][-2:].tolist() == [80.0, 94.0]
    assert found.lower["total_loaded"].tolist() == [3, 0]
    assert found.tier["total_loaded"].tolist() == [3, 4]  # the second also the whole prompt of 60


SHARED = [("worker", "all"), ("host", "all"), ("host", "host"), ("worker", "host")]


def random_cluster(seed: int) -> tuple[System, RequestTable]:
    """Return three workers, two of them on one host, with small memories, and requests that share beginnings."""
    alone, table = random_case(seed, 20)
    one = alone.host_memory
    assert one is not None
    host, store = SHARED[seed]
    below = Tier(60, 0.125, 0.25, 0.125, shared=store)
    memory = HostMemory(
        max(one.tokens, 24),
        0.0625,
        0.0625,
        0.0,
        host,
        one.load,
        True,
        one.load_if,
        below=below,
        workers_per_host=2,
    )
    return cluster_of(3, memory, 40), table


@pytest.mark.parametrize("seed", range(4))
def test_what_always_holds(seed: int) -> None:
    system, table = random_cluster(seed)
    simulation, _ = prepare_run(system, table, make_policy("vllm_v1"), router="round_robin", compiled=False)
    now, levels = simulation.tracker[0], (simulation.tier, simulation.lower)
    decided, then, shown, lost = 0, -1.0, 0, 0
    places = np.zeros(simulation.below.shape[1], np.int64)
    for p in simulation.prefix:
        places[simulation.chain[p["chain"] : p["chain"] + p["length"]]] = np.arange(p["length"])
    while not simulation.run(budget=1):
        for level, (tier, units) in enumerate(
            zip(levels, np.split(simulation.stored, 2, axis=1), strict=True)
        ):
            for k in range(3):
                owner = int(tier["number"][k])
                present = units[owner]["rank"] > 0
                assert tier["used"][owner] == present.sum() <= tier["capacity"][owner]
                known = simulation.below[k]["there"] & (1 << level) > 0
                assert not (known & ~present).any()
                assert (simulation.below[k]["position"] == places)[known].all()
                if owner == tier["number"][decided]:  # its decision has shown what had arrived
                    assert (known | (units[owner]["ready_at"] > then) | ~present).all()
                shown += int((known & (owner != k)).sum())
        for i in np.flatnonzero(simulation.requests["status"] == WAITING):
            row, p = simulation.requests[i], simulation.prefix[i]
            k = int(row["worker"])
            there = (simulation.below[k]["there"] > 0) | (simulation.contents[k]["unit"] != UNKNOWN)
            missing = np.flatnonzero(~there[simulation.chain[p["chain"] : p["chain"] + p["most"]]])
            assert p["num_units"] == (missing[0] if len(missing) else p["most"])
        decided, then = int(now["worker"]), float(now["clock"])
        lost = int(simulation.tier["total_dropped"].sum() + simulation.lower["total_dropped"].sum())
    assert shown > 0
    assert lost > 0
    assert (simulation.requests["finish_time"] > 0).all()
    assert simulation.lower["total_loaded"].sum() > 0


def test_compiled_equals_uncompiled() -> None:
    for seed in (1,):
        system, table = random_cluster(seed)
        results = [
            simulate(system, table, make_policy("vllm_v1"), router="round_robin", compiled=compiled)
            for compiled in (True, False)
        ]
        np.testing.assert_array_equal(*(result.requests["finish_time"] for result in results))
        np.testing.assert_array_equal(*(result.lower["total_loaded"] for result in results))
